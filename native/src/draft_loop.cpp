#include "draft_loop.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "choice.hpp"
#include "require.hpp"

namespace foredraft {

namespace {

// A row whose logits say what hangs below a node.
struct Parent {
    Draft *draft;
    int node;  // NO_PARENT for the root
    std::vector<Ranked> best = {};
    double total = 0;

    int depth() const { return node == NO_PARENT ? 0 : draft->nodes[node].depth; }
};

// Hangs children below rows whose logits are known, and chooses whom to run next.
class Grower {
  public:
    Grower(const DraftOrder &order, int columns, bool narrow)
        : order_(order), narrow_(narrow), count_(std::min(columns, order.width)), kernels_(*find_choice_kernels("")) {}

    // Find the best tokens of a row.
    void rank(Parent &parent, const void *row) const {
        const Draft &draft = *parent.draft;
        const bool noisy = !draft.keys.empty();
        const std::uint64_t key = noisy ? std::uint64_t(draft.keys[parent.depth()]) : 0;
        const int width = std::min(draft.width, count_);
        parent.best.resize(width);
        const Perturbation by{draft.divisor, noisy ? &key : nullptr, order_.ids};
        parent.total = kernels_.drawn_top({row, count_, narrow_}, by, width, parent.best.data());
    }

    // Hang them below it; the row is wanted row `from` of its level.
    static void hang(const Parent &parent, int from) {
        auto &nodes = parent.draft->nodes;
        const int depth = parent.depth();
        const double base = parent.node == NO_PARENT ? 0 : nodes[parent.node].score;
        for (const Ranked &best : parent.best) {
            const double gain = best.value - parent.total;
            if (gain > -INFINITY)  // nor NaN: logits may be no numbers
                nodes.push_back({best.token, parent.node, depth + 1, gain, base + gain, from});
        }
    }

    // The best of the nodes from `fresh` on, all of one level, are to be run next where they are worth a row.
    static void advance(Draft &draft, int fresh) {
        const auto &nodes = draft.nodes;
        draft.frontier.clear();
        if (fresh == int(nodes.size()) || nodes[fresh].depth >= draft.depth) return;
        for (int node = fresh; node < int(nodes.size()); node++)
            if (draft.worth_behind(node) >= 0 && !draft.ends_at(node)) draft.frontier.push_back(node);
        std::stable_sort(draft.frontier.begin(), draft.frontier.end(),
                         [&](int a, int b) { return nodes[a].score > nodes[b].score; });
        if (int(draft.frontier.size()) > draft.width) draft.frontier.resize(draft.width);
        std::sort(draft.frontier.begin(), draft.frontier.end());
    }

  private:
    const DraftOrder &order_;
    bool narrow_;
    int count_;
    const ChoiceKernels &kernels_;
};

// Rows of several drafts, run together.
struct Level {
    std::vector<std::int64_t> tokens, positions, write, wanted;
    std::vector<Segment> segments;
    std::vector<std::vector<std::int64_t>> paths;  // slots of those segments whose slots are no run
    std::vector<int> from;                         // wanted row of the level before that each row goes on from

    // The pending rows of a draft; the last one's logits are wanted.
    void begin(const Draft &draft) {
        const int count = int(draft.pending.size());
        segments.push_back({int(tokens.size()), count, draft.context, draft.first, draft.list, nullptr});
        for (int row = 0; row < count; row++)
            add(draft.pending[row], draft.context + row, draft.slot(draft.context + row));
        wanted.push_back(std::int64_t(tokens.size()) - 1);
    }

    // A row for each node of the frontier, which sees its own path alone.
    void go_on(const Draft &draft) {
        for (int node : draft.frontier) {
            const Drafted &own = draft.nodes[node];
            const std::int64_t before = draft.begun() + own.depth - 1;
            const std::vector<std::int64_t> behind = path(draft, node);
            Segment segment{int(tokens.size()), 1, before, draft.first, nullptr, nullptr};
            if (draft.list || !goes_on(draft.slot(draft.begun()), behind)) {
                paths.push_back(slots(draft, behind));
                segment.list = paths.back().data();
            }
            segments.push_back(segment);
            wanted.push_back(std::int64_t(tokens.size()));
            from.push_back(own.from);
            add(own.token, before, behind.back());
        }
    }

