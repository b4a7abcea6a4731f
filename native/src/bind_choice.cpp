// The functions of choice.hpp for Python: tensors in, lists out, since a few tokens leave fastest as a list.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.hpp"
#include "choice.hpp"
#include "require.hpp"
#include "tensor.hpp"

namespace nb = nanobind;

namespace foredraft {

namespace {

// A tensor of one or two dimensions whose last one lies side by side.
struct Table {
    Tensor tensor;
    std::int64_t rows, width, stride;  // one row where it has one dimension; the stride in bytes

    char *row(std::int64_t index) const { return tensor.data() + index * stride; }
};

Table look_at(nb::handle object, int dimensions, bool written = false) {
    Tensor tensor;
    if (!tensor.read(object, written)) throw nb::type_error("a tensor or an array on the CPU is needed");
    require(int(tensor.ndim()) == dimensions, dimensions == 1 ? "a tensor must be [N]" : "a tensor must be [R, V]");
    const int last = dimensions - 1, bytes = tensor.dtype().bits / 8;
    const std::int64_t width = tensor.shape(last);
    require(width < 2 || tensor.stride(last) == 1, "the numbers of a row must lie side by side");
    const std::int64_t rows = dimensions == 1 ? 1 : tensor.shape(0);
    return {tensor, rows, width, (dimensions == 1 ? width : tensor.stride(0)) * bytes};
}

Table look_at(nb::handle object, int dimensions, Tensor::Type dtype, const char *message, bool written = false) {
    const Table view = look_at(object, dimensions, written);
    require(view.tensor.dtype() == dtype, message);
    return view;
}

// ------------------------------------------------------------------------------------------------------- logits

// Rows of one tensor [R, V] or of several, one after another.
struct Logits {
    std::vector<Table> parts;
    std::vector<LogitRow> rows;
    std::int64_t width = 0;

    void add(nb::handle tensor) {
        const Table part = look_at(tensor, 2);
        require(part.tensor.dtype() == BF16 || part.tensor.dtype() == FP32, "logits must be bfloat16 or float32");
        require(part.width > 0 && part.width < std::int64_t(1) << 32, "logits have no columns, or too many");
        require(parts.empty() || part.width == width, "logits must all have one width");
        width = part.width;
        for (std::int64_t i = 0; i < part.rows; i++) rows.push_back({part.row(i), width, part.tensor.dtype() == BF16});
        parts.push_back(part);
    }

