// The reference kernels: the assignment's algorithms as an honest student writes them. So a student's kernel is as fast
// as the reference if it has the right algorithm. Compiled once for each instruction set level. The macro
// GPT149_KERNELS is the name of the table to define.
//
// Two rules for changes of this file:
// - No templates or inline functions of the standard library: they are weak symbols, of which the linker keeps one copy
//   for all levels. If this is the AVX-512 copy, the library crashes on older machines.
// - No reassociation and no contraction (-ffp-contract=off), so that all levels add in the same order and give the same
//   bits.
#include "kernels.h"

#include <omp.h>

#include <cmath>
#include <cstddef>
#include <cstring>

namespace {

// Side of part 2's tiles, in elements. With 32 or 64, which students also choose, part 2 takes 0.78 of part 1's time.
// This is within the published 0.68 to 0.91. With 16 it takes 0.66 on some machines, because the processor computes
// several short sums at once.
constexpr int kTile = 32;

int smaller(int a, int b) { return a < b ? a : b; }

// A copy of an array during a call. A student's function first copies every tensor, workspace included, into a
// std::vector by the given formatTensor, and copies O back afterwards. The reference does the same: otherwise these
// copies, which the starter makes (about 4 MB at N = 1024), would count against the student in the time ratio.
class Staged {
  public:
    Staged(const float *from, std::size_t count) : values_(new float[count]) {
        std::memcpy(values_, from, count * sizeof(float));
    }
    explicit Staged(std::size_t count) : values_(new float[count]) {
        std::memset(values_, 0, count * sizeof(float));
    }
    ~Staged() { delete[] values_; }
    Staged(const Staged &) = delete;
    Staged &operator=(const Staged &) = delete;
    float *get() { return values_; }

  private:
    float *values_;
};

struct Shape {
    int B, H, N, d;
    std::size_t all() const { return static_cast<std::size_t>(B) * H * N * d; }
    std::size_t scores() const { return static_cast<std::size_t>(N) * N; }
    // Offset at which the (N, d) matrix of one batch and head begins.
    std::size_t head(int b, int h) const { return (static_cast<std::size_t>(b) * H + h) * N * d; }
};

// Row-major element (row, column) of a matrix with `columns` columns. Like the assignment's accessors, these functions
// take integers by reference. In OpenMP regions the compiler therefore loads N and d again after every call of exp.
// With integers passed by value, part 3 was 5 to 10 % faster than an honest student's.
float read2d(const float *matrix, const int &row, const int &column, const int &columns) {
    return matrix[static_cast<std::size_t>(row) * columns + column];
}

void write2d(float *matrix, const int &row, const int &column, const int &columns, float value) {
    matrix[static_cast<std::size_t>(row) * columns + column] = value;
}

float read4d(const float *tensor, const int &x, const int &y, const int &z, const int &b, const int &sizeX,
             const int &sizeY, const int &sizeZ) {
    return tensor[gpt149_offset4d(x, y, z, b, sizeX, sizeY, sizeZ)];
}

void write4d(float *tensor, const int &x, const int &y, const int &z, const int &b, const int &sizeX,
             const int &sizeY, const int &sizeZ, float value) {
    tensor[gpt149_offset4d(x, y, z, b, sizeX, sizeY, sizeZ)] = value;
}

// Replaces S (N, N) by exp(S), with every row divided by its sum. As in the course, the maximum is not subtracted:
// graded inputs have |S| small enough for exp() of a float.
void softmaxRows(float *S, int N) {
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            write2d(S, i, j, N, std::exp(read2d(S, i, j, N)));
        }
        float rowSum = 0.0f;
        for (int j = 0; j < N; j++) {
            rowSum += read2d(S, i, j, N);
        }
        for (int j = 0; j < N; j++) {
            write2d(S, i, j, N, read2d(S, i, j, N) / rowSum);
        }
    }
}

