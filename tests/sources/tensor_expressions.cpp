// What kernel files do with tensors, one expression a line; tests/test_plain_torch.py builds this file with torch and
// with the stand-in, and every line has to come out alike.
//   VALUE  a tensor: its type, sizes, strides, whether it is contiguous, which of the tensors below it shares memory
//          with and from which byte on, and its elements
//   EFFECT statements, after which all of the tensors below are shown
//   TEXT   what an expression prints
// An exception is shown by its class.
#include <ATen/ATen.h>
#include <torch/extension.h>

#include <iostream>
#include <sstream>
#include <vector>

using namespace torch::indexing;

// Made anew for each line: (2,3,4,5), (6,4), (7,), a number, nothing in (3,0,2), and a matrix with a row of one column.
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

static std::vector<at::Tensor> all_of(const Tensors &x) { return {x.t, x.m, x.v, x.s, x.e, x.c}; }

static void show_elements(std::ostream &out, const at::Tensor &tensor) {
    if (tensor.dim() == 0) {
        out << ' ' << tensor.item<double>();
        return;
    }
    for (int64_t k = 0; k < tensor.size(0); k++) show_elements(out, tensor[k]);
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
    const char *own = reinterpret_cast<const char *>(x.values.data());
    if (tensor.data_ptr() == own) out << " in values";
    out << ':';
    show_elements(out, tensor);
}

// The line of what `body` prints, or the class of what it throws.
template <class Body>
static void line_of(const char *kind, const char *text, const Body &body) {
    std::ostringstream said;
    try {
        Tensors tensors;
        body(said, tensors);
    } catch (const c10::IndexError &) {
        said.str("throws IndexError");
    } catch (const c10::ValueError &) {
        said.str("throws ValueError");
    } catch (const c10::Error &) {
        said.str("throws Error");
    } catch (const std::exception &) {
        said.str("throws something else");
    }
    std::string shown = said.str();
    for (char &each : shown)
        if (each == '\n') each = '|';  // in one line
    std::cout << kind << '\t' << text << '\t' << shown << '\n';
}

#define NAMES                                                                                                 \
    [[maybe_unused]] at::Tensor &t = x.t, &m = x.m, &v = x.v, &s = x.s, &e = x.e, &c = x.c;                   \
    [[maybe_unused]] std::vector<float> &values = x.values;                                                   \
    [[maybe_unused]] int &i = x.i;                                                                            \
    [[maybe_unused]] int64_t &n = x.n
#define VALUE(...)                                                                  \
    line_of("VALUE", #__VA_ARGS__, [](std::ostream &out, Tensors &x) {              \
        NAMES;                                                                      \
        show(out, __VA_ARGS__, x);                                                  \
    });
#define EFFECT(...)                                                                 \
    line_of("EFFECT", #__VA_ARGS__, [](std::ostream &out, Tensors &x) {             \
        NAMES;                                                                      \
        { __VA_ARGS__; }                                                            \
        for (const at::Tensor &each : all_of(x)) show(out, each, x);                \
        for (float each : values) out << ' ' << each;                               \
    });
#define TEXT(...)                                                                   \
    line_of("TEXT", #__VA_ARGS__, [](std::ostream &out, Tensors &x) {               \
        NAMES;                                                                      \
        out << __VA_ARGS__;                                                         \
    });

