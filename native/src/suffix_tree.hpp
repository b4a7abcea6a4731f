// Counted suffix tree of bounded depth: drafters/suffix_tree.py once more, which says what it is and why. Counts, the
// order of what follows a string and what is remembered as likeliest are the same at every moment.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "suffix_entries.hpp"

namespace foredraft::suffix {

// Where a string is in the tree: its node, or its occurrences where it has none; of size 0 where it is not.
struct Place {
    std::uint32_t node = ROOT, size = 0;
    Occurrence bucket[BUCKET];

    Place() {}
    Place(const Place &other) { *this = other; }
    Place &operator=(const Place &other);
};

// What follows a string.
struct Follower {
    Token token;
    Place place;
};

// A sequence of the tree.
struct Text {
    std::vector<Token> tokens;
    std::vector<std::uint32_t> ends;  // nodes of its last token, last two tokens, and so on
    bool lives = true;
};

// A context's suffixes that are worth a guess.
struct Suffixes {
    std::uint32_t node = ROOT;   // the longest that is a node; shorter ones by `Entry::Inner::suffix`
    int length = 0;              // its tokens
    std::vector<Place> buckets;  // those one longer, two longer and so on
};

class SuffixTree {
public:
    explicit SuffixTree(int depth) : depth_(depth) {}

    int depth() const { return depth_; }
    const Entries &entries() const { return entries_; }
    const std::vector<Text> &texts() const { return texts_; }  // by sequence, those removed included
    bool holds(std::uint64_t sequence) const { return sequence < texts_.size() && texts_[sequence].lives; }
    std::size_t bytes() const;

    std::uint32_t insert();  // an empty sequence; numbers are used again
    void extend(std::uint32_t sequence, const Token *tokens, std::size_t count);
    void remove(std::uint32_t sequence);

    Place find(const Token *string, int length) const;
    // Of the context of `length` tokens before `end`; of text `own`, where that is the context.
    void suffixes(const Token *end, int length, const Text *own, Suffixes &out) const;
    Place place_of(std::uint32_t entry) const;

    // The most frequent continuation of a string of `depth` tokens, a recent one on a tie; false where there is none.
    bool follower(const Place &place, int depth, Follower &out);
    // The `width` most frequent ones, recent ones first on a tie.
    void followers(const Place &place, int depth, int width, std::vector<Follower> &out) const;

private:
    struct Groups;

    void step(std::uint32_t node, Token token, Occurrence newest, int depth);
    void burst(std::uint32_t bucket, Occurrence newest, int depth);
    void forget(std::uint32_t sequence, std::uint32_t start);
    bool lead_out(std::uint32_t child, Occurrence gone);
    bool reads(Occurrence occurrence, int begin, const Token *string, int length) const;
    bool rests(const Place &place, int depth) const;
    Place preceded(const Place &place, Token token) const;
    std::uint32_t node_at(const Token *string, int length) const;
    std::pair<std::uint32_t, int> longest_node(const Token *end, int limit) const;
    std::uint32_t likeliest(std::uint32_t node) const;

    int depth_;
    Entries entries_;
    std::vector<Text> texts_;
    std::vector<std::uint32_t> free_;           // numbers of removed sequences
    std::vector<std::uint32_t> before_, path_;  // scratch of `extend` and `forget`
};

}  // namespace foredraft::suffix
