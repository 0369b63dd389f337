// The most multiply-adds that one core does at this level: what the kernels above are held against. Part of
// expert_kernel.cpp.
//
// Twelve sums that do not wait for each other (eight would do: two a cycle, each ready after four), in one block of
// assembly: a compiler keeps some of them in memory, and the peak reads low.

#if defined(__AVX2__)

#if defined(__AVX512F__)
#define GPT149_SUM(n) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #n "\n"
#else
#define GPT149_SUM(n) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #n "\n"
#endif
#define GPT149_CLEAR(n) "vpxor %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n"
#define GPT149_TWELVE(step) \
    step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)

double peak(long rounds) {
    const double operations = 2.0 * 24 * kLanes * static_cast<double>(rounds);
    // Cleared, since multiply-adds of leftovers that are no normal numbers take a hundred times as long.
    asm volatile(GPT149_TWELVE(GPT149_CLEAR) GPT149_CLEAR(12) GPT149_CLEAR(13) "1:\n" GPT149_TWELVE(GPT149_SUM)
                     GPT149_TWELVE(GPT149_SUM) "dec %0\njnz 1b\nvzeroupper\n"
                 : "+r"(rounds)
                 :
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                   "xmm11", "xmm12", "xmm13");
    return operations;
}

#else

// Whatever this processor has: four lanes, multiplied and added as the compiler does it in the kernels.
double peak(long rounds) {
    Vec sums[12] = {}, a = splat(1.0f), b = splat(0.5f);
    for (long r = 0; r < rounds; r++) {
        asm volatile("" : GPT149_PIN(a), GPT149_PIN(b));
        GPT149_UNROLLED for (int i = 0; i < 12; i++) { sums[i] = sums[i] * a + b; }
    }
    for (int i = 0; i < 12; i++) {
        asm volatile("" : : "m"(sums[i]));
    }
    return 2.0 * 12 * kLanes * static_cast<double>(rounds);
}

#endif
