// Reads the headers of requests, which are lines NAME=VALUE (grader/runner/calls.py), and writes the headers of replies
// as JSON. Requests come from the judge.
#ifndef GPT149_INSIDE_MESSAGES_H
#define GPT149_INSIDE_MESSAGES_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpt149_inside {

using Words = std::vector<std::string>;

inline Words split(const std::string &text, char at) {
  Words words;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find(at, from), text.size());
    words.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return words;
}

inline int64_t whole(const std::string &word) { return std::strtoll(word.c_str(), nullptr, 10); }

// Converts the words from index `first` on to whole numbers.
inline std::vector<int64_t> sizes(const Words &words, size_t first) {
  std::vector<int64_t> found;
  for (size_t k = first; k < words.size(); k++) found.push_back(whole(words[k]));
  return found;
}

class Request {
 public:
  explicit Request(const std::string &text) : lines_(split(text, '\n')) {}
  // Returns the values of all lines NAME=VALUE with this name, split into words. A name may occur several times: each
  // input and each argument has its own line.
  std::vector<Words> all(const std::string &name) const {
    std::vector<Words> found;
    for (auto &line : lines_)
      if (line.compare(0, name.size() + 1, name + "=") == 0) found.push_back(split(line.substr(name.size() + 1), ' '));
    return found;
  }
  Words words(const std::string &name) const {
    const auto found = all(name);
    return found.empty() ? Words() : found[0];
  }
  std::string word(const std::string &name) const {
    const Words found = words(name);
    return found.empty() ? "" : found[0];
  }

 private:
  Words lines_;
};

// Returns the number of bytes of the UTF-8 character at `at`, and sets `complete` to false if it is invalid. The bytes
// of an invalid character are replaced by one U+FFFD, like errors="replace" in Python.
inline int character(const unsigned char *at, bool *complete) {
  const unsigned first = at[0];
  *complete = first < 0x80;
  if (first < 0xc2 || first > 0xf4) return 1;
  const int length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (int k = 1; k < length; k++)
    if (at[k] < (k == 1 ? low : 0x80) || at[k] > (k == 1 ? high : 0xbf)) return k;
  *complete = true;
  return length;
}

inline std::string quoted(const char *text) {
  std::string made = "\"";
  for (auto *at = reinterpret_cast<const unsigned char *>(text); *at != 0;) {
    bool complete = false;
    const int length = character(at, &complete);
    char escape[8];
    if (!complete) {
      made += "\\ufffd";
    } else if (*at < 0x20 || *at == 0x7f) {
      std::snprintf(escape, sizeof escape, "\\u%04x", *at);
      made += escape;
    } else {
      if (*at == '"' || *at == '\\') made += '\\';
      made.append(reinterpret_cast<const char *>(at), static_cast<size_t>(length));
    }
    at += length;
  }
  return made + "\"";
}

inline std::string written(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

inline std::string written(const std::vector<int64_t> &values) {
  std::string made = "[";
  for (int64_t value : values) made += (made.size() > 1 ? ", " : "") + std::to_string(value);
  return made + "]";
}

}  // namespace gpt149_inside

#endif
