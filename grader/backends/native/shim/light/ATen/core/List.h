// ATen/TensorIndexing.h needs a complete type c10::List, for helpers that no kernel calls. The real header would
// include the type system of torch's interpreter. The functions declared here are never defined. Their extra parameter
// keeps the linker from using libtorch's functions of the same name. So a file that uses a List cannot be linked on the
// light path, and is then compiled with the real header.
#pragma once

#include <cstddef>

namespace c10 {
namespace gpt149_absent {
struct Marker {};
}  // namespace gpt149_absent

template <class T>
class List {
 public:
  List(gpt149_absent::Marker = {});
  List(const List &, gpt149_absent::Marker = {});
  void reserve(size_t, gpt149_absent::Marker = {}) const;
  void push_back(T, gpt149_absent::Marker = {}) const;
};
}  // namespace c10
