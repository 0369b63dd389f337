// Measures this machine's peak speeds: floating-point operations and bytes per second.
//
//   program CORES CACHE_BYTES
//
// prints lines "peak LEVEL THREADS flops_per_s" for each instruction set level that the processor has (such as avx2),
// and lines "triad THREADS bytes_per_s" and "read THREADS bytes_per_s". THREADS is 1 and CORES. Takes about a second.
// CACHE_BYTES is the size of the last-level cache, and about the size of each of the three arrays.
//
// On x86-64 a block of assembly measures the peak of a level. It changes twelve registers in turn, so that no
// instruction waits for the previous one. If it were C++, the compiler might spill registers or remove unused results.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// ---- peaks: `run` executes `rounds` rounds of `flops_per_round` floating-point operations

struct Level {
  const char *name;
  double flops_per_round;
  void (*run)(long rounds);
};

#if defined(__x86_64__)

#define TWELVE(op, a, b, r)                                                                                     \
  op " " a ", " b ", %%" r "0\n" op " " a ", " b ", %%" r "1\n" op " " a ", " b ", %%" r "2\n"                  \
  op " " a ", " b ", %%" r "3\n" op " " a ", " b ", %%" r "4\n" op " " a ", " b ", %%" r "5\n"                  \
  op " " a ", " b ", %%" r "6\n" op " " a ", " b ", %%" r "7\n" op " " a ", " b ", %%" r "8\n"                  \
  op " " a ", " b ", %%" r "9\n" op " " a ", " b ", %%" r "10\n" op " " a ", " b ", %%" r "11\n"
#define SIX(op, a, r0, r1, r2, r3, r4, r5)                                                                      \
  op " " a ", " r0 ", " r0 "\n" op " " a ", " r1 ", " r1 "\n" op " " a ", " r2 ", " r2 "\n"                     \
  op " " a ", " r3 ", " r3 "\n" op " " a ", " r4 ", " r4 "\n" op " " a ", " r5 ", " r5 "\n"
#define SIX_OLD(op, a, r0, r1, r2, r3, r4, r5)                                                                  \
  op " " a ", " r0 "\n" op " " a ", " r1 "\n" op " " a ", " r2 "\n"                                             \
  op " " a ", " r3 "\n" op " " a ", " r4 "\n" op " " a ", " r5 "\n"
#define CLEAR(r) "vxorps %%" r ", %%" r ", %%" r "\n"
#define CLEAR_16                                                                                                \
  CLEAR("xmm0") CLEAR("xmm1") CLEAR("xmm2") CLEAR("xmm3") CLEAR("xmm4") CLEAR("xmm5") CLEAR("xmm6") CLEAR("xmm7") \
  CLEAR("xmm8") CLEAR("xmm9") CLEAR("xmm10") CLEAR("xmm11") CLEAR("xmm12") CLEAR("xmm13")
#define SIXTEEN_USED                                                                                            \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13"

void run_avx512(long rounds) {
  asm volatile(CLEAR_16 "1:\n" TWELVE("vfmadd231ps", "%%zmm12", "%%zmm13", "zmm")
               "dec %0\njnz 1b\nvzeroupper\n" : "+r"(rounds) : : SIXTEEN_USED);
}

void run_avx2(long rounds) {
  asm volatile(CLEAR_16 "1:\n" TWELVE("vfmadd231ps", "%%ymm12", "%%ymm13", "ymm")
               "dec %0\njnz 1b\nvzeroupper\n" : "+r"(rounds) : : SIXTEEN_USED);
}

// AVX has no fused multiply-add, so half of the instructions multiply and half add.
void run_avx(long rounds) {
  asm volatile(CLEAR_16 "1:\n"
               SIX("vmulps", "%%ymm12", "%%ymm0", "%%ymm1", "%%ymm2", "%%ymm3", "%%ymm4", "%%ymm5")
               SIX("vaddps", "%%ymm13", "%%ymm6", "%%ymm7", "%%ymm8", "%%ymm9", "%%ymm10", "%%ymm11")
               "dec %0\njnz 1b\nvzeroupper\n" : "+r"(rounds) : : SIXTEEN_USED);
}

#define RUN_OLD(name, kind)                                                                                     \
  void name(long rounds) {                                                                                      \
    asm volatile("xorps %%xmm12, %%xmm12\nxorps %%xmm13, %%xmm13\n1:\n"                                         \
                 SIX_OLD("mul" kind, "%%xmm12", "%%xmm0", "%%xmm1", "%%xmm2", "%%xmm3", "%%xmm4", "%%xmm5")     \
                 SIX_OLD("add" kind, "%%xmm13", "%%xmm6", "%%xmm7", "%%xmm8", "%%xmm9", "%%xmm10", "%%xmm11")   \
                 "dec %0\njnz 1b\n" : "+r"(rounds) : : SIXTEEN_USED);                                           \
  }
RUN_OLD(run_sse2, "ps")
// Scalar instructions: their peak is the limit for loops that the compiler does not vectorise.
RUN_OLD(run_scalar, "ss")

