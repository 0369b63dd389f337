// A tensor in main memory with what kernel files use of torch's: its shape, its elements, views of it and copies.
//
// As in torch a Tensor is a handle: copies of it are the same tensor. A view (select, slice, narrow, index, transpose;
// view, reshape and flatten where that is possible) is another tensor in the same memory; contiguous, clone and to copy
// where they have to. What would be the assignment's own work (products, sums, exponentials of tensors) is absent.
#ifndef GPT149_PLAIN_TENSOR_H
#define GPT149_PLAIN_TENSOR_H

#include "plain_accessor.h"
#include "plain_indexing.h"
#include "plain_layout.h"
#include "plain_memory.h"

namespace at {

using c10::ArrayRef;
using c10::Device;
using c10::IntArrayRef;
using c10::Scalar;
using c10::ScalarType;
using c10::TensorOptions;
using gpt149::Extents;

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor &) = default;
  Tensor(Tensor &&) = default;
  Tensor(gpt149::Owner<gpt149::Memory> memory, char *data, Extents sizes, Extents strides, ScalarType type)
      : body_(new Body{std::move(memory), data, std::move(sizes), std::move(strides), type}) {}

  // To a name: another tensor from now on. To what an expression gave, as in t[0] = u: other elements, same memory.
  Tensor &operator=(const Tensor &) & = default;
  Tensor &operator=(Tensor &&) & = default;
  Tensor &operator=(const Tensor &other) && { return copy_(other); }
  Tensor &operator=(Tensor &&other) && { return copy_(other); }
  Tensor &operator=(const Scalar &value) && { return fill_(value); }

  // ---- shape and type

  bool defined() const { return static_cast<bool>(body_); }
  int64_t dim() const { return static_cast<int64_t>(body().sizes.size()); }
  int64_t ndimension() const { return dim(); }
  IntArrayRef sizes() const { return body().sizes; }
  IntArrayRef strides() const { return body().strides; }
  int64_t size(int64_t k) const { return body().sizes[existing(k)]; }
  int64_t stride(int64_t k) const { return body().strides[existing(k)]; }
  int64_t numel() const { return gpt149::count_of(body().sizes); }
  int64_t storage_offset() const { return (body().data - body().memory->first()) / element_size(); }
  int64_t element_size() const { return c10::width_of(body().type); }
  int64_t itemsize() const { return element_size(); }
  int64_t nbytes() const { return numel() * element_size(); }
  bool is_contiguous() const { return gpt149::is_row_major(body().sizes, body().strides); }
  bool is_same(const Tensor &other) const { return body_.get() == other.body_.get(); }
  int64_t use_count() const { return body_ ? body_->owners() : 0; }
  ScalarType scalar_type() const { return body().type; }
  ScalarType dtype() const { return body().type; }
  TensorOptions options() const { return body().type; }
  Device device() const { return {}; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
  bool is_floating_point() const { return c10::isFloatingType(body().type); }
  bool requires_grad() const { return false; }
  std::string toString() const { return c10::str("CPU", body().type, "Type"); }

  // ---- elements

  void *data_ptr() const { return body_ ? body_->data : nullptr; }
  template <class T>
  T *data_ptr() const {
    const ScalarType wanted = c10::scalar_type_of<std::remove_const_t<T>>();
    TORCH_CHECK(wanted == body().type, "expected scalar type ", wanted, " but found ", body().type);
    return reinterpret_cast<T *>(body().data);
  }
  template <class T>
  T *data() const { return data_ptr<T>(); }
  template <class T>
  T *mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T>
  const T *const_data_ptr() const { return data_ptr<T>(); }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const & {
    TORCH_CHECK(N == body().sizes.size(), "TensorAccessor expected ", N, " dims but tensor has ", dim());
    return {data_ptr<T>(), body().sizes.data(), body().strides.data()};
  }
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() && = delete;  // it would point into a tensor that is gone
  Scalar item() const {
    TORCH_CHECK(numel() == 1, "a Tensor with ", numel(), " elements cannot be converted to Scalar");
    return c10::number_at(body().data, body().type);
  }
  template <class T>
  T item() const { return item().to<T>(); }

  Tensor &fill_(const Scalar &value) const {
    const int64_t width = element_size();
    gpt149::for_each_place(body().sizes, body().strides, body().strides, [&](int64_t place, int64_t) {
      c10::put_number(body().data + place * width, body().type, value);
    });
    return mutable_self();
  }
  Tensor &zero_() const {
    if (!is_contiguous()) return fill_(0);
    std::memset(body().data, 0, static_cast<size_t>(nbytes()));
    return mutable_self();
  }
  // The elements of another tensor, which may be of another type, and is repeated along what it lacks.
  Tensor &copy_(const Tensor &other, bool = false) const {
    const Body &to = body(), &from = other.body();
    const Extents steps = gpt149::strides_when_repeated(from.sizes, from.strides, to.sizes);
    const bool is_same_type = to.type == from.type;
    const int64_t to_width = element_size(), from_width = other.element_size();
    if (is_same_type && gpt149::is_row_major(to.sizes, to.strides) && gpt149::is_row_major(to.sizes, steps)) {
      std::memmove(to.data, from.data, static_cast<size_t>(nbytes()));
      return mutable_self();
    }
    gpt149::for_each_place(to.sizes, to.strides, steps, [&](int64_t place, int64_t source) {
      char *target = to.data + place * to_width;
      const char *value = from.data + source * from_width;
      if (is_same_type) std::memcpy(target, value, static_cast<size_t>(to_width));
      else c10::put_number(target, to.type, c10::number_at(value, from.type));
    });
    return mutable_self();
  }

  // ---- views

  Tensor alias() const { return seen_as(body().sizes, body().strides, 0); }
  Tensor detach() const { return alias(); }
  Tensor select(int64_t dimension, int64_t index) const {
    TORCH_CHECK_INDEX(dim() > 0, "select() cannot be applied to a 0-dim tensor.");
    const size_t k = existing(dimension);
    const int64_t size = body().sizes[k];
    TORCH_CHECK_INDEX(-size <= index && index < size, "select(): index ", index, " out of range for tensor of size ",
                      sizes(), " at dimension ", dimension);
    Extents sizes = body().sizes, strides = body().strides;
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(k));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(k));
    return seen_as(std::move(sizes), std::move(strides), (index < 0 ? index + size : index) * body().strides[k]);
  }
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor slice(int64_t dimension = 0, std::optional<int64_t> start = {}, std::optional<int64_t> stop = {},
               int64_t step = 1) const {
    TORCH_CHECK_INDEX(dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
    TORCH_CHECK(step > 0, "slice step must be positive");
    const size_t k = existing(dimension);
    Extents sizes = body().sizes, strides = body().strides;
    const int64_t size = sizes[k];
    auto bounded = [size](int64_t at) { return std::clamp(at < 0 ? at + size : at, int64_t{0}, size); };
    const int64_t from = bounded(start.value_or(0)), to = std::max(from, bounded(stop.value_or(size)));
    sizes[k] = (to - from + step - 1) / step;
    strides[k] *= step;
    return seen_as(std::move(sizes), std::move(strides), from * body().strides[k]);
  }
  Tensor narrow(int64_t dimension, int64_t start, int64_t length) const {
    TORCH_CHECK(dim() > 0 && length >= 0, "narrow() needs a dimension and a length that is not negative");
    const int64_t size = this->size(dimension), from = start < 0 ? start + size : start;
    TORCH_CHECK_INDEX(-size <= start && start <= size, "start out of range (", start, " of ", size, ")");
    TORCH_CHECK(from <= size - length, "start (", from, ") + length (", length, ") exceeds the size (", size, ")");
    return slice(dimension, from, from + length);
  }
  Tensor transpose(int64_t a, int64_t b) const {
    Extents sizes = body().sizes, strides = body().strides;
    const size_t one = gpt149::wrapped(a, sizes.size()), other = gpt149::wrapped(b, sizes.size());
    if (sizes.empty()) return alias();
    std::swap(sizes[one], sizes[other]);
    std::swap(strides[one], strides[other]);
    return seen_as(std::move(sizes), std::move(strides), 0);
  }
  Tensor t() const {
    TORCH_CHECK(dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", dim(), "D");
    return dim() < 2 ? alias() : transpose(0, 1);
  }
  Tensor permute(IntArrayRef order) const {
    TORCH_CHECK(order.size() == body().sizes.size(), "permute() needs each dimension once");
    Extents sizes, strides;
    std::vector<bool> is_used(order.size());
    for (int64_t named : order) {
      const size_t k = existing(named);
      TORCH_CHECK(!is_used[k], "permute(): duplicate dims are not allowed.");
      is_used[k] = true;
      sizes.push_back(body().sizes[k]);
      strides.push_back(body().strides[k]);
    }
    return seen_as(std::move(sizes), std::move(strides), 0);
  }
  Tensor unsqueeze(int64_t dimension) const {
    Extents sizes = body().sizes, strides = body().strides;
    const size_t k = gpt149::wrapped(dimension, sizes.size() + 1);
    const auto at = static_cast<std::ptrdiff_t>(k);
    strides.insert(strides.begin() + at, k < sizes.size() ? sizes[k] * strides[k] : 1);
    sizes.insert(sizes.begin() + at, 1);
    return seen_as(std::move(sizes), std::move(strides), 0);
  }
  Tensor squeeze() const { return without_ones([](size_t) { return true; }); }
  Tensor squeeze(int64_t dimension) const {
    return without_ones([chosen = gpt149::wrapped(dimension, body().sizes.size())](size_t k) { return k == chosen; });
  }
  Tensor expand(IntArrayRef wanted) const {
    Extents sizes = wanted.vec();
    const size_t missing = sizes.size() - std::min(sizes.size(), body().sizes.size());
    for (size_t k = missing; k < sizes.size(); k++)
      if (sizes[k] == -1) sizes[k] = body().sizes[k - missing];
    return seen_as(sizes, gpt149::strides_when_repeated(body().sizes, body().strides, sizes), 0);
  }
  Tensor expand_as(const Tensor &other) const { return expand(other.sizes()); }
  Tensor view(IntArrayRef wanted) const {
    Extents sizes = gpt149::completed(wanted.vec(), numel());
    std::optional<Extents> strides = gpt149::strides_of_view(body().sizes, body().strides, sizes);
    TORCH_CHECK(strides.has_value(), "view size is not compatible with input tensor's size and stride (at least one "
                "dimension spans across two contiguous subspaces). Use .reshape(...) instead.");
    return seen_as(std::move(sizes), std::move(*strides), 0);
  }
  Tensor view_as(const Tensor &other) const { return view(other.sizes()); }
  Tensor reshape(IntArrayRef wanted) const {
    Extents sizes = gpt149::completed(wanted.vec(), numel());
    std::optional<Extents> strides = gpt149::strides_of_view(body().sizes, body().strides, sizes);
    return strides ? seen_as(std::move(sizes), std::move(*strides), 0) : row_major_copy().view(sizes);
  }
  Tensor reshape_as(const Tensor &other) const { return reshape(other.sizes()); }
  Tensor flatten(int64_t first = 0, int64_t last = -1) const {
    const size_t from = gpt149::wrapped(first, body().sizes.size()), to = gpt149::wrapped(last, body().sizes.size());
    TORCH_CHECK(from <= to, "flatten() has invalid args: start_dim cannot come after end_dim");
    if (dim() == 0) return reshape({1});
    if (from == to) return *this;
    Extents sizes(body().sizes.begin(), body().sizes.begin() + static_cast<std::ptrdiff_t>(from));
    sizes.push_back(1);
    for (size_t k = from; k <= to; k++) sizes.back() *= body().sizes[k];
    sizes.insert(sizes.end(), body().sizes.begin() + static_cast<std::ptrdiff_t>(to) + 1, body().sizes.end());
    return reshape(sizes);
  }
  Tensor ravel() const { return contiguous().view(-1); }
  Tensor index(ArrayRef<indexing::TensorIndex> indices) const;
  Tensor index(std::initializer_list<indexing::TensorIndex> indices) const {
    return index(ArrayRef<indexing::TensorIndex>(indices));
  }

  // ---- copies

  Tensor clone() const;
  Tensor contiguous() const { return is_contiguous() ? *this : row_major_copy(); }
  Tensor cpu() const { return *this; }
  Tensor to(ScalarType type, bool non_blocking = false, bool copy = false) const;
  Tensor to(Device) const { return *this; }
  Tensor to(c10::DeviceType type) const { return to(Device(type)); }
  Tensor to(const TensorOptions &options) const { return options.has_dtype() ? to(options.type()) : *this; }
  Tensor to(Device, ScalarType type) const { return to(type); }
  Tensor toType(ScalarType type) const { return to(type); }
  Tensor &index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor &values) const;
  Tensor &index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar &value) const {
    index(indices).fill_(value);
    return mutable_self();
  }
  Tensor new_empty(IntArrayRef sizes, TensorOptions options = {}) const;
  Tensor new_zeros(IntArrayRef sizes, TensorOptions options = {}) const { return new_empty(sizes, options).zero_(); }

 private:
  struct Body : gpt149::Counted {
    Body(gpt149::Owner<gpt149::Memory> held, char *first, Extents extents, Extents steps, ScalarType of)
        : memory(std::move(held)), data(first), sizes(std::move(extents)), strides(std::move(steps)), type(of) {}
    const gpt149::Owner<gpt149::Memory> memory;
    char *const data;
    const Extents sizes, strides;
    const ScalarType type;
  };

  const Body &body() const {
    TORCH_CHECK(body_, "the tensor is undefined: it was never given a value");
    return *body_.get();
  }
  size_t existing(int64_t dimension) const {
    TORCH_CHECK_INDEX(!body().sizes.empty(), "Dimension specified as ", dimension, " but tensor has no dimensions");
    return gpt149::wrapped(dimension, body().sizes.size());
  }
  Tensor &mutable_self() const { return const_cast<Tensor &>(*this); }
  Tensor seen_as(Extents sizes, Extents strides, int64_t offset) const {
    return {body().memory, body().data + offset * element_size(), std::move(sizes), std::move(strides), body().type};
  }
  template <class F>
  Tensor without_ones(const F &is_chosen) const {
    Extents sizes, strides;
    for (size_t k = 0; k < body().sizes.size(); k++) {
      if (body().sizes[k] == 1 && is_chosen(k)) continue;
      sizes.push_back(body().sizes[k]);
      strides.push_back(body().strides[k]);
    }
    return seen_as(std::move(sizes), std::move(strides), 0);
  }
  Tensor row_major_copy() const;

  gpt149::Owner<Body> body_;
};

