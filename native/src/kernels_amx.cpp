// Products by the AMX tile registers; everything else as the AVX-512 BF16 kernels do it.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "amx_product.hpp"

namespace foredraft {

namespace {

struct TileRegisters {
    struct alignas(64) Shape {
        std::uint8_t palette = 1, start = 0, unused[14] = {};
        std::uint16_t bytes[16] = {};
        std::uint8_t rows[16] = {};
    };
    static thread_local TileRows shaped;

    static void configure(const TileRows &rows) {
        if (!std::memcmp(&rows, &shaped, sizeof rows)) return;
        shaped = rows;
        Shape shape;
        for (int tile = 0; tile < 8; tile++)
            if (rows.of[tile]) shape.rows[tile] = rows.of[tile], shape.bytes[tile] = 64;
        // The intrinsic says that it reads but the first eight bytes.
        asm volatile("ldtilecfg %0" ::"m"(shape) : "memory");
    }
    static void release() {
        if (!shaped.of[0]) return;
        shaped = {};
        _tile_release();
    }
    // Spelled out: the intrinsics take a register's number as a literal only.
    template <int I> static void clear() { asm volatile("tilezero %%tmm%c0" ::"i"(I)); }
    template <int I> static void load(const void *from, std::ptrdiff_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(I) : "memory");
    }
    template <int I> static void keep(void *to, std::ptrdiff_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(I) : "memory");
    }
    template <int C, int A, int B> static void multiply() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
    template <int C, int A, int B> static void multiply_int8() {  // B has no sign
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};

thread_local TileRows TileRegisters::shaped{};

// Linux lends the tile registers to who asks.
bool lent() {
    const long ask = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, ask, tile_data) == 0;
}

bool runs_here() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool has = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);  // AMX-BF16, AMX-TILE and AMX-INT8
    return has && avx512_bf16_kernels.runs_here() && lent();
}

}  // namespace

const KernelSet &amx_kernels() {
    typedef Tiled<TileRegisters, avx512_bf16_kernels> Own;
    static const Kernels<bf16> narrow = Own::narrow();
    static const Kernels<float> wide = Own::wide();
    static const KernelSet set{"amx-bf16", runs_here, &narrow, &wide};
    return set;
}

}  // namespace foredraft
