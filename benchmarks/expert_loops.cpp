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
constexpr int kRepeats = 200, kTimes = 151;
constexpr long kPeakRounds = 20000;

double nowS() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds that a call takes, in units of the time of one operation of a machine that does nothing but multiply-adds: the
// median of ratios, each taken within a millisecond or two, since the clock of a busy processor wanders.
template <class Work>
double peakOperations(Work work) {
    std::vector<double> ratios;
    for (int t = 0; t < kTimes; t++) {
        const double started = nowS(), operations = peak(kPeakRounds), between = nowS();
        for (int r = 0; r < kRepeats; r++) {
            work();
        }
        ratios.push_back((nowS() - between) / kRepeats * operations / (between - started));
    }
    std::nth_element(ratios.begin(), ratios.begin() + kTimes / 2, ratios.end());
    return ratios[kTimes / 2];
}

// One block of keys, its width d.
void measure(int d) {
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
    const double scores = peakOperations([&] {
        for (int j = 0; j < kBlock; j += kKeys) {
            Vec S[kKeys][kVectors] = {};
            addProducts<kVectors, kKeys>(S, tile.Q, K.data() + j * d, 0, d, d);
            GPT149_UNROLLED for (auto &row : S) {
                GPT149_UNROLLED for (Vec &each : row) { asm volatile("" : : GPT149_IN_REGISTER(each)); }
            }
        }
    });
    const double weights = peakOperations([&] { weighKeys<kVectors, kKeys>(tile, K.data(), tile.P, kBlock, d); });
    const double values =
        peakOperations([&] { addValues<kVectors, kColumns>(V.data(), tile.P, tile.O, kBlock, d, d); });
    const double block = peakOperations([&] {
        trustingBlock<kVectors>(tile, K.data(), kBlock, d);
        addValues<kVectors, kColumns>(V.data(), tile.P, tile.O, kBlock, d, d);
    });
    const double first = peakOperations([&] {
        carefulBlock<kVectors>(tile, K.data(), kBlock, d, -1, 0);
        addValues<kVectors, kColumns>(V.data(), tile.P, tile.O, kBlock, d, d);
    });
    // What a weight costs beyond its products, in multiply-adds of the peak: see the kernel's head.
    const double extra = (weights - scores) / (2.0 * kLanes) / (kBlock * kVectors);
    std::printf("%d %.1f %.1f %.1f %.1f %.1f %.1f\n", d, 100 * products / scores, 100 * products / weights,
                100 * products / values, 200 * products / block, 200 * products / first, extra);
    std::free(scratchpad);
}

}  // namespace

int main() {
    const NoDenormals guard;
    // A width that compilers know would have other loops than the kernel has.
    const volatile int widths[] = {32, 64};
    for (int d : widths) {
        measure(d);
    }
}
