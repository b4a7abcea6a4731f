// Drafts that the counts of a suffix tree suggest: drafters/suffix_guess.py once more, operation for operation, so that
// chances and scores are the same bits.
#pragma once
#include <cstdint>
#include <vector>

#include "suffix_tree.hpp"

namespace foredraft::suffix {

// As `GuessLimits` in suffix_guess.py.
struct Limits {
    int nodes, depth, width;
    double factor, min_prob, least;
};

// How often a token followed a string, and how often that came.
struct Counts {
    std::uint32_t count, size;
};

// As `Guess` in suffix_guess.py.
struct Guess {
    std::vector<Token> tokens;
    std::vector<int> parents;
    std::vector<Counts> counts;
    int matched = 0;
    double score = 0;
    bool truncated = false;

    void clear(double score, int matched = 0);
    int add(Token token, int parent, Counts counts, double prob);
};

// What is drafted of a guess.
struct Draft {
    std::vector<Token> tokens;
    std::vector<int> parents;
    std::vector<double> chances;
};

// As `stated` in suffix_guess.py.
Draft stated(const Guess &guess, double least, int ends);

// What follows a context: its last token is the one before `end`. `own` where it is all of that text of the tree.
struct Context {
    const Token *end;
    int length;
    const Text *own;
};

class Guesser {
public:
    // The guess of the highest score from any suffix of the context, ties to the longer suffix; empty where none scores
    // over `to_beat`. Read it before the next is asked for.
    const Guess &best(SuffixTree &tree, const Context &context, const Limits &limits, double to_beat);

private:
    struct Reached {  // a token that may become a node
        double cost;
        int parent, rank;
        Counts counts;
        Token token;
        Place place;
        int depth;
    };
    struct Waiting {  // what orders those, and which one it is
        double cost;
        int parent, rank;
        std::size_t reached;

        bool operator<(const Waiting &other) const;
    };

    void chain(SuffixTree &tree, const Place &place, int matched, int nodes, const Limits &limits);
    void branches(SuffixTree &tree, const Place &place, int matched, int nodes, const Limits &limits);
    void reach(SuffixTree &tree, const Place &place, int depth, int node, double prob, const Limits &limits);

    Guess best_, last_;
    Suffixes suffixes_;
    std::vector<Follower> followers_;
    std::vector<Reached> reached_;
    std::vector<Waiting> frontier_;
};

}  // namespace foredraft::suffix
