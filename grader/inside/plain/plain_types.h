// What describes a tensor: element types, sizes, device, options, a single number, errors.
#ifndef GPT149_PLAIN_TYPES_H
#define GPT149_PLAIN_TYPES_H

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace c10 {

using std::nullopt;
using std::optional;

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  const char *what_without_backtrace() const { return what(); }
};
struct IndexError : Error {
  using Error::Error;
};
struct ValueError : Error {
  using Error::Error;
};

// The arguments one after the other, as text. Cold, as most of it is never printed and takes long to optimise.
template <class... A>
[[gnu::cold, gnu::noinline]] std::string str(const A &...parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
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
    static_assert(std::is_same_v<T, bool>, "the stand-in for torch has no tensors of this type");
    return ScalarType::Bool;
  }
}

inline int64_t width_of(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool: return 1;
    case ScalarType::Short: return 2;
    case ScalarType::Int:
    case ScalarType::Float: return 4;
    case ScalarType::Long:
    case ScalarType::Double: return 8;
  }
  throw Error("the stand-in for torch has no tensors of such elements");
}

inline const char *name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "Byte";
    case ScalarType::Char: return "Char";
    case ScalarType::Short: return "Short";
    case ScalarType::Int: return "Int";
    case ScalarType::Long: return "Long";
    case ScalarType::Float: return "Float";
    case ScalarType::Double: return "Double";
    case ScalarType::Bool: return "Bool";
  }
  return "Undefined";
}

inline std::ostream &operator<<(std::ostream &out, ScalarType type) { return out << name_of(type); }
inline bool isFloatingType(ScalarType type) { return type == ScalarType::Float || type == ScalarType::Double; }

// ---- sizes

// Holds its elements, where torch's own only points to them.
template <class T>
class ArrayRef {
 public:
  ArrayRef() = default;
  ArrayRef(const T *first, size_t count) : values_(first, first + count) {}
  ArrayRef(std::initializer_list<T> values) : values_(values) {}
  ArrayRef(std::vector<T> values) : values_(std::move(values)) {}
  ArrayRef(const T &only) : values_{only} {}
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  const T &operator[](size_t k) const { return values_[k]; }
  const T &at(size_t k) const {
    if (k >= size()) throw Error(str("ArrayRef: invalid index ", k, " of ", size()));
    return values_[k];
  }
  const T &front() const { return at(0); }
  const T &back() const { return at(size() - 1); }
  const T *data() const { return values_.data(); }
  const T *begin() const { return values_.data(); }
  const T *end() const { return values_.data() + values_.size(); }
  std::vector<T> vec() const { return values_; }
  bool equals(const ArrayRef &other) const { return values_ == other.values_; }

 private:
  std::vector<T> values_;
};
using IntArrayRef = ArrayRef<int64_t>;

template <class T>
bool operator==(const ArrayRef<T> &a, const ArrayRef<T> &b) { return a.equals(b); }
template <class T>
bool operator!=(const ArrayRef<T> &a, const ArrayRef<T> &b) { return !a.equals(b); }

template <class T>
std::ostream &operator<<(std::ostream &out, const ArrayRef<T> &values) {
  out << '[';
  for (size_t k = 0; k < values.size(); k++) out << (k > 0 ? ", " : "") << values[k];
  return out << ']';
}

// ---- where a tensor lies, and how it is asked for

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
inline constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
enum class Layout : int8_t { Strided };
inline constexpr Layout kStrided = Layout::Strided;

// Main memory: there is no other here.
struct Device {
  Device(DeviceType type = kCPU) {
    if (type != kCPU) throw Error("the stand-in for torch has tensors in main memory only");
  }
  DeviceType type() const { return kCPU; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
};
inline bool operator==(const Device &a, const Device &b) { return a.type() == b.type(); }
inline bool operator!=(const Device &a, const Device &b) { return !(a == b); }
inline std::ostream &operator<<(std::ostream &out, const Device &) { return out << "cpu"; }

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type_(type) {}
  TensorOptions(Device) {}
  TensorOptions(DeviceType type) { (void)Device(type); }
  TensorOptions dtype(ScalarType type) const {
    TensorOptions changed = *this;
    changed.type_ = type;
    return changed;
  }
  template <class T>
  TensorOptions dtype() const { return dtype(scalar_type_of<T>()); }
  TensorOptions device(Device) const { return *this; }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions requires_grad(bool = true) const { return *this; }
  bool has_dtype() const { return type_.has_value(); }
  ScalarType type() const { return type_.value_or(ScalarType::Float); }

