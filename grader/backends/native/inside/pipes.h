// Messages over the judge's two pipes, as in grader/runner/runner.py: header length (u32) and payload length (u64),
// both little-endian, then a header (messages.h) and the payload. The judge may instead put a request's payload into
// memory that is shared with the runner. Then the reply's payload goes there, too (grader/runner/frames.py).
#ifndef GPT149_INSIDE_PIPES_H
#define GPT149_INSIDE_PIPES_H

#include <climits>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "raw.h"

namespace gpt149_inside {

constexpr int kRequests = 3, kReplies = 4, kPayloads = 5;
constexpr size_t kFrame = 12;
// Options of the judge for a call, as high bits of the payload length in the frame. They are not in the header, because
// the header's text stays in memory, where a kernel could find it.
constexpr uint64_t kInMemory = uint64_t{1} << 63, kEchoes = uint64_t{1} << 62, kDelays = uint64_t{1} << 61,
                   kInputs = uint64_t{1} << 60;

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
    if (count == 0 || (count < 0 && count != -EINTR)) return false;
    if (count > 0) drop(parts, static_cast<size_t>(count));
  }
  return true;
}

// Fills all parts from the request pipe. Returns false if the judge closed the pipe before all parts were full.
inline bool read_exactly(std::vector<iovec> parts) {
  return move_all(std::move(parts), [](iovec *first, int count) { return read_some(kRequests, first, count); });
}

// Reads the 12 bytes before a message (the frame). The frame must be wiped before any code of the student runs. So this
// function allocates no memory: a student's file may define `operator new`.
inline bool read_frame(char *frame) {
  for (size_t done = 0; done < kFrame;) {
    const iovec rest = {frame + done, kFrame - done};
    const ssize_t count = read_some(kRequests, &rest, 1);
    if (count == 0 || (count < 0 && count != -EINTR)) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

// Moves all parts, one after the other, to or from the shared memory, from its beginning on. `move` is write_at or
// read_at.
template <class Move>
bool move_in_memory(const std::vector<iovec> &parts, Move move) {
  off_t at = 0;
  for (auto &part : parts) {
    auto *data = static_cast<char *>(part.iov_base);
    for (size_t done = 0; done < part.iov_len;) {
      const ssize_t count = move(kPayloads, data + done, part.iov_len - done, at);
      if (count == 0 || (count < 0 && count != -EINTR)) return false;
      if (count < 0) continue;
      done += static_cast<size_t>(count);
      at += count;
    }
  }
  return true;
}

inline bool read_payload(const std::vector<iovec> &parts, bool in_memory) {
  return in_memory ? move_in_memory(parts, read_at) : read_exactly(parts);
}

// Sends a reply by a single write if possible, because each write wakes up the judge.
inline void reply(const std::string &header, const std::vector<iovec> &payload, bool in_memory) {
  uint64_t bytes = 0;
  for (auto &part : payload) bytes += part.iov_len;
  const auto length = static_cast<uint32_t>(header.size());
  char frame[kFrame];
  std::memcpy(frame, &length, 4);
  std::memcpy(frame + 4, &bytes, 8);
  std::vector<iovec> parts = {{frame, kFrame}, {const_cast<char *>(header.data()), header.size()}};
  if (!in_memory) parts.insert(parts.end(), payload.begin(), payload.end());
  else if (!move_in_memory(payload, write_at)) _exit(0);
  if (!move_all(std::move(parts), [](iovec *first, int count) { return write_some(kReplies, first, count); })) _exit(0);
}

}  // namespace gpt149_inside

#endif
