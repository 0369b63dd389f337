"""Two small programs of the ladder's: PyTorch's own operators in the form of a student's file, and the machine's copy.

They are text in a module, and not C++ files, since a handout has no sources beside its starter.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from grader.backends.native.toolchain import cache_root
from grader.core import wholefile

#: Called with what `PYTORCH` and `MACHINE` both bind: nothing is computed, so its time is that of a call.
NOTHING = "nothing"
COPY, UPDATE = "copied", "updated"

PYTORCH = r"""
#include <torch/extension.h>

using torch::Tensor;

static const auto kMean = at::Reduction::Mean;

Tensor addForward(Tensor A, Tensor B, int, int, int, int) { return at::add(A, B); }
void addBackward(Tensor dO, Tensor dA, Tensor dB, int, int, int, int) {
    dA.add_(dO);
    dB.add_(at::sum_to(dO, dB.sizes()));
}
Tensor mulForward(Tensor A, Tensor B, int, int, int, int) { return at::mul(A, B); }
void mulBackward(Tensor dO, Tensor A, Tensor B, Tensor dA, Tensor dB, int, int, int, int) {
    dA.addcmul_(dO, B);
    dB.add_(at::sum_to(at::mul(dO, A), dB.sizes()));
}
Tensor reluForward(Tensor X, int) { return at::relu(X); }
void reluBackward(Tensor dO, Tensor X, Tensor dX, int) { dX.add_(at::threshold_backward(dO, X, 0)); }

Tensor matmulForward(Tensor A, Tensor B, int, int, int) { return at::mm(A, B); }
void matmulBackward(Tensor dO, Tensor A, Tensor B, Tensor dA, Tensor dB, int, int, int) {
    dA.addmm_(dO, B.t());
    dB.addmm_(A.t(), dO);
}
Tensor linearForward(Tensor X, Tensor W, Tensor b, int, int, int) { return at::addmm(b, X, W); }
void linearBackward(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int, int, int) {
    dX.addmm_(dY, W.t());
    dW.addmm_(X.t(), dY);
    db.add_(dY.sum(0));
}

Tensor conv2dForward(Tensor X, Tensor W, Tensor b, int, int, int, int, int, int, int stride, int pad) {
    return at::conv2d(X, W, b, {stride, stride}, {pad, pad});
}
void conv2dBackward(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int, int, int, int, int F, int,
                    int stride, int pad) {
    auto made = at::convolution_backward(dY, X, W, at::IntArrayRef({F}), {stride, stride}, {pad, pad}, {1, 1}, false,
                                         {0, 0}, 1, {true, true, true});
    dX.add_(std::get<0>(made));
    dW.add_(std::get<1>(made));
    db.add_(std::get<2>(made));
}
Tensor maxpool2dForward(Tensor X, Tensor index, int, int, int, int, int K, int stride) {
    auto made = at::max_pool2d_with_indices(X, {K, K}, {stride, stride});
    index.copy_(std::get<1>(made));
    return std::get<0>(made);
}
void maxpool2dBackward(Tensor dY, Tensor index, Tensor dX, int, int, int, int, int K, int stride) {
    // Of its input it only wants the size.
    dX.add_(at::max_pool2d_with_indices_backward(dY, dX, {K, K}, {stride, stride}, {0, 0}, {1, 1}, false, index));
}

Tensor mseForward(Tensor X, Tensor T, int) { return at::mse_loss(X, T).reshape({1}); }
void mseBackward(Tensor X, Tensor T, Tensor dX, int) {
    dX.add_(at::mse_loss_backward(at::ones({}), X, T, kMean));
}
Tensor crossEntropyForward(Tensor X, Tensor labels, int, int) { return at::cross_entropy_loss(X, labels).reshape({1}); }
void crossEntropyBackward(Tensor X, Tensor labels, Tensor dX, int, int) {
    Tensor chances = at::log_softmax(X, 1), one = at::ones({});
    auto [loss, weight] = at::nll_loss_forward(chances, labels, {}, kMean, -100);
    Tensor slopes = at::nll_loss_backward(one, chances, labels, {}, kMean, -100, weight);
    dX.add_(at::_log_softmax_backward_data(slopes, chances, 1, at::kFloat));
}
void sgdStep(Tensor P, Tensor G, int, float rate) { P.add_(G, -rate); }

Tensor nothing(int elements) { return at::empty({elements}, at::kFloat); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("addForward", &addForward);
    m.def("addBackward", &addBackward);
    m.def("mulForward", &mulForward);
    m.def("mulBackward", &mulBackward);
    m.def("reluForward", &reluForward);
    m.def("reluBackward", &reluBackward);
    m.def("matmulForward", &matmulForward);
    m.def("matmulBackward", &matmulBackward);
    m.def("linearForward", &linearForward);
    m.def("linearBackward", &linearBackward);
    m.def("conv2dForward", &conv2dForward);
    m.def("conv2dBackward", &conv2dBackward);
    m.def("maxpool2dForward", &maxpool2dForward);
    m.def("maxpool2dBackward", &maxpool2dBackward);
    m.def("mseForward", &mseForward);
    m.def("mseBackward", &mseBackward);
    m.def("crossEntropyForward", &crossEntropyForward);
    m.def("crossEntropyBackward", &crossEntropyBackward);
    m.def("sgdStep", &sgdStep);
    m.def("nothing", &nothing);
}
"""

MACHINE = r"""
#include <torch/extension.h>

#include <omp.h>

#include <cstring>
#include <vector>

torch::Tensor nothing(int elements) { return at::empty({elements}, at::kFloat); }

// Two arrays of so many floats, the same from call to call.
static std::vector<float> from, to;

static void resize(int floats) {
    if (static_cast<int>(from.size()) == floats) return;
    from.assign(floats, 1.0f);
    to.assign(floats, 0.0f);
}

// Gives each thread its own share of them.
template <class Work>
static void shared(int floats, Work work) {
    resize(floats);
#pragma omp parallel if (floats > 1 << 16)
    {
        const long team = omp_get_num_threads(), me = omp_get_thread_num();
        const long first = me * floats / team, last = (me + 1) * floats / team;
        work(to.data() + first, from.data() + first, last - first);
        asm volatile("" : : "r"(to.data()) : "memory");
    }
}

// Reads one number and writes another.
void copied(int floats) {
    shared(floats, [](float *a, const float *b, long n) { std::memcpy(a, b, n * sizeof(float)); });
}

// Reads two numbers and writes one of them.
void updated(int floats) {
    shared(floats, [](float *a, const float *b, long n) {
#pragma omp simd
        for (long i = 0; i < n; i++) a[i] += b[i];
    });
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("nothing", &nothing);
    m.def("copied", &copied);
    m.def("updated", &updated);
}
"""


def written(name: str, text: str) -> Path:
    """The file NAME.cpp with this text, in the cache. Raises KitError where that cannot be written."""
    folder = cache_root() / "ladder" / hashlib.sha256(text.encode()).hexdigest()[:16]
    path = folder / f"{name}.cpp"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        wholefile.write(path, [text])
    return path
