#include "tensor.hpp"

#include <vector>

namespace nb = nanobind;

namespace foredraft {

const Tensor::Type BF16 = {std::uint8_t(nb::dlpack::dtype_code::Bfloat), 16, 1};
const Tensor::Type FP32 = {std::uint8_t(nb::dlpack::dtype_code::Float), 32, 1};
const Tensor::Type INT64 = {std::uint8_t(nb::dlpack::dtype_code::Int), 64, 1};

namespace {

// The table of C functions that DLPack has a library hang on its tensor type (DLPack 1.2, torch from 2.10 on). Only its
// way to look into a tensor is used: a tenth of a microsecond, where an exchange of ownership takes two.
struct ExchangeTable {
    struct {
        std::uint32_t major, minor;
    } version;
    ExchangeTable *older;
    void *allocate, *take, *give;
    int (*look)(void *tensor, nb::dlpack::dltensor *out);
    void *stream;
};

const ExchangeTable *exchange_table(nb::handle tensor) {
    static PyTypeObject *known = nullptr;
    static const ExchangeTable *table = nullptr;
    if (Py_TYPE(tensor.ptr()) == known) return table;
    const nb::object capsule = nb::getattr(tensor.type(), "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
    table = static_cast<const ExchangeTable *>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (table && table->version.major > 1) table = table->older;
    if (table && !table->look) table = nullptr;
    known = Py_TYPE(tensor.ptr());
    Py_INCREF(known);  // for good, or another type could come to lie where it was
    return table;
}

}  // namespace

bool Tensor::take(const nb::dlpack::dltensor &tensor, nb::handle object) {
    if (tensor.device.device_type != nb::device::cpu::value || tensor.ndim > MOST_DIMENSIONS) return false;
    data_ = static_cast<char *>(tensor.data) + tensor.byte_offset;
    dtype_ = tensor.dtype;
    dimensions_ = std::size_t(tensor.ndim);
    std::int64_t dense = 1;
    for (std::size_t i = dimensions_; i-- > 0; dense *= tensor.shape[i]) {
        shape_[i] = tensor.shape[i];
        strides_[i] = tensor.strides ? tensor.strides[i] : dense;
    }
    owner_ = nb::borrow(object);
    return true;
}

template <class Array> bool Tensor::exchange(nb::handle object) {
    Array array;
    if (!nb::try_cast<Array>(object, array)) return false;
    std::vector<std::int64_t> shape, strides;
    for (std::size_t i = 0; i < array.ndim(); i++) {
        shape.push_back(array.shape(i));
        strides.push_back(array.stride(i));
    }
    nb::dlpack::dltensor plain{};
    plain.data = const_cast<void *>(static_cast<const void *>(array.data()));
    plain.device = {array.device_type(), array.device_id()};
    plain.ndim = int(array.ndim());
    plain.dtype = array.dtype();
    plain.shape = shape.data();
    plain.strides = strides.data();
    return take(plain, object);
}

bool Tensor::read(nb::handle object, bool written) {
    if (const ExchangeTable *table = exchange_table(object)) {
        nb::dlpack::dltensor plain;
        if (table->look(object.ptr(), &plain)) throw nb::python_error();
        return take(plain, object);
    }
    return written ? exchange<nb::ndarray<>>(object) : exchange<nb::ndarray<nb::ro>>(object);
}

std::size_t Tensor::size() const {
    std::size_t size = 1;
    for (std::size_t i = 0; i < dimensions_; i++) size *= std::size_t(shape_[i]);
    return size;
}

bool Tensor::contiguous() const {
    std::int64_t dense = 1;
    for (std::size_t i = dimensions_; i-- > 0; dense *= shape_[i])
        if (shape_[i] > 1 && strides_[i] != dense) return false;
    return true;
}

}  // namespace foredraft
