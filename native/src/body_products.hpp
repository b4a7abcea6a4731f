// Part of kernels_body.hpp: rows times one group of a weight.
#pragma once
#include "body_vectors.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

// What to ask the memory for while a block is computed: `lines` cache lines a step, `apart` bytes from step to step.
struct Ahead {
    const char *from;
    int lines;
    std::ptrdiff_t apart;
};

const int INT8_NEAR = 4096;  // bytes ahead of a block that widens

// A block of R rows and P of a group's panels; it goes on from the sums in `out` where `more`.
template <class T, int R, int P>
void block(const typename Step<T>::Row *a, std::ptrdiff_t stride, int steps, std::ptrdiff_t apart, const T *group,
           float *out, bool more, Ahead ahead) {
    const int columns = P * VECS;
    Vec sums[R][columns];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) sums[r][c] = more ? load<Vec>(out + r * SUMS_APART + c * WIDTH) : Vec{};
    for (int step = 0; step < steps; step++) {
        for (int line = 0; line < ahead.lines; line++) __builtin_prefetch(ahead.from + line * LINE, 0, 3);
        ahead.from += ahead.apart;
        add_step<T>(sums, group, [&](int r) { return a + r * stride; });
        a += Step<T>::inputs;
        group += apart;
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) store(out + r * SUMS_APART + c * WIDTH, sums[r][c]);
}

// The same for INT8_GROUP inputs of an int8 group; what they give is scaled before it is added to `out`. Numbers are
// widened in registers, and left at `keep` for blocks of other rows, or they are what such a block has left.
template <class T, int R, int P, class W>
void scaled_block(const typename Step<T>::Row *a, std::ptrdiff_t stride, std::ptrdiff_t apart, const W *numbers,
                  const float *scales, float *out, T *keep) {
    const int columns = P * VECS, vector = WIDTH * Step<T>::inputs;
    Vec sums[R][columns] = {};
    for (int i = 0; i < INT8_GROUP; i += Step<T>::inputs, numbers += apart) {
        for (int byte = 0; sizeof(W) == 1 && byte < columns * vector; byte += LINE)
            __builtin_prefetch(numbers + INT8_NEAR + byte, 0, 3);
        add_step<T>(sums, numbers, [&](int r) { return a + r * stride + i; });
        if constexpr (sizeof(W) == 1)
            for (int c = 0; keep && c < columns; c++, keep += vector)
                store(keep, Step<T>::kept(numbers + c * vector));
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < columns; c++) {
            float *to = out + r * SUMS_APART + c * WIDTH;
            store(to, load<Vec>(to) + load<Vec>(scales + c * WIDTH) * sums[r][c]);
        }
}

// The kinds of register blocks, by what they read.
template <class T, int P> struct Same {
    typedef void (*Block)(const typename Step<T>::Row *, std::ptrdiff_t, int, std::ptrdiff_t, const T *, float *, bool,
                          Ahead);
    template <int R> static constexpr Block of = block<T, R, P>;
};
template <class W> struct Scaled {
    template <class T, int P> struct Kind {
        typedef void (*Block)(const typename Step<T>::Row *, std::ptrdiff_t, std::ptrdiff_t, const W *, const float *,
                              float *, T *);
        template <int R> static constexpr Block of = scaled_block<T, R, P, W>;
    };
};

template <template <class, int> class Kind, class T, int P> struct Blocks {
    typedef Kind<T, P> Own;
    static const int room = ROWS / P, most = room > 8 ? 8 : room;
    static typename Own::Block of(int rows) {
        static constexpr typename Own::Block blocks[] = {
            Own::template of<1>,
            Own::template of<(most > 1 ? 2 : 1)>,
            Own::template of<(most > 2 ? 3 : 1)>,
            Own::template of<(most > 3 ? 4 : 1)>,
            Own::template of<(most > 4 ? 5 : 1)>,
            Own::template of<(most > 5 ? 6 : 1)>,
            Own::template of<(most > 6 ? 7 : 1)>,
            Own::template of<(most > 7 ? 8 : 1)>,
        };
        return blocks[rows - 1];
    }
};

const int PART_BYTES = 16384;  // of a group: what all blocks of rows read before the next part
const int NEAR = 2048;         // bytes ahead of a single block
const int WIDE_INPUTS = 128;   // of a row that are widened at once: all rows then stay in the first-level cache

// All rows against P panels, as even blocks. Several blocks take a group part by part, so that the weights come from
// the memory while all of them are computing, and not only while the first one is.
template <class T, int P>
void rows_product(const typename Step<T>::Row *a, std::ptrdiff_t stride, int rows, int steps, std::ptrdiff_t apart,
                  const T *group, float *out, bool more) {
    typedef Blocks<Same, T, P> Own;
    const int blocks = (rows + Own::most - 1) / Own::most;
    const int width = int(apart * sizeof(T)), lines = P * PANEL * Step<T>::inputs * int(sizeof(T)) / LINE;
    if (blocks == 1) {
        Own::of(rows)(a, stride, steps, apart, group, out, more, {(const char *)group + NEAR, lines, width});
        return;
    }
    const int most = PART_BYTES / width, share = (lines + blocks - 1) / blocks;
    for (int start = 0; start < steps; start += most) {
        const int part = steps - start < most ? steps - start : most;
        const char *next = (const char *)(group + part * apart);
        int row = 0;
        for (int block = 0; block < blocks; block++) {
            const int height = (rows - row + blocks - block - 1) / (blocks - block), asked = block * share;
            Own::of(height)(a + row * stride, stride, part, apart, group, out + row * SUMS_APART, more || start > 0,
                            {next + asked * LINE, lines - asked < share ? lines - asked : share, width});
            row += height;
        }
        a += part * Step<T>::inputs;
        group += part * apart;
    }
}

