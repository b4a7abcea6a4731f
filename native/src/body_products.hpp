// Part of kernels_body.hpp: rows times one group of a weight.
#pragma once
#include "body_vectors.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

// What to ask the memory for while a block is computed: `lines` cache lines a step from `from` on.
struct Ahead {
    const char *from;
    int lines;
};

// A block of R rows and P of a group's panels; it goes on from the sums in `out` where `more`.
template <class T, int R, int P>
void block(const T *a, std::ptrdiff_t stride, int steps, std::ptrdiff_t apart, const T *group, float *out, bool more,
           Ahead ahead) {
    const int columns = P * VECS;
    Vec sums[R][columns];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = more ? load<Vec>(out + r * SUMS_APART + c * WIDTH) : Vec{};
    for (int step = 0; step < steps; step++) {
        for (int line = 0; line < ahead.lines; line++, ahead.from += LINE) __builtin_prefetch(ahead.from, 0, 3);
        add_step(sums, group, [&](int r) { return a + r * stride; });
        a += Step<T>::inputs;
        group += apart;
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) store(out + r * SUMS_APART + c * WIDTH, sums[r][c]);
}

template <class T, int P> struct Blocks {
    typedef void (*Block)(const T *, std::ptrdiff_t, int, std::ptrdiff_t, const T *, float *, bool, Ahead);
    static const int room = ROWS / P, most = room > 8 ? 8 : room;
    static Block of(int rows) {
        static constexpr Block blocks[] = {
            block<T, 1, P>,
            block<T, (most > 1 ? 2 : 1), P>,
            block<T, (most > 2 ? 3 : 1), P>,
            block<T, (most > 3 ? 4 : 1), P>,
            block<T, (most > 4 ? 5 : 1), P>,
            block<T, (most > 5 ? 6 : 1), P>,
            block<T, (most > 6 ? 7 : 1), P>,
            block<T, (most > 7 ? 8 : 1), P>,
        };
        return blocks[rows - 1];
    }
};

const int PART_BYTES = 16384;  // of a group: what all blocks of rows read before the next part
const int NEAR = 2048;         // bytes ahead of a single block

// All rows against P panels, as even blocks. Several blocks take a group part by part, so that the weights come from
// the memory while all of them are computing, and not only while the first one is.
template <class T, int P>
void rows_product(const T *a, std::ptrdiff_t stride, int rows, int steps, std::ptrdiff_t apart, const T *group,
                  float *out) {
    const int blocks = (rows + Blocks<T, P>::most - 1) / Blocks<T, P>::most;
    const int width = int(apart * sizeof(T)), lines = width / LINE;
    if (blocks == 1) {
        Blocks<T, P>::of(rows)(a, stride, steps, apart, group, out, false, {(const char *)group + NEAR, lines});
        return;
    }
    const int most = PART_BYTES / width;
    for (int start = 0; start < steps; start += most) {
        const int part = steps - start < most ? steps - start : most, share = (lines + blocks - 1) / blocks;
        const char *next = (const char *)(group + part * apart);
        int row = 0;
        for (int left = blocks; left > 0; left--) {
            const int height = (rows - row + left - 1) / left;
            Blocks<T, P>::of(height)(a + row * stride, stride, part, apart, group, out + row * SUMS_APART, start > 0,
                                     {next, share});
            next += share * part * LINE;
            row += height;
        }
        a += part * Step<T>::inputs;
        group += part * apart;
    }
}

template <class T>
void group_product(const T *a, std::ptrdiff_t stride, int rows, int steps, int panels, const T *group, float *out) {
    const std::ptrdiff_t apart = std::ptrdiff_t(panels) * PANEL * Step<T>::inputs;
    const int joined = ROWS >= 16 ? panels : 1;  // panels of a register block
    if (joined == 4) return rows_product<T, ROWS >= 16 ? 4 : 1>(a, stride, rows, steps, apart, group, out);
    if (joined == 2) return rows_product<T, ROWS >= 16 ? 2 : 1>(a, stride, rows, steps, apart, group, out);
    for (int panel = 0; panel < panels; panel++)
        rows_product<T, 1>(a, stride, rows, steps, apart, group + panel * PANEL * Step<T>::inputs, out + panel * PANEL);
}

template <class T>
void product(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const T *group, float *out) {
    group_product(a, stride, rows, inputs / Step<T>::inputs, panels, group, out);
}

// 64 inputs of an int8 group as the program's type, in the order `group_product` reads.
ALWAYS_INLINE void widen_int8(const std::int8_t *from, int count, bf16 *to) {
    for (int i = 0; i < count; i++) to[i] = narrowed(float(from[i]));
}
ALWAYS_INLINE void widen_int8(const std::int8_t *from, int count, float *to) {
    for (int i = 0; i < count; i++) to[i] = float(from[i]);
}

template <class T>
void product_int8(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group, float *out) {
    alignas(64) T weights[INT8_GROUP * PANEL * MOST_PANELS];
    alignas(64) float part[MOST_ROWS * SUMS_APART];
    const int columns = panels * PANEL;
    const char *from = static_cast<const char *>(group);
    for (int r = 0; r < rows; r++) std::memset(out + r * SUMS_APART, 0, columns * sizeof(float));
    for (int start = 0; start < inputs; start += INT8_GROUP) {
        const float *scales = reinterpret_cast<const float *>(from);
        from += columns * sizeof(float);
        widen_int8(reinterpret_cast<const std::int8_t *>(from), INT8_GROUP * columns, weights);
        from += INT8_GROUP * columns;
        group_product(a + start, stride, rows, INT8_GROUP / Step<T>::inputs, panels, weights, part);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c += WIDTH)
                store(out + r * SUMS_APART + c, load<Vec>(out + r * SUMS_APART + c) +
                                                    load<Vec>(scales + c) * load<Vec>(part + r * SUMS_APART + c));
    }
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
