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

template <class T> void attend_rows(Crew &crew, Run<T> &run, View dst, View src, const Attending &attending) {
    const int repeat = attending.heads / attending.kv_heads;
    int tiles = 0;
    for (const Segment &segment : run.order.segments) tiles += tiles_of(segment, repeat);
    crew.share(tiles * attending.kv_heads, [&](int number) {
        const Tile tile = tile_at(run.order, number, attending.kv_heads, repeat);
        attend_tile(run, tile, dst, src, attending, run.scratch[crew.number()].template as<char>());
    });
}

template <class T>
static void ready_heads(Run<T> &run, T *heads, int count, int size, const std::vector<T> &weight,
                        const std::vector<float> &wide_weight, const HeadNorm &norm, const float *angles, int turned) {
    for (int head = 0; head < count; head++, heads += size) {
        if (!weight.empty())
            run.kernels.norm(heads, weight.data(), norm.wide ? wide_weight.data() : nullptr, size, norm.eps, heads);
        if (angles) run.kernels.rotate(heads, angles, angles + turned / 2, turned);
    }
}

template <class T> void place_rows(Crew &crew, Run<T> &run, View src, bool queries, const Attending &a,
                                   const std::vector<T> &query_norm, const std::vector<T> &key_norm,
                                   const HeadNorm &norm) {
    const auto &layer = run.order.cache->layers[a.layer];
    const int before = queries ? a.heads * a.size : 0, width = a.kv_heads * a.size;
    share_rows(crew, run.order.rows, before + 2 * width, [&](int row) {
        const float *angles = a.rotary >= 0 ? run.angles[a.rotary].rows[row] : nullptr;
        const int turned = a.rotary >= 0 ? run.angles[a.rotary].size : 0;
        T *heads = run.row(src, row);
        if (queries) ready_heads(run, heads, a.heads, a.size, query_norm, norm.query, norm, angles, turned);
        ready_heads(run, heads + before, a.kv_heads, a.size, key_norm, norm.key, norm, angles, turned);
        const std::int64_t slot = run.order.write[row];
        std::copy_n(heads + before, width, static_cast<T *>(layer.keys) + slot * width);
        std::copy_n(heads + before + width, width, static_cast<T *>(layer.values) + slot * width);
    });
}

template void attend_rows(Crew &, Run<bf16> &, View, View, const Attending &);
template void attend_rows(Crew &, Run<float> &, View, View, const Attending &);
template void place_rows(Crew &, Run<bf16> &, View, bool, const Attending &, const std::vector<bf16> &,
                         const std::vector<bf16> &, const HeadNorm &);
template void place_rows(Crew &, Run<float> &, View, bool, const Attending &, const std::vector<float> &,
                         const std::vector<float> &, const HeadNorm &);

}  // namespace foredraft
