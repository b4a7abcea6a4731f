// One operation of a program: work on each row by itself, or a phase of its own.
#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "run.hpp"

namespace foredraft {

template <class T> class Entry;

// The root mean square norm of rows.
template <class T> struct Norm {
    View dst, src;
    std::vector<float> weight;
    std::vector<T> narrowed;
    float eps;
    bool wide;
    Entry<T> *reader = nullptr;  // of the product right behind it, where that reads `dst`
    bool folded = false;         // into that product: nobody else reads `dst`

    Norm(View dst, View src, std::vector<float> numbers, float eps, bool wide)
        : dst(dst), src(src), weight(std::move(numbers)), narrowed(in_type<T>(weight)), eps(eps), wide(wide) {}

    void one(const Kernels<T> &kernels, const T *from, T *to) const {
        kernels.norm(from, narrowed.data(), wide ? weight.data() : nullptr, src.width, eps, to);
    }
};

// What enters a product: the rows of a buffer, rounded where the matrix is int8. Few rows each thread readies for
// itself, and norms them, too, where their norm is folded in: that takes less than waiting for one another.
template <class T> class Entry {
  public:
    struct Rows {
        const T *first;
        std::ptrdiff_t stride;
        const Int8Part *parts;
    };

    Entry(View src, bool int8) : src(src), parts_(int8 ? src.width / INT8_GROUP : 0) {}

    const View src;
    std::shared_ptr<const Norm<T>> norm;  // or null

    static bool few(int rows, int width) { return std::int64_t(rows) * width <= FEW_NUMBERS; }
    bool few(int rows) const { return few(rows, src.width); }
    int parts() const { return parts_; }  // of a row

    // Many rows, readied by all threads together in phases before the product.
    void ready(Crew &crew, Run<T> &run, int rows) const {
        if (!parts_ || few(rows)) return;
        share_rows(crew, rows, src.width, [&](int row) {
            run.kernels.round_row(run.row(src, row), src.width, run.int8 + std::ptrdiff_t(row) * parts_);
        });
    }

    // The rows as a thread reads them.
    Rows of(const Run<T> &run, int rows, int thread) const {
        if (!few(rows) || (!norm && !parts_)) return {run.row(src, 0), run.stride(src), run.int8};
        T *normed = run.own[thread].template as<T>();
        auto *parts = reinterpret_cast<Int8Part *>(normed + FEW_NUMBERS);
        for (int row = 0; row < rows; row++) {
            if (norm) norm->one(run.kernels, run.row(norm->src, row), normed + std::ptrdiff_t(row) * src.width);
            const T *from = norm ? normed + std::ptrdiff_t(row) * src.width : run.row(src, row);
            if (parts_) run.kernels.round_row(from, src.width, parts + std::ptrdiff_t(row) * parts_);
        }
        return norm ? Rows{normed, src.width, parts} : Rows{run.row(src, 0), run.stride(src), parts};
    }

    static std::size_t room() { return FEW_NUMBERS * sizeof(T) + FEW_NUMBERS / INT8_GROUP * sizeof(Int8Part); }

  private:
    static const int FEW_NUMBERS = 8192;
    int parts_;
};

template <class T> struct Op {
    typedef std::function<void(Run<T> &, int row)> RowWork;
    typedef std::function<void(Crew &, Run<T> &)> Phases;

    int section;
    bool selected;  // its rows are the wanted ones, not all

    RowWork row_work;  // or null
    int width = 0;     // numbers of a row that it reads
    std::function<bool(const Run<T> &)> asked = nullptr;  // whether the run at hand wants it; null for always
    bool gathers = false;                                 // it reads other rows than its own

    Phases phases = nullptr;
    const Matrix<T> *matrix = nullptr;         // that the phases read, or null
    std::shared_ptr<Norm<T>> norm = nullptr;   // that the work on a row is, or null
    std::shared_ptr<Entry<T>> entry = nullptr; // of a product

    int rows(const Order &order) const { return selected ? order.wanted : order.rows; }
};

}  // namespace foredraft
