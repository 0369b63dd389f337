// Very fast flash attention in float32: the inner functions of one level. Compiled once for each of AVX-512, AVX2 + FMA
// and the baseline architecture. The macro GPT149_EXPERT is the name of the table to define. To avoid weak symbols (see
// kernels.cpp), templates are inside the unnamed namespace.
//
// Theory of operation. The lanes of a vector are *queries*. A tile of queries is transposed once. Then the formulas
//
//     S^T[j][i] = sum_k K[j][k] Q^T[k][i]       P^T = 2^(S^T - shift[i])       O^T[c][i] += V[j][c] P^T[j][i]
//
// use one number of K or V at a time, broadcast to all lanes. So K and V need not be copied, any N and d are possible,
// softmax's sums and maxima are separate for each lane, and only the tiles of Q and O are transposed. The inner loops
// keep `keys` x M (or `columns` x M) accumulators in registers. The weights of M vectors of queries and 72 keys stay in
// the first-level cache (usually 32 kB) between the two products: they have 18 kB in AVX-512 and 7 kB in AVX2.
//
// Cost. At d = 32 a vector of weights takes 64 multiply-adds. Other operations on the same ports of the processor
// compete with them, so the limit is 64 / (64 + extra) of the peak. A textbook online softmax has extra = 12 (maximum,
// its subtraction, 7 to 9 for 2^x, sum): 84 %. Here extra is 8 in AVX-512, that is 89 %, and 94 % at d = 64. In AVX2, 5
// of the 12 operations are multiply-adds. The others (integers, a conversion, the sum) use other ports on AMD's
// processors; on Intel's some share the multipliers' ports, and extra is 8 to 9. The savings:
// - Nothing is subtracted: the accumulators of S start at -shift.
// - Most blocks do not search a maximum. A shift that is not the maximum scales weights and sums by the same power,
//   without loss. A tile's first block finds the true maximum (`carefulBlock`). Later blocks use the same shift
//   (`trustingBlock`), and afterwards their sum (or largest score) shows if it was usable. If not, this block and all
//   later ones of the tile are computed by `carefulBlock`, so large scores cost one repeated block per tile. If the
//   first maximum is large, `trustingBlock` is not used: the two functions round scores differently, by up to 1e-7 of
//   their size, so equal keys would get different weights.
// - Scores are multiplied by log2(e) by scaling Q, once for a tile. This adds a rounding error, which matters if few,
//   large scores decide. So `carefulBlock` computes the unscaled scores and multiplies only their differences from the
//   maximum.
// - 2^x of one set of accumulators overlaps with the products of the next one, which do not depend on it.
#include "expert.h"
#include "expert_lanes.h"

