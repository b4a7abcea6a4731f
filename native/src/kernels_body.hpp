// The kernels themselves, compiled once for each instruction set. The file that includes this defines
//   KERNELS_NAMESPACE  a namespace of its own, so that no inline function is shared between instruction sets,
//   WIDTH              floats of a vector,
//   ROWS               most rows of a register block with one panel,
//   PAIRS              1 where the machine multiplies pairs of bf16, and
//   DOTS               1 where it multiplies fours of int8.
// Of all inline functions of one name the linker keeps one, whatever instructions it was compiled to: so nothing of the
// standard library's is called here, and nothing of ours from outside the namespace that is not ALWAYS_INLINE.
// A sum runs over its inputs one after another in one accumulator for each output, so that how many rows and columns a
// register block has never shows in a result.
#pragma once
#include "body_attention.hpp"
#include "body_int8.hpp"
#include "body_rows.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

const int ROWS_AT_ONCE = 48;
void nothing() {}

// Constants, so that nothing of an instruction set runs while the library is loaded.
template <class T> constexpr Kernels<T> kernels() {
    return {widens<T>, ROWS_AT_ONCE, product<T>, round_row<T>, product_int8, add_int8, scores<T>,  weights, mix<T>,
            norm<T>,   close<T>,     gate<T>,    activate<T>,  rotate<T>,    add<T>,   scale<T>, squeeze<T>, nothing};
}

constexpr Kernels<bf16> narrow_kernels = kernels<bf16>();
constexpr Kernels<float> wide_kernels = kernels<float>();

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
