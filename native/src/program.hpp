// A model as a list of operations over buffers of rows, run as a whole by one call.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "matrix.hpp"
#include "rotary.hpp"
#include "threads.hpp"

namespace foredraft {

// Columns `offset` to `offset + width` of a buffer.
struct View {
    int buffer, offset, width;
};

// The rows of one request in the pack, as in `core/step_plan.py`.
struct Segment {
    int start, rows;
    std::int64_t context;
    std::int64_t first;             // slot its keys run from
    const std::int64_t *list;       // or their slots, [context + rows]
    const std::uint8_t *ancestors;  // [rows][rows], null for causal order
};

// Keys and values of each layer, [slots][heads][size].
struct Cache {
    struct Layer {
        void *keys, *values;
        int heads, key_size, value_size;
        std::int64_t slots;
        bool narrow;
    };
    std::vector<Layer> layers;
};

struct Kept {
    int boundary;
    void *out;
};

// How the tokens of the wanted rows are chosen from their logits, and where they go; null for none.
struct TokenChoice {
    std::int64_t *tokens;      // [wanted]
    const float *divisors;     // [wanted], null where all are 1
    const std::int64_t *keys;  // of their noise, [wanted]; null for the likeliest tokens
};

// What one run reads and writes; pointers are the caller's. External rows lie one after another without gaps.
struct Order {
    const Cache *cache;
    int rows, wanted;
    const std::int64_t *tokens, *positions, *write, *wanted_rows;
    std::vector<Segment> segments;
    std::vector<Kept> kept;
    std::vector<int> skipped;
    std::vector<const void *> inputs;
    void *logits, *output;  // null where nobody asks for them
    int logits_width;       // of a row of `logits`
    TokenChoice choice;
    std::function<void(int row)> then;  // what threads do with the logits of each wanted row at the end; or null
};

struct Attending {
    int layer, heads, kv_heads, size;
    float scale, softcap;
    int window;
    int rotary;  // -1 for none
};

struct HeadNorm {
    std::vector<float> query, key;  // empty for none
    float eps;
    bool wide;
};

// What a run without some sections reads and writes: widths, 0 for what it has not.
struct Demands {
    std::vector<int> inputs;
    int logits = 0, output = 0;
};

class Program {
  public:
    virtual ~Program() = default;
    virtual bool narrow() const = 0;
    virtual int buffer(int width) = 0;
    virtual int matrix(int outputs, int inputs, bool gated, bool int8, const Weight &weight) = 0;
    // The other program's matrix, shared; an int8 copy of one that is not int8 itself where that is asked for.
    virtual int matrix_of(const Program &other, int matrix, bool int8) = 0;
    virtual int rotary(std::vector<float> frequencies, float factor) = 0;
    virtual void section(int number) = 0;

    virtual void tokens_embedded(View dst, const void *table, std::int64_t tokens, float scale) = 0;
    virtual void input(View dst, int index) = 0;
    virtual void norm(View dst, View src, std::vector<float> weight, float eps, bool wide) = 0;
    virtual void linear(View dst, View src, int matrix, std::vector<float> bias, const View *residual) = 0;
    virtual void gated(View dst, View src, int matrix, Activation activation) = 0;
    virtual void activation(View dst, View src, Activation activation) = 0;
    virtual void add(View dst, View a, View b) = 0;
    virtual void scale(View dst, View src, float factor) = 0;
    virtual void attend(View dst, View src, const Attending &attending, const HeadNorm &norm) = 0;
    virtual void store(View src, const Attending &attending, const HeadNorm &norm) = 0;
    virtual void keep(int boundary, View src, std::vector<float> weight, float eps, bool wide) = 0;
    virtual void select_rows(View dst, View src) = 0;
    virtual void logits(View src, int matrix, float scale, float softcap, int offset) = 0;
    virtual void output(View src) = 0;

    virtual int width_of(int boundary) const = 0;  // of a feature; -1 where the program keeps none
    virtual Demands demands(const std::vector<int> &skipped) const = 0;
    virtual std::int64_t weight_bytes() const = 0;
    virtual void run(const Order &order) = 0;
};

std::unique_ptr<Program> make_program(bool narrow, const KernelSet &kernels, std::shared_ptr<Threads> threads);

}  // namespace foredraft
