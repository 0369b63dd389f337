// Model of one cache. Programs repeat the memory accesses of some loops on it, and count the cache lines that are read
// from memory and written back.
//
// The cache replaces the line that was used longest ago (LRU), fetches a line before it is written to (write-allocate),
// and writes a changed line back when it is replaced. With 0 ways it is fully associative. Otherwise the line's address
// chooses one of capacity / ways sets. A capacity is a number of lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace cachemodel {

using Line = uint32_t;
constexpr Line kNone = ~Line{0};

class Cache {
 public:
  Cache(uint64_t lines_in_memory, uint64_t capacity, uint64_t ways)
      : sets_(ways == 0 ? 1 : capacity / ways), ways_(ways == 0 ? capacity : ways),
        nodes_(lines_in_memory), heads_(sets_, kNone), tails_(sets_, kNone), filled_(sets_, 0) {}

  uint64_t loads = 0, stores = 0, fetched = 0, written = 0;

  void touch(Line line, bool write) {
    (write ? stores : loads)++;
    const size_t set = sets_ == 1 ? 0 : line % sets_;
    Node &node = nodes_[line];
    node.dirty |= write;
    if (heads_[set] == line) return;
    if (node.cached) {
      unlink(line, set);
    } else {
      fetched++;
      node.cached = true;
      if (filled_[set] == ways_) evict(set);
      else filled_[set]++;
    }
    node.newer = kNone;
    node.older = heads_[set];
    if (heads_[set] != kNone) nodes_[heads_[set]].newer = line;
    else tails_[set] = line;
    heads_[set] = line;
  }

  // Returns true if a set has room for two lines: two lines that are used alternately then both stay cached.
  bool keeps_two() const { return ways_ >= 2; }

  void flush() {
    for (Node &node : nodes_) written += node.cached && node.dirty;
  }

 private:
  // State of one line of memory. The cached lines of a set form a list in the order of their last use.
  struct Node {
    Line newer = kNone, older = kNone;
    bool cached = false, dirty = false;
  };

  void unlink(Line line, size_t set) {
    Node &node = nodes_[line];
    nodes_[node.newer].older = node.older;  // `line` is not the head of its list, so a newer line exists.
    if (node.older != kNone) nodes_[node.older].newer = node.newer;
    else tails_[set] = node.newer;
  }

  void evict(size_t set) {
    const Line line = tails_[set];
    Node &node = nodes_[line];
    tails_[set] = node.newer;
    if (node.newer != kNone) nodes_[node.newer].older = kNone;
    else heads_[set] = kNone;
    written += node.dirty;
    node = Node{};
  }

  uint64_t sets_, ways_;
  std::vector<Node> nodes_;
  std::vector<Line> heads_, tails_;
  std::vector<uint64_t> filled_;
};

// A matrix of floats in the modelled memory. It starts at the start of a cache line.
struct Matrix {
  Cache *cache;
  uint64_t first;  // Index of its first float in memory.
  int columns, per_line;
  uint64_t place(int row, int column) const {
    return first + static_cast<uint64_t>(row) * static_cast<uint64_t>(columns) + static_cast<uint64_t>(column);
  }
  Line line(int row, int column) const {
    return static_cast<Line>(place(row, column) / static_cast<uint64_t>(per_line));
  }
  int left_in_line(int row, int column) const {
    return per_line - static_cast<int>(place(row, column) % static_cast<uint64_t>(per_line));
  }
  void read(int row, int column) const { cache->touch(line(row, column), false); }
  void write(int row, int column) const { cache->touch(line(row, column), true); }
};

// Matrices one after the other in memory, without common cache lines, and the cache through which they are accessed.
// `run` makes the cache, after all matrices are known.
class Layout {
 public:
  // `sizes` are three arguments of the program: CACHE_BYTES WAYS LINE_BYTES.
  explicit Layout(char **sizes)
      : bytes_(std::strtoull(sizes[0], nullptr, 10)), ways_(std::strtoull(sizes[1], nullptr, 10)),
        line_(std::strtoull(sizes[2], nullptr, 10)) {}

  bool sound() const {
    return line_ >= 4 && line_ % 4 == 0 && bytes_ >= line_ && (ways_ == 0 || bytes_ >= ways_ * line_);
  }
  uint64_t per_line() const { return line_ / 4; }
  uint64_t lines() const { return floats_ / per_line() + 1; }

  Matrix matrix(int rows, int columns) {
    Matrix made{&cache_, floats_, columns, static_cast<int>(per_line())};
    const uint64_t wanted = static_cast<uint64_t>(rows) * static_cast<uint64_t>(columns);
    floats_ += (wanted + per_line() - 1) / per_line() * per_line();
    return made;
  }

  // Calls `walk(cache)`, which repeats the accesses. Then writes the cache's changed lines back. Prints "loads stores
  // fetched written": numbers of accesses, and of lines fetched and written back. Returns the exit code.
  template <class Walk>
  int run(Walk walk) {
    if (lines() >= kNone) return 2;
    cache_ = Cache(lines(), bytes_ / line_, ways_);
    if (!walk(cache_)) return 2;
    cache_.flush();
    for (const uint64_t count : {cache_.loads, cache_.stores, cache_.fetched, cache_.written})
      std::printf("%llu ", static_cast<unsigned long long>(count));
    return 0;
  }

 private:
  uint64_t bytes_, ways_, line_, floats_ = 0;
  Cache cache_{0, 1, 1};
};

// A kernel's name, and the function that repeats the kernel's memory accesses on the given matrices and sizes.
template <class... Memory>
struct Kernel {
  const char *name;
  void (*walk)(const Memory &...);
};

// Runs the walk of the kernel with this name. Returns false if there is no such kernel.
template <std::size_t count, class... Memory>
bool walked(const Kernel<Memory...> (&kernels)[count], const char *name, const Memory &...memory) {
  for (const auto &kernel : kernels)
    if (std::strcmp(name, kernel.name) == 0) return kernel.walk(memory...), true;
  return false;
}

}  // namespace cachemodel
