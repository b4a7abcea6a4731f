// Part of choice.cpp: the values of tokens under noise, and bounds of them from the upper bits of the hash, which show
// for nearly all tokens that they cannot be among the first.
#pragma once
#include <cmath>

#include "choice_ranks.hpp"

#include "unfused.hpp"

namespace foredraft {
namespace {

const float INFINITE = std::numeric_limits<float>::infinity();
const float MOST_NOISE = 37;  // it is below 53 log 2

// The token of a column: `ids` where a row has them, else its own number.
EVERYWHERE std::int64_t named(const std::int64_t *ids, std::int64_t column) { return ids ? ids[column] : column; }

template <class T>
EVERYWHERE float value_of(const Blocks<T> &blocks, float divisor, std::uint64_t key, std::int64_t column,
                          std::int64_t token) {
    return widened(blocks.row[column]) / divisor + gumbel_of(mixed(counter(key, token)));
}

// What a token's logit + divisor * (bound of its noise) must reach for its value to be as large as `value`.
//
// Single precision, in that sum and in the value that tokens are chosen by, is off by a few times 2^-24 of the
// largest number on the way: a logit, which is about as far from 0 as the highest or the value when it matters, or
// the bound's first term, 151 log 2. The margin is 32 times 2^-24 of about their sum.
EVERYWHERE float bar_of(float value, float divisor, float highest) {
    const double scaled = double(value) * divisor;
    const double margin = 0x1p-19 * (std::fabs(highest) + std::fabs(scaled) + 128.0 * divisor);
    return float(scaled - margin);
}

// Whether nothing here overflows, or is so small that it is rounded to a fixed grid.
EVERYWHERE bool usual(float value, float divisor, float highest) {
    return std::fabs(highest) < 1e30f && std::fabs(value) < 1e30f && divisor > 1e-21f && divisor < 1e30f;
}

// The upper 31 bits of 1 - u of a block's tokens, u being what their noise -log(-log u) is made of.
EVERYWHERE void find_left(std::uint64_t key, std::int64_t first, std::int32_t *left) {
    for (std::int64_t i = 0; i < BLOCK; i++) left[i] = std::int32_t(~nearly_mixed(counter(key, first + i)) >> 33);
}
EVERYWHERE void find_left(std::uint64_t key, const std::int64_t *tokens, std::int32_t *left) {
    for (std::int64_t i = 0; i < BLOCK; i++) left[i] = std::int32_t(~nearly_mixed(counter(key, tokens[i])) >> 33);
}

// How far each token of a block may reach.
//
// Noise is -log(-log u) < -log(1 - u). Of 1 - u the upper 24 bits are taken, which are below it, and for its binary
// logarithm the bits of that float as a number, which are below it too: log2(1 + m) > m.
template <class T>
EVERYWHERE void find_reach(const T *block, const std::int32_t *left, float divisor, float *reach) {
    const float log_2 = 0.693147182f;  // rounded up
    const float most = 151 * log_2 * divisor, slope = log_2 * 0x1p-23f * divisor;
    for (std::int64_t i = 0; i < BLOCK; i++) {
        const float log_left = float(bits_as<std::int32_t>(float(left[i] >> 7)));
        reach[i] = widened(block[i]) + (most - slope * log_left);
    }
}

}  // namespace
}  // namespace foredraft