static void indexing() {
    VALUE(m.index({Slice(i, None)}))
    VALUE(m.index({torch::indexing::Slice(1, torch::indexing::None)}))
    VALUE(m.index({Slice()}))
    VALUE(m.index({Slice(None, None)}))
    VALUE(m.index({Slice(None, 2)}))
    VALUE(m.index({Slice(n, n + 1)}))
    VALUE(m.index({Slice(i, i + 1), Slice()}))
    VALUE(m.index({Slice(), Slice(1, 3)}))
    VALUE(m.index({Slice(None, None, 2), Slice(1, None, 2)}))
    VALUE(m.index({Slice(1, 6, 4)}))
    VALUE(m.index({Slice(-2, None)}))
    VALUE(m.index({Slice(None, -1)}))
    VALUE(m.index({Slice(-100, 100)}))
    VALUE(m.index({Slice(4, 2)}))
    VALUE(m.index({Slice(6, None)}))
    VALUE(m.index({Slice(9, None)}))
    VALUE(m.index({Slice(0, 6, 100)}))
    VALUE(m.index({Slice(0, 6, 0)}))
    VALUE(m.index({Slice(5, 0, -1)}))
    VALUE(m.index({0}))
    VALUE(m.index({i}))
    VALUE(m.index({n}))
    VALUE(m.index({-1}))
    VALUE(m.index({6}))
    VALUE(m.index({-7}))
    VALUE(m.index({i, 2}))
    VALUE(m.index({i, Slice(1, None)}))
    VALUE(m.index({Slice(), -1}))
    VALUE(m.index({1, 4}))
    VALUE(m.index({1, 2, 3}))
    VALUE(m.index({Slice(), Slice(), Slice()}))
    VALUE(m.index({None}))
    VALUE(m.index({None, 1}))
    VALUE(m.index({1, None, Slice(None, 2)}))
    VALUE(m.index({Ellipsis}))
    VALUE(m.index({"..."}))
    VALUE(m.index({".."}))
    VALUE(m.index({Ellipsis, 1}))
    VALUE(t.index({0, 1}))
    VALUE(t.index({i, n}))
    VALUE(t.index({1, 2, 3, 4}))
    VALUE(t.index({0, Slice(1, 3), 2, Slice(None, None, 3)}))
    VALUE(t.index({1, Ellipsis, 2}))
    VALUE(t.index({Ellipsis, Slice(1, 3), None}))
    VALUE(t.index({Slice(), None, 0, "...", None}))
    VALUE(t.index({Slice(1, 2)}).index({0, 0}))
    VALUE(t.index(std::vector<at::indexing::TensorIndex>{0, Slice(1, 2)}))
    VALUE(v.index({Slice(2, 5)}))
    VALUE(v.index({3}))
    VALUE(s.index({Ellipsis}))
    VALUE(s.index({None}))
    VALUE(s.index({0}))
    VALUE(s.index({Slice()}))
    VALUE(e.index({1}))
    VALUE(e.index({Slice(), 0}))
    VALUE(e.index({Slice(1, None), Slice()}))
    VALUE(c.index({Slice(2, 4)}))
    EFFECT(m.index({1}).fill_(9))
    EFFECT(m.index({Slice(1, 3), Slice(None, None, 2)}).zero_())
    EFFECT(m.index({Slice(2, None)}).data_ptr<float>()[3] = -1)
    EFFECT(m.index_put_({1, Slice(1, 3)}, 8.5))
    EFFECT(m.index_put_({Slice(), 0}, at::arange(6, at::kFloat)))
    EFFECT(m.index_put_({Slice(0, 2)}, at::ones({1, 1, 4})))
    EFFECT(m.index_put_({Slice(0, 2)}, at::ones({3})))
    EFFECT(m.index({0}) = m.index({1}))
    EFFECT(at::Tensor row = m.index({0}); row = m.index({1}); row.fill_(5))
}

