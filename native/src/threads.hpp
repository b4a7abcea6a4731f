// A small thread pool whose work is a list of phases, each of them a number of chunks that anybody may take.
//
// A phase is over when all its chunks are done, not when all threads have come: a thread that a busy neighbour keeps
// from running delays nobody but for the chunks it holds. Each thread begins with a run of chunks of its own, so that it
// reads memory from front to back, then helps others with theirs. Waiting threads spin for a while, in which
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
        for (int turn = 0; turn < count_; turn++) {
            const int owner = (number_ + turn) % count_;
            int taken = 0;
            for (Span span; (span = claim(chunks, owner)).count > 0; taken += span.count)
                for (int i = 0; i < span.count; i++) body(span.first + i);
            finish(owner, taken);  // before looking for others' chunks: they may be waiting for these
        }
        wait(chunks);
    }

  private:
    struct Span {
        int first, count;
    };

    int first_of(int chunks, int owner) const { return int(std::int64_t(chunks) * owner / count_); }
    int size_of(int chunks, int owner) const { return first_of(chunks, owner + 1) - first_of(chunks, owner); }
    bool enter(int chunks);
    Span claim(int chunks, int owner);
    void finish(int owner, int taken);
    bool is_done(int chunks, int owner) const;
    void wait(int chunks);

    Threads &threads_;
    int number_, count_;
    const std::uint64_t job_;
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

    // How much is done and how much is given away of the run of chunks that a thread begins a phase with, and of which
    // job: what an earlier one has left there counts as nothing, so nobody has to fetch all of them to clear them. Each
    // has a cache line of its own, which its thread alone writes unless others help it.
    struct alignas(64) State {
        std::atomic<std::uint64_t> value{0};
    };

    State &state(std::size_t phase, int owner) { return states_[phase * count_ + owner]; }
    void make_room(std::size_t phases);
    void serve(int number);
    void sleep_until_job_after(unsigned seen);
    void wait_for_others();

    int count_;
    std::vector<std::thread> workers_;
    std::unique_ptr<State[]> states_;
    std::size_t room_ = 0;       // phases
    std::uint64_t number_ = 0;   // of the job, from 1 on

    std::mutex one_job_;
    std::mutex mutex_;
    std::condition_variable come_, end_;
    std::atomic<const std::function<void(Crew &)> *> job_{nullptr};
    std::atomic<unsigned> jobs_{0};  // that have been begun
    std::atomic<int> inside_{0}, asleep_{0};
    std::atomic<bool> closing_{false}, waiting_{false};

    std::mutex sleep_mutex_;
    std::condition_variable woken_;
    std::atomic<int> sleepers_{0};
};

}  // namespace foredraft
