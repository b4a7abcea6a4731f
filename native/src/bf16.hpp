// bfloat16: the upper half of a float.
#pragma once
#include <cstdint>
#include <cstring>

namespace foredraft {

// For what kernels of several instruction sets call: what is not inlined would be shared between them by the linker.
#define ALWAYS_INLINE inline __attribute__((always_inline))

struct bf16 {
    std::uint16_t bits;
};

ALWAYS_INLINE float widened(bf16 x) {
    std::uint32_t bits = std::uint32_t(x.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

ALWAYS_INLINE float widened(float x) { return x; }

// Round to nearest, ties to even; NaN stays NaN.
ALWAYS_INLINE bf16 narrowed(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return {0x7fc0};
    return {std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

template <class T> ALWAYS_INLINE T narrow(float x);
template <> ALWAYS_INLINE bf16 narrow<bf16>(float x) { return narrowed(x); }
template <> ALWAYS_INLINE float narrow<float>(float x) { return x; }

// What a value is after a module of the program's type has handed it out.
template <class T> ALWAYS_INLINE float rounded(float x) { return widened(narrow<T>(x)); }

}  // namespace foredraft
