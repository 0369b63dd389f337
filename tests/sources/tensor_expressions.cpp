// Uses of tensors in kernel files. tests/test_sanitize.py builds this file with torch and with the stand-in; each
// expression prints a line, and all lines have to be equal.
//   VALUE  a tensor: its type, sizes, strides, elements, whether it is contiguous, and the member of Tensors (below)
//          in whose memory it lies, with its offset in bytes
//   EFFECT statements, after which all of the tensors below are shown
//   TEXT   what an expression prints
// An exception is shown by its class and, where students see torch's message, by its first line. Elements are shown in
// hexadecimal, because all digits must be equal.
#include <c10/util/irange.h>
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/ops/full_like.h>
#include <torch/extension.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <sstream>
#include <vector>

using namespace torch::indexing;

// New tensors for each line: (2,3,4,5), (6,4), (7,), a number, an empty (3,0,2), and a matrix with a row of one column.
struct Tensors {
    at::Tensor t = at::arange(120, at::kFloat).view({2, 3, 4, 5});
    at::Tensor m = at::arange(24, at::kFloat).view({6, 4});
    at::Tensor v = at::arange(7, at::kFloat);
    at::Tensor s = at::full({}, 2.5);
    at::Tensor e = at::zeros({3, 0, 2});
    at::Tensor c = at::arange(6, at::kFloat).view({6, 1});
    std::vector<float> values = std::vector<float>(24, 0.5f);
    int i = 1;
    int64_t n = 2;
};

static const double kInfinite = std::numeric_limits<double>::infinity(), kNone = std::nan("");

static std::vector<at::Tensor> all_of(const Tensors &x) { return {x.t, x.m, x.v, x.s, x.e, x.c}; }

static void show_elements(std::ostream &out, const at::Tensor &tensor) {
    if (tensor.dim() == 0) out << ' ' << tensor.item<double>();
    else for (int64_t k = 0; k < tensor.size(0); k++) show_elements(out, tensor[k]);
}

static void show(std::ostream &out, const at::Tensor &tensor, const Tensors &x) {
    if (!tensor.defined()) {
        out << "undefined";
        return;
    }
    out << tensor.scalar_type() << ' ' << tensor.sizes() << " by " << tensor.strides()
        << (tensor.is_contiguous() ? " contiguous" : "");
    const char *names = "tmvsec";
    for (const at::Tensor &base : all_of(x)) {
        const char *from = static_cast<const char *>(base.data_ptr());
        const char *at = static_cast<const char *>(tensor.data_ptr());
        const bool shares = base.numel() > 0 && tensor.numel() > 0 && from <= at && at < from + base.nbytes();
        if (shares) out << (tensor.is_same(base) ? " is " : " in ") << *names << '+' << (at - from);
        names++;
    }
    if (tensor.data_ptr() == x.values.data()) out << " in values";
    out << ':' << std::hexfloat;
    show_elements(out, tensor);
    out << std::defaultfloat;
}

static void show_all(std::ostream &out, const Tensors &x) {
    for (const at::Tensor &each : all_of(x)) show(out, each, x);
    for (float each : x.values) out << ' ' << each;
}

static std::string first_line(const c10::Error &error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
}

using Body = void (*)(std::ostream &, Tensors &);

// Print a line with the text that `body` prints, or with the class of its exception. A template would be compiled for
// each line, which would take most of the time.
static void line_of(const char *kind, const char *text, Body body) {
    std::ostringstream said;
    try {
        Tensors tensors;
        body(said, tensors);
    }
#define CAUGHT(type) catch (const c10::type &error) { said.str("throws " #type ": " + first_line(error)); }
    CAUGHT(IndexError) CAUGHT(ValueError) CAUGHT(Error)
    catch (const std::exception &) { said.str("throws something else"); }
    std::string shown = said.str();
    for (char &each : shown)
        if (each == '\n') each = '|';  // keep each result on one line
    std::cout << kind << '\t' << text << '\t' << shown << '\n';
}

#define LINE(kind, text, ...)                                                                                 \
    line_of(kind, text, [](std::ostream &out, Tensors &x) {                                                   \
        [[maybe_unused]] at::Tensor &t = x.t, &m = x.m, &v = x.v, &s = x.s, &e = x.e, &c = x.c;               \
        [[maybe_unused]] std::vector<float> &values = x.values;                                               \
        [[maybe_unused]] int &i = x.i;                                                                        \
        [[maybe_unused]] int64_t &n = x.n;                                                                    \
        __VA_ARGS__;                                                                                          \
    });
