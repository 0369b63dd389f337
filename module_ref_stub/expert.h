// The expert kernels: much faster attention than the course's reference (kernels.h), for comparison.
//
// expert_kernel.cpp and plain_best.cpp define one table for each instruction set level. expert.cpp has the C ABI,
// chooses the level and distributes the work. All arrays are contiguous float32. Results for inputs that are not finite
// are undefined; denormal inputs may count as zero. Scores may be up to +-1e37. |V| must be below 1e24. In
// plain_best.cpp it must be below 1e20: keys with very small scores get a weight of 1e-30 there, not zero.
#pragma once

#include <cstddef>

// One head's matrices: Q, K, V, O (N, d).
struct Gpt149Head {
    const float *Q, *K, *V;
    float *O;
    int N, d;
};

struct Gpt149ExpertKernels {
    // Number of queries in a SIMD vector, and number of vectors in the largest tile.
    int lanes, vectors;
    // Returns how many floats of scratch memory, aligned to 64 bytes, a tile needs.
    std::size_t (*scratch)(int d);
    // Computes O for `count` vectors of queries from query `first` on.
    void (*tile)(const Gpt149Head &head, int first, int count, float *scratch);
    // Does multiply-adds only, `rounds` times. Returns the number of floating-point operations.
    double (*peak)(long rounds);
};

struct Gpt149PlainKernels {
    int rows;
    std::size_t (*scratch)(int d);
    void (*tile)(const Gpt149Head &head, const float *transposedV, int pitch, int first, float *scratch);
};

extern const Gpt149ExpertKernels gpt149_expert_baseline;
extern const Gpt149PlainKernels gpt149_plain_baseline;
#if defined(__x86_64__)
extern const Gpt149ExpertKernels gpt149_expert_avx2, gpt149_expert_avx512;
extern const Gpt149PlainKernels gpt149_plain_avx2, gpt149_plain_avx512;
#endif
