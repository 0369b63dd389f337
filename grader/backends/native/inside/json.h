// Reads the headers of requests, and writes the headers of replies, as JSON. Requests come from the judge. If one is
// not in the format of json.dumps, the kit has an error, and the process ends.
#ifndef GPT149_INSIDE_JSON_H
#define GPT149_INSIDE_JSON_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace gpt149_inside {

struct Member;

// One JSON value. `number` is also set for booleans and integers.
struct Json {
  enum Kind { kNull, kNumber, kText, kList, kObject } kind = kNull;
  double number = 0;
  int64_t whole = 0;
  std::string text;
  std::vector<Json> items;
  std::vector<Member> members;

  const Json *find(const char *name) const;
  bool is_true(const char *name) const {
    const Json *found = find(name);
    return found != nullptr && found->kind == kNumber && found->number != 0;
  }
  std::vector<int64_t> whole_numbers() const {
    std::vector<int64_t> found;
    for (auto &item : items) found.push_back(item.whole);
    return found;
  }
};

// One member of an object. std::pair cannot be used, since Json is still incomplete where its members are declared.
struct Member {
  std::string name;
  Json value;
};

inline const Json *Json::find(const char *name) const {
  for (auto &member : members)
    if (member.name == name) return &member.value;
  return nullptr;
}

class Reader {
 public:
  explicit Reader(const std::string &text) : at_(text.c_str()) {}
  Json value() {
    Json made;
    switch (next()) {
      case '{':
        made.kind = Json::kObject;
        series('}', [&] {
          std::string name = string();
          take(':');
          made.members.push_back({std::move(name), value()});
        });
        return made;
      case '[':
        made.kind = Json::kList;
        series(']', [&] { made.items.push_back(value()); });
        return made;
      case '"':
        made.kind = Json::kText;
        made.text = string();
        return made;
      case 'n': return word("null"), made;
      case 't': return word("true"), number(1);
      case 'f': return word("false"), number(0);
      case 'N': return word("NaN"), number(NAN);
      case 'I': return word("Infinity"), number(INFINITY);
      default: return number();
    }
  }

 private:
  [[noreturn]] static void fail() {
    std::fprintf(stderr, "the runner got a request that it cannot read\n");
    std::abort();
  }
  char next() {
    while (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r') at_++;
    return *at_;
  }
  void take(char wanted) {
    if (next() != wanted) fail();
    at_++;
  }
  void word(const char *wanted) {
    const size_t length = std::strlen(wanted);
    if (std::strncmp(at_, wanted, length) != 0) fail();
    at_ += length;
  }
  template <class Action>
  void series(char last, Action action) {
    at_++;
    if (next() != last) {
      action();
      while (next() == ',') {
        at_++;
        action();
      }
    }
    take(last);
  }
  static Json number(double value) {
    Json made;
    made.kind = Json::kNumber;
    made.number = value;
    made.whole = std::fabs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
    return made;
  }
  Json number() {
    if (at_[0] == '-' && at_[1] == 'I') return at_++, word("Infinity"), number(-INFINITY);
    char *end = nullptr;
    Json made = number(std::strtod(at_, &end));
    if (end == at_) fail();
    // A double cannot represent all integers beyond 2^53.
    if (std::string(at_, static_cast<size_t>(end - at_)).find_first_of(".eE") == std::string::npos) made.whole = std::strtoll(at_, nullptr, 10);
    at_ = end;
    return made;
  }
  unsigned unit() {
    unsigned value = 0;
    if (std::sscanf(at_, "%4x", &value) != 1) fail();
    at_ += 4;
    return value;
  }
  std::string string() {
    take('"');
    std::string made;
    for (; *at_ != '"'; at_++) {
      if (*at_ == '\0') fail();
      if (*at_ != '\\') {
        made += *at_;
        continue;
      }
      at_++;
      static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
      if (const char *letter = *at_ == '\0' ? nullptr : std::strchr(letters, *at_)) {
        made += meant[letter - letters];
      } else if (*at_ == 'u') {
        at_++;
        unsigned code = unit();
        if (code >= 0xd800 && code < 0xdc00 && at_[0] == '\\' && at_[1] == 'u') {
          at_ += 2;
          code = 0x10000 + ((code - 0xd800) << 10) + (unit() - 0xdc00);
        }
        append(made, code);
        at_--;
      } else {
        made += *at_;
      }
    }
    at_++;
    return made;
  }
  static void append(std::string &text, unsigned code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    text += static_cast<char>((0xf00 >> more & 0xf0) | code >> 6 * more);
    for (int k = more - 1; k >= 0; k--) text += static_cast<char>(0x80 | (code >> 6 * k & 0x3f));
  }

  const char *at_;
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
