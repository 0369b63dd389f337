// Fast versions of the operators, which the ladder (`lab operators ladder PART`) compares with a student's kernels.
// Students get only the compiled form.
//
// All matrix products, also in the convolution, use one function, `multiply`. It cuts the matrices into blocks
// that fit the caches and copies each block into the order in which it is read (Goto and van de Geijn, Anatomy of
// high-performance matrix multiplication, 2008). The other operators are limited by memory: they make one or two
// vectorised passes over each tensor.
//
// This file compiles with the flags of any submission. It is faster with the flags of a wider instruction set (-mavx2
// -mfma, -mavx512f), because these choose the width of the vectors.
#include <torch/extension.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace {

// ----------------------------------------------------------------------------------------------------------
// Memory and threads
// ----------------------------------------------------------------------------------------------------------

constexpr long kLine = 64;
// With fewer operations than this, one thread is faster than several, because it takes time to wake them.
constexpr long kWorthThreads = 1 << 16;

// Workspace that is kept between calls, because getting new memory takes as long as the computation. Each call writes a
// number of the workspace before it reads this number.
struct Room {
    float *at = nullptr;
    long size = 0;
    float *of(long count) {
        if (count > size) {
            ::operator delete[](at, std::align_val_t(kLine));
            at = static_cast<float *>(::operator new[](count * sizeof(float), std::align_val_t(kLine)));
            size = count;
        }
        return at;
    }
    ~Room() { ::operator delete[](at, std::align_val_t(kLine)); }
};

thread_local Room roomOfA, roomOfB, roomOfColumns, roomOfGradient, roomOfSums;

long blocks(long count, long each) { return (count + each - 1) / each; }

// ----------------------------------------------------------------------------------------------------------
// The product of two matrices
// ----------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int kLanes = 16, kTileRows = 8;
#define EVERY_OTHER {0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31}
#elif defined(__AVX__)
constexpr int kLanes = 8, kTileRows = 6;
#define EVERY_OTHER {0, 2, 4, 6, 9, 11, 13, 15}
#else
constexpr int kLanes = 4, kTileRows = 6;
#define EVERY_OTHER {0, 2, 5, 7}
#endif
// A tile of C stays in registers: kTileRows rows of two vectors each.
constexpr int kTileColumns = 2 * kLanes;
// A panel of B (kDepth x kTileColumns) stays in the first-level cache. A block of A (kRows x kDepth) and a block of B
// stay in the second-level cache.
constexpr long kDepth = 256, kRows = 12 * kTileRows, kColumns = 16 * kTileColumns;

typedef float Vector __attribute__((vector_size(4 * kLanes), may_alias));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * kLanes)));
typedef int64_t Places __attribute__((vector_size(8 * kLanes), aligned(8), may_alias));

// Shuffle that picks every other number of two vectors. The second vector begins with the last number of the first.
constexpr Integers kEveryOther = EVERY_OTHER;

// Element (i, j) is at[i * row + j * column]. With `row` and `column` exchanged it is the transposed matrix.
struct Matrix {
    const float *at;
    long row, column;
    const float *from(long i, long j) const { return at + i * row + j * column; }
};

Matrix plain(const float *at, long columns) { return {at, columns, 1}; }
Matrix transposed(const float *at, long columns) { return {at, 1, columns}; }

// Packs `count` lines of `length` numbers each, so that the k-th numbers of all lines become neighbours: number k of
// line i goes to to[k * width + i]. If `count` is below `width`, zeros replace the missing lines. `across` is the step
// between lines, `along` the step within a line.
void pack(const float *from, long across, long along, long count, long width, long length, float *to) {
    if (across == 1 && count == width) {
        for (long k = 0; k < length; k++) std::memcpy(to + k * width, from + k * along, width * sizeof(float));
        return;
    }
    if (count < width) std::fill(to, to + length * width, 0.0f);
    for (long line = 0; line < count; line++)
        for (long k = 0; k < length; k++) to[k * width + line] = from[line * across + k * along];
}

