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

// The register blocks of a kind by their rows.
template <class Own, int P> struct Blocks {
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

// Cuts `rows` into the fewest blocks of at most `most`, as even as can be: `use(block, row, height)`.
template <class Use> ALWAYS_INLINE void even_blocks(int rows, int most, const Use &use) {
    const int blocks = (rows + most - 1) / most;
    for (int block = 0, row = 0; block < blocks; block++) {
        const int height = (rows - row + blocks - block - 1) / (blocks - block);
        use(block, row, height);
        row += height;
    }
}

template <class T, int P> struct Same {
    typedef void (*Block)(const typename Step<T>::Row *, std::ptrdiff_t, int, std::ptrdiff_t, const T *, float *, bool,
                          Ahead);
    template <int R> static constexpr Block of = block<T, R, P>;
};

const int PART_BYTES = 16384;  // of a group: what all blocks of rows read before the next part
const int NEAR = 2048;         // bytes ahead of a single block
const int WIDE_INPUTS = 128;   // of a row that are widened at once: all rows then stay in the first-level cache

// All rows against P panels, as even blocks. Several blocks take a group part by part, so that the weights come from
// the memory while all of them are computing, and not only while the first one is.
template <class T, int P>
void rows_product(const typename Step<T>::Row *a, std::ptrdiff_t stride, int rows, int steps, std::ptrdiff_t apart,
                  const T *group, float *out, bool more) {
    typedef Blocks<Same<T, P>, P> Own;
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
        even_blocks(rows, Own::most, [&](int block, int row, int height) {
            const int asked = block * share;
            Own::of(height)(a + row * stride, stride, part, apart, group, out + row * SUMS_APART, more || start > 0,
                            {next + asked * LINE, lines - asked < share ? lines - asked : share, width});
        });
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

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