std::vector<Level> levels() {
  __builtin_cpu_init();
  std::vector<Level> found{{"scalar", 12, run_scalar}, {"sse2", 12 * 4, run_sse2}};
  if (__builtin_cpu_supports("avx")) found.push_back({"avx", 12 * 8, run_avx});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back({"avx2", 24 * 8, run_avx2});
  if (__builtin_cpu_supports("avx512f")) found.push_back({"avx512", 24 * 16, run_avx512});
  return found;
}

#else

// Other processors have no assembly here. The loop uses the compiler's vector type of four floats; the compiler may
// fuse multiply and add.
typedef float Four __attribute__((vector_size(16)));

void run_portable(long rounds) {
  Four sum[12] = {}, a = {1, 1, 1, 1}, b = {1e-9f, 1e-9f, 1e-9f, 1e-9f};
  for (long k = 0; k < rounds; k++)
    for (Four &one : sum) one += a * b;
  for (Four &one : sum) asm volatile("" : : "w"(one));
}

std::vector<Level> levels() { return {{"portable", 24 * 4, run_portable}}; }

#endif

// ---- time of work on several threads at once

// Calls `work(k)` on `threads` threads, k from 0, and returns the seconds from the common start until all have ended.
template <class Work>
double together_s(int threads, const Work &work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  auto wait_and_work = [&](int k) {
    ready++;
    while (!go) std::this_thread::yield();
    work(k);
  };
  for (int k = 1; k < threads; k++) others.emplace_back(wait_and_work, k);
  while (ready < threads - 1) std::this_thread::yield();
  auto start = Clock::now();
  go = true;
  work(0);
  for (auto &other : others) other.join();
  return seconds_since(start);
}

// Calls `together_s` repeatedly for `budget_s` seconds and returns the shortest time, because other programs can only
// make a time longer.
template <class Work>
double best_s(int threads, double budget_s, const Work &work) {
  double best = together_s(threads, work);
  auto start = Clock::now();
  while (seconds_since(start) < budget_s) {
    double once = together_s(threads, work);
    best = once < best ? once : best;
  }
  return best;
}

constexpr double kPeakBudget = 0.05, kBandwidthBudget = 0.15;
constexpr long kRounds = 400000;

void measure_peaks(int threads) {
  for (const Level &level : levels()) {
    double once = best_s(threads, kPeakBudget, [&](int) { level.run(kRounds); });
    std::printf("peak %s %d %.6g\n", level.name, threads, level.flops_per_round * kRounds * threads / once);
  }
}

struct Arrays {
  size_t count;
  std::unique_ptr<float[]> a, b, c;
};

void measure_bandwidth(int threads, Arrays &arrays) {
  const size_t piece = arrays.count / static_cast<size_t>(threads);
  double triad = best_s(threads, kBandwidthBudget, [&](int k) {
    float *a = &arrays.a[piece * static_cast<size_t>(k)];
    const float *b = &arrays.b[piece * static_cast<size_t>(k)], *c = &arrays.c[piece * static_cast<size_t>(k)];
    for (size_t i = 0; i < piece; i++) a[i] = b[i] + 3.0f * c[i];
    asm volatile("" : : "r"(a) : "memory");
  });
  const double bytes = static_cast<double>(piece) * sizeof(float) * threads;
  std::printf("triad %d %.6g\n", threads, 3 * bytes / triad);
  double read = best_s(threads, kBandwidthBudget, [&](int k) {
    // Add the floats' bits as integers: a compiler may vectorise a sum of integers, but not reorder a sum of floats.
    auto *words = reinterpret_cast<const uint32_t *>(&arrays.b[piece * static_cast<size_t>(k)]);
    uint32_t sum = 0;
    for (size_t i = 0; i < piece; i++) sum += words[i];
    asm volatile("" : : "r"(sum));
  });
  std::printf("read %d %.6g\n", threads, bytes / read);
}

}  // namespace

int main(int count, char **words) {
  if (count != 3) return 2;
  const int cores = std::atoi(words[1]);
  const size_t cache = std::strtoull(words[2], nullptr, 10);
  if (cores < 1 || cores > 4096) return 2;
  // Each array has the size of the cache, but at least 16 MiB and at most 256 MiB.
  size_t bytes = cache < (16u << 20) ? 16u << 20 : cache > (256u << 20) ? 256u << 20 : cache;
  Arrays arrays{bytes / sizeof(float), nullptr, nullptr, nullptr};
  for (auto *one : {&arrays.a, &arrays.b, &arrays.c}) one->reset(new float[arrays.count]);
  together_s(cores, [&](int k) {
    // Each thread is the first to write to the memory that it will use, so the system places the memory near its core.
    const size_t piece = arrays.count / static_cast<size_t>(cores);
    for (size_t i = piece * static_cast<size_t>(k); i < arrays.count && i < piece * static_cast<size_t>(k + 1); i++)
      arrays.a[i] = arrays.b[i] = arrays.c[i] = 1.0f;
  });
  for (int threads : {1, cores}) {
    measure_peaks(threads);
    measure_bandwidth(threads, arrays);
    if (cores == 1) break;
  }
  return 0;
}