namespace {

// kBlock is a block's number of keys, a multiple of every keysOf(M); 96 keys are not faster. To reduce rounding errors,
// `carefulBlock` adds short sums: over kColumnSpan columns for a score, over kKeySpan keys for sums of weights and O.
constexpr int kBlock = 72, kColumnSpan = 16, kKeySpan = 24;
// Smaller than every score, but far enough from float32's limit to be multiplied by kToPowers.
constexpr float kLowest = -1e38f;

// Factor from unscaled scores to the argument of weightOf.
constexpr float kToPowers = 1.44269504088896341f * kUnit;

// Limits in `trustingBlock`. If weightOf gives infinity for arguments that are too large (kSaturates), a block's sum of
// weights must not exceed kMostWeight. Otherwise no score may exceed the shift by more than kMostScore. So weights are
// at most 2^33, and sums and O (for |V| < 1e24) are far from overflow.
constexpr float kMostWeight = 0x1p32f, kMostScore = 32 * kUnit;

// `trustingBlock` is used only if the magnitudes of a tile's maxima, as unscaled scores, are at most kMostTop. Then
// equal keys in two blocks have weights that differ by at most 5e-6. Random matrices of up to 128 columns have such
// maxima.
constexpr float kMostTop = 64.0f;

// Keys (or columns) that a product treats at once, for M vectors of queries. Their accumulators, the M vectors and a
// broadcast number fit into 32 registers (16 in AVX2). At least 8 accumulators hide the latency of multiply-adds.
#if defined(__AVX512F__)
constexpr int kVectors = 4;
constexpr int keysOf(int M) { return M >= 3 ? 24 / M : 8; }
constexpr int columnsOf(int M) { return M == 4 ? 4 : 8; }
#else
constexpr int kVectors = 3;
constexpr int keysOf(int M) { return M == 3 ? 4 : 8 / M; }
constexpr int columnsOf(int M) { return M == 3 ? 4 : 8 / M; }
#endif

// Loops over accumulators must be unrolled completely: otherwise the compiler keeps accumulators in memory.
#define GPT149_UNROLLED _Pragma("GCC unroll 16")

// State of a tile of M SIMD vectors of queries, kept from one block of keys to the next. Q^T and O^T are (d, M), P^T is
// (kBlock, M), in vectors.
template <int M>
struct Tile {
    Vec *Q, *O, *P;
    // True if Q is scaled, so that scores are arguments of weightOf.
    bool inPowers;
    // For each query. top: the score whose weight is kWeightOfTop. negatedShift: -top in the units of weightOf's
    // argument. sum: the sum of weights.
    Vec top[M], negatedShift[M], sum[M];
    // For each query, in the current block. blockSum: the sum of weights. blockTop (only without kSaturates): the
    // largest score minus the shift.
    Vec blockSum[M], blockTop[M];
};

// ---- S^T: R keys at a time, then the remaining keys with smaller R

// Adds to S the products of R keys and the queries, over columns `begin` to `end`.
template <int M, int R>
GPT149_INLINE void addProducts(Vec (&S)[R][M], const Vec *Q, const float *K, int begin, int end, int d) {
#pragma GCC unroll 4
    for (int k = begin; k < end; k++) {
        GPT149_UNROLLED for (int j = 0; j < R; j++) {
            const Vec key = splat(K[static_cast<std::size_t>(j) * d + k]);
            GPT149_UNROLLED for (int m = 0; m < M; m++) { S[j][m] += key * Q[k * M + m]; }
        }
    }
}

// Computes weights with the tile's current shift. Updates blockSum and, without kSaturates, blockTop.
template <int M, int R>
__attribute__((noinline)) void weighKeys(Tile<M> &tile, const float *K, Vec *P, int count, int d) {
    for (; count >= R; count -= R, K += static_cast<std::size_t>(R) * d, P += R * M) {
        Vec S[R][M];
        GPT149_UNROLLED for (int j = 0; j < R; j++) {
            GPT149_UNROLLED for (int m = 0; m < M; m++) { S[j][m] = tile.negatedShift[m]; }
        }
        addProducts<M, R>(S, tile.Q, K, 0, d, d);
        GPT149_UNROLLED for (int m = 0; m < M; m++) {
            if (!kSaturates) {
                Vec top = tile.blockTop[m];
                GPT149_UNROLLED for (int j = 0; j < R; j++) { top = largerPositive(top, S[j][m]); }
                tile.blockTop[m] = top;
            }
            Vec sum = tile.blockSum[m];
            GPT149_UNROLLED for (int j = 0; j < R; j++) {
                const Vec weight = weightOf(S[j][m]);
                P[j * M + m] = weight;
                sum += weight;
            }
            tile.blockSum[m] = sum;
        }
    }
    if constexpr (R > 1) {
        if (count > 0) {
            weighKeys<M, R / 2>(tile, K, P, count, d);
        }
    }
}

// Computes unscaled scores as sums of short sums over few columns, which round less than one sum over all of d.
template <int M, int R>
__attribute__((noinline)) void scoreKeys(const Vec *Q, const float *K, Vec *P, int count, int d) {
    for (; count >= R; count -= R, K += static_cast<std::size_t>(R) * d, P += R * M) {
        for (int k = 0; k < d; k += kColumnSpan) {
            Vec S[R][M] = {};
            addProducts<M, R>(S, Q, K, k, k + kColumnSpan < d ? k + kColumnSpan : d, d);
            GPT149_UNROLLED for (int j = 0; j < R; j++) {
                GPT149_UNROLLED for (int m = 0; m < M; m++) { P[j * M + m] = k ? P[j * M + m] + S[j][m] : S[j][m]; }
            }
        }
    }
    if constexpr (R > 1) {
        if (count > 0) {
            scoreKeys<M, R / 2>(Q, K, P, count, d);
        }
    }
}

// ---- O^T += V^T P^T: C columns at a time, then the remaining columns with smaller C. Each block has its own sums,
// which are then added to O: one sum over thousands of keys would have a larger rounding error.

template <int M, int C>
__attribute__((noinline)) void addValues(const float *V, const Vec *P, Vec *O, int count, int columns, int d) {
    for (; columns >= C; columns -= C, V += C, O += C * M) {
        Vec sums[C][M];
        GPT149_UNROLLED for (int c = 0; c < C; c++) {
            GPT149_UNROLLED for (int m = 0; m < M; m++) { sums[c][m] = Vec{}; }
        }
        const float *row = V;
        const Vec *weights = P;
#pragma GCC unroll 4
        for (int j = 0; j < count; j++, row += d, weights += M) {
            GPT149_UNROLLED for (int c = 0; c < C; c++) {
                const Vec value = splat(row[c]);
                GPT149_UNROLLED for (int m = 0; m < M; m++) { sums[c][m] += value * weights[m]; }
            }
        }
        GPT149_UNROLLED for (int c = 0; c < C; c++) {
            GPT149_UNROLLED for (int m = 0; m < M; m++) { O[c * M + m] += sums[c][m]; }
        }
    }
    if constexpr (C > 1) {
        if (columns > 0) {
            addValues<M, C / 2>(V, P, O, count, columns, d);
        }
    }
}

// ---- one block of keys: scores, weights, values

template <int M>
bool allWithin(const Vec (&x)[M], float limit) {
    Vec top = x[0];
    for (int m = 1; m < M; m++) {
        top = larger(top, x[m]);
    }
    bool within = true;
    for (int i = 0; i < kLanes; i++) {
        within &= top[i] <= limit;
    }
    return within;
}

// Returns true if the magnitudes of all maxima `top` are at most kMostTop, so that `trustingBlock` may be used.
template <int M>
bool allModerate(const Vec (&top)[M]) {
    Vec size[M];
    for (int m = 0; m < M; m++) {
        size[m] = larger(top[m], -top[m]);
    }
    return allWithin<M>(size, kMostTop);
}

// Adds a block with the current shift. If a score is too far from the shift, adds nothing and returns false.
template <int M>
bool trustingBlock(Tile<M> &tile, const float *K, int count, int d) {
    for (int m = 0; m < M; m++) {
        tile.blockSum[m] = Vec{};
        tile.blockTop[m] = splat(kLowest);
    }
    weighKeys<M, keysOf(M)>(tile, K, tile.P, count, d);
    if (!(kSaturates ? allWithin<M>(tile.blockSum, kMostWeight) : allWithin<M>(tile.blockTop, kMostScore))) {
        return false;
    }
    for (int m = 0; m < M; m++) {
        tile.sum[m] += tile.blockSum[m];
    }
    return true;
}

// Adds a block by the usual online softmax: finds the true maxima and rescales O and the sums to them.
template <int M>
__attribute__((noinline)) void carefulBlock(Tile<M> &tile, const float *K, int count, int d) {
    Vec *P = tile.P;
    scoreKeys<M, keysOf(M)>(tile.Q, K, P, count, d);
    Vec top[M], fade[M];
    for (int m = 0; m < M; m++) {
        top[m] = tile.top[m];
    }
    for (int j = 0; j < count; j++) {
        for (int m = 0; m < M; m++) {
            top[m] = larger(top[m], P[j * M + m]);
        }
    }
    for (int m = 0; m < M; m++) {
        // If the maximum does not change, the factor must be exactly 1. weightOf(0) is not, and errors would add up.
        const Vec smaller = weightOf((tile.top[m] - top[m]) * kToPowers) * (1 / kWeightOfTop);
        fade[m] = select(top[m] > tile.top[m], smaller, splat(1.0f));
        tile.top[m] = top[m];
        tile.sum[m] *= fade[m];
    }
    for (int c = 0; c < d; c++) {
        for (int m = 0; m < M; m++) {
            tile.O[c * M + m] *= fade[m];
        }
    }
    for (int begin = 0; begin < count; begin += kKeySpan) {
        Vec sum[M] = {};
        for (int j = begin; j < count && j < begin + kKeySpan; j++) {
            for (int m = 0; m < M; m++) {
                const Vec weight = weightOf<6>((P[j * M + m] - top[m]) * kToPowers);
                P[j * M + m] = weight;
                sum[m] += weight;
            }
        }
        for (int m = 0; m < M; m++) {
            tile.sum[m] += sum[m];
        }
    }
}

// ---- a whole tile

// Copies the queries row0 to row0 + kLanes - 1, transposed: the vector Q[c * pitch] gets column c of these queries.
// `writeOutputs` copies the same rows of O from O^T, divided by their sums of weights.
__attribute__((noinline)) void readQueries(Vec *Q, int pitch, const Gpt149Head &head, int row0) {
    for (int c = 0; c < head.d; c += kLanes) {
        Vec rows[kLanes];
        for (int i = 0; i < kLanes; i++) {
            const std::size_t at = static_cast<std::size_t>(row0 + i) * head.d + c;
            rows[i] = row0 + i < head.N ? load(head.Q + at, head.d - c) : Vec{};
        }
        transpose(rows);
        for (int i = 0; i < kLanes && c + i < head.d; i++) {
            Q[(c + i) * pitch] = rows[i];
        }
    }
}

__attribute__((noinline)) void writeOutputs(const Vec *O, int pitch, Vec sum, const Gpt149Head &head, int row0) {
    const Vec share = 1.0f / sum;
    for (int c = 0; c < head.d; c += kLanes) {
        Vec rows[kLanes];
        for (int i = 0; i < kLanes; i++) {
            rows[i] = c + i < head.d ? quotient(O[(c + i) * pitch], sum, share) : Vec{};
        }
        transpose(rows);
        for (int i = 0; i < kLanes && row0 + i < head.N; i++) {
            store(head.O + static_cast<std::size_t>(row0 + i) * head.d + c, rows[i], head.d - c);
        }
    }
}

// If `inPowers`, scales the tile's Q for `trustingBlock`, and sets the shift. Otherwise reads Q again, unscaled, for
// `carefulBlock`.
template <int M>
void useUnits(Tile<M> &tile, const Gpt149Head &head, int first, bool inPowers) {
    tile.inPowers = inPowers;
    if (!inPowers) {
        for (int m = 0; m < M; m++) {
            readQueries(tile.Q + m, M, head, first + m * kLanes);
        }
        return;
    }
    for (int i = 0; i < head.d * M; i++) {
        tile.Q[i] *= kToPowers;
    }
    for (int m = 0; m < M; m++) {
        tile.negatedShift[m] = tile.top[m] * -kToPowers;
    }
}

template <int M>
void attendTile(const Gpt149Head &head, int first, float *scratch) {
    const NoDenormals guard;
    const int d = head.d, end = head.N;
    Tile<M> tile;
    tile.Q = reinterpret_cast<Vec *>(scratch);
    tile.O = tile.Q + static_cast<std::size_t>(d) * M;
    tile.P = tile.O + static_cast<std::size_t>(d) * M;
    for (int i = 0; i < d * M; i++) {
        tile.O[i] = Vec{};
    }
    for (int m = 0; m < M; m++) {
        tile.top[m] = splat(kLowest);
        tile.sum[m] = Vec{};
    }
    useUnits<M>(tile, head, first, false);
    // Blocks have nearly equal lengths, which are multiples of keysOf(M) except for the last block.
    const int blocks = (end + kBlock - 1) / kBlock;
    const int length = ((end + blocks - 1) / blocks + keysOf(M) - 1) / keysOf(M) * keysOf(M);
    bool trusting = true;
    for (int key = 0; key < end; key += length) {
        const int count = length < end - key ? length : end - key;
        const float *K = head.K + static_cast<std::size_t>(key) * d, *V = head.V + static_cast<std::size_t>(key) * d;
        const bool trust = trusting && key > 0;
        if (trust != tile.inPowers) {
            useUnits<M>(tile, head, first, trust);
        }
        const bool trusted = trust && trustingBlock<M>(tile, K, count, d);
        if (!trusted) {
            if (tile.inPowers) {
                useUnits<M>(tile, head, first, false);
            }
            carefulBlock<M>(tile, K, count, d);
            trusting = trusting && !trust && allModerate<M>(tile.top);
        }
        const int span = trusted ? count : kKeySpan;
        for (int j = 0; j < count; j += span) {
            const int keys = span < count - j ? span : count - j;
            addValues<M, columnsOf(M)>(V + static_cast<std::size_t>(j) * d, tile.P + j * M, tile.O, keys, d, d);
        }
    }
    for (int m = 0; m < M; m++) {
        writeOutputs(tile.O + m, M, tile.sum[m], head, first + m * kLanes);
    }
}

void tile(const Gpt149Head &head, int first, int count, float *scratch) {
    switch (count) {
        case 1:  // There is no attendTile<1>, because computing a second, empty vector takes little time.
        case 2: return attendTile<2>(head, first, scratch);
        case 3: return attendTile<3>(head, first, scratch);
#if defined(__AVX512F__)
        case 4: return attendTile<4>(head, first, scratch);
#endif
    }
}

// Number of floats of scratch memory for Q^T, O^T and P^T.
std::size_t scratch(int d) { return (2 * static_cast<std::size_t>(d) + kBlock) * kVectors * kLanes; }

// ---- the peak: the most multiply-adds that one core can do at this level, with which the kernels are compared.
// Twelve independent sums are used; eight would be enough, with two results per cycle and a latency of four cycles.
// They are one block of assembly: a compiler would keep some of them in memory, and the measured peak would be too low.

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
    // Clear the registers: multiply-adds of denormal leftovers would take a hundred times as long.
    asm volatile(GPT149_TWELVE(GPT149_CLEAR) GPT149_CLEAR(12) GPT149_CLEAR(13) "1:\n" GPT149_TWELVE(GPT149_SUM)
                     GPT149_TWELVE(GPT149_SUM) "dec %0\njnz 1b\nvzeroupper\n"
                 : "+r"(rounds)
                 :
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                   "xmm11", "xmm12", "xmm13");
    return operations;
}

#else

// Without AVX2: vectors of four lanes, for which the compiler chooses the instructions, as in the kernels.
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

}  // namespace

const Gpt149ExpertKernels GPT149_EXPERT{kLanes, kVectors, scratch, tile, peak};
