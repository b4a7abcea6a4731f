// A program and a cache as Python holds them, with what they read without owning it.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "program.hpp"
#include "tensor.hpp"

namespace foredraft {

struct PyProgram {
    std::unique_ptr<Program> program;
    std::vector<Tensor> tables;
};

struct PyCache {
    Cache cache;
    std::vector<Tensor> tensors;
};

// Caches, and what runs a program over them.
void bind_run(nanobind::module_ &m, nanobind::class_<PyProgram> &program);

}  // namespace foredraft
