// Memory that begins on a cache line, as torch's own, and ends with its last byte where a sanitizer looks.
#ifndef GPT149_PLAIN_ALIGNED_H
#define GPT149_PLAIN_ALIGNED_H

#include <cstdint>
#include <cstdlib>
#include <new>

// There in a program with AddressSanitizer, whichever of its objects were compiled for it.
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

// `base` is what to free. What posix_memalign gives back when it is freed is too small for the next of its kind, which
// needs room to align it: for some eight calls memory was fetched anew, and each took up to twice as long (measured).
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
