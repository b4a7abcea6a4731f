#include "needs.hpp"

#include <algorithm>

#include "require.hpp"

namespace foredraft {

namespace {

const int MOST_INPUTS = 16;
const std::int64_t MOST_POSITION = std::int64_t(1) << 30;  // angles are kept for positions up to the largest

void check_segment(const Segment &segment, std::int64_t slots) {
    require(segment.rows > 0 && segment.context >= 0, "segments must follow one another");
    if (!segment.list) {
        require(segment.first >= 0 && segment.first <= slots && segment.context <= slots - segment.first &&
                    segment.rows <= slots - segment.first - segment.context,
                "a run of slots is outside the cache");
        return;
    }
    for (std::int64_t i = 0; i < segment.context + segment.rows; i++)
        require(segment.list[i] >= 0 && segment.list[i] < slots, "a slot is outside the cache");
}

void check_slots(const Order &order, std::int64_t slots) {
    int next = 0;
    for (int row = 0; row < order.rows; row++)
        require(order.write[row] >= 0 && order.write[row] < slots, "a slot is outside the cache");
    for (const Segment &segment : order.segments) {
        require(segment.start == next && segment.rows <= order.rows - next, "segments must follow one another");
        check_segment(segment, slots);
        next += segment.rows;
    }
    require(next == order.rows, "segments must cover all rows");
}

}  // namespace

bool runs(int section, const std::vector<int> &skipped) {
    return skipped.empty() || std::find(skipped.begin(), skipped.end(), section) == skipped.end();
}

void Needs::input(int index, int width) {
    require(index >= 0 && index < MOST_INPUTS, "an input's index must be from 0 to ", MOST_INPUTS - 1);
    inputs_.push_back({section_, {index, width}});
}

void Needs::feature(int boundary, int width) {
    require(features_.emplace(boundary, width).second, "feature ", boundary, " is kept already");
}

int Needs::width_of(int boundary) const {
    const auto found = features_.find(boundary);
    return found == features_.end() ? -1 : found->second;
}

Demands Needs::demands(const std::vector<int> &skipped) const {
    Demands found;
    for (const auto &[section, input] : inputs_) {
        if (!runs(section, skipped)) continue;
        if (int(found.inputs.size()) <= input.index) found.inputs.resize(input.index + 1, 0);
        int &width = found.inputs[input.index];
        require(!width || width == input.width, "an input is read in two widths at once");
        width = input.width;
    }
    for (const auto &[section, width] : logits_)
        if (runs(section, skipped)) found.logits = std::max(found.logits, width);
    for (const auto &[section, width] : outputs_) {
        if (!runs(section, skipped)) continue;
        require(!found.output || found.output == width, "an output is written in two widths at once");
        found.output = width;
    }
    return found;
}

void Needs::check(const Order &order) const {
    check_rows(order);
    if (const std::int64_t slots = slots_of(order); slots >= 0) check_slots(order, slots);
}

void Needs::check_rows(const Order &order) const {
    for (int row = 0; row < order.rows; row++)
        require(order.positions[row] >= 0 && order.positions[row] < MOST_POSITION,
                "a position is negative or beyond all texts");
    for (int i = 0; i < order.wanted; i++)
        require(order.wanted_rows[i] >= 0 && order.wanted_rows[i] < order.rows, "a wanted row is not in the pack");
    for (const auto &[section, tokens] : tables_)
        for (int row = 0; row < order.rows && runs(section, order.skipped); row++)
            require(order.tokens[row] >= 0 && order.tokens[row] < tokens, "a token is outside the embedding");
}

// Slots of the cache's layers that a run reads, -1 where it reads none.
std::int64_t Needs::slots_of(const Order &order) const {
    std::int64_t slots = -1;
    for (const auto &[section, attending] : layers_) {
        if (!runs(section, order.skipped)) continue;
        const int number = attending.layer;
        require(order.cache && number >= 0 && number < int(order.cache->layers.size()), "the cache lacks a layer");
        const auto &layer = order.cache->layers[number];
        require(layer.heads == attending.kv_heads && layer.key_size == attending.size &&
                    layer.value_size == attending.size && layer.narrow == narrow_,
                "a cache layer has another shape");
        require(slots < 0 || slots == layer.slots, "the cache's layers have different numbers of slots");
        slots = layer.slots;
    }
    return slots;
}

}  // namespace foredraft