// A tensor of such strides whose elements have no values yet.
inline Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options = {}) {
  TORCH_CHECK(sizes.size() == strides.size(), "as many strides as sizes are needed");
  int64_t reach = 1;
  for (size_t k = 0; k < sizes.size(); k++) {
    TORCH_CHECK(sizes[k] >= 0, "Trying to create tensor with negative dimension ", sizes[k], ": ", sizes);
    reach = sizes[k] == 0 || reach == 0 ? 0 : reach + (sizes[k] - 1) * strides[k];
  }
  auto memory = gpt149::Memory::allocate(static_cast<size_t>(reach * c10::width_of(options.type())));
  char *first = memory->first();
  return Tensor(std::move(memory), first, sizes.vec(), strides.vec(), options.type());
}
inline Tensor empty(IntArrayRef sizes, TensorOptions options = {}) {
  return empty_strided(sizes, gpt149::row_major(sizes.vec()), options);
}
inline Tensor empty_like(const Tensor &other, TensorOptions options = {}) {
  const ScalarType type = options.has_dtype() ? options.type() : other.scalar_type();
  return empty_strided(other.sizes(), gpt149::strides_of_copy(other.sizes().vec(), other.strides().vec()), type);
}

inline Tensor Tensor::row_major_copy() const { return empty(sizes(), options()).copy_(*this); }
inline Tensor Tensor::clone() const { return empty_like(*this).copy_(*this); }
inline Tensor Tensor::to(ScalarType type, bool, bool copy) const {
  return type == body().type && !copy ? *this : empty_like(*this, type).copy_(*this);
}
inline Tensor Tensor::new_empty(IntArrayRef sizes, TensorOptions options) const {
  return empty(sizes, options.has_dtype() ? options : this->options());
}

