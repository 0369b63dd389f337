// Model of one cache. A program repeats a loop's memory accesses on the model and counts the cache lines that are read
// from memory and written back.
//
// The cache replaces the line that was used longest ago (LRU), fetches a line before it is written to (write-allocate),
// and writes a changed line back to memory when it is replaced (write-back). With 0 ways it is fully associative.
// Otherwise the line's address chooses one of capacity / ways sets. The capacity is a number of lines.
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

  // Returns true if a set has room for two lines. Then two lines that are used alternately never evict each other.
  bool keeps_two() const { return ways_ >= 2; }

  void flush() {
    for (Node &node : nodes_) written += node.cached && node.dirty;
  }

 private:
  // State of one line of memory. The cached lines of a set form a doubly linked list, the last used line first.
  struct Node {
    Line newer = kNone, older = kNone;
    bool cached = false, dirty = false;
  };

  void unlink(Line line, size_t set) {
    Node &node = nodes_[line];
    nodes_[node.newer].older = node.older;  // `line` is not the head of the list, so `node.newer` exists.
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

// A matrix of floats, stored by rows, in the modelled memory. Its first element is at the start of a cache line.
struct Matrix {
  Cache *cache;
  uint64_t first;  // Index of the matrix's first float, counted from the start of the modelled memory.
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

// The modelled memory: matrices one after the other, each in cache lines of its own. `matrix` adds a matrix. `run`
// makes the cache, whose tables need the size of the memory, so add all matrices before.
class Layout {
 public:
  // `sizes` are three of the program's arguments as text: CACHE_BYTES WAYS LINE_BYTES.
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

  // Calls `walk(cache)`, which repeats a kernel's accesses and returns false on failure. Then counts the changed lines
  // that are still in the cache as written back. Prints four numbers: loads, stores, lines fetched, lines written back.
  // Returns the program's exit code, 2 on failure.
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

// A kernel's name, and a function that repeats the kernel's memory accesses. Its arguments are matrices and sizes.
template <class... Memory>
struct Kernel {
  const char *name;
  void (*walk)(const Memory &...);
};

// Calls the function `walk` of the kernel called `name`. Returns false if no kernel has this name.
template <std::size_t count, class... Memory>
bool walked(const Kernel<Memory...> (&kernels)[count], const char *name, const Memory &...memory) {
  for (const auto &kernel : kernels)
    if (std::strcmp(name, kernel.name) == 0) return kernel.walk(memory...), true;
  return false;
}

}  // namespace cachemodel
