// A whole draft of an autoregressive drafter: run what is pending, choose tokens, run their rows, choose the next.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "growth.hpp"
#include "program.hpp"

namespace foredraft {

const int NO_PARENT = -1;  // the parent of a draft's first nodes

// One drafted token.
struct Drafted {
    std::int64_t token;
    int parent, depth;  // 1 for a child of the root
    double gain;        // log-chance among all values that it was one of the largest of, never above 0
    double score;       // sum of the gains of its path
    int from;           // its parent's row among the wanted ones of the level before
    int place = -1;     // of its row's slot in the draft's room, once it is run
};

// One request's draft: a chain of width 1, or a tree that grows from the best nodes of each level. The pending rows
// stand behind `context` keys; the slots of both are a run from `first`, or those of `list`.
struct Draft {
    int depth, width;  // longest path; most children of a node, and most rows of a level
    int most;          // nodes kept, those of the highest scores
    std::int64_t context, first;        // the first row's position is `context`
    const std::int64_t *list;           // or null
    std::vector<std::int64_t> pending;  // tokens run first, at least one; the root is the last of them
    std::vector<std::int64_t> room;     // slots for the rows of drafted nodes, `width` for each level but the last
    float divisor;                      // of the logits: the temperature
    std::vector<std::int64_t> keys;     // of the noise at each depth; empty for the likeliest tokens
    double least;                       // log-chance below which a token is the last of its chain
    double candour, row, run;           // what nodes are worth and cost, in tokens: `worth_of` and `Levels::stop`
    double onward;                      // how likely a token behind one that is accepted is accepted, too
    Costs together;                     // what chains that share the call pay together, instead of a row each

    std::vector<Drafted> nodes;  // all that was drafted, parents before children
    std::vector<int> frontier;   // nodes to run next
    int placed = 0;              // nodes run or about to run

    std::int64_t begun() const { return context + std::int64_t(pending.size()); }
    std::int64_t slot(std::int64_t position) const { return list ? list[position] : first + position; }
    // Whether it pays for nothing that is drafted together: it grows as far as it may.
    bool free() const { return together.steps.empty() && run == 0; }
    bool ends_at(int node) const { return width == 1 && nodes[node].gain < least; }
    // How likely a node's path is accepted: a stated chance to the power of `candour`.
    double chance_of(int node) const { return std::exp(candour * nodes[node].score); }
    // What its row is worth, and that of a node behind it.
    double worth_of(int node) const { return chance_of(node) - row; }
    double worth_behind(int node) const { return onward * chance_of(node) - row; }
    std::vector<int> kept() const;  // the nodes of the highest scores, rising: each with its parent
};

// What all drafts share.
struct DraftOrder {
    const Cache *cache;
    const void *features;     // what the pending rows of all drafts read as input 0, one after another; or null
    const std::int64_t *ids;  // target id of each column, or null
    int width;                // columns that count
    std::vector<int> first_skipped, skipped;  // sections that pending rows leave out, and those that drafted rows do
};

// Fill `nodes` of each draft.
void run_drafts(Program &program, const DraftOrder &order, std::vector<Draft> &drafts);

}  // namespace foredraft