    explicit Logits(nb::handle logits) {
        if (nb::isinstance<nb::list>(logits) || nb::isinstance<nb::tuple>(logits))
            for (nb::handle tensor : nb::borrow<nb::sequence>(logits)) add(tensor);
        else
            add(logits);
    }
};

const ChoiceKernels &kernels_called(const std::string &name) {
    const ChoiceKernels *found = find_choice_kernels(name);
    require(found, "kernels '", name, "' do not exist or cannot run here");
    return *found;
}

const std::int64_t LONG = 1 << 20;  // numbers; work on fewer is over before another Python thread could do anything

// `work(row)` for each row, without Python's lock where it takes long.
template <class Work> void for_rows(std::int64_t rows, std::int64_t width, int threads, const Work &work) {
    std::optional<nb::gil_scoped_release> released;
    if (rows * width >= LONG) released.emplace();
    if (threads < 2) {
        for (std::int64_t row = 0; row < rows; row++) work(row);
        return;
    }
    spread(rows, threads, [&work](std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first; row < last; row++) work(row);
    });
}

// ------------------------------------------------------------------------------------------------------- functions

// The numbers of a list, one for each row; none for None.
template <class T> std::vector<T> listed(nb::handle numbers, std::size_t rows, const char *message) {
    std::vector<T> list;
    if (numbers.is_none()) return list;
    if (!nb::try_cast(numbers, list)) throw nb::type_error("divisors and keys must be lists of numbers");
    require(list.size() == rows, message);
    return list;
}

std::vector<std::int64_t> choose(nb::handle tensors, nb::handle divisors, nb::handle keys, int threads,
                                 const std::string &name) {
    const Logits logits(tensors);
    const std::size_t rows = logits.rows.size();
    const auto over = listed<double>(divisors, rows, "every row needs a divisor");
    const auto under = listed<std::int64_t>(keys, rows, "every row needs a key");
    require(divisors.is_none() || !keys.is_none(), "divisors are for rows with keys");
    for (double divisor : over) require(float(divisor) > 0, "divisors must be above 0");
    const ChoiceKernels &kernels = kernels_called(name);
    std::vector<std::int64_t> tokens(rows);
    for_rows(rows, logits.width, threads, [&](std::int64_t i) {
        const LogitRow &row = logits.rows[i];
        if (under.empty())
            tokens[i] = kernels.likeliest(row);
        else
            tokens[i] = kernels.drawn(row, over.empty() ? 1.0f : float(over[i]), std::uint64_t(under[i]));
    });
    return tokens;
}

void gumbel_rows(nb::handle keys, nb::handle out, int threads, const std::string &name) {
    const Table from = look_at(keys, 1, INT64, "keys must be int64");
    const Table to = look_at(out, 2, FP32, "noise must be float32", true);
    require(from.width == to.rows, "every row needs a key");
    const ChoiceKernels &kernels = kernels_called(name);
    for_rows(to.rows, to.width, threads, [&](std::int64_t i) {
        const std::int64_t key = reinterpret_cast<const std::int64_t *>(from.row(0))[i];
        kernels.gumbel_row(std::uint64_t(key), to.width, reinterpret_cast<float *>(to.row(i)));
    });
}

void gumbel_pairs(nb::handle keys, nb::handle tokens, nb::handle out, const std::string &name) {
    const Table from = look_at(keys, 1, INT64, "keys must be int64");
    const Table of = look_at(tokens, 1, INT64, "tokens must be int64");
    const Table to = look_at(out, 1, FP32, "noise must be float32", true);
    require(from.width == to.width && of.width == to.width, "keys, tokens and noise must be equally many");
    kernels_called(name).gumbel_pairs(reinterpret_cast<const std::int64_t *>(from.row(0)),
                                      reinterpret_cast<const std::int64_t *>(of.row(0)), to.width,
                                      reinterpret_cast<float *>(to.row(0)));
}

std::vector<std::int64_t> position_keys(const std::vector<std::uint64_t> &seed_keys,
                                        const std::vector<std::int64_t> &positions) {
    require(seed_keys.size() == positions.size(), "every position needs a seed");
    std::vector<std::int64_t> keys(positions.size());
    for (std::size_t i = 0; i < keys.size(); i++) keys[i] = std::int64_t(position_key(seed_keys[i], positions[i]));
    return keys;
}

using Values = std::vector<std::vector<float>>;
using Tokens = std::vector<std::vector<std::int64_t>>;

std::pair<Values, Tokens> in_rows(const std::vector<Ranked> &ranked, std::int64_t rows, std::int64_t count) {
    std::pair<Values, Tokens> found{Values(rows), Tokens(rows)};
    for (std::int64_t i = 0; i < rows * count; i++) {
        found.first[i / count].push_back(ranked[i].value);
        found.second[i / count].push_back(ranked[i].token);
    }
    return found;
}

void require_count(std::int64_t count, const Logits &logits) {
    require(count > 0 && (count <= logits.width || logits.rows.empty()), "k must be between 1 and the width");
}

std::pair<Values, Tokens> top(nb::handle tensors, std::int64_t count, int threads, const std::string &name) {
    const Logits logits(tensors);
    const std::int64_t rows = std::int64_t(logits.rows.size());
    require_count(count, logits);
    const ChoiceKernels &kernels = kernels_called(name);
    std::vector<Ranked> ranked(rows * count);
    for_rows(rows, logits.width, threads,
             [&](std::int64_t i) { kernels.top(logits.rows[i], count, ranked.data() + i * count); });
    return in_rows(ranked, rows, count);
}

std::tuple<Values, Tokens, std::vector<double>> drawn_top(nb::handle tensors, std::int64_t count, nb::handle divisors,
                                                          nb::handle keys, nb::handle ids, int threads,
                                                          const std::string &name) {
    const Logits logits(tensors);
    const std::int64_t rows = std::int64_t(logits.rows.size());
    require_count(count, logits);
    const auto over = listed<double>(divisors, rows, "every row needs a divisor");
    const auto under = listed<std::optional<std::int64_t>>(keys, rows, "every row needs a key");
    for (double divisor : over) require(float(divisor) > 0, "divisors must be above 0");
    std::optional<Table> names;
    if (!ids.is_none()) names = look_at(ids, 1, INT64, "ids must be int64");
    require(!names || names->width == logits.width || !rows, "every column needs an id");
    const auto *named = names ? reinterpret_cast<const std::int64_t *>(names->row(0)) : nullptr;
    const ChoiceKernels &kernels = kernels_called(name);
    std::vector<Ranked> ranked(rows * count);
    std::vector<double> sums(rows);
    for_rows(rows, logits.width, threads, [&](std::int64_t i) {
        const std::uint64_t key = under.empty() ? 0 : std::uint64_t(under[i].value_or(0));
        const bool noisy = !under.empty() && under[i];
        const Perturbation by{over.empty() ? 1.0f : float(over[i]), noisy ? &key : nullptr, named};
        sums[i] = kernels.drawn_top(logits.rows[i], by, count, ranked.data() + i * count);
    });
    auto [values, tokens] = in_rows(ranked, rows, count);
    return {std::move(values), std::move(tokens), std::move(sums)};
}

std::vector<double> log_sum_exp(nb::handle tensors, int threads, const std::string &name) {
    const Logits logits(tensors);
    const ChoiceKernels &kernels = kernels_called(name);
    std::vector<double> sums(logits.rows.size());
    for_rows(sums.size(), logits.width, threads,
             [&](std::int64_t i) { sums[i] = kernels.log_sum_exp(logits.rows[i]); });
    return sums;
}

std::vector<std::string> choice_kernel_names() {
    std::vector<std::string> names;
    for (const ChoiceKernels *kernels : choice_kernels()) names.push_back(kernels->name);
    return names;
}

}  // namespace

