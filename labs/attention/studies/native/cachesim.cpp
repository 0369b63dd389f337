// Counts the cache lines that the course's kernels move. The accesses of a kernel's loops, element by element and in
// order, go through a simulated cache of a given size. Lines fetched from memory and written back to it are counted.
//
//   program KERNEL N d TILE BR BC CACHE_BYTES WAYS LINE_BYTES
//
// prints "loads stores fetched written". cachemodel.h simulates the cache. At the end, the cache's changed lines are
// written back. WAYS 0 makes it fully associative, as the formulas of a blocked product assume.
//
// Numbers that the compiler keeps in a register (loop counters, a running sum) cause no accesses. The kernel computes
// one head, and the cache is empty at the start. KERNEL "script" reads accesses from the standard input instead: "r" or
// "w", and an element's index.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cachemodel.h"

namespace {

using cachemodel::Cache;
using cachemodel::Line;
using cachemodel::Matrix;

struct Shape {
  int N, d, T, Br, Bc;
};

int smaller(int a, int b) { return a < b ? a : b; }

// Returns the length of the longest run of columns, from k to before `to`, that lies in one line of row i of A and in
// one line of row j of B. After the first access, the others of a run are hits: they are only counted, not simulated.
// Returns 1 if the cache cannot keep two lines.
int together(const Matrix &A, int i, const Matrix &B, int j, int k, int to) {
  if (!A.cache->keeps_two()) return 1;
  return smaller(to - k, smaller(A.left_in_line(i, k), B.left_in_line(j, k)));
}

// Makes the accesses of score += A[i][k] * B[j][k] for k in [from, to).
void dot(const Matrix &A, int i, const Matrix &B, int j, int from, int to) {
  for (int k = from, run; k < to; k += run) {
    run = together(A, i, B, j, k, to);
    A.read(i, k);
    B.read(j, k);
    A.cache->loads += 2 * static_cast<uint64_t>(run - 1);
  }
}

// Makes the accesses of O[i][k] += weight * V[j][k] for k in [0, to).
void add_row(const Matrix &O, int i, const Matrix &V, int j, int to) {
  for (int k = 0, run; k < to; k += run) {
    run = together(O, i, V, j, k, to);
    O.read(i, k);
    V.read(j, k);
    O.write(i, k);
    O.cache->loads += 2 * static_cast<uint64_t>(run - 1);
    O.cache->stores += static_cast<uint64_t>(run - 1);
  }
}

// Makes the accesses of value += P[i][j] * V[j][k] for j in [from, to).
void mix(const Matrix &P, int i, const Matrix &V, int k, int from, int to) {
  for (int j = from; j < to; j++) {
    P.read(i, j);
    V.read(j, k);
  }
}

// Makes the accesses of S[row][j] = f(S[row][j]) for all j.
void change_row(const Matrix &S, int row, int columns) {
  for (int j = 0; j < columns; j++) {
    S.read(row, j);
    S.write(row, j);
  }
}

// Tensors and workspaces of all kernels. Each kernel uses only some of them.
struct Memory {
  Matrix Q, K, V, O, S, row, Qi, Oi, PV, Kj, Vj, Sij, Pij, sums;
};

// ---- part 1

void scores_naive(const Memory &m, const Shape &s) {
  for (int i = 0; i < s.N; i++)
    for (int j = 0; j < s.N; j++) {
      dot(m.Q, i, m.K, j, 0, s.d);
      m.S.write(i, j);
    }
}

void softmax(const Memory &m, const Shape &s) {
  for (int i = 0; i < s.N; i++)
    for (int pass = 0; pass < 2; pass++) change_row(m.S, i, s.N);
}

void part1(const Memory &m, const Shape &s) {
  scores_naive(m, s);
  softmax(m, s);
  for (int i = 0; i < s.N; i++)
    for (int k = 0; k < s.d; k++) {
      mix(m.S, i, m.V, k, 0, s.N);
      m.O.write(i, k);
    }
}

// ---- part 2

void scores_tile(const Memory &m, const Shape &s, int i0, int j0, int k0) {
  for (int i = i0; i < smaller(i0 + s.T, s.N); i++)
    for (int j = j0; j < smaller(j0 + s.T, s.N); j++) {
      if (k0 > 0) m.S.read(i, j);
      dot(m.Q, i, m.K, j, k0, smaller(k0 + s.T, s.d));
      m.S.write(i, j);
    }
}

// Each tile of S is finished before the next one begins.
void scores_blocked(const Memory &m, const Shape &s) {
  for (int i0 = 0; i0 < s.N; i0 += s.T)
    for (int j0 = 0; j0 < s.N; j0 += s.T)
      for (int k0 = 0; k0 < s.d; k0 += s.T) scores_tile(m, s, i0, j0, k0);
}

// All of S is read and written again for every tile of d.
void scores_rewritten(const Memory &m, const Shape &s) {
  for (int k0 = 0; k0 < s.d; k0 += s.T)
    for (int i0 = 0; i0 < s.N; i0 += s.T)
      for (int j0 = 0; j0 < s.N; j0 += s.T) scores_tile(m, s, i0, j0, k0);
}

void values_blocked(const Memory &m, const Shape &s) {
  for (int i0 = 0; i0 < s.N; i0 += s.T)
    for (int k0 = 0; k0 < s.d; k0 += s.T)
      for (int j0 = 0; j0 < s.N; j0 += s.T)
        for (int i = i0; i < smaller(i0 + s.T, s.N); i++)
          for (int k = k0; k < smaller(k0 + s.T, s.d); k++) {
            if (j0 > 0) m.O.read(i, k);
            mix(m.S, i, m.V, k, j0, smaller(j0 + s.T, s.N));
            m.O.write(i, k);
          }
}

void part2(const Memory &m, const Shape &s) {
  scores_blocked(m, s);
  softmax(m, s);
  values_blocked(m, s);
}

void part2_rewritten(const Memory &m, const Shape &s) {
  scores_rewritten(m, s);
  softmax(m, s);
  values_blocked(m, s);
}

// ---- part 3, with one thread

void fused(const Memory &m, const Shape &s, bool all) {
  for (int i = 0; i < s.N; i++) {
    for (int j = 0; j < s.N; j++) {
      dot(m.Q, i, m.K, j, 0, s.d);
      m.row.write(0, j);
    }
    if (!all) continue;
    change_row(m.row, 0, s.N);
    for (int j = 0; j < s.N; j++) {
      m.row.read(0, j);
      add_row(m.O, i, m.V, j, s.d);
    }
  }
}

void part3(const Memory &m, const Shape &s) { fused(m, s, true); }
void scores_fused(const Memory &m, const Shape &s) { fused(m, s, false); }

// ---- part 4. Row 0 of the matrix `sums` is L. Row 1 stands for Li, Lij and Lnew together.

void copy_rows(const Matrix &from, int row0, const Matrix &to, int rows, int columns) {
  for (int r = 0; r < rows; r++)
    for (int k = 0; k < columns; k++) {
      from.read(row0 + r, k);
      to.write(r, k);
    }
}

void flash_block(const Memory &m, const Shape &s, int i0, int rows, int columns, bool all) {
  copy_rows(m.Q, i0, m.Qi, rows, s.d);
  if (all) copy_rows(m.O, i0, m.Oi, rows, s.d);
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) {
      dot(m.Qi, i, m.Kj, j, 0, s.d);
      m.Sij.write(i, j);
    }
  if (!all) return;
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < columns; j++) {
      m.Sij.read(i, j);
      m.Pij.write(i, j);
    }
    m.sums.read(0, i0 + i);
    m.sums.write(1, i);
  }
  for (int i = 0; i < rows; i++)
    for (int k = 0; k < s.d; k++) {
      mix(m.Pij, i, m.Vj, k, 0, columns);
      m.PV.write(i, k);
    }
  for (int i = 0; i < rows; i++) {
    m.sums.read(1, i);
    for (int k = 0; k < s.d; k++) {
      m.Oi.read(i, k);
      m.PV.read(i, k);
      m.O.write(i0 + i, k);
    }
    m.sums.write(0, i0 + i);
  }
}

