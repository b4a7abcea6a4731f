#include "rotary.hpp"

#include <cmath>

#include "bf16.hpp"

namespace foredraft {

namespace {
const std::int64_t PAGE = 64;  // positions
}

const float *Rotary::at(std::int64_t position) {
    const std::size_t page = std::size_t(position / PAGE), half = frequencies_.size();
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (!pages_[page]) {
        auto fresh = std::make_unique<float[]>(PAGE * 2 * half);
        for (std::int64_t i = 0; i < PAGE; i++)
            for (std::size_t j = 0; j < half; j++) {
                float angle = float(std::int64_t(page) * PAGE + i) * frequencies_[j];
                float cos = std::cos(angle) * factor_, sin = std::sin(angle) * factor_;
                fresh[(2 * i) * half + j] = narrow_ ? rounded<bf16>(cos) : cos;
                fresh[(2 * i + 1) * half + j] = narrow_ ? rounded<bf16>(sin) : sin;
            }
        pages_[page] = std::move(fresh);
    }
    return pages_[page].get() + (position % PAGE) * 2 * half;
}

}  // namespace foredraft
