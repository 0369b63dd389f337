// Elements under N indices, without bounds, as torch's own. An accessor points to sizes and strides of its tensor; a
// packed one holds them, and counts in Index.
#ifndef GPT149_PLAIN_ACCESSOR_H
#define GPT149_PLAIN_ACCESSOR_H

#include "plain_types.h"

namespace at {

template <class T>
struct DefaultPtrTraits {
  using PtrType = T *;
};
template <class T>
struct RestrictPtrTraits {
  using PtrType = T *__restrict__;
};

template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t>
class TensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  TensorAccessor(PtrType data, const Index *sizes, const Index *strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  decltype(auto) operator[](Index k) const {
    if constexpr (N == 1) return static_cast<T &>(data_[k * strides_[0]]);
    else return TensorAccessor<T, N - 1, Traits, Index>(data_ + k * strides_[0], sizes_ + 1, strides_ + 1);
  }
  Index size(Index k) const { return sizes_[k]; }
  Index stride(Index k) const { return strides_[k]; }
  c10::ArrayRef<Index> sizes() const { return {sizes_, N}; }
  c10::ArrayRef<Index> strides() const { return {strides_, N}; }
  PtrType data() const { return data_; }

 private:
  PtrType data_;
  const Index *sizes_, *strides_;
};

template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t>
class GenericPackedTensorAccessor {
 public:
  using PtrType = typename Traits<T>::PtrType;
  GenericPackedTensorAccessor(PtrType data, const int64_t *sizes, const int64_t *strides) : data_(data) {
    for (size_t k = 0; k < N; k++) {
      sizes_[k] = static_cast<Index>(sizes[k]);
      strides_[k] = static_cast<Index>(strides[k]);
    }
  }
  decltype(auto) operator[](Index k) const {
    if constexpr (N == 1) return static_cast<T &>(data_[k * strides_[0]]);
    else return TensorAccessor<T, N - 1, Traits, Index>(data_ + k * strides_[0], sizes_ + 1, strides_ + 1);
  }
  Index size(Index k) const { return sizes_[k]; }
  Index stride(Index k) const { return strides_[k]; }
  PtrType data() const { return data_; }

 private:
  PtrType data_;
  Index sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;

}  // namespace at

#endif