// Part 1: the three steps, one after the other, over the whole N x N matrix. Elements of Q, K, V and O are accessed by
// all four indices, as by the published accessors. With pointers to each head's matrix instead, part 1 was up to 5 %
// faster than an honest student's.
void naive(const float *Q, const float *K, const float *V, float *QK_t, int B, int H, int N, int d, float *O) {
    const Shape shape{B, H, N, d};
    Staged o(shape.all()), q(Q, shape.all()), k(K, shape.all()), v(V, shape.all()), s(QK_t, shape.scores());
    float *S = s.get();
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int i = 0; i < N; i++) {
                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int c = 0; c < d; c++) {
                        score += read4d(q.get(), b, h, i, c, H, N, d) * read4d(k.get(), b, h, j, c, H, N, d);
                    }
                    write2d(S, i, j, N, score);
                }
            }
            softmaxRows(S, N);
            for (int i = 0; i < N; i++) {
                for (int c = 0; c < d; c++) {
                    float value = 0.0f;
                    for (int j = 0; j < N; j++) {
                        value += read2d(S, i, j, N) * read4d(v.get(), b, h, j, c, H, N, d);
                    }
                    write4d(o.get(), b, h, i, c, H, N, d, value);
                }
            }
        }
    }
    std::memcpy(O, o.get(), shape.all() * sizeof(float));
}

// Part 2: S = Q * transpose(K) of head (b, h), tile by tile. The first tile of channels stores its sums, the others add
// to them.
void blockedScores(const float *Q, const float *K, float *S, const Shape &shape, int b, int h) {
    const int H = shape.H, N = shape.N, d = shape.d;
    for (int i0 = 0; i0 < N; i0 += kTile) {
        int iEnd = smaller(i0 + kTile, N);
        for (int j0 = 0; j0 < N; j0 += kTile) {
            int jEnd = smaller(j0 + kTile, N);
            for (int c0 = 0; c0 < d; c0 += kTile) {
                int cEnd = smaller(c0 + kTile, d);
                for (int i = i0; i < iEnd; i++) {
                    for (int j = j0; j < jEnd; j++) {
                        float score = c0 == 0 ? 0.0f : read2d(S, i, j, N);
                        for (int c = c0; c < cEnd; c++) {
                            score += read4d(Q, b, h, i, c, H, N, d) * read4d(K, b, h, j, c, H, N, d);
                        }
                        write2d(S, i, j, N, score);
                    }
                }
            }
        }
    }
}

// Part 2: O = P * V of head (b, h), tile by tile, in the same way.
void blockedValues(const float *P, const float *V, float *O, const Shape &shape, int b, int h) {
    const int H = shape.H, N = shape.N, d = shape.d;
    for (int i0 = 0; i0 < N; i0 += kTile) {
        int iEnd = smaller(i0 + kTile, N);
        for (int c0 = 0; c0 < d; c0 += kTile) {
            int cEnd = smaller(c0 + kTile, d);
            for (int j0 = 0; j0 < N; j0 += kTile) {
                int jEnd = smaller(j0 + kTile, N);
                for (int i = i0; i < iEnd; i++) {
                    for (int c = c0; c < cEnd; c++) {
                        float value = j0 == 0 ? 0.0f : read4d(O, b, h, i, c, H, N, d);
                        for (int j = j0; j < jEnd; j++) {
                            value += read2d(P, i, j, N) * read4d(V, b, h, j, c, H, N, d);
                        }
                        write4d(O, b, h, i, c, H, N, d, value);
                    }
                }
            }
        }
    }
}

void blocked(const float *Q, const float *K, const float *V, float *QK_t, int B, int H, int N, int d, float *O) {
    const Shape shape{B, H, N, d};
    Staged o(shape.all()), q(Q, shape.all()), k(K, shape.all()), v(V, shape.all()), s(QK_t, shape.scores());
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            blockedScores(q.get(), k.get(), s.get(), shape, b, h);
            softmaxRows(s.get(), N);
            blockedValues(s.get(), v.get(), o.get(), shape, b, h);
        }
    }
    std::memcpy(O, o.get(), shape.all() * sizeof(float));
}

// Number of steps in `viewOfRow`, each a product and a sum that depend on the previous step. They take as long as
// torch's view of `temp` in part 3's loop (see `fused`), because the reference has no torch. The view (index, flatten,
// contiguous) took 2.5 to 9 us, like 1000 to 3000 steps.
constexpr int kViewSteps = 1800;

