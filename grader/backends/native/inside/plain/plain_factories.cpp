// New tensors.
#include "plain_factories.h"

#include <cmath>

#include "plain_layout.h"

namespace at {

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options) {
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  int64_t reach = 1;
  for (size_t k = 0; k < sizes.size(); k++) {
    TORCH_CHECK(sizes[k] >= 0, "Trying to create tensor with negative dimension ", sizes[k], ": ", sizes);
    TORCH_CHECK(strides[k] >= 0, "Trying to create tensor with negative stride ", strides[k], ": ", strides);
    int64_t further = 0;
    const bool is_large = reach != 0 && sizes[k] > 0 && (__builtin_mul_overflow(sizes[k] - 1, strides[k], &further) ||
                                                        __builtin_add_overflow(reach, further, &reach));
    TORCH_CHECK(!is_large && reach <= INT64_MAX / 8, "Storage size calculation overflowed with sizes=", sizes);
    if (sizes[k] == 0) reach = 0;
  }
  auto memory = gpt149::Memory::allocate(static_cast<size_t>(reach * c10::width_of(options.type())));
  char *first = memory->first();
  return Tensor(std::move(memory), first, sizes.vec(), strides.vec(), options.type());
}
Tensor empty(IntArrayRef sizes, TensorOptions options, std::optional<MemoryFormat>) {
  for (int64_t size : sizes)
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  return empty_strided(sizes, gpt149::row_major(sizes.vec()), options);
}
Tensor empty_like(const Tensor &other, TensorOptions options, std::optional<MemoryFormat> format) {
  const ScalarType type = options.has_dtype() ? options.type() : other.scalar_type();
  if (format == MemoryFormat::Contiguous) return empty(other.sizes(), type);
  return empty_strided(other.sizes(), gpt149::strides_of_copy(other.sizes().vec(), other.strides().vec()), type);
}

Tensor full(IntArrayRef sizes, const Scalar &value, TensorOptions options) {
  return empty(sizes, options.has_dtype() || value.isFloatingPoint() ? options : options.dtype(value.type()))
      .fill_(value);
}
Tensor zeros(IntArrayRef sizes, TensorOptions options) {
  for (int64_t size : sizes) TORCH_CHECK(size >= 0, "zeros: Dimension size must be non-negative.");
  return empty(sizes, options).zero_();
}
Tensor ones(IntArrayRef sizes, TensorOptions options) { return empty(sizes, options).fill_(1); }
Tensor full_like(const Tensor &other, const Scalar &value, TensorOptions options) {
  return empty_like(other, options).fill_(value);
}
Tensor zeros_like(const Tensor &other, TensorOptions options) { return empty_like(other, options).zero_(); }
Tensor ones_like(const Tensor &other, TensorOptions options) { return empty_like(other, options).fill_(1); }
Tensor scalar_tensor(const Scalar &value, TensorOptions options) { return empty({}, options).fill_(value); }

Tensor Tensor::new_empty(IntArrayRef sizes, TensorOptions options) const {
  return empty(sizes, options.has_dtype() ? options : this->options());
}
Tensor Tensor::new_zeros(IntArrayRef sizes, TensorOptions options) const { return new_empty(sizes, options).zero_(); }
Tensor Tensor::new_ones(IntArrayRef sizes, TensorOptions options) const { return new_empty(sizes, options).fill_(1); }
Tensor Tensor::new_full(IntArrayRef sizes, const Scalar &value, TensorOptions options) const {
  return new_empty(sizes, options).fill_(value);
}

Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, std::function<void(void *)> give_back,
                 TensorOptions options) {
  TORCH_CHECK(sizes.size() == strides.size(), "as many strides as sizes are needed");
  gpt149::Owner<gpt149::Memory> memory(new gpt149::Memory(data, std::move(give_back)));
  return Tensor(std::move(memory), static_cast<char *>(data), sizes.vec(), strides.vec(), options.type());
}
Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, TensorOptions options) {
  return from_blob(data, sizes, strides, std::function<void(void *)>(), options);
}
Tensor from_blob(void *data, IntArrayRef sizes, std::function<void(void *)> give_back, TensorOptions options) {
  return from_blob(data, sizes, gpt149::row_major(sizes.vec()), std::move(give_back), options);
}
Tensor from_blob(void *data, IntArrayRef sizes, TensorOptions options) {
  return from_blob(data, sizes, gpt149::row_major(sizes.vec()), options);
}

Tensor arange(const Scalar &start, const Scalar &stop, const Scalar &step, TensorOptions options) {
  const bool whole = !start.isFloatingPoint() && !stop.isFloatingPoint() && !step.isFloatingPoint();
  if (!options.has_dtype() && whole) options = options.dtype(ScalarType::Long);
  const double first = start.toDouble(), end = stop.toDouble(), distance = step.toDouble();
  TORCH_CHECK(distance > 0 || distance < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(first) && std::isfinite(end), "unsupported range: ", first, " -> ", end);
  TORCH_CHECK((distance > 0 && end >= first) || (distance < 0 && end <= first),
              "upper bound and lower bound inconsistent with step sign");
  const auto count = static_cast<int64_t>(std::ceil((end - first) / distance));
  Tensor made = empty({count}, options);
  for (int64_t k = 0; k < count; k++) made[k].fill_(first + static_cast<double>(k) * distance);
  return made;
}
Tensor arange(const Scalar &start, const Scalar &stop, TensorOptions options) { return arange(start, stop, 1, options); }
Tensor arange(const Scalar &stop, TensorOptions options) { return arange(0, stop, 1, options); }

// Other random numbers than torch's.
static float next_random() {
  static thread_local uint64_t state = 149;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(state >> 40) / static_cast<float>(1 << 24);
}
static float next_normal() {
  float sum = -6;
  for (int term = 0; term < 12; term++) sum += next_random();
  return sum;
}
static Tensor filled_by(const Tensor &made, float (*next)()) {
  TORCH_CHECK(made.is_floating_point(), "random numbers need elements with a fraction, not ", made.scalar_type());
  const int64_t width = made.element_size();
  char *first = static_cast<char *>(made.data_ptr());
  for (int64_t k = 0; k < made.numel(); k++) c10::put_number(first + k * width, made.scalar_type(), next());
  return made;
}
Tensor rand(IntArrayRef sizes, TensorOptions options) { return filled_by(empty(sizes, options), next_random); }
Tensor randn(IntArrayRef sizes, TensorOptions options) { return filled_by(empty(sizes, options), next_normal); }
Tensor rand_like(const Tensor &other, TensorOptions options) { return filled_by(empty_like(other, options), next_random); }
Tensor randn_like(const Tensor &other, TensorOptions options) { return filled_by(empty_like(other, options), next_normal); }

}  // namespace at