#define VALUE(...) LINE("VALUE", #__VA_ARGS__, show(out, __VA_ARGS__, x))
#define EFFECT(...) LINE("EFFECT", #__VA_ARGS__, { __VA_ARGS__; } show_all(out, x))
#define TEXT(...) LINE("TEXT", #__VA_ARGS__, out << __VA_ARGS__)

static void indexing() {
    VALUE(m.index({Slice(i, None)})) VALUE(m.index({Slice()})) VALUE(m.index({Slice(None, 2)}))
    VALUE(m.index({Slice(i, i + 1), Slice()})) VALUE(m.index({Slice(), Slice(1, 3)}))
    VALUE(m.index({Slice(None, None, 2), Slice(1, None, 2)})) VALUE(m.index({Slice(-2, None)}))
    VALUE(m.index({Slice(None, -1)})) VALUE(m.index({Slice(-100, 100)})) VALUE(m.index({Slice(4, 2)}))
    VALUE(m.index({Slice(6, None)})) VALUE(m.index({Slice(0, 6, 100)})) VALUE(m.index({Slice(0, 6, 0)}))
    VALUE(m.index({Slice(5, 0, -1)})) VALUE(m.index({0})) VALUE(m.index({n})) VALUE(m.index({-1}))
    VALUE(m.index({6})) VALUE(m.index({i, Slice(1, None)})) VALUE(m.index({Slice(), -1})) VALUE(m.index({1, 4}))
    VALUE(m.index({Slice(), Slice(), Slice()})) VALUE(m.index({None})) VALUE(m.index({1, None, Slice(None, 2)}))
    VALUE(m.index({Ellipsis})) VALUE(m.index({"..."})) VALUE(t.index({i, n})) VALUE(t.index({1, 2, 3, 4}))
    VALUE(t.index({0, Slice(1, 3), 2, Slice(None, None, 3)})) VALUE(t.index({Ellipsis, Slice(1, 3), None}))
    VALUE(t.index({Slice(), None, 0, "...", None})) VALUE(s.index({Ellipsis})) VALUE(s.index({0}))
    VALUE(s.index({Slice()})) VALUE(e.index({1})) VALUE(e.index({Slice(1, None), Slice()}))
    VALUE(m.index({Slice(2, None, -1)})) VALUE(m.index({Slice(-3, -1, 2)}))
    VALUE(m.index({Slice(0, std::numeric_limits<int64_t>::max())}))
    VALUE(m.index({Slice(std::numeric_limits<int64_t>::min(), 2)}))
    VALUE(m.index({Slice(0, 6, std::numeric_limits<int64_t>::max())})) VALUE(m.index({None, Slice(), None, 9}))
    VALUE(t.index({0, Ellipsis, -6})) VALUE(t.index({"...", Ellipsis, 1}))
    VALUE(m.t().index({Slice(1, 3), Slice(None, None, 2)}))
    VALUE(m.index({Slice(1, 3)}).index({Slice(1, None)}).index({0, Slice(2, 4)}))
    EFFECT(m.index({Slice(1, 3), Slice(None, None, 2)}).zero_())
    EFFECT(m.index({Slice(2, None)}).data_ptr<float>()[3] = -1) EFFECT(m.index_put_({1, Slice(1, 3)}, 8.5))
    EFFECT(m.index_put_({Slice(), 0}, at::arange(6, at::kFloat)))
    EFFECT(m.index_put_({Slice(0, 2)}, at::ones({3}))) EFFECT(m.index({0}) = m.index({1}))
    EFFECT(at::Tensor row = m.index({0}); row = m.index({1}); row.fill_(5))
    EFFECT(Slice turned(5, 0, -1); m[0].fill_(7)) EFFECT(m.index_put_({9}, 1))
    EFFECT(m.index_put_({Slice(), Slice(0, 2)}, m.index({Slice(), Slice(2, 4)})))
    EFFECT(m.index({Slice(0, 3)}).index({Slice(1, None)}).index({0}).fill_(-0.0))
    EFFECT(t.index({0, 1, 2}).copy_(v.slice(0, 1, 6)))
}

