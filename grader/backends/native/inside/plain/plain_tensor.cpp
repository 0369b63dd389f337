// Tensors: what of plain_tensor.h and plain_indexing.h need not be inline. Views first, then elements and copies.
#include "plain_tensor.h"

#include <cstring>
#include <iostream>

#include "plain_factories.h"
#include "plain_layout.h"
#include "plain_printing.h"

namespace at {

using gpt149::wrapped;

Tensor::Body::Body(gpt149::Owner<gpt149::Memory> held, char *first, Extents extents, Extents steps, ScalarType of)
    : memory(std::move(held)),
      data(first),
      sizes(std::move(extents)),
      strides(std::move(steps)),
      count(gpt149::count_of(sizes)),
      reachable(count > 0 ? first : nullptr),
      type(of),
      is_row_major(gpt149::is_row_major(sizes, strides)) {}
Tensor::Body::~Body() = default;

Tensor::Tensor(gpt149::Owner<gpt149::Memory> memory, char *data, Extents sizes, Extents strides, ScalarType type)
    : body_(new Body(std::move(memory), data, std::move(sizes), std::move(strides), type)) {}

void Tensor::fail_undefined() const {
  throw c10::Error("Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'self'");
}
void Tensor::fail_dimension(int64_t counted_from_start) const {
  const int64_t count = dim(), named = counted_from_start < 0 ? counted_from_start - count : counted_from_start;
  TORCH_CHECK_INDEX(count > 0, "Dimension specified as ", named, " but tensor has no dimensions");
  throw c10::IndexError(c10::str("Dimension out of range (expected to be in range of [", -count, ", ", count - 1,
                                 "], but got ", named, ")"));
}
void Tensor::fail_dimensions(size_t expected) const {
  throw c10::Error(c10::str("TensorAccessor expected ", expected, " dims but tensor has ", dim()));
}
void Tensor::fail_packed() const {
  throw c10::Error("numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
}
void Tensor::fail_type(ScalarType wanted) const {
  throw c10::Error(c10::str("expected scalar type ", wanted, " but found ", body().type));
}

void Tensor::fail_memory() const { throw c10::Error("Cannot access data pointer of Tensor that doesn't have storage"); }
IntArrayRef Tensor::sizes_of_none() {
  static constexpr int64_t kNothing = 0;
  return kNothing;
}

int64_t Tensor::storage_offset() const { return (body().data - body().memory->first()) / element_size(); }
bool Tensor::is_non_overlapping_and_dense() const { return gpt149::is_dense(body().sizes, body().strides); }
std::string Tensor::toString() const {
  return defined() ? c10::str("CPU", body().type, "Type") : "UndefinedType";
}
void Tensor::print() const {
  if (!defined()) std::cerr << "[UndefinedTensor]\n";
  else std::cerr << '[' << toString() << ' ' << sizes() << "]\n";
}

// ---- views

Tensor Tensor::seen_as(Extents sizes, Extents strides, int64_t offset) const {
  return {body().memory, body().data + offset * element_size(), std::move(sizes), std::move(strides), body().type};
}
Tensor Tensor::alias() const { return seen_as(body().sizes, body().strides, 0); }

Tensor Tensor::select(int64_t dimension, int64_t index) const {
  TORCH_CHECK_INDEX(dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  const size_t k = existing(dimension);
  const int64_t size = body().sizes[k];
  TORCH_CHECK_INDEX(-size <= index && index < size, "select(): index ", index, " out of range for tensor of size ",
                    sizes(), " at dimension ", k);
  Extents sizes = body().sizes, strides = body().strides;
  sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(k));
  strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(k));
  return seen_as(std::move(sizes), std::move(strides), (index < 0 ? index + size : index) * body().strides[k]);
}
Tensor Tensor::operator[](const Scalar &index) const {
  TORCH_CHECK_INDEX(index.isIntegral(false), "Can only index tensors with integral scalars");
  return select(0, index.toLong());
}

Tensor Tensor::slice(int64_t dimension, std::optional<int64_t> start, std::optional<int64_t> stop,
                     int64_t step) const {
  TORCH_CHECK_INDEX(dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
  const size_t k = existing(dimension);
  TORCH_CHECK(step > 0, "slice step must be positive");
  Extents sizes = body().sizes, strides = body().strides;
  const int64_t size = sizes[k];
  auto bounded = [size](int64_t at) { return std::clamp(at < 0 ? at + size : at, int64_t{0}, size); };
  const int64_t from = bounded(start.value_or(0)), to = std::max(from, bounded(stop.value_or(size)));
  sizes[k] = to > from ? (to - from - 1) / step + 1 : 0;
  strides[k] = static_cast<int64_t>(static_cast<uint64_t>(strides[k]) * static_cast<uint64_t>(step));
  TORCH_CHECK(strides[k] >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ",
              IntArrayRef(strides));
  return seen_as(std::move(sizes), std::move(strides), from * body().strides[k]);
}

Tensor Tensor::narrow(int64_t dimension, int64_t start, int64_t length) const {
  TORCH_CHECK(dim() > 0, "narrow() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK(length >= 0, "narrow(): length must be non-negative.");
  const int64_t size = this->size(dimension), from = start < 0 ? start + size : start;
  TORCH_CHECK_INDEX(-size <= start && start <= size, "start out of range (expected to be in range of [", -size, ", ",
                    size, "], but got ", start, ")");
  TORCH_CHECK(from <= size - length, "start (", from, ") + length (", length, ") exceeds dimension size (", size, ").");
  return slice(dimension, from, from + length);
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  Extents sizes = body().sizes, strides = body().strides;
  const size_t one = wrapped(a, sizes.size()), other = wrapped(b, sizes.size());
  if (sizes.empty()) return alias();
  std::swap(sizes[one], sizes[other]);
  std::swap(strides[one], strides[other]);
  return seen_as(std::move(sizes), std::move(strides), 0);
}
Tensor Tensor::t() const {
  TORCH_CHECK(dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", dim(), "D");
  return dim() < 2 ? alias() : transpose(0, 1);
}
Tensor Tensor::permute(IntArrayRef order) const {
  TORCH_CHECK(order.size() == body().sizes.size(), "permute(sparse_coo): number of dimensions in the tensor input does "
              "not match the length of the desired ordering of dimensions i.e. input.dim() = ", dim(),
              " is not equal to len(dims) = ", order.size());
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

Tensor Tensor::unsqueeze(int64_t dimension) const {
  Extents sizes = body().sizes, strides = body().strides;
  const size_t k = wrapped(dimension, sizes.size() + 1);
  const auto at = static_cast<std::ptrdiff_t>(k);
  strides.insert(strides.begin() + at, k < sizes.size() ? sizes[k] * strides[k] : 1);
  sizes.insert(sizes.begin() + at, 1);
  return seen_as(std::move(sizes), std::move(strides), 0);
}
template <class F>
Tensor Tensor::without_ones(const F &is_chosen) const {
  Extents sizes, strides;
  for (size_t k = 0; k < body().sizes.size(); k++) {
    if (body().sizes[k] == 1 && is_chosen(k)) continue;
    sizes.push_back(body().sizes[k]);
    strides.push_back(body().strides[k]);
  }
  return seen_as(std::move(sizes), std::move(strides), 0);
}
Tensor Tensor::squeeze() const { return without_ones([](size_t) { return true; }); }
Tensor Tensor::squeeze(int64_t dimension) const {
  return without_ones([chosen = wrapped(dimension, body().sizes.size())](size_t k) { return k == chosen; });
}

Tensor Tensor::expand(IntArrayRef wanted, bool) const {
  TORCH_CHECK(static_cast<size_t>(dim()) <= wanted.size(), "expand(", toString(), '{', sizes(), "}, size=", wanted,
              "): the number of sizes provided (", wanted.size(),
              ") must be greater or equal to the number of dimensions in the tensor (", dim(), ')');
  return seen_as(gpt149::sizes_when_repeated(body().sizes, wanted.vec()),
                 gpt149::strides_when_repeated(body().sizes, body().strides, wanted.vec()), 0);
}

Tensor Tensor::view(IntArrayRef wanted) const {
  Extents sizes = gpt149::completed(wanted.vec(), numel());
  std::optional<Extents> strides = gpt149::strides_of_view(body().sizes, body().strides, sizes);
  TORCH_CHECK(strides.has_value(), "view size is not compatible with input tensor's size and stride (at least one "
              "dimension spans across two contiguous subspaces). Use .reshape(...) instead.");
  return seen_as(std::move(sizes), std::move(*strides), 0);
}
Tensor Tensor::reshape(IntArrayRef wanted) const {
  Extents sizes = gpt149::completed(wanted.vec(), numel());
  std::optional<Extents> strides = gpt149::strides_of_view(body().sizes, body().strides, sizes);
  return strides ? seen_as(std::move(sizes), std::move(*strides), 0) : row_major_copy().view(sizes);
}
Tensor Tensor::flatten(int64_t first, int64_t last) const {
  const size_t from = wrapped(first, body().sizes.size()), to = wrapped(last, body().sizes.size());
  TORCH_CHECK(from <= to, "flatten() has invalid args: start_dim cannot come after end_dim");
  if (dim() == 0) return reshape({1});
  if (from == to) return *this;
  Extents sizes(body().sizes.begin(), body().sizes.begin() + static_cast<std::ptrdiff_t>(from));
  sizes.push_back(1);
  for (size_t k = from; k <= to; k++) sizes.back() *= body().sizes[k];
  sizes.insert(sizes.end(), body().sizes.begin() + static_cast<std::ptrdiff_t>(to) + 1, body().sizes.end());
  return reshape(sizes);
}
Tensor Tensor::unflatten(int64_t dimension, IntArrayRef wanted) const {
  const size_t k = wrapped(dimension, body().sizes.size());
  TORCH_CHECK(!wanted.empty(), "unflatten: sizes must be non-empty");
  int64_t product = 1;
  for (int64_t size : wanted) product *= size;
  const bool is_open = std::count(wanted.begin(), wanted.end(), -1) == 1;
  TORCH_CHECK(is_open ? product != 0 && size(dimension) % product == 0 : product == size(dimension),
              "unflatten: Provided sizes ", wanted, " don't multiply up to the size of dim ", k, " (", size(dimension),
              ") in the input tensor");
  const Extents inner = gpt149::completed(wanted.vec(), size(dimension));
  Extents sizes = body().sizes;
  const auto at = sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(k));
  sizes.insert(at, inner.begin(), inner.end());
  return view(sizes);
}

Tensor Tensor::as_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset) const {
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  for (int64_t stride : strides)
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  return seen_as(sizes.vec(), strides.vec(), offset.value_or(storage_offset()) - storage_offset());
}
Tensor Tensor::diagonal(int64_t offset, int64_t a, int64_t b) const {
  Extents sizes = body().sizes, strides = body().strides;
  const size_t one = wrapped(a, sizes.size()), other = wrapped(b, sizes.size());
  TORCH_CHECK(one != other, "diagonal dimensions cannot be identical ", a, ", ", b);
  const int64_t rows = sizes[one] + std::min<int64_t>(offset, 0), columns = sizes[other] - std::max<int64_t>(offset, 0);
  const int64_t length = std::max<int64_t>(0, std::min(rows, columns)), step = strides[one] + strides[other];
  const int64_t start = length == 0 ? 0 : offset >= 0 ? offset * strides[other] : -offset * strides[one];
  for (const size_t k : {std::max(one, other), std::min(one, other)}) {
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(k));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(k));
  }
  sizes.push_back(length);
  strides.push_back(step);
  return seen_as(std::move(sizes), std::move(strides), start);
}
std::vector<Tensor> Tensor::unbind(int64_t dimension) const {
  std::vector<Tensor> parts;
  for (int64_t k = 0; k < size(dimension); k++) parts.push_back(select(dimension, k));
  return parts;
}
std::vector<Tensor> Tensor::split(int64_t size, int64_t dimension) const {
  TORCH_CHECK(dim() != 0, "split expects at least a 1-dimensional tensor");
  TORCH_CHECK(size >= 0, "split expects split_size be non-negative, but got split_size=", size);
  const int64_t whole = this->size(dimension);
  TORCH_CHECK(size > 0 || whole == 0, "split_size can only be 0 if dimension size is 0, but got dimension size of ",
              whole);
  std::vector<Tensor> parts;
  for (int64_t from = 0; from < std::max<int64_t>(whole, 1); from += std::max<int64_t>(size, 1))
    parts.push_back(slice(dimension, from, std::min(from + size, whole)));
  return parts;
}
std::vector<Tensor> Tensor::chunk(int64_t count, int64_t dimension) const {
  TORCH_CHECK(dim() > 0, "chunk expects at least a 1-dimensional tensor");
  TORCH_CHECK(count > 0, "chunk expects `chunks` to be greater than 0, got: ", count);
  const int64_t whole = size(dimension), each = (whole + count - 1) / count;
  if (each > 0) return split(each, dimension);
  return std::vector<Tensor>(static_cast<size_t>(count), slice(dimension, 0, 0));
}

// ---- indices

namespace indexing {
Slice::Slice(std::optional<int64_t> start, std::optional<int64_t> stop, std::optional<int64_t> step)
    : start_(start), stop_(stop), step_(step.value_or(1)) {
  TORCH_CHECK_VALUE(step_ != 0, "slice step cannot be zero");
}
TensorIndex::TensorIndex(const char *text) : kind(kEllipsis) {
  TORCH_CHECK_VALUE(std::strcmp(text, "...") == 0, "Expected \"...\" to represent an ellipsis index, but got \"", text,
                    "\"");
}
}  // namespace indexing

static Tensor sliced(const Tensor &tensor, int64_t dimension, const indexing::Slice &slice) {
  TORCH_CHECK_VALUE(slice.step() > 0, "step must be greater than zero");
  return tensor.slice(dimension, slice.start(), slice.stop(), slice.step());
}
// `place` is the index's own in the list, for the message.
static Tensor selected(const Tensor &tensor, int64_t dimension, int64_t index, std::ptrdiff_t place) {
  TORCH_CHECK_INDEX(index != 0 || dimension != 0 || tensor.dim() > 0, "invalid index of a 0-dim tensor. Use "
                    "`tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim tensor to a number");
  const int64_t size = tensor.dim() > 0 ? tensor.size(dimension) : 0;
  TORCH_CHECK_INDEX(-size <= index && index < size, "index ", index, " is out of bounds for dimension ", place,
                    " with size ", size);
  return tensor.select(dimension, index);
}

// One index after the other, each on the dimension that the ones before have left.
Tensor Tensor::index(ArrayRef<indexing::TensorIndex> indices) const {
  using indexing::TensorIndex;
  TORCH_CHECK(!indices.empty(), "Passing an empty index list to Tensor::index() is not valid syntax");
  int64_t named = 0;
  for (const TensorIndex &each : indices)
    named += each.kind == TensorIndex::kNumber || each.kind == TensorIndex::kSlice;
  TORCH_CHECK_INDEX(named <= dim() || indices.size() == 1, "too many indices for tensor of dimension ", dim());
  Tensor found = alias();
  int64_t dimension = 0;
  for (const TensorIndex &each : indices) {
    switch (each.kind) {
      case TensorIndex::kNumber: found = selected(found, dimension, each.number, &each - indices.begin()); break;
      case TensorIndex::kSlice: found = sliced(found, dimension++, each.slice); break;
      case TensorIndex::kNewDimension: found = found.unsqueeze(dimension++); break;
      case TensorIndex::kEllipsis: dimension += dim() - named; break;
    }
  }
  return found;
}

// Leading dimensions of one element count as none, as in NumPy.
Tensor &Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Tensor &values) const {
  const Tensor chosen = index(indices);
  Tensor fitting = values;
  while (fitting.dim() > 0 && fitting.size(0) == 1) fitting = fitting.select(0, 0);
  chosen.copy_(fitting.expand(chosen.sizes()));
  return mutable_self();
}
Tensor &Tensor::index_put_(ArrayRef<indexing::TensorIndex> indices, const Scalar &value) const {
  index(indices).fill_(value);
  return mutable_self();
}

