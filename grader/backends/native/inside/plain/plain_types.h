// Types that describe a tensor: element types, sizes, device, options, a single number, errors.
#ifndef GPT149_PLAIN_TYPES_H
#define GPT149_PLAIN_TYPES_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace c10 {

class Error : public std::exception {
 public:
  explicit Error(std::string text);
  ~Error() override;
  const char *what() const noexcept override;
  const char *what_without_backtrace() const noexcept { return what(); }

 private:
  std::string text_;
};
struct IndexError : Error {
  using Error::Error;
};
struct ValueError : Error {
  using Error::Error;
};

// Returns the arguments one after the other, as text. Marked cold, so that no time is spent on optimising it.
template <class... A>
[[gnu::cold, gnu::noinline]] std::string str(const A &...parts) {
  if constexpr (sizeof...(A) == 0) {
    return {};
  } else {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
  }
}

// Throws an E with the text `said`; if it is empty, with torch's text about the failed condition.
template <class E>
[[noreturn]] void fail(const char *condition, const std::string &said);
extern template void fail<Error>(const char *, const std::string &);
extern template void fail<IndexError>(const char *, const std::string &);
extern template void fail<ValueError>(const char *, const std::string &);

// ---- element types

// The element types: each type in C++ and its name in torch.
#define GPT149_ELEMENTS(EACH)                                                               \
  EACH(uint8_t, Byte) EACH(int8_t, Char) EACH(int16_t, Short) EACH(int, Int)                \
  EACH(int64_t, Long) EACH(float, Float) EACH(double, Double) EACH(bool, Bool)

// The numbers are the same as in torch, because the C interface to the runner uses torch's numbers.
enum class ScalarType : int8_t { Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Float = 6, Double = 7, Bool = 11 };

template <class T>
constexpr ScalarType scalar_type_of() {
#define GPT149_IS(CPP, NAME) std::is_same_v<T, CPP> ? ScalarType::NAME :
  constexpr auto none = static_cast<ScalarType>(-1), found = GPT149_ELEMENTS(GPT149_IS) none;
#undef GPT149_IS
  static_assert(found != none, "kernels cannot use tensors of this type");
  return found;
}

// Returns body(T()), where T is the C++ type of the elements.
template <class F>
auto with_element(ScalarType type, const F &body) {
  switch (type) {
#define GPT149_CALL(CPP, NAME) \
  case ScalarType::NAME: return body(CPP());
    GPT149_ELEMENTS(GPT149_CALL)
#undef GPT149_CALL
  }
  fail<Error>("", "there are no tensors of such elements here");
}

int64_t width_of(ScalarType type);
const char *toString(ScalarType type);
std::ostream &operator<<(std::ostream &out, ScalarType type);
inline bool isFloatingType(ScalarType type) { return type == ScalarType::Float || type == ScalarType::Double; }

enum class MemoryFormat : int8_t { Contiguous, Preserve };

// The integers from `first` to `last` - 1, for loops: for (auto i : c10::irange(n)).
template <class I>
struct WholeNumbers {
  struct Iterator {
    constexpr I operator*() const { return value; }
    constexpr Iterator &operator++() {
      ++value;
      return *this;
    }
    constexpr bool operator!=(Iterator other) const { return value != other.value; }
    I value;
  };
  constexpr Iterator begin() const { return {first}; }
  constexpr Iterator end() const { return {last}; }
  I first, last;
};
template <class I, class J>
constexpr WholeNumbers<J> irange(I first, J last) {
  static_assert(std::is_integral_v<I> && std::is_integral_v<J>);
  return {static_cast<J>(first), std::max(static_cast<J>(first), last)};
}
template <class I>
constexpr WholeNumbers<I> irange(I last) {
  return irange(I(), last);
}

// ---- sizes

