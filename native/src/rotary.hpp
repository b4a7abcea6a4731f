// Rotary embedding (Su et al. 2021): cosines and sines of positions, computed once and kept.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace foredraft {

class Rotary {
  public:
    // Angles are position * frequency in fp32; cosines and sines are multiplied by `factor`, then rounded to bf16
    // where `narrow`.
    Rotary(std::vector<float> frequencies, float factor, bool narrow)
        : frequencies_(std::move(frequencies)), factor_(factor), narrow_(narrow) {}

    int size() const { return 2 * int(frequencies_.size()); }

    // Cosines then sines of a position, `size()` numbers.
    const float *at(std::int64_t position);

  private:
    std::vector<float> frequencies_;
    float factor_;
    bool narrow_;
    std::vector<std::unique_ptr<float[]>> pages_;
};

}  // namespace foredraft
