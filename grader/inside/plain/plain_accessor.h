// Elements under N indices, without bounds, as torch's own.
#ifndef GPT149_PLAIN_ACCESSOR_H
#define GPT149_PLAIN_ACCESSOR_H

#include "plain_types.h"

namespace at {

template <class T, size_t N>
class TensorAccessor {
 public:
  TensorAccessor(T *data, const int64_t *sizes, const int64_t *strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  decltype(auto) operator[](int64_t k) const {
    if constexpr (N == 1) return static_cast<T &>(data_[k * strides_[0]]);
    else return TensorAccessor<T, N - 1>(data_ + k * strides_[0], sizes_ + 1, strides_ + 1);
  }
  int64_t size(int64_t k) const { return sizes_[k]; }
  int64_t stride(int64_t k) const { return strides_[k]; }
  c10::IntArrayRef sizes() const { return {sizes_, N}; }
  c10::IntArrayRef strides() const { return {strides_, N}; }
  T *data() const { return data_; }

 private:
  T *data_;
  const int64_t *sizes_, *strides_;
};

}  // namespace at

#endif
