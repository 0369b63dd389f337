// A runner without Python and torch: the student's object (or the reference) and this main are linked into one program.
// It serves calls over a pipe until the pipe closes. docs/protocol.md describes the messages. The program is untrusted:
// the judge uses only the bytes of its outputs.
//
// Static initialisers of the student's object run before main. The locks apply to them, too, because launch.cpp locks
// the process before this program starts. The kit's code has its own namespaces, because it is linked with the
// student's code.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "plain/plain_aligned.h"
#include "delays.h"
#include "machine_files.h"
#include "messages.h"
#include "pipes.h"
#include "gpt149_c_abi.h"

namespace gpt149_inside {

using namespace gpt149;

// Thrown if a function of the student throws, or if a request does not fit the function.
struct Failed {
  std::string message;
};

// ---- memory

size_t width_of(int64_t dtype) { return dtype == 6 || dtype == 3 ? 4 : dtype == 4 || dtype == 7 ? 8 : 0; }

int32_t number_of(const std::string &dtype) {
  return dtype == "float64" ? 7 : dtype == "int64" ? 4 : dtype == "int32" ? 3 : 6;
}

// Makes the C library keep freed memory for the next call. In a process with torch, the C library begins to do so by
// itself after a few calls. Without this function, each call of the attention lab's part 1 returns 2,000 pages to the
// system and fetches them again (measured). Blocks of 32 MiB and more are returned each time, with torch as well.
void keep_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

// A tensor's memory. It begins on a cache line, like the memory of torch's tensors. It is exactly as long as requested,
// so that a sanitizer notices accesses beyond its end.
class Array {
 public:
  Array(std::vector<int64_t> shape, int32_t dtype) : shape_(std::move(shape)), dtype_(dtype) {
    for (int64_t size : shape_) elements_ *= size;
    if (bytes() > 0) data_ = aligned(bytes(), &base_);
  }
  Array(const Array &) = delete;
  Array &operator=(const Array &) = delete;
  ~Array() { std::free(base_); }
  void clear() {
    if (bytes() > 0) std::memset(data_, 0, bytes());
  }
  size_t bytes() const { return static_cast<size_t>(elements_) * width_of(dtype_); }
  iovec part() const { return {data_, bytes()}; }
  template <class T>
  T *of() const { return static_cast<T *>(data_); }
  Gpt149Tensor tensor() const { return {data_, static_cast<int64_t>(shape_.size()), shape_.data(), dtype_}; }
  Gpt149Vector vector() const { return {static_cast<float *>(data_), elements_}; }
  const std::vector<int64_t> &shape() const { return shape_; }
  int64_t elements() const { return elements_; }

 private:
  std::vector<int64_t> shape_;
  int32_t dtype_;
  int64_t elements_ = 1;
  void *data_ = nullptr, *base_ = nullptr;
};

using Arrays = std::vector<std::shared_ptr<Array>>;

std::vector<iovec> parts_of(const Arrays &arrays) {
  std::vector<iovec> parts;
  for (auto &array : arrays) parts.push_back(array->part());
  return parts;
}

// ---- calls

// One argument of a call. `cell()` returns the pointer that the function gets for it.
struct Argument {
  std::shared_ptr<Array> array;
  bool is_workspace = false;
  int column = -1;
  char code = '?';
  int64_t whole = 0;
  double real = 0;
  Gpt149Tensor tensor = {};
  Gpt149Vector vector = {};

  void set(double value) {
    real = value;
    whole = std::fabs(value) < 9e18 ? static_cast<int64_t>(value) : 0;
  }
  void *cell() {
    if (code == 'T') return &tensor;
    if (code == 'V' || code == 'W') return &vector;
    if (code == 'f' || code == 'd') return &real;
    return &whole;
  }
};

// One function with its arguments. It can be called repeatedly, each time with the numbers of another row of a table.
class Invocation {
 public:
  Invocation(const Request &request, const Arrays &inputs) {
    const std::string name = request.word("function");
    while (index_ < gpt149_count() && name != gpt149_name(index_)) index_++;
    if (index_ == gpt149_count()) throw Failed{"there is no function " + name};
    const char *signature = gpt149_signature(index_);
    const std::string codes(std::strchr(signature, '(') + 1, std::strchr(signature, ')'));
    writes_output_ = signature[0] == 'O';
    output_shape_ = sizes(request.words("output_shape"), 0);
    const auto items = request.all("argument");
    if (codes.size() != items.size())
      throw Failed{name + " takes " + std::to_string(codes.size()) + " arguments, not " + std::to_string(items.size())};
    for (size_t k = 0; k < items.size(); k++) arguments_.push_back(argument(items[k], codes[k], inputs));
    for (auto &each : arguments_) cells_.push_back(each.cell());
    if (writes_output_) cells_.push_back(&output_);
  }
  Invocation(const Invocation &) = delete;
  Invocation &operator=(const Invocation &) = delete;