  private:
    void add(std::int64_t token, std::int64_t position, std::int64_t slot) {
        tokens.push_back(token);
        positions.push_back(position);
        write.push_back(slot);
    }

    // Slots of a node's ancestors below the root and its own.
    static std::vector<std::int64_t> path(const Draft &draft, int node) {
        std::vector<std::int64_t> found;
        for (; node != NO_PARENT; node = draft.nodes[node].parent) found.push_back(draft.room[draft.nodes[node].place]);
        std::reverse(found.begin(), found.end());
        return found;
    }

    static bool goes_on(std::int64_t next, const std::vector<std::int64_t> &behind) {
        for (std::int64_t slot : behind)
            if (slot != next++) return false;
        return true;
    }

    static std::vector<std::int64_t> slots(const Draft &draft, const std::vector<std::int64_t> &behind) {
        std::vector<std::int64_t> all(draft.begun());
        if (draft.list) std::copy_n(draft.list, all.size(), all.begin());
        else std::iota(all.begin(), all.end(), draft.first);
        all.insert(all.end(), behind.begin(), behind.end());
        return all;
    }
};

void check_draft(const Draft &draft) {
    require(draft.depth >= 1 && draft.width >= 1 && draft.most >= 1 && !draft.pending.empty(),
            "a draft has a depth, a width, nodes and pending tokens");
    require(draft.list || draft.first <= INT64_MAX - draft.begun() - draft.depth, "a run of slots is too long");
    require(draft.keys.empty() || draft.keys.size() >= std::size_t(draft.depth), "a draft needs a key for each depth");
    require(draft.room.size() / std::size_t(draft.width) >= std::size_t(draft.depth - 1),
            "a draft needs slots for the rows of each level but the last");
    require(draft.divisor > 0, "a divisor must be above 0");
    require(draft.least <= 0, "a log-chance is not above 0");
    require(draft.candour > 0 && draft.row >= 0 && draft.run >= 0, "rows and runs cost no less than nothing");
    const auto &steps = draft.together.steps;
    require(steps.empty() || (steps.size() > 1 && draft.width == 1), "chains pay together, for no nodes and for some");
    require(std::all_of(steps.begin(), steps.end(), [](double cost) { return cost >= 0; }) &&
                std::is_sorted(steps.begin(), steps.end()),
            "steps cost no less than nothing, and no less than with fewer nodes");
    require(draft.onward > 0 && draft.onward <= 1, "how likely another token is accepted is a chance above 0");
}

// The rows of all drafts, level by level.
class Levels {
  public:
    Levels(Program &program, const DraftOrder &order, std::vector<Draft> &drafts)
        : program_(program), order_(order), first_(program.demands(order.first_skipped)),
          later_(program.demands(order.skipped)), bytes_(program.narrow() ? sizeof(bf16) : sizeof(float)),
          grower_(order, first_.logits, program.narrow()) {
        check();
        for (Draft &draft : drafts) {
            check_draft(draft);
            going_.push_back(&draft);
            if (draft.together.steps.size() > together_.steps.size()) together_ = draft.together;
        }
        all_ = going_;
    }

    void draft() {
        Level level;
        for (Draft *draft : going_) {
            level.begin(*draft);
            parents_.push_back({draft, NO_PARENT});
        }
        run(level, order_.features, order_.first_skipped);
        for (grow(); !going_.empty(); grow()) {
            Level next;
            parents_.clear();
            for (Draft *draft : going_) {
                next.go_on(*draft);
                for (int node : draft->frontier) parents_.push_back({draft, node});
            }
            const std::vector<char> entered = handed_on(next.from);
            run(next, entered.data(), order_.skipped);
        }
        if (!together_.steps.empty()) cut();
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
        run.then = [this](int row) { grower_.rank(parents_[row], logits_.data() + row * bytes_ * later_.logits); };
        program_.run(run);
    }

