// Forced in front of a student's file when it is built into a program without Python and torch: the names by which
// kernel files of the assignment use torch, and the standard headers that torch's own bring along. A file that uses
// more of torch does not compile here, and the caller says so. ThreadSanitizer and valgrind see nothing but the
// student's kernel in such a program, and it starts in milliseconds where torch takes a minute under valgrind.
//
// The headers hold what a loop may call and what depends on a type; the rest is compiled once, from the .cpp files beside
// them, which no student's file waits for. `grader.backends.native.standin` builds both.
//
//   plain_types.h      element types, sizes, options, numbers, errors
//   plain_layout.h     what views do with sizes and strides (for the .cpp files)
//   plain_memory.h     memory that tensors share
//   plain_accessor.h, plain_indexing.h, plain_tensor.h, plain_factories.h, plain_printing.h   tensors
//   plain_parallel.h   at::parallel_for
//   plain_checked.h    subscripts that are checked, in a program with sanitizers
#ifndef GPT149_PLAIN_TORCH_H
#define GPT149_PLAIN_TORCH_H

// Before all that has subscripts.
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

#include "plain_factories.h"
#include "plain_parallel.h"
#include "plain_printing.h"

namespace at {
using namespace c10;  // NOLINT
inline constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short;
inline constexpr ScalarType kInt = ScalarType::Int, kLong = ScalarType::Long, kBool = ScalarType::Bool;
inline constexpr ScalarType kFloat = ScalarType::Float, kDouble = ScalarType::Double;

inline TensorOptions dtype(ScalarType type) { return type; }
inline TensorOptions dtype(c10::TypeMeta type) { return type; }
template <class T>
TensorOptions dtype() { return c10::scalar_type_of<T>(); }
inline TensorOptions device(Device) { return {}; }
inline TensorOptions layout(Layout) { return {}; }
inline TensorOptions requires_grad(bool = true) { return {}; }

// Nothing here records gradients.
struct NoGradGuard {
  NoGradGuard() {}
  ~NoGradGuard() {}
};
using InferenceMode = NoGradGuard;
}  // namespace at

namespace caffe2 {
using c10::TypeMeta;
}  // namespace caffe2

namespace torch {
using namespace at;  // NOLINT
namespace indexing = at::indexing;
using Dtype = at::ScalarType;
inline constexpr auto kUInt8 = at::kByte;
inline constexpr auto kInt8 = at::kChar;
inline constexpr auto kInt16 = at::kShort;
inline constexpr auto kInt32 = at::kInt;
inline constexpr auto kInt64 = at::kLong;
inline constexpr auto kFloat32 = at::kFloat;
inline constexpr auto kFloat64 = at::kDouble;

// Unlike at::tensor's, the elements are those of Python: int64 for whole numbers, float for the others. Lists may lie in
// lists.
template <class T>
at::TensorOptions gpt149_pythons(at::TensorOptions options) {
  constexpr bool is_whole = std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>;
  if (options.has_dtype()) return options;
  return options.dtype(is_whole ? at::kLong : std::is_floating_point_v<T> ? at::kFloat : c10::scalar_type_of<T>());
}
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
at::Tensor tensor(T value, at::TensorOptions options = {}) {
  return at::scalar_tensor(value, gpt149_pythons<T>(options));
}
template <class T>
at::Tensor tensor(at::ArrayRef<T> values, at::TensorOptions options = {}) {
  if constexpr (std::is_same_v<T, bool>) {
    const std::vector<uint8_t> bytes(values.begin(), values.end());
    return at::tensor(at::ArrayRef<uint8_t>(bytes), gpt149_pythons<T>(options));
  } else {
    return at::tensor(values, gpt149_pythons<T>(options));
  }
}
template <class T>
at::Tensor tensor(const std::vector<T> &values, at::TensorOptions options = {}) {
  return tensor(at::ArrayRef<T>(values), options);
}
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
at::Tensor tensor(std::initializer_list<T> values, at::TensorOptions options = {}) {
  return tensor(at::ArrayRef<T>(values), options);
}
template <class T>
at::Tensor tensor(std::initializer_list<std::initializer_list<T>> rows, at::TensorOptions options = {}) {
  std::vector<T> values;
  for (const auto &row : rows) {
    TORCH_CHECK(row.size() == rows.begin()->size(), "Expected all sub-lists to have sizes: ", rows.begin()->size(),
                " (e.g. ", at::ArrayRef<T>(*rows.begin()), "), but got sub-list ", at::ArrayRef<T>(row), " with sizes: ",
                row.size());
    values.insert(values.end(), row.begin(), row.end());
  }
  const auto count = static_cast<int64_t>(rows.size());
  return tensor(values, options).reshape({count, static_cast<int64_t>(values.size()) / (count > 0 ? count : 1)});
}
}  // namespace torch

#define GPT149_CASE(TYPE, CPP, ...)  \
  case c10::ScalarType::TYPE: {      \
    using scalar_t = CPP;            \
    return __VA_ARGS__();            \
  }
#define GPT149_DISPATCH(TYPE, NAME, ...)                                                                       \
  [&] {                                                                                                       \
    const c10::ScalarType gpt149_type = (TYPE);                                                               \
    switch (gpt149_type) {                                                                                    \
      __VA_ARGS__                                                                                             \
      default: c10::fail_not_implemented("", c10::str('"', NAME, "\" not implemented for '", gpt149_type, "'")); \
    }                                                                                                         \
  }()
#define GPT149_FLOATING(...) GPT149_CASE(Float, float, __VA_ARGS__) GPT149_CASE(Double, double, __VA_ARGS__)
#define GPT149_INTEGRAL(...)                                                                                   \
  GPT149_CASE(Byte, uint8_t, __VA_ARGS__) GPT149_CASE(Char, int8_t, __VA_ARGS__) GPT149_CASE(Int, int32_t, __VA_ARGS__) \
  GPT149_CASE(Long, int64_t, __VA_ARGS__) GPT149_CASE(Short, int16_t, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) GPT149_DISPATCH(TYPE, NAME, GPT149_FLOATING(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) GPT149_DISPATCH(TYPE, NAME, GPT149_INTEGRAL(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  GPT149_DISPATCH(TYPE, NAME, GPT149_FLOATING(__VA_ARGS__) GPT149_INTEGRAL(__VA_ARGS__))

#define GPT149_GLUE_APART
#include "gpt149_abi.h"
#include "gpt149_pybind.h"

#endif
