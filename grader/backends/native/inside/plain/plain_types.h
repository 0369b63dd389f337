// What describes a tensor: element types, sizes, device, options, a single number, errors.
#ifndef GPT149_PLAIN_TYPES_H
#define GPT149_PLAIN_TYPES_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace c10 {

using std::nullopt;
using std::optional;

class Error : public std::exception {
 public:
  explicit Error(std::string text);
  ~Error() override;
  const char *what() const noexcept override;
  const char *what_without_backtrace() const noexcept { return what(); }
  const std::string &msg() const { return text_; }

 private:
  std::string text_;
};
struct IndexError : Error {
  using Error::Error;
};
struct ValueError : Error {
  using Error::Error;
};
struct TypeError : Error {
  using Error::Error;
};
struct NotImplementedError : Error {
  using Error::Error;
};

// The arguments one after the other, as text. Cold, as most of it is never printed and takes long to optimise.
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

// ---- element types

// The numbers are torch's own: they cross the same C interface.
enum class ScalarType : int8_t { Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Float = 6, Double = 7, Bool = 11 };

template <class T>
constexpr ScalarType scalar_type_of() {
  if constexpr (std::is_same_v<T, uint8_t>) return ScalarType::Byte;
  else if constexpr (std::is_same_v<T, int8_t>) return ScalarType::Char;
  else if constexpr (std::is_same_v<T, int16_t>) return ScalarType::Short;
  else if constexpr (std::is_same_v<T, int32_t>) return ScalarType::Int;
  else if constexpr (std::is_same_v<T, int64_t>) return ScalarType::Long;
  else if constexpr (std::is_same_v<T, float>) return ScalarType::Float;
  else if constexpr (std::is_same_v<T, double>) return ScalarType::Double;
  else {
    static_assert(std::is_same_v<T, bool>, "kernels are given no tensors of this type");
    return ScalarType::Bool;
  }
}

int64_t width_of(ScalarType type);
inline size_t elementSize(ScalarType type) { return static_cast<size_t>(width_of(type)); }
const char *toString(ScalarType type);
std::ostream &operator<<(std::ostream &out, ScalarType type);
inline bool isFloatingType(ScalarType type) { return type == ScalarType::Float || type == ScalarType::Double; }
inline bool isIntegralType(ScalarType type, bool with_bool) {
  return !isFloatingType(type) && (with_bool || type != ScalarType::Bool);
}

// An element type as Tensor::dtype() gives it: it has C++'s name.
class TypeMeta {
 public:
  constexpr TypeMeta(ScalarType type) : type_(type) {}
  template <class T>
  static constexpr TypeMeta Make() { return scalar_type_of<T>(); }
  template <class T>
  constexpr bool Match() const { return type_ == scalar_type_of<T>(); }
  constexpr ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return elementSize(type_); }
  const char *name() const;

 private:
  ScalarType type_;
};
constexpr bool operator==(TypeMeta a, TypeMeta b) { return a.toScalarType() == b.toScalarType(); }
constexpr bool operator!=(TypeMeta a, TypeMeta b) { return !(a == b); }
inline ScalarType typeMetaToScalarType(TypeMeta type) { return type.toScalarType(); }
std::ostream &operator<<(std::ostream &out, TypeMeta type);

enum class MemoryFormat : int8_t { Contiguous, Preserve };

// ---- sizes

// Points to elements that somebody else holds, as torch's own.
template <class T>
class ArrayRef {
 public:
  using value_type = T;
  using iterator = const T *;
  using const_iterator = const T *;
  using size_type = size_t;

  constexpr ArrayRef() = default;
  constexpr ArrayRef(const T &only) : first_(&only), count_(1) {}
  constexpr ArrayRef(const T *first, size_t count) : first_(first), count_(count) {}
  constexpr ArrayRef(const T *first, const T *last) : first_(first), count_(static_cast<size_t>(last - first)) {}
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
  constexpr const T *cbegin() const { return begin(); }
  constexpr const T *cend() const { return end(); }
  constexpr std::reverse_iterator<const T *> rbegin() const { return std::reverse_iterator<const T *>(end()); }
  constexpr std::reverse_iterator<const T *> rend() const { return std::reverse_iterator<const T *>(begin()); }
  std::vector<T> vec() const { return std::vector<T>(begin(), end()); }
  bool equals(ArrayRef other) const { return std::equal(begin(), end(), other.begin(), other.end()); }
  ArrayRef slice(size_t from, size_t count) const {
    if (from + count > count_) no_such(from + count);
    return {first_ + from, count};
  }
  ArrayRef slice(size_t from) const { return slice(from, count_ - from); }

 private:
  [[noreturn, gnu::cold, gnu::noinline]] void no_such(size_t k) const {
    throw Error(str("ArrayRef: invalid index Index = ", k, "; Length = ", count_));
  }
  const T *first_ = nullptr;
  size_t count_ = 0;
};
using IntArrayRef = ArrayRef<int64_t>;