// Stores the product of two packed panels in a tile of C (rows, columns). `add`: true to add it to the tile instead. C
// is part of a matrix with `step` columns; at its edge a tile may be smaller.
void tile(const float *a, const float *b, long depth, float *c, long step, long rows, long columns, bool add) {
    Vector sums[kTileRows][2] = {};
    for (long k = 0; k < depth; k++) {
        const Vector left = *reinterpret_cast<const Vector *>(b + k * kTileColumns);
        const Vector right = *reinterpret_cast<const Vector *>(b + k * kTileColumns + kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < kTileRows; i++) {
            sums[i][0] += a[k * kTileRows + i] * left;
            sums[i][1] += a[k * kTileRows + i] * right;
        }
    }
    if (rows == kTileRows && columns == kTileColumns) {
#pragma GCC unroll 8
        for (int i = 0; i < kTileRows; i++) {
            Unaligned *out = reinterpret_cast<Unaligned *>(c + i * step);
            out[0] = add ? out[0] + sums[i][0] : sums[i][0];
            out[1] = add ? out[1] + sums[i][1] : sums[i][1];
        }
        return;
    }
    alignas(kLine) float kept[kTileRows][kTileColumns];
    std::memcpy(kept, sums, sizeof(kept));
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < columns; j++) c[i * step + j] = (add ? c[i * step + j] : 0) + kept[i][j];
}