// ---- elements and copies

Scalar Tensor::item() const {
  TORCH_CHECK(numel() == 1, "a Tensor with ", numel(), " elements cannot be converted to Scalar");
  return c10::number_at(body().data, body().type);
}

// `count` elements from one place to another, so many bytes apart.
template <class Bits>
static void copy_row(char *to, const char *from, int64_t count, int64_t to_step, int64_t from_step) {
  for (int64_t k = 0; k < count; k++) std::memcpy(to + k * to_step, from + k * from_step, sizeof(Bits));
}
static void copy_bytes(int64_t width, char *to, const char *from, int64_t count, int64_t to_step, int64_t from_step) {
  switch (width) {
    case 1: return copy_row<int8_t>(to, from, count, to_step, from_step);
    case 2: return copy_row<int16_t>(to, from, count, to_step, from_step);
    case 4: return copy_row<int32_t>(to, from, count, to_step, from_step);
    default: return copy_row<int64_t>(to, from, count, to_step, from_step);
  }
}

Tensor &Tensor::fill_(const Scalar &value) const {
  const int64_t width = element_size();
  char element[8];
  c10::check_fits(body().type, value);
  c10::put_number(element, body().type, value);
  gpt149::for_each_row(body().sizes, body().strides, body().strides,
                       [&](int64_t place, int64_t, int64_t count, int64_t step, int64_t) {
                         copy_bytes(width, body().data + place * width, element, count, step * width, 0);
                       });
  return mutable_self();
}
Tensor &Tensor::fill_(const Tensor &value) const {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  return fill_(value.item());
}
Tensor &Tensor::zero_() const {
  if (!is_contiguous()) return fill_(0);
  if (numel() > 0) std::memset(body().data, 0, nbytes());
  return mutable_self();
}
Tensor &Tensor::copy_(const Tensor &other, bool) const {
  const Body &to = body(), &from = other.body();
  gpt149::check_repeats(to.sizes, from.sizes);
  const Extents steps = gpt149::strides_when_repeated(from.sizes, from.strides, to.sizes);
  const bool is_same_type = to.type == from.type;
  const int64_t to_width = element_size(), from_width = other.element_size();
  if (is_same_type && to.is_row_major && gpt149::is_row_major(to.sizes, steps)) {
    if (numel() > 0) std::memmove(to.data, from.data, nbytes());
    return mutable_self();
  }
  gpt149::for_each_row(
      to.sizes, to.strides, steps, [&](int64_t a, int64_t b, int64_t count, int64_t a_step, int64_t b_step) {
        char *target = to.data + a * to_width;
        const char *source = from.data + b * from_width;
        a_step *= to_width, b_step *= from_width;
        if (is_same_type) return copy_bytes(to_width, target, source, count, a_step, b_step);
        for (int64_t k = 0; k < count; k++)
          c10::put_number(target + k * a_step, to.type, c10::number_at(source + k * b_step, from.type));
      });
  return mutable_self();
}

Tensor Tensor::row_major_copy() const { return empty(sizes(), options()).copy_(*this); }
Tensor Tensor::clone(std::optional<MemoryFormat> format) const {
  if (format == MemoryFormat::Contiguous) return row_major_copy();
  return empty_like(*this).copy_(*this);
}
Tensor Tensor::to(ScalarType type, bool, bool copy) const {
  return type == body().type && !copy ? *this : empty_like(*this, type).copy_(*this);
}

}  // namespace at
