#include "program.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>

#include "run.hpp"

namespace foredraft {

namespace {

const int TILE_ROWS = 48;  // rows of a product at once: their sums stay in the first-level cache

template <class T> std::vector<T> in_type(const std::vector<float> &numbers) {
    std::vector<T> out;
    for (float number : numbers) out.push_back(narrow<T>(number));
    return out;
}

// A product of `rows` rows by one group of a matrix, in tiles: `use(row, sums)` gets the sums of each row.
template <class T, class Use>
void group_product(const Run<T> &run, const Matrix<T> &matrix, View src, int rows, int group, const Use &use) {
    alignas(64) float sums[TILE_ROWS * MOST_PANELS * PANEL];
    for (int start = 0; start < rows; start += TILE_ROWS) {
        const int part = std::min(TILE_ROWS, rows - start);
        matrix.product(run.kernels, run.row(src, start), run.stride(src), part, group, sums);
        for (int row = 0; row < part; row++) use(start + row, sums + row * MOST_PANELS * PANEL);
    }
}

template <class T> class TypedProgram final : public Program {
  public:
    TypedProgram(const Kernels<T> &kernels, std::shared_ptr<Threads> threads)
        : kernels_(kernels), threads_(std::move(threads)), scratch_(threads_->count()) {}

    bool narrow() const override { return sizeof(T) == 2; }

    int buffer(int width) override {
        require(width > 0, "a buffer's width must be at least 1");
        buffers_.push_back({width, (width + 31) / 32 * 32, {}});
        return int(buffers_.size()) - 1;
    }

    int matrix(int outputs, int inputs, bool gated, bool int8, const Weight &weight) override {
        matrices_.push_back(std::make_shared<const Matrix<T>>(outputs, inputs, gated, int8, weight, *threads_));
        return int(matrices_.size()) - 1;
    }

    int matrix_of(const Program &other, int matrix) override {
        const auto *typed = dynamic_cast<const TypedProgram<T> *>(&other);
        require(typed != nullptr, "the other program is of another type");
        require(matrix >= 0 && matrix < int(typed->matrices_.size()), "the other program has no such matrix");
        matrices_.push_back(typed->matrices_[matrix]);
        return int(matrices_.size()) - 1;
    }

    int rotary(std::vector<float> frequencies, float factor) override {
        rotaries_.emplace_back(std::move(frequencies), factor, narrow());
        return int(rotaries_.size()) - 1;
    }

    void section(int number) override { section_ = number; }

    void tokens_embedded(View dst, const void *table, std::int64_t tokens, float scale) override {
        check(dst);
        tables_.push_back({section_, tokens});
        push([=](Crew &crew, Run<T> &run) {
            share_rows(crew, run.order.rows, dst.width, [&](int row) {
                const T *from = static_cast<const T *>(table) + run.order.tokens[row] * dst.width;
                T *to = run.row(dst, row);
                if (scale == 1) std::copy_n(from, dst.width, to);
                else run.kernels.scale(from, scale, dst.width, to);
            });
        });
    }

    void input(View dst, int index) override {
        check(dst);
        inputs_.push_back({section_, {index, dst.width}});
        push([=](Crew &crew, Run<T> &run) {
            const T *from = static_cast<const T *>(run.order.inputs[index]);
            share_rows(crew, run.order.rows, dst.width,
                       [&](int row) { std::copy_n(from + std::ptrdiff_t(row) * dst.width, dst.width, run.row(dst, row)); });
        });
    }

    void norm(View dst, View src, std::vector<float> weight, float eps, bool wide) override {
        same_width(dst, src);
        require(int(weight.size()) == src.width, "a norm's weight must be as wide as its input");
        push([=, rows = rows_of(), narrowed = in_type<T>(weight)](Crew &crew, Run<T> &run) {
            share_rows(crew, rows(run), src.width, [&](int row) {
                run.kernels.norm(run.row(src, row), narrowed.data(), wide ? weight.data() : nullptr, src.width, eps,
                                 run.row(dst, row));
            });
        });
    }

    void linear(View dst, View src, int matrix, std::vector<float> bias, const View *residual) override {
        const Matrix<T> &weight = fitting(matrix, src, dst, false);
        require(bias.empty() || int(bias.size()) == dst.width, "a bias must be as wide as the output");
        if (residual) same_width(dst, *residual);
        const bool adds = residual != nullptr;
        const View other = adds ? *residual : dst;
        push([=, rows = rows_of(), &weight, narrowed = in_type<T>(bias)](Crew &crew, Run<T> &run) {
            crew.share(weight.groups(), [&](int group) {
                const int first = group * weight.columns(), columns = std::min(weight.columns(), dst.width - first);
                group_product(run, weight, src, rows(run), group, [&](int row, const float *sums) {
                    run.kernels.close(sums, narrowed.empty() ? nullptr : narrowed.data() + first,
                                      adds ? run.row(other, row) + first : nullptr, columns, run.row(dst, row) + first);
                });
            });
        });
    }

    void gated(View dst, View src, int matrix, Activation activation) override {
        const Matrix<T> &weight = fitting(matrix, src, dst, true);
        push([=, rows = rows_of(), &weight](Crew &crew, Run<T> &run) {
            crew.share(weight.groups(), [&](int group) {
                const int first = group * weight.columns(), columns = std::min(weight.columns(), dst.width - first);
                group_product(run, weight, src, rows(run), group, [&](int row, const float *sums) {
                    run.kernels.gate(sums, weight.columns(), columns, activation, run.row(dst, row) + first);
                });
            });
        });
    }

    void activation(View dst, View src, Activation activation) override {
        same_width(dst, src);
        push([=, rows = rows_of()](Crew &crew, Run<T> &run) {
            share_rows(crew, rows(run), src.width,
                       [&](int row) { run.kernels.activate(run.row(src, row), src.width, activation, run.row(dst, row)); });
        });
    }

    void add(View dst, View a, View b) override {
        same_width(dst, a);
        same_width(dst, b);
        push([=, rows = rows_of()](Crew &crew, Run<T> &run) {
            share_rows(crew, rows(run), a.width,
                       [&](int row) { run.kernels.add(run.row(a, row), run.row(b, row), a.width, run.row(dst, row)); });
        });
    }

    void scale(View dst, View src, float factor) override {
        same_width(dst, src);
        push([=, rows = rows_of()](Crew &crew, Run<T> &run) {
            share_rows(crew, rows(run), src.width,
                       [&](int row) { run.kernels.scale(run.row(src, row), factor, src.width, run.row(dst, row)); });
        });
    }

    void attend(View dst, View src, const Attending &attending, const HeadNorm &norm) override {
        check_heads(src, attending, norm, true);
        check(dst);
        require(dst.width == attending.heads * attending.size, "attention's output must hold all heads");
        push([=](Crew &crew, Run<T> &run) { attend_rows(crew, run, dst, src, attending); },
             [=, query = in_type<T>(norm.query), key = in_type<T>(norm.key)](Crew &crew, Run<T> &run) {
                 place_rows(crew, run, src, true, attending, query, key, norm);
             });
    }

    void store(View src, const Attending &attending, const HeadNorm &norm) override {
        check_heads(src, attending, norm, false);
        push([=, key = in_type<T>(norm.key)](Crew &crew, Run<T> &run) {
            place_rows(crew, run, src, false, attending, {}, key, norm);
        });
    }

    void keep(int boundary, View src, std::vector<float> weight, float eps, bool wide) override {
        check(src);
        require(!selected_, "features are of all rows: keep them before rows are selected");
        require(weight.empty() || int(weight.size()) == src.width, "a norm's weight must be as wide as its input");
        kept_widths_[boundary] = src.width;
        push([=, narrowed = in_type<T>(weight)](Crew &crew, Run<T> &run) {
            for (const Kept &kept : run.order.kept) {
                if (kept.boundary != boundary) continue;
                share_rows(crew, run.order.rows, src.width, [&](int row) {
                    const T *from = run.row(src, row);
                    T *to = static_cast<T *>(kept.out) + std::ptrdiff_t(row) * src.width;
                    if (weight.empty()) std::copy_n(from, src.width, to);
                    else run.kernels.norm(from, narrowed.data(), wide ? weight.data() : nullptr, src.width, eps, to);
                });
            }
        });
    }

    void select_rows(View dst, View src) override {
        same_width(dst, src);
        require(!selected_ && dst.buffer != src.buffer, "rows are selected once, into another buffer");
        push([=](Crew &crew, Run<T> &run) {
            share_rows(crew, run.order.wanted, src.width, [&](int row) {
                std::copy_n(run.row(src, int(run.order.wanted_rows[row])), src.width, run.row(dst, row));
            });
        });
        selected_ = true;
    }

    void logits(View src, int matrix, float scale, float softcap, int offset) override {
        require(selected_, "logits are of wanted rows: select them first");
        check(src);
        require(matrix >= 0 && matrix < int(matrices_.size()), "there is no such matrix");
        const Matrix<T> &weight = *matrices_[matrix];
        require(!weight.gated() && weight.inputs() == src.width, "logits: the matrix does not fit its input");
        require(offset >= 0, "logits: the offset is negative");
        logits_widths_.push_back({section_, offset + weight.outputs()});
        push([=, &weight](Crew &crew, Run<T> &run) {
            T *out = static_cast<T *>(run.order.logits) + offset;
            const int width = run.order.logits_width;
            crew.share(weight.groups(), [&](int group) {
                const int first = group * weight.columns(), columns = std::min(weight.columns(), weight.outputs() - first);
                group_product(run, weight, src, run.order.wanted, group, [&](int row, const float *sums) {
                    T *to = out + std::ptrdiff_t(row) * width + first;
                    run.kernels.close(sums, nullptr, nullptr, columns, to);
                    if (scale != 1 || softcap != 0) run.kernels.squeeze(to, scale, softcap, columns, to);
                });
            });
        });
    }

    void output(View src) override {
        check(src);
        require(selected_, "the output is of wanted rows: select them first");
        output_widths_.push_back({section_, src.width});
        push([=](Crew &crew, Run<T> &run) {
            T *out = static_cast<T *>(run.order.output);
            share_rows(crew, run.order.wanted, src.width, [&](int row) {
                std::copy_n(run.row(src, row), src.width, out + std::ptrdiff_t(row) * src.width);
            });
        });
    }

    int width_of(int boundary) const override {
        const auto found = kept_widths_.find(boundary);
        return found == kept_widths_.end() ? -1 : found->second;
    }
    Demands demands(const std::vector<int> &skipped) const override {
        Demands found;
        for (const auto &input : inputs_)
            if (runs(input.section, skipped)) {
                const auto [index, width] = input.value;
                if (int(found.inputs.size()) <= index) found.inputs.resize(index + 1, 0);
                found.inputs[index] = width;
            }
        for (const auto &width : logits_widths_)
            if (runs(width.section, skipped)) found.logits = std::max(found.logits, width.value);
        for (const auto &width : output_widths_)
            if (runs(width.section, skipped)) found.output = width.value;
        return found;
    }
    std::int64_t weight_bytes() const override {
        std::int64_t bytes = 0;
        for (const auto &matrix : matrices_) bytes += matrix->bytes();
        return bytes;
    }

    void run(const Order &order) override {
        check(order);
        for (auto &buffer : buffers_) buffer.memory.ensure(std::size_t(std::max(order.rows, order.wanted)) * buffer.stride * sizeof(T));
        for (auto &scratch : scratch_) scratch.ensure(attention_scratch(order));
        turn(order);
        Run<T> run{order, kernels_, buffers_, scratch_, angles_};
        threads_->run(2 * ops_.size() + order.kept.size(), [&](Crew &crew) {
            for (const Op &op : ops_)
                if (runs(op.section, order.skipped)) {
                    if (op.first) op.first(crew, run);
                    op.body(crew, run);
                }
        });
    }

  private:
    using Body = std::function<void(Crew &, Run<T> &)>;
    struct Op {
        int section;
        Body first, body;  // one phase each; most have no first
    };

    // Something that belongs to a section.
    template <class Value> struct Own {
        int section;
        Value value;
    };

    static bool runs(int section, const std::vector<int> &skipped) {
        return skipped.empty() || std::find(skipped.begin(), skipped.end(), section) == skipped.end();
    }

    static void require(bool holds, const char *what) {
        if (!holds) throw std::invalid_argument(what);
    }

    void push(Body body, Body first = nullptr) { ops_.push_back({section_, std::move(first), std::move(body)}); }

    // Rows of an operation: all of them, or the wanted ones once they are selected.
    struct Rows {
        bool selected;
        int operator()(const Run<T> &run) const { return selected ? run.order.wanted : run.order.rows; }
    };

    void check(const View &view) const {
        require(view.buffer >= 0 && view.buffer < int(buffers_.size()), "there is no such buffer");
        require(view.offset >= 0 && view.width > 0 && view.offset + view.width <= buffers_[view.buffer].width,
                "a view must lie inside its buffer");
    }

    void same_width(const View &dst, const View &src) const {
        check(dst);
        check(src);
        require(dst.width == src.width, "input and output must be of one width");
    }

    const Matrix<T> &fitting(int matrix, const View &src, const View &dst, bool gated) const {
        check(src);
        check(dst);
        require(matrix >= 0 && matrix < int(matrices_.size()), "there is no such matrix");
        const Matrix<T> &weight = *matrices_[matrix];
        require(weight.gated() == gated, "gated matrices are for gated products, plain ones for plain products");
        require(weight.inputs() == src.width && weight.outputs() == dst.width, "the matrix does not fit input and output");
        return weight;
    }

    void check_heads(const View &src, const Attending &a, const HeadNorm &norm, bool queries) {
        check(src);
        require(a.kv_heads > 0 && a.heads % a.kv_heads == 0, "query heads must be a multiple of key heads");
        require(a.size > 0 && a.size <= 512 && a.size % 2 == 0, "a head's size must be even, at most 512");
        require(src.width == ((queries ? a.heads : 0) + 2 * a.kv_heads) * a.size, "attention's input must hold all heads");
        require(a.rotary >= -1 && a.rotary < int(rotaries_.size()), "there is no such rotary embedding");
        require(a.rotary < 0 || rotaries_[a.rotary].size() <= a.size, "a rotary embedding turns more than a head holds");
        for (const auto *weight : {&norm.query, &norm.key})
            require(weight->empty() || int(weight->size()) == a.size, "a head's norm must be as wide as a head");
        layers_.push_back({section_, a});
    }

    void check(const Order &order) const {
        for (const auto &table : tables_)
            for (int row = 0; row < order.rows && runs(table.section, order.skipped); row++)
                require(order.tokens[row] >= 0 && order.tokens[row] < table.value, "a token is outside the embedding");
        std::int64_t slots = -1;
        for (const auto &own : layers_) {
            if (!runs(own.section, order.skipped)) continue;
            const Attending &a = own.value;
            require(order.cache && a.layer >= 0 && a.layer < int(order.cache->layers.size()), "the cache lacks a layer");
            const auto &layer = order.cache->layers[a.layer];
            require(layer.heads == a.kv_heads && layer.key_size == a.size && layer.value_size == a.size &&
                        layer.narrow == narrow(),
                    "a cache layer has another shape");
            require(slots < 0 || slots == layer.slots, "the cache's layers have different numbers of slots");
            slots = layer.slots;
        }
        if (slots >= 0) check_slots(order, slots);
    }

    void check_slots(const Order &order, std::int64_t slots) const {
        int next = 0;
        for (int row = 0; row < order.rows; row++)
            require(order.write[row] >= 0 && order.write[row] < slots, "a slot is outside the cache");
        for (const Segment &segment : order.segments) {
            require(segment.start == next && segment.rows > 0 && segment.context >= 0, "segments must follow one another");
            next += segment.rows;
            const std::int64_t keys = segment.context + segment.rows;
            if (!segment.list) require(segment.first >= 0 && segment.first + keys <= slots, "a run of slots is outside the cache");
            else for (std::int64_t i = 0; i < keys; i++)
                require(segment.list[i] >= 0 && segment.list[i] < slots, "a slot is outside the cache");
        }
        require(next == order.rows, "segments must cover all rows");
    }

    // Look up the angles of all rows, computing what is new.
    void turn(const Order &order) {
        angles_.resize(rotaries_.size());
        for (std::size_t i = 0; i < rotaries_.size(); i++) {
            angles_[i].size = rotaries_[i].size();
            angles_[i].rows.resize(order.rows);
            for (int row = 0; row < order.rows; row++) angles_[i].rows[row] = rotaries_[i].at(order.positions[row]);
        }
    }

    Rows rows_of() const { return {selected_}; }

    const Kernels<T> &kernels_;
    std::shared_ptr<Threads> threads_;
    std::vector<Buffer<T>> buffers_;
    std::vector<std::shared_ptr<const Matrix<T>>> matrices_;
    std::vector<Rotary> rotaries_;
    std::vector<Angles> angles_;
    std::vector<Memory> scratch_;
    std::vector<Op> ops_;
    std::vector<Own<Attending>> layers_;
    std::vector<Own<std::int64_t>> tables_;
    std::vector<Own<std::pair<int, int>>> inputs_;
    std::vector<Own<int>> logits_widths_, output_widths_;
    std::map<int, int> kept_widths_;
    int section_ = -1;
    bool selected_ = false;
};

}  // namespace

std::unique_ptr<Program> make_program(bool narrow, const KernelSet &kernels, std::shared_ptr<Threads> threads) {
    if (narrow) return std::make_unique<TypedProgram<bf16>>(*kernels.narrow, std::move(threads));
    return std::make_unique<TypedProgram<float>>(*kernels.wide, std::move(threads));
}

}  // namespace foredraft
