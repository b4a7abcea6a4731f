#include "arguments.hpp"

#include "bf16.hpp"
#include "require.hpp"

namespace foredraft {

bool is_narrow(const Tensor &tensor) { return tensor.dtype() == BF16; }

void *numbers(const Tensor &tensor, bool narrow, const char *name) {
    require(tensor.dtype() == (narrow ? BF16 : FP32), name, " must be of the program's type");
    require(tensor.contiguous(), name, " must be contiguous");
    return tensor.data();
}

const std::int64_t *indices(const Tensor &tensor, std::size_t least, const char *name) {
    require(tensor.dtype() == INT64 && tensor.ndim() == 1 && tensor.contiguous() && tensor.size() >= least, name,
            " must be a row of int64, long enough");
    return reinterpret_cast<const std::int64_t *>(tensor.data());
}

float number_at(const Tensor &tensor, std::size_t at) {
    return is_narrow(tensor) ? widened(reinterpret_cast<const bf16 *>(tensor.data())[at])
                             : reinterpret_cast<const float *>(tensor.data())[at];
}

std::vector<float> vector_of(const std::optional<Tensor> &tensor, const char *name) {
    std::vector<float> out;
    if (!tensor) return out;
    require_weight(*tensor, 1, name);
    for (std::size_t i = 0; i < tensor->size(); i++) out.push_back(number_at(*tensor, i));
    return out;
}

void require_weight(const Tensor &tensor, std::size_t dimensions, const char *name) {
    require((is_narrow(tensor) || tensor.dtype() == FP32) && tensor.ndim() == dimensions && tensor.contiguous(), name,
            " must be a contiguous bf16 or fp32 tensor of ", dimensions, " dimensions");
}

void require_rows(const Tensor &tensor, std::size_t rows, std::size_t width, const char *name) {
    require(tensor.ndim() == 2 && tensor.shape(0) == rows && tensor.shape(1) == width, name, " must be [", rows, ", ",
            width, "]");
}

}  // namespace foredraft