    // Children below all rows just run; those drafts go on that have more to run, while that is worth a run.
    void grow() {
        auto parent = parents_.begin();
        for (Draft *draft : going_) {
            const int fresh = int(draft->nodes.size());
            for (; parent != parents_.end() && parent->draft == draft; parent++)
                Grower::hang(*parent, int(parent - parents_.begin()));
            Grower::advance(*draft, fresh);
        }
        if (together_.steps.empty()) stop();
        else stop_chains();
        for (Draft *draft : going_)
            for (int node : draft->frontier) draft->nodes[node].place = draft->placed++;
        going_.erase(std::remove_if(going_.begin(), going_.end(), [](Draft *draft) { return draft->frontier.empty(); }),
                     going_.end());
    }

    // A run takes about as long for one draft as for all of them, so all of them together must be worth it; one that
    // is free is run anyhow, and the others with it at no cost.
    void stop() {
        double worth = 0, cost = 0;
        for (const Draft *draft : going_) {
            if (draft->free() && !draft->frontier.empty()) return;
            for (int node : draft->frontier) worth += draft->worth_behind(node);
            cost = std::max(cost, draft->run);
        }
        if (worth < cost)
            for (Draft *draft : going_) draft->frontier.clear();
    }

    // The same of chains that pay together: some may go on where others do not.
    void stop_chains() {
        int nodes = 0;
        for (const Draft *draft : all_) nodes += int(draft->nodes.size());
        std::vector<Draft *> growing;
        std::vector<End> ends;
        std::vector<int> free;
        for (Draft *draft : going_) {
            if (draft->frontier.empty()) continue;
            const int node = draft->frontier[0], left = draft->depth - draft->nodes[node].depth;
            if (draft->free()) {
                free.push_back(left);
                continue;
            }
            growing.push_back(draft);
            const double onward = draft->onward;
            ends.push_back({onward * draft->chance_of(node), onward, left});
        }
        const std::vector<char> goes = worth_growing(ends, nodes, together_, free);
        for (std::size_t i = 0; i < growing.size(); i++)
            if (!goes[i]) growing[i]->frontier.clear();
    }

    // What is not worth verifying beside all that has been drafted is not kept.
    void cut() {
        std::vector<double> chances;
        int beside = 0;
        for (const Draft *draft : all_) {
            if (draft->free()) beside += int(draft->nodes.size());
            else
                for (int node = 0; node < int(draft->nodes.size()); node++) chances.push_back(draft->chance_of(node));
        }
        const double least = least_worth_a_row(std::move(chances), together_, beside);
        for (Draft *draft : all_)
            if (!draft->free()) draft->row = std::max(draft->row, least);
    }

    // What the rows `from` of the level just run hand on.
    std::vector<char> handed_on(const std::vector<int> &from) const {
        const std::size_t width = bytes_ * later_.output;
        std::vector<char> rows(width * from.size());
        for (std::size_t i = 0; i < from.size() && width; i++)
            std::copy_n(handed_.data() + from[i] * width, width, rows.data() + i * width);
        return rows;
    }

    Program &program_;
    const DraftOrder &order_;
    const Demands first_, later_;
    const std::size_t bytes_;
    Grower grower_;
    std::vector<Draft *> all_, going_;
    Costs together_;
    std::vector<Parent> parents_;  // of the rows of a level
    std::vector<char> logits_, handed_;
};

}  // namespace

std::vector<int> Draft::kept() const {
    std::vector<int> chosen;
    for (int node = 0; node < int(nodes.size()); node++)
        if (worth_of(node) >= 0) chosen.push_back(node);  // a parent is worth no less than its child
    if (chosen.size() <= std::size_t(most)) return chosen;
    // A parent never scores below its child, and wins ties by being shallower.
    std::sort(chosen.begin(), chosen.end(), [&](int a, int b) {
        const Drafted &one = nodes[a], &other = nodes[b];
        if (one.score != other.score) return one.score > other.score;
        return one.depth != other.depth ? one.depth < other.depth : a < b;
    });
    chosen.resize(most);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

void run_drafts(Program &program, const DraftOrder &order, std::vector<Draft> &drafts) {
    Levels(program, order, drafts).draft();
}

}  // namespace foredraft
