#include "growth.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foredraft {

std::vector<char> worth_growing(const std::vector<End> &ends, int nodes, const Costs &costs,
                                const std::vector<int> &free) {
    const int count = int(ends.size());
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return ends[a].chance > ends[b].chance; });
    std::vector<double> gains(count, 0.0), chances;
    for (const End &end : ends) chances.push_back(end.chance);
    int most = 0, going = 0, paid = 0;
    for (const End &end : ends) most = std::max(most, end.left);
    for (int left : free) paid = std::max(paid, left);
    double best = 0;
    for (int levels = 1; levels <= most; levels++) {
        double gain = 0;
        int rows = 0, beside = nodes;
        for (int left : free) beside += std::min(levels, left);
        const double runs = std::max(0, levels - paid) * costs.run;
        for (int taken = 0; taken < count; taken++) {
            const int place = order[taken];
            if (levels <= ends[place].left) {
                gains[place] += chances[place];
                chances[place] *= ends[place].onward;
            }
            gain += gains[place];
            rows += std::min(levels, ends[place].left);
            const double value = gain - (costs.step(beside + rows) - costs.step(beside)) - runs;
            if (value >= best) {
                best = value;
                going = taken + 1;
            }
        }
    }
    std::vector<char> goes(count, 0);
    for (int taken = 0; taken < going; taken++) goes[order[taken]] = 1;
    return goes;
}

double least_worth_a_row(std::vector<double> chances, const Costs &costs, int beside) {
    std::sort(chances.begin(), chances.end(), [](double a, double b) { return a > b; });
    double best = 0, gain = 0, least = INFINITY;
    for (int count = 1; count <= int(chances.size()); count++) {
        gain += chances[count - 1];
        const double value = gain - (costs.step(beside + count) - costs.step(beside));
        if (value >= best) {
            best = value;
            least = chances[count - 1];
        }
    }
    return least;
}

}  // namespace foredraft
