// Forced in front of a student's file when it is built into a program without Python and torch: the names by which
// kernel files of the assignment use torch, and the standard headers that torch's own bring along. A file that uses
// more of torch does not compile here, and the caller says so. ThreadSanitizer and valgrind see nothing but the
// student's kernel in such a program, and it starts in milliseconds where torch takes a minute under valgrind.
//
//   plain_types.h      element types, sizes, options, numbers, errors
//   plain_layout.h     what views do with sizes and strides
//   plain_memory.h     memory that tensors share
//   plain_accessor.h, plain_indexing.h, plain_tensor.h, plain_factories.h, plain_printing.h   tensors
//   plain_parallel.h   at::parallel_for
#ifndef GPT149_PLAIN_TORCH_H
#define GPT149_PLAIN_TORCH_H

#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

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
template <class T>
TensorOptions dtype() { return c10::scalar_type_of<T>(); }
inline TensorOptions device(Device) { return {}; }
inline TensorOptions requires_grad(bool = true) { return {}; }

// Nothing here records gradients.
struct NoGradGuard {
  NoGradGuard() {}
  ~NoGradGuard() {}
};
using InferenceMode = NoGradGuard;
}  // namespace at

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
}  // namespace torch

#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...)                  \
  [&] {                                                              \
    switch (TYPE) {                                                  \
      case c10::ScalarType::Float: {                                 \
        using scalar_t = float;                                      \
        return __VA_ARGS__();                                        \
      }                                                              \
      case c10::ScalarType::Double: {                                \
        using scalar_t = double;                                     \
        return __VA_ARGS__();                                        \
      }                                                              \
      default: throw c10::Error(c10::str(NAME, " not implemented for '", TYPE, "'")); \
    }                                                                \
  }()

#include "gpt149_abi.h"
#include "gpt149_pybind.h"

#endif
