// Programs as Python composes them: weights and operations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "arguments.hpp"
#include "bind.hpp"
#include "py_program.hpp"
#include "require.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace foredraft {

namespace {

using Columns = std::tuple<int, int, int>;

View view(const Columns &columns) { return {std::get<0>(columns), std::get<1>(columns), std::get<2>(columns)}; }

Activation activation_of(const std::string &name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    require(name == "gelu_tanh", "activation is '", name, "'; it must be silu, gelu or gelu_tanh");
    return Activation::gelu_tanh;
}

void read_row(const Tensor &weight, std::size_t row, float *out) {
    for (std::size_t i = 0; i < weight.shape(1); i++) out[i] = number_at(weight, row * weight.shape(1) + i);
}

bool int8_of(const std::string &format) {
    require(format == "same" || format == "int8", "format is '", format, "'; it must be same or int8");
    return format == "int8";
}

int add_matrix(PyProgram &self, const Tensor &weight, const std::string &format) {
    require_weight(weight, 2, "a matrix");
    return self.program->matrix(int(weight.shape(0)), int(weight.shape(1)), false, int8_of(format),
                                [&](int output, float *row) { read_row(weight, output, row); });
}

int add_gated_matrix(PyProgram &self, const Tensor &gate, const Tensor &up, const std::string &format) {
    require_weight(gate, 2, "a gate");
    require_weight(up, 2, "a matrix");
    require(gate.shape(0) == up.shape(0) && gate.shape(1) == up.shape(1),
            "a gate must be of the shape of what it gates");
    const int half = int(gate.shape(0));
    return self.program->matrix(half, int(gate.shape(1)), true, int8_of(format), [&](int output, float *row) {
        output < half ? read_row(gate, output, row) : read_row(up, output - half, row);
    });
}

PyProgram make(const std::string &dtype, const std::string &kernels, std::shared_ptr<Threads> threads) {
    require(dtype == "bf16" || dtype == "fp32", "dtype is '", dtype, "'; it must be bf16 or fp32");
    const KernelSet *set = find_kernels(kernels.c_str());
    require(set != nullptr, "kernels '", kernels, "' cannot run on this machine");
    return {make_program(dtype == "bf16", *set, std::move(threads)), {}};
}

void embed(PyProgram &self, const Columns &dst, const Tensor &table, float scale) {
    require_weight(table, 2, "an embedding");
    require(is_narrow(table) == self.program->narrow(), "an embedding must be of the program's type");
    require(std::get<2>(dst) >= 0 && table.shape(1) == std::size_t(std::get<2>(dst)),
            "an embedding must be as wide as where it goes");
    self.tables.push_back(table);
    self.program->tokens_embedded(view(dst), table.data(), std::int64_t(table.shape(0)), scale);
}

}  // namespace

