// Products by matrix tiles, in bf16 and int8, and the scores of keys. `Tiles` is the processor's tile registers, or a
// stand-in that computes the same in plain code, so that everything but the instructions themselves is tested on machines
// without them.
//
// A sum runs over its inputs in one order whatever the number of rows; a tile's unused rows are not configured, so they
// cost and change nothing. Shaping tiles takes as long as a dozen products of them: all that a thread computes of one
// product has one shape, which stays until the thread is through.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

namespace foredraft {

const int TILE_INPUTS = 32;  // bf16 of a tile's row
const int TILE_SIDE = 16;    // rows and columns of a tile

// Rows of each tile register, none for those that nobody uses.
struct TileRows {
    std::uint8_t of[8];
};

// A step's weights, and what is asked for meanwhile: every other line, a little ahead. The machine brings the others
// by itself; asked for one by one they would take the places of what the tiles wait for.
const int ASKED_APART = 2 * LINE;
const std::ptrdiff_t NEAR_TILES = 4096;

struct TilesAhead {
    const char *from;
    std::ptrdiff_t pace;

    ALWAYS_INLINE void ask() {
        for (std::ptrdiff_t byte = 0; byte < pace; byte += ASKED_APART) __builtin_prefetch(from + byte, 0, 2);
        from += pace;
    }
};

// Two panels, or one, against one tile of rows, or two of which the first is full. Registers 0 to 3 hold sums, 4 and 5
// rows of the input, 6 and 7 weights.
template <class Tiles, bool PAIR, bool LOWER>
void tiled_block(const bf16 *a, std::ptrdiff_t stride, int inputs, const bf16 *weights, float *out, TilesAhead ahead) {
    const std::ptrdiff_t wide = (PAIR ? 2 : 1) * PANEL * 2 * sizeof(bf16);  // bytes from row to row of weights,
    const std::ptrdiff_t near = stride * sizeof(bf16), far = SUMS_APART * sizeof(float);  // inputs, sums
    Tiles::template clear<0>();
    if (PAIR) Tiles::template clear<1>();
    if (LOWER) Tiles::template clear<2>();
    if (PAIR && LOWER) Tiles::template clear<3>();
    for (int k = 0; k < inputs; k += TILE_INPUTS, weights += TILE_SIDE * wide / sizeof(bf16)) {
        Tiles::template load<4>(a + k, near);
        Tiles::template load<6>(weights, wide);
        if (PAIR) Tiles::template load<7>(weights + PANEL * 2, wide);
        if (LOWER) Tiles::template load<5>(a + TILE_SIDE * stride + k, near);
        ahead.ask();
        Tiles::template multiply<0, 4, 6>();
        if (PAIR) Tiles::template multiply<1, 4, 7>();
        if (LOWER) Tiles::template multiply<2, 5, 6>();
        if (PAIR && LOWER) Tiles::template multiply<3, 5, 7>();
    }
    float *below = out + TILE_SIDE * SUMS_APART;
    Tiles::template keep<0>(out, far);
    if (PAIR) Tiles::template keep<1>(out + PANEL, far);
    if (LOWER) Tiles::template keep<2>(below, far);
    if (PAIR && LOWER) Tiles::template keep<3>(below + PANEL, far);
}

// Rows of a product, cut into blocks of one height: the last one begins earlier where they do not divide, and some are
// computed twice.
struct TileBlocks {
    int rows, count, height, upper, lower;

    explicit TileBlocks(int rows)
        : rows(rows), count((rows + 2 * TILE_SIDE - 1) / (2 * TILE_SIDE)), height((rows + count - 1) / count),
          upper(height < TILE_SIDE ? height : TILE_SIDE), lower(height - upper) {}

