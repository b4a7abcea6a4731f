// Part of kernels_body.hpp: rows times one group of a weight.
#pragma once
#include "body_vectors.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

const int JOINED = ROWS >= 16 ? MOST_PANELS : 1;  // panels of a register block, where a group has as many

// Rows as a block reads them: so far apart in memory, or widened beforehand, with WIDE_INPUTS of each side by side.
template <class T> struct SpreadRows {
    const T *first;
    std::ptrdiff_t stride;

    ALWAYS_INLINE const T *operator()(int row) const { return first + row * stride; }
    ALWAYS_INLINE SpreadRows from(int row, int input) const { return {(*this)(row) + input, stride}; }
};
struct WidenedRows {
    const float *first;

    ALWAYS_INLINE const float *operator()(int row) const { return first + row * WIDE_INPUTS; }
    ALWAYS_INLINE WidenedRows from(int row, int input) const { return {(*this)(row) + input}; }
};

// What a block asks the memory for while it computes: lines from `from` on, `pace` bytes further with every step.
struct Ahead {
    const char *from;
    std::ptrdiff_t pace;

    template <int LINES> ALWAYS_INLINE void ask() {
#pragma GCC unroll 4
        for (int line = 0; line < LINES; line++) __builtin_prefetch(from + line * LINE, 0, 3);
        from += pace;
    }
};

// A block of R rows and P of a group's panels, `apart` numbers from step to step; it goes on from the sums in `out`
// where `more`.
template <class T, int R, int P, class Rows>
void block(Rows rows, int steps, std::ptrdiff_t apart, const T *group, float *out, bool more, Ahead ahead) {
    const int columns = P * VECS, lines = P * PANEL * Step<T>::inputs * int(sizeof(T)) / LINE;
    Vec sums[R][columns];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) sums[r][c] = more ? load<Vec>(out + r * SUMS_APART + c * WIDTH) : Vec{};
    for (int step = 0; step < steps; step++) {
        ahead.ask<lines>();
        add_step<T>(sums, group, rows);
        rows = rows.from(0, Step<T>::inputs);
        group += apart;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) store(out + r * SUMS_APART + c * WIDTH, sums[r][c]);
}

const int BLOCK_ROWS = 12;  // most rows of a register block

// The register blocks of a kind by their rows.
template <class Own, int P> struct Blocks {
    static const int room = ROWS / P, most = room > BLOCK_ROWS ? BLOCK_ROWS : room;
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
            Own::template of<(most > 8 ? 9 : 1)>,
            Own::template of<(most > 9 ? 10 : 1)>,
            Own::template of<(most > 10 ? 11 : 1)>,
            Own::template of<(most > 11 ? 12 : 1)>,
        };
        return blocks[rows - 1];
    }
};

// Rows cut into the fewest blocks of at most `most`, as even as can be.
struct Cuts {
    int blocks, height, taller;  // the first so many are a row taller

    Cuts(int rows, int most) : blocks((rows + most - 1) / most), height(rows / blocks), taller(rows % blocks) {}

    // `use(block, row, rows)` for each of them.
    template <class Use> ALWAYS_INLINE void each(const Use &use) const {
        for (int block = 0, row = 0; block < blocks; block++) {
            const int rows = height + (block < taller);
            use(block, row, rows);
            row += rows;
        }
    }

    // The share of each in `bytes`, which all of them ask for in a step, so that they come evenly. A step's lines reach
    // into those of the next: asked for once each they come late, and 8 rows take a tenth longer.
    std::ptrdiff_t share(std::ptrdiff_t bytes) const { return (bytes + blocks - 1) / blocks; }
};

template <class T, int P, class Rows> struct Same {
    typedef void (*Block)(Rows, int, std::ptrdiff_t, const T *, float *, bool, Ahead);
    template <int R> static constexpr Block of = block<T, R, P, Rows>;
};

const int PART_BYTES = 8192;  // of a group: what all blocks of rows read before the next part
const int FEW_ROWS = 4;       // which compute less than the memory takes to answer
const int NEAR = 4096;        // bytes that these ask for ahead

// All rows against P panels, as even blocks. They take a group part by part and ask for the next one, so that it comes
// while all of them compute; few rows go through all of it and ask for what is near, which then comes more evenly.
template <class T, int P, class Rows>
void rows_product(const Rows &first, int rows, int steps, std::ptrdiff_t apart, const T *group, float *out, bool more) {
    typedef Blocks<Same<T, P, Rows>, P> Own;
    const std::ptrdiff_t bytes = apart * std::ptrdiff_t(sizeof(T));
    if (rows <= FEW_ROWS && rows <= Own::most)
        return Own::of(rows)(first, steps, apart, group, out, more, {(const char *)group + NEAR, bytes});
    const int most = PART_BYTES / int(bytes);
    const Cuts cuts(rows, Own::most);
    const std::ptrdiff_t pace = cuts.share(bytes);
    for (int start = 0; start < steps; start += most, group += most * apart) {
        const int part = steps - start < most ? steps - start : most;
        const char *next = (const char *)(group + part * apart);
        cuts.each([&](int block, int row, int height) {
            Own::of(height)(first.from(row, start * Step<T>::inputs), part, apart, group, out + row * SUMS_APART,
                            more || start > 0, {next + block * part * pace, pace});
        });
    }
}

template <class T, class Rows>
void group_product(const Rows &first, int rows, int steps, int panels, const T *group, float *out, bool more) {
    const std::ptrdiff_t apart = std::ptrdiff_t(panels) * PANEL * Step<T>::inputs;
    if (JOINED == panels) return rows_product<T, JOINED>(first, rows, steps, apart, group, out, more);
    for (int panel = 0; panel < panels; panel++)
        rows_product<T, 1>(first, rows, steps, apart, group + panel * PANEL * Step<T>::inputs, out + panel * PANEL,
                           more);
}

// Widens the rows as far as nobody has, WIDE_INPUTS of each at a time, and multiplies them.
template <class T>
void widened_product(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const T *group, float *out,
                     Widened &wide) {
    float *room = wide.room;
    for (int start = 0; start < inputs; start += WIDE_INPUTS, room += rows * WIDE_INPUTS) {
        const int count = inputs - start < WIDE_INPUTS ? inputs - start : WIDE_INPUTS;
        for (int r = 0; r < rows && !wide.filled; r++) as_read(a + r * stride + start, count, room + r * WIDE_INPUTS);
        group_product(WidenedRows{room}, rows, count / Step<T>::inputs, panels, group, out, start > 0);
        group += std::ptrdiff_t(count) * panels * PANEL;
    }
    wide.filled = true;
}

template <class T>
void product(const T *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const T *group, float *out,
             Widened &wide) {
    if constexpr (widens<T>) widened_product(a, stride, rows, inputs, panels, group, out, wide);
    else group_product(SpreadRows<T>{a, stride}, rows, inputs / Step<T>::inputs, panels, group, out, false);
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
