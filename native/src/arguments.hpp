// Tensors that Python hands over as arguments, looked at before anything is read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tensor.hpp"

namespace foredraft {

bool is_narrow(const Tensor &tensor);  // bf16

// The data of a contiguous tensor of a program's type.
void *numbers(const Tensor &tensor, bool narrow, const char *name);

// The data of a contiguous row of at least so many int64.
const std::int64_t *indices(const Tensor &tensor, std::size_t least, const char *name);

// Of a tensor that `require_weight` let through.
float number_at(const Tensor &tensor, std::size_t at);
std::vector<float> vector_of(const std::optional<Tensor> &tensor, const char *name);

void require_weight(const Tensor &tensor, std::size_t dimensions, const char *name);
void require_rows(const Tensor &tensor, std::size_t rows, std::size_t width, const char *name);

}  // namespace foredraft
