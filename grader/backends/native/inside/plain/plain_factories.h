// New tensors.
#ifndef GPT149_PLAIN_FACTORIES_H
#define GPT149_PLAIN_FACTORIES_H

#include "plain_tensor.h"

namespace at {

Tensor empty(IntArrayRef sizes, TensorOptions options = {}, std::optional<MemoryFormat> format = {});
// A tensor of such strides whose elements have no values yet.
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {});
Tensor full(IntArrayRef sizes, const Scalar &value, TensorOptions options = {});
Tensor zeros(IntArrayRef sizes, TensorOptions options = {});
Tensor ones(IntArrayRef sizes, TensorOptions options = {});
Tensor empty_like(const Tensor &other, TensorOptions options = {}, std::optional<MemoryFormat> format = {});
Tensor full_like(const Tensor &other, const Scalar &value, TensorOptions options = {});
Tensor zeros_like(const Tensor &other, TensorOptions options = {});
Tensor ones_like(const Tensor &other, TensorOptions options = {});
Tensor scalar_tensor(const Scalar &value, TensorOptions options = {});

// Somebody else's memory, seen as a tensor. It must outlive the tensor, unless `give_back` says how it ends.
Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, std::function<void(void *)> give_back,
                 TensorOptions options = {});
Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {});
Tensor from_blob(void *data, IntArrayRef sizes, std::function<void(void *)> give_back, TensorOptions options = {});
Tensor from_blob(void *data, IntArrayRef sizes, TensorOptions options = {});

// From start to before stop. Whole numbers make whole numbers, unless the options say more.
Tensor arange(const Scalar &start, const Scalar &stop, const Scalar &step, TensorOptions options = {});
Tensor arange(const Scalar &start, const Scalar &stop, TensorOptions options = {});
Tensor arange(const Scalar &stop, TensorOptions options = {});

// Other random numbers than torch's, the same ones in each run: multiples of 2^-24 from 0 to before 1, and sums of
// twelve of them, as good as normal, with mean 0 and variance 1.
Tensor rand(IntArrayRef sizes, TensorOptions options = {});
Tensor randn(IntArrayRef sizes, TensorOptions options = {});
Tensor rand_like(const Tensor &other, TensorOptions options = {});
Tensor randn_like(const Tensor &other, TensorOptions options = {});

// Elements of a C++ array, as they are, in one dimension.
template <class T>
Tensor tensor(ArrayRef<T> values, TensorOptions options = {}) {
  if constexpr (std::is_same_v<T, bool>) c10::fail_not_implemented("", "\"tensor_cpu\" not implemented for 'Bool'");
  const Tensor made = empty({static_cast<int64_t>(values.size())}, options.has_dtype() ? options : c10::scalar_type_of<T>());
  for (size_t k = 0; k < values.size(); k++)
    c10::put_number(static_cast<char *>(made.data_ptr()) + static_cast<int64_t>(k) * made.element_size(),
                    made.scalar_type(), values[k]);
  return made;
}
template <class T>
Tensor tensor(std::initializer_list<T> values, TensorOptions options = {}) {
  return tensor(ArrayRef<T>(values), options);
}
template <class T>
Tensor tensor(const std::vector<T> &values, TensorOptions options = {}) {
  return tensor(ArrayRef<T>(values), options);
}
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
Tensor tensor(T value, TensorOptions options = {}) {
  return tensor(ArrayRef<T>(value), options);
}

}  // namespace at

#endif
