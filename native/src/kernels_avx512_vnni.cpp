#define KERNELS_NAMESPACE avx512_vnni
#define WIDTH 16
#define ROWS 24
#define PAIRS 0
#define DOTS 1
#include "kernels_body.hpp"

namespace foredraft {

static bool runs_here() { return avx512_kernels.runs_here() && __builtin_cpu_supports("avx512vnni"); }

constexpr KernelSet avx512_vnni_kernels = {"avx512-vnni", runs_here, &avx512_vnni::narrow_kernels,
                                           &avx512_vnni::wide_kernels};

}  // namespace foredraft