template <class T>
bool operator==(ArrayRef<T> a, ArrayRef<T> b) { return a.equals(b); }
template <class T>
bool operator!=(ArrayRef<T> a, ArrayRef<T> b) { return !a.equals(b); }
template <class T>
bool operator==(const std::vector<T> &a, ArrayRef<T> b) { return ArrayRef<T>(a).equals(b); }
template <class T>
bool operator!=(const std::vector<T> &a, ArrayRef<T> b) { return !ArrayRef<T>(a).equals(b); }
template <class T>
bool operator==(ArrayRef<T> a, const std::vector<T> &b) { return a.equals(ArrayRef<T>(b)); }
template <class T>
bool operator!=(ArrayRef<T> a, const std::vector<T> &b) { return !a.equals(ArrayRef<T>(b)); }

template <class T>
std::ostream &operator<<(std::ostream &out, ArrayRef<T> values) {
  out << '[';
  for (size_t k = 0; k < values.size(); k++) out << (k > 0 ? ", " : "") << values[k];
  return out << ']';
}
extern template std::ostream &operator<< <int64_t>(std::ostream &, ArrayRef<int64_t>);

// ---- where a tensor lies, and how it is asked for

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
inline constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
enum class Layout : int8_t { Strided };
inline constexpr Layout kStrided = Layout::Strided;

// Main memory: there is no other here.
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
  int8_t index() const { return -1; }
  bool has_index() const { return false; }
  std::string str() const { return "cpu"; }

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
  TensorOptions(TypeMeta type) : type_(type.toScalarType()) {}
  TensorOptions(Device) {}
  TensorOptions(DeviceType type) { (void)Device(type); }
  TensorOptions(Layout) {}
  TensorOptions(MemoryFormat) {}
  TensorOptions dtype(ScalarType type) const {
    TensorOptions changed = *this;
    changed.type_ = type;
    return changed;
  }
  TensorOptions dtype(TypeMeta type) const { return dtype(type.toScalarType()); }
  template <class T>
  TensorOptions dtype() const { return dtype(scalar_type_of<T>()); }
  TensorOptions device(optional<Device>) const { return *this; }
  TensorOptions device(DeviceType type, int8_t = -1) const { return device(Device(type)); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions memory_format(MemoryFormat) const { return *this; }
  TensorOptions pinned_memory(bool = false) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  bool has_dtype() const { return type_.has_value(); }
  TypeMeta dtype() const { return type(); }
  Device device() const { return {}; }
  Layout layout() const { return kStrided; }
  bool requires_grad() const { return false; }
  ScalarType type() const { return type_.value_or(ScalarType::Float); }

 private:
  optional<ScalarType> type_;
};

// ---- one number

class Scalar;
// Throws std::runtime_error, as torch does, where an element of this type cannot hold a number even roughly.
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
  // Whatever C++ makes of it.
  template <class T>
  T as() const { return is_floating_ ? static_cast<T>(real_) : static_cast<T>(whole_); }
  float toFloat() const { return to<float>(); }
  double toDouble() const { return to<double>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool toBool() const { return to<bool>(); }
  bool isFloatingPoint() const { return is_floating_; }
  bool isIntegral(bool with_bool) const { return !is_floating_ && (with_bool || !is_bool_); }
  bool isBoolean() const { return is_bool_; }
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

// An element of this type, and back.
Scalar number_at(const char *place, ScalarType type);
void put_number(char *place, ScalarType type, const Scalar &number);

// What is thrown where a condition does not hold; an empty `said` names the condition.
[[noreturn]] void fail_check(const char *condition, const std::string &said);
[[noreturn]] void fail_index(const char *condition, const std::string &said);
[[noreturn]] void fail_value(const char *condition, const std::string &said);
[[noreturn]] void fail_type(const char *condition, const std::string &said);
[[noreturn]] void fail_not_implemented(const char *condition, const std::string &said);
[[noreturn]] void fail_assert(const char *condition, const char *file, int line, const std::string &said);
void warn(const std::string &said);

}  // namespace c10

#define GPT149_REQUIRE(fail, condition, ...)                                      \
  do {                                                                            \
    if (__builtin_expect(!(condition), 0)) fail(#condition, c10::str(__VA_ARGS__)); \
  } while (false)
#define TORCH_CHECK(condition, ...) GPT149_REQUIRE(c10::fail_check, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) GPT149_REQUIRE(c10::fail_index, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) GPT149_REQUIRE(c10::fail_value, condition, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(condition, ...) GPT149_REQUIRE(c10::fail_type, condition, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(condition, ...) \
  GPT149_REQUIRE(c10::fail_not_implemented, condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...)                                                               \
  do {                                                                                                      \
    if (__builtin_expect(!(condition), 0))                                                                  \
      c10::fail_assert(#condition, __FILE__, __LINE__, c10::str(__VA_ARGS__));                              \
  } while (false)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(condition, ...) \
  while (false) TORCH_INTERNAL_ASSERT(condition, ##__VA_ARGS__)
#define AT_ASSERT(condition) TORCH_INTERNAL_ASSERT(condition)
#define AT_ASSERTM(condition, ...) TORCH_INTERNAL_ASSERT(condition, ##__VA_ARGS__)
#define AT_ERROR(...) c10::fail_check("false", c10::str(__VA_ARGS__))
#define TORCH_WARN(...) c10::warn(c10::str(__VA_ARGS__))
#define TORCH_WARN_ONCE(...)                                                  \
  do {                                                                        \
    [[maybe_unused]] static const bool is_told = (TORCH_WARN(__VA_ARGS__), true); \
  } while (false)

#endif
