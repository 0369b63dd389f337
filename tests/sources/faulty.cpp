// Functions with one fault each, and a right function, for tests/test_sanitize.py.
inline float twoDimRead(std::vector<float> &t, int x, int y, int w) {
  return t[x * w + y];
}
torch::Tensor tensor_write(torch::Tensor q, int n) {
  auto out = at::zeros({n});
  float *p = out.data_ptr<float>();
  for (int i = 0; i <= n; i++)
    p[i] = 1.0f;
  return out;
}
float input_read(torch::Tensor q, int n) {
  return q.data_ptr<float>()[n];
}
float vector_read(torch::Tensor q, int n) {
  std::vector<float> v(n);
  float s = 0;
  for (int i = 0; i <= n; i++)
    s += twoDimRead(v, 0, i, n);
  return s;
}
int overflow(torch::Tensor q, int n) {
  int x = 2147483647;
  x += n;
  return x;
}
int fine(torch::Tensor q, int n) { return n; }
