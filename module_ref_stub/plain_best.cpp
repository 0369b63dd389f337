// Flash attention as a student could write it: plain C++ without intrinsics and vector types, but vectorised by the
// compiler. Compiled once for each SIMD level; the macro GPT149_PLAIN names the table of functions. A student's file
// needs `#pragma GCC target("avx2,fma")` at its top for the same speed, because the course's flags stop at -mavx. This
// file must define no weak symbols (see kernels.cpp).
//
// Three ideas differ from the course's part 4. Each makes the kernel about twice as fast:
// - The vectorised loop runs over *queries* (`omp simd`). So there are no sums across a vector, and only scalars of K
//   and V are read. The loop's body has a small tile of S, or of O, in local variables, which become registers: kKeys x
//   kVectors independent sums hide each other's latency.
// - Softmax is computed as in the expert kernel, but always with true maxima. e^x is computed by a polynomial and an
//   integer addition, which the compiler can vectorise, unlike the library's exp.
// - V is transposed once in a call, so that the second product reads along rows like the first. Rows are padded: at a
//   distance of 4 KiB they would compete for the same cache lines.
#include "expert.h"

#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kVectors = 2, kKeys = 8, kColumns = 8;
#elif defined(__AVX2__)
constexpr int kWidth = 8, kVectors = 3, kKeys = 4, kColumns = 4;
#else
constexpr int kWidth = 4, kVectors = 3, kKeys = 4, kColumns = 4;
#endif
constexpr int kRows = kWidth * kVectors, kBlock = 96, kSpan = 64;
constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

#define GPT149_UNROLLED _Pragma("GCC unroll 16")

// Returns e^x for x from -69 to 0, and e^-69 below. Adding 1.5 * 2^23 to x log2(e) leaves the nearest whole number, the
// power of two, in the last bits of the sum. The rest is computed from x, so that rounding x log2(e) causes no error.
inline __attribute__((always_inline)) float expOf(float x) {
    x = x > -69.0f ? x : -69.0f;
    const float shifted = x * kLog2e + 12582912.0f;
    const float r = x - (shifted - 12582912.0f) * kLn2;
    float power = 0.00829765497f;
    power = power * r + 0.041915382f;
    power = power * r + 0.166675747f;
    power = power * r + 0.499988948f;
    power = power * r + 0.999999692f;
    power = power * r + 1.00000007f;
    std::uint32_t bits, whole;
    std::memcpy(&bits, &power, 4);
    std::memcpy(&whole, &shifted, 4);
    bits += whole << 23;
    std::memcpy(&power, &bits, 4);
    return power;
}

// A tile's matrices, with queries as columns: Q^T and O^T (d, kRows), P^T (kBlock, kRows). For each query, top and sum
// are the maximum and the sum of weights so far. newTop is the maximum including the current block, and blockSum the
// current block's sum.
struct Tile {
    float *Q, *O, *P, *top, *sum, *newTop, *blockSum;
};

// Computes R rows of a product: out[r][i] (+)= sum_k left[r][k] * right[k][i]. `width` is kWidth, passed as an argument
// so that the compiler vectorises the loop: with a known length it would unroll the loop instead.
template <int R, bool kAdd>
__attribute__((noinline)) void productRows(int width, const float *__restrict left, int pitch, int length,
                                           const float *__restrict right, float *__restrict out) {
    if (width < 1 || length < 1) {
        __builtin_unreachable();
    }
#pragma omp simd
    for (int i = 0; i < width; i++) {
        float sums[R][kVectors];
        GPT149_UNROLLED for (int r = 0; r < R; r++) {
            GPT149_UNROLLED for (int p = 0; p < kVectors; p++) { sums[r][p] = 0.0f; }
        }
        for (int k = 0; k < length; k++) {
            GPT149_UNROLLED for (int r = 0; r < R; r++) {
                GPT149_UNROLLED for (int p = 0; p < kVectors; p++) {
                    sums[r][p] += left[r * pitch + k] * right[k * kRows + p * kWidth + i];
                }
            }
        }
        GPT149_UNROLLED for (int r = 0; r < R; r++) {
            GPT149_UNROLLED for (int p = 0; p < kVectors; p++) {
                float &to = out[r * kRows + p * kWidth + i];
                to = kAdd ? to + sums[r][p] : sums[r][p];
            }
        }
    }
}

template <int R, bool kAdd>
void product(int width, const float *left, int pitch, int rows, int length, const float *right, float *out) {
    int r = 0;
    for (; r + R <= rows; r += R) {
        productRows<R, kAdd>(width, left + static_cast<std::size_t>(r) * pitch, pitch, length, right, out + r * kRows);
    }
    for (; r < rows; r++) {
        productRows<1, kAdd>(width, left + static_cast<std::size_t>(r) * pitch, pitch, length, right, out + r * kRows);
    }
}

