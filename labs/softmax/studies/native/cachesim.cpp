// Traffic of the softmax of each row of a matrix: walks the memory accesses of a kernel, element by element in the order
// in which its loops make them, through a cache of a given size.
//
//   program KERNEL R C CACHE_BYTES WAYS LINE_BYTES
//
// prints "loads stores fetched written": accesses to tensors, and lines between the cache (cachemodel.h) and memory. What
// is left in the cache at the end is written back, too. Numbers that the compiler keeps in a register (loop counters, a
// running maximum or sum) are no accesses.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cachemodel.h"

namespace {

using cachemodel::Cache;
using cachemodel::Matrix;

uint64_t loads = 0, stores = 0;

void load(const Matrix &matrix, int i, int j) {
  matrix.read(i, j);
  loads++;
}

void store(const Matrix &matrix, int i, int j) {
  matrix.write(i, j);
  stores++;
}

// X and O (R, C); what a framework keeps between its kernels: vectors of R, matrices (R, C).
struct Memory {
  Matrix X, O, maxima, shifted, powers, sums;
  int R, C;
};

// One pass over row i of X.
void read_row(const Memory &m, int i) {
  for (int j = 0; j < m.C; j++) load(m.X, i, j);
}

// One pass that makes row i of O out of that of X.
void write_row(const Memory &m, int i) {
  for (int j = 0; j < m.C; j++) {
    load(m.X, i, j);
    store(m.O, i, j);
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
    store(m.maxima, 0, i);
  }
  for (int i = 0; i < m.R; i++) {
    load(m.maxima, 0, i);
    for (int j = 0; j < m.C; j++) {
      load(m.X, i, j);
      store(m.shifted, i, j);
    }
  }
  for (int i = 0; i < m.R; i++)
    for (int j = 0; j < m.C; j++) {
      load(m.shifted, i, j);
      store(m.powers, i, j);
    }
  for (int i = 0; i < m.R; i++) {
    for (int j = 0; j < m.C; j++) load(m.powers, i, j);
    store(m.sums, 0, i);
  }
  for (int i = 0; i < m.R; i++) {
    load(m.sums, 0, i);
    for (int j = 0; j < m.C; j++) {
      load(m.powers, i, j);
      store(m.O, i, j);
    }
  }
}

struct Kernel {
  const char *name;
  void (*walk)(const Memory &);
};
constexpr Kernel kKernels[] = {
    {"framework", framework}, {"naive", naive}, {"safe", safe}, {"online", online}, {"fused", fused},
};

}  // namespace

int main(int count, char **words) {
  if (count != 7) return 2;
  const int R = std::atoi(words[2]), C = std::atoi(words[3]);
  cachemodel::Layout layout(words + 4);
  if (R < 1 || C < 1 || !layout.sound()) return 2;
  const auto matrix = [&](int rows, int columns) { return layout.matrix(rows, columns); };
  Memory memory{matrix(R, C), matrix(R, C), matrix(1, R), matrix(R, C), matrix(R, C), matrix(1, R), R, C};
  if (layout.lines() >= cachemodel::kNone) return 2;
  Cache cache = layout.cache();
  for (Matrix *one : {&memory.X, &memory.O, &memory.maxima, &memory.shifted, &memory.powers, &memory.sums})
    one->cache = &cache;

  for (const Kernel &kernel : kKernels)
    if (std::strcmp(words[1], kernel.name) == 0) {
      kernel.walk(memory);
      cache.flush();
      std::printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(loads),
                  static_cast<unsigned long long>(stores), static_cast<unsigned long long>(cache.fetched),
                  static_cast<unsigned long long>(cache.written));
      return 0;
    }
  return 2;
}
