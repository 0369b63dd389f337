// Allocates memory that begins on a cache line, like torch's. With a sanitizer it has exactly the requested length.
#ifndef GPT149_PLAIN_ALIGNED_H
#define GPT149_PLAIN_ALIGNED_H

#include <cstdint>
#include <cstdlib>
#include <new>

// Not null in a program with AddressSanitizer, even if this file was compiled without it.
extern "C" void __asan_init() __attribute__((weak));

namespace gpt149_inside {

constexpr uintptr_t kLine = 64;

inline bool is_watched() {
#if defined(__APPLE__)
  return true;
#else
  return &__asan_init != nullptr;
#endif
}

// Returns the aligned address, and sets `base` to the address to free. On Linux without a sanitizer, this uses malloc:
// posix_memalign needs extra room for aligning, so it cannot reuse a freed block of the same size. With posix_memalign,
// the first eight or so calls of a kernel fetched new memory and took up to twice as long (measured).
inline void *aligned(size_t bytes, void **base) {
  if (is_watched()) {
    if (posix_memalign(base, kLine, bytes > 0 ? bytes : 1) != 0) throw std::bad_alloc();
    return *base;
  }
  *base = std::malloc(bytes + kLine);
  if (*base == nullptr) throw std::bad_alloc();
  return reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(*base) + kLine - 1) / kLine * kLine);
}

}  // namespace gpt149_inside

#endif
