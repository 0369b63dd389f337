// The plain C types and functions by which a runner calls the kernels in its program. gpt149_glue.h defines the
// functions for a student's object, and inside/reference.cpp for the reference. gpt149_abi.h describes signatures. In
// addition, the result code 'O' means that the function writes its result to one more tensor after its parameters. The
// runner allocates this tensor, and the signature does not list it.
#ifndef GPT149_C_ABI_H
#define GPT149_C_ABI_H

#include <cstdint>

extern "C" {
struct Gpt149Tensor {
  void *data;
  int64_t ndim;
  const int64_t *sizes;
  int32_t dtype;  // the element type, as the number of a c10::ScalarType
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

int32_t gpt149_count(void);
const char *gpt149_name(int32_t);
const char *gpt149_signature(int32_t);
int32_t gpt149_call(int32_t, void *const *, Gpt149Result *);
void gpt149_release(Gpt149Result *);
}

namespace gpt149 {
enum Kind : int32_t { kVoid, kNumber, kTensor, kVector, kUndefined };
}

#endif
