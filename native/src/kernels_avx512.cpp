#define KERNELS_NAMESPACE avx512
#define WIDTH 16
#define ROWS 24
#define PAIRS 0
#define DOTS 0
#include "kernels_body.hpp"

namespace foredraft {

static bool runs_here() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

constexpr KernelSet avx512_kernels = {"avx512", runs_here, &avx512::narrow_kernels, &avx512::wide_kernels};

}  // namespace foredraft
