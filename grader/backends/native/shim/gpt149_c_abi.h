// The plain C types and functions of gpt149_abi.h: arguments and results between a runner and a submission.
#ifndef GPT149_C_ABI_H
#define GPT149_C_ABI_H

#include <cstdint>

extern "C" {
struct Gpt149Tensor {
  void *data;
  int64_t ndim;
  const int64_t *sizes;
  int32_t dtype;  // number of the c10::ScalarType
};
struct Gpt149Vector {
  float *data;
  int64_t size;
};
struct Gpt149Result {
  int32_t kind;  // gpt149::Kind
  int32_t dtype;
  double number;
  void *data;
  int64_t ndim;
  int64_t sizes[8];
  void *owner;
  char error[1024];
};
}

#endif
