// The stand-in's tensor, in main memory. It has the part of torch's interface that kernel files use: shape, elements,
// views and copies, and functions that make and print tensors.
//
// As in torch, a Tensor is a handle: copies of the handle are the same tensor. A view is another tensor in the same
// memory. select, slice, narrow, index and transpose make views; view, reshape and flatten make a view if possible.
// clone makes a copy; `contiguous` and `to` make one if needed. Operators that would do the assignment's work
// (products, sums or exponentials of tensors) are absent. Functions that a loop may call are here, others in plain.cpp.
#ifndef GPT149_PLAIN_TENSOR_H
#define GPT149_PLAIN_TENSOR_H

#include <atomic>
#include <cstdlib>
#include <utility>

#include "plain_types.h"

// ---- memory that several tensors can share

namespace gpt149 {

// An object that counts its owners. Each owner that lets go of it does an atomic "release". Only the last owner, which
// deletes the object, does an "acquire" as well. std::shared_ptr does both each time. This would order threads that
// take views of one tensor in a loop, and ThreadSanitizer would not see the races between them.
class Counted {
 public:
  Counted() = default;
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;
  virtual ~Counted();
  void keep() { owners_.fetch_add(1, std::memory_order_relaxed); }
  void let_go();

 private:
  std::atomic<int64_t> owners_{0};
};

template <class T>
class Owner {
 public:
  Owner() = default;
  explicit Owner(T *owned) : owned_(owned) { keep(); }
  Owner(const Owner &other) : owned_(other.owned_) { keep(); }
  Owner(Owner &&other) noexcept : owned_(std::exchange(other.owned_, nullptr)) {}
  Owner &operator=(Owner other) noexcept {
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~Owner() {
    if (owned_ != nullptr) owned_->let_go();
  }
  T *get() const { return owned_; }
  T *operator->() const { return owned_; }
  explicit operator bool() const { return owned_ != nullptr; }

 private:
  void keep() {
    if (owned_ != nullptr) owned_->keep();
  }
  T *owned_ = nullptr;
};

// Memory that begins at `first`. `base` is the address to free at the end; nullptr if the memory belongs to the caller.
struct Memory : Counted {
  Memory(void *start, void *to_free) : first(static_cast<char *>(start)), base(to_free) {}
  ~Memory() override { std::free(base); }
  char *const first;
  void *const base;

  // Allocates memory that begins on a cache line.
  static Owner<Memory> allocate(size_t bytes);
};

}  // namespace gpt149

namespace at {

using c10::ArrayRef;
using c10::Device;
using c10::IntArrayRef;
using c10::MemoryFormat;
using c10::Scalar;
using c10::ScalarType;
using c10::TensorOptions;
using Extents = std::vector<int64_t>;
class Tensor;

// Gives access to elements by N indices, without bounds checks, as in torch. The accessor points to the sizes and
// strides of its tensor.
template <class T, size_t N>
class TensorAccessor {
 public:
  TensorAccessor(T *data, const int64_t *sizes, const int64_t *strides) : data_(data), sizes_(sizes), strides_(strides) {}
  decltype(auto) operator[](int64_t k) const {
    if constexpr (N == 1) return static_cast<T &>(data_[k * strides_[0]]);
    else return TensorAccessor<T, N - 1>(data_ + k * strides_[0], sizes_ + 1, strides_ + 1);
  }
  int64_t size(int64_t k) const { return sizes_[k]; }
  int64_t stride(int64_t k) const { return strides_[k]; }
  IntArrayRef sizes() const { return {sizes_, N}; }
  T *data() const { return data_; }

 private:
  T *data_;
  const int64_t *sizes_, *strides_;
};

// The indices of Tensor::index and index_put_: numbers, slices, None and the ellipsis. The stand-in lacks torch's other
// kinds of indices (a tensor, true, false), which do not give views.
namespace indexing {

inline constexpr std::nullopt_t None = std::nullopt;
struct EllipsisIndexType {};
inline constexpr EllipsisIndexType Ellipsis{};

// The indices from `start` to `stop` - 1. None means the beginning or the end. Negative numbers count from the end.
struct Slice {
  Slice(std::optional<int64_t> from = None, std::optional<int64_t> before = None, std::optional<int64_t> by = None);
  std::optional<int64_t> start, stop;
  int64_t step;
};

// One index of any kind.
struct TensorIndex {
  enum Kind { kNumber, kSlice, kNewDimension, kEllipsis };

  TensorIndex(std::nullopt_t) : kind(kNewDimension) {}
  TensorIndex(EllipsisIndexType) : kind(kEllipsis) {}
  TensorIndex(const char *text);
  TensorIndex(int64_t number) : kind(kNumber), number(number) {}
  TensorIndex(int number) : kind(kNumber), number(number) {}
  TensorIndex(Slice slice) : kind(kSlice), slice(slice) {}
  template <class T, class = std::enable_if_t<std::is_same_v<T, bool>>>
  TensorIndex(T) = delete;
  TensorIndex(const Tensor &) = delete;

  Kind kind;
  int64_t number = 0;
  Slice slice;
};

}  // namespace indexing

class Tensor {
 public:
  using Indices = std::initializer_list<indexing::TensorIndex>;

  Tensor() = default;
  Tensor(const Tensor &) = default;
  Tensor(Tensor &&) = default;
  Tensor(gpt149::Owner<gpt149::Memory> memory, char *data, Extents sizes, Extents strides, ScalarType type);

