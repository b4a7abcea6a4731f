// Products by matrix tiles. `Tiles` is the processor's tile registers, or a stand-in that computes the same in plain
// code, so that everything but the instructions themselves is tested on machines without them.
//
// Registers 0 to 3 hold sums of two by two tiles, 4 and 5 rows of the input, 6 and 7 weights; those of the second panel
// are left alone in a group that has but one. A sum runs over its inputs in one order whatever the number of rows; a
// tile's unused rows are not configured, so they cost and change nothing.
#pragma once
#include <cstddef>

#include "kernels.hpp"

namespace foredraft {

const int TILE_INPUTS = 32;  // bf16 of a tile's row
const int TILE_SIDE = 16;    // rows and columns of a tile

template <class Tiles>
void tiled_rows(const bf16 *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const bf16 *group, float *out) {
    const int upper = rows < TILE_SIDE ? rows : TILE_SIDE, lower = rows - upper;
    // Bytes from row to row of weights, inputs and sums.
    const std::ptrdiff_t apart = std::ptrdiff_t(panels) * PANEL * 4, near = stride * sizeof(bf16),
                         far = SUMS_APART * sizeof(float);
    Tiles::configure(upper, lower);
    for (int panel = 0; panel < panels; panel += 2) {
        const bf16 *weights = group + panel * PANEL * 2;
        const bool both = panel + 1 < panels;
        Tiles::template clear<0>();
        Tiles::template clear<1>();
        if (lower) Tiles::template clear<2>(), Tiles::template clear<3>();
        for (int k = 0; k < inputs; k += TILE_INPUTS, weights += panels * PANEL * TILE_INPUTS) {
            Tiles::template load<6>(weights, apart);
            if (both) Tiles::template load<7>(weights + PANEL * 2, apart);
            Tiles::template load<4>(a + k, near);
            Tiles::template multiply<0, 4, 6>();
            if (both) Tiles::template multiply<1, 4, 7>();
            if (!lower) continue;
            Tiles::template load<5>(a + TILE_SIDE * stride + k, near);
            Tiles::template multiply<2, 5, 6>();
            if (both) Tiles::template multiply<3, 5, 7>();
        }
        float *to = out + panel * PANEL;
        Tiles::template keep<0>(to, far);
        if (both) Tiles::template keep<1>(to + PANEL, far);
        if (!lower) continue;
        to += TILE_SIDE * SUMS_APART;
        Tiles::template keep<2>(to, far);
        if (both) Tiles::template keep<3>(to + PANEL, far);
    }
}

// As `Kernels::product`; matrices whose inputs do not fill tiles go to `other`, all of their rows alike.
template <class Tiles, class Other>
void tiled_product(const bf16 *a, std::ptrdiff_t stride, int rows, int inputs, int panels, const bf16 *group,
                   float *out, Widened &wide, const Other &other) {
    if (inputs % TILE_INPUTS) return other(a, stride, rows, inputs, panels, group, out, wide);
    for (int row = 0; row < rows; row += 2 * TILE_SIDE) {
        const int part = rows - row < 2 * TILE_SIDE ? rows - row : 2 * TILE_SIDE;
        tiled_rows<Tiles>(a + row * stride, stride, part, inputs, panels, group, out + row * SUMS_APART);
    }
    Tiles::release();
}

}  // namespace foredraft
