#pragma once
#include <cstddef>

#include "threads.hpp"

namespace foredraft {

// Bytes a second that all threads together read from `bytes` of memory, the median of some passes.
double read_bandwidth(Threads &threads, std::size_t bytes);

}  // namespace foredraft
