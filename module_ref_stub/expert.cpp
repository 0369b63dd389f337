// The C ABI of the expert library (expert.h says what it is for). It chooses the best level that this processor
// supports, and distributes heads and tiles to threads. Compiled for the baseline architecture, because it runs before
// the processor's features are known.
//
// gpt149_expert_attention and gpt149_plain_attention have the same arguments as the reference's functions, except for
// the workspace. OMP_NUM_THREADS or gpt149_expert_set_threads sets their number of threads. Both write all elements of
// O. Tiles depend only on the shape, so any number of threads gives the same bits.
#include "expert.h"
#include "levels.h"

#include <omp.h>

#include <new>

#define GPT149_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Unused floats between rows of the transposed V, so that rows do not compete for the same lines of the cache.
constexpr int kPadding = 16;

const Gpt149ExpertKernels &expert() { return GPT149_OF_LEVEL(gpt149_expert); }
const Gpt149PlainKernels &plain() { return GPT149_OF_LEVEL(gpt149_plain); }

// An array of floats, aligned for vectors of any width.
class Scratch {
  public:
    explicit Scratch(std::size_t count)
        : floats_(static_cast<float *>(::operator new(count * sizeof(float), std::align_val_t{64}))) {}
    ~Scratch() { ::operator delete(floats_, std::align_val_t{64}); }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    float *get() { return floats_; }

  private:
    float *floats_;
};

int divideUp(int a, int b) { return (a + b - 1) / b; }

void forward(const float *Q, const float *K, const float *V, int heads, int N, int d, int threads,
             float *O) {
    const Gpt149ExpertKernels &use = expert();
    // Tiles differ by at most one vector. For example, 17 vectors are not split into four tiles of 4 and one of 1.
    const int vectors = divideUp(N, use.lanes), tiles = divideUp(vectors, use.vectors);
    const long work = static_cast<long>(heads) * tiles;
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch(use.scratch(d));
#pragma omp for schedule(dynamic, 1)
        for (long w = 0; w < work; w++) {
            const int tile = static_cast<int>(w % tiles);
            const long head = w / tiles;
            const int begin = static_cast<int>(static_cast<long>(vectors) * tile / tiles);
            const int end = static_cast<int>(static_cast<long>(vectors) * (tile + 1) / tiles);
            const std::size_t at = static_cast<std::size_t>(head) * N * d;
            const Gpt149Head one{Q + at, K + at, V + at, O + at, N, d};
            use.tile(one, begin * use.lanes, end - begin, scratch.get());
        }
    }
}

void plainForward(const float *Q, const float *K, const float *V, int heads, int N, int d, int threads,
                  float *O) {
    const Gpt149PlainKernels &use = plain();
    const int tiles = divideUp(N, use.rows), pitch = N + kPadding;
    const std::size_t transposed = static_cast<std::size_t>(d) * pitch;
    Scratch VT(heads * transposed);
#pragma omp parallel num_threads(threads)
    {
        Scratch scratch(use.scratch(d));
#pragma omp for collapse(2)
        for (int head = 0; head < heads; head++) {
            for (int j0 = 0; j0 < N; j0 += 64) {
                for (int c = 0; c < d; c++) {
                    for (int j = j0; j < N && j < j0 + 64; j++) {
                        VT.get()[head * transposed + static_cast<std::size_t>(c) * pitch + j] =
                            V[(static_cast<std::size_t>(head) * N + j) * d + c];
                    }
                }
            }
        }
#pragma omp for collapse(2) schedule(dynamic, 4)
        for (int head = 0; head < heads; head++) {
            for (int tile = 0; tile < tiles; tile++) {
                const std::size_t at = static_cast<std::size_t>(head) * N * d;
                const Gpt149Head one{Q + at, K + at, V + at, O + at, N, d};
                use.tile(one, VT.get() + head * transposed, pitch, tile * use.rows, scratch.get());
            }
        }
    }
}

}  // namespace

// Returns the level in use: 0 baseline, 1 AVX2 + FMA, 2 AVX-512. Architectures other than x86-64 have level 0 only.
GPT149_EXPORT int gpt149_expert_level(void) { return level().load(); }

// Sets the level of later calls to `wanted` if this machine supports it. Returns the level that is now used.
GPT149_EXPORT int gpt149_expert_set_level(int wanted) { return setLevel(wanted); }

// Sets the number of threads of later calls, in place of OMP_NUM_THREADS.
GPT149_EXPORT void gpt149_expert_set_threads(int threads) { omp_set_num_threads(threads); }

// O = softmax(Q K^T) V, all (B, H, N, d).
GPT149_EXPORT void gpt149_expert_attention(const float *Q, const float *K, const float *V, int B, int H, int N, int d,
                                           float *O) {
    forward(Q, K, V, B * H, N, d, omp_get_max_threads(), O);
}

// The same, computed by plain_best.cpp.
GPT149_EXPORT void gpt149_plain_attention(const float *Q, const float *K, const float *V, int B, int H, int N, int d,
                                          float *O) {
    plainForward(Q, K, V, B * H, N, d, omp_get_max_threads(), O);
}

// Does nothing, so the time of a call is the cost of passing its arguments to the runner's process.
GPT149_EXPORT void gpt149_expert_nothing(const float *, const float *, const float *, int, int, int, int, float *) {}

// Does `thousands` * 1000 rounds of multiply-adds on every thread. operations[0] gets the number of operations of all
// threads.
GPT149_EXPORT void gpt149_expert_peak(int thousands, float *operations) {
    const Gpt149ExpertKernels &use = expert();
    double total = 0.0;
#pragma omp parallel reduction(+ : total)
    total += use.peak(1000L * thousands);
    operations[0] = static_cast<float>(total);
}
