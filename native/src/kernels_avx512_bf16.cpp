#define KERNELS_NAMESPACE avx512_bf16
#define WIDTH 16
#define ROWS 24
#define PAIRS 1
#define DOTS 1
#include "kernels_body.hpp"

namespace foredraft {

static bool runs_here() { return avx512_vnni_kernels.runs_here() && __builtin_cpu_supports("avx512bf16"); }

constexpr KernelSet avx512_bf16_kernels = {"avx512-bf16", runs_here, &avx512_bf16::narrow_kernels,
                                           &avx512_bf16::wide_kernels};

}  // namespace foredraft
