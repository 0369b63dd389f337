// The C ABI of the reference library. It chooses the fastest kernels that this processor supports, and calls them.
// Compiled for the baseline architecture, because it runs before the processor's features are known.
#include "kernels.h"
#include "levels.h"

#include <omp.h>

#define GPT149_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

const Gpt149Kernels &kernels() { return GPT149_OF_LEVEL(gpt149_kernels); }

}  // namespace

// Returns the level in use: 0 baseline, 1 AVX2 + FMA, 2 AVX-512. Architectures other than x86-64 have level 0 only.
GPT149_EXPORT int gpt149_ref_level(void) { return level().load(); }

// For tests: sets the level of later calls to `wanted` if this machine supports it. Returns the level that is now used.
GPT149_EXPORT int gpt149_ref_set_level(int wanted) { return setLevel(wanted); }

// Sets the number of threads of later calls of part 3, in place of OMP_NUM_THREADS. `temp` needs a row for each thread.
GPT149_EXPORT void gpt149_ref_set_threads(int threads) { omp_set_num_threads(threads); }

GPT149_EXPORT float gpt149_ref_read4d(const float *tensor, int x, int y, int z, int b, int sizeX, int sizeY,
                                      int sizeZ) {
    return tensor[gpt149_offset4d(x, y, z, b, sizeX, sizeY, sizeZ)];
}

GPT149_EXPORT void gpt149_ref_write4d(float *tensor, int x, int y, int z, int b, int sizeX, int sizeY, int sizeZ,
                                      float value) {
    tensor[gpt149_offset4d(x, y, z, b, sizeX, sizeY, sizeZ)] = value;
}

#define GPT149_ROWS(NAME, KERNEL)                                                                             \
    GPT149_EXPORT void NAME(const float *Q, const float *K, const float *V, float *W, int B, int H, int N, int d, \
                            float *O) {                                                                       \
        kernels().KERNEL(Q, K, V, W, B, H, N, d, O);                                                          \
    }
GPT149_ROWS(gpt149_ref_naive, naive)
GPT149_ROWS(gpt149_ref_blocked, blocked)
GPT149_ROWS(gpt149_ref_fused, fused)
GPT149_ROWS(gpt149_ref_fused_rows, fusedRows)

GPT149_EXPORT void gpt149_ref_flash(const float *Q, const float *K, const float *V, float *Qi, float *Kj, float *Vj,
                                    float *Sij, float *Pij, float *PV, float *Oi, float *L, float *Li, float *Lij,
                                    float *Lnew, int Bc, int Br, int B, int H, int N, int d, float *O) {
    kernels().flash(Q, K, V, Qi, Kj, Vj, Sij, Pij, PV, Oi, L, Li, Lij, Lnew, Bc, Br, B, H, N, d, O);
}
