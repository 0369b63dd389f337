// The functions by which a runner calls the kernels in its program. shim/gpt149_abi.h defines them for a student's
// object, and reference.cpp for the reference. Signatures are as in gpt149_abi.h. In addition, result code 'O' means
// that the function writes its result to a last tensor, which the runner allocates and the signature does not list.
#ifndef GPT149_INSIDE_PROGRAM_H
#define GPT149_INSIDE_PROGRAM_H

#include "gpt149_c_abi.h"

extern "C" {
int32_t gpt149_count(void);
const char *gpt149_name(int32_t);
const char *gpt149_signature(int32_t);
int32_t gpt149_call(int32_t, void *const *, Gpt149Result *);
void gpt149_release(Gpt149Result *);
}

namespace gpt149_inside {

// The same as gpt149::Kind.
enum Kind : int32_t { kVoid, kNumber, kTensor, kVector, kUndefined };

}  // namespace gpt149_inside

#endif