static void views() {
    VALUE(m[1]) VALUE(m[-1]) VALUE(t[1][2][3][4]) VALUE(s[0]) VALUE(t.select(1, 2)) VALUE(t.select(-1, -5))
    VALUE(t.select(4, 0)) VALUE(s.select(0, 0)) VALUE(m.slice(0, 1, 3)) VALUE(m.slice(-1, 1, 4, 2))
    VALUE(m.slice(0, -3, -1)) VALUE(m.slice(0, 0, 6, 0)) VALUE(s.slice(0, 0, 1)) VALUE(m.narrow(0, 2, 3))
    VALUE(m.narrow(0, 6, 0)) VALUE(m.narrow(0, 4, 3)) VALUE(m.narrow(0, 1, -1)) VALUE(m.t()) VALUE(v.t())
    VALUE(t.t()) VALUE(t.transpose(1, 2)) VALUE(t.transpose(0, 4)) VALUE(s.transpose(0, -1))
    VALUE(t.permute({3, 0, 2, 1})) VALUE(t.permute({0, 1, 2})) VALUE(t.permute({0, 1, 2, 2}))
    VALUE(m.unsqueeze(0)) VALUE(m.unsqueeze(-1)) VALUE(s.unsqueeze(0)) VALUE(c.squeeze()) VALUE(c.squeeze(-1))
    VALUE(s.squeeze(0)) VALUE(c.expand({6, 3})) VALUE(c.expand({2, -1, 3})) VALUE(m.expand({6, 8}))
    VALUE(m.view({4, 6})) VALUE(m.view(-1)) VALUE(m.view({-1, 3})) VALUE(m.view({5, -1}))
    VALUE(m.view({-1, -1})) VALUE(m.view({-2, 12})) VALUE(m.t().view({24})) VALUE(m.slice(1, 0, 2).view({12}))
    VALUE(m.slice(0, 0, 6, 2).view({3, 1, 4, 1})) VALUE(t.select(2, 1).view({30}))
    VALUE(c.expand({6, 3}).view({18})) VALUE(e.view({0, 7})) VALUE(e.view({-1, 0})) VALUE(s.view({1, 1}))
    VALUE(m.reshape({3, 8})) VALUE(m.t().reshape({24})) VALUE(m.reshape({7})) VALUE(m.flatten())
    VALUE(s.flatten()) VALUE(e.flatten()) VALUE(m.t().flatten()) VALUE(m.index({Slice(1, None)}).flatten())
    VALUE(m.index({Slice(), Slice(1, 3)}).flatten()) VALUE(t.flatten(1)) VALUE(t.flatten(1, 2))
    VALUE(t.flatten(-2, -1)) VALUE(t.flatten(2, 1)) VALUE(t.transpose(1, 2).flatten(1, 2)) VALUE(m.detach())
    VALUE(s.narrow(0, 0, 1)) VALUE(m.slice(0, 2, 1)) VALUE(m.slice(0, 0, 6, -1))
    VALUE(t.slice(3, 1, 5, 3).slice(0, 1).select(1, -1)) VALUE(m.unsqueeze(-4)) VALUE(m.permute({0, 2}))
    VALUE(s.permute({})) VALUE(m.expand({2, 6, 4})) VALUE(m.expand({-1, 6, 4})) VALUE(s.expand({2, 3}))
    VALUE(c.expand({6, 0})) VALUE(m.as_strided({2, 3}, {1, 4}, 5)) VALUE(m[2].as_strided({2}, {3}))
    VALUE(m.as_strided({2}, {-1})) VALUE(m.contiguous().view({2, 12}).t().reshape({4, 6}))
    VALUE(at::zeros({1, 3, 1}).squeeze()) VALUE(at::zeros({2, 1, 3}).transpose(0, 1).view({6}))
    VALUE(e.transpose(0, 1)) VALUE(e.reshape({2, -1})) EFFECT(m.t().flatten().data_ptr<float>()[5] = -2)
    EFFECT(m[1][2] = 4.5) EFFECT(m[1] = m[2]) EFFECT(m.t().zero_())
    EFFECT(at::Tensor other = m; other = v; other.zero_()) EFFECT(c.expand({6, 3}).select(1, 2).fill_(4))
    EFFECT(auto row = m[0]; auto again = row; again[1] = 77; row = m[1]) EFFECT(m[0][0] = m[1][1])
    EFFECT(m.t()[0] = v.slice(0, 0, 6)) EFFECT(m.view({2, 12})[1].slice(0, 3, 9, 2).fill_(-3))
}

