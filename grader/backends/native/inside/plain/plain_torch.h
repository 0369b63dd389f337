// The stand-in for torch. The compiler includes it before a student's file (-include) in a build without Python and
// torch. It has the names of torch that kernel files of the assignment use, and the standard headers that torch
// includes. A file that uses more of torch does not compile with it, and the build reports this. In a program with the
// stand-in, ThreadSanitizer and valgrind see only the student's kernel, and valgrind needs milliseconds for the start
// instead of a minute.
//
// The headers have the functions that a loop may call, and templates. The rest is in plain.cpp, which is compiled once.
// `grader.backends.native.standin` builds both.
//
//   plain_types.h      element types, sizes, options, numbers, errors
//   plain_layout.h     computation of sizes and strides (for plain.cpp)
//   plain_tensor.h     memory that tensors share, tensors, their indices and accessors
//   plain_checked.h    subscripts that are checked, in a program with sanitizers
#ifndef GPT149_PLAIN_TORCH_H
#define GPT149_PLAIN_TORCH_H

// Must be included before the containers' headers, because it redefines the check in their operator[].
#include "plain_checked.h"

#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cassert>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <climits>
#include <clocale>
#include <cmath>
#include <complex>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cwchar>
#include <deque>
#include <exception>
#include <forward_list>
#include <functional>
#include <initializer_list>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <list>
#include <locale>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <sstream>
#include <stack>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>
#if __cplusplus >= 202002L
#include <bit>
#include <compare>
#include <concepts>
#include <numbers>
#include <span>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "plain_tensor.h"

// ---- at::parallel_for and functions about threads

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

// Calls `body` on equal pieces of the range, at most one for each thread. A range of at most `grain` elements is one
// piece, and so is any range in a parallel region. If calls of `body` throw, the caller gets the first exception.
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

// ---- names

namespace at {
using namespace c10;  // NOLINT
#define GPT149_NAMED(CPP, NAME) inline constexpr ScalarType k##NAME = ScalarType::NAME;
GPT149_ELEMENTS(GPT149_NAMED)
#undef GPT149_NAMED

inline TensorOptions dtype(ScalarType type) { return type; }
template <class T>
TensorOptions dtype() { return c10::scalar_type_of<T>(); }
inline TensorOptions device(Device) { return {}; }

// Does nothing: the stand-in does not record gradients.
struct NoGradGuard {
  NoGradGuard() {}
  ~NoGradGuard() {}
};
}  // namespace at

namespace torch {
using namespace at;  // NOLINT
namespace indexing = at::indexing;
using Dtype = at::ScalarType;
inline constexpr auto kUInt8 = at::kByte, kInt8 = at::kChar, kInt16 = at::kShort, kInt32 = at::kInt, kInt64 = at::kLong;
inline constexpr auto kFloat32 = at::kFloat, kFloat64 = at::kDouble;
}  // namespace torch

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...)                                              \
  [&] {                                                                                         \
    if ((TYPE) == c10::ScalarType::Double) {                                                    \
      using scalar_t = double;                                                                  \
      return __VA_ARGS__();                                                                     \
    }                                                                                           \
    TORCH_CHECK((TYPE) == c10::ScalarType::Float, '"', NAME, "\" not implemented for '", TYPE, "'"); \
    using scalar_t = float;                                                                     \
    return __VA_ARGS__();                                                                       \
  }()

#define GPT149_GLUE_APART
#include "gpt149_abi.h"
#include "gpt149_pybind.h"

#endif
