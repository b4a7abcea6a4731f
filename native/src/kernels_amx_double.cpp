// The AMX products with tile registers played by arrays: for tests on any machine, never chosen by itself. What is not a
// product by tiles is in plain code, with rows in int8 as tiles read them.
#define KERNELS_NAMESPACE amx_double
#define WIDTH 4
#define ROWS 2
#define PAIRS 0
#define DOTS 1
#include "kernels_body.hpp"

#include "amx_product.hpp"

namespace foredraft {

namespace {

struct PlayedTiles {
    static thread_local char data[8][TILE_SIDE][64];
    static thread_local int rows[8];

    static void configure(const TileRows &shape) {
        for (int tile = 0; tile < 8; tile++) rows[tile] = shape.of[tile];
        std::memset(data, 0xff, sizeof data);  // NaN: what is read before it is written shows
    }
    static void release() {}
    template <int I> static void clear() { std::memset(data[I], 0, sizeof data[I]); }
    template <int I> static void load(const void *from, std::ptrdiff_t stride) {
        const char *source = static_cast<const char *>(from);
        for (int row = 0; row < rows[I]; row++) std::memcpy(data[I][row], source + row * stride, 64);
    }
    template <int I> static void keep(void *to, std::ptrdiff_t stride) {
        char *target = static_cast<char *>(to);
        for (int row = 0; row < rows[I]; row++) std::memcpy(target + row * stride, data[I][row], 64);
    }
    template <int C, int A, int B> static void multiply() {
        for (int row = 0; row < rows[C]; row++)
            for (int k = 0; k < TILE_SIDE; k++)
                for (int column = 0; column < TILE_SIDE; column++)
                    add_pair(data[C][row], data[A][row], data[B][k], k, column);
    }
    template <int C, int A, int B> static void multiply_int8() {
        for (int row = 0; row < rows[C]; row++)
            for (int k = 0; k < TILE_SIDE; k++)
                for (int column = 0; column < TILE_SIDE; column++)
                    add_four(data[C][row], data[A][row] + 4 * k, data[B][k] + 4 * column, column);
    }
    static void add_four(char *sums, const char *inputs, const char *weights, int column) {
        std::int32_t sum;
        std::memcpy(&sum, sums + 4 * column, 4);
        for (int i = 0; i < 4; i++) sum += std::int8_t(inputs[i]) * std::uint8_t(weights[i]);
        std::memcpy(sums + 4 * column, &sum, 4);
    }
    static void add_pair(char *sums, const char *inputs, const char *weights, int k, int column) {
        bf16 a[2], b[2];
        float sum;
        std::memcpy(a, inputs + 4 * k, 4);
        std::memcpy(b, weights + 4 * column, 4);
        std::memcpy(&sum, sums + 4 * column, 4);
        sum += widened(a[0]) * widened(b[0]);
        sum += widened(a[1]) * widened(b[1]);
        std::memcpy(sums + 4 * column, &sum, 4);
    }
};

thread_local char PlayedTiles::data[8][TILE_SIDE][64];
thread_local int PlayedTiles::rows[8];

bool runs_here() { return true; }
constexpr KernelSet others = {"plain", runs_here, &amx_double::narrow_kernels, &amx_double::wide_kernels};

}  // namespace

const KernelSet &amx_double_kernels() {
    typedef Tiled<PlayedTiles, others> Own;
    static const Kernels<bf16> narrow = Own::narrow();
    static const Kernels<float> wide = Own::wide();
    static const KernelSet set{"amx-double", runs_here, &narrow, &wide};
    return set;
}

}  // namespace foredraft
