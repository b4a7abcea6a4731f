#include "threads.hpp"

#include <cassert>

namespace foredraft {

namespace {

const int SPINS = 4000;       // some ten microseconds: longer than most phases of a small model are apart
const int IDLE_SPINS = 2000;  // between jobs: a step's bookkeeping is longer than any spin worth its power

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

}  // namespace

bool Crew::enter(int chunks) {
    assert(phase_ < threads_.room_);
    phase_++;
    return chunks > 0;
}

int Crew::claim(int chunks) {
    auto &phase = threads_.phases_[phase_ - 1];
    if (phase.next.load(std::memory_order_relaxed) >= chunks) return -1;
    int chunk = phase.next.fetch_add(1, std::memory_order_relaxed);
    return chunk < chunks ? chunk : -1;
}

void Crew::finish(int chunks) {
    auto &phase = threads_.phases_[phase_ - 1];
    if (phase.done.fetch_add(1, std::memory_order_seq_cst) + 1 < chunks) return;
    if (threads_.sleepers_.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard<std::mutex> lock(threads_.sleep_mutex_);
    threads_.woken_.notify_all();
}

void Crew::wait(int chunks) {
    auto &done = threads_.phases_[phase_ - 1].done;
    for (int spin = 0; spin < SPINS; spin++) {
        if (done.load(std::memory_order_acquire) >= chunks) return;
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
        if (phases > room_) {
            phases_ = std::make_unique<Phase[]>(phases);
            room_ = phases;
        } else {
            for (std::size_t i = 0; i < phases; i++) {
                phases_[i].next.store(0, std::memory_order_relaxed);
                phases_[i].done.store(0, std::memory_order_relaxed);
            }
        }
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
