// A small thread pool whose work is a list of phases, each of them a number of chunks that anybody may take.
//
// A phase is over when all its chunks are done, not when all threads have come: a thread that a busy neighbour keeps from
// running delays nobody but for the chunk it holds. Waiting threads spin for some microseconds, then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

class Threads;

// What one thread sees of a job: its number, and the phases in the order every thread walks through them.
class Crew {
  public:
    Crew(Threads &threads, int number) : threads_(threads), number_(number) {}

    int number() const { return number_; }

    // Run `body(chunk)` for each of `chunks`, together with the other threads; all are done when it returns.
    template <class Body> void share(int chunks, const Body &body) {
        if (!enter(chunks)) return;
        for (int chunk; (chunk = claim(chunks)) >= 0;) {
            body(chunk);
            finish(chunks);
        }
        wait(chunks);
    }

  private:
    bool enter(int chunks);
    int claim(int chunks);
    void finish(int chunks);
    void wait(int chunks);

    Threads &threads_;
    int number_;
    std::size_t phase_ = 0;
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
    struct alignas(64) Phase {
        std::atomic<int> next{0};
        std::atomic<int> done{0};
    };

    void serve(int number);

    int count_;
    std::vector<std::thread> workers_;
    std::unique_ptr<Phase[]> phases_;
    std::size_t room_ = 0;

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