__attribute__((noinline)) void findTops(int rows, int count, const float *__restrict P, float *__restrict top) {
    if (rows < 1 || count < 1) {
        __builtin_unreachable();
    }
#pragma omp simd
    for (int i = 0; i < rows; i++) {
        float most = top[i];
        for (int j = 0; j < count; j++) {
            const float score = P[j * kRows + i];
            most = most > score ? most : score;
        }
        top[i] = most;
    }
}

// Replaces a block's scores by weights, and computes the block's own sum. Adding all weights to one large sum would
// double the error.
__attribute__((noinline)) void weigh(int rows, int count, float *__restrict P, const float *__restrict top,
                                     float *__restrict sum) {
    if (rows < 1 || count < 1) {
        __builtin_unreachable();
    }
#pragma omp simd
    for (int i = 0; i < rows; i++) {
        const float most = top[i];
        float total = 0.0f;
        for (int j = 0; j < count; j++) {
            const float weight = expOf(P[j * kRows + i] - most);
            P[j * kRows + i] = weight;
            total += weight;
        }
        sum[i] = total;
    }
}

// Computes the weights of a block's scores, and rescales O and the sum of queries whose maximum has changed.
void softmaxBlock(const Tile &tile, int rows, int count, int d) {
    std::memcpy(tile.newTop, tile.top, kRows * sizeof(float));
    findTops(rows, count, tile.P, tile.newTop);
    if (std::memcmp(tile.newTop, tile.top, kRows * sizeof(float)) != 0) {
        float fade[kRows];
        for (int i = 0; i < kRows; i++) {
            // If the maximum does not change, the factor must be exactly 1, which expOf(0) is not.
            fade[i] = tile.newTop[i] > tile.top[i] ? expOf(tile.top[i] - tile.newTop[i]) : 1.0f;
            tile.sum[i] *= fade[i];
            tile.top[i] = tile.newTop[i];
        }
        for (int c = 0; c < d; c++) {
            for (int i = 0; i < kRows; i++) {
                tile.O[c * kRows + i] *= fade[i];
            }
        }
    }
    weigh(rows, count, tile.P, tile.top, tile.blockSum);
    for (int i = 0; i < kRows; i++) {
        tile.sum[i] += tile.blockSum[i];
    }
}

Tile layOut(float *scratch, int d) {
    float *const Q = scratch, *const O = Q + static_cast<std::size_t>(d) * kRows;
    float *const P = O + static_cast<std::size_t>(d) * kRows, *const rows = P + kBlock * kRows;
    return {Q, O, P, rows, rows + kRows, rows + 2 * kRows, rows + 3 * kRows};
}

void tile(const Gpt149Head &head, const float *transposedV, int pitch, int first, float *scratch) {
    volatile int unknown = kWidth;
    const int width = unknown, N = head.N, d = head.d, count = N - first < kRows ? N - first : kRows;
    const Tile tile = layOut(scratch, d);
    for (int i = 0; i < kRows; i++) {
        tile.top[i] = -3e38f;
        tile.sum[i] = 0.0f;
        for (int c = 0; c < d; c++) {
            const float q = i < count ? head.Q[static_cast<std::size_t>(first + i) * d + c] : 0.0f;
            tile.Q[c * kRows + i] = q;
            tile.O[c * kRows + i] = 0.0f;
        }
    }
    for (int key = 0; key < N; key += kBlock) {
        const int keys = N - key < kBlock ? N - key : kBlock;
        // A sum of short sums has a smaller rounding error than one sum over a long row.
        for (int c = 0; c < d; c += kSpan) {
            const float *const columns = head.K + static_cast<std::size_t>(key) * d + c;
            const int span = d - c < kSpan ? d - c : kSpan;
            const auto multiply = c ? product<kKeys, true> : product<kKeys, false>;
            multiply(width, columns, d, keys, span, tile.Q + c * kRows, tile.P);
        }
        softmaxBlock(tile, width * kVectors, keys, d);
        product<kColumns, true>(width, transposedV + key, pitch, d, keys, tile.P, tile.O);
    }
    for (int i = 0; i < count; i++) {
        for (int c = 0; c < d; c++) {
            head.O[static_cast<std::size_t>(first + i) * d + c] = tile.O[c * kRows + i] / tile.sum[i];
        }
    }
}

std::size_t scratch(int d) { return (2 * static_cast<std::size_t>(d) + kBlock + 4) * kRows; }

}  // namespace

const Gpt149PlainKernels GPT149_PLAIN{kRows, scratch, tile};
