#include "matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "require.hpp"

namespace foredraft {

namespace {

const int CHUNKS_A_THREAD = 4;  // below that threads wait for the slowest of them

template <class T> const int step_inputs = sizeof(T) == 2 ? 2 : 1;

// A float as half precision holds it; scales are stored so on disk.
float rounded_to_half(float x) {
    if (x == 0 || !std::isfinite(x)) return x;
    int exponent;
    std::frexp(x, &exponent);
    const int lowest = -24;  // the last bit of half precision's smallest numbers
    const float unit = std::ldexp(1.0f, std::max(exponent - 11, lowest));
    return std::min(std::nearbyint(x / unit) * unit, 65504.0f);
}

}  // namespace

template <class T>
Matrix<T>::Matrix(int outputs, int inputs, bool gated, bool int8, const Weight &weight, Threads &threads)
    : outputs_(outputs), inputs_(inputs), gated_(gated), int8_(int8) {
    require(outputs > 0 && inputs > 0, "a matrix has ", outputs, " outputs and ", inputs,
            " inputs; both must be above 0");
    require(inputs % step_inputs<T> == 0, "a matrix has ", inputs, " inputs; bf16 needs an even number");
    require(!int8 || inputs % INT8_GROUP == 0, "a matrix has ", inputs, " inputs; int8 needs a multiple of ",
            INT8_GROUP);
    const int all = (gated ? 2 : 1) * outputs, wide = MOST_PANELS * PANEL;
    panels_ = (all + wide - 1) / wide >= CHUNKS_A_THREAD * threads.count() ? MOST_PANELS : MOST_PANELS / 2;
    groups_ = (outputs + columns() - 1) / columns();
    const std::size_t numbers = std::size_t(inputs) * panels_ * PANEL;
    group_bytes_ = int8 ? numbers + numbers / INT8_GROUP * sizeof(float) : numbers * sizeof(T);
    data_.ensure(groups_ * group_bytes_);
    threads.run(1, [&](Crew &crew) { crew.share(groups_, [&](int group) { lay_out(group, weight); }); });
}

// The output a column of a group stands for, -1 for one that only fills up; gated ones of the second half come after.
template <class T> int Matrix<T>::output_of(int group, int column) const {
    const int half = column / columns(), output = group * columns() + column % columns();
    return output < outputs_ ? half * outputs_ + output : -1;
}

template <class T> void Matrix<T>::lay_out(int group, const Weight &weight) {
    const int width = panels_ * PANEL;
    std::vector<float> rows(std::size_t(width) * inputs_);
    for (int column = 0; column < width; column++)
        if (int output = output_of(group, column); output >= 0)
            weight(output, rows.data() + std::size_t(column) * inputs_);
    if (int8_) lay_out_int8(rows.data(), data_of(group));
    else lay_out_same(rows.data(), reinterpret_cast<T *>(data_of(group)));
}

template <class T> void Matrix<T>::lay_out_same(const float *rows, T *to) const {
    const int width = panels_ * PANEL, inner = step_inputs<T>;
    for (int input = 0; input < inputs_; input++)
        for (int column = 0; column < width; column++)
            to[(std::size_t(input / inner) * width + column) * inner + input % inner] =
                narrow<T>(rows[std::size_t(column) * inputs_ + input]);
}

template <class T> void Matrix<T>::read(int output, float *row) const {
    const int width = panels_ * PANEL, inner = step_inputs<T>, group = output / columns(), column = output % columns();
    const T *from = reinterpret_cast<const T *>(data_of(group));
    for (int input = 0; input < inputs_; input++)
        row[input] = widened(from[(std::size_t(input / inner) * width + column) * inner + input % inner]);
}

template <class T> void Matrix<T>::lay_out_int8(const float *rows, char *to) const {
    const int width = panels_ * PANEL, inner = INT8_INPUTS;
    for (int start = 0; start < inputs_; start += INT8_GROUP) {
        float *scales = reinterpret_cast<float *>(to);
        auto *numbers = reinterpret_cast<std::uint8_t *>(scales + width);
        for (int column = 0; column < width; column++) {
            const float *from = rows + std::size_t(column) * inputs_ + start;
            float most = 0;
            for (int i = 0; i < INT8_GROUP; i++) most = std::max(most, std::fabs(from[i]));
            scales[column] = rounded_to_half(std::max(most / 127, 1e-7f));
            for (int i = 0; i < INT8_GROUP; i++)
                numbers[(i / inner * width + column) * inner + i % inner] =
                    std::uint8_t(INT8_OFFSET + std::clamp(std::nearbyint(from[i] / scales[column]), -127.0f, 127.0f));
        }
        to += width * sizeof(float) + INT8_GROUP * width;
    }
}

template class Matrix<bf16>;
template class Matrix<float>;

}  // namespace foredraft