// Stores the product of A (m, k) and B (k, n) in C (m, n), row-major. `add`: true to add it to C instead. Threads share
// the blocks of C, so that one thread writes each element. A call in a parallel region uses only one thread.
void multiply(Matrix a, Matrix b, float *c, long m, long n, long k, bool add) {
    const long panels = blocks(n, kTileColumns);
    float *packedB = roomOfB.of(kDepth * panels * kTileColumns);
#pragma omp parallel if (m * n * k > kWorthThreads)
    {
        // Blocks are at most as large as a thread's share, so that all threads have work even if there are few rows.
        const long share = blocks(blocks(m, omp_get_num_threads()), kTileRows) * kTileRows;
        const long rows = std::min(kRows, share), down = blocks(m, rows), right = blocks(n, kColumns);
        float *packedA = roomOfA.of(rows * kDepth);
        for (long first = 0; first < k; first += kDepth) {
            const long depth = std::min(kDepth, k - first);
#pragma omp for
            for (long panel = 0; panel < panels; panel++) {
                const long j = panel * kTileColumns;
                pack(b.from(first, j), b.column, b.row, std::min<long>(kTileColumns, n - j), kTileColumns, depth,
                     packedB + j * depth);
            }
#pragma omp for
            for (long block = 0; block < down * right; block++) {
                const long top = block / right * rows, bottom = std::min(m, top + rows);
                const long left = block % right * kColumns, end = std::min(n, left + kColumns);
                for (long i = top; i < bottom; i += kTileRows)
                    pack(a.from(i, first), a.row, a.column, std::min<long>(kTileRows, bottom - i), kTileRows, depth,
                         packedA + (i - top) * depth);
                for (long j = left; j < end; j += kTileColumns)
                    for (long i = top; i < bottom; i += kTileRows)
                        tile(packedA + (i - top) * depth, packedB + j * depth, depth, c + i * n + j, n,
                             std::min<long>(kTileRows, bottom - i), std::min<long>(kTileColumns, end - j),
                             add || first > 0);
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------------------
// Sums and products of elements
// ----------------------------------------------------------------------------------------------------------

// Calls combine(o, a, b) for each element (i, j) of the (R, C) matrices o and a. b is the element of B at the same place
// after broadcasting.
template <class Combine>
void broadcast(const float *b, float *o, const float *a, long R, long C, long RB, long CB, Combine combine) {
#pragma omp parallel for if (R * C > kWorthThreads)
    for (long i = 0; i < R; i++) {
        const float *from = a + i * C, *row = b + (RB == 1 ? 0 : i) * CB;
        float *to = o + i * C;
        if (CB == 1) {
            const float all = row[0];
#pragma omp simd
            for (long j = 0; j < C; j++) combine(to[j], from[j], all);
        } else {
#pragma omp simd
            for (long j = 0; j < C; j++) combine(to[j], from[j], row[j]);
        }
    }
}

// Computes the gradient of the broadcast operand B. For each element `at` of the (R, C) result, use(at) is added to the
// element of gb (RB, CB) that belongs to B's element at this place. If rows share elements of gb, each thread adds up
// its own rows, and then adds the sum to gb.
template <class Use>
void addUses(float *gb, long R, long C, long RB, long CB, Use use) {
    const bool shared = RB == 1 && R > 1;
#pragma omp parallel if (R * C > kWorthThreads)
    {
        float *own = roomOfSums.of(CB);
        std::fill(own, own + CB, 0.0f);
        double total = 0;
#pragma omp for
        for (long i = 0; i < R; i++) {
            float *row = shared ? own : gb + i * CB;
            if (CB == 1) {
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long j = 0; j < C; j++) sum += use(i * C + j);
                if (shared)
                    total += sum;
                else
                    row[0] += sum;
            } else {
#pragma omp simd
                for (long j = 0; j < C; j++) row[j] += use(i * C + j);
            }
        }
        if (shared) {
            if (CB == 1) own[0] = total;
#pragma omp critical
            for (long j = 0; j < CB; j++) gb[j] += own[j];
        }
    }
}

// ----------------------------------------------------------------------------------------------------------
// Images
// ----------------------------------------------------------------------------------------------------------

// Sizes of a convolution, and the range of output rows or columns at which a filter row or column is inside the image.
struct Window {
    long C, H, W, K, stride, pad, OH, OW;
    long places() const { return OH * OW; }
    long taps() const { return C * K * K; }
    long first(long k) const { return std::max(0L, blocks(std::max(0L, pad - k), stride)); }
    long last(long k, long size, long out) const {
        return std::min(out, blocks(std::max(0L, size + pad - k), stride));
    }
    long at(long o, long k) const { return o * stride + k - pad; }
};

// Writes a matrix with a row for each tap (c, kh, kw) and a column for each place; zeros stand for numbers outside of
// the image.
void im2col(const float *x, const Window &s, float *columns) {
    for (long t = 0; t < s.taps(); t++) {
        const long c = t / (s.K * s.K), kh = t / s.K % s.K, kw = t % s.K;
        const long left = s.first(kw), right = std::max(left, s.last(kw, s.W, s.OW));
        for (long oh = 0; oh < s.OH; oh++) {
            float *row = columns + t * s.places() + oh * s.OW;
            const long ih = s.at(oh, kh);
            if (ih < 0 || ih >= s.H || left >= s.OW) {
                std::fill(row, row + s.OW, 0.0f);
                continue;
            }
            const float *from = x + (c * s.H + ih) * s.W + kw - s.pad;
            std::fill(row, row + left, 0.0f);
            if (s.stride == 1)
                for (long ow = left; ow < right; ow++) row[ow] = from[ow];
            else
                for (long ow = left; ow < right; ow++) row[ow] = from[ow * s.stride];
            std::fill(row + right, row + s.OW, 0.0f);
        }
    }
}

// The reverse of im2col: adds each number of a matrix of the same shape to the element of the image gx from which
// im2col would read it.
void col2im(const float *columns, const Window &s, float *gx) {
    for (long t = 0; t < s.taps(); t++) {
        const long c = t / (s.K * s.K), kh = t / s.K % s.K, kw = t % s.K;
        const long left = s.first(kw), right = s.last(kw, s.W, s.OW);
        for (long oh = s.first(kh); oh < s.last(kh, s.H, s.OH); oh++) {
            const float *row = columns + t * s.places() + oh * s.OW;
            float *to = gx + (c * s.H + s.at(oh, kh)) * s.W + kw - s.pad;
            if (s.stride == 1)
                for (long ow = left; ow < right; ow++) to[ow] += row[ow];
            else
                for (long ow = left; ow < right; ow++) to[ow * s.stride] += row[ow];
        }
    }
}

Window window(int C, int H, int Wd, int K, int stride, int pad) {
    return {C, H, Wd, K, stride, pad, (H + 2 * pad - K) / stride + 1, (Wd + 2 * pad - K) / stride + 1};
}

// Loads kLanes numbers that are `step` apart, and reads nothing after the last one. If the step is 1 or 2, it is given
// as the constant kStep, and whole vectors are loaded. For other steps kStep is 0.
template <int kStep>
Vector apart(const float *from, long step) {
    if (kStep == 1) return *reinterpret_cast<const Unaligned *>(from);
    if (kStep == 2) {
        const Vector front = *reinterpret_cast<const Unaligned *>(from);
        const Vector behind = *reinterpret_cast<const Unaligned *>(from + kLanes - 1);
        return __builtin_shuffle(front, behind, kEveryOther);
    }
    Vector made;
    for (int lane = 0; lane < kLanes; lane++) made[lane] = from[lane * step];
    return made;
}

// Computes the maxima of one plane. kLanes neighbouring windows are computed together: their largest numbers so far and
// the indices of these numbers stay in registers.
template <int kStep>
void maxima(const float *from, float *y, int64_t *index, int Wd, int K, int stride, int OH, int OW) {
    const int step = kStep ? kStep : stride;
    Integers along;
    for (int lane = 0; lane < kLanes; lane++) along[lane] = lane * step;
    for (int oh = 0; oh < OH; oh++) {
        const int top = oh * step * Wd;
        float *line = y + (long)oh * OW;
        int64_t *places = index + (long)oh * OW;
        int done = 0;
        while (OW >= kLanes && done < OW) {
            // The last vector overlaps the previous one, so that it is full.
            const int ow = std::min(done, OW - kLanes), left = top + ow * step;
            Vector best = apart<kStep>(from + left, step);
            Integers where = {};
            for (int kh = 0; kh < K; kh++)
                for (int kw = 0; kw < K; kw++) {
                    const int tap = kh * Wd + kw;
                    const Vector value = apart<kStep>(from + left + tap, step);
                    const Integers larger = value > best;
                    best = larger ? value : best;
                    where = larger ? where - where + tap : where;
                }
            *reinterpret_cast<Unaligned *>(line + ow) = best;
            *reinterpret_cast<Places *>(places + ow) = __builtin_convertvector(where + along + left, Places);
            done = ow + kLanes;
        }
        for (int ow = done; ow < OW; ow++) {
            const int left = top + ow * step;
            float best = from[left];
            int where = left;
            for (int kh = 0; kh < K; kh++)
                for (int kw = 0; kw < K; kw++) {
                    const int here = left + kh * Wd + kw;
                    const float value = from[here];
                    where = value > best ? here : where;
                    best = value > best ? value : best;
                }
            line[ow] = best;
            places[ow] = where;
        }
    }
}

// ----------------------------------------------------------------------------------------------------------
// Softmax
// ----------------------------------------------------------------------------------------------------------

// Returns e^x for x <= 0, by operations that exist for vectors: 2^n e^r with |r| <= ln(2) / 2 and a polynomial for e^r.
// For x below -87 it returns e^-87, which is too small to change a sum of 1 or more.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // Adding 1.5 * 2^23 rounds to a whole number.
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln(2) in two parts: n times the first is exact.
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
}

float largest(const float *row, long C) {
    float most = row[0];
#pragma omp simd reduction(max : most)
    for (long c = 1; c < C; c++) most = std::max(most, row[c]);
    return most;
}

// Stores the exponentials of a row in `kept`, and returns their sum.
float exponentials(const float *row, float most, long C, float *kept) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long c = 0; c < C; c++) sum += kept[c] = exponential(row[c] - most);
    return sum;
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------
// The assignment's functions
// ----------------------------------------------------------------------------------------------------------

torch::Tensor addForward(torch::Tensor A, torch::Tensor B, int R, int C, int RB, int CB) {
    torch::Tensor O = at::empty({R, C}, at::kFloat);
    broadcast(B.data_ptr<float>(), O.data_ptr<float>(), A.data_ptr<float>(), R, C, RB, CB,
              [](float &o, float a, float b) { o = a + b; });
    return O;
}

void addBackward(torch::Tensor dO, torch::Tensor dA, torch::Tensor dB, int R, int C, int RB, int CB) {
    const float *go = dO.data_ptr<float>();
    float *ga = dA.data_ptr<float>();
    addUses(dB.data_ptr<float>(), R, C, RB, CB, [=](long at) {
        ga[at] += go[at];
        return go[at];
    });
}

torch::Tensor mulForward(torch::Tensor A, torch::Tensor B, int R, int C, int RB, int CB) {
    torch::Tensor O = at::empty({R, C}, at::kFloat);
    broadcast(B.data_ptr<float>(), O.data_ptr<float>(), A.data_ptr<float>(), R, C, RB, CB,
              [](float &o, float a, float b) { o = a * b; });
    return O;
}

void mulBackward(torch::Tensor dO, torch::Tensor A, torch::Tensor B, torch::Tensor dA, torch::Tensor dB, int R, int C,
                 int RB, int CB) {
    const float *go = dO.data_ptr<float>(), *a = A.data_ptr<float>();
    broadcast(B.data_ptr<float>(), dA.data_ptr<float>(), go, R, C, RB, CB,
              [](float &ga, float go, float b) { ga += go * b; });
    addUses(dB.data_ptr<float>(), R, C, RB, CB, [=](long at) { return go[at] * a[at]; });
}

torch::Tensor reluForward(torch::Tensor X, int n) {
    torch::Tensor O = at::empty({n}, at::kFloat);
    const float *x = X.data_ptr<float>();
    float *o = O.data_ptr<float>();
#pragma omp parallel for simd if (n > kWorthThreads)
    for (int i = 0; i < n; i++) o[i] = x[i] > 0 ? x[i] : 0;
    return O;
}

void reluBackward(torch::Tensor dO, torch::Tensor X, torch::Tensor dX, int n) {
    const float *go = dO.data_ptr<float>(), *x = X.data_ptr<float>();
    float *gx = dX.data_ptr<float>();
    // Adds 0 where x <= 0, because a condition on the store would prevent vectorisation.
#pragma omp parallel for simd if (n > kWorthThreads)
    for (int i = 0; i < n; i++) gx[i] += x[i] > 0 ? go[i] : 0;
}

torch::Tensor matmulForward(torch::Tensor A, torch::Tensor B, int M, int K, int N) {
    torch::Tensor O = at::empty({M, N}, at::kFloat);
    multiply(plain(A.data_ptr<float>(), K), plain(B.data_ptr<float>(), N), O.data_ptr<float>(), M, N, K, false);
    return O;
}

void matmulBackward(torch::Tensor dO, torch::Tensor A, torch::Tensor B, torch::Tensor dA, torch::Tensor dB, int M, int K,
                    int N) {
    const float *go = dO.data_ptr<float>();
    multiply(plain(go, N), transposed(B.data_ptr<float>(), N), dA.data_ptr<float>(), M, K, N, true);
    multiply(transposed(A.data_ptr<float>(), K), plain(go, N), dB.data_ptr<float>(), K, N, M, true);
}

torch::Tensor linearForward(torch::Tensor X, torch::Tensor W, torch::Tensor b, int N, int I, int O) {
    torch::Tensor Y = at::empty({N, O}, at::kFloat);
    const float *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    for (long n = 0; n < N; n++) std::memcpy(y + n * O, bias, O * sizeof(float));
    multiply(plain(X.data_ptr<float>(), I), plain(W.data_ptr<float>(), O), y, N, O, I, true);
    return Y;
}

void linearBackward(torch::Tensor dY, torch::Tensor X, torch::Tensor W, torch::Tensor dX, torch::Tensor dW,
                    torch::Tensor db, int N, int I, int O) {
    const float *gy = dY.data_ptr<float>();
    multiply(plain(gy, O), transposed(W.data_ptr<float>(), O), dX.data_ptr<float>(), N, I, O, true);
    multiply(transposed(X.data_ptr<float>(), I), plain(gy, O), dW.data_ptr<float>(), I, O, N, true);
    addUses(db.data_ptr<float>(), N, O, 1, O, [=](long at) { return gy[at]; });
}

torch::Tensor conv2dForward(torch::Tensor X, torch::Tensor W, torch::Tensor b, int N, int C, int H, int Wd, int F, int K,
                            int stride, int pad) {
    const Window s = window(C, H, Wd, K, stride, pad);
    torch::Tensor Y = at::empty({N, F, s.OH, s.OW}, at::kFloat);
    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    // Each thread computes whole images. A single image is shared by threads in `multiply`.
#pragma omp parallel for if (N > 1)
    for (long n = 0; n < N; n++) {
        float *columns = roomOfColumns.of(s.taps() * s.places()), *out = y + n * F * s.places();
        im2col(x + n * C * H * Wd, s, columns);
        for (long f = 0; f < F; f++) std::fill(out + f * s.places(), out + (f + 1) * s.places(), bias[f]);
        multiply(plain(w, s.taps()), plain(columns, s.places()), out, F, s.places(), s.taps(), true);
    }
    return Y;
}

void conv2dBackward(torch::Tensor dY, torch::Tensor X, torch::Tensor W, torch::Tensor dX, torch::Tensor dW,
                    torch::Tensor db, int N, int C, int H, int Wd, int F, int K, int stride, int pad) {
    const Window s = window(C, H, Wd, K, stride, pad);
    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
    const long taps = s.taps(), places = s.places();
    // One thread computes each image of dX. All threads add to dW and db: each first to its own buffers, which are added
    // up at the end.
#pragma omp parallel if (N > 1)
    {
        float *columns = roomOfColumns.of(taps * places), *ownW = roomOfGradient.of(F * taps + F), *ownB = ownW + F * taps;
        std::fill(ownW, ownB + F, 0.0f);
#pragma omp for
        for (long n = 0; n < N; n++) {
            const float *out = gy + n * F * places;
            im2col(x + n * C * H * Wd, s, columns);
            multiply(plain(out, places), transposed(columns, places), ownW, F, taps, places, true);
            multiply(transposed(w, taps), plain(out, places), columns, taps, places, F, false);
            col2im(columns, s, gx + n * C * H * Wd);
            for (long f = 0; f < F; f++) {
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long p = 0; p < places; p++) sum += out[f * places + p];
                ownB[f] += sum;
            }
        }
#pragma omp critical
        {
            for (long i = 0; i < F * taps; i++) gw[i] += ownW[i];
            for (long f = 0; f < F; f++) gb[f] += ownB[f];
        }
    }
}