static void copies() {
    VALUE(m.contiguous()) VALUE(m.t().contiguous()) VALUE(m.slice(1, 1, 3).contiguous()) VALUE(m.clone())
    VALUE(m.t().clone()) VALUE(m.t().slice(0, 0, 2).clone()) VALUE(t.permute({2, 0, 3, 1}).clone())
    VALUE(t.permute({2, 0, 3, 1}).slice(0, 0, 4, 2).clone()) VALUE(c.expand({6, 3}).clone()) VALUE(s.clone())
    VALUE(e.clone()) VALUE(at::empty_like(m.t()).zero_()) VALUE(at::zeros_like(t.slice(3, 0, 2)))
    VALUE(m.to(at::kFloat)) VALUE(m.to(torch::kFloat64)) VALUE(m.t().to(at::kInt)) VALUE(m.cpu())
    VALUE(at::full({2, 2}, 2.75).to(at::kLong)) VALUE(m.t().clone(at::MemoryFormat::Contiguous))
    VALUE(m.t().contiguous(at::MemoryFormat::Contiguous)) VALUE(m.to(at::kFloat, false, true))
    VALUE(m.to(m.options().dtype(at::kDouble))) VALUE(at::full({3}, -2.75).to(at::kChar))
    VALUE(at::full({3}, 300).to(at::kByte)) VALUE(at::full({2}, 0.5).to(at::kBool))
    VALUE(at::full({2}, 16777217).to(at::kFloat)) VALUE(at::full({2}, 0.1, at::kDouble).to(at::kFloat))
    VALUE(at::full({2}, kInfinite).to(at::kDouble)) VALUE(at::full({2}, 1e-42))
    VALUE(at::full({2}, 1e300).to(at::kFloat)) VALUE(at::full_like(v, 2.5, at::kLong))
    VALUE(at::empty_like(m.slice(1, 0, 2), at::kInt).fill_(7)) VALUE(at::zeros_like(c.expand({6, 3})))
    VALUE(at::zeros_like(t.permute({3, 1, 0, 2}), at::kDouble)) EFFECT(m.clone().zero_())
    EFFECT(m.t().contiguous().zero_()) EFFECT(m.copy_(at::full({6, 4}, 3))) EFFECT(m.copy_(v.slice(0, 0, 4)))
    EFFECT(m.copy_(c)) EFFECT(m.t().copy_(at::arange(24).view({4, 6}))) EFFECT(v.copy_(s))
    EFFECT(v.to(at::kFloat).fill_(2)) EFFECT(v.to(at::kDouble).fill_(2)) EFFECT(m.copy_(t)) EFFECT(c.copy_(m))
    EFFECT(m.slice(1, 0, 2).copy_(m.slice(1, 2, 4))) EFFECT(e.copy_(at::zeros({3, 0, 1})))
    EFFECT(v.fill_(kNone).slice(0, 2, 4).fill_(-kInfinite))
    EFFECT(t.transpose(1, 3).copy_(t.clone().transpose(1, 3)))
    EFFECT(auto other = t.transpose(0, 3).contiguous(); t.view(-1).copy_(other.view(-1)))
    EFFECT(at::Tensor none; none.zero_()) EFFECT(auto held = m.clone(); m = held; m[0].zero_())
}

