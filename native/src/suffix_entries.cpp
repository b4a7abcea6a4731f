#include "suffix_entries.hpp"

#include <algorithm>

namespace foredraft::suffix {

namespace {

constexpr std::size_t FIRST_SLOTS = 64;

// Blocks come in three shapes; -1 where a bucket needs none.
int shape_of(int count) { return count < 2 ? -1 : count <= 2 ? 0 : count <= 4 ? 1 : 2; }

int room_of(int shape) { return 2 << shape; }

}  // namespace

Entries::Entries() : slots_(FIRST_SLOTS), blocks_(1) {
    Entry root{};
    root.node = 1;
    root.inner = {};
    entries_.push_back(root);
}

std::size_t Entries::bytes() const {
    return entries_.capacity() * sizeof(Entry) + slots_.capacity() * sizeof slots_[0] +
           blocks_.capacity() * sizeof(Occurrence);
}

// ------------------------------------------------------------------------------------------------------- the table

std::size_t Entries::home(std::uint32_t parent, Token token) const {
    std::uint64_t key = std::uint64_t(parent) << 32 | std::uint32_t(token);
    key = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
    key = (key ^ key >> 29) * 0xBF58476D1CE4E5B9u;
    return std::size_t(key >> 32) & (slots_.size() - 1);
}

std::uint32_t Entries::find(std::uint32_t parent, Token token) const {
    for (std::size_t slot = home(parent, token); slots_[slot]; slot = next(slot)) {
        const Entry &entry = entries_[slots_[slot]];
        if (entry.parent == parent && entry.token == token) return slots_[slot];
    }
    return ROOT;
}

void Entries::enter(std::uint32_t entry) {
    std::size_t slot = home(entry);
    while (slots_[slot]) slot = next(slot);
    slots_[slot] = entry;
}

// What lies behind the hole moves up, so that no search ends there too early.
void Entries::leave(std::uint32_t entry) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t hole = home(entry);
    while (slots_[hole] != entry) hole = next(hole);
    for (std::size_t slot = next(hole); slots_[slot]; slot = next(slot)) {
        const std::size_t way = (slot - home(slots_[slot])) & mask;
        if (way < ((slot - hole) & mask)) continue;
        slots_[hole] = slots_[slot];
        hole = slot;
    }
    slots_[hole] = ROOT;
}

void Entries::grow() {
    std::vector<std::uint32_t> old(2 * slots_.size());
    old.swap(slots_);
    for (std::uint32_t entry : old)
        if (entry) enter(entry);
}

// ------------------------------------------------------------------------------------------------------- entries

std::uint32_t Entries::add(std::uint32_t parent, Token token) {
    if (2 * (count() + 1) > slots_.size()) grow();
    std::uint32_t entry = free_;
    if (entry) {
        free_ = entries_[entry].older;
        spare_--;
    } else {
        entry = std::uint32_t(entries_.size());
        entries_.emplace_back();
    }
    Entry &own = entries_[entry];
    std::uint32_t &newest = entries_[parent].inner.newest;
    own.parent = parent, own.token = token, own.size = 0, own.node = 0;
    own.newer = ROOT, own.older = newest;
    if (newest) entries_[newest].newer = entry;
    newest = entry;
    enter(entry);
    return entry;
}

void Entries::drop(std::uint32_t entry) {
    leave(entry);
    Entry &own = entries_[entry];
    if (!own.node) assign(entry, nullptr, 0);
    (own.newer ? entries_[own.newer].older : entries_[own.parent].inner.newest) = own.older;
    if (own.older) entries_[own.older].newer = own.newer;
    own.older = free_;
    free_ = entry;
    spare_++;
}

// ------------------------------------------------------------------------------------------------------- buckets

const Occurrence *Entries::occurrences(std::uint32_t bucket) const {
    const Entry &own = entries_[bucket];
    return own.size == 1 ? &own.only : &blocks_[own.block];
}

void Entries::append(std::uint32_t bucket, Occurrence occurrence) {
    Occurrence list[BUCKET];
    const int count = int(entries_[bucket].size);
    if (count) std::copy_n(occurrences(bucket), count, list);
    list[count] = occurrence;
    assign(bucket, list, count + 1);
}

void Entries::assign(std::uint32_t bucket, const Occurrence *occurrences, int count) {
    Entry &own = entries_[bucket];
    const int before = shape_of(int(own.size)), after = shape_of(count);
    if (before != after && before >= 0) give_block(own.block, before);
    if (before != after && after >= 0) own.block = taken_block(after);
    own.size = std::uint32_t(count);
    if (count == 1)
        own.only = *occurrences;
    else
        std::copy_n(occurrences, count, blocks_.begin() + (count ? own.block : 0));
}

std::uint32_t Entries::taken_block(int shape) {
    std::uint32_t block = free_blocks_[shape];
    if (block) {
        free_blocks_[shape] = blocks_[block].text;
    } else {
        block = std::uint32_t(blocks_.size());
        blocks_.resize(blocks_.size() + room_of(shape));
    }
    return block;
}

void Entries::give_block(std::uint32_t block, int shape) {
    blocks_[block].text = free_blocks_[shape];
    free_blocks_[shape] = block;
}

}  // namespace foredraft::suffix