float viewOfRow(float first) {
    volatile float step = 1e-9f;
    const float by = step;
    for (int k = 0; k < kViewSteps; k++) {
        first = first * (1.0f - by) + by;
    }
    return first;
}

// Part 3: row by row; the only workspace is a row of weights for each thread. In the published starter, the
// loop calls formatTensor on `temp.index({Slice(omp_get_thread_num(), None)})`, which copies the thread's row of `temp`
// and all rows after it for each row of O. This kernel makes the same copy.
void fused(const float *Q, const float *K, const float *V, float *temp, int B, int H, int N, int d, float *O) {
    const Shape shape{B, H, N, d};
    const int threads = omp_get_max_threads();
    Staged o(shape.all()), q(Q, shape.all()), k(K, shape.all()), v(V, shape.all());
#pragma omp parallel for collapse(3)
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int i = 0; i < N; i++) {
                const std::size_t thread = static_cast<std::size_t>(omp_get_thread_num());
                Staged row(temp + thread * N, (threads - thread) * N);
                float *weights = row.get();
                weights[0] = viewOfRow(weights[0]);
                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int c = 0; c < d; c++) {
                        score += read4d(q.get(), b, h, i, c, H, N, d) * read4d(k.get(), b, h, j, c, H, N, d);
                    }
                    weights[j] = score;
                }
                float rowSum = 0.0f;
                for (int j = 0; j < N; j++) {
                    weights[j] = std::exp(weights[j]);
                    rowSum += weights[j];
                }
                for (int j = 0; j < N; j++) {
                    weights[j] /= rowSum;
                }
                // One dot product per column, which reads V with a stride. Reading V row by row (fusedRows) takes half
                // the time.
                for (int c = 0; c < d; c++) {
                    float value = 0.0f;
                    for (int j = 0; j < N; j++) {
                        value += weights[j] * read4d(v.get(), b, h, j, c, H, N, d);
                    }
                    write4d(o.get(), b, h, i, c, H, N, d, value);
                }
            }
        }
    }
    std::memcpy(O, o.get(), shape.all() * sizeof(float));
}

// Part 3 with its last two loops exchanged, so that V is read row by row. It shows students a faster kernel's speed; it
// is not a reference.
void fusedRows(const float *Q, const float *K, const float *V, float *temp, int B, int H, int N, int d, float *O) {
    const Shape shape{B, H, N, d};
    const std::size_t threads = static_cast<std::size_t>(omp_get_max_threads());
    Staged o(shape.all()), q(Q, shape.all()), k(K, shape.all()), v(V, shape.all()), rows(temp, threads * N);
#pragma omp parallel for collapse(3)
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int i = 0; i < N; i++) {
                int row = omp_get_thread_num();
                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int c = 0; c < d; c++) {
                        score += read4d(q.get(), b, h, i, c, H, N, d) * read4d(k.get(), b, h, j, c, H, N, d);
                    }
                    write2d(rows.get(), row, j, N, score);
                }
                float rowSum = 0.0f;
                for (int j = 0; j < N; j++) {
                    float weight = std::exp(read2d(rows.get(), row, j, N));
                    write2d(rows.get(), row, j, N, weight);
                    rowSum += weight;
                }
                for (int j = 0; j < N; j++) {
                    float weight = read2d(rows.get(), row, j, N) / rowSum;
                    for (int c = 0; c < d; c++) {
                        float value = read4d(o.get(), b, h, i, c, H, N, d) + weight * read4d(v.get(), b, h, j, c, H, N,
                        d); write4d(o.get(), b, h, i, c, H, N, d, value);
                    }
                }
            }
        }
    }
    std::memcpy(O, o.get(), shape.all() * sizeof(float));
}

// The workspaces of part 4: tiles Qi, Oi, PV (Br, d), Kj, Vj (Bc, d), S, P (Br, Bc); row sums Li, Lij, Lnew (Br) and
// L (N).
struct FlashTiles {
    float *Qi, *Kj, *Vj, *S, *P, *PV, *Oi, *L, *Li, *Lij, *Lnew;
    int Bc;
};

