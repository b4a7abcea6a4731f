#define KERNELS_NAMESPACE avx2
#define WIDTH 8
#define ROWS 5  // with a sixth, widened bf16 does not fit 16 registers: 12 rows took 1.5 of what they take now
#define PAIRS 0
#define DOTS 0
#include "kernels_body.hpp"

namespace foredraft {

static bool runs_here() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

constexpr KernelSet avx2_kernels = {"avx2", runs_here, &avx2::narrow_kernels, &avx2::wide_kernels};

}  // namespace foredraft
