#define KERNELS_NAMESPACE portable
#define WIDTH 4
#define ROWS 2
#define PAIRS 0
#define DOTS 0
#include "kernels_body.hpp"

namespace foredraft {

static bool runs_here() { return true; }

constexpr KernelSet portable_kernels = {"portable", runs_here, &portable::narrow_kernels, &portable::wide_kernels};

}  // namespace foredraft