torch::Tensor maxpool2dForward(torch::Tensor X, torch::Tensor index, int N, int C, int H, int Wd, int K, int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    torch::Tensor Y = at::empty({N, C, OH, OW}, at::kFloat);
    const float *x = X.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    int64_t *index_of = index.data_ptr<int64_t>();
    const auto plane = stride == 1 ? maxima<1> : stride == 2 ? maxima<2> : maxima<0>;
#pragma omp parallel for if (N * (long)C * H * Wd > kWorthThreads)
    for (long p = 0; p < N * (long)C; p++)
        plane(x + p * H * Wd, y + p * OH * OW, index_of + p * OH * OW, Wd, K, stride, OH, OW);
    return Y;
}

void maxpool2dBackward(torch::Tensor dY, torch::Tensor index, torch::Tensor dX, int N, int C, int H, int Wd, int K,
                       int stride) {
    const long places = (long)((H - K) / stride + 1) * ((Wd - K) / stride + 1);
    const float *gy = dY.data_ptr<float>();
    const int64_t *at = index.data_ptr<int64_t>();
    float *gx = dX.data_ptr<float>();
#pragma omp parallel for if (N * (long)C * H * Wd > kWorthThreads)
    for (long p = 0; p < N * (long)C; p++) {
        float *to = gx + p * H * Wd;
        for (long i = p * places; i < (p + 1) * places; i++) to[at[i]] += gy[i];
    }
}

