// Frames over the judge's two pipes: header length (u32) and payload length (u64), little endian, a JSON header, the
// payload. As in grader/run/runner.py.
#ifndef GPT149_INSIDE_PIPES_H
#define GPT149_INSIDE_PIPES_H

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

namespace gpt149_inside {

constexpr int kRequests = 3, kReplies = 4;
constexpr size_t kFrame = 12;

inline void drop(std::vector<iovec> &parts, size_t count) {
  size_t whole = 0;
  while (whole < parts.size() && count >= parts[whole].iov_len) count -= parts[whole++].iov_len;
  parts.erase(parts.begin(), parts.begin() + static_cast<long>(whole));
  if (count > 0) {
    parts[0].iov_base = static_cast<char *>(parts[0].iov_base) + count;
    parts[0].iov_len -= count;
  }
}

template <class Move>
bool move_all(std::vector<iovec> parts, Move move) {
  drop(parts, 0);
  while (!parts.empty()) {
    const ssize_t count = move(parts.data(), static_cast<int>(parts.size() < IOV_MAX ? parts.size() : IOV_MAX));
    if (count == 0 || (count < 0 && errno != EINTR)) return false;
    if (count > 0) drop(parts, static_cast<size_t>(count));
  }
  return true;
}

// False when the judge closed the pipe first.
inline bool read_exactly(std::vector<iovec> parts) {
  return move_all(std::move(parts), [](iovec *first, int count) { return readv(kRequests, first, count); });
}

// At once where the pipe has room: the reader wakes up for each write.
inline void reply(const std::string &header, const std::vector<iovec> &payload) {
  uint64_t bytes = 0;
  for (auto &part : payload) bytes += part.iov_len;
  const auto length = static_cast<uint32_t>(header.size());
  char frame[kFrame];
  std::memcpy(frame, &length, 4);
  std::memcpy(frame + 4, &bytes, 8);
  std::vector<iovec> parts = {{frame, kFrame}, {const_cast<char *>(header.data()), header.size()}};
  parts.insert(parts.end(), payload.begin(), payload.end());
  if (!move_all(std::move(parts), [](iovec *first, int count) { return writev(kReplies, first, count); })) _exit(0);
}

}  // namespace gpt149_inside

#endif
