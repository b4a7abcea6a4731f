// Part of kernels_body.hpp: vectors, how they are read, rounded and written, and one step of a product.
#pragma once
#include <cstring>

#include "kernels.hpp"
#if WIDTH == 16 || (WIDTH == 8 && DOTS)
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
ALWAYS_INLINE Vec round_to(const float *, Vec v) { return v; }
#if PAIRS  // numbers that bf16 holds with fewer digits become 0
ALWAYS_INLINE void narrow_to(bf16 *p, Vec v) { store(p, _mm512_cvtneps_pbh((__m512)v)); }
ALWAYS_INLINE Vec round_to(const bf16 *, Vec v) {
    return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v)), 16);
}
#else
ALWAYS_INLINE void narrow_to(bf16 *p, Vec v) {
    typedef std::uint16_t Half __attribute__((vector_size(WIDTH * 2)));
    Bits bits = (Bits)v;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bits = (Bits)choose(v == v, (Vec)bits, (Vec)(Bits{} + 0x7fc0));
    store(p, __builtin_convertvector(bits, Half));
}
ALWAYS_INLINE Vec round_to(const bf16 *, Vec v) {
    Bits bits = (Bits)v;
    Bits up = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    return choose(v == v, (Vec)up, v);
}
#endif

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

#if WIDTH == 16
ALWAYS_INLINE float sum_of(Vec v) { return _mm512_reduce_add_ps((__m512)v); }
#else
ALWAYS_INLINE float sum_of(Vec v) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}
#endif

// One or the other of each pair of numbers.
ALWAYS_INLINE Vec half_of(const bf16 *p, int half) {
    const Bits both = load<Bits>(p);
    return (Vec)(half ? both & 0xffff0000u : both << 16);
}

#if DOTS
ALWAYS_INLINE void put_int8(std::int8_t *to, Vec whole) {
    const Ints numbers = __builtin_convertvector(whole, Ints);
#if WIDTH == 16
    store(to, _mm512_cvtepi32_epi8((__m512i)numbers));
#else
    typedef std::int8_t Bytes __attribute__((vector_size(WIDTH)));
    store(to, __builtin_convertvector(numbers, Bytes));
#endif
}

// Adds to each sum four numbers without a sign times four of the row.
ALWAYS_INLINE Ints add_dots(Ints sum, Ints weights, const std::int8_t *row) {
#if WIDTH < 8  // of a test double
    for (int i = 0; i < INT8_INPUTS; i++) sum += (Ints)((Bits)weights >> (8 * i) & 255) * std::int32_t(row[i]);
    return sum;
#else
    std::int32_t four;
    std::memcpy(&four, row, sizeof four);
#if WIDTH == 16
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32(four));
#else
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32(four));
#endif
#endif
}
#endif

// A step of a product takes so many `inputs` from each row, read as `Row`, and multiplies in so many `parts`.
template <class T> struct Step;
template <> struct Step<float> {
    static const int inputs = 1, parts = 1;
    typedef float Row;
    typedef Vec Weight, Sum;
    static Vec weight(const float *p, int) { return load<Vec>(p); }
    static Vec times(Vec sum, const float *row, Vec weight, int) { return sum + all(*row) * weight; }
};
#if PAIRS
template <> struct Step<bf16> {
    static const int inputs = 2, parts = 1;
    typedef bf16 Row;
    typedef Bits Weight;
    typedef Vec Sum;
    static Bits weight(const bf16 *p, int) { return load<Bits>(p); }
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
    typedef Vec Weight, Sum;
    static Vec weight(const bf16 *p, int part) { return half_of(p, part); }
    static Vec times(Vec sum, const float *row, Vec weight, int part) { return sum + all(row[part]) * weight; }
};
#endif

// Weights of int8 come INT8_OFFSET too large. Without an instruction for them, floats hold their sums: exactly, for they
// stay below 2^24.
template <> struct Step<std::int8_t> {
#if DOTS
    static const int inputs = INT8_INPUTS, parts = 1;
    typedef std::int8_t Row;
    typedef Ints Weight, Sum;
    static const Row *row(const Int8Part &part) { return part.narrow; }
    static void put(Int8Part &part, int i, Vec whole) { put_int8(part.narrow + i, whole); }
    static Sum start(const Int8Part &part) { return part.start - Sum{}; }
    static Vec wide(Ints sum) { return __builtin_convertvector(sum, Vec); }
    static Ints weight(const std::uint8_t *p, int) { return load<Ints>(p); }
    static Ints times(Ints sum, const std::int8_t *row, Ints weight, int) { return add_dots(sum, weight, row); }
#else
    static const int inputs = INT8_INPUTS, parts = INT8_INPUTS;
    typedef float Row;
    typedef Vec Weight, Sum;
    static const Row *row(const Int8Part &part) { return part.wide; }
    static void put(Int8Part &part, int i, Vec whole) { store(part.wide + i, whole); }
    static Sum start(const Int8Part &part) { return all(float(part.start)); }
    static Vec wide(Vec sum) { return sum; }
    static Vec weight(const std::uint8_t *p, int part) {
        return __builtin_convertvector((Ints)(load<Bits>(p) >> (8 * part) & 255), Vec);
    }
    static Vec times(Vec sum, const float *row, Vec weight, int part) { return sum + all(row[part]) * weight; }
#endif
};

// One step of a register block: what `row(r)` gives of R rows against C vectors of weights.
template <class T, int R, int C, class W, class Row>
ALWAYS_INLINE void add_step(typename Step<T>::Sum (&sums)[R][C], const W *weights, const Row &row) {
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
