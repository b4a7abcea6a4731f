// One run of a program: its order, its buffers and each thread's scratch.
#pragma once
#include <algorithm>
#include <vector>

#include "program.hpp"

namespace foredraft {

template <class T> std::vector<T> in_type(const std::vector<float> &numbers) {
    std::vector<T> out;
    for (float number : numbers) out.push_back(narrow<T>(number));
    return out;
}

template <class T> struct Buffer {
    int width;
    std::ptrdiff_t stride;
    Memory memory;
};

// Cosines then sines of each row's position, for one rotary embedding.
struct Angles {
    int size;  // leading numbers of a head that are turned
    std::vector<const float *> rows;
};

template <class T> struct Run {
    const Order &order;
    const Kernels<T> &kernels;
    std::vector<Buffer<T>> &buffers;
    std::vector<Memory> &scratch;  // a thread's own
    std::vector<Memory> &own;      // the same, for rows that a thread readies for itself
    std::vector<Angles> &angles;   // of each rotary embedding
    std::vector<Memory> &wide;     // the same, for rows that products read as floats
    Int8Part *int8;                // rows of the product at hand, where its matrix is int8
    T *logits;                     // of the wanted rows: the caller's, or the program's own where only tokens leave

    T *row(const View &view, int row) const {
        const auto &buffer = buffers[view.buffer];
        return buffer.memory.template as<T>() + row * buffer.stride + view.offset;
    }
    std::ptrdiff_t stride(const View &view) const { return buffers[view.buffer].stride; }
};

// Run `body(row)` for each row, `width` numbers each, in chunks that are worth being taken.
template <class Body> void share_rows(Crew &crew, int rows, int width, const Body &body) {
    const int least = 2048, chunk = std::max(1, least / std::max(1, width));
    crew.share((rows + chunk - 1) / chunk, [&](int number) {
        for (int row = number * chunk; row < std::min(rows, (number + 1) * chunk); row++) body(row);
    });
}

// The heads of a row: queries, if there are any, then keys, then values.
template <class T> class Heads {
  public:
    Heads(View src, bool queries, const Attending &attending, const HeadNorm &norm);

    const View src;
    const Attending attending;

    // Norm and rotate those of some groups, a key head and the query heads that share it, and write keys and values
    // where the order says.
    void place(Run<T> &run, int row, int group, int stop) const;

  private:
    void ready(Run<T> &run, int row, T *heads, int count, const std::vector<T> &narrowed,
               const std::vector<float> &weight) const;

    bool queries_;
    HeadNorm norm_;
    std::vector<T> query_norm_, key_norm_;
};

// Places the heads of all rows, then mixes what each row sees of its segment's values.
template <class T> void attend_rows(Crew &crew, Run<T> &run, View dst, const Heads<T> &heads);

// Bytes of scratch a thread needs to attend in `order`.
std::size_t attention_scratch(const Order &order);

}  // namespace foredraft
