// Part of choice.cpp: the sums that make shares of values, in a fixed order and in single precision.
#pragma once
#include "choice_bounds.hpp"

#include "unfused.hpp"

namespace foredraft {
namespace {

// e^x for x up to 0, to about 1e-7 of itself; below -87 as there.
EVERYWHERE float exponential(float x) {
    const std::int32_t size = bits_as<std::int32_t>(x) & 0x7FFFFFFF, room = 0x42AE0000 - size;  // the bits of 87
    x = -bits_as<float>(size + (room & all_bits_if_negative(room)));
    const float turned = x * 0x1.715476p0f + 0x1.8p23f;  // the power of two is in its lower bits
    const float power = turned - 0x1.8p23f;
    const float r = (x - power * 0x1.62ep-1f) - power * 0x1.0bfbe8p-15f;
    float tail = 0x1.6db4eap-10f;
    tail = tail * r + 0x1.123bdep-7f;
    tail = tail * r + 0x1.55545ep-5f;
    tail = tail * r + 0x1.55548ep-3f;
    tail = tail * r + 0.5f;
    const float fraction = 1.0f + (r + r * r * tail);
    return bits_as<float>(bits_as<std::uint32_t>(fraction) + (bits_as<std::uint32_t>(turned) << 23));
}

template <std::int64_t HALF> EVERYWHERE void fold(float *terms) {
    for (std::int64_t i = 0; i < HALF; i++) terms[i] += terms[i + HALF];
    if constexpr (HALF > 1) fold<HALF / 2>(terms);
}

template <class T> EVERYWHERE double log_sum_of(const Blocks<T> &blocks, float highest) {
    if (!(std::fabs(highest) < INFINITE)) return highest;
    double sum = 0;
    for (std::int64_t number = 0; number < blocks.count; number++) {
        const T *own = block(blocks, number);
        float terms[BLOCK];
        for (std::int64_t i = 0; i < BLOCK; i++) terms[i] = exponential(widened(own[i]) - highest);
        fold<BLOCK / 2>(terms);
        sum += terms[0];
    }
    return double(highest) + natural_log(sum);
}

// -log u to 6e-5 of itself, given the upper 31 bits of 1 - u, taken at the middle of what they leave open. That is off
// by more than 1e-3 of itself only where u is within 2^-21 of 0 or 1. Nowhere is it below half of what it should be.
//
// As in `natural_log`, but for one polynomial of degree 4 (least error: 5e-5) for -log(1 + f) / f; f is -(1 - u) itself
// where u is near 1, and keeps its precision.
EVERYWHERE float arrival_of(std::int32_t left) {
    const std::uint32_t one = 0x3F800000u, sqrt_half = 0x3F3504F3u;
    const float rest = (float(left) + 0.5f) * 0x1p-31f;  // 1 - u
    const float unit = (float(0x7FFFFFFF - left) + 0.5f) * 0x1p-31f;
    const std::uint32_t turned = bits_as<std::uint32_t>(unit) + (one - sqrt_half);
    const std::int32_t power = std::int32_t(turned >> 23) - 127;
    const float scaled = bits_as<float>((turned & 0x007FFFFFu) + sqrt_half) - 1.0f;
    const std::uint32_t far = std::uint32_t(all_bits_if_negative(power));  // without a branch, as in `rank_of`
    const float f = bits_as<float>((bits_as<std::uint32_t>(scaled) & far) | (bits_as<std::uint32_t>(-rest) & ~far));
    float ratio = -0x1.69a1aap-3f;
    ratio = ratio * f + 0x1.1572e4p-2f;
    ratio = ratio * f - 0x1.58766ep-2f;
    ratio = ratio * f + 0x1.ff6ffep-2f;
    ratio = ratio * f - 0x1.fffb92p-1f;
    return f * ratio - float(power) * 0x1.62e43p-1f;
}

// The sum of e^(value - highest / divisor) of a block: e^noise is 1 over -log u. To 1e-4 where `arrival_of` is.
template <class T>
EVERYWHERE float block_sum(const T *block, const std::int32_t *left, float highest, float inverse) {
    float terms[BLOCK];
    for (std::int64_t i = 0; i < BLOCK; i++)
        terms[i] = exponential((widened(block[i]) - highest) * inverse) / arrival_of(left[i]);
    fold<BLOCK / 2>(terms);
    return terms[0];
}

}  // namespace
}  // namespace foredraft