static void views() {
    VALUE(m[1])
    VALUE(m[-1])
    VALUE(m[6])
    VALUE(t[1][2])
    VALUE(t[1][2][3][4])
    VALUE(s[0])
    VALUE(t.select(1, 2))
    VALUE(t.select(-1, -5))
    VALUE(t.select(-1, -6))
    VALUE(t.select(4, 0))
    VALUE(s.select(0, 0))
    VALUE(m.slice(0, 1, 3))
    VALUE(m.slice(1))
    VALUE(m.slice(-1, 1, 4, 2))
    VALUE(m.slice(0, -3, -1))
    VALUE(m.slice(2, 0, 1))
    VALUE(m.slice(0, 0, 6, 0))
    VALUE(s.slice(0, 0, 1))
    VALUE(m.narrow(0, 2, 3))
    VALUE(m.narrow(1, -2, 2))
    VALUE(m.narrow(0, 6, 0))
    VALUE(m.narrow(0, 4, 3))
    VALUE(m.narrow(0, 7, 0))
    VALUE(m.narrow(0, 1, -1))
    VALUE(m.t())
    VALUE(v.t())
    VALUE(t.t())
    VALUE(t.transpose(1, 2))
    VALUE(t.transpose(-1, -2))
    VALUE(t.transpose(0, 4))
    VALUE(s.transpose(0, -1))
    VALUE(t.permute({3, 0, 2, 1}))
    VALUE(t.permute({0, 1, -1, 2}))
    VALUE(t.permute({0, 1, 2}))
    VALUE(t.permute({0, 1, 2, 2}))
    VALUE(m.unsqueeze(0))
    VALUE(m.unsqueeze(1))
    VALUE(m.unsqueeze(-1))
    VALUE(m.unsqueeze(3))
    VALUE(s.unsqueeze(0))
    VALUE(c.squeeze())
    VALUE(c.squeeze(0))
    VALUE(c.squeeze(-1))
    VALUE(c.squeeze(2))
    VALUE(s.squeeze(0))
    VALUE(c.expand({6, 3}))
    VALUE(c.expand({2, -1, 3}))
    VALUE(m.expand({6, 8}))
    VALUE(m.view({4, 6}))
    VALUE(m.view(-1))
    VALUE(m.view({-1, 3}))
    VALUE(m.view({5, -1}))
    VALUE(m.view({-1, -1}))
    VALUE(m.view({23}))
    VALUE(m.view({-2, 12}))
    VALUE(m.t().view({24}))
    VALUE(m.t().view({2, 2, 3, 2}))
    VALUE(m.slice(1, 0, 2).view({12}))
    VALUE(m.slice(1, 0, 2).view({3, 2, 2}))
    VALUE(m.slice(0, 0, 6, 2).view({3, 2, 2}))
    VALUE(m.slice(0, 0, 6, 2).view({3, 1, 4, 1}))
    VALUE(t.select(2, 1).view({6, 5}))
    VALUE(t.select(2, 1).view({30}))
    VALUE(c.expand({6, 3}).view({18}))
    VALUE(e.view({0, 7}))
    VALUE(e.view({3, 0, 2}))
    VALUE(e.view({-1, 0}))
    VALUE(s.view({1, 1}))
    VALUE(m.reshape({3, 8}))
    VALUE(m.t().reshape({24}))
    VALUE(m.t().reshape({2, -1}))
    VALUE(m.reshape({7}))
    VALUE(m.flatten())
    VALUE(v.flatten())
    VALUE(s.flatten())
    VALUE(e.flatten())
    VALUE(m.t().flatten())
    VALUE(m.index({Slice(1, None)}).flatten())
    VALUE(m.index({Slice(), Slice(1, 2)}).flatten())
    VALUE(m.index({Slice(), Slice(1, 3)}).flatten())
    VALUE(t.flatten(1))
    VALUE(t.flatten(1, 2))
    VALUE(t.flatten(-2, -1))
    VALUE(t.flatten(2, 2))
    VALUE(t.flatten(2, 1))
    VALUE(t.flatten(0, 4))
    VALUE(t.transpose(1, 2).flatten(1, 2))
    VALUE(t.transpose(1, 2).flatten(2))
    VALUE(m.detach())
    VALUE(m.ravel())
    EFFECT(m.flatten().data_ptr<float>()[5] = -2)
    EFFECT(m.t().flatten().data_ptr<float>()[5] = -2)
    EFFECT(m[1][2] = 4.5)
    EFFECT(m[1] = m[2])
    EFFECT(m[1] = v)
    EFFECT(m.t().zero_())
    EFFECT(at::Tensor other = m; other = v; other.zero_())
    EFFECT(at::Tensor other = m; other.zero_())
}

