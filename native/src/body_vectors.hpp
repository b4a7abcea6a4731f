// Part of kernels_body.hpp: vectors, how they are read, rounded and written, and one step of a product.
#pragma once
#include <cstring>

#include "kernels.hpp"
#if WIDTH == 16
#include <immintrin.h>
#endif

namespace foredraft {
namespace KERNELS_NAMESPACE {

typedef float Vec __attribute__((vector_size(WIDTH * 4)));
typedef std::uint32_t Bits __attribute__((vector_size(WIDTH * 4)));
typedef std::int32_t Ints __attribute__((vector_size(WIDTH * 4)));

const int VECS = PANEL / WIDTH;  // vectors of a panel

template <class To, class From> ALWAYS_INLINE To load(const From *p) {
    To v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class V, class To> ALWAYS_INLINE void store(To *p, V v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE Vec all(float x) { return Vec{} + x; }
ALWAYS_INLINE Vec choose(Ints mask, Vec yes, Vec no) { return mask ? yes : no; }
ALWAYS_INLINE Vec larger(Vec a, Vec b) { return choose(a > b, a, b); }

ALWAYS_INLINE Vec wide(const float *p) { return load<Vec>(p); }
ALWAYS_INLINE Vec wide(const bf16 *p) {
#if WIDTH == 16  // which GCC 12 does in two halves
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(p)), 16);
#else
    typedef std::uint16_t Half __attribute__((vector_size(WIDTH * 2)));
    return (Vec)(__builtin_convertvector(load<Half>(p), Bits) << 16);
#endif
}
ALWAYS_INLINE void narrow_to(float *p, Vec v) { store(p, v); }
ALWAYS_INLINE void narrow_to(bf16 *p, Vec v) {
    typedef std::uint16_t Half __attribute__((vector_size(WIDTH * 2)));
    Bits bits = (Bits)v;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bits = (Bits)choose(v == v, (Vec)bits, (Vec)(Bits{} + 0x7fc0));
    store(p, __builtin_convertvector(bits, Half));
}
ALWAYS_INLINE Vec round_to(const float *, Vec v) { return v; }
ALWAYS_INLINE Vec round_to(const bf16 *, Vec v) {
    Bits bits = (Bits)v;
    Bits up = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    return choose(v == v, (Vec)up, v);
}

// A vector of a row of `width` numbers, zero past its end.
template <class T> ALWAYS_INLINE Vec part(const T *x, int i, int width) {
    if (i + WIDTH <= width) return wide(x + i);
    alignas(64) T rest[WIDTH] = {};
    std::memcpy(rest, x + i, (width - i) * sizeof(T));
    return wide(rest);
}

// The first `count` numbers of a vector, or all of them.
template <class T> ALWAYS_INLINE void store_part(T *out, Vec v, int count) {
    if (count >= WIDTH) return narrow_to(out, v);
    alignas(64) T rest[WIDTH];
    narrow_to(rest, v);
    std::memcpy(out, rest, count * sizeof(T));
}

ALWAYS_INLINE float sum_of(Vec v) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}

// Two inputs of a row, the first in the lower half, against a vector of pairs of weights.
#if PAIRS
ALWAYS_INLINE Vec dot_pairs(Vec sum, std::uint32_t a, Bits b) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
}
#else
ALWAYS_INLINE Vec dot_pairs(Vec sum, std::uint32_t a, Bits b) {
    float low, high;
    std::uint32_t low_bits = a << 16, high_bits = a & 0xffff0000u;
    std::memcpy(&low, &low_bits, 4);
    std::memcpy(&high, &high_bits, 4);
    sum += all(low) * (Vec)(b << 16);
    sum += all(high) * (Vec)(b & 0xffff0000u);
    return sum;
}
#endif

// int8 numbers of one step as weights of the program's type, which holds them exactly: nothing is rounded.
ALWAYS_INLINE Vec single(const std::int8_t *p) {
#if WIDTH == 16
    return __builtin_convertvector((Ints)_mm512_cvtepi8_epi32(load<__m128i>(p)), Vec);
#else
    typedef std::int8_t Bytes __attribute__((vector_size(WIDTH)));
    return __builtin_convertvector(__builtin_convertvector(load<Bytes>(p), Ints), Vec);
#endif
}
ALWAYS_INLINE Bits pairs(const std::int8_t *p) {
#if WIDTH == 16
    const Bits lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Bits upper = lane * 0x00040004 + 0x00030001;  // the upper halves of 32 floats
    return (Bits)_mm512_permutex2var_epi16((__m512i)single(p), (__m512i)upper, (__m512i)single(p + WIDTH));
#else
    typedef std::uint16_t Half __attribute__((vector_size(WIDTH * 2)));
    const Ints both = (Ints)__builtin_convertvector(load<Half>(p), Bits);
    const Vec first = __builtin_convertvector((both << 24) >> 24, Vec);
    const Vec second = __builtin_convertvector((both << 16) >> 24, Vec);
    return ((Bits)first >> 16) | ((Bits)second & 0xffff0000u);
#endif
}

// How many numbers of a type one step of a product takes from each input row.
template <class T> struct Step;
template <> struct Step<float> {
    static const int inputs = 1;
    typedef Vec Weight;
    static Vec weight(const float *p) { return load<Vec>(p); }
    static Vec weight(const std::int8_t *p) { return single(p); }
    static Vec times(Vec sum, const float *a, Vec b) { return sum + all(*a) * b; }
};
template <> struct Step<bf16> {
    static const int inputs = 2;
    typedef Bits Weight;
    static Bits weight(const bf16 *p) { return load<Bits>(p); }
    static Bits weight(const std::int8_t *p) { return pairs(p); }
    static Vec times(Vec sum, const bf16 *a, Bits b) {
        std::uint32_t pair;
        std::memcpy(&pair, a, 4);
        return dot_pairs(sum, pair, b);
    }
};

// One step of a register block: what `row(r)` gives of R rows against C vectors of weights.
template <class T, int R, int C, class W, class Row>
ALWAYS_INLINE void add_step(Vec (&sums)[R][C], const W *weights, const Row &row) {
    typename Step<T>::Weight weight[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) weight[c] = Step<T>::weight(weights + c * WIDTH * Step<T>::inputs);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int c = 0; c < C; c++) sums[r][c] = Step<T>::times(sums[r][c], row(r), weight[c]);
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
