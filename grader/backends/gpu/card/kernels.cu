// The judge's own kernels on a GPU. kernels.ptx beside this file is compiled from it:
//     nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu
// (its .version is then lowered so that old drivers can read it). Types: 0 float32, 1 float16, 2 bfloat16.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The finalizer of MurmurHash3 (Austin Appleby, public domain). tests/test_card.py has the same function in NumPy.
__device__ unsigned mixed(unsigned h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16);
}

__device__ float drawn(unsigned long long i, unsigned seed, float low, float span) {
    const unsigned h = mixed(mixed((unsigned)i ^ seed) + (unsigned)(i >> 32) * 0x9e3779b9u + seed);
    return __fadd_rn(low, __fmul_rn(span, (float)(h >> 8) * (1.0f / 16777216.0f)));
}

__device__ unsigned as_stored(float x, int type) {
    if (type == 0) return __float_as_uint(x);
    return type == 1 ? __half_as_ushort(__float2half_rn(x)) : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Fills a tensor in each of `sets` sets, which lie `stride` bytes apart, with random numbers uniform in
// [low, low + span). Set s has the seed `seed` + s * `seed_step`. One launch fills all sets: many small launches would
// take longer than the timed kernel.
extern "C" __global__ void fill_sets(char *first, unsigned long long stride, unsigned sets, unsigned long long count, unsigned seed,
                                     unsigned seed_step, float low, float span, int type) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned s = blockIdx.y; s < sets; s += gridDim.y) {
        char *const out = first + s * stride;
        const unsigned own = seed + s * seed_step;
        for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            const unsigned bits = as_stored(drawn(i, own, low, span), type);
            if (type == 0) ((unsigned *)out)[i] = bits;
            else ((unsigned short *)out)[i] = (unsigned short)bits;
        }
    }
}

// Adds to *differing the number of elements that differ from the numbers that fill_sets writes for the same arguments.
extern "C" __global__ void count_changed(const char *first, unsigned long long stride, unsigned sets, unsigned long long count, unsigned seed,
                                         unsigned seed_step, float low, float span, int type, unsigned long long *differing) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long found = 0;
    for (unsigned s = blockIdx.y; s < sets; s += gridDim.y) {
        const char *const in = first + s * stride;
        const unsigned own = seed + s * seed_step;
        for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            const unsigned bits = as_stored(drawn(i, own, low, span), type);
            found += bits != (type == 0 ? ((const unsigned *)in)[i] : ((const unsigned short *)in)[i]);
        }
    }
    if (found) atomicAdd(differing, found);
}

__device__ float read_as_float(const void *data, unsigned long long i, int type) {
    if (type == 0) return ((const float *)data)[i];
    if (type == 1) return __half2float(((const __half *)data)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
}

// Adds to *differing the number of elements of `a` that are not finite, or differ from `b` by more than
// absolute + relative * |b|. The sets lie a_stride and b_stride bytes apart.
extern "C" __global__ void count_differing(const char *a, unsigned long long a_stride, const char *b, unsigned long long b_stride, unsigned sets,
                                           unsigned long long count, float absolute, float relative, int type, unsigned long long *differing) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long found = 0;
    for (unsigned s = blockIdx.y; s < sets; s += gridDim.y) {
        for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            const float x = read_as_float(a + s * a_stride, i, type), y = read_as_float(b + s * b_stride, i, type);
            found += !(fabsf(x - y) <= absolute + relative * fabsf(y));
        }
    }
    if (found) atomicAdd(differing, found);
}