  const Gpt149Result &call() {
    if (writes_output_) {
      written_ = std::make_unique<Array>(output_shape_, 6);
      written_->clear();
      output_ = written_->tensor();
    }
    if (gpt149_call(index_, cells_.data(), &result_) != 0) throw Failed{result_.error};
    if (writes_output_) {
      result_.kind = kTensor;
      result_.dtype = output_.dtype;
      result_.data = output_.data;
      result_.ndim = output_.ndim;
      for (size_t k = 0; k < output_shape_.size() && k < 8; k++) result_.sizes[k] = output_shape_[k];
    }
    return result_;
  }
  void release() {
    if (!writes_output_) gpt149_release(&result_);
    written_.reset();
  }
  void set_columns(const double *row) {
    for (auto &each : arguments_)
      if (each.column >= 0) each.set(row[each.column]);
  }
  void clear_workspace() {
    for (auto &each : arguments_)
      if (each.is_workspace) each.array->clear();
  }

 private:
  // Converts an argument of the request: "input K", "zeros SIZE ...", "column K" or "value X".
  static Argument argument(const Words &item, char code, const Arrays &inputs) {
    Argument made;
    made.code = code;
    const std::string &kind = item.at(0);
    if (kind == "input") {
      made.array = inputs.at(static_cast<size_t>(whole(item.at(1))));
    } else if (kind == "zeros") {
      made.array = std::make_shared<Array>(sizes(item, 1), 6);
      made.array->clear();
      made.is_workspace = true;
    } else if (kind == "column") {
      made.column = static_cast<int>(whole(item.at(1)));
    } else {
      made.set(std::strtod(item.at(1).c_str(), nullptr));
      // Parse a whole number as such: a double cannot represent all integers beyond 2^53.
      if (item[1].find_first_not_of("-0123456789") == std::string::npos) made.whole = whole(item[1]);
    }
    const bool takes_array = code == 'T' || code == 'V' || code == 'W';
    if (code != '?' && takes_array != (made.array != nullptr))
      throw Failed{std::string("a parameter of type ") + code + (takes_array ? " is given a number" : " is given a tensor")};
    if (made.array != nullptr) {
      made.tensor = made.array->tensor();
      made.vector = made.array->vector();
    }
    return made;
  }

  int32_t index_ = 0;
  bool writes_output_ = false;
  std::vector<int64_t> output_shape_;
  std::vector<Argument> arguments_;
  std::vector<void *> cells_;
  std::unique_ptr<Array> written_;
  Gpt149Tensor output_ = {};
  Gpt149Result result_ = {};
};

// ---- replies

std::string answered(int64_t kind, int64_t dtype, const std::vector<int64_t> &shape, const std::string &more = "") {
  return "{\"status\": \"ok\", \"kind\": " + std::to_string(kind) + ", \"dtype\": " + std::to_string(dtype) +
         ", \"shape\": " + written(shape) + more + "}";
}

// Returns the reply's header for a result, and sets `payload` to the result's bytes. If there are more than `most`
// bytes, `payload` is empty.
std::string described(const Gpt149Result &result, uint64_t most, iovec *payload) {
  const int64_t dimensions = result.ndim < 0 ? 0 : result.ndim > 8 ? 8 : result.ndim;
  std::vector<int64_t> shape(result.sizes, result.sizes + dimensions);
  *payload = {nullptr, 0};
  if (result.kind == kVector) shape = {result.sizes[0]};
  if (result.kind == kVector || result.kind == kTensor) {
    uint64_t bytes = result.kind == kVector ? 4 : width_of(result.dtype);
    for (int64_t size : shape) bytes *= static_cast<uint64_t>(size);
    *payload = {result.data, bytes};
  }
  std::string more = ", \"number\": " + written(result.number);
  if (payload->iov_len > most) {
    more += ", \"withheld\": true";
    *payload = {nullptr, 0};
  }
  return answered(result.kind, result.dtype, shape, more);
}

// ---- serving requests

class Served {
 public:
  void greet() {
    std::string functions;
    for (int32_t k = 0; k < gpt149_count(); k++)
      functions += (k > 0 ? ", [" : "[") + quoted(gpt149_name(k)) + ", " + quoted(gpt149_signature(k)) + "]";
    reply("{\"status\": \"loaded\", \"functions\": [" + functions + "]}", {}, false);
  }

