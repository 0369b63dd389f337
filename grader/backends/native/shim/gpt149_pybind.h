// The names of pybind11 that PYBIND11_MODULE in kernel files usually contains, for a build without pybind11. They are
// empty, because `def` ignores its arguments after the function.
#ifndef GPT149_PYBIND_H
#define GPT149_PYBIND_H

#include "gpt149_abi.h"

namespace pybind11 {
using module_ = gpt149::Module;
using module = gpt149::Module;

struct arg : gpt149::Ignored {
  explicit arg(const char *) {}
  using gpt149::Ignored::operator=;
  arg &noconvert(bool = true) { return *this; }
  arg &none(bool = true) { return *this; }
};
struct doc {
  explicit doc(const char *) {}
};
struct kw_only {};
struct pos_only {};
template <class...>
struct call_guard {};
struct gil_scoped_release {
  gil_scoped_release() {}
  ~gil_scoped_release() {}
};
struct gil_scoped_acquire {
  gil_scoped_acquire() {}
  ~gil_scoped_acquire() {}
};
enum class return_value_policy { automatic, automatic_reference, take_ownership, copy, move, reference };

namespace literals {
inline arg operator""_a(const char *name, size_t) { return arg(name); }
}  // namespace literals
using namespace literals;
}  // namespace pybind11
namespace py = pybind11;

#endif
