// Part of kernels_body.hpp: rows rounded to int8, and such rows times one group of an int8 weight.
#pragma once
#include "body_products.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

typedef Step<std::int8_t> Int8Step;

ALWAYS_INLINE Vec absolute(Vec v) { return (Vec)((Bits)v & 0x7fffffffu); }
ALWAYS_INLINE Vec nearest(Vec v) {
    const float shift = 12582912;  // 1.5 * 2^23: there floats are whole numbers
    return v + shift - shift;
}

#if WIDTH == 16
ALWAYS_INLINE float largest_of(Vec v) { return _mm512_reduce_max_ps((__m512)v); }
#else
ALWAYS_INLINE float largest_of(Vec v) {
    float most = 0;
    for (int i = 0; i < WIDTH; i++) most = v[i] > most ? v[i] : most;
    return most;
}
#endif

template <class T> void round_row(const T *row, int inputs, Int8Part *out) {
    const float least = 1e-30f;  // numbers below it are 0: nothing may be divided by them
    for (const T *end = row + inputs; row < end; row += INT8_GROUP, out++) {
        Vec most{}, sum{};
        for (int i = 0; i < INT8_GROUP; i += WIDTH) most = larger(absolute(wide(row + i)), most);
        const float largest = largest_of(most), factor = largest > least ? 127 / largest : 0;
        for (int i = 0; i < INT8_GROUP; i += WIDTH) {
            const Vec whole = nearest(wide(row + i) * factor);
            Int8Step::put(*out, i, whole);
            sum += whole;
        }
        const float total = sum_of(sum);
        const bool sound = total == total;
        out->scale = sound ? (largest > least ? largest / 127 : 0) : total;
        out->start = sound ? -INT8_OFFSET * std::int32_t(total) : 0;
    }
}

const int INT8_STEPS = INT8_GROUP / INT8_INPUTS;
const int INT8_AHEAD = 4;  // parts of INT8_GROUP inputs that blocks of rows ask for ahead

// A group of an int8 weight, from one of its panels on: part after part, each of them scales, then weights.
struct Int8Weights {
    const char *part;
    int panels, panel;

    std::ptrdiff_t bytes() const { return std::ptrdiff_t(panels) * PANEL * (sizeof(float) + INT8_GROUP); }
    std::ptrdiff_t pace() const { return bytes() / INT8_STEPS; }
    std::ptrdiff_t apart() const { return std::ptrdiff_t(panels) * PANEL * INT8_INPUTS; }  // from step to step
    const float *scales() const { return reinterpret_cast<const float *>(part) + panel * PANEL; }
    const std::uint8_t *numbers() const {
        return reinterpret_cast<const std::uint8_t *>(part) + panels * PANEL * sizeof(float) +
               panel * PANEL * INT8_INPUTS;
    }
};

// A vector that lies in memory.
struct Stored {
    float *at;
    ALWAYS_INLINE operator Vec() const { return load<Vec>(at); }
    ALWAYS_INLINE void operator=(Vec v) const { store(at, v); }
};

// What the whole sum of a part adds to a sum. Product and sum are one expression for all kinds of sums: compilers round
// once or twice by that.
ALWAYS_INLINE Vec plus_part(Vec total, Vec own, Vec scale, Int8Step::Sum sum) {
    return total + own * scale * Int8Step::wide(sum);
}

// A part of R rows by C vectors of weights: to each sum, as `total(r, c)` refers to it, what it adds.
template <int R, int C, class Total>
ALWAYS_INLINE void add_int8_part(const Int8Part *a, std::ptrdiff_t stride, const Int8Weights &weights, Ahead &ahead,
                                 const Total &total) {
    const int lines = C * WIDTH * INT8_INPUTS / LINE;
    const std::ptrdiff_t apart = weights.apart();
    const std::uint8_t *numbers = weights.numbers();
    Int8Step::Sum sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = Int8Step::start(a[r * stride]);
    for (int i = 0; i < INT8_GROUP; i += INT8_INPUTS, numbers += apart) {
        ahead.ask<lines>();
        add_step<std::int8_t>(sums, numbers, [&](int r) { return Int8Step::row(a[r * stride]) + i; });
    }
    Vec scale[C];
    for (int c = 0; c < C; c++) scale[c] = load<Vec>(weights.scales() + c * WIDTH);
    for (int r = 0; r < R; r++) {
        const Vec own = all(a[r * stride].scale);
        for (int c = 0; c < C; c++) total(r, c) = plus_part(total(r, c), own, scale[c], sums[r][c]);
    }
}

