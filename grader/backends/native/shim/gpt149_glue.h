// The part of gpt149_abi.h that is the same for every student's file: conversion of arguments and results, the list of
// functions, and the C functions by which a runner lists and calls them. All are marked cold, because optimising them
// took longer than optimising the kernels.
#ifndef GPT149_GLUE_H
#define GPT149_GLUE_H

namespace gpt149 {

// ---- values

[[gnu::cold]] GPT149_GLUE Value<at::Tensor>::Value(const void *p) {
  auto *t = static_cast<const Gpt149Tensor *>(p);
  auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(t->dtype));
  value = at::from_blob(t->data, at::IntArrayRef(t->sizes, static_cast<size_t>(t->ndim)), options);
}

[[gnu::cold]] GPT149_GLUE Value<std::vector<float>>::Value(const void *p)
    : buffer(static_cast<const Gpt149Vector *>(p)), value(buffer->data, buffer->data + buffer->size) {}

[[gnu::cold]] GPT149_GLUE void ChangeableVector::finish() {
  auto count = value.size() < static_cast<size_t>(buffer->size) ? value.size() : static_cast<size_t>(buffer->size);
  if (count != 0) std::memcpy(buffer->data, value.data(), count * sizeof(float));
}

[[gnu::cold]] GPT149_GLUE void store(at::Tensor tensor, Gpt149Result *out) {
  if (!tensor.defined()) {
    out->kind = kUndefined;
    return;
  }
  if (tensor.dim() > 8) throw std::runtime_error("the returned tensor has more than 8 dimensions");
  if (!tensor.device().is_cpu()) throw std::runtime_error("the returned tensor is not in CPU memory");
  auto *owner = new at::Tensor(tensor.contiguous());
  out->kind = kTensor;
  out->dtype = static_cast<int32_t>(owner->scalar_type());
  out->data = owner->data_ptr();
  out->ndim = owner->dim();
  for (int64_t k = 0; k < owner->dim(); k++) out->sizes[k] = owner->size(k);
  out->owner = owner;
}

[[gnu::cold]] GPT149_GLUE void store(std::vector<float> values, Gpt149Result *out) {
  auto *owner = new std::vector<float>(std::move(values));
  out->kind = kVector;
  out->dtype = static_cast<int32_t>(at::kFloat);
  out->data = owner->data();
  out->ndim = 1;
  out->sizes[0] = static_cast<int64_t>(owner->size());
  out->owner = owner;
}

[[gnu::cold]] GPT149_GLUE void store(double number, Gpt149Result *out) {
  out->kind = kNumber;
  out->number = number;
}

// ---- the list of functions

[[gnu::cold]] GPT149_GLUE void Module::add(const char *name, const char *signature, Caller call, const void *callee) {
  for (auto &entry : entries)
    if (entry.name == name) {
      entry = {name, signature, call, callee};
      return;
    }
  entries.push_back({name, signature, call, callee});
}

[[gnu::cold]] GPT149_GLUE bool Module::has(const char *name) const {
  for (auto &entry : entries)
    if (entry.name == name) return true;
  return false;
}

GPT149_GLUE Bindings &bindings() {
  static Bindings the_bindings;
  return the_bindings;
}

[[gnu::cold]] GPT149_GLUE Registrar::Registrar(void (*bind)(Module &), void (*complete)(Module &)) {
  bindings() = {bind, complete};
}

[[gnu::cold]] GPT149_GLUE void offer_write(Module &module, WriteElement write) {
  if (!module.has("fourDimWrite")) module.def("fourDimWrite", write);
}

inline Module &module() {
  static Module the_module = [] {
    Module filled;
    if (bindings().bind != nullptr) {
      bindings().bind(filled);
      bindings().complete(filled);
    }
    return filled;
  }();
  return the_module;
}

// Copies the first line of `text` that is not empty to `out`.
inline void first_line(const char *text, char *out, size_t size) {
  text += std::strspn(text, " \t\r\n");
  std::snprintf(out, size, "%.*s", static_cast<int>(std::strcspn(text, "\n")), text);
}

}  // namespace gpt149

// ---- the runner's side

GPT149_EXPORT int32_t gpt149_count(void) { return static_cast<int32_t>(gpt149::module().entries.size()); }

GPT149_EXPORT const char *gpt149_name(int32_t i) {
  return gpt149::module().entries[static_cast<size_t>(i)].name.c_str();
}

GPT149_EXPORT const char *gpt149_signature(int32_t i) {
  return gpt149::module().entries[static_cast<size_t>(i)].signature.c_str();
}

// Returns 0, or 1 if the function throws. Then result->error is the first line of the message.
GPT149_EXPORT int32_t gpt149_call(int32_t i, void *const *arguments, Gpt149Result *result) {
  *result = Gpt149Result{};
  const gpt149::Entry &entry = gpt149::module().entries[static_cast<size_t>(i)];
  if (entry.call == nullptr) {
    const char *text = "a parameter or the result of %s has another type";
    std::snprintf(result->error, sizeof result->error, text, entry.name.c_str());
    return 1;
  }
  try {
    entry.call(entry.callee, arguments, result);
#if defined(__SANITIZE_ADDRESS__)
    // Read the result here, so that AddressSanitizer notices freed memory: it does not see the runner's system calls.
    if (result->kind == gpt149::kTensor)
      for (size_t k = 0; k < static_cast<at::Tensor *>(result->owner)->nbytes(); k++)
        static_cast<void>(static_cast<const volatile char *>(result->data)[k]);
#endif
    return 0;
  } catch (const c10::Error &error) {
    gpt149::first_line(error.what_without_backtrace(), result->error, sizeof result->error);
  } catch (const std::exception &error) {
    gpt149::first_line(error.what(), result->error, sizeof result->error);
  } catch (...) {
    gpt149::first_line("something that is not a std::exception was thrown", result->error, sizeof result->error);
  }
  return 1;
}

GPT149_EXPORT void gpt149_release(Gpt149Result *result) {
  if (result->kind == gpt149::kTensor) delete static_cast<at::Tensor *>(result->owner);
  if (result->kind == gpt149::kVector) delete static_cast<std::vector<float> *>(result->owner);
  result->owner = nullptr;
}

#endif
