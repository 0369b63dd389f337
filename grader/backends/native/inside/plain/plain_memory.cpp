// Memory that several tensors share: taking it and giving it back.
#include "plain_memory.h"

#include <cstdlib>

#include "plain_aligned.h"

namespace gpt149 {

Counted::~Counted() = default;
void Counted::let_go() {
  if (owners_.fetch_sub(1, std::memory_order_release) != 1) return;
  owners_.load(std::memory_order_acquire);
  delete this;
}

Memory::Memory(void *first, std::function<void(void *)> give_back)
    : first_(static_cast<char *>(first)), give_back_(std::move(give_back)) {}
Memory::~Memory() {
  if (give_back_) give_back_(first_);
}

Owner<Memory> Memory::allocate(size_t bytes) {
  void *base = nullptr;
  void *first = gpt149_inside::aligned(bytes, &base);
  return Owner<Memory>(new Memory(first, [base](void *) { std::free(base); }));
}

}  // namespace gpt149