// A block of R rows and P panels, one part of them.
template <int R, int P>
void int8_block(const Int8Part *a, std::ptrdiff_t stride, const Int8Weights &weights, float *out, Ahead ahead) {
    const auto total = [out](int r, int c) { return Stored{out + r * SUMS_APART + c * WIDTH}; };
    add_int8_part<R, P * VECS>(a, stride, weights, ahead, total);
}

// Few rows: R of them and P panels, all parts.
template <int R, int P>
void int8_few(const Int8Part *a, std::ptrdiff_t stride, int parts, Int8Weights weights, float *out) {
    const int columns = P * VECS;
    Vec totals[R][columns] = {};
    Ahead ahead{weights.part + NEAR, weights.pace()};
    for (int part = 0; part < parts; part++, a++, weights.part += weights.bytes())
        add_int8_part<R, columns>(a, stride, weights, ahead, [&](int r, int c) -> Vec & { return totals[r][c]; });
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) store(out + r * SUMS_APART + c * WIDTH, totals[r][c]);
}

template <int P> struct Int8Blocks {
    typedef void (*Block)(const Int8Part *, std::ptrdiff_t, const Int8Weights &, float *, Ahead);
    template <int R> static constexpr Block of = int8_block<R, P>;
};
template <int P> struct Int8Few {
    typedef void (*Block)(const Int8Part *, std::ptrdiff_t, int, Int8Weights, float *);
    template <int R> static constexpr Block of = int8_few<(R < FEW_ROWS ? R : FEW_ROWS), P>;
};

// All rows against P panels: a few go through all parts, of more each block takes a part in turn.
template <int P>
void int8_rows(const Int8Part *a, std::ptrdiff_t stride, int rows, int parts, Int8Weights weights, float *out) {
    typedef Blocks<Int8Blocks<P>, P> Own;
    if (rows <= FEW_ROWS && rows <= Own::most)
        return Blocks<Int8Few<P>, P>::of(rows)(a, stride, parts, weights, out);
    for (int r = 0; r < rows; r++) std::memset(out + r * SUMS_APART, 0, P * PANEL * sizeof(float));
    const Cuts cuts(rows, Own::most);
    const std::ptrdiff_t pace = cuts.share(weights.pace());
    for (int part = 0; part < parts; part++, a++, weights.part += weights.bytes()) {
        const char *next = weights.part + INT8_AHEAD * weights.bytes();
        cuts.each([&](int block, int row, int height) {
            Own::of(height)(a + row * stride, stride, weights, out + row * SUMS_APART,
                            {next + block * INT8_STEPS * pace, pace});
        });
    }
}

inline void product_int8(const Int8Part *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group,
                         float *out) {
    const int parts = inputs / INT8_GROUP;
    Int8Weights weights{static_cast<const char *>(group), panels, 0};
    if (JOINED == panels) return int8_rows<JOINED>(a, stride, rows, parts, weights, out);
    for (; weights.panel < panels; weights.panel++)
        int8_rows<1>(a, stride, rows, parts, weights, out + weights.panel * PANEL);
}

#if DOTS
// As `Kernels::add_int8`, for C vectors of weights.
template <int C>
void add_part(const Int8Part *a, std::ptrdiff_t stride, int rows, const float *scales, const std::int32_t *dots,
              float *out) {
    Vec scale[C];
    for (int c = 0; c < C; c++) scale[c] = load<Vec>(scales + c * WIDTH);
    for (int r = 0; r < rows; r++, a += stride, dots += SUMS_APART, out += SUMS_APART) {
        const Vec own = all(a->scale);
        const Ints start = Int8Step::start(*a);
        for (int c = 0; c < C; c++) {
            float *total = out + c * WIDTH;
            store(total, plus_part(load<Vec>(total), own, scale[c], start + load<Ints>(dots + c * WIDTH)));
        }
    }
}

inline void add_int8(const Int8Part *a, std::ptrdiff_t stride, int rows, int panels, const float *scales,
                     const std::int32_t *dots, float *out) {
    (panels == 2 ? add_part<2 * VECS> : add_part<VECS>)(a, stride, rows, scales, dots, out);
}
#else
constexpr decltype(Kernels<float>::add_int8) add_int8 = nullptr;
#endif

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
