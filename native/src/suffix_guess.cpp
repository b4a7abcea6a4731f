#include "suffix_guess.hpp"

#include <algorithm>
#include <tuple>

#include "unfused.hpp"

namespace foredraft::suffix {

const double LENGTHS = 0.6;  // as in suffix_guess.py

void Guess::clear(double from, int length) {
    tokens.clear(), parents.clear(), counts.clear();
    matched = length, score = from, truncated = false;
}

int Guess::add(Token token, int parent, Counts its, double prob) {
    tokens.push_back(token);
    parents.push_back(parent);
    counts.push_back(its);
    score += prob;
    return int(tokens.size()) - 1;
}

// As `chance_of` in suffix_guess.py.
static double chance_of(std::uint32_t count, std::uint32_t size, int length) {
    return double(count) / size * (1.0 - 1.0 / ((1.0 + LENGTHS * length) * size));
}

Draft stated(const Guess &guess, double least, int ends) {
    struct Kept {  // where a node is in the draft, its string's length, its path's chance
        int node, length;
        double path;
    };
    Draft draft;
    std::vector<Kept> kept;
    for (std::size_t node = 0; node < guess.tokens.size(); node++) {
        const int parent = guess.parents[node];
        const Kept above = parent < 0 ? Kept{-1, guess.matched, 1.0} : kept[parent];
        const Counts its = guess.counts[node];
        const double chance = chance_of(its.count, parent < 0 ? its.size - ends : its.size, above.length);
        const double path = above.path * chance;
        const bool worth = (parent < 0 || above.node >= 0) && !(path < least);
        kept.push_back({worth ? int(draft.tokens.size()) : -1, above.length + 1, path});
        if (!worth) continue;
        draft.tokens.push_back(guess.tokens[node]);
        draft.parents.push_back(above.node);
        draft.chances.push_back(chance);
    }
    return draft;
}

const Guess &Guesser::best(SuffixTree &tree, const Context &context, const Limits &limits, double to_beat) {
    tree.suffixes(context.end, context.length, context.own, suffixes_);
    best_.clear(to_beat);
    last_.clear(0);
    std::uint32_t occurrences = 0, node = suffixes_.node;
    for (int matched = suffixes_.length + int(suffixes_.buckets.size()); matched > 0; matched--) {
        const int longer = matched - suffixes_.length;
        const Place place = longer > 0 ? suffixes_.buckets[longer - 1] : tree.place_of(node);
        if (longer <= 0) node = tree.entries()[node].inner.suffix;
        const double room = limits.factor * matched + 1e-6;
        const int nodes = room < limits.nodes ? int(room) : limits.nodes;
        if (nodes <= best_.score) break;
        if (place.size == occurrences && !last_.truncated) continue;
        last_.clear(0, matched);
        limits.width == 1 ? chain(tree, place, matched, nodes, limits) : branches(tree, place, matched, nodes, limits);
        occurrences = place.size;
        if (last_.score > best_.score) best_ = last_;
    }
    return best_;
}

void Guesser::chain(SuffixTree &tree, const Place &from, int matched, int nodes, const Limits &limits) {
    Place place = from;
    Follower next;
    double prob = 1;
    const int end = std::min(tree.depth(), matched + std::min(nodes, limits.depth));
    for (int depth = matched; depth < end; depth++) {
        if (!tree.follower(place, depth, next)) break;
        prob *= double(next.place.size) / place.size;
        if (prob < limits.min_prob) break;
        last_.add(next.token, int(last_.tokens.size()) - 1, {next.place.size, place.size}, prob);
        last_.truncated = depth + 1 == tree.depth();
        place = next.place;
    }
}

// As Python compares tuples; turned round, since a heap has its largest first.
bool Guesser::Waiting::operator<(const Waiting &other) const {
    return std::tie(other.cost, other.parent, other.rank) < std::tie(cost, parent, rank);
}

void Guesser::branches(SuffixTree &tree, const Place &from, int matched, int nodes, const Limits &limits) {
    frontier_.clear();
    reached_.clear();
    Place place = from;
    int node = -1, depth = matched;
    double prob = 1;
    const int deepest = std::min(tree.depth(), matched + limits.depth);
    while (int(last_.tokens.size()) < nodes) {
        if (depth < deepest) reach(tree, place, depth, node, prob, limits);
        if (frontier_.empty()) break;
        std::pop_heap(frontier_.begin(), frontier_.end());
        const Reached &one = reached_[frontier_.back().reached];
        frontier_.pop_back();
        prob = -one.cost, place = one.place, depth = one.depth;
        node = last_.add(one.token, one.parent, one.counts, prob);
        last_.truncated |= depth == tree.depth();
    }
}

// Put what follows `node`, whose string is at `place`, on the frontier.
void Guesser::reach(SuffixTree &tree, const Place &place, int depth, int node, double prob, const Limits &limits) {
    tree.followers(place, depth, limits.width, followers_);
    for (int rank = 0; rank < int(followers_.size()); rank++) {
        const Follower &next = followers_[rank];
        const double likely = prob * (double(next.place.size) / place.size);
        if (likely < limits.min_prob) continue;
        frontier_.push_back({-likely, node, rank, reached_.size()});
        std::push_heap(frontier_.begin(), frontier_.end());
        reached_.push_back({-likely, node, rank, {next.place.size, place.size}, next.token, next.place, depth + 1});
    }
}

}  // namespace foredraft::suffix
