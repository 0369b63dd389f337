// ATen/TensorIndexing.h needs a complete c10::List for helpers that no kernel calls; the real one brings in the whole
// type system of the interpreter. Nothing here is ever defined, and the extra parameters keep it from meeting libtorch's own
// symbols: a file that does use a List fails to link on the light path and is compiled with the real header.
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
