// The expert kernels: how fast attention can be on this processor, beside the course's reference (kernels.h).
//
// expert_kernel.cpp and plain_best.cpp define one table for each instruction set level; expert.cpp is the C ABI, picks
// the level and shares the work out. All arrays are contiguous float32. Nothing is promised for inputs that are not
// finite; denormal ones may count as zero. Scores may be up to +-1e37, and O is right as long as |V| < 1e24
// (plain_best.cpp, which leaves keys without hope a weight of 1e-30: 1e20).
#pragma once

#include <cstddef>

// One head's matrices: Q, K, V, O (N, d).
struct Gpt149Head {
    const float *Q, *K, *V;
    float *O;
    int N, d;
};

struct Gpt149ExpertKernels {
    // Queries in a vector, and vectors in the largest tile.
    int lanes, vectors;
    // Floats of 64-byte aligned scratch that a tile needs.
    std::size_t (*scratch)(int d);
    // O for `count` vectors of queries from query `first` on.
    void (*tile)(const Gpt149Head &head, int first, int count, float *scratch);
    // Work that is nothing but multiply-adds, `rounds` times; gives the floating-point operations done.
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
