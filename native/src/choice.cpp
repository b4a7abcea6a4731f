#include "choice.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "bf16.hpp"
#include "choice_noise.hpp"
#include "choice_ranks.hpp"
#include "unfused.hpp"

namespace foredraft {
namespace {

const float INFINITE = std::numeric_limits<float>::infinity();

template <class T> EVERYWHERE std::int64_t likeliest_body(const LogitRow &row) {
    Blocks<T> blocks;
    cut(row, blocks);
    Rank<T> best = std::numeric_limits<Rank<T>>::min();
    std::int64_t where = 0;
    for (std::int64_t number = 0; number < blocks.count; number++) {
        const Rank<T> peak = peak_of(block(blocks, number));
        if (peak > best) best = peak, where = number;
    }
    return first_of(blocks, where, best);
}

// ------------------------------------------------------------------------------------------------------- drawing
// The winner under noise without the noise of all tokens: a bound of it, from the upper bits of the hash, shows for
// nearly all that they cannot win.

struct Draw {
    float divisor;
    std::uint64_t key;
    float value = -INFINITE;
    std::int64_t token = 0;
};

EVERYWHERE void consider(Draw &draw, float value, std::int64_t token) {
    if (value > draw.value || (value == draw.value && token < draw.token)) draw.value = value, draw.token = token;
}

template <class T> EVERYWHERE float value_of(const Draw &draw, const Blocks<T> &blocks, std::int64_t token) {
    return widened(blocks.row[token]) / draw.divisor + gumbel_of(mixed(counter(draw.key, token)));
}

template <class T> EVERYWHERE std::int64_t drawn_slowly(Draw &draw, const Blocks<T> &blocks) {
    for (std::int64_t token = 0; token < blocks.width; token++) {
        const float value = value_of(draw, blocks, token);
        if (value != value) return token;
        consider(draw, value, token);
    }
    return draw.token;
}

const float MOST_NOISE = 37;  // it is below 53 log 2

// What a token's logit + divisor * (bound of its noise) must reach for it to win or tie.
//
// Single precision, in that sum and in the value that the winner is chosen by, is off by a few times 2^-24 of the
// largest number on the way: a logit, which is about as far from 0 as the highest or the best value when it matters, or
// the bound's first term, 151 log 2. The margin is 32 times 2^-24 of about their sum.
EVERYWHERE float bar_of(const Draw &draw, float highest) {
    const double scaled = double(draw.value) * draw.divisor;
    const double margin = 0x1p-19 * (std::fabs(highest) + std::fabs(scaled) + 128.0 * draw.divisor);
    return float(scaled - margin);
}

// How far each token of a block may reach; whether any reaches the bar.
//
// Noise is -log(-log u) < -log(1 - u). Of 1 - u the upper 24 bits are taken, which are below it, and for its binary
// logarithm the bits of that float as a number, which are below it too: log2(1 + m) > m.
template <class T>
EVERYWHERE bool reaches(const Draw &draw, const T *block, std::int64_t first, float bar, float *reach) {
    std::int32_t left[BLOCK];
    for (std::int64_t i = 0; i < BLOCK; i++)
        left[i] = std::int32_t(~nearly_mixed(counter(draw.key, first + i)) >> 40);
    const float log_2 = 0.693147182f;  // rounded up
    const float most = 151 * log_2 * draw.divisor, slope = log_2 * 0x1p-23f * draw.divisor;
    std::int32_t reaching = 0;
    for (std::int64_t i = 0; i < BLOCK; i++) {
        const float log_left = float(bits_as<std::int32_t>(float(left[i])));
        reach[i] = widened(block[i]) + (most - slope * log_left);
        reaching += reach[i] >= bar;
    }
    return reaching > 0;
}

// Consider what reaches the bar, the farthest first: it raises the bar for the rest.
template <class T>
EVERYWHERE float consider_block(Draw &draw, const Blocks<T> &blocks, std::int64_t first, float *reach, float bar,
                                float highest) {
    std::int64_t places[BLOCK], count = 0, farthest = 0;
    for (std::int64_t i = 0; i < BLOCK; i++) {
        places[count] = i;
        count += reach[i] >= bar;
    }
    for (std::int64_t i = 1; i < count; i++)
        if (reach[places[i]] > reach[places[farthest]]) farthest = i;
    std::swap(places[0], places[farthest]);
    for (std::int64_t i = 0; i < count; i++) {
        if (reach[places[i]] < bar) continue;
        consider(draw, value_of(draw, blocks, first + places[i]), first + places[i]);
        bar = bar_of(draw, highest);
    }
    return bar;
}

// Whether nothing above overflows, or is so small that it is rounded to a fixed grid.
EVERYWHERE bool usual(const Draw &draw, float highest) {
    return std::fabs(highest) < 1e30f && std::fabs(draw.value) < 1e30f && draw.divisor > 1e-21f && draw.divisor < 1e30f;
}

template <class T> EVERYWHERE std::int64_t drawn_body(const LogitRow &row, float divisor, std::uint64_t key) {
    Blocks<T> blocks;
    cut(row, blocks);
    std::vector<Rank<T>> peaks;
    find_peaks(blocks, peaks);
    const std::int64_t where = std::max_element(peaks.begin(), peaks.end()) - peaks.begin();
    const std::int64_t likeliest = first_of(blocks, where, peaks[where]);
    const float highest = widened(of_rank<T>(peaks[where]));
    if (!(highest > -INFINITE) && divisor < INFINITE) return likeliest;  // NaN, or nothing but -infinity
    Draw draw = {divisor, key};
    consider(draw, value_of(draw, blocks, likeliest), likeliest);
    if (!usual(draw, highest)) return drawn_slowly(draw, blocks);
    float bar = bar_of(draw, highest);
    for (std::int64_t number = 0; number < blocks.count; number++) {
        if (widened(of_rank<T>(peaks[number])) + MOST_NOISE * divisor < bar) continue;
        float reach[BLOCK];
        if (reaches(draw, block(blocks, number), number * BLOCK, bar, reach))
            bar = consider_block(draw, blocks, number * BLOCK, reach, bar, highest);
    }
    return draw.token;
}

// ------------------------------------------------------------------------------------------------------- the first few

// Rank and token in one int, larger for what comes first.
EVERYWHERE std::int64_t place_of(std::int64_t rank, std::int64_t token) {
    return rank * (std::int64_t(1) << 32) + (0xFFFFFFFF - token);
}
EVERYWHERE std::int64_t token_of(std::int64_t place) { return 0xFFFFFFFF - (place & 0xFFFFFFFF); }

// The `count`-th largest peak: as many tokens at least are as large.
template <class T> EVERYWHERE Rank<T> least_of_top(std::vector<Rank<T>> peaks, std::int64_t count) {
    if (std::int64_t(peaks.size()) < count) return std::numeric_limits<Rank<T>>::min();
    std::nth_element(peaks.begin(), peaks.begin() + (count - 1), peaks.end(), std::greater<Rank<T>>());
    return peaks[count - 1];
}

// Add the tokens of a block whose rank is at least `least`.
template <class T>
EVERYWHERE void gather(const Blocks<T> &blocks, std::int64_t number, Rank<T> least, std::vector<std::int64_t> &places) {
    const T *own = block(blocks, number);
    Rank<T> ranks[BLOCK];
    for (std::int64_t i = 0; i < BLOCK; i++) ranks[i] = rank_of(own[i]);
    const std::int64_t first = number * BLOCK, size = std::min(BLOCK, blocks.width - first);
    std::int64_t found[BLOCK], count = 0;
    for (std::int64_t i = 0; i < size; i++) {
        found[count] = i;
        count += ranks[i] >= least;
    }
    for (std::int64_t i = 0; i < count; i++) places.push_back(place_of(ranks[found[i]], first + found[i]));
}

template <class T> EVERYWHERE void top_body(const LogitRow &row, std::int64_t count, Ranked *out) {
    Blocks<T> blocks;
    cut(row, blocks);
    std::vector<Rank<T>> peaks;
    find_peaks(blocks, peaks);
    const Rank<T> least = least_of_top<T>(peaks, count);
    std::vector<std::int64_t> places;
    for (std::int64_t number = 0; number < blocks.count; number++)
        if (peaks[number] >= least) gather(blocks, number, least, places);
    const auto end = places.begin() + count;
    std::nth_element(places.begin(), end - 1, places.end(), std::greater<std::int64_t>());
    std::sort(places.begin(), end, std::greater<std::int64_t>());
    for (std::int64_t i = 0; i < count; i++) out[i] = {widened(blocks.row[token_of(places[i])]), token_of(places[i])};
}

// ------------------------------------------------------------------------------------------------------- normaliser

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

template <class T> EVERYWHERE double log_sum_exp_body(const LogitRow &row) {
    Blocks<T> blocks;
    cut(row, blocks);
    Rank<T> peak = std::numeric_limits<Rank<T>>::min();
    for (std::int64_t number = 0; number < blocks.count; number++)
        peak = std::max(peak, peak_of(block(blocks, number)));
    const float highest = widened(of_rank<T>(peak));
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

// ------------------------------------------------------------------------------------------------- instruction sets

#define CHOICE_KERNELS(NAME, LABEL, RUNS_HERE, TARGET)                                                                 \
    namespace NAME {                                                                                                   \
    bool runs_here() { return RUNS_HERE; }                                                                             \
    TARGET void gumbel_row(std::uint64_t key, std::int64_t width, float *out) { gumbel_row_body(key, width, out); }    \
    TARGET void gumbel_pairs(const std::int64_t *keys, const std::int64_t *tokens, std::int64_t count, float *out) {   \
        gumbel_pairs_body(keys, tokens, count, out);                                                                   \
    }                                                                                                                  \
    TARGET std::int64_t likeliest(const LogitRow &row) {                                                               \
        return row.narrow ? likeliest_body<bf16>(row) : likeliest_body<float>(row);                                    \
    }                                                                                                                  \
    TARGET std::int64_t drawn(const LogitRow &row, float divisor, std::uint64_t key) {                                 \
        return row.narrow ? drawn_body<bf16>(row, divisor, key) : drawn_body<float>(row, divisor, key);                \
    }                                                                                                                  \
    TARGET void top(const LogitRow &row, std::int64_t count, Ranked *out) {                                            \
        row.narrow ? top_body<bf16>(row, count, out) : top_body<float>(row, count, out);                               \
    }                                                                                                                  \
    TARGET double log_sum_exp(const LogitRow &row) {                                                                   \
        return row.narrow ? log_sum_exp_body<bf16>(row) : log_sum_exp_body<float>(row);                                \
    }                                                                                                                  \
    const ChoiceKernels kernels = {LABEL, runs_here, gumbel_row, gumbel_pairs, likeliest, drawn, top, log_sum_exp};    \
    }

CHOICE_KERNELS(portable, "portable", true, )
#if defined(__x86_64__)
CHOICE_KERNELS(avx2, "avx2", __builtin_cpu_supports("avx2"), [[gnu::target("avx2")]])
#if defined(__clang__)
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
CHOICE_KERNELS(avx512, "avx512",
               __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"),
               [[gnu::target(AVX512)]])
#endif

}  // namespace

const std::vector<const ChoiceKernels *> &choice_kernels() {
    static const std::vector<const ChoiceKernels *> found = [] {
        std::vector<const ChoiceKernels *> sets;
#if defined(__x86_64__)
        for (const ChoiceKernels *set : {&avx512::kernels, &avx2::kernels})
            if (set->runs_here()) sets.push_back(set);
#endif
        sets.push_back(&portable::kernels);
        return sets;
    }();
    return found;
}

const ChoiceKernels *find_choice_kernels(const std::string &name) {
    for (const ChoiceKernels *set : choice_kernels())
        if (name.empty() || name == set->name) return set;
    return nullptr;
}

std::uint64_t position_key(std::uint64_t seed_key, std::int64_t position) {
    return mixed(counter(seed_key, position));
}

void spread(std::int64_t rows, int threads, const std::function<void(std::int64_t, std::int64_t)> &work) {
    const std::int64_t parts = std::max<std::int64_t>(1, std::min<std::int64_t>(threads, rows));
    std::vector<std::thread> others;
    for (std::int64_t part = 1; part < parts; part++)
        others.emplace_back(work, rows * part / parts, rows * (part + 1) / parts);
    work(0, rows / parts);
    for (std::thread &other : others) other.join();
}

}  // namespace foredraft