static void copies() {
    VALUE(m.contiguous())
    VALUE(m.t().contiguous())
    VALUE(m.slice(0, 1, 3).contiguous())
    VALUE(m.slice(1, 1, 3).contiguous())
    VALUE(m.slice(1, 1, 3).flatten().contiguous())
    VALUE(m.clone())
    VALUE(m.t().clone())
    VALUE(m.slice(1, 1, 3).clone())
    VALUE(m.t().slice(0, 0, 2).clone())
    VALUE(t.permute({2, 0, 3, 1}).clone())
    VALUE(t.permute({2, 0, 3, 1}).slice(1, 0, 1).clone())
    VALUE(t.permute({2, 0, 3, 1}).slice(0, 0, 4, 2).clone())
    VALUE(c.expand({6, 3}).clone())
    VALUE(s.clone())
    VALUE(e.clone())
    VALUE(at::empty_like(m.t()).zero_())
    VALUE(at::zeros_like(t.slice(3, 0, 2)))
    VALUE(at::ones_like(e))
    VALUE(m.to(at::kFloat))
    VALUE(m.to(torch::kFloat64))
    VALUE(m.t().to(at::kInt))
    VALUE(m.to(torch::kCPU))
    VALUE(m.cpu())
    VALUE(at::full({2, 2}, 2.75).to(at::kLong))
    VALUE(at::Tensor())
    EFFECT(m.clone().zero_())
    EFFECT(m.contiguous().zero_())
    EFFECT(m.t().contiguous().zero_())
    EFFECT(m.copy_(at::full({6, 4}, 3)))
    EFFECT(m.copy_(v.slice(0, 0, 4)))
    EFFECT(m.copy_(v))
    EFFECT(m.copy_(c))
    EFFECT(m.t().copy_(at::arange(24).view({4, 6})))
    EFFECT(v.copy_(s))
    EFFECT(v.fill_(1.5))
    EFFECT(v.to(at::kFloat).fill_(2))
    EFFECT(v.to(at::kDouble).fill_(2))
}

static void factories() {
    VALUE(at::zeros({2, 3}, at::kFloat))
    VALUE(torch::zeros({i, n}))
    VALUE(at::zeros({}))
    VALUE(at::zeros({0}))
    VALUE(at::zeros({2, -1}))
    VALUE(at::zeros({2}, torch::dtype(torch::kInt64)))
    VALUE(at::zeros(3))
    VALUE(torch::ones({2, 2}, m.options()))
    VALUE(torch::ones({2, 2}, torch::TensorOptions().dtype(torch::kFloat64).device(torch::kCPU).requires_grad(false)))
    VALUE(at::full({2, 2}, 1.5))
    VALUE(at::full({2}, 7))
    VALUE(at::full({2}, 7, at::kFloat))
    VALUE(at::empty({2, 0}))
    VALUE(at::arange(5))
    VALUE(at::arange(2, 5))
    VALUE(at::arange(2.0, 4.0, 0.5))
    VALUE(at::arange(5, 0, -2))
    VALUE(at::arange(5, 0, 1))
    VALUE(m.new_zeros({3}))
    VALUE(torch::from_blob(values.data(), {2, 3, 4}, torch::TensorOptions().dtype(torch::kFloat32)))
    VALUE(torch::from_blob(values.data(), {2, 3, 4}, torch::TensorOptions().dtype(torch::kFloat32)).clone())
    VALUE(torch::from_blob(values.data(), {4, 6}))
    VALUE(torch::from_blob(values.data(), {4, 3}, {6, 2}))
    EFFECT(torch::from_blob(values.data(), {4, 6})[1][2] = 7)
    EFFECT(torch::from_blob(values.data(), {4, 6}).clone().fill_(7))
    EFFECT(bool ended = false; { at::Tensor held = torch::from_blob(values.data(), {4}, [&](void *) { ended = true; });
           at::Tensor row = held[1]; held = at::Tensor(); row.fill_(ended ? 1 : 2); } values[0] = ended ? 3 : 4)
}