template <class T>
void group_product(const typename Step<T>::Row *a, std::ptrdiff_t stride, int rows, int steps, int panels,
                   const T *group, float *out, bool more) {
    const std::ptrdiff_t apart = std::ptrdiff_t(panels) * PANEL * Step<T>::inputs;
    const int joined = ROWS >= 16 ? panels : 1;  // panels of a register block
    if (joined == 4) return rows_product<T, ROWS >= 16 ? 4 : 1>(a, stride, rows, steps, apart, group, out, more);
    if (joined == 2) return rows_product<T, ROWS >= 16 ? 2 : 1>(a, stride, rows, steps, apart, group, out, more);
    for (int panel = 0; panel < panels; panel++)
        rows_product<T, 1>(a, stride, rows, steps, apart, group + panel * PANEL * Step<T>::inputs, out + panel * PANEL,
                           more);
}

// Rows as steps read them, up to WIDE_INPUTS inputs of each: themselves, or widened.
template <class T, bool widened = widens<T>> struct ReadRows {
    const T *first;
    std::ptrdiff_t stride;

    ReadRows(const T *a, std::ptrdiff_t apart, int, int) : first(a), stride(apart) {}
};
template <class T> struct ReadRows<T, true> {
    alignas(64) float room[MOST_ROWS * WIDE_INPUTS];
    const float *first = room;
    std::ptrdiff_t stride = WIDE_INPUTS;

    ReadRows(const T *a, std::ptrdiff_t apart, int rows, int inputs) {
        for (int r = 0; r < rows; r++) as_read(a + r * apart, inputs, room + r * WIDE_INPUTS);
    }
};

template <class T>
void product(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const T *group, float *out) {
    const int most = widens<T> ? WIDE_INPUTS : inputs;
    for (int start = 0; start < inputs; start += most) {
        const int count = inputs - start < most ? inputs - start : most;
        const ReadRows<T> read(a + start, stride, rows, count);
        group_product<T>(read.first, read.stride, rows, count / Step<T>::inputs, panels, group, out, start > 0);
        group += std::ptrdiff_t(count) * panels * PANEL;
    }
}

// All rows against P panels of INT8_GROUP inputs, as even blocks: the first widens for all of them.
template <class T, int P>
void int8_rows(const typename Step<T>::Row *a, std::ptrdiff_t stride, int rows, std::ptrdiff_t apart,
               const std::int8_t *numbers, const float *scales, float *out) {
    typedef Blocks<Scaled<std::int8_t>::template Kind, T, P> First;
    typedef Blocks<Scaled<T>::template Kind, T, P> Later;
    alignas(64) T kept[INT8_GROUP * P * PANEL];
    const int blocks = (rows + First::most - 1) / First::most, first = rows / blocks;
    First::of(first)(a, stride, apart, numbers, scales, out, blocks > 1 ? kept : nullptr);
    for (int row = first, left = blocks - 1; left > 0; left--) {
        const int height = (rows - row + left - 1) / left;
        Later::of(height)(a + row * stride, stride, P * PANEL * Step<T>::inputs, kept, scales, out + row * SUMS_APART,
                          nullptr);
        row += height;
    }
}

template <class T>
void int8_panels(const typename Step<T>::Row *a, std::ptrdiff_t stride, int rows, int panels,
                 const std::int8_t *numbers, const float *scales, float *out) {
    const std::ptrdiff_t panel = PANEL * Step<T>::inputs, apart = panels * panel;
    const int joined = ROWS >= 16 ? panels : 1;  // panels of a register block
    if (joined == 4) return int8_rows<T, ROWS >= 16 ? 4 : 1>(a, stride, rows, apart, numbers, scales, out);
    if (joined == 2) return int8_rows<T, ROWS >= 16 ? 2 : 1>(a, stride, rows, apart, numbers, scales, out);
    for (int i = 0; i < panels; i++)
        int8_rows<T, 1>(a, stride, rows, apart, numbers + i * panel, scales + i * PANEL, out + i * PANEL);
}

template <class T>
void product_int8(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group, float *out) {
    const char *from = static_cast<const char *>(group);
    const int width = panels * PANEL;
    for (int r = 0; r < rows; r++) std::memset(out + r * SUMS_APART, 0, width * sizeof(float));
    for (int start = 0; start < inputs; start += INT8_GROUP) {
        const float *scales = reinterpret_cast<const float *>(from);
        const auto *numbers = reinterpret_cast<const std::int8_t *>(scales + width);
        const ReadRows<T> read(a + start, stride, rows, INT8_GROUP);
        int8_panels<T>(read.first, read.stride, rows, panels, numbers, scales, out);
        from += width * sizeof(float) + INT8_GROUP * width;
    }
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
