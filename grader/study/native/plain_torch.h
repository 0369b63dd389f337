// Forced in front of a student's file when it is built into a program without Python and torch: a tensor in main memory
// with what kernel files of the assignment use of torch's. A file that uses more of it does not compile here, and the
// caller says so. ThreadSanitizer and valgrind see nothing but the student's kernel in such a program, and it starts
// in milliseconds where torch takes a minute under valgrind.
#ifndef GPT149_PLAIN_TORCH_H
#define GPT149_PLAIN_TORCH_H

#include <sys/time.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iomanip>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
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

namespace c10 {

// The numbers are torch's own: they cross the same C interface.
enum class ScalarType : int8_t { Int = 3, Long = 4, Float = 6, Double = 7 };

template <class T>
constexpr ScalarType scalar_type_of() {
  if (std::is_same_v<T, float>) return ScalarType::Float;
  if (std::is_same_v<T, double>) return ScalarType::Double;
  return std::is_same_v<T, int64_t> ? ScalarType::Long : ScalarType::Int;
}

inline size_t width_of(ScalarType type) { return type == ScalarType::Long || type == ScalarType::Double ? 8 : 4; }

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  const char *what_without_backtrace() const { return what(); }
};

class IntArrayRef {
 public:
  IntArrayRef() = default;
  IntArrayRef(const int64_t *first, size_t count) : values_(first, first + count) {}
  IntArrayRef(std::initializer_list<int64_t> values) : values_(values) {}
  IntArrayRef(const std::vector<int64_t> &values) : values_(values) {}
  IntArrayRef(int64_t only) : values_{only} {}
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  int64_t operator[](size_t k) const { return values_[k]; }
  const int64_t *begin() const { return values_.data(); }
  const int64_t *end() const { return values_.data() + values_.size(); }
  std::vector<int64_t> vec() const { return values_; }

 private:
  std::vector<int64_t> values_;
};

struct Device {
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
};
inline constexpr Device kCPU{};

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type_(type) {}
  TensorOptions(Device) {}
  TensorOptions dtype(ScalarType type) const { return TensorOptions(type); }
  TensorOptions device(Device) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  ScalarType type() const { return type_; }

 private:
  ScalarType type_ = ScalarType::Float;
};

}  // namespace c10

namespace at {

using c10::Device;
using c10::IntArrayRef;
using c10::kCPU;
using c10::ScalarType;
using c10::TensorOptions;
inline constexpr ScalarType kFloat = ScalarType::Float, kDouble = ScalarType::Double;
inline constexpr ScalarType kInt = ScalarType::Int, kLong = ScalarType::Long;
inline TensorOptions dtype(ScalarType type) { return type; }
inline TensorOptions device(Device) { return {}; }

// Elements under up to N indices, without bounds, as torch's own.
template <class T, size_t N>
class TensorAccessor {
 public:
  TensorAccessor(T *data, const int64_t *sizes, const int64_t *strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  decltype(auto) operator[](int64_t k) const {
    if constexpr (N == 1) return static_cast<T &>(data_[k * strides_[0]]);
    else return TensorAccessor<T, N - 1>(data_ + k * strides_[0], sizes_ + 1, strides_ + 1);
  }
  int64_t size(int64_t k) const { return sizes_[k]; }
  int64_t stride(int64_t k) const { return strides_[k]; }
  T *data() const { return data_; }

 private:
  T *data_;
  const int64_t *sizes_, *strides_;
};

// Always contiguous. Copies of a Tensor share its memory, as in torch.
class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<char[]> memory, char *data, std::vector<int64_t> sizes, ScalarType type)
      : memory_(std::move(memory)), data_(data), sizes_(std::move(sizes)), strides_(sizes_.size()), type_(type) {
    int64_t stride = 1;
    for (size_t k = sizes_.size(); k-- > 0; stride *= sizes_[k]) strides_[k] = stride;
  }

  bool defined() const { return data_ != nullptr; }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t ndimension() const { return dim(); }
  IntArrayRef sizes() const { return sizes_; }
  IntArrayRef strides() const { return strides_; }
  int64_t size(int64_t k) const { return sizes_.at(static_cast<size_t>(k < 0 ? k + dim() : k)); }
  int64_t stride(int64_t k) const { return strides_.at(static_cast<size_t>(k < 0 ? k + dim() : k)); }
  int64_t numel() const {
    return std::accumulate(sizes_.begin(), sizes_.end(), int64_t{1}, std::multiplies<int64_t>());
  }
  int64_t element_size() const { return static_cast<int64_t>(c10::width_of(type_)); }
  int64_t nbytes() const { return numel() * element_size(); }
  Device device() const { return {}; }
  bool is_cpu() const { return true; }
  bool is_contiguous() const { return true; }
  ScalarType scalar_type() const { return type_; }
  ScalarType dtype() const { return type_; }
  TensorOptions options() const { return type_; }

  void *data_ptr() const { return data_; }
  template <class T>
  T *data_ptr() const {
    if (c10::scalar_type_of<std::remove_const_t<T>>() != type_) throw c10::Error("data_ptr of another type");
    return reinterpret_cast<T *>(data_);
  }
  template <class T>
  T *mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T>
  const T *const_data_ptr() const { return data_ptr<T>(); }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const {
    if (N != sizes_.size()) throw c10::Error("accessor with another number of dimensions");
    return {data_ptr<T>(), sizes_.data(), strides_.data()};
  }
  template <class T>
  T item() const { return *data_ptr<T>(); }

