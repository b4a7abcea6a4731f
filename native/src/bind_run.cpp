// Runs as Python orders them: over which cache, which rows, and where the results go. The interpreter lock is released
// while a program runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "draft_loop.hpp"
#include "py_program.hpp"
#include "require.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace foredraft {

namespace {

using Tensors = std::vector<Tensor>;
using Numbers = std::vector<std::int64_t>;
using Mask = std::vector<std::uint8_t>;

void make_cache(PyCache *self, const Tensors &keys, const Tensors &values) {
    require(keys.size() == values.size(), "a cache needs as many keys as values");
    PyCache made;
    for (std::size_t i = 0; i < keys.size(); i++) {
        const Tensor &key = keys[i], &value = values[i];
        require_weight(key, 3, "keys");
        require_weight(value, 3, "values");
        require(is_narrow(key) == is_narrow(value) && key.shape(0) == value.shape(0) && key.shape(1) == value.shape(1),
                "keys and values of a layer must have as many slots and heads, and one type");
        made.cache.layers.push_back({key.data(), value.data(), int(key.shape(1)), int(key.shape(2)),
                                     int(value.shape(2)), std::int64_t(key.shape(0)), is_narrow(key)});
        made.tensors.insert(made.tensors.end(), {key, value});
    }
    new (self) PyCache(std::move(made));
}

const Cache *cache_of(const PyCache *cache) { return cache ? &cache->cache : nullptr; }

// ------------------------------------------------------------------------------------------------------- orders

// The slots of so many keys where they are listed; null for None, where they run from slot `first`.
const std::int64_t *slots_of(nb::handle slots, std::int64_t first, std::int64_t context, std::int64_t more,
                             Tensors &alive) {
    require(context >= 0 && context <= INT64_MAX - more, "a context is negative or too long");
    require(!slots.is_none() || first >= 0, "keys need the first of their slots, or a list of them");
    if (slots.is_none()) return nullptr;
    alive.push_back(nb::cast<Tensor>(slots));
    return indices(alive.back(), std::size_t(context + more), "slots");
}

// What the segments of an order read while it runs.
struct Alive {
    Tensors tensors;
    std::vector<Mask> masks;

    explicit Alive(std::size_t segments) {
        tensors.reserve(2 * segments);
        masks.reserve(segments);
    }
};

// Which of a segment's rows each one sees: a pending row those before it, and a node behind them what its parent sees,
// which is the last pending row where it is -1.
Mask mask_of(const std::vector<int> &parents, int rows) {
    const int pending = rows - int(parents.size());
    require(pending > 0, "a segment has a row that is no node");
    Mask mask(std::size_t(rows) * rows);
    const auto seen_by = [&](int row) { return mask.begin() + std::ptrdiff_t(row) * rows; };
    for (int row = 0; row < pending; row++) std::fill_n(seen_by(row), row + 1, 1);
    for (int node = 0; node < rows - pending; node++) {
        require(-1 <= parents[node] && parents[node] < node, "a node comes behind its parent");
        std::copy_n(seen_by(pending + parents[node]), rows, seen_by(pending + node));
        seen_by(pending + node)[pending + node] = 1;
    }
    return mask;
}

const std::uint8_t *ancestors_of(nb::handle ancestors, int rows, Alive &alive) {
    if (ancestors.is_none()) return nullptr;
    if (nb::isinstance<nb::list>(ancestors)) {
        alive.masks.push_back(mask_of(nb::cast<std::vector<int>>(ancestors), rows));
        return alive.masks.back().data();
    }
    alive.tensors.push_back(nb::cast<Tensor>(ancestors));
    const Tensor &mask = alive.tensors.back();
    require(mask.dtype() == nb::dtype<bool>() && mask.contiguous(), "ancestors must be bool, contiguous");
    require_rows(mask, std::size_t(rows), std::size_t(rows), "ancestors");
    return reinterpret_cast<const std::uint8_t *>(mask.data());
}

// (start, rows, context, first slot or -1, slots or None, ancestors or the parents of its last rows or None)
Segment segment_of(nb::handle entry, Alive &alive) {
    const nb::tuple parts = nb::cast<nb::tuple>(entry);
    require(parts.size() == 6, "a segment is start, rows, context, first slot, slots and ancestors");
    const int start = nb::cast<int>(parts[0]), rows = nb::cast<int>(parts[1]);
    const std::int64_t context = nb::cast<std::int64_t>(parts[2]), first = nb::cast<std::int64_t>(parts[3]);
    require(rows > 0, "a segment has rows");
    const std::int64_t *slots = slots_of(parts[4], first, context, rows, alive.tensors);
    return {start, rows, context, first, slots, ancestors_of(parts[5], rows, alive)};
}

void keep_features(const Program &program, const std::vector<int> &features, const Tensors &outs, Order &order) {
    require(features.size() == outs.size(), "there must be an output for each feature");
    for (std::size_t i = 0; i < features.size(); i++) {
        const int width = program.width_of(features[i]);
        require(width > 0, "the program keeps no feature ", features[i]);
        require_rows(outs[i], std::size_t(order.rows), std::size_t(width), "a feature's output");
        order.kept.push_back({features[i], numbers(outs[i], program.narrow(), "a feature's output")});
    }
}

void read_inputs(const Program &program, const Demands &demands, const Tensors &inputs, Order &order) {
    require(inputs.size() >= demands.inputs.size(), "the program reads ", demands.inputs.size(), " inputs");
    for (std::size_t i = 0; i < demands.inputs.size(); i++) {
        if (demands.inputs[i])
            require_rows(inputs[i], std::size_t(order.rows), std::size_t(demands.inputs[i]), "an input");
        order.inputs.push_back(numbers(inputs[i], program.narrow(), "an input"));
    }
}

// Where `name` of the wanted rows goes; null where the program gives none.
void *wanted_in(const std::optional<Tensor> &out, const Program &program, const Order &order, int width,
                const char *name) {
    if (!width || !order.wanted) return nullptr;
    require(out.has_value(), "the program gives ", name, ": pass a tensor for it");
    require_rows(*out, std::size_t(order.wanted), std::size_t(width), name);
    return numbers(*out, program.narrow(), name);
}

// What (divisors or None, keys or None) asks for, and the tokens that came of it.
struct AskedTokens {
    std::vector<float> divisors;
    Numbers keys, tokens;

