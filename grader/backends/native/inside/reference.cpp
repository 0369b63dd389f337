// Offers the reference's kernels (module_ref_stub/dispatch.cpp) to a runner. Their parameters are float pointers for
// tensors, int for numbers, and the output last.
#include <cstddef>
#include <type_traits>
#include <utility>

#include "program.h"

extern "C" {
#define GPT149_FIVE float *, float *, float *, float *, float *
void gpt149_ref_set_threads(int);
void gpt149_ref_naive(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_blocked(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_fused(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_fused_rows(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_flash(const float *, const float *, const float *, GPT149_FIVE, GPT149_FIVE, float *, int, int, int,
                      int, int, int, float *);
#undef GPT149_FIVE
}

namespace gpt149_inside {

template <class T>
T taken(const void *cell) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(static_cast<const Gpt149Tensor *>(cell)->data);
  else return static_cast<T>(*static_cast<const int64_t *>(cell));
}

template <class... A, std::size_t... I>
void call(void (*function)(A...), void *const *cells, std::index_sequence<I...>) {
  function(taken<A>(cells[I])...);
}

// Wraps a kernel in a function with the same signature for all kernels. The signature text lists all parameters but the
// last, which is the output.
template <auto function>
struct Kernel;
template <class... A, void (*function)(A...)>
struct Kernel<function> {
  static constexpr char codes[] = {(std::is_pointer_v<A> ? 'T' : 'i')..., '\0'};
  static void run(void *const *cells) { call(function, cells, std::index_sequence_for<A...>{}); }
  struct Signature {
    char text[sizeof...(A) + 4] = {};
    constexpr Signature() {
      std::size_t at = 0;
      text[at++] = 'O';
      text[at++] = '(';
      for (std::size_t k = 0; k + 1 < sizeof...(A); k++) text[at++] = codes[k];
      text[at] = ')';
    }
  };
  static constexpr Signature signature{};
};

struct Entry {
  const char *name, *signature;
  void (*run)(void *const *cells);
};

template <auto function>
constexpr Entry entry(const char *name) {
  return {name, Kernel<function>::signature.text, Kernel<function>::run};
}

const Entry kernels[] = {
    entry<gpt149_ref_naive>("gpt149_ref_naive"),
    entry<gpt149_ref_blocked>("gpt149_ref_blocked"),
    entry<gpt149_ref_fused>("gpt149_ref_fused"),
    entry<gpt149_ref_fused_rows>("gpt149_ref_fused_rows"),
    entry<gpt149_ref_flash>("gpt149_ref_flash"),
};

}  // namespace gpt149_inside

extern "C" {
int32_t gpt149_count(void) { return sizeof gpt149_inside::kernels / sizeof gpt149_inside::kernels[0]; }
const char *gpt149_name(int32_t k) { return gpt149_inside::kernels[k].name; }
const char *gpt149_signature(int32_t k) { return gpt149_inside::kernels[k].signature; }
int32_t gpt149_call(int32_t k, void *const *cells, Gpt149Result *result) {
  *result = Gpt149Result{};
  gpt149_inside::kernels[k].run(cells);
  return 0;
}
void gpt149_release(Gpt149Result *) {}
}