 private:
  optional<ScalarType> type_;
};

// ---- one number

class Scalar {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Scalar(T value)
      : is_floating_(std::is_floating_point_v<T>),
        real_(static_cast<double>(value)),
        whole_(static_cast<int64_t>(value)) {}
  template <class T>
  T to() const { return is_floating_ ? static_cast<T>(real_) : static_cast<T>(whole_); }
  float toFloat() const { return to<float>(); }
  double toDouble() const { return to<double>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool isFloatingPoint() const { return is_floating_; }

 private:
  bool is_floating_;
  double real_;
  int64_t whole_;
};
inline std::ostream &operator<<(std::ostream &out, const Scalar &number) {
  return number.isFloatingPoint() ? out << number.toDouble() : out << number.toLong();
}

// An element of this type, and back.
[[gnu::noinline]] inline Scalar number_at(const char *place, ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return *reinterpret_cast<const uint8_t *>(place);
    case ScalarType::Char: return *reinterpret_cast<const int8_t *>(place);
    case ScalarType::Short: return *reinterpret_cast<const int16_t *>(place);
    case ScalarType::Int: return *reinterpret_cast<const int32_t *>(place);
    case ScalarType::Long: return *reinterpret_cast<const int64_t *>(place);
    case ScalarType::Float: return *reinterpret_cast<const float *>(place);
    case ScalarType::Double: return *reinterpret_cast<const double *>(place);
    case ScalarType::Bool: return *reinterpret_cast<const bool *>(place);
  }
  return 0;
}
[[gnu::noinline]] inline void put_number(char *place, ScalarType type, const Scalar &number) {
  switch (type) {
    case ScalarType::Byte: *reinterpret_cast<uint8_t *>(place) = number.to<uint8_t>(); break;
    case ScalarType::Char: *reinterpret_cast<int8_t *>(place) = number.to<int8_t>(); break;
    case ScalarType::Short: *reinterpret_cast<int16_t *>(place) = number.to<int16_t>(); break;
    case ScalarType::Int: *reinterpret_cast<int32_t *>(place) = number.to<int32_t>(); break;
    case ScalarType::Long: *reinterpret_cast<int64_t *>(place) = number.to<int64_t>(); break;
    case ScalarType::Float: *reinterpret_cast<float *>(place) = number.to<float>(); break;
    case ScalarType::Double: *reinterpret_cast<double *>(place) = number.to<double>(); break;
    case ScalarType::Bool: *reinterpret_cast<bool *>(place) = number.to<bool>(); break;
  }
}

}  // namespace c10

// What is said when a condition does not hold: the arguments, if there are any.
#define GPT149_REQUIRE(error, condition, ...)                                     \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::string said = c10::str(__VA_ARGS__);                                   \
      throw error(said.empty() ? "Expected " #condition " to be true, but got false." : said); \
    }                                                                             \
  } while (false)
#define TORCH_CHECK(condition, ...) GPT149_REQUIRE(c10::Error, condition, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(condition, ...) GPT149_REQUIRE(c10::IndexError, condition, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(condition, ...) GPT149_REQUIRE(c10::ValueError, condition, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(condition, ...) GPT149_REQUIRE(c10::Error, condition, ##__VA_ARGS__)
#define AT_ASSERT(condition) GPT149_REQUIRE(c10::Error, condition)
#define AT_ASSERTM(condition, ...) GPT149_REQUIRE(c10::Error, condition, ##__VA_ARGS__)
#define AT_ERROR(...) GPT149_REQUIRE(c10::Error, false, ##__VA_ARGS__)
#define TORCH_WARN(...) (void)(std::cerr << "Warning: " << c10::str(__VA_ARGS__) << '\n')

#endif