void flash(const Memory &m, const Shape &s, bool all) {
  for (int j0 = 0; j0 < s.N; j0 += s.Bc) {
    const int columns = smaller(s.Bc, s.N - j0);
    copy_rows(m.K, j0, m.Kj, columns, s.d);
    if (all) copy_rows(m.V, j0, m.Vj, columns, s.d);
    for (int i0 = 0; i0 < s.N; i0 += s.Br) flash_block(m, s, i0, smaller(s.Br, s.N - i0), columns, all);
  }
}

void part4(const Memory &m, const Shape &s) { flash(m, s, true); }
void scores_flash(const Memory &m, const Shape &s) { flash(m, s, false); }

constexpr cachemodel::Kernel<Memory, Shape> kKernels[] = {
    {"part1", part1},
    {"part2", part2},
    {"part2-rewritten", part2_rewritten},
    {"part3", part3},
    {"part4", part4},
    {"part1-scores", scores_naive},
    {"part2-scores", scores_blocked},
    {"part2-rewritten-scores", scores_rewritten},
    {"part3-scores", scores_fused},
    {"part4-scores", scores_flash},
};

// ---- accesses read from the standard input

bool play_script(Cache &cache, uint64_t lines, int per_line) {
  char kind = 0;
  unsigned long long index = 0;
  while (std::scanf(" %c %llu", &kind, &index) == 2) {
    if (index / static_cast<unsigned>(per_line) >= lines) return false;
    cache.touch(static_cast<Line>(index / static_cast<unsigned>(per_line)), kind == 'w');
  }
  return true;
}

}  // namespace

int main(int count, char **words) {
  if (count != 10) return 2;
  const Shape shape{std::atoi(words[2]), std::atoi(words[3]), std::atoi(words[4]), std::atoi(words[5]),
                    std::atoi(words[6])};
  cachemodel::Layout layout(words + 7);
  if (shape.N < 1 || shape.d < 1 || shape.T < 1 || shape.Br < 1 || shape.Bc < 1 || !layout.sound()) return 2;
  const auto matrix = [&](int rows, int columns) { return layout.matrix(rows, columns); };
  const int N = shape.N, d = shape.d, widest = N > shape.Br ? N : shape.Br;
  const Memory memory{matrix(N, d),        matrix(N, d),        matrix(N, d),        matrix(N, d),
                matrix(N, N),        matrix(1, N),        matrix(shape.Br, d), matrix(shape.Br, d),
                matrix(shape.Br, d), matrix(shape.Bc, d), matrix(shape.Bc, d), matrix(shape.Br, shape.Bc),
                matrix(shape.Br, shape.Bc), matrix(2, widest)};
  return layout.run([&](Cache &cache) {
    if (std::strcmp(words[1], "script") == 0)
      return play_script(cache, layout.lines(), static_cast<int>(layout.per_line()));
    return cachemodel::walked(kKernels, words[1], memory, shape);
  });
}
