// Counts the memory traffic of softmax kernels. The accesses of a kernel's loops, element by element and in order, go
// through a simulated cache of a given size.
//
//   program KERNEL R C CACHE_BYTES WAYS LINE_BYTES
//
// prints "loads stores fetched written": accesses to tensors, and lines that the cache (cachemodel.h) reads from memory
// and writes to it. At the end, changed lines in the cache are written back. Numbers that the compiler keeps in a
// register (loop counters, a running maximum or sum) cause no accesses.
#include <cstdint>
#include <cstdlib>

#include "cachemodel.h"

namespace {

using cachemodel::Matrix;

// X and O (R, C), and the intermediate results of `framework`: vectors (R) and matrices (R, C).
struct Memory {
  Matrix X, O, maxima, shifted, powers, sums;
  int R, C;
};

// One pass over row i of X.
void read_row(const Memory &m, int i) {
  for (int j = 0; j < m.C; j++) m.X.read(i, j);
}

// One pass that computes row i of O from row i of X.
void write_row(const Memory &m, int i) {
  for (int j = 0; j < m.C; j++) {
    m.X.read(i, j);
    m.O.write(i, j);
  }
}

void passes(const Memory &m, int before) {
  for (int i = 0; i < m.R; i++) {
    for (int pass = 0; pass < before; pass++) read_row(m, i);
    write_row(m, i);
  }
}

// Two passes: the first computes the sum, the second the quotients.
void naive(const Memory &m) { passes(m, 1); }
// Three passes, which compute the maximum, the sum and the quotients.
void safe(const Memory &m) { passes(m, 2); }
// Two passes: the first computes maximum and sum, the second the quotients.
void online(const Memory &m) { passes(m, 1); }
// One pass: the row stays on the chip, in registers, from its load to the store of its quotients.
void fused(const Memory &m) { passes(m, 0); }

// One kernel for each operation; each kernel passes over the whole matrix.
void framework(const Memory &m) {
  for (int i = 0; i < m.R; i++) {
    read_row(m, i);
    m.maxima.write(0, i);
  }
  for (int i = 0; i < m.R; i++) {
    m.maxima.read(0, i);
    for (int j = 0; j < m.C; j++) {
      m.X.read(i, j);
      m.shifted.write(i, j);
    }
  }
  for (int i = 0; i < m.R; i++)
    for (int j = 0; j < m.C; j++) {
      m.shifted.read(i, j);
      m.powers.write(i, j);
    }
  for (int i = 0; i < m.R; i++) {
    for (int j = 0; j < m.C; j++) m.powers.read(i, j);
    m.sums.write(0, i);
  }
  for (int i = 0; i < m.R; i++) {
    m.sums.read(0, i);
    for (int j = 0; j < m.C; j++) {
      m.powers.read(i, j);
      m.O.write(i, j);
    }
  }
}

constexpr cachemodel::Kernel<Memory> kKernels[] = {
    {"framework", framework}, {"naive", naive}, {"safe", safe}, {"online", online}, {"fused", fused},
};

}  // namespace

int main(int count, char **words) {
  if (count != 7) return 2;
  const int R = std::atoi(words[2]), C = std::atoi(words[3]);
  cachemodel::Layout layout(words + 4);
  if (R < 1 || C < 1 || !layout.sound()) return 2;
  const auto matrix = [&](int rows, int columns) { return layout.matrix(rows, columns); };
  const Memory memory{matrix(R, C), matrix(R, C), matrix(1, R), matrix(R, C), matrix(R, C), matrix(1, R), R, C};
  return layout.run([&](cachemodel::Cache &) { return cachemodel::walked(kKernels, words[1], memory); });
}