torch::Tensor mseForward(torch::Tensor X, torch::Tensor T, int n) {
    torch::Tensor loss = at::empty({1}, at::kFloat);
    const float *x = X.data_ptr<float>(), *t = T.data_ptr<float>();
    double sum = 0;
#pragma omp parallel for simd reduction(+ : sum) if (n > kWorthThreads)
    for (int i = 0; i < n; i++) sum += (x[i] - t[i]) * (x[i] - t[i]);
    loss.data_ptr<float>()[0] = sum / n;
    return loss;
}

void mseBackward(torch::Tensor X, torch::Tensor T, torch::Tensor dX, int n) {
    const float *x = X.data_ptr<float>(), *t = T.data_ptr<float>();
    float *gx = dX.data_ptr<float>();
    const float factor = 2.0f / n;
#pragma omp parallel for simd if (n > kWorthThreads)
    for (int i = 0; i < n; i++) gx[i] += factor * (x[i] - t[i]);
}

torch::Tensor crossEntropyForward(torch::Tensor X, torch::Tensor labels, int N, int C) {
    torch::Tensor loss = at::empty({1}, at::kFloat);
    const float *x = X.data_ptr<float>();
    const int64_t *label = labels.data_ptr<int64_t>();
    double total = 0;
#pragma omp parallel for reduction(+ : total) if (N * (long)C > kWorthThreads / 16)
    for (long n = 0; n < N; n++) {
        const float *row = x + n * C, most = largest(row, C);
        total += std::log(exponentials(row, most, C, roomOfSums.of(C))) + most - row[label[n]];
    }
    loss.data_ptr<float>()[0] = total / N;
    return loss;
}

