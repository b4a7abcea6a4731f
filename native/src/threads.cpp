#include "threads.hpp"

#include <cassert>

namespace foredraft {

namespace {

const int SPINS = 4000;       // some ten microseconds: longer than most phases of a small model are apart
const int SPIN_LINES = 8;     // asked for in each of them
const int IDLE_SPINS = 2000;  // between jobs: a step's bookkeeping is longer than any spin worth its power

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

}  // namespace

Crew::Crew(Threads &threads, int number) : threads_(threads), number_(number), count_(threads.count()) {}

bool Crew::enter(int chunks) {
    assert(phase_ < threads_.room_);
    phase_++;
    return chunks > 0;
}

// The next chunk of the run that `owner` began with, -1 when there is none.
int Crew::claim(int chunks, int owner) {
    const int first = first_of(chunks, owner), last = first_of(chunks, owner + 1);
    auto &given = threads_.given(phase_ - 1, owner).value;
    if (first + given.load(std::memory_order_relaxed) >= last) return -1;
    const int chunk = first + given.fetch_add(1, std::memory_order_relaxed);
    return chunk < last ? chunk : -1;
}

void Crew::finish(int chunks, int taken) {
    if (taken == 0) return;
    auto &done = threads_.done(phase_ - 1).value;
    if (done.fetch_add(taken, std::memory_order_seq_cst) + taken < chunks) return;
    if (threads_.sleepers_.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard<std::mutex> lock(threads_.sleep_mutex_);
    threads_.woken_.notify_all();
}

void Crew::wait(int chunks) {
    auto &done = threads_.done(phase_ - 1).value;
    for (int spin = 0; spin < SPINS; spin++) {
        if (done.load(std::memory_order_acquire) >= chunks) return;
        fetch(SPIN_LINES);
        pause();
    }
    std::unique_lock<std::mutex> lock(threads_.sleep_mutex_);
    threads_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
    threads_.woken_.wait(lock, [&] { return done.load(std::memory_order_seq_cst) >= chunks; });
    threads_.sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Threads::Threads(int count) : count_(count) {
    for (int number = 1; number < count; number++) workers_.emplace_back([this, number] { serve(number); });
}

Threads::~Threads() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        closing_ = true;
        jobs_.fetch_add(1);
    }
    come_.notify_all();
    for (auto &worker : workers_) worker.join();
}

void Threads::run(std::size_t phases, const std::function<void(Crew &)> &job) {
    std::lock_guard<std::mutex> one(one_job_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        clear(phases);
        job_ = &job;
        jobs_.fetch_add(1);
    }
    if (count_ > 1) come_.notify_all();
    Crew crew(*this, 0);
    job(crew);
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // who has not come yet need not come any more
    lock.unlock();
    for (int spin = 0; spin < SPINS; spin++) {
        if (inside_.load(std::memory_order_acquire) == 0) return;
        pause();
    }
    lock.lock();
    end_.wait(lock, [&] { return inside_.load() == 0; });
}

void Threads::clear(std::size_t phases) {
    if (phases > room_) {
        counters_ = std::make_unique<Counter[]>(phases * (count_ + 1));
        room_ = phases;
        return;
    }
    for (std::size_t i = 0; i < phases * (count_ + 1); i++) counters_[i].value.store(0, std::memory_order_relaxed);
}

void Threads::serve(int number) {
    unsigned seen = 0;
    while (true) {
        for (int spin = 0; spin < IDLE_SPINS && jobs_.load(std::memory_order_relaxed) == seen; spin++) pause();
        std::unique_lock<std::mutex> lock(mutex_);
        come_.wait(lock, [&] { return closing_ || (job_ && jobs_.load() != seen); });
        if (closing_) return;
        seen = jobs_.load();
        const auto *job = job_;
        inside_.fetch_add(1);
        lock.unlock();
        Crew crew(*this, number);
        (*job)(crew);
        if (inside_.fetch_sub(1) == 1) {
            std::lock_guard<std::mutex> again(mutex_);
            end_.notify_all();
        }
    }
}

}  // namespace foredraft
