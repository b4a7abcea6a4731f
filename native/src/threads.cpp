#include "threads.hpp"

#include <algorithm>
#include <cassert>

namespace foredraft {

namespace {

const int SPINS = 4000;       // some hundred microseconds: longer than most phases of a model are apart
const int OWN_SHARE = 2;      // a thread takes one in so many of its own chunks that are left at once
const int SPIN_LINES = 8;     // asked for in each of them
const int IDLE_SPINS = 6000;  // between jobs, as long as the bookkeeping of a step: who sleeps comes late

// A state: the number of its job, how many chunks are done, how many are given away.
const int COUNT_BITS = 20, JOB_BITS = 64 - 2 * COUNT_BITS;
const std::uint64_t COUNT = (std::uint64_t(1) << COUNT_BITS) - 1, ONE_DONE = COUNT + 1;

std::uint64_t job_of(std::uint64_t state) { return state >> (2 * COUNT_BITS); }
int done_of(std::uint64_t state) { return int(state >> COUNT_BITS & COUNT); }
int given_of(std::uint64_t state) { return int(state & COUNT); }

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

}  // namespace

Crew::Crew(Threads &threads, int number)
    : threads_(threads), number_(number), count_(threads.count()), job_(threads.number_) {}

bool Crew::enter(int chunks) {
    assert(phase_ < threads_.room_ && std::uint64_t(chunks) <= COUNT);
    phase_++;
    return chunks > 0;
}

// The next chunks of the run that `owner` began with, none when there are no more. It takes some of its own at once,
// fewer towards the end: to claim one waits for all that the last one has written.
Crew::Span Crew::claim(int chunks, int owner) {
    const int size = size_of(chunks, owner);
    auto &value = threads_.state(phase_ - 1, owner).value;
    std::uint64_t seen = value.load(std::memory_order_relaxed), now;
    int given, count;
    do {
        now = job_of(seen) == job_ ? seen : job_ << (2 * COUNT_BITS);
        given = given_of(now);
        if (given >= size) return {0, 0};
        count = owner == number_ ? std::max(1, (size - given) / OWN_SHARE) : 1;
    } while (!value.compare_exchange_weak(seen, now + count, std::memory_order_relaxed));
    return {first_of(chunks, owner) + given, count};
}

void Crew::finish(int owner, int taken) {
    if (taken == 0) return;
    threads_.state(phase_ - 1, owner).value.fetch_add(taken * ONE_DONE, std::memory_order_seq_cst);
    if (threads_.sleepers_.load(std::memory_order_seq_cst) == 0) return;
    std::lock_guard<std::mutex> lock(threads_.sleep_mutex_);
    threads_.woken_.notify_all();
}

bool Crew::is_done(int chunks, int owner) const {
    const int size = size_of(chunks, owner);
    const std::uint64_t state = threads_.state(phase_ - 1, owner).value.load(std::memory_order_seq_cst);
    return size == 0 || (job_of(state) == job_ && done_of(state) == size);
}

void Crew::wait(int chunks) {
    if (phase_ < threads_.room_) __builtin_prefetch(&threads_.state(phase_, number_), 1);  // others have read it
    int owner = 0;
    const auto over = [&] {
        while (owner < count_ && is_done(chunks, owner)) owner++;
        return owner == count_;
    };
    for (int spin = 0; spin < SPINS; spin++) {
        if (over()) return;
        fetch(SPIN_LINES);
        pause();
    }
    std::unique_lock<std::mutex> lock(threads_.sleep_mutex_);
    threads_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
    threads_.woken_.wait(lock, over);
    threads_.sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

Threads::Threads(int count) : count_(count) {
    for (int number = 1; number < count; number++) workers_.emplace_back([this, number] { serve(number); });
}

Threads::~Threads() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        closing_ = true;
        jobs_++;
    }
    come_.notify_all();
    for (auto &worker : workers_) worker.join();
}

void Threads::run(std::size_t phases, const std::function<void(Crew &)> &job) {
    std::lock_guard<std::mutex> one(one_job_);
    make_room(phases);
    job_ = &job;
    jobs_++;
    if (asleep_ > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        come_.notify_all();
    }
    Crew crew(*this, 0);
    job(crew);
    job_ = nullptr;  // who has not come yet need not come any more
    wait_for_others();
}

// Room for the states of so many phases, none of which is of the job that begins.
void Threads::make_room(std::size_t phases) {
    if (phases > room_) {
        states_ = std::make_unique<State[]>(phases * count_);
        room_ = phases;
    }
    if (++number_ >> JOB_BITS) {
        for (std::size_t i = 0; i < room_ * count_; i++) states_[i].value = 0;
        number_ = 1;
    }
}

void Threads::wait_for_others() {
    for (int spin = 0; spin < SPINS; spin++) {
        if (inside_ == 0) return;
        pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_ = true;
    end_.wait(lock, [&] { return inside_ == 0; });
    waiting_ = false;
}

void Threads::serve(int number) {
    for (unsigned seen = 0;;) {
        for (int spin = 0; spin < IDLE_SPINS && jobs_.load(std::memory_order_relaxed) == seen; spin++) pause();
        sleep_until_job_after(seen);
        seen = jobs_;  // first: what closes is counted after it has been said, so it is seen now or waited for no more
        if (closing_) return;
        // Inside before the job is looked for: whoever has begun it takes it away, then looks who is inside.
        inside_++;
        if (const auto *job = job_.load()) {
            Crew crew(*this, number);
            (*job)(crew);
        }
        if (--inside_ == 0 && waiting_) {
            std::lock_guard<std::mutex> lock(mutex_);
            end_.notify_all();
        }
    }
}

void Threads::sleep_until_job_after(unsigned seen) {
    if (jobs_ != seen) return;
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_++;
    come_.wait(lock, [&] { return jobs_ != seen; });
    asleep_--;
}

}  // namespace foredraft
