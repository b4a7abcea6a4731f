// The loop of an autoregressive drafter: choose a token, run its row, choose the next.
#pragma once
#include <cstdint>
#include <vector>

#include "program.hpp"

namespace foredraft {

// One request's chain. Its drafted rows stand behind `context` keys: a run of slots from `first`, or those of `list`,
// which goes on with the slots of the drafted rows.
struct Chain {
    int depth;              // tokens wanted
    std::int64_t position;  // of the first drafted token's row
    std::int64_t context, first;
    const std::int64_t *list;
    std::vector<std::int64_t> scratch;  // slots of the drafted rows, one less than tokens
    float divisor;                      // of the logits: the temperature
    std::vector<std::int64_t> keys;     // of the noise at each depth; empty for the likeliest tokens

    std::vector<std::int64_t> tokens;  // what was drafted
    std::vector<double> gains;         // log-chance of each among all values that it was the largest of
};

// What all chains share.
struct ChainOrder {
    const Cache *cache;
    const void *logits;           // of the rows run so far, [chains, columns], of the program's type
    int columns;
    const void *hidden;           // what those rows hand on to the program's input 0, [chains, hidden_width]; or null
    int hidden_width;
    const std::int64_t *ids;      // target id of each column, or null
    int width;                    // columns that count
    std::vector<int> skipped;     // sections
};

// Fill `tokens` and `gains` of each chain.
void draft_chains(Program &program, const ChainOrder &order, std::vector<Chain> &chains);

}  // namespace foredraft
