// From rows of logits to tokens: the noise of a position, the token that wins under it, the first few, the normaliser.
//
// Every result is a function of its row alone and the same on every instruction set, bit for bit: doubles are added and
// multiplied as written, never fused. Ties go to the lowest id. NaN counts as larger than everything.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace foredraft {

// One row of `width` logits, bf16 or fp32, that lie side by side.
struct LogitRow {
    const void *data;
    std::int64_t width;
    bool narrow;  // bf16
};

struct Ranked {
    float value;
    std::int64_t token;
};

// How a row's values come from its logits: logit / divisor + noise, in fp32 as torch would round it.
struct Perturbation {
    float divisor;             // above 0
    const std::uint64_t *key;  // of the noise; null: there is none
    const std::int64_t *ids;   // the token that each column stands for; null: its own number
};

// The functions below for one instruction set.
struct ChoiceKernels {
    const char *name;
    bool (*runs_here)();
    // Standard Gumbel noise of tokens 0 .. width at the position that `key` stands for.
    void (*gumbel_row)(std::uint64_t key, std::int64_t width, float *out);
    // Noise of single pairs: of tokens[i] at keys[i].
    void (*gumbel_pairs)(const std::int64_t *keys, const std::int64_t *tokens, std::int64_t count, float *out);
    // The token with the largest logit.
    std::int64_t (*likeliest)(const LogitRow &row);
    // The token with the largest logit / divisor + noise, in fp32 as torch would round it; the divisor is above 0.
    std::int64_t (*drawn)(const LogitRow &row, float divisor, std::uint64_t key);
    // The `count` largest, falling; `count` is at most the width.
    void (*top)(const LogitRow &row, std::int64_t count, Ranked *out);
    // The `count` largest values, falling, with the tokens that their columns stand for; ties go to the lowest column.
    // Returns log(sum(exp(values))). Without noise it is exact to about 1e-7. Under noise, whose exponentials are taken
    // from 31 bits of their hash, it is an estimate, never below the largest value: off by less than 1e-3, mostly 5e-5,
    // besides what rounding does to the values; by up to log 2 where much of the sum belongs to one of the about 1 in
    // 2^20 tokens whose u is within 2^-21 of 0 or 1.
    double (*drawn_top)(const LogitRow &row, const Perturbation &by, std::int64_t count, Ranked *out);
    // log(sum(exp(logits))), summed in a fixed order; exact to about 1e-7.
    double (*log_sum_exp)(const LogitRow &row);
};

// Kernels this machine can run, best first; and the one called `name`, or the best for "". Null where it cannot run.
const std::vector<const ChoiceKernels *> &choice_kernels();
const ChoiceKernels *find_choice_kernels(const std::string &name);

// What a position's noise is hashed from, given what its seed is hashed to.
std::uint64_t position_key(std::uint64_t seed_key, std::int64_t position);

// `work(first, last)` over 0 .. rows, in about equal parts on as many threads.
void spread(std::int64_t rows, int threads, const std::function<void(std::int64_t, std::int64_t)> &work);

}  // namespace foredraft
