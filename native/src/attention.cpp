#include <algorithm>
#include <cstdint>

#include "run.hpp"

namespace foredraft {

namespace {

// Sixteen queries of one group of heads: rows of a segment, each with the heads that share a key head.
struct Tile {
    const Segment *segment;
    int group, first, lanes;
};

int tiles_of(const Segment &segment, int repeat) { return (segment.rows * repeat + LANES - 1) / LANES; }

Tile tile_at(const Order &order, int number, int groups, int repeat) {
    for (const Segment &segment : order.segments) {
        const int tiles = tiles_of(segment, repeat);
        if (number < tiles * groups) {
            const int first = number / groups * LANES;
            return {&segment, number % groups, first, std::min(LANES, segment.rows * repeat - first)};
        }
        number -= tiles * groups;
    }
    return {nullptr, 0, 0, 0};
}

// Which keys the lanes of a tile see, and where those keys begin and end.
struct Seen {
    std::int64_t from[LANES] = {};
    std::int64_t start = 0, stop = 0;
    Sight sight{};
};

// Whether a row sees another one of its segment.
bool sees(const Segment &segment, int row, int other, const std::int64_t *positions, int window) {
    const bool there = segment.ancestors ? segment.ancestors[std::size_t(row) * segment.rows + other] : other <= row;
    return there && (window == 0 || positions[row] - positions[other] < window);
}

// Lanes of causal rows: a key is seen by all lanes from its own row on.
void look_back(const Tile &tile, int repeat, std::uint16_t *own, int rows) {
    const unsigned all = (1u << tile.lanes) - 1;
    for (int other = 0; other < rows; other++) {
        const int before = std::clamp(other * repeat - tile.first, 0, LANES);
        own[other] = std::uint16_t(all & ~((1u << before) - 1));
    }
}

void look_around(const Tile &tile, int repeat, const std::int64_t *positions, int window, std::uint16_t *own,
                 int rows) {
    std::fill(own, own + rows, 0);
    for (int lane = 0; lane < tile.lanes; lane++)
        for (int other = 0; other < rows; other++)
            if (sees(*tile.segment, (tile.first + lane) / repeat, other, positions, window))
                own[other] |= std::uint16_t(1u << lane);
}

void look(const Tile &tile, int repeat, const std::int64_t *positions, int window, std::uint16_t *own, Seen &seen) {
    const Segment &segment = *tile.segment;
    const int last_row = (tile.first + tile.lanes - 1) / repeat;
    int rows = segment.ancestors ? segment.rows : last_row + 1;
    if (!segment.ancestors && !window) look_back(tile, repeat, own, rows);
    else look_around(tile, repeat, positions, window, own, rows);
    while (rows > 0 && own[rows - 1] == 0) rows--;
    seen.start = window ? segment.context : 0;
    for (int lane = 0; lane < tile.lanes && window; lane++) {
        // The context's keys stand right before the segment's first row.
        const std::int64_t here = segment.context + positions[(tile.first + lane) / repeat] - positions[0];
        seen.from[lane] = std::clamp<std::int64_t>(here - window + 1, 0, segment.context);
        seen.start = std::min(seen.start, seen.from[lane]);
    }
    seen.stop = segment.context + rows;
    seen.sight = {segment.context, seen.from, *std::max_element(seen.from, seen.from + LANES), own};
}

template <class T> SlotRows<T> slot_rows(const Segment &segment, const void *base, int heads, int size, int group) {
    return {static_cast<const T *>(base) + group * size, std::ptrdiff_t(heads) * size, segment.first, segment.list};
}

// A thread's scratch for one tile: packed queries, who sees the segment's own rows, scores.
const std::size_t QUERY_BYTES = MOST_HEAD * LANES * sizeof(float);

std::size_t own_bytes(const Segment &segment) {
    return (segment.rows * sizeof(std::uint16_t) + LINE - 1) / LINE * LINE;
}

template <class T>
void attend_tile(Run<T> &run, const Tile &tile, View dst, View src, const Attending &a, char *scratch) {
    const int repeat = a.heads / a.kv_heads, start = tile.segment->start;
    const auto &layer = run.order.cache->layers[a.layer];
    T *packed = reinterpret_cast<T *>(scratch);
    auto *own = reinterpret_cast<std::uint16_t *>(scratch + QUERY_BYTES);
    float *scores = reinterpret_cast<float *>(scratch + QUERY_BYTES + own_bytes(*tile.segment));
    T *out[LANES];
    alignas(64) float sums[LANES];
    Seen seen;
    look(tile, repeat, run.order.positions + start, a.window, own, seen);
    for (int lane = 0; lane < tile.lanes; lane++) {
        const int row = start + (tile.first + lane) / repeat, head = tile.group * repeat + (tile.first + lane) % repeat;
        pack_query(run.row(src, row) + head * a.size, lane, a.size, packed);
        out[lane] = run.row(dst, row) + head * a.size;
    }
    const std::int64_t count = seen.stop - seen.start;
    const auto keys = slot_rows<T>(*tile.segment, layer.keys, a.kv_heads, a.size, tile.group);
    const auto values = slot_rows<T>(*tile.segment, layer.values, a.kv_heads, a.size, tile.group);
    run.kernels.scores(keys, seen.start, count, a.size, packed, scores);
    run.kernels.weights(scores, seen.start, count, a.scale, a.softcap, seen.sight, sums);
    run.kernels.mix(scores, seen.start, count, values, a.size, tile.lanes, sums, out);
}

}  // namespace

std::size_t attention_scratch(const Order &order) {
    std::size_t most = 0;
    for (const Segment &segment : order.segments) {
        const std::size_t keys = std::size_t(segment.context + segment.rows);
        most = std::max(most, QUERY_BYTES + own_bytes(segment) + keys * LANES * sizeof(float));
    }
    return most;
}

template <class T>
Heads<T>::Heads(View src, bool queries, const Attending &attending, const HeadNorm &norm)
    : src(src), attending(attending), queries_(queries), norm_(norm), query_norm_(in_type<T>(norm.query)),
      key_norm_(in_type<T>(norm.key)) {}

template <class T> void Heads<T>::place(Run<T> &run, int row, int group, int stop) const {
    const Attending &a = attending;
    const auto &layer = run.order.cache->layers[a.layer];
    const int repeat = a.heads / a.kv_heads, width = a.kv_heads * a.size, count = (stop - group) * a.size;
    T *queries = run.row(src, row), *keys = queries + (queries_ ? a.heads * a.size : 0) + group * a.size;
    if (queries_) ready(run, row, queries + group * repeat * a.size, (stop - group) * repeat, query_norm_, norm_.query);
    ready(run, row, keys, stop - group, key_norm_, norm_.key);
    const std::ptrdiff_t at = run.order.write[row] * std::ptrdiff_t(width) + group * a.size;
    std::copy_n(keys, count, static_cast<T *>(layer.keys) + at);
    std::copy_n(keys + width, count, static_cast<T *>(layer.values) + at);
}

template <class T>
void Heads<T>::ready(Run<T> &run, int row, T *heads, int count, const std::vector<T> &narrowed,
                     const std::vector<float> &weight) const {
    const Angles *angles = attending.rotary >= 0 ? &run.angles[attending.rotary] : nullptr;
    for (T *head = heads; head < heads + count * attending.size; head += attending.size) {
        if (!narrowed.empty())
            run.kernels.norm(head, narrowed.data(), norm_.wide ? weight.data() : nullptr, attending.size, norm_.eps,
                             head);
        if (angles) run.kernels.rotate(head, angles->rows[row], angles->rows[row] + angles->size / 2, angles->size);
    }
}

template <class T> void attend_rows(Crew &crew, Run<T> &run, View dst, const Heads<T> &heads) {
    const Attending &a = heads.attending;
    const auto &segments = run.order.segments;
    const int repeat = a.heads / a.kv_heads, rows = run.order.rows;
    // A request alone, each of whose key heads is one tile's: who attends by it places it before, and nobody waits.
    const bool alone = segments.size() == 1 && tiles_of(segments[0], repeat) == 1;
    if (!alone) share_rows(crew, rows, heads.src.width, [&](int row) { heads.place(run, row, 0, a.kv_heads); });
    int tiles = 0;
    for (const Segment &segment : segments) tiles += tiles_of(segment, repeat);
    crew.share(tiles * a.kv_heads, [&](int number) {
        const Tile tile = tile_at(run.order, number, a.kv_heads, repeat);
        for (int row = 0; row < rows && alone; row++) heads.place(run, row, tile.group, tile.group + 1);
        attend_tile(run, tile, dst, heads.src, a, run.scratch[crew.number()].template as<char>());
    });
    run.kernels.rest();
}

template class Heads<bf16>;
template class Heads<float>;
template void attend_rows(Crew &, Run<bf16> &, View, const Heads<bf16> &);
template void attend_rows(Crew &, Run<float> &, View, const Heads<float> &);

}  // namespace foredraft
