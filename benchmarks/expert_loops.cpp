// The loops of one level of the expert kernel, each alone, with all that they touch in the first-level cache: what per
// cent of the level's multiply-adds each one does. expert_loops.py compiles this, once for each level.
#define GPT149_EXPERT kernelsOfThisLevel
#include "expert_kernel.cpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__x86_64__)
#define GPT149_IN_REGISTER(x) "v"(x)
#else
#define GPT149_IN_REGISTER(x) "w"(x)
#endif

namespace {

constexpr int kKeys = keysOf(kVectors), kColumns = columnsOf(kVectors);
constexpr int kRepeats = 200, kTimes = 40;

template <class Work>
double shortestS(Work work) {
    double shortest = 1e9;
    for (int t = 0; t < kTimes; t++) {
        const auto started = std::chrono::steady_clock::now();
        for (int r = 0; r < kRepeats; r++) {
            work();
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
        shortest = std::min(shortest, took.count() / kRepeats);
    }
    return shortest;
}

// One block of keys, its width d, against a machine that does `peakPerS` operations.
void measure(int d, double peakPerS) {
    std::vector<float> K(kBlock * d, 0.001f), V(kBlock * d, 0.001f);
    auto *const scratchpad = static_cast<float *>(std::aligned_alloc(64, scratch(d) * sizeof(float)));
    std::fill(scratchpad, scratchpad + scratch(d), 0.01f);
    Tile<kVectors> tile;
    tile.Q = reinterpret_cast<Vec *>(scratchpad);
    tile.O = tile.Q + static_cast<std::size_t>(d) * kVectors;
    tile.P = tile.O + static_cast<std::size_t>(d) * kVectors;
    for (int m = 0; m < kVectors; m++) {
        tile.top[m] = tile.negatedShift[m] = tile.sum[m] = tile.blockSum[m] = tile.blockTop[m] = Vec{};
    }
    const double products = 2.0 * kBlock * d * kVectors * kLanes;
    const auto share = [&](double operations, double seconds) { return 100 * operations / seconds / peakPerS; };
    const double scores = shortestS([&] {
        for (int j = 0; j < kBlock; j += kKeys) {
            Vec S[kKeys][kVectors] = {};
            addProducts<kVectors, kKeys>(S, tile.Q, K.data() + j * d, 0, d, d);
            GPT149_UNROLLED for (auto &row : S) {
                GPT149_UNROLLED for (Vec &each : row) { asm volatile("" : : GPT149_IN_REGISTER(each)); }
            }
        }
    });
    const double weights = shortestS([&] { weighKeys<kVectors, kKeys>(tile, K.data(), tile.P, kBlock, d); });
    const double values =
        shortestS([&] { addValues<kVectors, kColumns>(V.data(), tile.P, tile.O, kBlock, d, d); });
    const double block = shortestS([&] {
        trustingBlock<kVectors>(tile, K.data(), kBlock, d);
        addValues<kVectors, kColumns>(V.data(), tile.P, tile.O, kBlock, d, d);
    });
    const double first = shortestS([&] {
        carefulBlock<kVectors>(tile, K.data(), kBlock, d, -1, 0);
        addValues<kVectors, kColumns>(V.data(), tile.P, tile.O, kBlock, d, d);
    });
    // What a weight costs beyond its products, in multiply-adds of the peak: see the kernel's head.
    const double extra = (weights - scores) * peakPerS / (2.0 * kLanes) / (kBlock * kVectors);
    std::printf("%d %.1f %.1f %.1f %.1f %.1f %.1f\n", d, share(products, scores), share(products, weights),
                share(products, values), share(2 * products, block), share(2 * products, first), extra);
    std::free(scratchpad);
}

}  // namespace

int main() {
    const NoDenormals guard;
    constexpr long kRounds = 1000000;
    double peakPerS = 0.0;
    for (int t = 0; t < 9; t++) {
        const auto started = std::chrono::steady_clock::now();
        const double operations = peak(kRounds);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
        peakPerS = std::max(peakPerS, operations / took.count());
    }
    for (int d : {32, 64}) {
        measure(d, peakPerS);
    }
}
