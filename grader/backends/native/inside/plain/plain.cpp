// The compiled code of the stand-in for torch, linked with every student's object: errors, element types and single
// numbers, memory, and tensors (views, indices, elements and copies, new tensors, printing).
#include "plain_torch.h"

#include "gpt149_glue.h"
#include "plain_aligned.h"
#include "plain_layout.h"

namespace c10 {

Error::Error(std::string text) : text_(std::move(text)) {}
Error::~Error() = default;
const char *Error::what() const noexcept { return text_.c_str(); }

// Throws an E with the text `said`; if it is empty, with the text that torch has for a condition without a message.
template <class E>
void fail(const char *condition, const std::string &said) {
  if (!said.empty()) throw E(said);
  throw E(str("Expected ", condition, " to be true, but got false.  (Could this error message be improved?  If so, "
              "please report an enhancement request to PyTorch.)"));
}
template void fail<Error>(const char *, const std::string &);
template void fail<IndexError>(const char *, const std::string &);
template void fail<ValueError>(const char *, const std::string &);
void Device::fail_device() { throw Error("tensors lie in main memory only: there is no other device here"); }

int64_t width_of(ScalarType type) {
  return with_element(type, [](auto element) { return static_cast<int64_t>(sizeof element); });
}

const char *toString(ScalarType type) {
  switch (type) {
#define GPT149_NAME(CPP, NAME) \
  case ScalarType::NAME: return #NAME;
    GPT149_ELEMENTS(GPT149_NAME)
#undef GPT149_NAME
  }
  return "UNKNOWN_SCALAR";
}

std::ostream &operator<<(std::ostream &out, ScalarType type) { return out << toString(type); }
std::ostream &operator<<(std::ostream &out, const Device &) { return out << "cpu"; }
std::ostream &operator<<(std::ostream &out, const Scalar &number) {
  if (number.isFloatingPoint()) return out << number.toDouble();
  if (!number.isIntegral(false)) return out << (number.to<bool>() ? "true" : "false");
  return out << number.toLong();
}

Scalar number_at(const char *place, ScalarType type) {
  return with_element(type, [=](auto element) { return Scalar(*reinterpret_cast<const decltype(element) *>(place)); });
}
void put_number(char *place, ScalarType type, const Scalar &number) {
  with_element(type, [&](auto element) {
    using T = decltype(element);
    *reinterpret_cast<T *>(place) = number.as<T>();
  });
}

template <class T>
static bool fits(const Scalar &number) {
  using Limits = std::numeric_limits<T>;
  if (std::is_same_v<T, bool>) return true;
  if (!number.isFloatingPoint()) {
    const int64_t whole = number.as<int64_t>();
    if (std::is_floating_point_v<T> || sizeof(T) == 8) return true;
    // As in torch, negative numbers are allowed for unsigned types: they wrap around.
    const auto most = static_cast<int64_t>(Limits::max());
    return whole <= most && whole >= (std::is_signed_v<T> ? static_cast<int64_t>(Limits::lowest()) : -most);
  }
  const double real = number.as<double>();
  if (std::is_floating_point_v<T>)
    return !std::isfinite(real) || std::fabs(real) <= static_cast<double>(Limits::max());
  const auto most = static_cast<double>(Limits::max());
  const bool is_small = sizeof(T) == 8 ? real < most : real <= most;
  return is_small && real >= (std::is_signed_v<T> ? static_cast<double>(Limits::lowest()) : -most);
}

void check_fits(ScalarType type, const Scalar &number) {
#define GPT149_FITS(CPP, NAME)                                                                                \
  if (type == ScalarType::NAME && !fits<CPP>(number))                                                         \
    throw std::runtime_error("value cannot be converted to type " #CPP " without overflow");
  GPT149_ELEMENTS(GPT149_FITS)
#undef GPT149_FITS
}

}  // namespace c10

namespace gpt149 {

Counted::~Counted() = default;
void Counted::let_go() {
  if (owners_.fetch_sub(1, std::memory_order_release) != 1) return;
  owners_.load(std::memory_order_acquire);
  delete this;
}

Owner<Memory> Memory::allocate(size_t bytes) {
  void *base = nullptr;
  void *first = gpt149_inside::aligned(bytes, &base);
  return Owner<Memory>(new Memory(first, base));
}

}  // namespace gpt149

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
void Tensor::fail_type(ScalarType wanted) const {
  throw c10::Error(c10::str("expected scalar type ", wanted, " but found ", body().type));
}

void Tensor::fail_memory() const { throw c10::Error("Cannot access data pointer of Tensor that doesn't have storage"); }
IntArrayRef Tensor::sizes_of_none() {
  static constexpr int64_t kNothing = 0;
  return kNothing;
}

int64_t Tensor::storage_offset() const { return (body().data - body().memory->first) / element_size(); }
std::string Tensor::toString() const {
  return defined() ? c10::str("CPU", body().type, "Type") : "UndefinedType";
}
// ---- views

Tensor Tensor::seen_as(Extents sizes, Extents strides, int64_t offset) const {
  return {body().memory, body().data + offset * element_size(), std::move(sizes), std::move(strides), body().type};
}
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
  if (sizes.empty()) return detach();
  std::swap(sizes[one], sizes[other]);
  std::swap(strides[one], strides[other]);
  return seen_as(std::move(sizes), std::move(strides), 0);
}
Tensor Tensor::t() const {
  TORCH_CHECK(dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", dim(), "D");
  return dim() < 2 ? detach() : transpose(0, 1);
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
Tensor Tensor::as_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset) const {
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  for (int64_t stride : strides)
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  return seen_as(sizes.vec(), strides.vec(), offset.value_or(storage_offset()) - storage_offset());
}
// ---- indices

namespace indexing {
Slice::Slice(std::optional<int64_t> from, std::optional<int64_t> before, std::optional<int64_t> by)
    : start(from), stop(before), step(by.value_or(1)) {
  TORCH_CHECK_VALUE(step != 0, "slice step cannot be zero");
}
TensorIndex::TensorIndex(const char *text) : kind(kEllipsis) {
  TORCH_CHECK_VALUE(std::strcmp(text, "...") == 0, "Expected \"...\" to represent an ellipsis index, but got \"", text,
                    "\"");
}
}  // namespace indexing

static Tensor sliced(const Tensor &tensor, int64_t dimension, const indexing::Slice &slice) {
  TORCH_CHECK_VALUE(slice.step > 0, "step must be greater than zero");
  return tensor.slice(dimension, slice.start, slice.stop, slice.step);
}
// Like `select`, but with torch's message for a wrong index. `place` is the position of the index in the list.
static Tensor selected(const Tensor &tensor, int64_t dimension, int64_t index, std::ptrdiff_t place) {
  TORCH_CHECK_INDEX(index != 0 || dimension != 0 || tensor.dim() > 0, "invalid index of a 0-dim tensor. Use "
                    "`tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim tensor to a number");
  const int64_t size = tensor.dim() > 0 ? tensor.size(dimension) : 0;
  TORCH_CHECK_INDEX(-size <= index && index < size, "index ", index, " is out of bounds for dimension ", place,
                    " with size ", size);
  return tensor.select(dimension, index);
}

// Applies the indices one after the other to the view `found`. `dimension` is the dimension of `found` for the next
// index.
Tensor Tensor::index(Indices indices) const {
  using indexing::TensorIndex;
  TORCH_CHECK(indices.size() > 0, "Passing an empty index list to Tensor::index() is not valid syntax");
  int64_t named = 0;
  for (const TensorIndex &each : indices)
    named += each.kind == TensorIndex::kNumber || each.kind == TensorIndex::kSlice;
  TORCH_CHECK_INDEX(named <= dim() || indices.size() == 1, "too many indices for tensor of dimension ", dim());
  Tensor found = detach();
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

// Copies `values` to the indexed elements. Leading dimensions of size 1 in `values` are ignored, as in NumPy.
Tensor &Tensor::index_put_(Indices indices, const Tensor &values) const {
  const Tensor chosen = index(indices);
  Tensor fitting = values;
  while (fitting.dim() > 0 && fitting.size(0) == 1) fitting = fitting.select(0, 0);
  chosen.copy_(fitting.expand(chosen.sizes()));
  return mutable_self();
}
Tensor &Tensor::index_put_(Indices indices, const Scalar &value) const {
  index(indices).fill_(value);
  return mutable_self();
}

// ---- elements and copies

Scalar Tensor::item() const {
  TORCH_CHECK(numel() == 1, "a Tensor with ", numel(), " elements cannot be converted to Scalar");
  return c10::number_at(body().data, body().type);
}

// Copies `count` elements. The steps are the distances in bytes from one element to the next.
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
Tensor Tensor::to(TensorOptions options, bool, bool copy) const {
  const ScalarType type = options.has_dtype() ? options.dtype() : scalar_type();
  return type == scalar_type() && !copy ? *this : empty_like(*this, type).copy_(*this);
}

// ---- new tensors

static Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, TensorOptions options) {
  int64_t reach = 1;
  for (size_t k = 0; k < sizes.size(); k++) {
    TORCH_CHECK(sizes[k] >= 0, "Trying to create tensor with negative dimension ", sizes[k], ": ", sizes);
    int64_t further = 0;
    const bool is_large = reach != 0 && sizes[k] > 0 && (__builtin_mul_overflow(sizes[k] - 1, strides[k], &further) ||
                                                        __builtin_add_overflow(reach, further, &reach));
    TORCH_CHECK(!is_large && reach <= INT64_MAX / 8, "Storage size calculation overflowed with sizes=", sizes);
    if (sizes[k] == 0) reach = 0;
  }
  auto memory = gpt149::Memory::allocate(static_cast<size_t>(reach * c10::width_of(options.dtype())));
  char *first = memory->first;
  return Tensor(std::move(memory), first, sizes.vec(), strides.vec(), options.dtype());
}
Tensor empty(IntArrayRef sizes, TensorOptions options, std::optional<MemoryFormat>) {
  return empty_strided(sizes, gpt149::row_major(sizes.vec()), options);
}
Tensor empty_like(const Tensor &other, TensorOptions options, std::optional<MemoryFormat> format) {
  const ScalarType type = options.has_dtype() ? options.dtype() : other.scalar_type();
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
Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, TensorOptions options) {
  TORCH_CHECK(sizes.size() == strides.size(), "as many strides as sizes are needed");
  gpt149::Owner<gpt149::Memory> memory(new gpt149::Memory(data, nullptr));
  return Tensor(std::move(memory), static_cast<char *>(data), sizes.vec(), strides.vec(), options.dtype());
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
Tensor arange(const Scalar &stop, TensorOptions options) { return arange(0, stop, 1, options); }

// ---- printing

static void print_rows(std::ostream &out, const Tensor &tensor, const std::string &place) {
  if (tensor.dim() > 2) {
    for (int64_t k = 0; k < tensor.size(0); k++) print_rows(out, tensor[k], place + std::to_string(k + 1) + ',');
    return;
  }
  if (!place.empty()) out << '(' << place << ".,.) = \n";
  for (int64_t row = 0; row < tensor.size(0); row++) {
    const Tensor numbers = tensor.dim() == 2 ? tensor[row] : tensor.narrow(0, row, 1);
    for (int64_t k = 0; k < numbers.size(0); k++) out << ' ' << std::setw(10) << numbers[k].item();
    out << '\n';
  }
}
std::ostream &operator<<(std::ostream &out, const Tensor &tensor) {
  if (!tensor.defined()) return out << "[ Tensor (undefined) ]";
  if (tensor.dim() == 0) out << tensor.item() << '\n';
  else if (tensor.numel() > 0) print_rows(out, tensor, "");
  out << "[ " << tensor.toString() << '{';
  for (int64_t k = 0; k < tensor.dim(); k++) out << (k > 0 ? "," : "") << tensor.size(k);
  return out << "} ]";
}

}  // namespace at