  Tensor contiguous() const { return *this; }
  Tensor detach() const { return *this; }
  Tensor cpu() const { return *this; }
  Tensor clone() const;
  Tensor view(IntArrayRef sizes) const { return Tensor(memory_, data_, whole(sizes), type_); }
  Tensor reshape(IntArrayRef sizes) const { return view(sizes); }
  Tensor flatten() const { return view({numel()}); }
  Tensor operator[](int64_t k) const { return select(0, k); }
  Tensor select(int64_t dimension, int64_t k) const {
    if (dimension != 0 || k < 0 || k >= size(0)) throw c10::Error("only an element of the first dimension");
    return Tensor(memory_, data_ + k * strides_[0] * element_size(), {sizes_.begin() + 1, sizes_.end()}, type_);
  }
  Tensor &zero_() { return fill_(0); }
  Tensor &fill_(double value) {
    for (int64_t k = 0; k < numel(); k++) {
      if (type_ == ScalarType::Float) data_ptr<float>()[k] = static_cast<float>(value);
      else if (type_ == ScalarType::Double) data_ptr<double>()[k] = value;
      else if (type_ == ScalarType::Long) data_ptr<int64_t>()[k] = static_cast<int64_t>(value);
      else data_ptr<int>()[k] = static_cast<int>(value);
    }
    return *this;
  }
  Tensor &copy_(const Tensor &other) {
    if (other.numel() != numel() || other.type_ != type_) throw c10::Error("copy_ of another shape or type");
    std::memcpy(data_, other.data_, static_cast<size_t>(nbytes()));
    return *this;
  }

 private:
  std::vector<int64_t> whole(IntArrayRef sizes) const {
    std::vector<int64_t> found = sizes.vec();
    int64_t product = 1, open = -1;
    for (size_t k = 0; k < found.size(); k++) {
      if (found[k] == -1) open = static_cast<int64_t>(k);
      else product *= found[k];
    }
    if (open >= 0) found[static_cast<size_t>(open)] = product == 0 ? 0 : numel() / product;
    else if (product != numel()) throw c10::Error("view with another number of elements");
    return found;
  }

  std::shared_ptr<char[]> memory_;
  char *data_ = nullptr;
  std::vector<int64_t> sizes_, strides_;
  ScalarType type_ = ScalarType::Float;
};

inline Tensor empty(IntArrayRef sizes, TensorOptions options = {}) {
  size_t count = 1;
  for (int64_t size : sizes) count *= static_cast<size_t>(size);
  // On a cache line, as torch's own; one line more, so that an empty tensor has an address too.
  size_t bytes = (count * c10::width_of(options.type()) + 127) / 64 * 64;
  std::shared_ptr<char[]> memory(static_cast<char *>(std::aligned_alloc(64, bytes)), [](char *p) { std::free(p); });
  char *first = memory.get();
  return Tensor(std::move(memory), first, sizes.vec(), options.type());
}
inline Tensor full(IntArrayRef sizes, double value, TensorOptions options = {}) {
  return empty(sizes, options).fill_(value);
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions options = {}) {
  Tensor made = empty(sizes, options);
  std::memset(made.data_ptr(), 0, static_cast<size_t>(made.nbytes()));
  return made;
}
inline Tensor ones(IntArrayRef sizes, TensorOptions options = {}) { return full(sizes, 1, options); }
inline Tensor empty_like(const Tensor &other) { return empty(other.sizes(), other.options()); }
inline Tensor zeros_like(const Tensor &other) { return zeros(other.sizes(), other.options()); }
inline Tensor ones_like(const Tensor &other) { return ones(other.sizes(), other.options()); }
inline Tensor from_blob(void *data, IntArrayRef sizes, TensorOptions options = {}) {
  return Tensor({}, static_cast<char *>(data), sizes.vec(), options.type());
}
inline Tensor Tensor::clone() const { return empty_like(*this).copy_(*this); }

// As torch's own: the range in equal pieces, one for each thread, if it is worth more than one.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F &body) {
  if (begin >= end) return;
#if defined(_OPENMP)
  if (!omp_in_parallel() && end - begin > grain && omp_get_max_threads() > 1) {
#pragma omp parallel
    {
      int64_t threads = omp_get_num_threads();
      if (grain > 0) threads = std::min(threads, (end - begin + grain - 1) / grain);
      int64_t piece = (end - begin + threads - 1) / threads;
      int64_t from = begin + omp_get_thread_num() * piece;
      if (from < end) body(from, std::min(end, from + piece));
    }
    return;
  }
#endif
  body(begin, end);
}
#if defined(_OPENMP)
inline int get_num_threads() { return omp_get_max_threads(); }
inline int get_thread_num() { return omp_get_thread_num(); }
#endif

}  // namespace at

namespace torch {
using namespace at;  // NOLINT
inline constexpr auto kInt32 = at::kInt;
inline constexpr auto kInt64 = at::kLong;
inline constexpr auto kFloat32 = at::kFloat;
inline constexpr auto kFloat64 = at::kDouble;
}  // namespace torch

#define TORCH_CHECK(condition, ...) \
  do {                              \
    if (!(condition)) throw c10::Error("TORCH_CHECK failed: " #condition); \
  } while (false)

#include "gpt149_abi.h"
#include "gpt149_pybind.h"

#endif