void bind_program(nb::module_ &m) {
    nb::class_<PyProgram> program(m, "Program", "A model as operations over buffers of rows.");
    program.def(nb::new_(&make), "dtype"_a, "kernels"_a, "threads"_a)
        .def("buffer", [](PyProgram &p, int width) { return p.program->buffer(width); }, "width"_a)
        .def("matrix", &add_matrix, "weight"_a, "format"_a = "same")
        .def("gated_matrix", &add_gated_matrix, "gate"_a, "up"_a, "format"_a = "same")
        .def("matrix_of", [](PyProgram &p, const PyProgram &other, int matrix, const std::string &format) {
            return p.program->matrix_of(*other.program, matrix, int8_of(format));
        }, "other"_a, "matrix"_a, "format"_a = "same")
        .def("rotary", [](PyProgram &p, const Tensor &frequencies, float factor) {
            return p.program->rotary(vector_of(frequencies, "frequencies"), factor);
        }, "inverse_frequencies"_a, "factor"_a = 1.0f)
        .def("section", [](PyProgram &p, int number) { p.program->section(number); }, "number"_a)
        .def("tokens_embedded", &embed, "dst"_a, "table"_a, "scale"_a = 1.0f)
        .def("input", [](PyProgram &p, const Columns &dst, int index) { p.program->input(view(dst), index); }, "dst"_a,
             "index"_a)
        .def("norm", [](PyProgram &p, const Columns &dst, const Columns &src, const Tensor &weight, float eps,
                        bool wide) {
            p.program->norm(view(dst), view(src), vector_of(weight, "weight"), eps, wide);
        }, "dst"_a, "src"_a, "weight"_a, "eps"_a, "wide"_a = false)
        .def("linear", [](PyProgram &p, const Columns &dst, const Columns &src, int matrix,
                          const std::optional<Tensor> &bias, const std::optional<Columns> &residual) {
            const View other = residual ? view(*residual) : View{};
            p.program->linear(view(dst), view(src), matrix, vector_of(bias, "bias"), residual ? &other : nullptr);
        }, "dst"_a, "src"_a, "matrix"_a, "bias"_a = nb::none(), "residual"_a = nb::none())
        .def("gated", [](PyProgram &p, const Columns &dst, const Columns &src, int matrix,
                         const std::string &activation) {
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
        .def("attend", [](PyProgram &p, const Columns &dst, const Columns &src, int layer, int heads, int kv_heads,
                          int head_size, float scale, int window, float softcap, int rotary,
                          const std::optional<Tensor> &query_norm, const std::optional<Tensor> &key_norm,
                          float norm_eps, bool norm_wide) {
            p.program->attend(view(dst), view(src),
                              {layer, heads, kv_heads, head_size, scale, softcap, window, rotary},
                              {vector_of(query_norm, "query_norm"), vector_of(key_norm, "key_norm"), norm_eps,
                               norm_wide});
        }, "dst"_a, "src"_a, nb::kw_only(), "layer"_a, "heads"_a, "kv_heads"_a, "head_size"_a, "scale"_a,
           "window"_a = 0, "softcap"_a = 0.0f, "rotary"_a = -1, "query_norm"_a = nb::none(), "key_norm"_a = nb::none(),
           "norm_eps"_a = 0.0f, "norm_wide"_a = false)
        .def("store", [](PyProgram &p, const Columns &src, int layer, int kv_heads, int head_size, int rotary,
                         const std::optional<Tensor> &key_norm, float norm_eps, bool norm_wide) {
            p.program->store(view(src), {layer, kv_heads, kv_heads, head_size, 1, 0, 0, rotary},
                             {{}, vector_of(key_norm, "key_norm"), norm_eps, norm_wide});
        }, "src"_a, nb::kw_only(), "layer"_a, "kv_heads"_a, "head_size"_a, "rotary"_a = -1, "key_norm"_a = nb::none(),
           "norm_eps"_a = 0.0f, "norm_wide"_a = false)
        .def("keep", [](PyProgram &p, int boundary, const Columns &src, const std::optional<Tensor> &norm, float eps,
                        bool wide) {
            p.program->keep(boundary, view(src), vector_of(norm, "norm"), eps, wide);
        }, "boundary"_a, "src"_a, "norm"_a = nb::none(), "eps"_a = 0.0f, "wide"_a = false)
        .def("select_rows", [](PyProgram &p, const Columns &dst, const Columns &src) {
            p.program->select_rows(view(dst), view(src));
        }, "dst"_a, "src"_a)
        .def("logits", [](PyProgram &p, const Columns &src, int matrix, float scale, float softcap, int offset) {
            p.program->logits(view(src), matrix, scale, softcap, offset);
        }, "src"_a, "matrix"_a, "scale"_a = 1.0f, "softcap"_a = 0.0f, "offset"_a = 0)
        .def("output", [](PyProgram &p, const Columns &src) { p.program->output(view(src)); }, "src"_a)
        .def_prop_ro("weight_bytes", [](PyProgram &p) { return p.program->weight_bytes(); });
    bind_run(m, program);
}

}  // namespace foredraft
