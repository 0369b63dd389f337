// Computes sizes and strides (in elements) as torch does. Only the stand-in's own sources use it.
#ifndef GPT149_PLAIN_LAYOUT_H
#define GPT149_PLAIN_LAYOUT_H

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "plain_types.h"

namespace gpt149 {

using Extents = std::vector<int64_t>;

// Converts an index `k` of a dimension to a nonnegative index: -1 means the last dimension. As in torch, a tensor
// without dimensions accepts 0 and -1. Throws for other values.
inline size_t wrapped(int64_t k, size_t dimensions) {
  const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(dimensions));
  TORCH_CHECK_INDEX(-count <= k && k < count, "Dimension out of range (expected to be in range of [", -count, ", ",
                    count - 1, "], but got ", k, ")");
  return static_cast<size_t>(k < 0 ? k + count : k);
}

inline int64_t count_of(const Extents &sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
}

// Returns row-major strides. A dimension of size 0 counts like size 1.
inline Extents row_major(const Extents &sizes) {
  Extents strides(sizes.size());
  int64_t stride = 1;
  for (size_t k = sizes.size(); k-- > 0; stride *= std::max<int64_t>(sizes[k], 1)) strides[k] = stride;
  return strides;
}

// Returns true for row-major strides. Strides of dimensions of size 1 are never used, so they do not matter.
inline bool is_row_major(const Extents &sizes, const Extents &strides) {
  if (count_of(sizes) == 0) return true;
  int64_t stride = 1;
  for (size_t k = sizes.size(); k-- > 0; stride *= sizes[k])
    if (sizes[k] != 1 && strides[k] != stride) return false;
  return true;
}

// Returns the dimensions in the order of increasing strides. Dimensions of stride 0 are not compared with others. Of
// dimensions with equal strides, the smaller one comes first. If their sizes are equal, too, the later one comes first.
inline std::vector<size_t> from_inner_to_outer(const Extents &sizes, const Extents &strides) {
  std::vector<size_t> order(sizes.size());
  for (size_t k = 0; k < order.size(); k++) order[k] = order.size() - 1 - k;
  auto goes_after = [&](size_t a, size_t b) {
    if (strides[a] == 0 || strides[b] == 0) return 0;
    if (strides[a] != strides[b]) return strides[a] > strides[b] ? 1 : -1;
    return sizes[a] > sizes[b] ? 1 : 0;
  };
  // Insertion sort. std::sort cannot be used, because some dimensions cannot be compared (stride 0).
  for (size_t k = 1; k < order.size(); k++) {
    for (size_t at = k, other = k; other-- > 0;) {
      const int after = goes_after(order[other], order[at]);
      if (after < 0) break;
      if (after > 0) {
        std::swap(order[other], order[at]);
        at = other;
      }
    }
  }
  return order;
}

// Returns true if the elements fill their memory without gaps, in any order of the dimensions.
inline bool is_dense(const Extents &sizes, const Extents &strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (sizes[a] < 2 || sizes[b] < 2) return sizes[a] >= 2 && sizes[b] < 2;
    return strides[a] < strides[b];
  });
  int64_t stride = 1;
  for (size_t k : order) {
    if (sizes[k] < 2) return true;
    if (strides[k] != stride) return false;
    stride *= sizes[k];
  }
  return true;
}

// Returns the strides of a tensor's copy. The copy is dense, and its dimensions keep their order in memory.
inline Extents strides_of_copy(const Extents &sizes, const Extents &strides) {
  if (is_dense(sizes, strides)) return strides;
  Extents made(sizes.size());
  int64_t stride = 1;
  for (size_t k : from_inner_to_outer(sizes, strides)) {
    made[k] = stride;
    stride *= sizes[k];
  }
  return made;
}

// Returns the strides with which a view of the same elements has the sizes `wanted`; nullopt if a view is impossible.
inline std::optional<Extents> strides_of_view(const Extents &sizes, const Extents &strides, const Extents &wanted) {
  if (count_of(sizes) == 0) return wanted == sizes ? strides : row_major(wanted);
  if (sizes.empty()) return Extents(wanted.size(), 1);
  Extents made(wanted.size());
  size_t next = wanted.size(), at = sizes.size();
  // Go from the last dimension to the first. Join neighbouring dimensions that form one row of `held` elements which
  // are `distance` apart. Split this row into the next wanted dimensions: the product of their sizes must be `held`.
  while (at > 0) {
    const int64_t distance = strides[at - 1];
    int64_t held = sizes[--at];
    while (at > 0 && (sizes[at - 1] == 1 || strides[at - 1] == held * distance)) held *= sizes[--at];
    int64_t covered = 1;
    while (next > 0 && (covered < held || wanted[next - 1] == 1)) {
      made[--next] = covered * distance;
      covered *= wanted[next];
    }
    if (covered != held) return std::nullopt;
  }
  return next == 0 ? std::optional<Extents>(made) : std::nullopt;
}

