// Aligned memory that grows and, where it is large, asks for huge pages: weights are read from end to end every step.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace foredraft {

class Memory {
  public:
    Memory() = default;
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    Memory(Memory &&other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    Memory &operator=(Memory &&other) noexcept {
        if (this != &other) {
            std::free(data_);
            data_ = other.data_;
            size_ = other.size_;
            other.data_ = nullptr;
            other.size_ = 0;
        }
        return *this;
    }
    ~Memory() { std::free(data_); }

    // At least `bytes`, zeroed; what was in it is lost where it has to grow.
    void ensure(std::size_t bytes) {
        if (bytes <= size_) return;
        std::free(data_);
        data_ = nullptr;
        size_ = 0;
        const std::size_t huge = std::size_t(2) << 20;
        const std::size_t unit = bytes >= 2 * huge ? huge : 64;
        const std::size_t rounded = (bytes + unit - 1) / unit * unit;
        data_ = std::aligned_alloc(unit, rounded);
        if (!data_) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (unit == huge) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
        std::memset(data_, 0, rounded);
        size_ = rounded;
    }

    template <class T> T *as() const { return static_cast<T *>(data_); }
    std::size_t size() const { return size_; }

  private:
    void *data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace foredraft
