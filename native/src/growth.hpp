// When chains that are drafted together have grown enough: their rows are paid for together, and come in blocks.
#pragma once
#include <vector>

namespace foredraft {

// What steps with drafted nodes cost, in tokens: `steps` by how many, from none on, never less than with fewer; past
// the last one as much for each as on average. Empty where nobody pays for rows together.
struct Costs {
    std::vector<double> steps;
    double run = 0;  // of the drafter, a level of all chains

    double step(int nodes) const {
        const int last = int(steps.size()) - 1;
        return nodes <= last ? steps[nodes] : steps[last] * nodes / last;
    }
};

// The end of a chain that may go on.
struct End {
    double chance;  // that its child would be accepted
    double onward;  // and a child of that, once it is
    int left;       // levels that it may still grow
};

// Which ends to run the drafter behind, of chains with `nodes` nodes so far: the likeliest of them, and so many levels,
// that what these may bring less what the step and the runs then cost is most; none where that is below nothing. Beside
// them chains that are `free` grow by so many levels anyhow.
std::vector<char> worth_growing(const std::vector<End> &ends, int nodes, const Costs &costs,
                                const std::vector<int> &free);

// The chance below which nodes are not verified, given those of all nodes but the ones `beside` that are anyhow.
double least_worth_a_row(std::vector<double> chances, const Costs &costs, int beside);

}  // namespace foredraft
