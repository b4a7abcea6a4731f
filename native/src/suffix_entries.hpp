// The strings that a suffix tree holds, each an entry of 32 bytes in one array, and a hash table of what follows what.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace foredraft::suffix {

using Token = std::int32_t;

constexpr int BUCKET = 8;          // as in suffix_tree.py
constexpr std::uint32_t ROOT = 0;  // follows nothing, so as an entry that follows another it stands for none

// Where a string begins: number and index of a text's token.
struct Occurrence {
    std::uint32_t text, start;
};

// A string: that of `parent` and one token more. A node has entries that follow it, a bucket holds its occurrences.
struct Entry {
    struct Inner {
        std::uint32_t newest;     // of those that follow
        std::uint32_t likeliest;  // as `Node.likeliest` in suffix_tree.py, which tells when it is known
        std::uint32_t suffix;     // the string without its first token, a node too
    };

    std::uint32_t parent;
    Token token;
    std::uint32_t newer, older;  // among those that follow `parent`
    std::uint32_t size : 31;     // occurrences
    std::uint32_t node : 1;
    union {
        Inner inner;          // of a node
        Occurrence only;      // of a bucket of one
        std::uint32_t block;  // of a larger one
    };
};

class Entries {
public:
    Entries();

    Entry &operator[](std::uint32_t entry) { return entries_[entry]; }
    const Entry &operator[](std::uint32_t entry) const { return entries_[entry]; }
    std::size_t count() const { return entries_.size() - 1 - spare_; }
    std::size_t bytes() const;

    // What follows `parent` with `token`, or none.
    std::uint32_t find(std::uint32_t parent, Token token) const;
    // A new one, an empty bucket; references to entries and pointers to occurrences end here.
    std::uint32_t add(std::uint32_t parent, Token token);
    // Forget one that nothing follows.
    void drop(std::uint32_t entry);

    const Occurrence *occurrences(std::uint32_t bucket) const;
    void append(std::uint32_t bucket, Occurrence occurrence);
    void assign(std::uint32_t bucket, const Occurrence *occurrences, int count);

private:
    std::size_t home(std::uint32_t parent, Token token) const;
    std::size_t home(std::uint32_t entry) const { return home(entries_[entry].parent, entries_[entry].token); }
    std::size_t next(std::size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
    void enter(std::uint32_t entry);
    void leave(std::uint32_t entry);
    void grow();
    std::uint32_t taken_block(int shape);
    void give_block(std::uint32_t block, int shape);

    std::vector<Entry> entries_;
    std::uint32_t free_ = ROOT;          // entries to use again are linked by `older`
    std::size_t spare_ = 0;              // so many
    std::vector<std::uint32_t> slots_;   // open addressing, at most half full; a power of two
    std::vector<Occurrence> blocks_;     // of 2, 4 or 8 occurrences; the first is none
    std::uint32_t free_blocks_[3] = {};  // by shape, linked by their first word
};

}  // namespace foredraft::suffix