// Points to elements that belong to another object, as in torch.
template <class T>
class ArrayRef {
 public:
  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T &only) : first_(&only), count_(1) {}
  constexpr ArrayRef(const T *first, size_t count) : first_(first), count_(count) {}
  ArrayRef(const std::vector<T> &values) : first_(values.data()), count_(values.size()) {}
  template <size_t N>
  constexpr ArrayRef(const std::array<T, N> &values) : first_(values.data()), count_(N) {}
  template <size_t N>
  constexpr ArrayRef(const T (&values)[N]) : first_(values), count_(N) {}
  constexpr ArrayRef(const std::initializer_list<T> &values)
      : first_(values.begin() == values.end() ? nullptr : values.begin()), count_(values.size()) {}
  constexpr size_t size() const { return count_; }
  constexpr bool empty() const { return count_ == 0; }
  constexpr const T &operator[](size_t k) const { return first_[k]; }
  const T &at(size_t k) const {
    if (k >= count_) no_such(k);
    return first_[k];
  }
  const T &front() const { return at(0); }
  const T &back() const { return at(count_ - 1); }
  constexpr const T *data() const { return first_; }
  constexpr const T *begin() const { return first_; }
  constexpr const T *end() const { return first_ + count_; }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  friend bool operator==(ArrayRef a, ArrayRef b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
  friend bool operator!=(ArrayRef a, ArrayRef b) { return !(a == b); }
  friend std::ostream &operator<<(std::ostream &out, ArrayRef values) {
    out << '[';
    for (size_t k = 0; k < values.size(); k++) out << (k > 0 ? ", " : "") << values[k];
    return out << ']';
  }

 private:
  [[noreturn, gnu::cold, gnu::noinline]] void no_such(size_t k) const {
    throw Error(str("ArrayRef: invalid index Index = ", k, "; Length = ", count_));
  }
  const T *first_ = nullptr;
  size_t count_ = 0;
};
using IntArrayRef = ArrayRef<int64_t>;

// ---- the device of a tensor, and the options for making one

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
inline constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;

// The CPU: the stand-in has no other device.
struct Device {
  Device(DeviceType type = kCPU, int8_t = -1) {
    if (type != kCPU) fail_device();
  }
  Device(const std::string &name) {
    if (name != "cpu") fail_device();
  }
  Device(const char *name) : Device(std::string(name)) {}
  DeviceType type() const { return kCPU; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }

 private:
  [[noreturn]] static void fail_device();
};
inline bool operator==(const Device &, const Device &) { return true; }
inline bool operator!=(const Device &, const Device &) { return false; }
std::ostream &operator<<(std::ostream &out, const Device &device);

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type_(type) {}
  TensorOptions(Device) {}
  TensorOptions(DeviceType type) { (void)Device(type); }
  TensorOptions dtype(ScalarType type) const { return type; }
  template <class T>
  TensorOptions dtype() const { return scalar_type_of<T>(); }
  TensorOptions device(Device) const { return *this; }
  TensorOptions device(DeviceType type, int8_t = -1) const { return device(Device(type)); }
  TensorOptions requires_grad(bool) const { return *this; }
  bool has_dtype() const { return type_.has_value(); }
  ScalarType dtype() const { return type_.value_or(ScalarType::Float); }
  Device device() const { return {}; }

 private:
  std::optional<ScalarType> type_;
};

// ---- one number

class Scalar;
// Throws std::runtime_error, as torch does, if a number is out of range for an element of this type.
void check_fits(ScalarType type, const Scalar &number);

class Scalar {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Scalar(T value)
      : is_floating_(std::is_floating_point_v<T>),
        is_bool_(std::is_same_v<T, bool>),
        real_(std::is_floating_point_v<T> ? static_cast<double>(value) : 0),
        whole_(whole_part(value)) {}
  template <class T>
  T to() const {
    check_fits(scalar_type_of<T>(), *this);
    return as<T>();
  }
  // Converts as static_cast does, without a check.
  template <class T>
  T as() const { return is_floating_ ? static_cast<T>(real_) : static_cast<T>(whole_); }
  float toFloat() const { return to<float>(); }
  double toDouble() const { return to<double>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool isFloatingPoint() const { return is_floating_; }
  bool isIntegral(bool with_bool) const { return !is_floating_ && (with_bool || !is_bool_); }
  ScalarType type() const {
    return is_floating_ ? ScalarType::Double : is_bool_ ? ScalarType::Bool : ScalarType::Long;
  }

 private:
  template <class T>
  static int64_t whole_part(T value) {
    if constexpr (std::is_floating_point_v<T>) return 0;
    else return static_cast<int64_t>(value);
  }
  bool is_floating_, is_bool_;
  double real_;
  int64_t whole_;
};
std::ostream &operator<<(std::ostream &out, const Scalar &number);

// Read and write an element of this type.
Scalar number_at(const char *place, ScalarType type);
void put_number(char *place, ScalarType type, const Scalar &number);

}  // namespace c10

#define GPT149_REQUIRE(ERROR, condition, ...)                                              \
  do {                                                                                    \
    if (__builtin_expect(!(condition), 0)) c10::fail<ERROR>(#condition, c10::str(__VA_ARGS__)); \
  } while (false)
#define TORCH_CHECK(condition, ...) GPT149_REQUIRE(c10::Error, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) GPT149_REQUIRE(c10::IndexError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) GPT149_REQUIRE(c10::ValueError, condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...) TORCH_CHECK(condition, ##__VA_ARGS__)
#define AT_ASSERT(condition) TORCH_CHECK(condition)
#define AT_ERROR(...) c10::fail<c10::Error>("false", c10::str(__VA_ARGS__))

#endif
