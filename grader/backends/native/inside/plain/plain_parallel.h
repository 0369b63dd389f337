// The stand-in's at::parallel_for and functions about threads.
#ifndef GPT149_PLAIN_PARALLEL_H
#define GPT149_PLAIN_PARALLEL_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace at {

namespace plain {
// Number of this thread within parallel_for. In the student's own OpenMP region it is 0 in every thread, as with torch.
inline thread_local int thread_of_loop = 0;

struct Numbered {
  explicit Numbered(int number) : before(thread_of_loop) { thread_of_loop = number; }
  ~Numbered() { thread_of_loop = before; }
  const int before;
};
}  // namespace plain

inline int get_thread_num() { return plain::thread_of_loop; }
#if defined(_OPENMP)
inline int get_num_threads() { return omp_get_max_threads(); }
inline void set_num_threads(int threads) { omp_set_num_threads(threads); }
inline bool in_parallel_region() { return omp_in_parallel() != 0; }
#else
inline int get_num_threads() { return 1; }
inline void set_num_threads(int) {}
inline bool in_parallel_region() { return false; }
#endif
inline int64_t divup(int64_t x, int64_t y) { return (x + y - 1) / y; }

// Calls `body` on equal pieces of the range, one for each thread. A range of at most `grain` elements is one piece, and
// so is any range in a parallel region. The first exception is thrown again.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F &body) {
  if (begin >= end) return;
#if defined(_OPENMP)
  if (end - begin > std::max<int64_t>(grain, 1) && !in_parallel_region() && get_num_threads() > 1) {
    std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
    std::exception_ptr failure;
#pragma omp parallel
    {
      int64_t threads = omp_get_num_threads();
      if (grain > 0) threads = std::min(threads, divup(end - begin, grain));
      const int64_t piece = divup(end - begin, threads), from = begin + omp_get_thread_num() * piece;
      if (from < end) {
        try {
          plain::Numbered here(omp_get_thread_num());
          body(from, std::min(end, from + piece));
        } catch (...) {
          if (!has_failed.test_and_set()) failure = std::current_exception();
        }
      }
    }
    if (failure) std::rethrow_exception(failure);
    return;
  }
#endif
  plain::Numbered here(0);
  body(begin, end);
}

}  // namespace at

#endif
