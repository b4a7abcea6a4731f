#define KERNELS_NAMESPACE avx2_vnni
#define WIDTH 8
#define ROWS 5  // as with AVX2 alone: it has the same 16 registers
#define PAIRS 0
#define DOTS 1
#include <cpuid.h>

#include "kernels_body.hpp"

namespace foredraft {

static bool runs_here() {
    unsigned a, b, c, d;
    return avx2_kernels.runs_here() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);  // AVX-VNNI
}

constexpr KernelSet avx2_vnni_kernels = {"avx2-vnni", runs_here, &avx2_vnni::narrow_kernels,
                                         &avx2_vnni::wide_kernels};

}  // namespace foredraft
