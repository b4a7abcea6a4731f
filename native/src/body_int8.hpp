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
ALWAYS_INLINE float whole_sum(Vec v) { return _mm512_reduce_add_ps((__m512)v); }
#else
ALWAYS_INLINE float largest_of(Vec v) {
    float most = 0;
    for (int i = 0; i < WIDTH; i++) most = v[i] > most ? v[i] : most;
    return most;
}
ALWAYS_INLINE float whole_sum(Vec v) { return sum_of(v); }
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
        const float total = whole_sum(sum);
        const bool sound = total == total;
        out->scale = sound ? (largest > least ? largest / 127 : 0) : total;
        out->start = sound ? -INT8_OFFSET * std::int32_t(total) : 0;
    }
}

const int INT8_NEAR = 4096;  // bytes ahead of the first block of rows

// A block of R rows and P panels, INT8_GROUP inputs of them. The first block of rows asks the memory for what is ahead.
template <int R, int P>
void int8_block(const Int8Part *a, std::ptrdiff_t stride, std::ptrdiff_t apart, const std::uint8_t *weights,
                const float *scales, float *out, bool first) {
    const int columns = P * VECS, width = columns * WIDTH * INT8_INPUTS;
    Int8Step::Sum sums[R][columns];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = Int8Step::start(a[r * stride]);
    for (int i = 0; i < INT8_GROUP; i += INT8_INPUTS, weights += apart) {
        for (int byte = 0; first && byte < width; byte += LINE)
            __builtin_prefetch(weights + INT8_NEAR + byte, 0, 3);
        add_step<std::int8_t>(sums, weights, [&](int r) { return Int8Step::row(a[r * stride]) + i; });
    }
    Vec scale[columns];
    for (int c = 0; c < columns; c++) scale[c] = load<Vec>(scales + c * WIDTH);
    for (int r = 0; r < R; r++) {
        const Vec own = all(a[r * stride].scale);
        for (int c = 0; c < columns; c++) {
            float *to = out + r * SUMS_APART + c * WIDTH;
            store(to, load<Vec>(to) + own * scale[c] * Int8Step::wide(sums[r][c]));
        }
    }
}

template <int P> struct Int8Blocks {
    static const int most = Int8Step::most_rows;
    typedef void (*Block)(const Int8Part *, std::ptrdiff_t, std::ptrdiff_t, const std::uint8_t *, const float *,
                          float *, bool);
    template <int R> static constexpr Block of = int8_block<R, P>;
};

// All rows against P panels, as even blocks.
template <int P>
void int8_rows(const Int8Part *a, std::ptrdiff_t stride, int rows, std::ptrdiff_t apart, const std::uint8_t *weights,
               const float *scales, float *out) {
    typedef Blocks<Int8Blocks<P>, P> Own;
    even_blocks(rows, Own::most, [&](const Cut &cut) {
        Own::of(cut.height)(a + cut.row * stride, stride, apart, weights, scales, out + cut.row * SUMS_APART,
                            cut.block == 0);
    });
}

inline void int8_panels(const Int8Part *a, std::ptrdiff_t stride, int rows, int panels, const std::uint8_t *weights,
                        const float *scales, float *out) {
    const std::ptrdiff_t panel = PANEL * INT8_INPUTS, apart = panels * panel;
    if (JOINED == panels) return int8_rows<JOINED>(a, stride, rows, apart, weights, scales, out);
    for (int i = 0; i < panels; i++)
        int8_rows<1>(a, stride, rows, apart, weights + i * panel, scales + i * PANEL, out + i * PANEL);
}

inline void product_int8(const Int8Part *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group,
                         float *out) {
    const char *from = static_cast<const char *>(group);
    const int width = panels * PANEL;
    for (int r = 0; r < rows; r++) std::memset(out + r * SUMS_APART, 0, width * sizeof(float));
    for (int start = 0; start < inputs; start += INT8_GROUP, a++) {
        const float *scales = reinterpret_cast<const float *>(from);
        const auto *weights = reinterpret_cast<const std::uint8_t *>(scales + width);
        int8_panels(a, stride, rows, panels, weights, scales, out);
        from += width * (sizeof(float) + INT8_GROUP);
    }
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
