// The stand-in for torch. The compiler includes it before a student's file (-include) in a build without Python and
// torch. It has the names of torch that kernel files of the assignment use, and the standard headers that torch
// includes. A file that uses more of torch does not compile with it, and the build reports this. In such a program,
// ThreadSanitizer and valgrind see only the student's kernel, and valgrind needs milliseconds for the start instead of
// a minute.
//
// The headers have the functions that a loop may call, and templates. The rest is in plain.cpp, which is compiled once.
// `grader.backends.native.standin` builds both.
//
//   plain_types.h      element types, sizes, options, numbers, errors
//   plain_layout.h     computation of sizes and strides (for plain.cpp)
//   plain_memory.h     memory that tensors share
//   plain_tensor.h     tensors, their indices and accessors
//   plain_parallel.h   at::parallel_for
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

#include "plain_parallel.h"
#include "plain_tensor.h"

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
