#include "chain.hpp"

#include <algorithm>

#include "choice.hpp"
#include "require.hpp"

namespace foredraft {

namespace {

// Chooses tokens from rows of logits.
class Chooser {
  public:
    Chooser(const ChainOrder &order, int columns, bool narrow)
        : order_(order), narrow_(narrow), count_(std::min(columns, order.width)), kernels_(*find_choice_kernels("")) {}

    void choose(Chain &chain, const void *row) const {
        std::uint64_t key = 0;
        if (!chain.keys.empty()) key = std::uint64_t(chain.keys[chain.tokens.size()]);
        Ranked best;
        const double total = kernels_.drawn_top(
            {row, count_, narrow_}, {chain.divisor, chain.keys.empty() ? nullptr : &key, order_.ids}, 1, &best);
        chain.tokens.push_back(best.token);
        chain.gains.push_back(best.value - total);
        chain.path += chain.gains.back();
    }

  private:
    const ChainOrder &order_;
    bool narrow_;
    int count_;
    const ChoiceKernels &kernels_;
};

// Rows of several chains, run together.
struct Level {
    std::vector<std::int64_t> tokens, positions, write, wanted;
    std::vector<Segment> segments;

    // `count` rows of a chain behind `before` keys; the last one's logits are wanted.
    void add(const Chain &chain, std::int64_t before, const std::int64_t *own, int count) {
        segments.push_back({int(tokens.size()), count, before, chain.first, chain.list, nullptr});
        tokens.insert(tokens.end(), own, own + count);
        for (int row = 0; row < count; row++) {
            positions.push_back(before + row);
            write.push_back(chain.slot(before + row));
        }
        wanted.push_back(std::int64_t(tokens.size()) - 1);
    }
};

void check_chain(const Chain &chain) {
    const std::size_t depth = std::size_t(std::max(chain.depth, 1));
    require(chain.depth >= 1 && !chain.pending.empty(), "a chain has a depth and pending tokens");
    require(chain.list || chain.first <= INT64_MAX - chain.context - chain.rows(), "a run of slots is too long");
    require(chain.keys.empty() || chain.keys.size() >= depth, "a chain needs a key for each depth");
    require(chain.divisor > 0, "a divisor must be above 0");
}

// The rows of all chains, level by level.
class Levels {
  public:
    Levels(Program &program, const ChainOrder &order, std::vector<Chain> &chains)
        : program_(program), order_(order), first_(program.demands(order.first_skipped)),
          later_(program.demands(order.skipped)), bytes_(program.narrow() ? sizeof(bf16) : sizeof(float)),
          chooser_(order, first_.logits, program.narrow()) {
        check();
        for (Chain &chain : chains) {
            check_chain(chain);
            going_.push_back(&chain);
        }
    }

    void draft() {
        Level level;
        for (const Chain *chain : going_)
            level.add(*chain, chain->context, chain->pending.data(), int(chain->pending.size()));
        run(level, order_.features, order_.first_skipped);
        for (choose(); !going_.empty(); choose()) {
            Level next;
            for (const Chain *chain : going_)
                next.add(*chain, chain->context + std::int64_t(chain->pending.size() + chain->tokens.size()) - 1,
                         &chain->tokens.back(), 1);
            const std::vector<char> handed = std::move(handed_);
            run(next, handed.data(), order_.skipped);
        }
    }

  private:
    void check() const {
        require(order_.width > 0, "width must be at least 1");
        require(first_.logits > 0 && later_.logits == first_.logits, "pending and drafted rows must give like logits");
        require(first_.inputs.size() < 2 && later_.inputs.size() < 2, "a drafter's rows read one input at most");
        require(first_.inputs.empty() || order_.features, "pending rows need what they read");
        require(later_.output == (later_.inputs.empty() ? 0 : later_.inputs[0]) && first_.output == later_.output,
                "the program's output must be what its input takes");
    }

    void run(Level &level, const void *input, const std::vector<int> &skipped) {
        Order run{};
        run.cache = order_.cache;
        run.rows = int(level.tokens.size());
        run.wanted = int(level.wanted.size());
        run.tokens = level.tokens.data();
        run.positions = level.positions.data();
        run.write = level.write.data();
        run.wanted_rows = level.wanted.data();
        run.segments = std::move(level.segments);
        run.skipped = skipped;
        run.inputs.push_back(input);
        logits_.resize(bytes_ * later_.logits * run.wanted);
        run.logits = logits_.data();
        run.logits_width = later_.logits;
        handed_.resize(bytes_ * later_.output * run.wanted);
        run.output = handed_.data();
        program_.run(run);
    }

    // A token for each chain that was run; those that want more go on, with what their rows hand on.
    void choose() {
        const std::size_t row = bytes_ * later_.logits, width = bytes_ * later_.output;
        std::size_t kept = 0;
        for (std::size_t i = 0; i < going_.size(); i++) {
            Chain &chain = *going_[i];
            chooser_.choose(chain, logits_.data() + i * row);
            if (chain.done()) continue;
            if (kept < i) std::copy_n(handed_.data() + i * width, width, handed_.data() + kept * width);
            going_[kept++] = &chain;
        }
        going_.resize(kept);
    }

    Program &program_;
    const ChainOrder &order_;
    const Demands first_, later_;
    const std::size_t bytes_;
    Chooser chooser_;
    std::vector<Chain *> going_;
    std::vector<char> logits_, handed_;
};

}  // namespace

void draft_chains(Program &program, const ChainOrder &order, std::vector<Chain> &chains) {
    Levels(program, order, chains).draft();
}

}  // namespace foredraft