    AskedTokens(nb::handle asked, const Order &order) : tokens(order.wanted) {
        const nb::tuple parts = nb::cast<nb::tuple>(asked);
        require(parts.size() == 2, "a choice is divisors and keys");
        if (!parts[0].is_none()) divisors = nb::cast<std::vector<float>>(parts[0]);
        if (!parts[1].is_none()) keys = nb::cast<Numbers>(parts[1]);
        require(divisors.empty() || divisors.size() == tokens.size(), "every wanted row needs a divisor");
        require(keys.empty() || keys.size() == tokens.size(), "every wanted row needs a key");
        require(divisors.empty() || !keys.empty(), "divisors are for rows with keys");
        for (float divisor : divisors) require(divisor > 0, "divisors must be above 0");
    }

    TokenChoice choice() {
        return {tokens.data(), divisors.empty() ? nullptr : divisors.data(), keys.empty() ? nullptr : keys.data()};
    }
};

// The tokens of the wanted rows where a `choice` is asked for; then logits leave only where there is a tensor for them.
std::optional<Numbers> run(PyProgram &self, const PyCache *cache, const Numbers &tokens, const Numbers &positions,
                           const Numbers &write, const nb::list &segments, const Numbers &logit_rows,
                           const std::vector<int> &features, const Tensors &feature_outs,
                           const std::optional<Tensor> &logits, const Tensors &inputs,
                           const std::optional<Tensor> &output, const std::vector<int> &skip, nb::handle choice) {
    Program &program = *self.program;
    Order order{};
    Alive alive(segments.size());
    require(positions.size() == tokens.size() && write.size() == tokens.size(),
            "there must be a position and a slot for each token");
    order.cache = cache_of(cache);
    order.rows = int(tokens.size());
    order.tokens = tokens.data();
    order.positions = positions.data();
    order.write = write.data();
    order.wanted = int(logit_rows.size());
    order.wanted_rows = logit_rows.data();
    for (nb::handle entry : segments) order.segments.push_back(segment_of(entry, alive));
    order.skipped = skip;
    const Demands demands = program.demands(skip);
    keep_features(program, features, feature_outs, order);
    read_inputs(program, demands, inputs, order);
    std::optional<AskedTokens> asked;
    if (!choice.is_none()) {
        require(demands.logits > 0, "tokens are chosen from logits: the program gives none");
        order.choice = asked.emplace(choice, order).choice();
    }
    if (!asked || logits) order.logits = wanted_in(logits, program, order, demands.logits, "logits");
    order.logits_width = demands.logits;
    order.output = wanted_in(output, program, order, demands.output, "the output");
    {
        const nb::gil_scoped_release free_lock;
        program.run(order);
    }
    return asked ? std::optional(std::move(asked->tokens)) : std::nullopt;
}

// ------------------------------------------------------------------------------------------------------- drafts

// (longest path, rows of a level, nodes kept, context, first slot or -1, slots of context and pending tokens or None,
// pending tokens, slots for drafted rows, divisor, keys of the noise, least log-chance, candour, cost of a row and of
// a run, chance of another token, what chains pay together or nothing)
Draft draft_of(nb::handle entry, Tensors &alive) {
    const nb::tuple parts = nb::cast<nb::tuple>(entry);
    require(parts.size() == 16, "a draft is depth, width, nodes, context, first slot, slots, pending tokens, slots for "
                                "drafted rows, divisor, keys, least log-chance, candour, the costs of a row and a run and "
                                "the chance of another token and what chains pay together");
    Draft draft{};
    draft.depth = nb::cast<int>(parts[0]);
    draft.width = nb::cast<int>(parts[1]);
    draft.most = nb::cast<int>(parts[2]);
    draft.context = nb::cast<std::int64_t>(parts[3]);
    draft.first = nb::cast<std::int64_t>(parts[4]);
    draft.pending = nb::cast<Numbers>(parts[6]);
    draft.room = nb::cast<Numbers>(parts[7]);
    draft.divisor = nb::cast<float>(parts[8]);
    draft.keys = nb::cast<Numbers>(parts[9]);
    draft.least = nb::cast<double>(parts[10]);
    draft.candour = nb::cast<double>(parts[11]);
    draft.row = nb::cast<double>(parts[12]);
    draft.run = nb::cast<double>(parts[13]);
    draft.onward = nb::cast<double>(parts[14]);
    draft.together = {nb::cast<std::vector<double>>(parts[15]), draft.run};
    draft.list = slots_of(parts[5], draft.first, draft.context, std::int64_t(draft.pending.size()), alive);
    return draft;
}

// The features of all pending rows, as wide as the program reads them; null where it reads none.
const void *features_of(const std::optional<Tensor> &features, const Program &program, const DraftOrder &order,
                        const std::vector<Draft> &drafts) {
    const Demands demands = program.demands(order.first_skipped);
    if (demands.inputs.empty()) return nullptr;
    require(features.has_value(), "the program reads features: pass a tensor of them");
    std::size_t rows = 0;
    for (const Draft &draft : drafts) rows += draft.pending.size();
    require_rows(*features, rows, std::size_t(demands.inputs[0]), "features");
    return numbers(*features, program.narrow(), "features");
}

// (tokens, parents among them or -1, log-chances, places of their slots in the room or -1) of the nodes kept
nb::tuple told(const Draft &draft) {
    Numbers tokens;
    std::vector<int> parents, places, now(draft.nodes.size());
    std::vector<double> gains;
    for (int node : draft.kept()) {
        const Drafted &own = draft.nodes[node];
        now[node] = int(tokens.size());
        tokens.push_back(own.token);
        parents.push_back(own.parent == NO_PARENT ? NO_PARENT : now[own.parent]);
        gains.push_back(own.gain);
        places.push_back(own.place);
    }
    return nb::make_tuple(tokens, parents, gains, places);
}

nb::list run_all(PyProgram &self, const PyCache *cache, const nb::list &entries, const std::optional<Tensor> &features,
                 const std::optional<Tensor> &ids, int width, const std::vector<int> &first_skip,
                 const std::vector<int> &skip) {
    Program &program = *self.program;
    Tensors alive;
    alive.reserve(entries.size());
    std::vector<Draft> drafts;
    for (nb::handle entry : entries) drafts.push_back(draft_of(entry, alive));
    DraftOrder order{};
    order.cache = cache_of(cache);
    order.width = width;
    order.first_skipped = first_skip;
    order.skipped = skip;
    order.features = features_of(features, program, order, drafts);
    if (ids) order.ids = indices(*ids, std::size_t(program.demands(skip).logits), "ids");
    {
        const nb::gil_scoped_release free_lock;
        run_drafts(program, order, drafts);
    }
    nb::list all;
    for (const Draft &draft : drafts) all.append(told(draft));
    return all;
}

}  // namespace

void bind_run(nb::module_ &m, nb::class_<PyProgram> &program) {
    nb::class_<PyCache>(m, "Cache", "Keys and values of each layer, [slots, heads, size], kept by reference.")
        .def("__init__", &make_cache, "keys"_a, "values"_a);
    program.def("run", &run, "cache"_a.none(), "tokens"_a, "positions"_a, "write"_a, "segments"_a, "logit_rows"_a,
                "features"_a = std::vector<int>(), "feature_outs"_a = nb::tuple(), "logits"_a = nb::none(),
                "inputs"_a = nb::tuple(), "output"_a = nb::none(), "skip"_a = std::vector<int>(),
                "choice"_a = nb::none());
    m.def("draft", &run_all, "program"_a, "cache"_a.none(), "drafts"_a, "features"_a.none(), "ids"_a.none(), "width"_a,
          "first_skip"_a = std::vector<int>(), "skip"_a = std::vector<int>(),
          "Run the pending rows of each draft and grow it behind them: tokens, parents, log-chances and slots.");
}

}  // namespace foredraft