// One index after the other, each on the dimension that the ones before have left.
inline Tensor Tensor::index(ArrayRef<indexing::TensorIndex> indices) const {
  using indexing::TensorIndex;
  int64_t named = 0;
  for (const TensorIndex &each : indices)
    named += each.kind == TensorIndex::kNumber || each.kind == TensorIndex::kSlice;
  TORCH_CHECK_INDEX(!indices.empty(), "index() needs an index");
  TORCH_CHECK_INDEX(named <= dim(), "too many indices for tensor of dimension ", dim());
  Tensor found = alias();
  int64_t dimension = 0;
  for (const TensorIndex &each : indices) {
    switch (each.kind) {
      case TensorIndex::kNumber: found = found.select(dimension, each.number); break;
      case TensorIndex::kSlice:
        found = found.slice(dimension++, each.slice.start(), each.slice.stop(), each.slice.step());
        break;
      case TensorIndex::kNewDimension: found = found.unsqueeze(dimension++); break;
      case TensorIndex::kEllipsis: dimension += dim() - named; break;
    }
  }
  return found;
}

// Leading dimensions of one element count as none, as in NumPy.
inline Tensor &Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor &values) const {
  Tensor fitting = values;
  while (fitting.dim() > 0 && fitting.size(0) == 1) fitting = fitting.select(0, 0);
  index(indices).copy_(fitting);
  return mutable_self();
}

}  // namespace at

#endif
