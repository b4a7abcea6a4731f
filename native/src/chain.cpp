#include "chain.hpp"

#include <algorithm>

#include "choice.hpp"
#include "require.hpp"

namespace foredraft {

namespace {

// Chooses tokens from rows of logits; keeps its buffers between rows.
class Chooser {
  public:
    Chooser(const ChainOrder &order, bool narrow)
        : order_(order), narrow_(narrow), count_(std::min(order.columns, order.width)),
          kernels_(*find_choice_kernels("")) {}

    void choose(Chain &chain, const void *row) {
        const LogitRow logits{row, count_, narrow_};
        if (chain.keys.empty() && chain.divisor == 1) return take(chain, logits, kernels_.likeliest(logits));
        perturb(chain, row);
        const LogitRow values{values_.data(), count_, false};
        take(chain, values, kernels_.likeliest(values));
    }

  private:
    float logit(const void *row, int column) const {
        return narrow_ ? widened(static_cast<const bf16 *>(row)[column]) : static_cast<const float *>(row)[column];
    }

    // Logits over the divisor, under the noise of the position their token would take where there is any.
    void perturb(const Chain &chain, const void *row) {
        values_.assign(count_, 0.0f);
        if (!chain.keys.empty()) add_noise(chain.keys[chain.tokens.size()]);
        for (int i = 0; i < count_; i++) values_[i] = logit(row, i) / chain.divisor + values_[i];
    }

    void add_noise(std::int64_t key) {
        if (order_.ids) {
            keys_.assign(count_, key);
            kernels_.gumbel_pairs(keys_.data(), order_.ids, count_, values_.data());
        } else {
            kernels_.gumbel_row(std::uint64_t(key), count_, values_.data());
        }
    }

    void take(Chain &chain, const LogitRow &values, std::int64_t best) const {
        const double value = values.narrow ? widened(static_cast<const bf16 *>(values.data)[best])
                                           : static_cast<const float *>(values.data)[best];
        chain.tokens.push_back(order_.ids ? order_.ids[best] : best);
        chain.gains.push_back(value - kernels_.log_sum_exp(values));
    }

    const ChainOrder &order_;
    bool narrow_;
    int count_;
    const ChoiceKernels &kernels_;
    std::vector<float> values_;
    std::vector<std::int64_t> keys_;
};

// The rows of all chains that still want tokens.
struct Level {
    std::vector<std::int64_t> tokens, positions, write, wanted;
    std::vector<Segment> segments;

    void add(const Chain &chain) {
        const int run = int(chain.tokens.size()) - 1;  // drafted rows that have been run
        segments.push_back({int(tokens.size()), 1, chain.context + run, chain.first, chain.list, nullptr});
        wanted.push_back(std::int64_t(tokens.size()));
        tokens.push_back(chain.tokens.back());
        positions.push_back(chain.position + run);
        write.push_back(chain.scratch[run]);
    }
};

// Rows of `width` bytes, those of `kept` one after another.
std::vector<char> gathered(const char *rows, std::size_t width, const std::vector<int> &kept) {
    std::vector<char> out(width * kept.size());
    for (std::size_t i = 0; i < kept.size(); i++) std::copy_n(rows + kept[i] * width, width, out.data() + i * width);
    return out;
}

void check(const ChainOrder &order, const std::vector<Chain> &chains, const Demands &demands) {
    require(demands.logits == order.columns, "the logits are not as wide as the program's");
    require(order.width > 0, "width must be at least 1");
    require((demands.inputs.empty() ? 0 : demands.inputs[0]) == order.hidden_width && demands.inputs.size() < 2,
            "the hidden states do not fit the program's input");
    require(demands.output == order.hidden_width, "the program's output must be what its input takes");
    for (const Chain &chain : chains) {
        const std::size_t depth = std::size_t(std::max(chain.depth, 1));
        require(chain.depth >= 1 && chain.scratch.size() >= depth - 1,
                "a chain needs a slot for each row but the last");
        require(chain.keys.empty() || chain.keys.size() >= depth, "a chain needs a key for each depth");
        require(chain.divisor > 0, "a divisor must be above 0");
    }
}

}  // namespace

void draft_chains(Program &program, const ChainOrder &order, std::vector<Chain> &chains) {
    const Demands demands = program.demands(order.skipped);
    check(order, chains, demands);
    const std::size_t bytes = program.narrow() ? sizeof(bf16) : sizeof(float);
    const std::size_t row_bytes = order.columns * bytes, hidden_bytes = order.hidden_width * bytes;
    Chooser chooser(order, program.narrow());
    std::vector<char> logits, hidden, outputs;
    const char *rows = static_cast<const char *>(order.logits), *handed = static_cast<const char *>(order.hidden);
    std::vector<Chain *> going;
    for (Chain &chain : chains) going.push_back(&chain);
    while (true) {
        Level level;
        std::vector<Chain *> next;
        std::vector<int> kept;
        for (std::size_t i = 0; i < going.size(); i++) {
            chooser.choose(*going[i], rows + i * row_bytes);
            if (int(going[i]->tokens.size()) == going[i]->depth) continue;
            level.add(*going[i]);
            next.push_back(going[i]);
            kept.push_back(int(i));
        }
        going = std::move(next);
        if (going.empty()) return;
        Order run{};
        run.cache = order.cache;
        run.rows = run.wanted = int(going.size());
        run.tokens = level.tokens.data();
        run.positions = level.positions.data();
        run.write = level.write.data();
        run.wanted_rows = level.wanted.data();
        run.segments = std::move(level.segments);
        run.skipped = order.skipped;
        if (handed) {
            hidden = gathered(handed, hidden_bytes, kept);
            run.inputs.push_back(hidden.data());
            outputs.resize(hidden_bytes * going.size());
            run.output = outputs.data();
        }
        logits.resize(row_bytes * going.size());
        run.logits = logits.data();
        run.logits_width = order.columns;
        program.run(run);
        rows = logits.data();
        handed = handed ? outputs.data() : nullptr;
    }
}

}  // namespace foredraft