    TileRows shape() const {
        const std::uint8_t up(upper), low(lower), all(TILE_SIDE);
        return {{up, up, low, low, up, low, all, all}};
    }
    // Runs `each(first row, what to ask for)`. The first block brings a group from memory, the others find it in a
    // cache; a step reads `step` bytes of it.
    template <class Each> ALWAYS_INLINE void run(const void *group, std::ptrdiff_t step, const Each &each) const {
        for (int i = 0; i < count; i++)
            each(i * height < rows - height ? i * height : rows - height,
                 TilesAhead{static_cast<const char *>(group) + NEAR_TILES, i == 0 ? step : 0});
    }
};

// As `Kernels::product`, for inputs that fill tiles.
template <class Tiles>
void tiled_product(const bf16 *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const bf16 *group,
                   float *out, Widened &) {
    const TileBlocks blocks(rows);
    Tiles::configure(blocks.shape());
    const auto block = panels == 2 ? blocks.lower ? tiled_block<Tiles, true, true> : tiled_block<Tiles, true, false>
                       : blocks.lower ? tiled_block<Tiles, false, true>
                                      : tiled_block<Tiles, false, false>;
    blocks.run(group, std::ptrdiff_t(panels) * PANEL * TILE_INPUTS * sizeof(bf16), [&](int row, TilesAhead ahead) {
        block(a + row * stride, stride, inputs, group, out + row * SUMS_APART, ahead);
    });
}

// A block of rows in int8 against a group of int8 weights, as `tiled_block`: what a tile sums is one part of them, whole
// numbers, which `add` scales.
template <class Tiles, bool PAIR, bool LOWER>
void tiled_int8_block(const Int8Part *a, std::ptrdiff_t stride, int height, int parts, const char *group,
                      decltype(Kernels<bf16>::add_int8) add, float *out, TilesAhead ahead) {
    const int panels = PAIR ? 2 : 1;
    const std::ptrdiff_t wide = panels * PANEL * INT8_INPUTS;  // bytes from row to row of weights,
    const std::ptrdiff_t near = stride * sizeof(Int8Part), far = SUMS_APART * sizeof(std::int32_t);  // inputs, sums
    alignas(64) std::int32_t dots[2 * TILE_SIDE * SUMS_APART];
    std::int32_t *below = dots + TILE_SIDE * SUMS_APART;
    std::memset(out, 0, height * SUMS_APART * sizeof(float));
    for (int part = 0; part < parts; part++, a++) {
        const float *scales = reinterpret_cast<const float *>(group);
        const char *weights = group + panels * PANEL * sizeof(float);
        group = weights + INT8_GROUP / INT8_INPUTS * wide;
        Tiles::template clear<0>();
        if (PAIR) Tiles::template clear<1>();
        if (LOWER) Tiles::template clear<2>();
        if (PAIR && LOWER) Tiles::template clear<3>();
        Tiles::template load<4>(a->narrow, near);
        Tiles::template load<6>(weights, wide);
        if (PAIR) Tiles::template load<7>(weights + PANEL * INT8_INPUTS, wide);
        if (LOWER) Tiles::template load<5>(a[TILE_SIDE * stride].narrow, near);
        ahead.ask();
        Tiles::template multiply_int8<0, 4, 6>();
        if (PAIR) Tiles::template multiply_int8<1, 4, 7>();
        if (LOWER) Tiles::template multiply_int8<2, 5, 6>();
        if (PAIR && LOWER) Tiles::template multiply_int8<3, 5, 7>();
        Tiles::template keep<0>(dots, far);
        if (PAIR) Tiles::template keep<1>(dots + PANEL, far);
        if (LOWER) Tiles::template keep<2>(below, far);
        if (PAIR && LOWER) Tiles::template keep<3>(below + PANEL, far);
        add(a, stride, height, panels, scales, dots, out);
    }
}

// As `Kernels::product_int8`.
template <class Tiles>
void tiled_product_int8(const Int8Part *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const void *group,
                        decltype(Kernels<bf16>::add_int8) add, float *out) {
    const TileBlocks blocks(rows);
    Tiles::configure(blocks.shape());
    const auto block = panels == 2 ? blocks.lower ? tiled_int8_block<Tiles, true, true>
                                                  : tiled_int8_block<Tiles, true, false>
                       : blocks.lower ? tiled_int8_block<Tiles, false, true>
                                      : tiled_int8_block<Tiles, false, false>;
    const std::ptrdiff_t step = std::ptrdiff_t(panels) * PANEL * (sizeof(float) + INT8_GROUP);
    blocks.run(group, step, [&](int row, TilesAhead ahead) {
        block(a + row * stride, stride, blocks.height, inputs / INT8_GROUP, static_cast<const char *>(group), add,
              out + row * SUMS_APART, ahead);
    });
}

// Keys of two tiles as they lie in the cache, or side by side in `room` where they do not lie in a run.
struct KeyTiles {
    const bf16 *first;
    std::ptrdiff_t stride;

