// One run of a program: its order, its buffers and each thread's scratch.
#pragma once
#include <algorithm>
#include <vector>

#include "program.hpp"

namespace foredraft {

template <class T> struct Buffer {
    int width;
    std::ptrdiff_t stride;
    Memory memory;
};

// Cosines then sines of each row's position, for one rotary embedding.
struct Angles {
    int size;  // leading numbers of a head that are turned
    std::vector<const float *> rows;
};

template <class T> struct Run {
    const Order &order;
    const Kernels<T> &kernels;
    std::vector<Buffer<T>> &buffers;
    std::vector<Memory> &scratch;  // a thread's own
    std::vector<Angles> &angles;   // of each rotary embedding
    std::vector<Memory> &wide;     // the same, for rows that products read as floats
    Int8Part *int8;                // rows of the product at hand, where its matrix is int8
    T *logits;                     // of the wanted rows: the caller's, or the program's own where only tokens leave

    T *row(const View &view, int row) const {
        const auto &buffer = buffers[view.buffer];
        return buffer.memory.template as<T>() + row * buffer.stride + view.offset;
    }
    std::ptrdiff_t stride(const View &view) const { return buffers[view.buffer].stride; }
};

// Run `body(row)` for each row, `width` numbers each, in chunks that are worth being taken.
template <class Body> void share_rows(Crew &crew, int rows, int width, const Body &body) {
    const int least = 2048, chunk = std::max(1, least / std::max(1, width));
    crew.share((rows + chunk - 1) / chunk, [&](int number) {
        for (int row = number * chunk; row < std::min(rows, (number + 1) * chunk); row++) body(row);
    });
}

// Norm and rotate the heads of each row and write its keys and values where the order says.
template <class T> void place_rows(Crew &crew, Run<T> &run, View src, bool queries, const Attending &attending,
                                   const std::vector<T> &query_norm, const std::vector<T> &key_norm,
                                   const HeadNorm &norm);

// What each row sees of its segment's keys, mixed.
template <class T> void attend_rows(Crew &crew, Run<T> &run, View dst, View src, const Attending &attending);

// Bytes of scratch a thread needs to attend in `order`.
std::size_t attention_scratch(const Order &order);

}  // namespace foredraft
