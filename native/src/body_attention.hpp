// Part of kernels_body.hpp: scores of keys, their weights, values mixed by them.
#pragma once
#include <cfloat>
#include <cmath>

#include "body_rows.hpp"

namespace foredraft {
namespace KERNELS_NAMESPACE {

// R keys against all lanes.
template <class T, int R>
void score_block(const typename Step<T>::Row *const *keys, int steps, const T *queries, float *out) {
    Vec sums[R][VECS] = {};
    for (int step = 0; step < steps; step++) {
        add_step<T>(sums, queries, [&](int r) { return keys[r] + step * Step<T>::inputs; });
        queries += LANES * Step<T>::inputs;
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < VECS; c++) store(out + r * LANES + c * WIDTH, sums[r][c]);
}

const int KEY_ROWS = WIDTH == 16 ? 12 : WIDTH == 8 ? 6 : 2;  // keys of a register block

template <class T>
void scores(SlotRows<T> keys, std::int64_t start, std::int64_t count, int size, const T *queries, float *out) {
    const int steps = size / Step<T>::inputs;
    const std::int64_t stop = start + count;
    typename Step<T>::Row room[widens<T> ? KEY_ROWS * MOST_HEAD : 1];
    const typename Step<T>::Row *rows[KEY_ROWS];
    const auto read = [&](int r, std::int64_t i) { rows[r] = as_read(keys.row(i), size, room + r * size); };
    std::int64_t i = 0;
    ask(keys, start, lesser(stop, start + ROWS_AHEAD), size);
    for (; i + KEY_ROWS <= count; i += KEY_ROWS) {
        ask(keys, lesser(stop, start + i + ROWS_AHEAD), lesser(stop, start + i + ROWS_AHEAD + KEY_ROWS), size);
        for (int r = 0; r < KEY_ROWS; r++) read(r, start + i + r);
        score_block<T, KEY_ROWS>(rows, steps, queries, out + i * LANES);
    }
    for (; i < count; i++) {
        read(0, start + i);
        score_block<T, 1>(rows, steps, queries, out + i * LANES);
    }
}

// Minus infinity where a lane does not see a key.
ALWAYS_INLINE Vec masked(Vec score, std::int64_t key, int lane, const Sight &sight) {
    Ints seen;
    if (key < sight.context) {
        if (key >= sight.most_from) return score;
        for (int i = 0; i < WIDTH; i++) seen[i] = key >= sight.from[lane + i] ? -1 : 0;
    } else {
        unsigned bits = unsigned(sight.own[key - sight.context]) >> lane;
        for (int i = 0; i < WIDTH; i++) seen[i] = (bits >> i) & 1 ? -1 : 0;
    }
    return choose(seen, score, all(-INFINITY));
}

void weights(float *scores, std::int64_t start, std::int64_t count, float scale, float softcap, const Sight &sight,
             float *sums) {
    for (int c = 0; c < VECS; c++) {
        float *column = scores + c * WIDTH;
        Vec most = all(-INFINITY);
        for (std::int64_t i = 0; i < count; i++) {
            Vec score = load<Vec>(column + i * LANES) * all(scale);
            if (softcap != 0) score = hyperbolic_tangent(score / all(softcap)) * all(softcap);
            score = masked(score, start + i, c * WIDTH, sight);
            most = larger(score, most);
            store(column + i * LANES, score);
        }
        most = larger(most, all(-FLT_MAX));  // of a lane that nobody uses
        Vec sum{};
        for (std::int64_t i = 0; i < count; i++) {
            Vec weight = exponential(load<Vec>(column + i * LANES) - most);
            sum += weight;
            store(column + i * LANES, weight);
        }
        store(sums + c * WIDTH, sum);
    }
}

// L lanes and C vectors of values, from `column` on; the last vector may be cut short.
template <class T, int L, int C, bool Cut>
void mix_block(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int column, int size,
               const float *sums, T *const *out) {
    Vec total[L][C] = {};
    for (std::int64_t i = 0; i < count; i++) {
        const T *value = values.row(start + i);
        if (i + ROWS_AHEAD < count) {
            const char *later = (const char *)(values.row(start + i + ROWS_AHEAD) + column);
            for (int byte = 0; byte < C * WIDTH * int(sizeof(T)); byte += LINE) __builtin_prefetch(later + byte, 0, 2);
        }
        Vec numbers[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++)
            numbers[c] = Cut ? part(value, column + c * WIDTH, size) : wide(value + column + c * WIDTH);
#pragma GCC unroll 8
        for (int lane = 0; lane < L; lane++)
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) total[lane][c] += all(weights[i * LANES + lane]) * numbers[c];
    }
    for (int lane = 0; lane < L; lane++)
        for (int c = 0; c < C; c++) {
            const int here = column + c * WIDTH;
            store_part(out[lane] + here, total[lane][c] / all(sums[lane]), Cut ? size - here : WIDTH);
        }
}

template <class T, int C, bool Cut>
void mix_lanes(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int column, int size,
               int lanes, const float *sums, T *const *out) {
    const int most = WIDTH == 16 ? 6 : 2;  // lanes of a register block
    for (int done; lanes > 0; lanes -= done, weights += done, sums += done, out += done) {
        done = lanes >= 6 && most >= 6 ? 6 : lanes >= 4 && most >= 4 ? 4 : lanes >= 2 ? 2 : 1;
        const auto block = done == 6   ? mix_block<T, most, C, Cut>
                           : done == 4 ? mix_block<T, (most >= 4 ? 4 : 1), C, Cut>
                           : done == 2 ? mix_block<T, 2, C, Cut>
                                       : mix_block<T, 1, C, Cut>;
        block(weights, start, count, values, column, size, sums, out);
    }
}

template <class T>
void mix(const float *weights, std::int64_t start, std::int64_t count, SlotRows<T> values, int size, int lanes,
         const float *sums, T *const *out) {
    int column = 0;
    for (; column + 4 * WIDTH <= size; column += 4 * WIDTH)
        mix_lanes<T, 4, false>(weights, start, count, values, column, size, lanes, sums, out);
    for (; column + WIDTH <= size; column += WIDTH)
        mix_lanes<T, 1, false>(weights, start, count, values, column, size, lanes, sums, out);
    if (column < size) mix_lanes<T, 1, true>(weights, start, count, values, column, size, lanes, sums, out);
}

}  // namespace KERNELS_NAMESPACE
}  // namespace foredraft