    ALWAYS_INLINE KeyTiles(const SlotRows<bf16> &keys, std::int64_t from, int count, int size, bf16 *room)
        : first(keys.row(from)), stride(keys.stride) {
        if (!keys.list && count == 2 * TILE_SIDE) return;
        for (int i = 0; i < count; i++) std::memcpy(room + i * size, keys.row(from + i), size * sizeof(bf16));
        first = room;
        stride = size;
    }
};

// As `Kernels::scores`, for sizes that fill tiles: keys are the rows, packed queries the weights. The last keys join
// some that were computed before.
template <class Tiles>
void tiled_scores(SlotRows<bf16> keys, std::int64_t start, std::int64_t count, int size, const bf16 *queries,
                  float *out) {
    const int both = 2 * TILE_SIDE;
    alignas(64) bf16 room[both * MOST_HEAD];
    alignas(64) float few[both * LANES];
    const std::uint8_t all(TILE_SIDE);
    Tiles::configure({{all, 0, all, 0, all, all, all, 0}});
    if (count < both) std::memset(room, 0, both * size * sizeof(bf16));
    ask(keys, start, start + lesser(count, ROWS_AHEAD), size);
    for (std::int64_t i = 0; i < count; i += both) {
        const std::int64_t from = i + both <= count || count < both ? i : count - both, next = i + ROWS_AHEAD;
        const int here = count < both ? int(count) : both;
        const KeyTiles tiles(keys, start + from, here, size, room);
        float *to = count < both ? few : out + from * LANES;
        Tiles::template clear<0>();
        Tiles::template clear<2>();
        for (int k = 0; k < size; k += TILE_INPUTS) {
            Tiles::template load<6>(queries + k * LANES, LANES * 2 * sizeof(bf16));
            Tiles::template load<4>(tiles.first + k, tiles.stride * sizeof(bf16));
            Tiles::template load<5>(tiles.first + TILE_SIDE * tiles.stride + k, tiles.stride * sizeof(bf16));
            Tiles::template multiply<0, 4, 6>();
            Tiles::template multiply<2, 5, 6>();
        }
        ask(keys, start + next, start + lesser(next + both, count), size);
        Tiles::template keep<0>(to, LANES * sizeof(float));
        Tiles::template keep<2>(to + TILE_SIDE * LANES, LANES * sizeof(float));
        if (count < both) std::memcpy(out, few, count * LANES * sizeof(float));
    }
}

const int LEAST_INT8_ROWS = 9;  // fewer take less without tiles

// The kernels of `OTHER` with products and scores by tiles.
template <class Tiles, const KernelSet &OTHER> struct Tiled {
    static void product(const bf16 *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const bf16 *group,
                        float *out, Widened &wide) {
        const auto with = inputs % TILE_INPUTS ? OTHER.narrow->product : tiled_product<Tiles>;
        with(a, stride, rows, inputs, panels, group, out, wide);
    }
    static void scores(SlotRows<bf16> keys, std::int64_t start, std::int64_t count, int size, const bf16 *queries,
                       float *out) {
        const auto with = size % TILE_INPUTS ? OTHER.narrow->scores : tiled_scores<Tiles>;
        with(keys, start, count, size, queries, out);
    }
    static void product_int8(const Int8Part *a, std::ptrdiff_t stride, int rows, int inputs, int panels,
                             const void *group, float *out) {
        if (rows < LEAST_INT8_ROWS) return OTHER.narrow->product_int8(a, stride, rows, inputs, panels, group, out);
        tiled_product_int8<Tiles>(a, stride, rows, inputs, panels, group, OTHER.narrow->add_int8, out);
    }
    template <class T> static Kernels<T> with_int8(Kernels<T> kernels) {
        kernels.product_int8 = product_int8;
        kernels.rest = Tiles::release;
        return kernels;
    }
    static Kernels<bf16> narrow() {
        Kernels<bf16> kernels = with_int8(*OTHER.narrow);
        kernels.rows = MOST_ROWS;
        kernels.product = product;
        kernels.scores = scores;
        return kernels;
    }
    static Kernels<float> wide() { return with_int8(*OTHER.wide); }
};

}  // namespace foredraft