static void factories() {
    VALUE(at::zeros({2, 3}, at::kFloat)) VALUE(torch::zeros({i, n})) VALUE(at::zeros({0}))
    VALUE(at::zeros({2, -1})) VALUE(at::zeros(3))
    VALUE(torch::ones({2, 2}, torch::TensorOptions().dtype(torch::kFloat64).device(torch::kCPU).requires_grad(false)))
    VALUE(at::full({2}, 7)) VALUE(at::empty({2, 0})) VALUE(at::arange(5)) VALUE(at::arange(5, 0, 1))
    VALUE(torch::from_blob(values.data(), {2, 3, 4}, torch::TensorOptions().dtype(torch::kFloat32)))
    VALUE(torch::from_blob(values.data(), {2, 3, 4}, torch::TensorOptions().dtype(torch::kFloat32)).clone())
    VALUE(torch::from_blob(values.data(), {4, 3}, {6, 2})) VALUE(at::full({2}, true))
    VALUE(at::full({2}, 1.5, at::kInt)) VALUE(at::ones({2}, at::kBool)) VALUE(at::ones({2, 0}, at::kShort))
    VALUE(at::zeros({2}, at::dtype(at::kDouble).device(at::kCPU))) VALUE(at::zeros(m.sizes(), m.options()))
    VALUE(at::zeros(std::vector<int64_t>{2, 2})) VALUE(at::arange(0.0, 1.0, 0.25, at::kDouble))
    VALUE(at::arange(0, 1, 0.3)) VALUE(at::arange(3, at::kInt)) VALUE(at::arange(0, 5, 0)) VALUE(at::arange(-3))
    VALUE(torch::from_blob(values.data(), {}, at::kFloat)) VALUE(at::full({2}, 300, at::kByte))
    VALUE(at::full({2}, 1e10, at::kInt)) EFFECT(torch::from_blob(values.data(), {4, 6})[1][2] = 7)
    EFFECT(torch::from_blob(values.data(), {4, 6}).clone().fill_(7))
    EFFECT(at::Tensor held = torch::from_blob(values.data(), {24}); std::memcpy(held.data_ptr(), v.data_ptr(), 28))
    EFFECT(at::zeros({2}, at::kInt).fill_(kNone))
}