static void elements() {
    TEXT(m.size(0) << m.size(-1) << m.stride(0) << m.stride(-1))
    TEXT(m.size(2))
    TEXT(s.size(0))
    TEXT(m.sizes())
    TEXT(t.transpose(0, 3).strides())
    TEXT(s.sizes())
    TEXT(m.sizes()[1] << m.sizes().size() << m.sizes().vec().back())
    TEXT((m.sizes() == m.t().sizes()) << (m.sizes() == m.clone().sizes()))
    TEXT(m.dim() << m.ndimension() << m.numel() << m.element_size() << m.nbytes() << s.dim() << s.numel() << e.numel())
    TEXT(m.scalar_type() << (m.scalar_type() == at::kFloat) << (m.dtype() == torch::kFloat32))
    TEXT(m.device().is_cpu() << m.is_cpu() << m.is_cuda() << (m.device() == torch::kCPU) << m.device())
    TEXT(m.toString() << at::arange(2).toString())
    TEXT(m.storage_offset() << m[1].storage_offset() << t.select(3, 2)[1].storage_offset())
    TEXT(m.defined() << at::Tensor().defined() << m.is_same(m) << m.is_same(m.view({6, 4})))
    TEXT(m[1][2].item<float>())
    TEXT(m[1][2].item<int>())
    TEXT(m[1][2].item().toFloat())
    TEXT(at::arange(3)[2].item<double>())
    TEXT(m[1].item<float>())
    TEXT(v.slice(0, 3, 4).item<float>())
    TEXT(e.item<float>())
    TEXT(*m.index({Slice(i, None)}).data_ptr<float>())
    TEXT((m.data_ptr<double>() == nullptr))
    TEXT((m.data_ptr<int>() == nullptr))
    TEXT(at::arange(3).data_ptr<int64_t>()[2])
    TEXT(m.const_data_ptr<float>()[5] << m.mutable_data_ptr<float>()[6])
    TEXT((m.accessor<float, 2>()[2][3]))
    TEXT((t.accessor<float, 4>()[1][2][3][4]))
    TEXT((t.accessor<float, 4>().size(2)) << (t.accessor<float, 4>()[0].stride(0)))
    TEXT((t.accessor<float, 3>().size(2)))
    TEXT((t.accessor<double, 4>().size(2)))
    TEXT((v.accessor<float, 1>()[6]))
    EFFECT(auto a = m.accessor<float, 2>(); for (int r = 0; r < 6; r++) a[r][1] += a[r][3])
    EFFECT(auto turned = m.t(); auto a = turned.accessor<float, 2>(); a[1][2] = -1)
    EFFECT(at::Tensor row = m.index({Slice(2, 3), Slice(1, None)}); auto a = row.accessor<float, 2>(); a[0][1] = -1)
    EFFECT(auto a = m.accessor<float, 2>(); auto second = a[1]; m = v; second[0] = 3)
    EFFECT(TORCH_CHECK(m.dim() == 2, "not a matrix"))
    EFFECT(TORCH_CHECK(m.dim() == 3, "not a cube but ", m.dim()))
    EFFECT(TORCH_CHECK(m.dim() == 3))
    EFFECT(at::parallel_for(0, 6, 1, [&](int64_t from, int64_t to) { while (from < to) m[from++].fill_(i); }))
    EFFECT(at::parallel_for(0, 6, 1, [&](int64_t from, int64_t to) { TORCH_CHECK(from > to, "thrown in a loop"); }))
    EFFECT(at::parallel_for(3, 3, 1, [&](int64_t, int64_t) { m.zero_(); }))
    TEXT(at::parallel_reduce(0, 100, 1, 0, [](int64_t from, int64_t to, int s) { return s + 3 * int(to - from); },
                             [](int a, int b) { return a + b; }))
}

static void printing() {
    TEXT(m)
    TEXT(v)
    TEXT(s)
    TEXT(e)
    TEXT(t.slice(3, 0, 2))
    TEXT(t.select(0, 1))
    TEXT(at::full({2}, -1.5))
    TEXT(at::arange(12, at::kFloat).view({3, 2, 2}))
    TEXT(at::arange(-3, 3))
    TEXT(at::full({2, 2}, 0.125))
    TEXT(at::arange(4).view({2, 2}))
    TEXT(m.index({Slice(1, 3), Slice(1, None)}))
    TEXT(at::Tensor())
}

// Prints everything, and gives how many threads there may be.
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
