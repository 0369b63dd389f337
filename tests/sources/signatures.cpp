// Functions with every known type of parameter and result, and with unknown types, for tests/test_build.py.
#include <torch/extension.h>
#include <stdexcept>
torch::Tensor same(const torch::Tensor &t) { return t; }
torch::Tensor transposed(torch::Tensor &t) { return t.t(); }
torch::Tensor nothing() { return torch::Tensor(); }
float mixed(int &i, const long &l, float f, double d, bool b) { return i + l + f + d + (b ? 1000 : 0); }
int64_t size_of(std::vector<float> v) { return v.size(); }
void twice(std::vector<float> &v) { for (float &x : v) x *= 2; }
std::vector<float> squares(const std::vector<float> &v) { auto w = v; for (auto &x : w) x *= x; return w; }
void throws_std() { throw std::runtime_error("\n \nfirst line\nsecond line"); }
void throws_torch(torch::Tensor t) { TORCH_CHECK(t.dim() == 7, "want 7 dimensions"); }
void throws_int() { throw 3; }
int strange(std::vector<std::string> v) { return v.size(); }
int tile() { return TILE_SIZE; }
// The parameters are passed by value, and the last has another type than in the published starter.
void fourDimWrite(std::vector<float> &t, int x, int y, int z, int b, int sx, int sy, int sz, const float v) {
  t[((x * sx + y) * sy + z) * sz + b] = v;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "documented";
  m.attr("version") = 3;
  m.def("same", &same).def("transposed", transposed, "doc");
  m.def("nothing", &nothing).def("twice", &twice).def("squares", &squares).def("strange", &strange);
  m.def("mixed", &mixed, "doc", py::arg("i"), py::arg("l") = 3, py::arg("f"), py::arg("d"), py::arg("b") = true);
  m.def("size_of", &size_of, py::call_guard<py::gil_scoped_release>());
  m.def("throws_std", &throws_std).def("throws_torch", &throws_torch).def("throws_int", &throws_int).def("tile", &tile);
  m.def("lambda", [](int a, float b) { return a * b; }, "a lambda");
}
