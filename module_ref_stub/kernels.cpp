// The reference kernels: the assignment's algorithms as an honest student writes them, so that "as fast as the
// reference" asks for the right algorithm and for nothing else. Compiled once for each instruction set level, with
// GPT149_KERNELS naming the table to define.
//
// Two rules for whoever edits this file:
// - Nothing here may end up as a weak symbol (templates and inline functions of the standard library do): the linker
//   keeps one copy for all levels, and if that is the AVX-512 one the library dies on every older machine.
// - No reassociation, no contraction (-ffp-contract=off): all levels then add in the same order and agree bit for bit.
#include "kernels.h"

#include <omp.h>

#include <cmath>
#include <cstddef>
#include <cstring>

namespace {

// Of part 2. Sums of 16 products overlap in a processor's window, longer ones do less: on some machines tiles of 16 take
// 0.66 of part 1's time, those of 32 and 64, which students choose as well, 0.78. Published: 0.68 to 0.91.
constexpr int kTile = 32;

int smaller(int a, int b) { return a < b ? a : b; }

// A copy of an array for the length of a call. Students copy every tensor, workspace included, into a std::vector with
// the given formatTensor before they compute, and O back afterwards. The reference does the same, as otherwise the
// ratio of the two would charge students for the starter's code (about 4 MB at N = 1024).
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
    // Where the (N, d) matrix of one batch and head begins.
    std::size_t head(int b, int h) const { return (static_cast<std::size_t>(b) * H + h) * N * d; }
};

// Row-major element (row, column) of a matrix with `columns` columns. Like the assignment's accessors these take
// their numbers by reference, which costs something in OpenMP regions: there the compiler has to fetch N and d anew
// after every call of exp. With numbers passed by value part 3 was 5 to 10 % faster than an honest student's.
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

// S (N, N) becomes exp(S) with every row divided by its sum. The maximum is not subtracted: the course does
// not either, and graded inputs keep |S| within what a float's exp can hold.
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

// Part 1: the three steps, one after the other, over the whole N x N matrix. Elements of Q, K, V and O are found by all
// four indices, as the published accessors find them: with a pointer to each head's matrix in their place part 1 was up
// to 5 % faster than an honest student's.
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

// Part 2: S = Q * transpose(K) of head (b, h), tile by tile; the first tile along c starts the sums, the others add to
// them.
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

// What torch takes to make the view in part 3's loop (see `fused`), as so many dependent additions: there is no torch
// here to make it. index, flatten and contiguous took the time of 1000 to 3000 of them (2.5 to 9 us) in that loop.
constexpr int kViewSteps = 1800;

float viewOfRow(float first) {
    volatile float step = 1e-9f;
    const float by = step;
    for (int k = 0; k < kViewSteps; k++) {
        first = first * (1.0f - by) + by;
    }
    return first;
}

// Part 3: every row by itself, with one row of weights for each thread as the only workspace. As in the published
// starter, whose part 3 takes `temp.index({Slice(omp_get_thread_num(), None)})` inside the loop and formats it: the
// thread's row of `temp` and all behind it are copied anew for each row of O.
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
                // One dot product per column, which strides over V: row by row of V (fusedRows) takes half the time.
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

// Part 3 with its last loops exchanged, so that V is read row by row: a rung of the ladder, no reference.
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
                        float value = read4d(o.get(), b, h, i, c, H, N, d) + weight * read4d(v.get(), b, h, j, c, H, N, d);
                        write4d(o.get(), b, h, i, c, H, N, d, value);
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

// Part 4, the inner step: lets block (rows, columns) add to the rows of O from i0 on.
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
