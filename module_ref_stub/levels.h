// The instruction set levels that a library's kernels are compiled for, and the one in force: the best that this
// machine can run until somebody sets another. For files that are compiled for the plain architecture.
#pragma once

#include <atomic>

namespace {

// Other architectures than x86-64 have the first only.
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

// Makes `wanted` the level of the calls to come. Gives the level in force afterwards, which stays as it was where this
// machine cannot run the wanted one.
int setLevel(int wanted) {
    if (wanted >= kBaseline && wanted <= bestLevel()) {
        level().store(wanted);
    }
    return level().load();
}

// The table of the level in force, of those of all levels that the library holds, in order.
template <class Kernels, class... Faster>
const Kernels &ofLevel(const Kernels &baseline, const Faster &...faster) {
    const Kernels *const tables[] = {&baseline, &faster...};
    return *tables[level().load(std::memory_order_relaxed)];
}

}  // namespace