static void elements() {
    EFFECT(auto turned = m.t(); auto a = turned.accessor<float, 2>(); a[1][2] = -1)
    EFFECT(at::Tensor row = m.index({Slice(2, 3), Slice(1, None)}); auto a = row.accessor<float, 2>(); a[0][1] = -1)
    EFFECT(at::Tensor held = m; auto a = held.accessor<float, 2>(); auto second = a[1]; m = v; second[0] = 3)
    EFFECT(TORCH_CHECK(m.dim() == 3, "not a cube but ", m.dim())) EFFECT(TORCH_CHECK(m.dim() == 3))
    EFFECT(at::parallel_for(0, 6, 1, [&](int64_t from, int64_t to) { while (from < to) m[from++].fill_(i); }))
    EFFECT(at::parallel_for(0, 6, 1, [&](int64_t from, int64_t to) { TORCH_CHECK(from > to, "thrown in a loop"); }))
    EFFECT(at::parallel_for(3, 3, 1, [&](int64_t, int64_t) { m.zero_(); }))
    EFFECT(auto a = m.accessor<int, 2>()) EFFECT(TORCH_CHECK_INDEX(i == 2, "index ", i, " of ", m.sizes()))
    EFFECT(TORCH_CHECK_VALUE(i == 2, "a value")) EFFECT(TORCH_CHECK(m.size(0) == n, "first\nsecond"))
    EFFECT(AT_ERROR("always ", 7))
    EFFECT(at::parallel_for(0, 24, 5, [&](int64_t from, int64_t to) {
           for (auto k = from; k < to; k++) m.data_ptr<float>()[k] = float(k * k); }))
    TEXT(m.size(0) << m.size(-1) << m.stride(0) << m.stride(-1)) TEXT(m.size(2)) TEXT(m.sizes())
    TEXT(t.transpose(0, 3).strides()) TEXT(m.sizes()[1] << m.sizes().size() << m.sizes().vec().back())
    TEXT((m.sizes() == m.t().sizes()) << (m.sizes() == m.clone().sizes()))
    TEXT(m.scalar_type() << (m.scalar_type() == at::kFloat) << (m.dtype() == torch::kFloat32))
    TEXT(m.device().is_cpu() << m.is_cpu() << m.is_cuda() << (m.device() == torch::kCPU) << m.device())
    TEXT(m.storage_offset() << m[1].storage_offset() << t.select(3, 2)[1].storage_offset())
    TEXT(m.defined() << at::Tensor().defined() << m.is_same(m) << m.is_same(m.view({6, 4})))
    TEXT(m[1][2].item<int>()) TEXT(m[1][2].item().toFloat()) TEXT(m[1].item<float>()) TEXT(e.item<float>())
    TEXT(*m.index({Slice(i, None)}).data_ptr<float>()) TEXT((m.data_ptr<double>() == nullptr))
    TEXT(m.const_data_ptr<float>()[5] << m.mutable_data_ptr<float>()[6])
    TEXT((t.accessor<float, 4>()[1][2][3][4]))
    TEXT((t.accessor<float, 4>().size(2)) << (t.accessor<float, 4>()[0].stride(0)))
    TEXT((t.accessor<float, 3>().size(2))) TEXT((t.accessor<double, 4>().size(2)))
    TEXT(m.is_contiguous() << m.t().is_contiguous() << e.is_contiguous() << s.is_contiguous() << c.t().is_contiguous())
    TEXT(m.stride(-2) << m.t().stride(0) << c.stride(1) << e.stride(0))
    TEXT(m.sizes().vec().size() << m.sizes().front() << m.sizes().back() << m.sizes().at(1) << m.sizes().empty())
    TEXT(m.sizes().at(2)) TEXT(at::IntArrayRef(std::vector<int64_t>{1, 2, 3}))
    TEXT([] { int64_t sum = 0; for (auto k : c10::irange(5)) sum = 10 * sum + k; return sum; }())
    TEXT([] { int64_t sum = 9; for (auto k : c10::irange(3, int64_t{6})) sum = 10 * sum + k; return sum; }())
    TEXT([] { int64_t count = 0; for (auto k : c10::irange(-2)) count += 1 + k; return count; }())
    TEXT([] { int64_t count = 0; for (auto k : c10::irange(4, 1)) count += 1 + k; return count; }())
    TEXT(m[1][2].item().isFloatingPoint() << at::arange(3)[2].item().isIntegral(false) << s.item().toInt())
    TEXT(m[1][2].item() << at::arange(3)[2].item() << s.item())
    TEXT(at::full({1}, -1.75).item<int64_t>() << at::full({1}, 3).item<float>() << at::full({}, true).item<bool>())
    TEXT((m.t().data_ptr<float>() == m.data_ptr<float>()) << (m[2].data_ptr<float>() - m.data_ptr<float>()))
    TEXT((at::Tensor().data_ptr() == nullptr)) TEXT(at::Tensor().toString()) TEXT(at::Tensor().sizes())
    TEXT(at::in_parallel_region() << at::get_thread_num() << (at::get_num_threads() >= 1) << at::divup(7, 3))
    TEXT(AT_DISPATCH_FLOATING_TYPES(m.scalar_type(), "f",
                                    [&] { return float(m.data_ptr<scalar_t>()[5]) + sizeof(scalar_t); }))
    TEXT(AT_DISPATCH_FLOATING_TYPES(at::kLong, "f", [&] { return sizeof(scalar_t); }))
    TEXT(at::Tensor().size(0)) TEXT(at::full({}, 3e9).item<int>()) TEXT(at::Scalar(300).to<uint8_t>() + 0)
    TEXT(at::Scalar(-3).to<uint8_t>() + 0) TEXT(at::Scalar(1e300).toFloat())
    TEXT(m.dim() << m.numel() << m.element_size() << m.nbytes() << s.dim() << s.numel() << e.numel())
    TEXT((m.dtype() == at::kFloat) << (m.dtype() != at::kDouble) << (m.options().dtype() == m.dtype()))
    TEXT(m.options().has_dtype() << m.options().device() << at::isFloatingType(at::kInt) << at::kBool << at::kByte)
    TEXT((m.sizes() == std::vector<int64_t>{6, 4}) << (m.sizes() != at::IntArrayRef({6, 5})))
    TEXT((m.accessor<float, 2>().size(0)) << at::toString(at::kLong)) TEXT(e.data_ptr<float>() << e.data_ptr())
}

static void printing() {
    TEXT(at::Tensor()) TEXT(at::zeros({0})) TEXT(at::zeros({2, 0, 3}))
}

// Prints all lines, and returns the largest number of threads.
int expressions(torch::Tensor) {
    indexing();
    views();
    copies();
    factories();
    elements();
    printing();
    std::cout << std::flush;
    return at::get_num_threads();
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("expressions", &expressions); }
