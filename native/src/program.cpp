#include "program.hpp"

#include <algorithm>
#include <functional>
#include <mutex>

#include "choice.hpp"
#include "needs.hpp"
#include "op.hpp"
#include "require.hpp"

namespace foredraft {

namespace {

const int MOST_WIDTH = 1 << 24;  // of a buffer
const int LIGHT_LINES = 48;      // of the next matrix, asked for by each thread before work that is not a product

// What a product gives: sums of so many rows from `row` on and of so many outputs from `first` on, SUMS_APART apart.
struct Sums {
    int row, rows, first, columns;
    const float *numbers;
};

// A product of `rows` rows by a matrix, in tiles of one group of its outputs by some rows; `use(sums)` gets them.
template <class T, class Use>
void share_product(Crew &crew, Run<T> &run, const Matrix<T> &matrix, const Entry<T> &entry, int rows, const Use &use) {
    const int most = run.kernels.rows;
    entry.ready(crew, run, rows);
    Widened wide{run.wide[crew.number()].template as<float>(), false};
    typename Entry<T>::Rows entered{};
    crew.share(matrix.groups(), [&](int group) {
        if (!entered.first) entered = entry.of(run, rows, crew.number());
        alignas(64) float sums[MOST_ROWS * SUMS_APART];
        const int first = group * matrix.columns(), columns = std::min(matrix.columns(), matrix.outputs() - first);
        for (int start = 0; start < rows; start += most) {
            const int part = std::min(most, rows - start);
            wide.filled &= rows <= most;
            if (const int parts = entry.parts())
                matrix.product(run.kernels, entered.parts + std::ptrdiff_t(start) * parts, parts, part, group, sums);
            else matrix.product(run.kernels, entered.first + start * entered.stride, entered.stride, part, group, sums,
                                wide);
            use({start, part, first, columns, sums});
        }
    });
    run.kernels.rest();
}

bool overlap(const View &a, const View &b) {
    return a.buffer == b.buffer && a.offset < b.offset + b.width && b.offset < a.offset + a.width;
}

template <class T> class TypedProgram final : public Program {
  public:
    TypedProgram(const Kernels<T> &kernels, std::shared_ptr<Threads> threads)
        : kernels_(kernels), threads_(std::move(threads)), scratch_(threads_->count()), wide_(threads_->count()),
          own_(threads_->count()), needs_(sizeof(T) == 2) {
        for (auto &own : own_) own.ensure(Entry<T>::room());
    }

    bool narrow() const override { return sizeof(T) == 2; }

    int buffer(int width) override {
        require(width > 0 && width <= MOST_WIDTH, "a buffer's width must be from 1 to ", MOST_WIDTH);
        buffers_.push_back({width, (width + 31) / 32 * 32, {}});
        readers_.push_back(0);
        return int(buffers_.size()) - 1;
    }

    int matrix(int outputs, int inputs, bool gated, bool int8, const Weight &weight) override {
        matrices_.push_back(std::make_shared<const Matrix<T>>(outputs, inputs, gated, int8, weight, *threads_));
        return int(matrices_.size()) - 1;
    }

    int matrix_of(const Program &other, int matrix, bool int8) override {
        const auto *typed = dynamic_cast<const TypedProgram<T> *>(&other);
        require(typed != nullptr, "the other program is of another type");
        const std::shared_ptr<const Matrix<T>> &own = typed->at(matrix);
        if (int8 && !own->int8()) {
            require(!own->gated(), "a gated matrix has no int8 copy");
            return this->matrix(own->outputs(), own->inputs(), false, true,
                                [&own](int output, float *row) { own->read(output, row); });
        }
        matrices_.push_back(own);
        return int(matrices_.size()) - 1;
    }

    int rotary(std::vector<float> frequencies, float factor) override {
        rotaries_.emplace_back(std::move(frequencies), factor, narrow());
        return int(rotaries_.size()) - 1;
    }

    void section(int number) override { needs_.begin(number); }

    void tokens_embedded(View dst, const void *table, std::int64_t tokens, float scale) override {
        check(dst);
        needs_.embedding(tokens);
        push_rows(dst.width, [=](Run<T> &run, int row) {
            const T *from = static_cast<const T *>(table) + run.order.tokens[row] * dst.width;
            T *to = run.row(dst, row);
            if (scale == 1) std::copy_n(from, dst.width, to);
            else run.kernels.scale(from, scale, dst.width, to);
        }).selected = false;
    }

    void input(View dst, int index) override {
        check(dst);
        needs_.input(index, dst.width);
        push_rows(dst.width, [=](Run<T> &run, int row) {
            const T *from = static_cast<const T *>(run.order.inputs[index]);
            std::copy_n(from + std::ptrdiff_t(row) * dst.width, dst.width, run.row(dst, row));
        }).selected = false;
    }

    void norm(View dst, View src, std::vector<float> weight, float eps, bool wide) override {
        same_width(dst, src);
        require(int(weight.size()) == src.width, "a norm's weight must be as wide as its input");
        read(src);
        const auto norm = std::make_shared<Norm<T>>(dst, src, std::move(weight), eps, wide);
        push_rows(src.width, [=](Run<T> &run, int row) {
            norm->one(run.kernels, run.row(src, row), run.row(dst, row));
        }).norm = norm;
    }

    void linear(View dst, View src, int matrix, std::vector<float> bias, const View *residual) override {
        const Matrix<T> &weight = fitting(matrix, src, dst, false);
        require(bias.empty() || int(bias.size()) == dst.width, "a bias must be as wide as the output");
        if (residual) {
            same_width(dst, *residual);
            read(*residual);
        }
        const bool adds = residual != nullptr;
        const View other = adds ? *residual : dst;
        push_product(weight, src, &dst, [=, narrowed = in_type<T>(bias)](const Run<T> &run, const Sums &sums) {
            run.kernels.close(sums.numbers, sums.rows, narrowed.empty() ? nullptr : narrowed.data() + sums.first,
                              adds ? run.row(other, sums.row) + sums.first : nullptr, run.stride(other), sums.columns,
                              run.row(dst, sums.row) + sums.first, run.stride(dst));
        });
    }

    void gated(View dst, View src, int matrix, Activation activation) override {
        const Matrix<T> &weight = fitting(matrix, src, dst, true);
        push_product(weight, src, &dst, [=, &weight](const Run<T> &run, const Sums &sums) {
            run.kernels.gate(sums.numbers, sums.rows, weight.columns(), sums.columns, activation,
                             run.row(dst, sums.row) + sums.first, run.stride(dst));
        });
    }

    void activation(View dst, View src, Activation activation) override {
        same_width(dst, src);
        read(src);
        push_rows(src.width, [=](Run<T> &run, int row) {
            run.kernels.activate(run.row(src, row), src.width, activation, run.row(dst, row));
        });
    }

    void add(View dst, View a, View b) override {
        same_width(dst, a);
        same_width(dst, b);
        read(a);
        read(b);
        push_rows(a.width, [=](Run<T> &run, int row) {
            run.kernels.add(run.row(a, row), run.row(b, row), a.width, run.row(dst, row));
        });
    }

    void scale(View dst, View src, float factor) override {
        same_width(dst, src);
        read(src);
        push_rows(src.width, [=](Run<T> &run, int row) {
            run.kernels.scale(run.row(src, row), factor, src.width, run.row(dst, row));
        });
    }

    void attend(View dst, View src, const Attending &attending, const HeadNorm &norm) override {
        check_heads(src, attending, norm, true);
        check(dst);
        require(dst.width == attending.heads * attending.size, "attention's output must hold all heads");
        read(src);
        const Heads<T> heads(src, true, attending, norm);
        push_phases([=](Crew &crew, Run<T> &run) { attend_rows(crew, run, dst, heads); });
    }

    void store(View src, const Attending &attending, const HeadNorm &norm) override {
        check_heads(src, attending, norm, false);
        read(src);
        const Heads<T> heads(src, false, attending, norm);
        push_rows(src.width, [=](Run<T> &run, int row) { heads.place(run, row, 0, attending.kv_heads); });
    }

    void keep(int boundary, View src, std::vector<float> weight, float eps, bool wide) override {
        check(src);
        require(!selected_, "features are of all rows: keep them before rows are selected");
        require(weight.empty() || int(weight.size()) == src.width, "a norm's weight must be as wide as its input");
        read(src);
        needs_.feature(boundary, src.width);
        const bool plain = weight.empty();
        const auto norm = std::make_shared<Norm<T>>(src, src, std::move(weight), eps, wide);
        push_rows(src.width, [=](Run<T> &run, int row) {
            for (const Kept &kept : run.order.kept) {
                if (kept.boundary != boundary) continue;
                const T *from = run.row(src, row);
                T *to = static_cast<T *>(kept.out) + std::ptrdiff_t(row) * src.width;
                if (plain) std::copy_n(from, src.width, to);
                else norm->one(run.kernels, from, to);
            }
        }).asked = [=](const Run<T> &run) {
            const auto &kept = run.order.kept;
            return std::any_of(kept.begin(), kept.end(), [=](const Kept &one) { return one.boundary == boundary; });
        };
    }

    void select_rows(View dst, View src) override {
        same_width(dst, src);
        require(!selected_ && dst.buffer != src.buffer, "rows are selected once, into another buffer");
        read(src);
        selected_ = true;
        push_rows(src.width, [=](Run<T> &run, int row) {
            std::copy_n(run.row(src, int(run.order.wanted_rows[row])), src.width, run.row(dst, row));
        }).gathers = true;
    }

    void logits(View src, int matrix, float scale, float softcap, int offset) override {
        require(selected_, "logits are of wanted rows: select them first");
        check(src);
        const Matrix<T> &weight = *at(matrix);
        require(!weight.gated() && weight.inputs() == src.width, "logits: the matrix does not fit its input");
        require(offset >= 0 && offset <= MOST_WIDTH && weight.outputs() <= MOST_WIDTH,
                "logits: the offset is negative or too large");
        needs_.logits(offset + weight.outputs());
        push_product(weight, src, nullptr, [=](const Run<T> &run, const Sums &sums) {
            const std::ptrdiff_t width = run.order.logits_width;
            T *to = run.logits + sums.row * width + offset + sums.first;
            run.kernels.close(sums.numbers, sums.rows, nullptr, nullptr, 0, sums.columns, to, width);
            if (scale == 1 && softcap == 0) return;
            for (int row = 0; row < sums.rows; row++, to += width)
                run.kernels.squeeze(to, scale, softcap, sums.columns, to);
        });
    }

    void output(View src) override {
        check(src);
        require(selected_, "the output is of wanted rows: select them first");
        read(src);
        needs_.output(src.width);
        push_rows(src.width, [=](Run<T> &run, int row) {
            T *out = static_cast<T *>(run.order.output);
            std::copy_n(run.row(src, row), src.width, out + std::ptrdiff_t(row) * src.width);
        });
    }

    int width_of(int boundary) const override { return needs_.width_of(boundary); }
    Demands demands(const std::vector<int> &skipped) const override { return needs_.demands(skipped); }
    std::int64_t weight_bytes() const override {
        std::int64_t bytes = 0;
        for (const auto &matrix : matrices_) bytes += matrix->bytes();
        return bytes;
    }

    void run(const Order &order) override {
        needs_.check(order);
        const std::lock_guard<std::mutex> alone(one_run_);  // buffers and scratch serve one at a time
        const std::size_t rows = std::size_t(std::max(order.rows, order.wanted));
        if (!folded_) fold();
        for (auto &buffer : buffers_) buffer.memory.ensure(rows * buffer.stride * sizeof(T));
        for (auto &scratch : scratch_) scratch.ensure(attention_scratch(order));
        turn(order);
        int8_.ensure(rows * int8_parts_ * sizeof(Int8Part));
        if (kernels_.widens)
            for (auto &wide : wide_) wide.ensure(std::min<std::size_t>(rows, kernels_.rows) * widened_ * sizeof(float));
        if (!order.logits) logits_.ensure(std::size_t(order.wanted) * order.logits_width * sizeof(T));
        T *logits = order.logits ? static_cast<T *>(order.logits) : logits_.as<T>();
        Run<T> run{order, kernels_, buffers_, scratch_, own_, angles_, wide_, int8_.as<Int8Part>(), logits};
        threads_->run(2 * ops_.size() + 2, [&](Crew &crew) {
            announce(ops_.begin(), order, crew);
            for (Place op = ops_.begin(); op != ops_.end();) op = perform(op, crew, run);
            if (order.choice.tokens) crew.share(order.wanted, [&](int row) { choose(run, row); });
            if (order.then) crew.share(order.wanted, order.then);
        });
    }

  private:
    using Place = typename std::vector<Op<T>>::const_iterator;

    // Work on each row, all rows until they are selected.
    Op<T> &push_rows(int width, typename Op<T>::RowWork work) {
        ops_.push_back({needs_.section(), selected_, std::move(work), width});
        folded_ = false;
        return ops_.back();
    }

    Op<T> &push_phases(typename Op<T>::Phases phases) {
        Op<T> &op = push_rows(0, nullptr);
        op.phases = std::move(phases);
        return op;
    }

    // A product of the rows of `src`, of which `close(run, sums)` makes what it leaves in `dst`, or elsewhere.
    template <class Close> void push_product(const Matrix<T> &weight, View src, const View *dst, const Close &close) {
        require(!dst || !overlap(src, *dst), "a product must not write what it reads");
        widened_ = std::max(widened_, std::size_t(src.width + WIDE_INPUTS - 1) / WIDE_INPUTS * WIDE_INPUTS);
        const auto entry = std::make_shared<Entry<T>>(src, weight.int8());
        int8_parts_ = std::max(int8_parts_, entry->parts());
        if (Norm<T> *norm = norm_before(src, dst)) norm->reader = entry.get();
        else read(src);
        Op<T> &op = push_phases([=, &weight, selected = selected_](Crew &crew, Run<T> &run) {
            const int rows = selected ? run.order.wanted : run.order.rows;
            share_product(crew, run, weight, *entry, rows, [&](const Sums &sums) { close(run, sums); });
        });
        op.matrix = &weight;
        op.entry = entry;
    }

    // The norm right before a product that reads just what it writes, and writes nothing that it reads; or null.
    Norm<T> *norm_before(const View &src, const View *dst) const {
        if (ops_.empty() || ops_.back().section != needs_.section()) return nullptr;
        Norm<T> *norm = ops_.back().norm.get();
        const bool same = norm && norm->dst.buffer == src.buffer && norm->dst.offset == src.offset &&
                          norm->dst.width == src.width;
        return same && norm->src.buffer != src.buffer && !(dst && overlap(norm->src, *dst)) ? norm : nullptr;
    }

    // Performs an operation, those on each row together with others that follow it; returns what comes next.
    Place perform(Place op, Crew &crew, Run<T> &run) const {
        if (!takes_part(*op, run)) return op + 1;
        if (op->row_work) return perform_rows(op, crew, run);
        if (op->matrix) announce(op + 1, run.order, crew);
        else crew.fetch(LIGHT_LINES);
        op->phases(crew, run);
        return op + 1;
    }

    Place perform_rows(Place first, Crew &crew, Run<T> &run) const {
        Place last = first + 1;
        const auto follows = [&](const Op<T> &op) {
            return !takes_part(op, run) || (op.row_work && op.selected == first->selected && !op.gathers);
        };
        while (last != ops_.end() && follows(*last)) last++;
        int width = 0;
        for (Place op = first; op != last; op++)
            if (takes_part(*op, run)) width += op->width;
        if (width == 0) return last;
        crew.fetch(LIGHT_LINES);
        share_rows(crew, first->rows(run.order), width, [&](int row) {
            for (Place op = first; op != last; op++)
                if (takes_part(*op, run)) op->row_work(run, row);
        });
        return last;
    }

    // A norm that the product behind it takes over does not.
    static bool takes_part(const Op<T> &op, const Run<T> &run) {
        if (!runs(op.section, run.order.skipped) || (op.asked && !op.asked(run))) return false;
        return !op.norm || !op.norm->folded || !Entry<T>::few(op.rows(run.order), op.width);
    }

    // Has products take over the norms that nobody else reads.
    void fold() {
        for (const Op<T> &op : ops_)
            if (op.norm && op.norm->reader) {
                op.norm->folded = readers_[op.norm->dst.buffer] == 0;
                op.norm->reader->norm = op.norm->folded ? op.norm : nullptr;
            }
        folded_ = true;
    }

    // Tell a thread of the first matrix that is read from an operation on.
    void announce(Place from, const Order &order, Crew &crew) const {
        const auto reads = [&](const Op<T> &op) { return op.matrix && runs(op.section, order.skipped); };
        const Place next = std::find_if(from, ops_.end(), reads);
        if (next != ops_.end()) next->matrix->announce(crew);
    }

    void choose(const Run<T> &run, int row) const {
        const TokenChoice &choice = run.order.choice;
        const LogitRow logits{run.logits + std::ptrdiff_t(row) * run.order.logits_width, run.order.logits_width,
                              narrow()};
        choice.tokens[row] = choice.keys ? choice_kernels_.drawn(logits, choice.divisors ? choice.divisors[row] : 1,
                                                                 std::uint64_t(choice.keys[row]))
                                         : choice_kernels_.likeliest(logits);
    }

    // Note that an operation reads a view, other than a product what the norm before it writes.
    void read(const View &view) {
        check(view);
        readers_[view.buffer]++;
    }

    void check(const View &view) const {
        require(view.buffer >= 0 && view.buffer < int(buffers_.size()), "there is no such buffer");
        const int width = buffers_[view.buffer].width;
        require(view.offset >= 0 && view.width > 0 && view.width <= width && view.offset <= width - view.width,
                "a view must lie inside its buffer");
    }

    void same_width(const View &dst, const View &src) const {
        check(dst);
        check(src);
        require(dst.width == src.width, "input and output must be of one width");
    }

    const std::shared_ptr<const Matrix<T>> &at(int matrix) const {
        require(matrix >= 0 && matrix < int(matrices_.size()), "there is no such matrix");
        return matrices_[matrix];
    }

    const Matrix<T> &fitting(int matrix, const View &src, const View &dst, bool gated) const {
        check(src);
        check(dst);
        const Matrix<T> &weight = *at(matrix);
        require(weight.gated() == gated, "gated matrices are for gated products, plain ones for plain products");
        require(weight.inputs() == src.width && weight.outputs() == dst.width,
                "the matrix does not fit input and output");
        return weight;
    }

    void check_heads(const View &src, const Attending &a, const HeadNorm &norm, bool queries) {
        check(src);
        require(a.kv_heads > 0 && a.heads > 0 && a.heads % a.kv_heads == 0,
                "query heads must be a multiple of key heads");
        require(a.heads <= MOST_WIDTH / MOST_HEAD / 4, "there are too many heads");
        require(a.size > 0 && a.size <= MOST_HEAD && a.size % 2 == 0, "a head's size must be even, at most ",
                MOST_HEAD);
        require(a.window >= 0, "a window must not be negative");
        require(src.width == ((queries ? a.heads : 0) + 2 * a.kv_heads) * a.size,
                "attention's input must hold all heads");
        require(a.rotary >= -1 && a.rotary < int(rotaries_.size()), "there is no such rotary embedding");
        require(a.rotary < 0 || rotaries_[a.rotary].size() <= a.size,
                "a rotary embedding turns more than a head holds");
        for (const auto *weight : {&norm.query, &norm.key})
            require(weight->empty() || int(weight->size()) == a.size, "a head's norm must be as wide as a head");
        needs_.layer(a);
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

    const Kernels<T> &kernels_;
    const ChoiceKernels &choice_kernels_ = *find_choice_kernels("");
    std::shared_ptr<Threads> threads_;
    std::vector<Buffer<T>> buffers_;
    std::vector<int> readers_;  // of each buffer, other than products of the norm right before them
    std::vector<std::shared_ptr<const Matrix<T>>> matrices_;
    std::vector<Rotary> rotaries_;
    std::vector<Angles> angles_;
    std::vector<Memory> scratch_, wide_, own_;
    Memory int8_, logits_;
    std::size_t widened_ = 0;  // numbers of a row, at most
    int int8_parts_ = 0;       // the same
    std::vector<Op<T>> ops_;
    bool folded_ = true;
    Needs needs_;
    std::mutex one_run_;
    bool selected_ = false;
};

}  // namespace

std::unique_ptr<Program> make_program(bool narrow, const KernelSet &kernels, std::shared_ptr<Threads> threads) {
    if (narrow) return std::make_unique<TypedProgram<bf16>>(*kernels.narrow, std::move(threads));
    return std::make_unique<TypedProgram<float>>(*kernels.wide, std::move(threads));
}

}  // namespace foredraft
