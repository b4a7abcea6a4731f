// Part of choice.cpp: logits as ints in the same order, NaN of either sign above infinity, both zeros alike. The
// largest of ints does not depend on the order they are compared in, so compilers may choose it.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "bf16.hpp"
#include "choice.hpp"
#include "choice_noise.hpp"

namespace foredraft {
namespace {

const std::int64_t BLOCK = 128;  // tokens looked at together

template <class T> struct Order;
template <> struct Order<bf16> {
    typedef std::int16_t Rank;
    static constexpr Rank INFINITY_RANK = 0x7F80, NAN_RANK = 0x7FFF;
};
template <> struct Order<float> {
    typedef std::int32_t Rank;
    static constexpr Rank INFINITY_RANK = 0x7F800000, NAN_RANK = 0x7FFFFFFF;
};
template <class T> using Rank = typename Order<T>::Rank;

template <class R> EVERYWHERE R all_bits_if_negative(R value) { return R(value >> (8 * sizeof(R) - 1)); }

// Without a branch, or gcc makes no vectors of it.
template <class T> EVERYWHERE Rank<T> rank_of(T value) {
    const Rank<T> bits = bits_as<Rank<T>>(value);
    const Rank<T> size = Rank<T>(bits & std::numeric_limits<Rank<T>>::max());
    const Rank<T> sign = all_bits_if_negative(bits);
    const Rank<T> rank = Rank<T>((size ^ sign) - sign);
    const Rank<T> odd = all_bits_if_negative(Rank<T>(Order<T>::INFINITY_RANK - size));
    return Rank<T>((rank | odd) & (Order<T>::NAN_RANK | ~odd));
}

template <class T> EVERYWHERE T of_rank(Rank<T> rank) {
    const Rank<T> sign = all_bits_if_negative(rank);
    const Rank<T> size = Rank<T>((rank ^ sign) - sign);
    return bits_as<T>(Rank<T>(size | (sign & std::numeric_limits<Rank<T>>::min())));
}

// A row in blocks, the last one filled up with -infinity.
template <class T> struct Blocks {
    const T *row;
    std::int64_t width, count;
    T last[BLOCK];
};

template <class T> EVERYWHERE void cut(const LogitRow &logits, Blocks<T> &blocks) {
    blocks.row = static_cast<const T *>(logits.data);
    blocks.width = logits.width;
    blocks.count = (logits.width + BLOCK - 1) / BLOCK;
    const std::int64_t first = (blocks.count - 1) * BLOCK;
    for (std::int64_t i = 0; i < BLOCK; i++)
        blocks.last[i] = first + i < blocks.width ? blocks.row[first + i] : of_rank<T>(-Order<T>::INFINITY_RANK);
}

template <class T> EVERYWHERE const T *block(const Blocks<T> &blocks, std::int64_t number) {
    return number + 1 < blocks.count ? blocks.row + number * BLOCK : blocks.last;
}

template <class T> EVERYWHERE Rank<T> peak_of(const T *block) {
    Rank<T> peak = std::numeric_limits<Rank<T>>::min();
    for (std::int64_t i = 0; i < BLOCK; i++) {
        const Rank<T> rank = rank_of(block[i]);
        peak = rank > peak ? rank : peak;
    }
    return peak;
}

template <class T> using Peaks = std::vector<Rank<T>>;  // of all blocks of a row

template <class T> EVERYWHERE void find_peaks(const Blocks<T> &blocks, Peaks<T> &peaks) {
    peaks.resize(blocks.count);
    for (std::int64_t number = 0; number < blocks.count; number++) peaks[number] = peak_of(block(blocks, number));
}

// The row in blocks, with the peak of each.
template <class T> EVERYWHERE void cut(const LogitRow &row, Blocks<T> &blocks, Peaks<T> &peaks) {
    cut(row, blocks);
    find_peaks(blocks, peaks);
}

// The first token of a rank that the block holds.
template <class T> EVERYWHERE std::int64_t first_of(const Blocks<T> &blocks, std::int64_t number, Rank<T> rank) {
    const T *own = block(blocks, number);
    std::int64_t i = 0;
    while (rank_of(own[i]) != rank) i++;
    return number * BLOCK + i;
}

}  // namespace
}  // namespace foredraft
