// Errors, names and single numbers: what of plain_types.h is cold.
#include "plain_types.h"

#include <cmath>
#include <iostream>
#include <limits>
#include <stdexcept>

namespace c10 {

Error::Error(std::string text) : text_(std::move(text)) {}
Error::~Error() = default;
const char *Error::what() const noexcept { return text_.c_str(); }

// torch's own words for a condition without a message.
static std::string message(const char *condition, const std::string &said) {
  if (!said.empty()) return said;
  return str("Expected ", condition, " to be true, but got false.  (Could this error message be improved?  If so, "
             "please report an enhancement request to PyTorch.)");
}
void fail_check(const char *condition, const std::string &said) { throw Error(message(condition, said)); }
void fail_index(const char *condition, const std::string &said) { throw IndexError(message(condition, said)); }
void fail_value(const char *condition, const std::string &said) { throw ValueError(message(condition, said)); }
void fail_type(const char *condition, const std::string &said) { throw TypeError(message(condition, said)); }
void fail_not_implemented(const char *condition, const std::string &said) { throw NotImplementedError(message(condition, said)); }
void fail_assert(const char *condition, const char *file, int line, const std::string &said) {
  throw Error(str('"', condition, "\" INTERNAL ASSERT FAILED at \"", file, "\":", line,
                  ", please report a bug to PyTorch. ", said));
}
void warn(const std::string &said) { std::cerr << "Warning: " << said << '\n'; }
void Device::fail_device() { throw Error("tensors lie in main memory only: there is no other device here"); }

int64_t width_of(ScalarType type) {
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
  throw Error("there are no tensors of such elements here");
}

const char *toString(ScalarType type) {
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
  return "UNKNOWN_SCALAR";
}

const char *TypeMeta::name() const {
  switch (type_) {
    case ScalarType::Byte: return "unsigned char";
    case ScalarType::Char: return "signed char";
    case ScalarType::Short: return "short int";
    case ScalarType::Int: return "int";
    case ScalarType::Long: return "long int";
    case ScalarType::Float: return "float";
    case ScalarType::Double: return "double";
    case ScalarType::Bool: return "bool";
  }
  return "nullptr (uninitialized)";
}

std::ostream &operator<<(std::ostream &out, ScalarType type) { return out << toString(type); }
std::ostream &operator<<(std::ostream &out, TypeMeta type) { return out << type.name(); }
std::ostream &operator<<(std::ostream &out, const Device &device) { return out << device.str(); }
std::ostream &operator<<(std::ostream &out, const Scalar &number) {
  if (number.isFloatingPoint()) return out << number.toDouble();
  if (number.isBoolean()) return out << (number.toBool() ? "true" : "false");
  return out << number.toLong();
}
template std::ostream &operator<< <int64_t>(std::ostream &, ArrayRef<int64_t>);

Scalar number_at(const char *place, ScalarType type) {
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
void put_number(char *place, ScalarType type, const Scalar &number) {
  switch (type) {
    case ScalarType::Byte: *reinterpret_cast<uint8_t *>(place) = number.as<uint8_t>(); break;
    case ScalarType::Char: *reinterpret_cast<int8_t *>(place) = number.as<int8_t>(); break;
    case ScalarType::Short: *reinterpret_cast<int16_t *>(place) = number.as<int16_t>(); break;
    case ScalarType::Int: *reinterpret_cast<int32_t *>(place) = number.as<int32_t>(); break;
    case ScalarType::Long: *reinterpret_cast<int64_t *>(place) = number.as<int64_t>(); break;
    case ScalarType::Float: *reinterpret_cast<float *>(place) = number.as<float>(); break;
    case ScalarType::Double: *reinterpret_cast<double *>(place) = number.as<double>(); break;
    case ScalarType::Bool: *reinterpret_cast<bool *>(place) = number.as<bool>(); break;
  }
}


namespace {
template <class T>
bool fits(const Scalar &number) {
  using Limits = std::numeric_limits<T>;
  if (std::is_same_v<T, bool>) return true;
  if (!number.isFloatingPoint()) {
    const int64_t whole = number.as<int64_t>();
    if (std::is_floating_point_v<T> || sizeof(T) == 8) return true;
    // What has no sign takes negative numbers too, as they wrap around.
    const auto most = static_cast<int64_t>(Limits::max());
    return whole <= most && whole >= (std::is_signed_v<T> ? static_cast<int64_t>(Limits::lowest()) : -most);
  }
  const double real = number.as<double>();
  if (std::is_floating_point_v<T>)
    return !std::isfinite(real) || std::fabs(real) <= static_cast<double>(Limits::max());
  const auto most = static_cast<double>(Limits::max());
  const bool is_small = sizeof(T) == 8 ? real < most : real <= most;
  return is_small && real >= (std::is_signed_v<T> ? static_cast<double>(Limits::lowest()) : -most);
}
}  // namespace

void check_fits(ScalarType type, const Scalar &number) {
  bool is_fit = true;
  switch (type) {
    case ScalarType::Byte: is_fit = fits<uint8_t>(number); break;
    case ScalarType::Char: is_fit = fits<int8_t>(number); break;
    case ScalarType::Short: is_fit = fits<int16_t>(number); break;
    case ScalarType::Int: is_fit = fits<int32_t>(number); break;
    case ScalarType::Long: is_fit = fits<int64_t>(number); break;
    case ScalarType::Float: is_fit = fits<float>(number); break;
    case ScalarType::Double:
    case ScalarType::Bool: break;
  }
  if (is_fit) return;
  const char *name = type == ScalarType::Byte    ? "uint8_t"
                     : type == ScalarType::Char  ? "int8_t"
                     : type == ScalarType::Short ? "int16_t"
                     : type == ScalarType::Int   ? "int"
                     : type == ScalarType::Long  ? "int64_t"
                                                 : "float";
  throw std::runtime_error(str("value cannot be converted to type ", name, " without overflow"));
}

}  // namespace c10
