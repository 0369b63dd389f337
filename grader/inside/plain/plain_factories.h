// New tensors.
#ifndef GPT149_PLAIN_FACTORIES_H
#define GPT149_PLAIN_FACTORIES_H

#include <cmath>

#include "plain_tensor.h"

namespace at {

inline Tensor full(IntArrayRef sizes, const Scalar &value, TensorOptions options = {}) {
  const bool whole = !options.has_dtype() && !value.isFloatingPoint();
  return empty(sizes, whole ? options.dtype(ScalarType::Long) : options).fill_(value);
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions options = {}) {
  return empty(sizes, options).zero_();
}
inline Tensor ones(IntArrayRef sizes, TensorOptions options = {}) { return empty(sizes, options).fill_(1); }
inline Tensor full_like(const Tensor &other, const Scalar &value, TensorOptions options = {}) {
  return empty_like(other, options).fill_(value);
}
inline Tensor zeros_like(const Tensor &other, TensorOptions options = {}) { return empty_like(other, options).zero_(); }
inline Tensor ones_like(const Tensor &other, TensorOptions options = {}) { return empty_like(other, options).fill_(1); }

// Somebody else's memory, seen as a tensor. It must outlive the tensor, unless `give_back` says how it ends.
inline Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, std::function<void(void *)> give_back,
                        TensorOptions options = {}) {
  TORCH_CHECK(sizes.size() == strides.size(), "as many strides as sizes are needed");
  gpt149::Owner<gpt149::Memory> memory(new gpt149::Memory(data, std::move(give_back)));
  return Tensor(std::move(memory), static_cast<char *>(data), sizes.vec(), strides.vec(), options.type());
}
inline Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {}) {
  return from_blob(data, sizes, strides, std::function<void(void *)>(), options);
}
inline Tensor from_blob(void *data, IntArrayRef sizes, std::function<void(void *)> give_back,
                        TensorOptions options = {}) {
  return from_blob(data, sizes, gpt149::row_major(sizes.vec()), std::move(give_back), options);
}
inline Tensor from_blob(void *data, IntArrayRef sizes, TensorOptions options = {}) {
  return from_blob(data, sizes, gpt149::row_major(sizes.vec()), options);
}

// From start to before stop. Whole numbers make whole numbers, unless the options say more.
inline Tensor arange(const Scalar &start, const Scalar &stop, const Scalar &step, TensorOptions options = {}) {
  const bool whole = !start.isFloatingPoint() && !stop.isFloatingPoint() && !step.isFloatingPoint();
  if (!options.has_dtype() && whole) options = options.dtype(ScalarType::Long);
  const double first = start.toDouble(), distance = step.toDouble();
  TORCH_CHECK(distance != 0 && (stop.toDouble() - first) / distance >= 0, "arange() cannot step from ", start, " to ",
              stop, " by ", step);
  const auto count = static_cast<int64_t>(std::ceil((stop.toDouble() - first) / distance));
  Tensor made = empty({count}, options);
  for (int64_t k = 0; k < count; k++) made[k].fill_(first + static_cast<double>(k) * distance);
  return made;
}
inline Tensor arange(const Scalar &start, const Scalar &stop, TensorOptions options = {}) {
  return arange(start, stop, 1, options);
}
inline Tensor arange(const Scalar &stop, TensorOptions options = {}) { return arange(0, stop, 1, options); }

// Other random numbers than torch's, the same ones in each run: multiples of 2^-24 from 0 to before 1.
inline float next_random() {
  static thread_local uint64_t state = 149;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(state >> 40) / static_cast<float>(1 << 24);
}
inline Tensor rand(IntArrayRef sizes, TensorOptions options = {}) {
  Tensor made = empty(sizes, options), elements = made.flatten();
  for (int64_t k = 0; k < made.numel(); k++) elements[k].fill_(next_random());
  return made;
}
// Sums of twelve of them: as good as normal, with mean 0 and variance 1.
inline Tensor randn(IntArrayRef sizes, TensorOptions options = {}) {
  Tensor made = empty(sizes, options), elements = made.flatten();
  for (int64_t k = 0; k < made.numel(); k++) {
    float sum = -6;
    for (int term = 0; term < 12; term++) sum += next_random();
    elements[k].fill_(sum);
  }
  return made;
}

}  // namespace at

#endif
