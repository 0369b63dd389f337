// Offers the reference's kernels (module_ref_stub/dispatch.cpp) to a runner. Their parameters are float pointers
// (tensors) and ints (numbers). The last parameter is the output, which the signatures do not list.
#include "gpt149_c_abi.h"

extern "C" {
#define GPT149_FIVE float *, float *, float *, float *, float *
using Rows = void(const float *, const float *, const float *, float *, int, int, int, int, float *);
Rows gpt149_ref_naive, gpt149_ref_blocked, gpt149_ref_fused, gpt149_ref_fused_rows;
void gpt149_ref_flash(const float *, const float *, const float *, GPT149_FIVE, GPT149_FIVE, float *, int, int, int,
                      int, int, int, float *);
#undef GPT149_FIVE
}

namespace gpt149_inside {

float *tensor(const void *cell) { return static_cast<float *>(static_cast<const Gpt149Tensor *>(cell)->data); }
int number(const void *cell) { return static_cast<int>(*static_cast<const int64_t *>(cell)); }

template <Rows kernel>
void run(void *const *c) {
  kernel(tensor(c[0]), tensor(c[1]), tensor(c[2]), tensor(c[3]), number(c[4]), number(c[5]), number(c[6]),
         number(c[7]), tensor(c[8]));
}

void run_flash(void *const *c) {
  gpt149_ref_flash(tensor(c[0]), tensor(c[1]), tensor(c[2]), tensor(c[3]), tensor(c[4]), tensor(c[5]), tensor(c[6]),
                   tensor(c[7]), tensor(c[8]), tensor(c[9]), tensor(c[10]), tensor(c[11]), tensor(c[12]),
                   tensor(c[13]), number(c[14]), number(c[15]), number(c[16]), number(c[17]), number(c[18]),
                   number(c[19]), tensor(c[20]));
}

const struct {
  const char *name, *signature;
  void (*run)(void *const *cells);
} kernels[] = {
    {"gpt149_ref_naive", "O(TTTTiiii)", run<gpt149_ref_naive>},
    {"gpt149_ref_blocked", "O(TTTTiiii)", run<gpt149_ref_blocked>},
    {"gpt149_ref_fused", "O(TTTTiiii)", run<gpt149_ref_fused>},
    {"gpt149_ref_fused_rows", "O(TTTTiiii)", run<gpt149_ref_fused_rows>},
    {"gpt149_ref_flash", "O(TTTTTTTTTTTTTTiiiiii)", run_flash},
};

}  // namespace gpt149_inside

extern "C" {
int32_t gpt149_count(void) { return sizeof gpt149_inside::kernels / sizeof gpt149_inside::kernels[0]; }
const char *gpt149_name(int32_t k) { return gpt149_inside::kernels[k].name; }
const char *gpt149_signature(int32_t k) { return gpt149_inside::kernels[k].signature; }
int32_t gpt149_call(int32_t k, void *const *cells, Gpt149Result *result) {
  *result = Gpt149Result{};
  gpt149_inside::kernels[k].run(cells);
  return 0;
}
void gpt149_release(Gpt149Result *) {}
}
