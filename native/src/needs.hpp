// What a program needs of whoever runs it: collected while it is composed, compared with each order.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "program.hpp"

namespace foredraft {

// Whether what belongs to a section takes part in a run without some.
bool runs(int section, const std::vector<int> &skipped);

class Needs {
  public:
    explicit Needs(bool narrow) : narrow_(narrow) {}

    // What follows belongs to this section.
    void begin(int section) { section_ = section; }
    int section() const { return section_; }

    void embedding(std::int64_t tokens) { tables_.push_back({section_, tokens}); }
    void input(int index, int width);
    void layer(const Attending &attending) { layers_.push_back({section_, attending}); }
    void feature(int boundary, int width);
    void logits(int width) { logits_.push_back({section_, width}); }
    void output(int width) { outputs_.push_back({section_, width}); }

    int width_of(int boundary) const;  // of a feature; -1 where none is kept
    Demands demands(const std::vector<int> &skipped) const;

    // Throws where a run would read or write what is not there.
    void check(const Order &order) const;

  private:
    // Something that belongs to a section.
    template <class Value> struct Own {
        int section;
        Value value;
    };
    struct Input {
        int index, width;
    };

    void check_rows(const Order &order) const;
    std::int64_t slots_of(const Order &order) const;

    bool narrow_;
    int section_ = -1;
    std::vector<Own<std::int64_t>> tables_;
    std::vector<Own<Input>> inputs_;
    std::vector<Own<Attending>> layers_;
    std::vector<Own<int>> logits_, outputs_;
    std::map<int, int> features_;
};

}  // namespace foredraft
