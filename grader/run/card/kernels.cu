// What the judge itself computes on a card. kernels.ptx beside this file is made of it:
//     nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu
// (and its .version lowered to what old drivers read). Types: 0 float32, 1 float16, 2 bfloat16.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The finalizer of MurmurHash3 (Austin Appleby, public domain) over index and seed: grader/run/card/numbers.py does the
// same in NumPy.
__device__ unsigned mixed(unsigned h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16);
}

// Element i of a tensor that begins at number `first` of its stream: uniform in [low, low + span).
extern "C" __global__ void fill_uniform(void *out, unsigned long long count, unsigned seed, float low, float span, int type) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const unsigned h = mixed(mixed((unsigned)i ^ seed) + (unsigned)(i >> 32) * 0x9e3779b9u + seed);
        const float x = __fadd_rn(low, __fmul_rn(span, (float)(h >> 8) * (1.0f / 16777216.0f)));
        if (type == 0) ((float *)out)[i] = x;
        else if (type == 1) ((__half *)out)[i] = __float2half_rn(x);
        else ((__nv_bfloat16 *)out)[i] = __float2bfloat16_rn(x);
    }
}

__device__ float read_as_float(const void *data, unsigned long long i, int type) {
    if (type == 0) return ((const float *)data)[i];
    if (type == 1) return __half2float(((const __half *)data)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
}

// Adds to *differing the number of elements that are further apart than absolute + relative * |b|, or not finite.
extern "C" __global__ void count_differing(const void *a, const void *b, unsigned long long count, float absolute, float relative, int type,
                                           unsigned long long *differing) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long found = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const float x = read_as_float(a, i, type), y = read_as_float(b, i, type);
        found += !(fabsf(x - y) <= absolute + relative * fabsf(y));
    }
    if (found) atomicAdd(differing, found);
}