  // Assigning to a variable replaces its tensor. Assigning to a temporary, as in t[0] = u, copies the elements.
  Tensor &operator=(const Tensor &) & = default;
  Tensor &operator=(Tensor &&) & = default;
  Tensor &operator=(const Tensor &other) && { return copy_(other); }
  Tensor &operator=(Tensor &&other) && { return copy_(other); }
  Tensor &operator=(const Scalar &value) && { return fill_(value); }

  // ---- shape and type

  bool defined() const { return static_cast<bool>(body_); }
  int64_t dim() const { return static_cast<int64_t>(sizes().size()); }
  IntArrayRef sizes() const { return body_ ? IntArrayRef(body_->sizes) : sizes_of_none(); }
  IntArrayRef strides() const { return body().strides; }
  int64_t size(int64_t k) const { return sizes()[existing(k)]; }
  int64_t stride(int64_t k) const { return body().strides[existing(k)]; }
  int64_t numel() const { return body_ ? body_->count : 0; }
  int64_t storage_offset() const;
  int64_t element_size() const { return c10::width_of(body().type); }
  size_t nbytes() const { return static_cast<size_t>(numel() * element_size()); }
  bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return body().is_row_major; }
  bool is_same(const Tensor &other) const { return body_.get() == other.body_.get(); }
  ScalarType scalar_type() const { return body().type; }
  ScalarType dtype() const { return body().type; }
  TensorOptions options() const { return body().type; }
  Device device() const { return {}; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
  std::string toString() const;

  // ---- elements

  void *data_ptr() const {
    if (!body_) fail_memory();
    return body_->reachable;
  }
  template <class T>
  T *data_ptr() const {
    const ScalarType wanted = c10::scalar_type_of<std::remove_const_t<T>>();
    if (wanted != body().type) fail_type(wanted);
    return reinterpret_cast<T *>(body().reachable);
  }
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
  TensorAccessor<T, N> accessor() && = delete;  // The accessor would point into a tensor that no longer exists.
  Scalar item() const;
  template <class T>
  T item() const { return item().to<T>(); }

  Tensor &fill_(const Scalar &value) const;
  Tensor &zero_() const;
  // Copies the elements of another tensor, converts their type and broadcasts them if needed.
  Tensor &copy_(const Tensor &other, bool non_blocking = false) const;

  // ---- views

  Tensor detach() const { return seen_as(body().sizes, body().strides, 0); }
  Tensor select(int64_t dimension, int64_t index) const;
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor slice(int64_t dimension = 0, std::optional<int64_t> start = {}, std::optional<int64_t> stop = {},
               int64_t step = 1) const;
  Tensor narrow(int64_t dimension, int64_t start, int64_t length) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const;
  Tensor permute(IntArrayRef order) const;
  Tensor unsqueeze(int64_t dimension) const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t dimension) const;
  Tensor expand(IntArrayRef wanted, bool implicit = false) const;
  Tensor view(IntArrayRef wanted) const;
  Tensor reshape(IntArrayRef wanted) const;
  Tensor flatten(int64_t first = 0, int64_t last = -1) const;
  Tensor as_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset = {}) const;
  Tensor index(Indices indices) const;

  // ---- copies

  Tensor clone(std::optional<MemoryFormat> format = {}) const;
  Tensor contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return is_contiguous() ? *this : row_major_copy(); }
  Tensor cpu() const { return *this; }
  Tensor to(TensorOptions options, bool non_blocking = false, bool copy = false) const;
  Tensor &index_put_(Indices indices, const Tensor &values) const;
  Tensor &index_put_(Indices indices, const Scalar &value) const;

 private:
  struct Body : gpt149::Counted {
    Body(gpt149::Owner<gpt149::Memory> held, char *first, Extents extents, Extents steps, ScalarType of);
    ~Body() override;
    const gpt149::Owner<gpt149::Memory> memory;
    char *const data;
    const Extents sizes, strides;
    const int64_t count;
    char *const reachable;  // the data that data_ptr() returns; nullptr without elements, as in torch
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
  [[noreturn]] void fail_type(ScalarType wanted) const;
  static IntArrayRef sizes_of_none();
  Tensor &mutable_self() const { return const_cast<Tensor &>(*this); }
  Tensor seen_as(Extents sizes, Extents strides, int64_t offset) const;
  template <class F>
  Tensor without_ones(const F &is_chosen) const;
  Tensor row_major_copy() const;

  gpt149::Owner<Body> body_;
};

// Prints a tensor as torch does, except that each number has the stream's own format.
std::ostream &operator<<(std::ostream &out, const Tensor &tensor);

// ---- new tensors

Tensor empty(IntArrayRef sizes, TensorOptions options = {}, std::optional<MemoryFormat> format = {});
Tensor full(IntArrayRef sizes, const Scalar &value, TensorOptions options = {});
Tensor zeros(IntArrayRef sizes, TensorOptions options = {});
Tensor ones(IntArrayRef sizes, TensorOptions options = {});
Tensor empty_like(const Tensor &other, TensorOptions options = {}, std::optional<MemoryFormat> format = {});
Tensor full_like(const Tensor &other, const Scalar &value, TensorOptions options = {});
Tensor zeros_like(const Tensor &other, TensorOptions options = {});
Tensor ones_like(const Tensor &other, TensorOptions options = {});

// Returns a tensor in the caller's memory, which must outlive the tensor.
Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {});
Tensor from_blob(void *data, IntArrayRef sizes, TensorOptions options = {});

// Returns the numbers start, start + step, ... before stop. They are integers if the arguments are, unless `options`
// name a type.
Tensor arange(const Scalar &start, const Scalar &stop, const Scalar &step, TensorOptions options = {});
Tensor arange(const Scalar &stop, TensorOptions options = {});

}  // namespace at

#endif
