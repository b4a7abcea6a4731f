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
ALWAYS_INLINE Vec all(float x) { return x - Vec{}; }  // not 0 + x, which makes 0 of -0 and so takes an addition
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

// int8 numbers as weights of either type, which hold them exactly: nothing is rounded.
ALWAYS_INLINE Vec single(const std::int8_t *p) {
#if WIDTH == 16
    return __builtin_convertvector((Ints)_mm512_cvtepi8_epi32(load<__m128i>(p)), Vec);
#else
    typedef std::int8_t Bytes __attribute__((vector_size(WIDTH)));
    return __builtin_convertvector(__builtin_convertvector(load<Bytes>(p), Ints), Vec);
#endif
}

// One or the other of each pair of numbers.
ALWAYS_INLINE Vec half_of(const bf16 *p, int half) {
    const Bits both = load<Bits>(p);
    return (Vec)(half ? both & 0xffff0000u : both << 16);
}
ALWAYS_INLINE Vec half_of(const std::int8_t *p, int half) {
#if WIDTH == 16
    const Ints both = (Ints)_mm512_cvtepi16_epi32(load<__m256i>(p));
#else
    typedef std::int16_t Halves __attribute__((vector_size(WIDTH * 2)));
    const Ints both = __builtin_convertvector(load<Halves>(p), Ints);
#endif
    return __builtin_convertvector(half ? both >> 8 : (both << 24) >> 24, Vec);
}

ALWAYS_INLINE Bits pairs(const std::int8_t *p) {
#if WIDTH == 16
    const Bits lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Bits upper = lane * 0x00040004 + 0x00030001;  // the upper halves of 32 floats
    return (Bits)_mm512_permutex2var_epi16((__m512i)single(p), (__m512i)upper, (__m512i)single(p + WIDTH));
#else
    return ((Bits)half_of(p, 0) >> 16) | ((Bits)half_of(p, 1) & 0xffff0000u);
#endif
}

// A step of a product takes so many `inputs` from each row, read as `Row`, and multiplies in so many `parts`.
template <class T> struct Step;
template <> struct Step<float> {
    static const int inputs = 1, parts = 1;
    typedef float Row;
    typedef Vec Weight;
    static Vec weight(const float *p, int) { return load<Vec>(p); }
    static Vec weight(const std::int8_t *p, int) { return single(p); }
    static Vec kept(const std::int8_t *p) { return single(p); }
    static Vec times(Vec sum, const float *row, Vec weight, int) { return sum + all(*row) * weight; }
};
#if PAIRS
template <> struct Step<bf16> {
    static const int inputs = 2, parts = 1;
    typedef bf16 Row;
    typedef Bits Weight;
    static Bits weight(const bf16 *p, int) { return load<Bits>(p); }
    static Bits weight(const std::int8_t *p, int) { return pairs(p); }
    static Bits kept(const std::int8_t *p) { return pairs(p); }
    static Vec times(Vec sum, const bf16 *row, Bits weight, int) {
        std::uint32_t pair;
        std::memcpy(&pair, row, 4);
        return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(pair)), (__m512bh)weight);
    }
};
#else
// Rows are widened beforehand, and spread from memory for nothing; weights are widened half a pair at a time, so that
// they take few registers.
template <> struct Step<bf16> {
    static const int inputs = 2, parts = 2;
    typedef float Row;
    typedef Vec Weight;
    static Vec weight(const bf16 *p, int part) { return half_of(p, part); }
    static Vec weight(const std::int8_t *p, int part) { return half_of(p, part); }
    static Bits kept(const std::int8_t *p) { return pairs(p); }
    static Vec times(Vec sum, const float *row, Vec weight, int part) { return sum + all(row[part]) * weight; }
};
#endif

// One step of a register block: what `row(r)` gives of R rows against C vectors of weights.
template <class T, int R, int C, class W, class Row>
ALWAYS_INLINE void add_step(Vec (&sums)[R][C], const W *weights, const Row &row) {
#pragma GCC unroll 2
    for (int part = 0; part < Step<T>::parts; part++) {
        typename Step<T>::Weight weight[C];
#pragma GCC unroll 16
        for (int c = 0; c < C; c++) weight[c] = Step<T>::weight(weights + c * WIDTH * Step<T>::inputs, part);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 16
            for (int c = 0; c < C; c++) sums[r][c] = Step<T>::times(sums[r][c], row(r), weight[c], part);
    }
}

template <class T> constexpr bool widens = sizeof(typename Step<T>::Row) != sizeof(T);

// `count` numbers as steps read them: themselves, or widened to `room`.
ALWAYS_INLINE const float *as_read(const float *from, int, float *) { return from; }
ALWAYS_INLINE const bf16 *as_read(const bf16 *from, int, bf16 *) { return from; }
ALWAYS_INLINE const float *as_read(const bf16 *from, int count, float *room) {
    int i = 0;
    for (; i + WIDTH <= count; i += WIDTH) store(room + i, wide(from + i));
    if (i < count) store_part(room + i, part(from, i, count), count - i);
    return room;
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
