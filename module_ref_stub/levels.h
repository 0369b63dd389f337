// The instruction set levels for which a library's kernels are compiled, and the level in use: the best that this
// machine supports, unless a test sets another. Include this header only in files that are compiled for the baseline.
#pragma once

#include <atomic>

namespace {

// Architectures other than x86-64 have only the first level.
enum Level { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

int bestLevel() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
        return wide ? kAvx512 : kAvx2;
    }
#endif
    return kBaseline;
}

std::atomic<int> &level() {
    static std::atomic<int> current{bestLevel()};
    return current;
}

// Sets the level of later calls to `wanted` if this machine supports it. Returns the level that is now used.
int setLevel(int wanted) {
    if (wanted >= kBaseline && wanted <= bestLevel()) {
        level().store(wanted);
    }
    return level().load();
}

// Returns the table of the level in use. The arguments are the tables of all levels, in order.
template <class Kernels, class... Faster>
const Kernels &ofLevel(const Kernels &baseline, const Faster &...faster) {
    const Kernels *const tables[] = {&baseline, &faster...};
    return *tables[level().load(std::memory_order_relaxed)];
}

}  // namespace

// The table NAME_LEVEL for the level in use, for example gpt149_kernels_avx2 for the name gpt149_kernels.
#if defined(__x86_64__)
#define GPT149_OF_LEVEL(NAME) ofLevel(NAME##_baseline, NAME##_avx2, NAME##_avx512)
#else
#define GPT149_OF_LEVEL(NAME) ofLevel(NAME##_baseline)
#endif
