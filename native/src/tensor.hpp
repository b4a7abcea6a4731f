// Tensors as Python hands them over: where their numbers lie, how many, of what type; on the CPU.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

namespace foredraft {

class Tensor {
  public:
    using Type = nanobind::dlpack::dtype;
    static constexpr int MOST_DIMENSIONS = 4;

    // Any tensor or array; false where it is none, or lies elsewhere. `written`: it must not be read-only.
    bool read(nanobind::handle object, bool written);

    Type dtype() const { return dtype_; }
    std::size_t ndim() const { return dimensions_; }
    std::size_t shape(std::size_t i) const { return std::size_t(shape_[i]); }
    std::int64_t stride(std::size_t i) const { return strides_[i]; }
    char *data() const { return data_; }
    std::size_t size() const;
    bool contiguous() const;

  private:
    bool take(const nanobind::dlpack::dltensor &tensor, nanobind::handle object);
    template <class Array> bool exchange(nanobind::handle object);

    char *data_ = nullptr;
    Type dtype_{};
    std::size_t dimensions_ = 0;
    std::int64_t shape_[MOST_DIMENSIONS] = {}, strides_[MOST_DIMENSIONS] = {};
    nanobind::object owner_;
};

extern const Tensor::Type BF16, FP32, INT64;

}  // namespace foredraft

namespace nanobind::detail {

template <> struct type_caster<foredraft::Tensor> {
    NB_TYPE_CASTER(foredraft::Tensor, const_name("tensor"))

    bool from_python(handle object, uint8_t, cleanup_list *) noexcept {
        try {
            return value.read(object, false);
        } catch (python_error &) {
            return false;
        }
    }
};

}  // namespace nanobind::detail
