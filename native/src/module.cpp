// What Python sees. Tensors cross as DLPack or buffers; the interpreter lock is released while a program runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bandwidth.hpp"
#include "chain.hpp"
#include "program.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void bind_choice(nb::module_ &m);  // in bind_choice.cpp
void bind_suffix(nb::module_ &m);  // in bind_suffix.cpp

namespace foredraft {

namespace {

using Array = Tensor;
using Columns = std::tuple<int, int, int>;

bool is_narrow(const Array &array) { return array.dtype() == BF16; }
bool is_wide(const Array &array) { return array.dtype() == FP32; }

void require(bool holds, const std::string &what) {
    if (!holds) throw nb::value_error(what.c_str());
}

// The data of an array of numbers of the program's type, or of the `Number`s.
void *numbers(const Array &array, bool narrow, const char *name) {
    require(narrow ? is_narrow(array) : is_wide(array), std::string(name) + " must be of the program's type");
    require(array.contiguous(), std::string(name) + " must be contiguous");
    return array.data();
}

const std::int64_t *indices(const Array &array, std::size_t least, const char *name) {
    require(array.dtype() == INT64 && array.ndim() == 1 && array.contiguous() && array.size() >= least,
            std::string(name) + " must be a row of int64, long enough");
    return reinterpret_cast<const std::int64_t *>(array.data());
}

float number_at(const Array &array, std::size_t at) {
    return is_narrow(array) ? widened(reinterpret_cast<const bf16 *>(array.data())[at]) : reinterpret_cast<const float *>(array.data())[at];
}

void require_weight(const Array &array, std::size_t dims, const char *name) {
    require((is_narrow(array) || is_wide(array)) && array.ndim() == dims && array.contiguous(),
            std::string(name) + " must be a contiguous bf16 or fp32 tensor of " + std::to_string(dims) + " dimensions");
}

std::vector<float> vector_of(const std::optional<Array> &array, const char *name) {
    std::vector<float> out;
    if (!array) return out;
    require_weight(*array, 1, name);
    for (std::size_t i = 0; i < array->size(); i++) out.push_back(number_at(*array, i));
    return out;
}

View view(const Columns &columns) { return {std::get<0>(columns), std::get<1>(columns), std::get<2>(columns)}; }

Activation activation_of(const std::string &name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    require(name == "gelu_tanh", "activation is '" + name + "'; it must be silu, gelu or gelu_tanh");
    return Activation::gelu_tanh;
}

void read_row(const Array &weight, std::size_t row, float *out) {
    for (std::size_t i = 0; i < weight.shape(1); i++) out[i] = number_at(weight, row * weight.shape(1) + i);
}

bool int8_of(const std::string &format) {
    require(format == "same" || format == "int8", "format is '" + format + "'; it must be same or int8");
    return format == "int8";
}

int add_matrix(Program &program, const Array &weight, const std::string &format) {
    require_weight(weight, 2, "a matrix");
    return program.matrix(int(weight.shape(0)), int(weight.shape(1)), false, int8_of(format),
                          [&](int output, float *row) { read_row(weight, output, row); });
}

int add_gated_matrix(Program &program, const Array &gate, const Array &up, const std::string &format) {
    require_weight(gate, 2, "a gate");
    require_weight(up, 2, "a matrix");
    require(gate.shape(0) == up.shape(0) && gate.shape(1) == up.shape(1), "a gate must be of the shape of what it gates");
    const int half = int(gate.shape(0));
    return program.matrix(half, int(gate.shape(1)), true, int8_of(format), [&](int output, float *row) {
        output < half ? read_row(gate, output, row) : read_row(up, output - half, row);
    });
}

Attending attending_of(int layer, int heads, int kv_heads, int size, float scale, int window, float softcap, int rotary) {
    return {layer, heads, kv_heads, size, scale, softcap, window, rotary};
}

Cache cache_of(const std::vector<Array> &keys, const std::vector<Array> &values) {
    Cache cache;
    require(keys.size() == values.size(), "a cache needs as many keys as values");
    for (std::size_t i = 0; i < keys.size(); i++) {
        const Array &key = keys[i], &value = values[i];
        require_weight(key, 3, "keys");
        require_weight(value, 3, "values");
        require(is_narrow(key) == is_narrow(value) && key.shape(0) == value.shape(0) && key.shape(1) == value.shape(1),
                "keys and values of a layer must have as many slots and heads, and one type");
        cache.layers.push_back({key.data(), value.data(), int(key.shape(1)), int(key.shape(2)), int(value.shape(2)),
                                std::int64_t(key.shape(0)), is_narrow(key)});
    }
    return cache;
}

// (start, rows, context, first slot or -1, slots or None, ancestors or None)
Segment segment_of(nb::handle entry, std::vector<Array> &alive) {
    const nb::tuple parts = nb::cast<nb::tuple>(entry);
    Segment segment{nb::cast<int>(parts[0]), nb::cast<int>(parts[1]), nb::cast<std::int64_t>(parts[2]),
                    nb::cast<std::int64_t>(parts[3]), nullptr, nullptr};
    if (!parts[4].is_none()) {
        alive.push_back(nb::cast<Array>(parts[4]));
        segment.list = indices(alive.back(), std::size_t(segment.context + segment.rows), "slots");
    } else require(segment.first >= 0, "a segment needs the first slot of its keys, or their slots");
    if (!parts[5].is_none()) {
        alive.push_back(nb::cast<Array>(parts[5]));
        const Array &mask = alive.back();
        require(mask.dtype() == nb::dtype<bool>() && mask.contiguous() && mask.ndim() == 2 &&
                    int(mask.shape(0)) == segment.rows && int(mask.shape(1)) == segment.rows,
                "ancestors must be bool, [rows, rows]");
        segment.ancestors = reinterpret_cast<const std::uint8_t *>(mask.data());
    }
    return segment;
}

void require_rows(const Array &array, int rows, int width, const char *name) {
    require(array.ndim() == 2 && int(array.shape(0)) == rows && int(array.shape(1)) == width,
            std::string(name) + " must be [" + std::to_string(rows) + ", " + std::to_string(width) + "]");
}

void run(Program &program, const Cache *cache, const Array &tokens, const Array &positions, const Array &write,
         const nb::list &segments, const Array &logit_rows, const std::vector<int> &features,
         const std::vector<Array> &feature_outs, const std::optional<Array> &logits, const std::vector<Array> &inputs,
         const std::optional<Array> &output, const std::vector<int> &skip) {
    Order order{};
    std::vector<Array> alive;
    const std::size_t rows = tokens.size();
    order.cache = cache;
    order.rows = int(rows);
    order.tokens = indices(tokens, rows, "tokens");
    order.positions = indices(positions, rows, "positions");
    order.write = indices(write, rows, "write");
    order.wanted = int(logit_rows.size());
    order.wanted_rows = indices(logit_rows, 0, "logit_rows");
    for (int i = 0; i < order.wanted; i++)
        require(order.wanted_rows[i] >= 0 && order.wanted_rows[i] < order.rows, "a wanted row is not in the pack");
    for (int i = 0; i < order.rows; i++) require(order.positions[i] >= 0, "a position is negative");
    alive.reserve(2 * segments.size());
    for (nb::handle entry : segments) order.segments.push_back(segment_of(entry, alive));
    require(features.size() == feature_outs.size(), "there must be an output for each feature");
    for (std::size_t i = 0; i < features.size(); i++) {
        require(program.width_of(features[i]) > 0, "the program keeps no feature " + std::to_string(features[i]));
        require_rows(feature_outs[i], order.rows, program.width_of(features[i]), "a feature's output");
        order.kept.push_back({features[i], numbers(feature_outs[i], program.narrow(), "a feature's output")});
    }
    order.skipped = skip;
    const Demands demands = program.demands(skip);
    require(inputs.size() >= demands.inputs.size(), "the program reads " + std::to_string(demands.inputs.size()) + " inputs");
    for (std::size_t i = 0; i < demands.inputs.size(); i++) {
        if (demands.inputs[i]) require_rows(inputs[i], order.rows, demands.inputs[i], "an input");
        order.inputs.push_back(numbers(inputs[i], program.narrow(), "an input"));
    }
    if (demands.logits && order.wanted) {
        require(logits.has_value(), "the program gives logits: pass a tensor for them");
        require_rows(*logits, order.wanted, demands.logits, "logits");
        order.logits = numbers(*logits, program.narrow(), "logits");
        order.logits_width = demands.logits;
    }
    if (demands.output && order.wanted) {
        require(output.has_value(), "the program gives an output: pass a tensor for it");
        require_rows(*output, order.wanted, demands.output, "the output");
        order.output = numbers(*output, program.narrow(), "the output");
    }
    nb::gil_scoped_release free_lock;
    program.run(order);
}

// A program and what it reads without owning it.
struct PyProgram {
    std::unique_ptr<Program> program;
    std::vector<Array> tables;
};

// (context, first slot or -1, slots or None), as in a segment
Chain chain_of(nb::handle context, int depth, std::int64_t position, const std::vector<std::int64_t> &scratch, float divisor,
               const std::vector<std::int64_t> &keys, std::vector<Array> &alive) {
    const nb::tuple parts = nb::cast<nb::tuple>(context);
    Chain chain{depth, position, nb::cast<std::int64_t>(parts[0]), nb::cast<std::int64_t>(parts[1]), nullptr, scratch,
                divisor, keys, {}, {}};
    if (!parts[2].is_none()) {
        alive.push_back(nb::cast<Array>(parts[2]));
        chain.list = indices(alive.back(), std::size_t(chain.context + depth - 1), "slots");
    } else require(chain.first >= 0, "a chain needs the first slot of its keys, or their slots");
    return chain;
}

nb::tuple draft_chain(PyProgram &self, const Cache *cache, const Array &logits, const std::optional<Array> &hidden,
                      const std::vector<int> &depths, const std::vector<std::int64_t> &positions, const nb::list &contexts,
                      const std::vector<std::vector<std::int64_t>> &scratch, const std::vector<float> &divisors,
                      const std::vector<std::vector<std::int64_t>> &keys, const std::optional<Array> &ids, int width,
                      const std::vector<int> &skip) {
    const std::size_t count = depths.size();
    require(positions.size() == count && contexts.size() == count && scratch.size() == count && divisors.size() == count &&
                keys.size() == count && logits.ndim() == 2 && logits.shape(0) == count,
            "there must be one of everything for each chain");
    ChainOrder order{};
    order.cache = cache;
    order.columns = int(logits.shape(1));
    order.logits = numbers(logits, self.program->narrow(), "logits");
    if (hidden) {
        require(hidden->ndim() == 2 && hidden->shape(0) == count, "hidden must be [chains, width]");
        order.hidden = numbers(*hidden, self.program->narrow(), "hidden");
        order.hidden_width = int(hidden->shape(1));
    }
    if (ids) order.ids = indices(*ids, order.columns, "ids");
    order.width = width;
    order.skipped = skip;
    std::vector<Array> alive;
    alive.reserve(count);
    std::vector<Chain> chains;
    for (std::size_t i = 0; i < count; i++)
        chains.push_back(chain_of(contexts[i], depths[i], positions[i], scratch[i], divisors[i], keys[i], alive));
    {
        nb::gil_scoped_release free_lock;
        draft_chains(*self.program, order, chains);
    }
    nb::list tokens, gains;
    for (const Chain &chain : chains) {
        tokens.append(nb::cast(chain.tokens));
        gains.append(nb::cast(chain.gains));
    }
    return nb::make_tuple(tokens, gains);
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (auto set = kernel_sets(); *set; set++) names.push_back((*set)->name);
    return names;
}

PyProgram make(const std::string &dtype, const std::string &kernels, std::shared_ptr<Threads> threads) {
    require(dtype == "bf16" || dtype == "fp32", "dtype is '" + dtype + "'; it must be bf16 or fp32");
    const KernelSet *set = find_kernels(kernels.c_str());
    require(set != nullptr, "kernels '" + kernels + "' cannot run on this machine");
    return {make_program(dtype == "bf16", *set, std::move(threads)), {}};
}

void embed(PyProgram &self, const Columns &dst, const Array &table, float scale) {
    require_weight(table, 2, "an embedding");
    require(is_narrow(table) == self.program->narrow(), "an embedding must be of the program's type");
    require(int(table.shape(1)) == std::get<2>(dst), "an embedding must be as wide as where it goes");
    self.program->tokens_embedded(view(dst), table.data(), std::int64_t(table.shape(0)), scale);
    self.tables.push_back(table);
}

}  // namespace

NB_MODULE(_native, m) {
    m.def("kernel_names", &kernel_names, "Sets of kernels that run on this machine, best first.");
    m.def("read_bandwidth", [](Threads &threads, std::size_t bytes) {
        require(bytes >= 65536, "bytes must be at least 65536");
        nb::gil_scoped_release free_lock;
        return read_bandwidth(threads, bytes);
    }, "threads"_a, "bytes"_a, "Bytes a second that the threads read from memory of that size, the median of nine passes.");

    bind_choice(m);
    bind_suffix(m);
    m.def("draft_chain", &draft_chain, "program"_a, "cache"_a.none(), "logits"_a, "hidden"_a.none(), "depths"_a, "positions"_a,
          "contexts"_a, "scratch"_a, "divisors"_a, "keys"_a, "ids"_a.none(), "width"_a, "skip"_a = std::vector<int>(),
          "The chains of an autoregressive drafter: tokens and their log-chances.");

    nb::class_<Threads>(m, "Threads", "A thread pool; programs that share it run one after another.")
        .def("__init__", [](Threads *self, int count) {
            require(count >= 1 && count <= 1024, "count is " + std::to_string(count) + "; it must be from 1 to 1024");
            new (self) Threads(count);
        }, "count"_a)
        .def_prop_ro("count", &Threads::count);

    nb::class_<Cache>(m, "Cache", "Keys and values of each layer, [slots, heads, size], kept by reference.")
        .def("__init__", [](Cache *self, const std::vector<Array> &keys, const std::vector<Array> &values) {
            new (self) Cache(cache_of(keys, values));
        }, "keys"_a, "values"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());

    nb::class_<PyProgram>(m, "Program", "A model as operations over buffers of rows.")
        .def(nb::new_(&make), "dtype"_a, "kernels"_a, "threads"_a)
        .def("buffer", [](PyProgram &p, int width) { return p.program->buffer(width); }, "width"_a)
        .def("matrix", [](PyProgram &p, const Array &w, const std::string &f) { return add_matrix(*p.program, w, f); },
             "weight"_a, "format"_a = "same")
        .def("gated_matrix", [](PyProgram &p, const Array &gate, const Array &up, const std::string &f) {
            return add_gated_matrix(*p.program, gate, up, f);
        }, "gate"_a, "up"_a, "format"_a = "same")
        .def("matrix_of", [](PyProgram &p, const PyProgram &other, int matrix) {
            return p.program->matrix_of(*other.program, matrix);
        }, "other"_a, "matrix"_a)
        .def("rotary", [](PyProgram &p, const Array &frequencies, float factor) {
            return p.program->rotary(vector_of(frequencies, "frequencies"), factor);
        }, "inverse_frequencies"_a, "factor"_a = 1.0f)
        .def("section", [](PyProgram &p, int number) { p.program->section(number); }, "number"_a)
        .def("tokens_embedded", &embed, "dst"_a, "table"_a, "scale"_a = 1.0f)
        .def("input", [](PyProgram &p, const Columns &dst, int index) {
            require(index >= 0 && index < 16, "an input's index must be from 0 to 15");
            p.program->input(view(dst), index);
        }, "dst"_a, "index"_a)
        .def("norm", [](PyProgram &p, const Columns &dst, const Columns &src, const Array &weight, float eps, bool wide) {
            p.program->norm(view(dst), view(src), vector_of(weight, "weight"), eps, wide);
        }, "dst"_a, "src"_a, "weight"_a, "eps"_a, "wide"_a = false)
        .def("linear", [](PyProgram &p, const Columns &dst, const Columns &src, int matrix, const std::optional<Array> &bias,
                          const std::optional<Columns> &residual) {
            const View other = residual ? view(*residual) : View{};
            p.program->linear(view(dst), view(src), matrix, vector_of(bias, "bias"), residual ? &other : nullptr);
        }, "dst"_a, "src"_a, "matrix"_a, "bias"_a = nb::none(), "residual"_a = nb::none())
        .def("gated", [](PyProgram &p, const Columns &dst, const Columns &src, int matrix, const std::string &activation) {
            p.program->gated(view(dst), view(src), matrix, activation_of(activation));
        }, "dst"_a, "src"_a, "matrix"_a, "activation"_a = "silu")
        .def("activation", [](PyProgram &p, const Columns &dst, const Columns &src, const std::string &activation) {
            p.program->activation(view(dst), view(src), activation_of(activation));
        }, "dst"_a, "src"_a, "activation"_a)
        .def("add", [](PyProgram &p, const Columns &dst, const Columns &a, const Columns &b) {
            p.program->add(view(dst), view(a), view(b));
        }, "dst"_a, "a"_a, "b"_a)
        .def("scale", [](PyProgram &p, const Columns &dst, const Columns &src, float factor) {
            p.program->scale(view(dst), view(src), factor);
        }, "dst"_a, "src"_a, "factor"_a)
        .def("attend", [](PyProgram &p, const Columns &dst, const Columns &src, int layer, int heads, int kv_heads, int head_size,
                          float scale, int window, float softcap, int rotary, const std::optional<Array> &query_norm,
                          const std::optional<Array> &key_norm, float norm_eps, bool norm_wide) {
            p.program->attend(view(dst), view(src),
                              attending_of(layer, heads, kv_heads, head_size, scale, window, softcap, rotary),
                              {vector_of(query_norm, "query_norm"), vector_of(key_norm, "key_norm"), norm_eps, norm_wide});
        }, "dst"_a, "src"_a, nb::kw_only(), "layer"_a, "heads"_a, "kv_heads"_a, "head_size"_a, "scale"_a, "window"_a = 0,
           "softcap"_a = 0.0f, "rotary"_a = -1, "query_norm"_a = nb::none(), "key_norm"_a = nb::none(),
           "norm_eps"_a = 0.0f, "norm_wide"_a = false)
        .def("store", [](PyProgram &p, const Columns &src, int layer, int kv_heads, int head_size, int rotary,
                         const std::optional<Array> &key_norm, float norm_eps, bool norm_wide) {
            p.program->store(view(src), attending_of(layer, kv_heads, kv_heads, head_size, 1, 0, 0, rotary),
                             {{}, vector_of(key_norm, "key_norm"), norm_eps, norm_wide});
        }, "src"_a, nb::kw_only(), "layer"_a, "kv_heads"_a, "head_size"_a, "rotary"_a = -1, "key_norm"_a = nb::none(),
           "norm_eps"_a = 0.0f, "norm_wide"_a = false)
        .def("keep", [](PyProgram &p, int boundary, const Columns &src, const std::optional<Array> &norm, float eps, bool wide) {
            p.program->keep(boundary, view(src), vector_of(norm, "norm"), eps, wide);
        }, "boundary"_a, "src"_a, "norm"_a = nb::none(), "eps"_a = 0.0f, "wide"_a = false)
        .def("select_rows", [](PyProgram &p, const Columns &dst, const Columns &src) {
            p.program->select_rows(view(dst), view(src));
        }, "dst"_a, "src"_a)
        .def("logits", [](PyProgram &p, const Columns &src, int matrix, float scale, float softcap, int offset) {
            p.program->logits(view(src), matrix, scale, softcap, offset);
        }, "src"_a, "matrix"_a, "scale"_a = 1.0f, "softcap"_a = 0.0f, "offset"_a = 0)
        .def("output", [](PyProgram &p, const Columns &src) { p.program->output(view(src)); }, "src"_a)
        .def_prop_ro("weight_bytes", [](PyProgram &p) { return p.program->weight_bytes(); })
        .def("run", [](PyProgram &p, const Cache *cache, const Array &tokens, const Array &positions, const Array &write,
                       const nb::list &segments, const Array &logit_rows, const std::vector<int> &features,
                       const std::vector<Array> &feature_outs, const std::optional<Array> &logits,
                       const std::vector<Array> &inputs, const std::optional<Array> &output, const std::vector<int> &skip) {
            run(*p.program, cache, tokens, positions, write, segments, logit_rows, features, feature_outs, logits, inputs,
                output, skip);
        }, "cache"_a.none(), "tokens"_a, "positions"_a, "write"_a, "segments"_a, "logit_rows"_a,
           "features"_a = std::vector<int>(), "feature_outs"_a = nb::tuple(), "logits"_a = nb::none(),
           "inputs"_a = nb::tuple(), "output"_a = nb::none(), "skip"_a = std::vector<int>());
}

}  // namespace foredraft
