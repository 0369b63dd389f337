// Tests if this machine's compiler makes working programs with OpenMP's threads and with exceptions. If so, a runner
// that is linked with this file lists no function; otherwise it lists the function "trial failed".
#include <stdexcept>

#include "gpt149_c_abi.h"

extern "C" {
int32_t gpt149_count(void) {
  int threads = 0, caught = 0;
#pragma omp parallel num_threads(2) reduction(+ : threads)
  threads += 1;
  try {
    if (threads > 0) throw std::runtime_error("thrown");
  } catch (const std::exception &) {
    caught = 1;
  }
  return threads == 2 && caught == 1 ? 0 : 1;
}
const char *gpt149_name(int32_t) { return "trial failed"; }
const char *gpt149_signature(int32_t) { return "v()"; }
int32_t gpt149_call(int32_t, void *const *, Gpt149Result *) { return 1; }
void gpt149_release(Gpt149Result *) {}
}
