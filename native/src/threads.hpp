// A small thread pool whose work is a list of phases, each of them a number of chunks that anybody may take.
//
// A phase is over when all its chunks are done, not when all threads have come: a thread that a busy neighbour keeps
// from running delays nobody but for the chunk it holds. Each thread begins with a run of chunks of its own, so that it
// reads memory from front to back, then helps others with theirs. Waiting threads spin for some microseconds, in which
// they ask the memory for what they will read next, then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels.hpp"

namespace foredraft {

class Threads;

// What one thread sees of a job: its number, and the phases in the order every thread walks through them.
class Crew {
  public:
    Crew(Threads &threads, int number);

    int number() const { return number_; }

    // The chunk this thread begins a phase of so many with.
    int first(int chunks) const { return first_of(chunks, number_); }

    // Name what this thread reads once it is done with lighter work, and ask for some lines of it: the memory would be
    // idle meanwhile. While it waits for others, it asks for the rest.
    void expect(const char *from, std::size_t bytes) {
        expected_ = from;
        expected_end_ = from + bytes;
    }
    void fetch(int lines) {
        for (; lines > 0 && expected_ < expected_end_; lines--, expected_ += LINE) __builtin_prefetch(expected_, 0, 2);
    }

    // Run `body(chunk)` for each of `chunks`, together with the other threads; all are done when it returns.
    template <class Body> void share(int chunks, const Body &body) {
        if (!enter(chunks)) return;
        int taken = 0;
        for (int turn = 0; turn < count_; turn++)
            for (int chunk; (chunk = claim(chunks, (number_ + turn) % count_)) >= 0; taken++) body(chunk);
        finish(chunks, taken);
        wait(chunks);
    }

  private:
    int first_of(int chunks, int owner) const { return int(std::int64_t(chunks) * owner / count_); }
    bool enter(int chunks);
    int claim(int chunks, int owner);
    void finish(int chunks, int taken);
    void wait(int chunks);

    Threads &threads_;
    int number_, count_;
    std::size_t phase_ = 0;
    const char *expected_ = nullptr, *expected_end_ = nullptr;
};

class Threads {
  public:
    explicit Threads(int count);
    ~Threads();
    Threads(const Threads &) = delete;
    Threads &operator=(const Threads &) = delete;

    int count() const { return count_; }

    // Run `job` on the calling thread and on the others as they come, with room for `phases` phases; one job at a time.
    void run(std::size_t phases, const std::function<void(Crew &)> &job);

  private:
    friend class Crew;
    struct alignas(64) Counter {
        std::atomic<int> value{0};
    };

    // How many chunks of a phase are done, then how many each thread's own run has given away.
    Counter &done(std::size_t phase) { return counters_[phase * (count_ + 1)]; }
    Counter &given(std::size_t phase, int owner) { return counters_[phase * (count_ + 1) + 1 + owner]; }
    void clear(std::size_t phases);

    void serve(int number);

    int count_;
    std::vector<std::thread> workers_;
    std::unique_ptr<Counter[]> counters_;
    std::size_t room_ = 0;  // phases

    std::mutex one_job_;
    std::mutex mutex_;
    std::condition_variable come_, end_;
    const std::function<void(Crew &)> *job_ = nullptr;
    std::atomic<unsigned> jobs_{0};
    std::atomic<int> inside_{0};
    bool closing_ = false;

    std::mutex sleep_mutex_;
    std::condition_variable woken_;
    std::atomic<int> sleepers_{0};
};

}  // namespace foredraft
