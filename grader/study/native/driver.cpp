// Calls one function of a student's file, which is linked into the same program, on inputs from a file.
//
//   program PLAN INPUTS OUTPUT
//
// PLAN is text: a line with the function's name, one with the number of calls (0: only get everything ready), then one
// for each argument: "tensor ndim size..." (the next floats of INPUTS), "zeros ndim size..." or "number value". OUTPUT
// gets the floats that the last call returned. Exit codes: 2 a plan that cannot be read, 3 no such function or other
// parameters, 4 the function threw.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
struct Gpt149Tensor {
  void *data;
  int64_t ndim;
  const int64_t *sizes;
  int32_t dtype;
};
struct Gpt149Result {
  int32_t kind, dtype;
  double number;
  void *data;
  int64_t ndim;
  int64_t sizes[8];
  void *owner;
  char error[1024];
};
int32_t gpt149_count(void);
const char *gpt149_name(int32_t);
const char *gpt149_signature(int32_t);
int32_t gpt149_call(int32_t, void *const *, Gpt149Result *);
void gpt149_release(Gpt149Result *);
}

namespace {

constexpr int kMostArguments = 64, kFloat = 6, kTensor = 2;

struct Argument {
  Gpt149Tensor tensor;
  int64_t sizes[8];
  int64_t number;
};

[[noreturn]] void fail(int code, const char *what) {
  std::fprintf(stderr, "driver: %s\n", what);
  std::exit(code);
}

bool read_tensor(std::FILE *plan, std::FILE *inputs, Argument *argument) {
  long long ndim = 0, size = 0;
  if (std::fscanf(plan, "%lld", &ndim) != 1 || ndim < 1 || ndim > 8) return false;
  size_t count = 1;
  for (int k = 0; k < ndim; k++) {
    if (std::fscanf(plan, "%lld", &size) != 1 || size < 0) return false;
    argument->sizes[k] = size;
    count *= static_cast<size_t>(size);
  }
  // From a cache line on, and no longer than asked: a sanitizer then sees what lies beyond.
  void *data = nullptr;
  if (posix_memalign(&data, 64, count > 0 ? count * sizeof(float) : 1) != 0) return false;
  std::memset(data, 0, count * sizeof(float));
  if (inputs != nullptr && std::fread(data, sizeof(float), count, inputs) != count) return false;
  argument->tensor = {data, ndim, argument->sizes, kFloat};
  return true;
}

int find(const char *name) {
  for (int32_t k = 0; k < gpt149_count(); k++)
    if (std::strcmp(gpt149_name(k), name) == 0) return k;
  fail(3, "the function is not bound in PYBIND11_MODULE");
}

}  // namespace

int main(int count, char **words) {
  if (count != 4) fail(2, "usage: PLAN INPUTS OUTPUT");
  std::FILE *plan = std::fopen(words[1], "r"), *inputs = std::fopen(words[2], "rb");
  static char name[256], kind[16];
  int calls = 0;
  if (plan == nullptr || inputs == nullptr || std::fscanf(plan, "%255s %d", name, &calls) != 2) fail(2, "no plan");
  static Argument arguments[kMostArguments];
  static void *cells[kMostArguments];
  static char codes[kMostArguments + 1];
  int given = 0;
  for (; given < kMostArguments && std::fscanf(plan, "%15s", kind) == 1; given++) {
    Argument &argument = arguments[given];
    long long number = 0;
    bool is_number = std::strcmp(kind, "number") == 0, is_zeros = std::strcmp(kind, "zeros") == 0;
    if (is_number ? std::fscanf(plan, "%lld", &number) != 1 : !read_tensor(plan, is_zeros ? nullptr : inputs, &argument))
      fail(2, "an argument that cannot be read");
    argument.number = number;
    cells[given] = is_number ? static_cast<void *>(&argument.number) : &argument.tensor;
    codes[given] = is_number ? 'i' : 'T';
  }
  const int function = find(name);
  const char *wanted = std::strchr(gpt149_signature(function), '(') + 1;
  for (int k = 0; k <= given; k++) {
    bool fits = k == given ? wanted[k] == ')' : wanted[k] == codes[k] || (codes[k] == 'i' && wanted[k] == 'l');
    if (!fits) fail(3, "the function takes other parameters");
  }
  static Gpt149Result result;
  for (int call = 0; call < calls; call++) {
    if (call > 0) gpt149_release(&result);
    if (gpt149_call(function, cells, &result) != 0) fail(4, result.error);
  }
  std::FILE *output = std::fopen(words[3], "wb");
  if (output == nullptr) fail(2, "no place for the output");
  if (calls > 0 && result.kind == kTensor && result.dtype == kFloat) {
    size_t floats = 1;
    for (int64_t k = 0; k < result.ndim; k++) floats *= static_cast<size_t>(result.sizes[k]);
    std::fwrite(result.data, sizeof(float), floats, output);
  }
  return std::fclose(output) == 0 ? 0 : 2;
}
