// A weight matrix laid out once as it is read: groups of columns, inputs after inputs, columns side by side.
#pragma once
#include <cstddef>
#include <functional>

#include "kernels.hpp"
#include "memory.hpp"
#include "threads.hpp"

namespace foredraft {

// Reads a row of a weight, [out, in], as fp32.
using Weight = std::function<void(int output, float *row)>;

template <class T> class Matrix {
  public:
    // Plain, or gated: then `outputs` are those of each half, and a group holds as many gates as others.
    Matrix(int outputs, int inputs, bool gated, bool int8, const Weight &weight, Threads &threads);

    int outputs() const { return outputs_; }
    int inputs() const { return inputs_; }
    int groups() const { return groups_; }
    int panels() const { return panels_; }
    bool gated() const { return gated_; }
    bool int8() const { return int8_; }
    std::size_t bytes() const { return groups_ * group_bytes_; }

    // Outputs that one group gives, all but the last one exactly.
    int columns() const { return panels_ * PANEL / (gated_ ? 2 : 1); }

    void product(const Kernels<T> &kernels, const T *a, std::ptrdiff_t stride, int rows, int group, float *out,
                 Widened &wide) const {
        kernels.product(a, stride, rows, inputs_, panels_, reinterpret_cast<const T *>(data_of(group)), out, wide);
    }
    // The same of rows in int8, for an int8 matrix.
    void product(const Kernels<T> &kernels, const Int8Part *a, std::ptrdiff_t stride, int rows, int group,
                 float *out) const {
        kernels.product_int8(a, stride, rows, inputs_, panels_, data_of(group), out);
    }

    // Tell a thread what it will read: the group it begins with.
    void announce(Crew &crew) const { crew.expect(data_of(crew.first(groups_)), group_bytes_); }

    // Reads a row of the weight back, as a `Weight` does; of a plain matrix that is not int8.
    void read(int output, float *row) const;

  private:
    char *data_of(int group) const { return data_.as<char>() + group * group_bytes_; }
    int output_of(int group, int column) const;
    void lay_out(int group, const Weight &weight);
    void lay_out_same(const float *rows, T *to) const;
    void lay_out_int8(const float *rows, char *to) const;

    int outputs_, inputs_;
    bool gated_, int8_;
    int panels_, groups_;
    std::size_t group_bytes_;
    Memory data_;
};

}  // namespace foredraft
