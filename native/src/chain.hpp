// A whole draft of an autoregressive drafter: run what is pending, choose a token, run its row, choose the next.
#pragma once
#include <cstdint>
#include <vector>

#include "program.hpp"

namespace foredraft {

// One request's chain. Its rows, the pending ones and then the drafted ones but the last, stand behind `context` keys;
// context and rows are in a run of slots from `first`, or in those of `list`.
struct Chain {
    int depth;                          // tokens wanted
    std::int64_t context, first;        // the first row's position is `context`
    const std::int64_t *list;           // slots of context and rows, or null
    std::vector<std::int64_t> pending;  // tokens run first, at least one; the first token follows the last of them
    float divisor;                      // of the logits: the temperature
    std::vector<std::int64_t> keys;     // of the noise at each depth; empty for the likeliest tokens
    double least;                       // log-chance of the path below which no further token is drafted

    std::vector<std::int64_t> tokens;  // what was drafted
    std::vector<double> gains;         // log-chance of each among all values that it was the largest of

    double path = 0;                   // sum of the gains

    bool done() const { return int(tokens.size()) == depth || path < least; }
    std::int64_t rows() const { return std::int64_t(pending.size()) + depth - 1; }
    std::int64_t slot(std::int64_t position) const { return list ? list[position] : first + position; }
};

// What all chains share.
struct ChainOrder {
    const Cache *cache;
    const void *features;     // what the pending rows of all chains read as input 0, one after another; or null
    const std::int64_t *ids;  // target id of each column, or null
    int width;                // columns that count
    std::vector<int> first_skipped, skipped;  // sections that pending rows leave out, and those that drafted rows do
};

// Fill `tokens` and `gains` of each chain.
void draft_chains(Program &program, const ChainOrder &order, std::vector<Chain> &chains);

}  // namespace foredraft
