// Traffic of the softmax of each row of a matrix: walks the memory accesses of a kernel, element by element in the order
// in which its loops make them, through a cache of a given size.
//
//   program KERNEL R C CACHE_BYTES WAYS LINE_BYTES
//
// prints "loads stores fetched written": accesses to tensors, and lines between the cache (cachemodel.h) and memory. What
// is left in the cache at the end is written back, too. Numbers that the compiler keeps in a register (loop counters, a
// running maximum or sum) are no accesses.
#include <cstdint>
#include <cstdlib>

#include "cachemodel.h"

namespace {

using cachemodel::Matrix;

// X and O (R, C); what a framework keeps between its kernels: vectors of R, matrices (R, C).
struct Memory {
  Matrix X, O, maxima, shifted, powers, sums;
  int R, C;
};

// One pass over row i of X.
void read_row(const Memory &m, int i) {
  for (int j = 0; j < m.C; j++) m.X.read(i, j);
}

// One pass that makes row i of O out of that of X.
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

// The sum; the quotients.
void naive(const Memory &m) { passes(m, 1); }
// The maximum; the sum; the quotients.
void safe(const Memory &m) { passes(m, 2); }
// Maximum and sum together; the quotients.
void online(const Memory &m) { passes(m, 1); }
// The row is kept on the chip from when it is read to when its quotients are written.
void fused(const Memory &m) { passes(m, 0); }

// One kernel for each operation, each of which goes over the whole matrix.
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
