#include "suffix_tree.hpp"

#include <algorithm>
#include <tuple>

namespace foredraft::suffix {

Place &Place::operator=(const Place &other) {
    node = other.node, size = other.size;
    if (!node) std::copy_n(other.bucket, size, bucket);
    return *this;
}

std::size_t SuffixTree::bytes() const {
    std::size_t bytes = entries_.bytes() + texts_.capacity() * sizeof(Text);
    for (const Text &text : texts_)
        bytes += text.tokens.capacity() * sizeof(Token) + text.ends.capacity() * sizeof text.ends[0];
    return bytes;
}

// ------------------------------------------------------------------------------------------------------- growing

std::uint32_t SuffixTree::insert() {
    if (free_.empty()) {
        texts_.emplace_back();
        return std::uint32_t(texts_.size() - 1);
    }
    const std::uint32_t sequence = free_.back();
    free_.pop_back();
    texts_[sequence].lives = true;
    return sequence;
}

void SuffixTree::extend(std::uint32_t sequence, const Token *tokens, std::size_t count) {
    Text &text = texts_[sequence];
    if (text.tokens.empty()) text.tokens.reserve(count);
    for (std::size_t i = 0; i < count; i++) {
        text.tokens.push_back(tokens[i]);
        const std::uint32_t length = std::uint32_t(text.tokens.size());
        before_.swap(text.ends);
        text.ends.clear();
        step(ROOT, tokens[i], {sequence, length - 1}, 1);
        for (std::uint32_t depth = 2; depth < before_.size() + 2; depth++)
            step(before_[depth - 2], tokens[i], {sequence, length - depth}, int(depth));
    }
}

// Lead an occurrence on from `node` to its last token, which is `depth` tokens into the tree.
void SuffixTree::step(std::uint32_t node, Token token, Occurrence newest, int depth) {
    std::uint32_t child = entries_.find(node, token);
    if (!child) child = entries_.add(node, token);
    if (entries_[child].node) {
        entries_[child].size++;
        if (depth < depth_) texts_[newest.text].ends.push_back(child);
    } else if (entries_[child].size < BUCKET) {
        entries_.append(child, newest);
    } else {
        burst(child, newest, depth);
    }
    std::uint32_t &likeliest = entries_[node].inner.likeliest;
    if (likeliest && entries_[child].size >= entries_[likeliest].size) likeliest = child;
}

// A full bucket and one occurrence more become a node. The string without its first token, which occurs as often at
// least, has been led on before: its node is the last of the text's ends.
void SuffixTree::burst(std::uint32_t bucket, Occurrence newest, int depth) {
    Occurrence list[BUCKET + 1];
    std::copy_n(entries_.occurrences(bucket), BUCKET, list);
    list[BUCKET] = newest;
    entries_.assign(bucket, nullptr, 0);
    Entry &own = entries_[bucket];
    own.node = 1, own.size = BUCKET + 1;
    own.inner = {ROOT, ROOT, depth > 1 ? texts_[newest.text].ends.back() : ROOT};
    if (depth == depth_) return;
    for (const Occurrence &one : list) {
        Text &text = texts_[one.text];
        if (one.start + depth == text.tokens.size()) {
            text.ends.push_back(bucket);
            continue;
        }
        const Token token = text.tokens[one.start + depth];
        const std::uint32_t known = entries_.find(bucket, token);
        entries_.append(known ? known : entries_.add(bucket, token), one);
    }
}

// ------------------------------------------------------------------------------------------------------- forgetting

void SuffixTree::remove(std::uint32_t sequence) {
    for (std::uint32_t start = 0; start < texts_[sequence].tokens.size(); start++) forget(sequence, start);
    texts_[sequence] = {{}, {}, false};
    free_.push_back(sequence);
}

// Take the strings that begin there out of all counts. What then occurs no more goes from its end on, so that nothing
// follows what is dropped.
void SuffixTree::forget(std::uint32_t sequence, std::uint32_t start) {
    const std::vector<Token> &tokens = texts_[sequence].tokens;
    const std::size_t end = std::min<std::size_t>(tokens.size(), std::size_t(start) + depth_);
    std::uint32_t node = ROOT;
    path_.clear();
    for (std::size_t at = start; at < end; at++) {
        const std::uint32_t child = entries_.find(node, tokens[at]);
        if (entries_[node].inner.likeliest == child) entries_[node].inner.likeliest = ROOT;
        path_.push_back(child);
        if (lead_out(child, {sequence, start})) break;
        node = child;
    }
    while (!path_.empty() && !entries_[path_.back()].size) {
        entries_.drop(path_.back());
        path_.pop_back();
    }
}

// Take one occurrence from an entry; true where that is a bucket, which nothing follows.
bool SuffixTree::lead_out(std::uint32_t child, Occurrence gone) {
    if (entries_[child].node) {
        entries_[child].size--;
        return false;
    }
    Occurrence rest[BUCKET];
    const Occurrence *list = entries_.occurrences(child);
    const auto same = [gone](Occurrence one) { return one.text == gone.text && one.start == gone.start; };
    const Occurrence *end = std::remove_copy_if(list, list + entries_[child].size, rest, same);
    entries_.assign(child, rest, int(end - rest));
    return true;
}

// ------------------------------------------------------------------------------------------------------- finding

Place SuffixTree::place_of(std::uint32_t entry) const {
    Place place;
    place.size = entries_[entry].size;
    if (entries_[entry].node)
        place.node = entry;
    else
        std::copy_n(entries_.occurrences(entry), place.size, place.bucket);
    return place;
}

Place SuffixTree::find(const Token *string, int length) const {
    std::uint32_t entry = ROOT;
    for (int depth = 1; depth <= length; depth++) {
        entry = entries_.find(entry, string[depth - 1]);
        if (!entry) return {};
        if (entries_[entry].node) continue;
        Place found;
        const Occurrence *list = entries_.occurrences(entry);
        for (std::uint32_t i = 0; i < entries_[entry].size; i++)
            if (reads(list[i], depth, string + depth, length - depth)) found.bucket[found.size++] = list[i];
        return found;
    }
    return place_of(entry);
}

// Whether an occurrence goes on with `string` after `begin` tokens.
bool SuffixTree::reads(Occurrence occurrence, int begin, const Token *string, int length) const {
    const std::vector<Token> &tokens = texts_[occurrence.text].tokens;
    const std::size_t at = std::size_t(occurrence.start) + begin;
    return at + length <= tokens.size() && std::equal(string, string + length, tokens.data() + at);
}

// The node of a string, or none where it has no node.
std::uint32_t SuffixTree::node_at(const Token *string, int length) const {
    std::uint32_t entry = ROOT;
    for (int i = 0; i < length; i++) {
        entry = entries_.find(entry, string[i]);
        if (!entry || !entries_[entry].node) return ROOT;
    }
    return entry;
}

// The longest of a context's suffixes that is a node, up to `limit` tokens. What a node's string ends with is a node
// too, for it occurs as often: so lengths are doubled until one is too long, then halved in between.
std::pair<std::uint32_t, int> SuffixTree::longest_node(const Token *end, int limit) const {
    std::uint32_t node = ROOT;
    int length = 0, beyond = limit + 1;
    while (beyond - length > 1) {
        const int tried = beyond > limit ? std::min(limit, 2 * length + 1) : (length + beyond) / 2;
        const std::uint32_t found = node_at(end - tried, tried);
        if (found)
            node = found, length = tried;
        else
            beyond = tried;
    }
    return {node, length};
}

void SuffixTree::suffixes(const Token *end, int length, const Text *own, Suffixes &out) const {
    const int limit = std::min(depth_ - 1, length);
    if (own) {
        out.length = int(own->ends.size());
        out.node = own->ends.empty() ? ROOT : own->ends.back();
    } else {
        std::tie(out.node, out.length) = longest_node(end, limit);
    }
    out.buckets.clear();
    for (int size = out.length + 1; size <= limit; size++) {
        const Token *string = end - size;
        const Place place = out.buckets.empty() ? find(string, size) : preceded(out.buckets.back(), *string);
        if (!place.size || rests(place, size)) break;
        out.buckets.push_back(place);
    }
}

// Whether a string of `depth` tokens occurs only at the end of a sequence.
bool SuffixTree::rests(const Place &place, int depth) const {
    const Occurrence &first = place.bucket[0];
    return !place.node && place.size == 1 && first.start + depth == texts_[first.text].tokens.size();
}

// Occurrences of the string one longer to the left, of those in a bucket.
Place SuffixTree::preceded(const Place &place, Token token) const {
    Place longer;
    for (std::uint32_t i = 0; i < place.size; i++) {
        const Occurrence one = place.bucket[i];
        if (one.start && texts_[one.text].tokens[one.start - 1] == token)
            longer.bucket[longer.size++] = {one.text, one.start - 1};
    }
    return longer;
}

// ------------------------------------------------------------------------------------------------------- following

// A bucket's occurrences by the token that follows its string of `depth` tokens, in the order they came.
struct SuffixTree::Groups {
    int count = 0;
    Token tokens[BUCKET];
    Place places[BUCKET];