void crossEntropyBackward(torch::Tensor X, torch::Tensor labels, torch::Tensor dX, int N, int C) {
    const float *x = X.data_ptr<float>();
    const int64_t *label = labels.data_ptr<int64_t>();
    float *gx = dX.data_ptr<float>();
#pragma omp parallel for if (N * (long)C > kWorthThreads / 16)
    for (long n = 0; n < N; n++) {
        const float *row = x + n * C, most = largest(row, C);
        float *powers = roomOfSums.of(C), *to = gx + n * C;
        const float factor = 1 / (exponentials(row, most, C, powers) * N);
#pragma omp simd
        for (long c = 0; c < C; c++) to[c] += powers[c] * factor;
        to[label[n]] -= 1.0f / N;
    }
}

void sgdStep(torch::Tensor P, torch::Tensor G, int n, float rate) {
    float *p = P.data_ptr<float>();
    const float *g = G.data_ptr<float>();
#pragma omp parallel for simd if (n > kWorthThreads)
    for (int i = 0; i < n; i++) p[i] -= rate * g[i];
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("addForward", &addForward);
    m.def("addBackward", &addBackward);
    m.def("mulForward", &mulForward);
    m.def("mulBackward", &mulBackward);
    m.def("reluForward", &reluForward);
    m.def("reluBackward", &reluBackward);
    m.def("matmulForward", &matmulForward);
    m.def("matmulBackward", &matmulBackward);
    m.def("linearForward", &linearForward);
    m.def("linearBackward", &linearBackward);
    m.def("conv2dForward", &conv2dForward);
    m.def("conv2dBackward", &conv2dBackward);
    m.def("maxpool2dForward", &maxpool2dForward);
    m.def("maxpool2dBackward", &maxpool2dBackward);
    m.def("mseForward", &mseForward);
    m.def("mseBackward", &mseBackward);
    m.def("crossEntropyForward", &crossEntropyForward);
    m.def("crossEntropyBackward", &crossEntropyBackward);
    m.def("sgdStep", &sgdStep);
}