// Returns `wanted` with a size of -1 replaced so that there are `count` elements in all.
inline Extents completed(Extents wanted, int64_t count) {
  int64_t product = 1, open = -1;
  for (size_t k = 0; k < wanted.size(); k++) {
    if (wanted[k] == -1) {
      TORCH_CHECK(open < 0, "only one dimension can be inferred");
      open = static_cast<int64_t>(k);
    } else {
      TORCH_CHECK(wanted[k] >= 0, "invalid shape dimension ", wanted[k], " at index ", k, " of shape ",
                  c10::IntArrayRef(wanted));
      product *= wanted[k];
    }
  }
  TORCH_CHECK(open < 0 || product > 0 || count > 0, "cannot reshape tensor of 0 elements into shape ",
              c10::IntArrayRef(wanted), " because the unspecified dimension size -1 can be any value and is ambiguous");
  const bool fits = open < 0 ? product == count : product > 0 && count % product == 0;
  TORCH_CHECK(fits, "shape '", c10::IntArrayRef(wanted), "' is invalid for input of size ", count);
  if (open >= 0) wanted[static_cast<size_t>(open)] = count / product;
  return wanted;
}

// Returns the sizes to which torch's expand(wanted) broadcasts a tensor. `wanted` has at least as many dimensions as
// the tensor. A wanted size of -1 means the tensor's own size.
inline Extents sizes_when_repeated(const Extents &sizes, const Extents &wanted) {
  Extents made = wanted;
  const size_t missing = wanted.size() - sizes.size();
  for (size_t k = wanted.size(); k-- > 0;) {
    if (made[k] == -1) {
      TORCH_CHECK(k >= missing, "The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension ",
                  k);
      made[k] = sizes[k - missing];
    }
    if (k < missing) continue;
    TORCH_CHECK(sizes[k - missing] == made[k] || sizes[k - missing] == 1, "The expanded size of the tensor (", made[k],
                ") must match the existing size (", sizes[k - missing], ") at non-singleton dimension ", k,
                ".  Target sizes: ", c10::IntArrayRef(wanted), ".  Tensor sizes: ", c10::IntArrayRef(sizes));
  }
  return made;
}

// Throws, with the message of torch's copy_, unless a tensor of sizes `from` can be broadcast to sizes `to`.
inline void check_repeats(const Extents &to, const Extents &from) {
  Extents both(std::max(to.size(), from.size()));
  for (size_t k = both.size(); k-- > 0;) {
    const size_t later = both.size() - k;
    const int64_t a = later <= to.size() ? to[to.size() - later] : 1;
    const int64_t b = later <= from.size() ? from[from.size() - later] : 1;
    TORCH_CHECK(a == b || a == 1 || b == 1, "The size of tensor a (", a, ") must match the size of tensor b (", b,
                ") at non-singleton dimension ", k);
    both[k] = a == 1 ? b : a;
  }
  TORCH_CHECK(both == to, "output with shape ", c10::IntArrayRef(to), " doesn't match the broadcast shape ",
              c10::IntArrayRef(both));
}

// Returns the strides of a tensor that is broadcast to `wanted`. They are 0 along repeated dimensions.
inline Extents strides_when_repeated(const Extents &sizes, const Extents &strides, const Extents &wanted) {
  const Extents made = sizes_when_repeated(sizes, wanted);
  Extents steps(wanted.size(), 0);
  const size_t missing = wanted.size() - sizes.size();
  for (size_t k = missing; k < wanted.size(); k++) steps[k] = sizes[k - missing] == made[k] ? strides[k - missing] : 0;
  return steps;
}

// Calls body(a, b, count, step_a, step_b) for every row along the last dimension of two tensors, in row-major order. In
// each tensor the row has `count` elements. It begins at offset a or b, and its elements are step_a or step_b apart.
template <class F>
void for_each_row(const Extents &sizes, const Extents &strides_a, const Extents &strides_b, const F &body) {
  if (count_of(sizes) == 0) return;
  if (sizes.empty()) return body(0, 0, 1, 0, 0);
  const size_t last = sizes.size() - 1;
  Extents at(last, 0);
  int64_t a = 0, b = 0;
  for (;;) {
    body(a, b, sizes[last], strides_a[last], strides_b[last]);
    size_t k = last;
    for (; k > 0 && at[k - 1] + 1 == sizes[k - 1]; k--) {
      a -= strides_a[k - 1] * at[k - 1];
      b -= strides_b[k - 1] * at[k - 1];
      at[k - 1] = 0;
    }
    if (k == 0) return;
    at[k - 1]++;
    a += strides_a[k - 1];
    b += strides_b[k - 1];
  }
}

}  // namespace gpt149

#endif
