#include "choice.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "bf16.hpp"
#include "choice_bounds.hpp"
#include "choice_noise.hpp"
#include "choice_ranks.hpp"
#include "choice_sums.hpp"
#include "unfused.hpp"

namespace foredraft {
namespace {

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
// The winner under noise without the noise of all tokens.

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
    return value_of(blocks, draw.divisor, draw.key, token, token);
}

template <class T> EVERYWHERE std::int64_t drawn_slowly(Draw &draw, const Blocks<T> &blocks) {
    for (std::int64_t token = 0; token < blocks.width; token++) {
        const float value = value_of(draw, blocks, token);
        if (value != value) return token;
        consider(draw, value, token);
    }
    return draw.token;
}

// How far each token of a block may reach; whether any reaches the bar.
template <class T>
EVERYWHERE bool reaches(const Draw &draw, const T *block, std::int64_t first, float bar, float *reach) {
    std::int32_t left[BLOCK], reaching = 0;
    find_left(draw.key, first, left);
    find_reach(block, left, draw.divisor, reach);
    for (std::int64_t i = 0; i < BLOCK; i++) reaching += reach[i] >= bar;
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
        bar = bar_of(draw.value, draw.divisor, highest);
    }
    return bar;
}

template <class T> EVERYWHERE std::int64_t drawn_body(const LogitRow &row, float divisor, std::uint64_t key) {
    Blocks<T> blocks;
    Peaks<T> peaks;
    cut(row, blocks, peaks);
    const std::int64_t where = std::max_element(peaks.begin(), peaks.end()) - peaks.begin();
    const std::int64_t likeliest = first_of(blocks, where, peaks[where]);
    const float highest = widened(of_rank<T>(peaks[where]));
    if (!(highest > -INFINITE) && divisor < INFINITE) return likeliest;  // NaN, or nothing but -infinity
    Draw draw = {divisor, key};
    consider(draw, value_of(draw, blocks, likeliest), likeliest);
    if (!usual(draw.value, divisor, highest)) return drawn_slowly(draw, blocks);
    float bar = bar_of(draw.value, divisor, highest);
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
template <class T> EVERYWHERE Rank<T> least_of_top(Peaks<T> peaks, std::int64_t count) {
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

template <class T>
EVERYWHERE void first_few(const Blocks<T> &blocks, const Peaks<T> &peaks, std::int64_t count, Ranked *out) {
    const Rank<T> least = least_of_top<T>(peaks, count);
    std::vector<std::int64_t> places;
    for (std::int64_t number = 0; number < blocks.count; number++)
        if (peaks[number] >= least) gather(blocks, number, least, places);
    const auto end = places.begin() + count;
    std::nth_element(places.begin(), end - 1, places.end(), std::greater<std::int64_t>());
    std::sort(places.begin(), end, std::greater<std::int64_t>());
    for (std::int64_t i = 0; i < count; i++) out[i] = {widened(blocks.row[token_of(places[i])]), token_of(places[i])};
}

template <class T> EVERYWHERE void top_body(const LogitRow &row, std::int64_t count, Ranked *out) {
    Blocks<T> blocks;
    Peaks<T> peaks;
    cut(row, blocks, peaks);
    first_few(blocks, peaks, count, out);
}

// ------------------------------------------------------------------------------------------------- the first few drawn

template <class T> EVERYWHERE float highest_of(const Peaks<T> &peaks) {
    return widened(of_rank<T>(*std::max_element(peaks.begin(), peaks.end())));
}

template <class T> EVERYWHERE double shared_top(const LogitRow &row, std::int64_t count, Ranked *out) {
    Blocks<T> blocks;
    Peaks<T> peaks;
    cut(row, blocks, peaks);
    first_few(blocks, peaks, count, out);
    return log_sum_of(blocks, highest_of<T>(peaks));
}

template <class T>
EVERYWHERE float value_of(const Blocks<T> &blocks, const Perturbation &by, std::int64_t column) {
    return value_of(blocks, by.divisor, *by.key, column, named(by.ids, column));
}

// From the values of all columns.
template <class T>
EVERYWHERE double drawn_top_slowly(const Blocks<T> &blocks, const Perturbation &by, std::int64_t count, Ranked *out) {
    std::vector<float> values(blocks.width);
    for (std::int64_t i = 0; i < blocks.width; i++)
        values[i] = by.key ? value_of(blocks, by, i) : widened(blocks.row[i]) / by.divisor;
    return shared_top<float>({values.data(), blocks.width, false}, count, out);
}

template <class T>
EVERYWHERE void find_left(const Blocks<T> &blocks, const Perturbation &by, std::int64_t number, std::int32_t *left) {
    const std::int64_t first = number * BLOCK;
    if (!by.ids) return find_left(*by.key, first, left);
    if (number + 1 < blocks.count) return find_left(*by.key, by.ids + first, left);
    std::int64_t tokens[BLOCK] = {};
    std::copy(by.ids + first, by.ids + blocks.width, tokens);
    find_left(*by.key, tokens, left);
}

// How far each column reaches, and the log of the sum of the exponentials of all values.
template <class T>
EVERYWHERE double look_over(const Blocks<T> &blocks, const Perturbation &by, float highest, float *reach) {
    double sum = 0;
    for (std::int64_t number = 0; number < blocks.count; number++) {
        std::int32_t left[BLOCK];
        find_left(blocks, by, number, left);
        find_reach(block(blocks, number), left, by.divisor, reach + number * BLOCK);
        sum += block_sum(block(blocks, number), left, highest, 1 / by.divisor);
    }
    return double(highest) / by.divisor + natural_log(sum);
}

EVERYWHERE bool comes_first(const Ranked &one, const Ranked &other) {
    return one.value > other.value || (one.value == other.value && one.token < other.token);
}

// Those that reach farthest set a bar by their values, and whatever reaches it is compared. False where bounds may not
// hold.
template <class T>
EVERYWHERE bool compare(const Blocks<T> &blocks, const Perturbation &by, float highest, const LogitRow &reach,
                        std::int64_t count, Ranked *out) {
    Blocks<float> bounds;
    Peaks<float> peaks;
    cut(reach, bounds, peaks);
    first_few(bounds, peaks, count, out);
    float least = INFINITE;
    for (std::int64_t i = 0; i < count; i++) least = std::min(least, value_of(blocks, by, out[i].token));
    if (!usual(least, by.divisor, highest)) return false;
    const Rank<float> bar = rank_of(bar_of(least, by.divisor, highest));
    std::vector<std::int64_t> places;
    for (std::int64_t number = 0; number < bounds.count; number++)
        if (peaks[number] >= bar) gather(bounds, number, bar, places);
    std::vector<Ranked> found;
    for (std::int64_t place : places) found.push_back({value_of(blocks, by, token_of(place)), token_of(place)});
    std::partial_sort_copy(found.begin(), found.end(), out, out + count, comes_first);
    return true;
}

template <class T>
EVERYWHERE double drawn_top_quickly(const LogitRow &row, const Perturbation &by, std::int64_t count, Ranked *out) {
    Blocks<T> blocks;
    Peaks<T> peaks;
    cut(row, blocks, peaks);
    const float highest = highest_of<T>(peaks);
    if (!by.key || !usual(0, by.divisor, highest)) return drawn_top_slowly(blocks, by, count, out);
    std::vector<float> reach(blocks.count * BLOCK);
    const double log_sum = look_over(blocks, by, highest, reach.data());
    if (!compare(blocks, by, highest, {reach.data(), row.width, false}, count, out))
        return drawn_top_slowly(blocks, by, count, out);
    return std::max(log_sum, double(out[0].value));
}

template <class T>
EVERYWHERE double drawn_top_body(const LogitRow &row, const Perturbation &by, std::int64_t count, Ranked *out) {
    const bool plain = !by.key && by.divisor == 1;
    const double log_sum = plain ? shared_top<T>(row, count, out) : drawn_top_quickly<T>(row, by, count, out);
    for (std::int64_t i = 0; i < count; i++) out[i].token = named(by.ids, out[i].token);
    return log_sum;
}

template <class T> EVERYWHERE double log_sum_exp_body(const LogitRow &row) {
    Blocks<T> blocks;
    Peaks<T> peaks;
    cut(row, blocks, peaks);
    return log_sum_of(blocks, highest_of<T>(peaks));
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
    TARGET double drawn_top(const LogitRow &row, const Perturbation &by, std::int64_t count, Ranked *out) {            \
        return row.narrow ? drawn_top_body<bf16>(row, by, count, out) : drawn_top_body<float>(row, by, count, out);    \
    }                                                                                                                  \
    TARGET double log_sum_exp(const LogitRow &row) {                                                                   \
        return row.narrow ? log_sum_exp_body<bf16>(row) : log_sum_exp_body<float>(row);                                \
    }                                                                                                                  \
    const ChoiceKernels kernels = {LABEL, runs_here, gumbel_row, gumbel_pairs, likeliest,                              \
                                   drawn, top,       drawn_top,  log_sum_exp};                                         \
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
