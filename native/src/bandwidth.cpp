#include "bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "memory.hpp"

namespace foredraft {

namespace {

const int PASSES = 9, CHUNKS = 64;

const std::size_t LINE = 8;  // numbers of a cache line: reading one of them brings all

std::uint64_t folded(const std::uint64_t *from, std::size_t count) {
    std::uint64_t sums[8] = {};
    for (std::size_t i = 0; i + 8 * LINE <= count; i += 8 * LINE)
        for (std::size_t j = 0; j < 8; j++) sums[j] ^= from[i + j * LINE];
    std::uint64_t sum = 0;
    for (std::uint64_t s : sums) sum ^= s;
    return sum;
}

}  // namespace

double read_bandwidth(Threads &threads, std::size_t bytes) {
    Memory memory;
    memory.ensure(bytes);
    const std::size_t part = bytes / CHUNKS / 8;
    std::atomic<std::uint64_t> sink{0};  // so that nobody finds the reading useless
    std::vector<double> seconds;
    for (int pass = 0; pass < PASSES; pass++) {
        const auto begin = std::chrono::steady_clock::now();
        threads.run(1, [&](Crew &crew) {
            crew.share(CHUNKS, [&](int chunk) { sink ^= folded(memory.as<std::uint64_t>() + chunk * part, part); });
        });
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + PASSES / 2, seconds.end());
    return double(part * 8 * CHUNKS) / seconds[PASSES / 2];
}

}  // namespace foredraft