  void serve() {
    char frame[kFrame];
    while (read_frame(frame)) {
      uint32_t length = 0;
      uint64_t payload = 0;
      std::memcpy(&length, frame, 4);
      std::memcpy(&payload, frame + 4, 8);
      in_memory_ = (payload & kInMemory) != 0;
      echoes_ = (payload & kEchoes) != 0;
      Delays::plan((payload & kDelays) != 0);
      const bool asks_for_inputs = (payload & kInputs) != 0;
      wipe(frame, sizeof frame);
      wipe(&payload, sizeof payload);
      // Send the last call's inputs as they are now. The request comes after the call's reply, so that no kernel can
      // know in advance if its inputs will be checked.
      if (asks_for_inputs) {
        reply(answered(kVoid, 0, {}), parts_of(last_), in_memory_);
        continue;
      }
      last_.clear();
      std::string text(length, '\0');
      if (!read_exactly({{&text[0], length}})) return;
      try {
        // A request without a header repeats the last call (whose request had "keep") with new inputs.
        if (length == 0) {
          call_again();
        } else {
          const Request request(text);
          keep_ = nullptr;
          auto inputs = read_inputs(request.all("input"));
          const std::string op = request.word("op");
          if (op == "table") table(request, std::move(inputs));
          else if (op == "reserve") reserve(static_cast<size_t>(whole(request.word("reserved_bytes"))));
          else call(request, std::move(inputs));
        }
      } catch (const Failed &failure) {
        reply("{\"status\": \"exception\", \"message\": " + quoted(failure.message.c_str()) + "}", {}, in_memory_);
      }
      // Write the student's printed text: it would be lost if the runner is killed in the next call.
      std::fflush(nullptr);
    }
  }

 private:
  struct Call {
    Arrays inputs;
    std::unique_ptr<Invocation> invocation;
    uint64_t most_bytes;
  };

  // Allocates the inputs and fills them from the payload. Each of `specs` is "DTYPE SIZE ...".
  Arrays read_inputs(const std::vector<Words> &specs) {
    Arrays inputs;
    for (auto &spec : specs) inputs.push_back(std::make_shared<Array>(sizes(spec, 1), number_of(spec.at(0))));
    if (!read_payload(parts_of(inputs), in_memory_)) _exit(0);
    return inputs;
  }

  void call(const Request &request, Arrays inputs) {
    auto made = std::make_unique<Call>();
    made->inputs = std::move(inputs);
    made->invocation = std::make_unique<Invocation>(request, made->inputs);
    made->most_bytes = static_cast<uint64_t>(whole(request.word("max_output_bytes")));
    Call &kept = *made;
    // Reply without a call: labs/attention/studies/cache.py subtracts the cache misses of the request itself.
    if (request.word("without_the_call") == "1") return reply(answered(kVoid, 0, {}), {}, in_memory_);
    if (request.word("keep") == "1") keep_ = std::move(made);
    answer(kept);
  }

  void call_again() {
    if (keep_ == nullptr) throw Failed{"there is no call to repeat"};
    if (!read_payload(parts_of(keep_->inputs), in_memory_)) _exit(0);
    keep_->invocation->clear_workspace();
    answer(*keep_);
  }

  void answer(Call &call) {
    const Gpt149Result *result = nullptr;
    {
      Delays delays;
      result = &call.invocation->call();
    }
    iovec output;
    const std::string header = described(*result, call.most_bytes, &output);
    std::vector<iovec> payload = {output};
    if (echoes_)
      for (auto &part : parts_of(call.inputs)) payload.push_back(part);
    last_ = call.inputs;
    reply(header, payload, in_memory_);
    call.invocation->release();
  }

  // Calls a function once for each row of the last input, a float64 table whose columns are scalar arguments. All calls
  // share one vector argument, so a call may read what earlier calls wrote. The reply has the numbers that the calls
  // returned, then the vector.
  void table(const Request &request, Arrays inputs) {
    const std::shared_ptr<Array> rows = inputs.back();
    inputs.pop_back();
    Invocation invocation(request, inputs);
    const int64_t count = rows->shape().at(0), columns = count > 0 ? rows->elements() / count : 0;
    Array numbers({count}, 7);
    for (int64_t r = 0; r < count; r++) {
      invocation.set_columns(rows->of<double>() + r * columns);
      numbers.of<double>()[r] = invocation.call().number;
      invocation.release();
    }
    std::vector<iovec> payload = {numbers.part()};
    for (auto &part : parts_of(inputs)) payload.push_back(part);
    reply(answered(kNumber, 7, {count}), payload, in_memory_);
  }

  // Allocates memory, writes to it and frees it, so that the next call gets pages that have been written before. It
  // uses small pieces, because the C library would return a large piece to the system.
  void reserve(size_t bytes) {
    constexpr size_t kPiece = 8 << 20;
    std::vector<void *> pieces;
    for (size_t from = 0; from < bytes; from += kPiece) {
      void *piece = std::malloc(kPiece);
      if (piece == nullptr) break;
      pieces.push_back(std::memset(piece, 1, kPiece));
    }
    for (void *piece : pieces) std::free(piece);
    reply(answered(kVoid, 0, {}), {}, in_memory_);
  }

  std::unique_ptr<Call> keep_;
  Arrays last_;
  bool in_memory_ = false, echoes_ = false;
};

}  // namespace gpt149_inside

// If a student's file has a main, it is not called: the linker (--wrap) makes the program start with this one.
#if defined(__APPLE__)
int main() {
#else
extern "C" int __wrap_main() {
#endif
  gpt149_inside::keep_memory();
  gpt149_inside::Served served;
  served.greet();
  served.serve();
  // End without the destructors of the student's static objects.
  _exit(0);
}
