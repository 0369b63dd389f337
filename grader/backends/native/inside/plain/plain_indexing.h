// The indices of Tensor::index and index_put_: numbers, slices, None and the ellipsis. Others (a tensor, true, false)
// copy what they choose; the stand-in does without them.
#ifndef GPT149_PLAIN_INDEXING_H
#define GPT149_PLAIN_INDEXING_H

#include "plain_types.h"

namespace at {
class Tensor;

namespace indexing {

inline constexpr std::nullopt_t None = std::nullopt;
struct EllipsisIndexType {};
inline constexpr EllipsisIndexType Ellipsis{};

// From start to before stop; None is the beginning or the end, negative numbers count from the end.
class Slice {
 public:
  Slice(std::optional<int64_t> start = None, std::optional<int64_t> stop = None,
        std::optional<int64_t> step = None);
  std::optional<int64_t> start() const { return start_; }
  std::optional<int64_t> stop() const { return stop_; }
  int64_t step() const { return step_; }

 private:
  std::optional<int64_t> start_, stop_;
  int64_t step_;
};

// One of them, and which.
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
}  // namespace at

#endif