// Logits are a tensor [R, V], or a list of them that are read as one, bfloat16 or float32. `kernel` is one of
// `choice_kernels()`, "" the best; all give the same bits.
void bind_choice(nb::module_ &m) {
    m.def("choose", choose, nb::arg("logits"), nb::arg("divisors") = nb::none(), nb::arg("keys") = nb::none(),
          nb::arg("threads") = 1, nb::arg("kernel") = "",
          "The token of each row: the argmax of logits / divisor + noise of its key, or of the logits without keys.");
    m.def("gumbel_rows", gumbel_rows, nb::arg("keys"), nb::arg("out"), nb::arg("threads") = 1, nb::arg("kernel") = "",
          "Fill `out`, float32 [R, V], with the noise of `keys`, int64 [R].");
    m.def("gumbel_pairs", gumbel_pairs, nb::arg("keys"), nb::arg("tokens"), nb::arg("out"), nb::arg("kernel") = "",
          "Fill `out`, float32 [N], with the noise of single tokens, int64 [N], at `keys`, int64 [N].");
    m.def("position_keys", position_keys, nb::arg("seed_keys"), nb::arg("positions"),
          "The key of each position, signed, given what its seed is hashed to, unsigned.");
    m.def("top", top, nb::arg("logits"), nb::arg("k"), nb::arg("threads") = 1, nb::arg("kernel") = "",
          "Values and ids of the k largest of each row, falling; ties by rising id.");
    m.def("drawn_top", drawn_top, nb::arg("logits"), nb::arg("k"), nb::arg("divisors") = nb::none(),
          nb::arg("keys") = nb::none(), nb::arg("ids") = nb::none(), nb::arg("threads") = 1, nb::arg("kernel") = "",
          "Values and tokens of the k largest of each row of logits / divisor + noise of its key, falling, ties by "
          "rising column, and log(sum(exp(row))), estimated where there is noise. A key may be None: no noise. `ids`, "
          "int64 [V], are the tokens that the columns stand for.");
    m.def("log_sum_exp", log_sum_exp, nb::arg("logits"), nb::arg("threads") = 1, nb::arg("kernel") = "",
          "log(sum(exp(row))) of each row, in a fixed order.");
    m.def("choice_kernels", choice_kernel_names, "Names of the kernels that this machine can run, best first.");
}

}  // namespace foredraft
