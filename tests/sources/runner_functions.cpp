// Functions of many types, and functions that throw or end the process, for tests/test_native_runner.py.
torch::Tensor twice(torch::Tensor t, torch::Tensor space, int n, double factor) {
  float *out = space.data_ptr<float>();
  for (int k = 0; k < n; k++) out[k] += t.data_ptr<float>()[k] * factor;
  std::printf("twice of %d\n", n);
  return space;
}
torch::Tensor in_place(torch::Tensor t, int n) {
  t.data_ptr<float>()[n] = -1;
  return t;
}
torch::Tensor in_double(torch::Tensor t) {
  torch::Tensor made = torch::zeros({2, 3}, torch::kDouble);
  made.data_ptr<double>()[5] = t.data_ptr<double>()[0];
  return made;
}
torch::Tensor whole_numbers(torch::Tensor t) { return torch::zeros({t.size(0), 2}, torch::kInt64); }
torch::Tensor other_way(torch::Tensor t) { return t.transpose(0, 1); }
torch::Tensor nothing_in_it(torch::Tensor t) { return torch::zeros({0, 4}); }
torch::Tensor undefined(torch::Tensor t) { return torch::Tensor(); }
torch::Tensor large(torch::Tensor t) { return torch::zeros({1 << 20}); }
std::vector<float> list_of(std::vector<float> values, int n) {
  values.resize(n, 7.0f);
  return values;
}
void change(std::vector<float> &values, int n) { values[n] = 42; }
float number(torch::Tensor t, float x, bool sign) { return sign ? -x : x; }
float element(std::vector<float> &tensor, int x, int y, int size) { return tensor[x * size + y]; }
void put(std::vector<float> &tensor, int x, int y, int size, float value) { tensor[x * size + y] = value; }
float throws_of_row(std::vector<float> &tensor, int x, int y, int size) { throw std::out_of_range("row"); }
torch::Tensor throws(torch::Tensor t, int kind) {
  if (kind == 0) throw std::runtime_error("the first line \xff\xe2\x82\"\\\x01\nthe second line");
  if (kind == 1) throw 3;
  if (kind == 2) throw std::runtime_error(std::string(3000, 'x'));
  if (kind == 3) TORCH_CHECK(t.dim() == 7, "seven dimensions, not ", t.dim());
  std::vector<int> few(3);
  return torch::full({1}, (float)few.at(kind));
}
torch::Tensor ends(torch::Tensor t, int kind) {
  std::printf("last words\n");
  std::fflush(stdout);
  if (kind == 0) std::abort();
  if (kind == 1) *(volatile int *)8 = 1;
  if (kind == 2) std::exit(3);
  if (kind == 3) _exit(4);
  if (kind == 4) for (;;) asm volatile("");
  volatile int zero = 0;
  return torch::full({1}, (float)(7 / zero));
}
struct Unknown {};
torch::Tensor takes_unknown(torch::Tensor t, Unknown *u) { return t; }
