// The inner loops, one set for each instruction set. Every set sums each row in one order, whatever the number of rows.
#pragma once
#include <cstddef>
#include <cstdint>

#include "bf16.hpp"

namespace foredraft {

const int PANEL = 16;         // columns of a weight that lie side by side
const int MOST_PANELS = 2;    // panels of a group: what one chunk of a product computes
const int INT8_GROUP = 64;    // inputs that share a scale
const int INT8_INPUTS = 4;    // of a column that lie side by side
const int INT8_OFFSET = 128;  // of a stored weight, so that it has no sign
const int LANES = 16;         // queries that attend together
const int MOST_HEAD = 512;    // numbers of a head
const int MOST_ROWS = 96;     // of a product at once: their sums stay in the first-level cache
const int LINE = 64;          // bytes of a cache line
const int WIDE_INPUTS = 128;  // of a row that lie side by side once it is widened: all rows stay in that cache
const int SUMS_APART = MOST_PANELS * PANEL;  // from one row of a product's sums to the next

enum class Activation { silu, gelu, gelu_tanh };

// Where the keys or values of a segment lie: rows of `stride` numbers, by a run of slots or by a list of them.
template <class T> struct SlotRows {
    const T *base;
    std::ptrdiff_t stride;
    std::int64_t first;          // of the run; unused with a list
    const std::int64_t *list;    // or null

    ALWAYS_INLINE const T *row(std::int64_t i) const { return base + (list ? list[i] : first + i) * stride; }
};

const int ROWS_AHEAD = 96;  // keys or values asked for before they are needed: they lie far apart

// Ask the memory for rows `from` to `stop`.
template <class T> ALWAYS_INLINE void ask(const SlotRows<T> &rows, std::int64_t from, std::int64_t stop, int size) {
    for (; from < stop; from++) {
        const char *row = (const char *)rows.row(from);
        for (std::size_t byte = 0; byte < size * sizeof(T); byte += LINE) __builtin_prefetch(row + byte, 0, 2);
    }
}

ALWAYS_INLINE std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Which keys the lanes see. Keys before `context` are seen from the lane's `from` on, the rows' own by their bits.
struct Sight {
    std::int64_t context;
    const std::int64_t *from;    // [LANES]
    std::int64_t most_from;      // largest of `from`
    const std::uint16_t *own;    // [keys - context], a bit for each lane
};

// INT8_GROUP numbers of a row, rounded to whole ones from -127 to 127 times a scale, as the kernels at hand read them.
struct Int8Part {
    float scale;         // NaN where one of the numbers is none
    std::int32_t start;  // what makes up for weights that are stored INT8_OFFSET too large
    union {
        std::int8_t narrow[INT8_GROUP];
        float wide[INT8_GROUP];
    };
};

// The rows of a product as floats, for kernels that read them so: written by the first group, read by the others.
struct Widened {
    float *room;  // a multiple of WIDE_INPUTS for each row
    bool filled;
};

template <class T> struct Kernels {
    bool widens;  // whether products need a `Widened`
    int rows;     // of a product at once, at most: up to MOST_ROWS
    // out[r][0 .. 16 panels) = a[r][0 .. inputs) times one group of a tiled weight, fp32; rows are SUMS_APART apart in
    // `out`.
    void (*product)(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const T *group, float *out,
                    Widened &wide);
    // A row to int8, part after part; `inputs` are a multiple of INT8_GROUP.
    void (*round_row)(const T *row, int inputs, Int8Part *out);
    // The same product of rows in int8, `stride` parts apart, and int8 weights: for each INT8_GROUP inputs 16 panels
    // scales, then the weights, INT8_INPUTS of a column side by side. Sums of a group are exact.
    void (*product_int8)(const Int8Part *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group,
                         float *out);
    // What one part of that product adds to `out`, where `dots`, which lie alike, are its whole sums but for the rows'
    // `start`; null where rows are not narrow.
    void (*add_int8)(const Int8Part *a, std::ptrdiff_t stride, int rows, int panels, const float *scales,
                     const std::int32_t *dots, float *out);
    // out[i][lane] = keys[i] . queries[lane] for `count` keys; queries are packed by `pack_query`.
    void (*scores)(SlotRows<T> keys, std::int64_t start, std::int64_t count, int size, const T *queries, float *out);
    // Scores [count][LANES] to weights not yet divided by their sums; sums[LANES].
    void (*weights)(float *scores, std::int64_t start, std::int64_t count, float scale, float softcap,
                    const Sight &sight, float *sums);
    // out[lane] = sum over keys of weight times value, divided by sums; `lanes` of them, rows `out[lane]`.
    void (*mix)(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int size, int lanes,
                const float *sums, T *const *out);
    void (*norm)(const T *x, const T *weight, const float *wide_weight, int width, float eps, T *out);
    // Last part of a product, so many rows of it: bias, rounding, residual.
    void (*close)(const float *sums, int rows, const T *bias, const T *residual, std::ptrdiff_t residual_stride,
                  int columns, T *out, std::ptrdiff_t stride);
    // The same for a gated product: `columns` gates, then at `apart` as many others.
    void (*gate)(const float *sums, int rows, int apart, int columns, Activation activation, T *out,
                 std::ptrdiff_t stride);
    void (*activate)(const T *x, int width, Activation activation, T *out);
    void (*rotate)(T *x, const float *cos, const float *sin, int size);
    void (*add)(const T *a, const T *b, int width, T *out);
    void (*scale)(const T *a, float factor, int width, T *out);
    void (*squeeze)(const T *a, float factor, float softcap, int width, T *out);
    // A thread is through with a product or attention, and gives back what it has kept for the next part of it.
    void (*rest)();
};

// Queries of up to LANES lanes as `scores` reads them: bf16 [size / 2][LANES][2], fp32 [size][LANES].
void pack_query(const bf16 *query, int lane, int size, bf16 *packed);
void pack_query(const float *query, int lane, int size, float *packed);

struct KernelSet {
    const char *name;
    bool (*runs_here)();
    const Kernels<bf16> *narrow;
    const Kernels<float> *wide;
};

extern const KernelSet portable_kernels, avx2_kernels, avx2_vnni_kernels, avx512_kernels, avx512_vnni_kernels,
    avx512_bf16_kernels;
const KernelSet &amx_kernels();
const KernelSet &amx_double_kernels();

// Sets this machine can run, best first, ended by null; and the one called `name`, null where it cannot run. The test
// double of the AMX kernels is found by its name alone.
const KernelSet *const *kernel_sets();
const KernelSet *find_kernels(const char *name);

}  // namespace foredraft