    Groups(const SuffixTree &tree, const Place &place, int depth) {
        for (std::uint32_t i = 0; i < place.size; i++) {
            const Occurrence one = place.bucket[i];
            const std::vector<Token> &text = tree.texts_[one.text].tokens;
            const std::size_t at = std::size_t(one.start) + depth;
            if (at == text.size()) continue;
            int group = 0;
            while (group < count && tokens[group] != text[at]) group++;
            if (group == count) tokens[count++] = text[at];
            places[group].bucket[places[group].size++] = one;
        }
    }
};

namespace {

// The `width` largest of what is offered, earlier ones first on a tie.
struct Ranking {
    struct Ranked {
        std::uint32_t what, size;
    };
    std::size_t width;
    std::vector<Ranked> best;

    void offer(std::uint32_t what, std::uint32_t size) {
        if (best.size() == width && (!width || size <= best.back().size)) return;
        if (best.size() == width) best.pop_back();
        auto at = best.end();
        while (at != best.begin() && at[-1].size < size) --at;
        best.insert(at, {what, size});
    }
};

}  // namespace

std::uint32_t SuffixTree::likeliest(std::uint32_t node) const {
    std::uint32_t best = entries_[node].inner.newest;
    for (std::uint32_t child = best; child; child = entries_[child].older)
        if (entries_[child].size > entries_[best].size) best = child;
    return best;
}

bool SuffixTree::follower(const Place &place, int depth, Follower &out) {
    if (place.node) {
        std::uint32_t &child = entries_[place.node].inner.likeliest;
        if (!child) child = likeliest(place.node);
        if (!child) return false;
        out.token = entries_[child].token;
        out.place = place_of(child);
        return true;
    }
    const Groups groups(*this, place, depth);
    int best = groups.count - 1;
    for (int group = best - 1; group >= 0; group--)
        if (groups.places[group].size > groups.places[best].size) best = group;
    if (best < 0) return false;
    out.token = groups.tokens[best];
    out.place = groups.places[best];
    return true;
}

void SuffixTree::followers(const Place &place, int depth, int width, std::vector<Follower> &out) const {
    out.clear();
    Ranking ranking{std::size_t(width), {}};
    if (place.node) {
        for (std::uint32_t child = entries_[place.node].inner.newest; child; child = entries_[child].older)
            ranking.offer(child, entries_[child].size);
        for (const auto &ranked : ranking.best) out.push_back({entries_[ranked.what].token, place_of(ranked.what)});
        return;
    }
    const Groups groups(*this, place, depth);
    for (int group = groups.count - 1; group >= 0; group--) ranking.offer(group, groups.places[group].size);
    for (const auto &ranked : ranking.best) out.push_back({groups.tokens[ranked.what], groups.places[ranked.what]});
}

}  // namespace foredraft::suffix
