// Memory that several tensors can share.
#ifndef GPT149_PLAIN_MEMORY_H
#define GPT149_PLAIN_MEMORY_H

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace gpt149 {

// An object that counts its owners. Each owner that lets go of it does an atomic "release". Only the last owner, which
// deletes the object, does an "acquire" as well. std::shared_ptr does both each time. This would order threads that
// take views of one tensor in a loop, and ThreadSanitizer would not see the races between them.
class Counted {
 public:
  Counted() = default;
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;
  virtual ~Counted();
  void keep() { owners_.fetch_add(1, std::memory_order_relaxed); }
  void let_go();

 private:
  std::atomic<int64_t> owners_{0};
};

template <class T>
class Owner {
 public:
  Owner() = default;
  explicit Owner(T *owned) : owned_(owned) { keep(); }
  Owner(const Owner &other) : owned_(other.owned_) { keep(); }
  Owner(Owner &&other) noexcept : owned_(std::exchange(other.owned_, nullptr)) {}
  Owner &operator=(Owner other) noexcept {
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~Owner() {
    if (owned_ != nullptr) owned_->let_go();
  }
  T *get() const { return owned_; }
  T *operator->() const { return owned_; }
  explicit operator bool() const { return owned_ != nullptr; }

 private:
  void keep() {
    if (owned_ != nullptr) owned_->keep();
  }
  T *owned_ = nullptr;
};

// Memory that begins at `first`. `base` is the address to free at the end; nullptr if the memory belongs to the caller.
struct Memory : Counted {
  Memory(void *start, void *to_free) : first(static_cast<char *>(start)), base(to_free) {}
  ~Memory() override { std::free(base); }
  char *const first;
  void *const base;

  // Allocates memory that begins on a cache line.
  static Owner<Memory> allocate(size_t bytes);
};

}  // namespace gpt149

#endif
