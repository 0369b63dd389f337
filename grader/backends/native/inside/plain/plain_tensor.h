// A tensor in main memory with what kernel files use of torch's: its shape, its elements, views of it and copies.
//
// As in torch a Tensor is a handle: copies of it are the same tensor. A view (select, slice, narrow, index, transpose;
// view, reshape and flatten where that is possible) is another tensor in the same memory; contiguous, clone and to copy
// where they have to. What would be the assignment's own work (products, sums, exponentials of tensors) is absent.
// Only what a loop may call stands here; the rest is compiled once (plain_tensor.cpp).
#ifndef GPT149_PLAIN_TENSOR_H
#define GPT149_PLAIN_TENSOR_H

#include "plain_accessor.h"
#include "plain_indexing.h"
#include "plain_memory.h"

namespace at {

using c10::ArrayRef;
using c10::Device;
using c10::IntArrayRef;
using c10::MemoryFormat;
using c10::Scalar;
using c10::ScalarType;
using c10::TensorOptions;
using Extents = std::vector<int64_t>;

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor &) = default;
  Tensor(Tensor &&) = default;
  Tensor(gpt149::Owner<gpt149::Memory> memory, char *data, Extents sizes, Extents strides, ScalarType type);

  // To a name: another tensor from now on. To what an expression gave, as in t[0] = u: other elements, same memory.
  Tensor &operator=(const Tensor &) & = default;
  Tensor &operator=(Tensor &&) & = default;
  Tensor &operator=(const Tensor &other) && { return copy_(other); }
  Tensor &operator=(Tensor &&other) && { return copy_(other); }
  Tensor &operator=(const Scalar &value) && { return fill_(value); }

  // ---- shape and type

  bool defined() const { return static_cast<bool>(body_); }
  int64_t dim() const { return static_cast<int64_t>(sizes().size()); }
  int64_t ndimension() const { return dim(); }
  IntArrayRef sizes() const { return body_ ? IntArrayRef(body_->sizes) : sizes_of_none(); }
  IntArrayRef strides() const { return body().strides; }
  int64_t size(int64_t k) const { return sizes()[existing(k)]; }
  int64_t stride(int64_t k) const { return body().strides[existing(k)]; }
  int64_t numel() const { return body_ ? body_->count : 0; }
  int64_t storage_offset() const;
  int64_t element_size() const { return c10::width_of(body().type); }
  int64_t itemsize() const { return element_size(); }
  size_t nbytes() const { return static_cast<size_t>(numel() * element_size()); }
  bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return body().is_row_major; }
  bool is_non_overlapping_and_dense() const;
  bool is_same(const Tensor &other) const { return body_.get() == other.body_.get(); }
  bool is_alias_of(const Tensor &other) const { return body().memory.get() == other.body().memory.get(); }
  size_t use_count() const { return body_ ? static_cast<size_t>(body_->owners()) : 0; }
  void reset() { *this = Tensor(); }
  ScalarType scalar_type() const { return body().type; }
  c10::TypeMeta dtype() const { return body().type; }
  TensorOptions options() const { return body().type; }
  Device device() const { return {}; }
  c10::Layout layout() const { return c10::kStrided; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
  bool is_sparse() const { return false; }
  bool is_floating_point() const { return c10::isFloatingType(body().type); }
  bool requires_grad() const { return false; }
  const Tensor &requires_grad_(bool = true) const { return *this; }
  std::string toString() const;
  void print() const;

  // ---- elements

  void *data_ptr() const {
    if (!body_) fail_memory();
    return body_->reachable;
  }
  void *mutable_data_ptr() const { return data_ptr(); }
  const void *const_data_ptr() const { return data_ptr(); }
  template <class T>
  T *data_ptr() const {
    const ScalarType wanted = c10::scalar_type_of<std::remove_const_t<T>>();
    if (wanted != body().type) fail_type(wanted);
    return reinterpret_cast<T *>(body().reachable);
  }
  template <class T>
  T *data() const { return data_ptr<T>(); }
  template <class T>
  T *mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T>
  const T *const_data_ptr() const { return data_ptr<T>(); }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const & {
    static_assert(N > 0, "accessor is used for indexing tensor, for scalars use *data_ptr<T>()");
    if (N != body().sizes.size()) fail_dimensions(N);
    return {data_ptr<T>(), body().sizes.data(), body().strides.data()};
  }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() && = delete;  // it would point into a tensor that is gone
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const & {
    if (N != body().sizes.size()) fail_dimensions(N);
    return {data_ptr<T>(), body().sizes.data(), body().strides.data()};
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() && = delete;
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const & {
    if (numel() > INT32_MAX) fail_packed();
    if (N != body().sizes.size()) fail_dimensions(N);
    return {data_ptr<T>(), body().sizes.data(), body().strides.data()};
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() && = delete;
  Scalar item() const;
  template <class T>
  T item() const { return item().to<T>(); }

  Tensor &fill_(const Scalar &value) const;
  Tensor &fill_(const Tensor &value) const;
  Tensor &zero_() const;
  // The elements of another tensor, which may be of another type, and is repeated along what it lacks.
  Tensor &copy_(const Tensor &other, bool non_blocking = false) const;

  // ---- views

  Tensor alias() const;
  Tensor detach() const { return alias(); }
  Tensor select(int64_t dimension, int64_t index) const;
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor operator[](const Scalar &index) const;
  Tensor slice(int64_t dimension = 0, std::optional<int64_t> start = {}, std::optional<int64_t> stop = {},
               int64_t step = 1) const;
  Tensor narrow(int64_t dimension, int64_t start, int64_t length) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor swapaxes(int64_t a, int64_t b) const { return transpose(a, b); }
  Tensor swapdims(int64_t a, int64_t b) const { return transpose(a, b); }
  Tensor t() const;
  Tensor permute(IntArrayRef order) const;
  Tensor unsqueeze(int64_t dimension) const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t dimension) const;
  Tensor expand(IntArrayRef wanted, bool implicit = false) const;
  Tensor expand_as(const Tensor &other) const { return expand(other.sizes()); }
  Tensor view(IntArrayRef wanted) const;
  Tensor view_as(const Tensor &other) const { return view(other.sizes()); }
  Tensor reshape(IntArrayRef wanted) const;
  Tensor reshape_as(const Tensor &other) const { return reshape(other.sizes()); }
  Tensor flatten(int64_t first = 0, int64_t last = -1) const;
  Tensor unflatten(int64_t dimension, IntArrayRef sizes) const;
  Tensor ravel() const { return contiguous().view(-1); }
  Tensor as_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset = {}) const;
  Tensor diagonal(int64_t offset = 0, int64_t a = 0, int64_t b = 1) const;
  std::vector<Tensor> unbind(int64_t dimension = 0) const;
  std::vector<Tensor> split(int64_t size, int64_t dimension = 0) const;
  std::vector<Tensor> chunk(int64_t count, int64_t dimension = 0) const;
  Tensor index(ArrayRef<indexing::TensorIndex> indices) const;
  Tensor index(std::initializer_list<indexing::TensorIndex> indices) const {
    return index(ArrayRef<indexing::TensorIndex>(indices));
  }

  // ---- copies

  Tensor clone(std::optional<MemoryFormat> format = {}) const;
  Tensor contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return is_contiguous() ? *this : row_major_copy(); }
  Tensor cpu() const { return *this; }
  Tensor to(ScalarType type, bool non_blocking = false, bool copy = false) const;
  Tensor to(c10::TypeMeta type, bool non_blocking = false, bool copy = false) const {
    return to(type.toScalarType(), non_blocking, copy);
  }
  Tensor to(Device) const { return *this; }
  Tensor to(c10::DeviceType type) const { return to(Device(type)); }
  Tensor to(const TensorOptions &options, bool = false, bool copy = false) const {
    return to(options.has_dtype() ? options.type() : scalar_type(), false, copy);
  }
  Tensor to(Device, ScalarType type, bool = false, bool copy = false) const { return to(type, false, copy); }
  Tensor to(const Tensor &other, bool = false, bool copy = false) const { return to(other.scalar_type(), false, copy); }
  Tensor toType(ScalarType type) const { return to(type); }
  Tensor type_as(const Tensor &other) const { return to(other.scalar_type()); }
  Tensor &index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor &values) const;
  Tensor &index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor &values) const {
    return index_put_(ArrayRef<indexing::TensorIndex>(indices), values);
  }
  Tensor &index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar &value) const;
  Tensor &index_put_(std::initializer_list<indexing::TensorIndex> indices, const Scalar &value) const {
    return index_put_(ArrayRef<indexing::TensorIndex>(indices), value);
  }
  Tensor new_empty(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_zeros(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_ones(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_full(IntArrayRef sizes, const Scalar &value, TensorOptions options = {}) const;

 private:
  struct Body : gpt149::Counted {
    Body(gpt149::Owner<gpt149::Memory> held, char *first, Extents extents, Extents steps, ScalarType of);
    ~Body() override;
    const gpt149::Owner<gpt149::Memory> memory;
    char *const data;
    const Extents sizes, strides;
    const int64_t count;
    char *const reachable;  // none where there are no elements, as in torch
    const ScalarType type;
    const bool is_row_major;
  };

  const Body &body() const {
    if (!body_) fail_undefined();
    return *body_.get();
  }
  size_t existing(int64_t dimension) const {
    const int64_t count = dim();
    if (dimension < 0) dimension += count;
    if (dimension < 0 || dimension >= count) fail_dimension(dimension);
    return static_cast<size_t>(dimension);
  }
  [[noreturn]] void fail_undefined() const;
  [[noreturn]] void fail_dimension(int64_t counted_from_start) const;
  [[noreturn]] void fail_dimensions(size_t expected) const;
  [[noreturn]] void fail_memory() const;
  [[noreturn]] void fail_packed() const;
  static IntArrayRef sizes_of_none();
  [[noreturn]] void fail_type(ScalarType wanted) const;
  Tensor &mutable_self() const { return const_cast<Tensor &>(*this); }
  Tensor seen_as(Extents sizes, Extents strides, int64_t offset) const;
  template <class F>
  Tensor without_ones(const F &is_chosen) const;
  Tensor row_major_copy() const;

  gpt149::Owner<Body> body_;
};

}  // namespace at

#endif