// Part 4, the inner step: adds a block of (rows, columns) to the rows of O from i0 on.
void flashBlock(const FlashTiles &tile, const float *Q, float *O, int i0, int rows, int columns, int d) {
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < d; k++) {
            write2d(tile.Qi, i, k, d, read2d(Q, i0 + i, k, d));
            write2d(tile.Oi, i, k, d, read2d(O, i0 + i, k, d));
        }
        tile.Li[i] = tile.L[i0 + i];
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < columns; j++) {
            float score = 0.0f;
            for (int k = 0; k < d; k++) {
                score += read2d(tile.Qi, i, k, d) * read2d(tile.Kj, j, k, d);
            }
            write2d(tile.S, i, j, tile.Bc, score);
        }
    }
    for (int i = 0; i < rows; i++) {
        float rowSum = 0.0f;
        for (int j = 0; j < columns; j++) {
            float weight = std::exp(read2d(tile.S, i, j, tile.Bc));
            write2d(tile.P, i, j, tile.Bc, weight);
            rowSum += weight;
        }
        tile.Lij[i] = rowSum;
        tile.Lnew[i] = tile.Li[i] + tile.Lij[i];
    }
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < d; k++) {
            float value = 0.0f;
            for (int j = 0; j < columns; j++) {
                value += read2d(tile.P, i, j, tile.Bc) * read2d(tile.Vj, j, k, d);
            }
            write2d(tile.PV, i, k, d, value);
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < d; k++) {
            float value = tile.Li[i] * read2d(tile.Oi, i, k, d) + read2d(tile.PV, i, k, d);
            write2d(O, i0 + i, k, d, value / tile.Lnew[i]);
        }
        tile.L[i0 + i] = tile.Lnew[i];
    }
}

void flashHead(const FlashTiles &tile, const float *Q, const float *K, const float *V, int Br, int N, int d,
               float *O) {
    std::memset(tile.L, 0, static_cast<std::size_t>(N) * sizeof(float));
    for (int j0 = 0; j0 < N; j0 += tile.Bc) {
        int columns = smaller(tile.Bc, N - j0);
        for (int j = 0; j < columns; j++) {
            for (int k = 0; k < d; k++) {
                write2d(tile.Kj, j, k, d, read2d(K, j0 + j, k, d));
                write2d(tile.Vj, j, k, d, read2d(V, j0 + j, k, d));
            }
        }
        for (int i0 = 0; i0 < N; i0 += Br) {
            flashBlock(tile, Q, O, i0, smaller(Br, N - i0), columns, d);
        }
    }
}

void flash(const float *Q, const float *K, const float *V, float *Qi, float *Kj, float *Vj, float *Sij, float *Pij,
           float *PV, float *Oi, float *L, float *Li, float *Lij, float *Lnew, int Bc, int Br, int B, int H, int N,
           int d, float *O) {
    const Shape shape{B, H, N, d};
    const std::size_t rowTile = static_cast<std::size_t>(Br) * d, columnTile = static_cast<std::size_t>(Bc) * d;
    const std::size_t scoreTile = static_cast<std::size_t>(Br) * Bc, rows = static_cast<std::size_t>(Br);
    Staged o(shape.all()), q(Q, shape.all()), k(K, shape.all()), v(V, shape.all());
    Staged qi(Qi, rowTile), kj(Kj, columnTile), vj(Vj, columnTile), s(Sij, scoreTile), p(Pij, scoreTile);
    Staged pv(PV, rowTile), oi(Oi, rowTile), l(L, static_cast<std::size_t>(N));
    Staged li(Li, rows), lij(Lij, rows), lnew(Lnew, rows);
    const FlashTiles tile{qi.get(), kj.get(), vj.get(),  s.get(),   p.get(), pv.get(),
                          oi.get(), l.get(),  li.get(), lij.get(), lnew.get(), Bc};
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            std::size_t at = shape.head(b, h);
            flashHead(tile, q.get() + at, k.get() + at, v.get() + at, Br, N, d, o.get() + at);
        }
    }
    std::memcpy(O, o.get(), shape.all() * sizeof(float));
}

}  // namespace

const Gpt149Kernels GPT149_KERNELS{naive, blocked, fused, fusedRows, flash};
