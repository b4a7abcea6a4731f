// Part of choice.cpp: the noise of positions, as in foredraft/sampling/noise.py: a hash of key and token, and of its
// upper 52 bits a Gumbel value.
//
// What holds a loop over numbers is inlined into functions that are compiled for one instruction set each, at the end
// of choice.cpp. The loops are elementwise and of fixed length, so that compilers make vectors of any width of them.
#pragma once
#include <cstdint>
#include <cstring>

#include "unfused.hpp"

#define EVERYWHERE [[gnu::always_inline]] inline

namespace foredraft {
namespace {

template <class To, class From> EVERYWHERE To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

const std::uint64_t INCREMENT = 0x9E3779B97F4A7C15u;  // splitmix64 (Steele, Lea, Flood 2014)

// `mixed` but for its last step, which leaves the upper 31 bits as they are.
EVERYWHERE std::uint64_t nearly_mixed(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    return (value ^ (value >> 27)) * 0x94D049BB133111EBu;
}

EVERYWHERE std::uint64_t mixed(std::uint64_t value) {
    value = nearly_mixed(value);
    return value ^ (value >> 31);
}

EVERYWHERE std::uint64_t counter(std::uint64_t key, std::int64_t token) {
    return key + std::uint64_t(token) * INCREMENT;
}

const std::uint64_t ONE = 0x3FF0000000000000u;        // the bits of 1.0
const std::uint64_t SQRT_HALF = 0x3FE6A09E667F3BCDu;  // of its square root of a half
const std::uint64_t MANTISSA = 0x000FFFFFFFFFFFFFu;

// Natural logarithm of a positive normal number, to less than one unit in the last place.
//
// x = 2^k (1 + f) with 1 + f between the square roots of 1/2 and 2, and log(1 + f) = 2 artanh(s) with s = f / (2 + f).
// The series of artanh past its first term is a polynomial in s^2, here that of least error (3e-16 of itself); f and
// f^2 / 2 are kept apart from it, so that what is rounded is small against the result.
EVERYWHERE double natural_log(double x) {
    const std::uint64_t turned = bits_as<std::uint64_t>(x) + (ONE - SQRT_HALF);
    const double k = bits_as<double>((turned >> 52) | 0x4330000000000000u) - (0x1p52 + 1023);
    const double f = bits_as<double>((turned & MANTISSA) + SQRT_HALF) - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    double tail = 0x1.2b5fc0f572b0fp-3;
    tail = tail * z + 0x1.39fdb911a02d2p-3;
    tail = tail * z + 0x1.7462ba2a0d1d4p-3;
    tail = tail * z + 0x1.c71c62d034db2p-3;
    tail = tail * z + 0x1.2492492e03ed8p-2;
    tail = tail * z + 0x1.9999999995223p-2;
    tail = tail * z + 0x1.5555555555558p-1;
    const double half_square = 0.5 * f * f;
    const double high = 0x1.62e42fee00000p-1, low = 0x1.a39ef35793c76p-33;  // log 2; k * high is exact
    return k * high - ((half_square - (s * (half_square + z * tail) + k * low)) - f);
}

EVERYWHERE float gumbel_of(std::uint64_t hash) {
    const double unit = bits_as<double>((hash >> 12) | ONE) - (1.0 - 0x1p-53);  // exact, and strictly inside (0, 1)
    return float(-natural_log(-natural_log(unit)));
}

EVERYWHERE void gumbel_row_body(std::uint64_t key, std::int64_t width, float *out) {
    for (std::int64_t token = 0; token < width; token++) out[token] = gumbel_of(mixed(counter(key, token)));
}

EVERYWHERE void gumbel_pairs_body(const std::int64_t *keys, const std::int64_t *tokens, std::int64_t count,
                                  float *out) {
    for (std::int64_t i = 0; i < count; i++) out[i] = gumbel_of(mixed(counter(std::uint64_t(keys[i]), tokens[i])));
}

}  // namespace
}  // namespace foredraft
