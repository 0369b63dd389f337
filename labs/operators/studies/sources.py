"""Programs with which the ladder compares a part, and the least work (operations, bytes) of each part.

One program has PyTorch's operators in the form of a student's file. The other copies or adds arrays, to measure the
speed of memory. Their sources are strings here, because a handout has no C++ file besides the starter.
"""

from __future__ import annotations

import hashlib
import math
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.assignment.expressions import evaluate_int
from grader.assignment.records import Part
from grader.backends.native.toolchain import X86, cache_root
from grader.backends.torch.labreference import SourceReference
from grader.core import plainfile

from .. import arithmetic

#: Function in both `PYTORCH` and `MACHINE`. It computes nothing, so its time is the time to make a call.
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
    // The second argument is the input, of which only the size is used: dX has the same size.
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
"""

MACHINE = r"""
#include <torch/extension.h>

#include <omp.h>

#include <cstring>
#include <vector>

torch::Tensor nothing(int elements) { return at::empty({elements}, at::kFloat); }

// Two arrays, which are kept from call to call if their size does not change.
static std::vector<float> from, to;

static void resize(int floats) {
    if (static_cast<int>(from.size()) == floats) return;
    from.assign(floats, 1.0f);
    to.assign(floats, 0.0f);
}

// Calls `work` in each thread, with the thread's own share of both arrays.
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

// Copies an array: reads one number for each number that it writes.
void copied(int floats) {
    shared(floats, [](float *a, const float *b, long n) { std::memcpy(a, b, n * sizeof(float)); });
}

// Adds an array to the other: reads two numbers for each number that it writes.
void updated(int floats) {
    shared(floats, [](float *a, const float *b, long n) {
#pragma omp simd
        for (long i = 0; i < n; i++) a[i] += b[i];
    });
}
"""


def with_bindings(text: str) -> str:
    """Return the C++ text with a PYBIND11_MODULE for its functions that return a Tensor or void and are not static."""
    names = re.findall(r"^(?:torch::)?(?:Tensor|void) (\w+)\(", text, re.MULTILINE)
    bound = "".join(f'    m.def("{name}", &{name});\n' for name in names)
    return f"{text}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{bound}}}\n"


def written(name: str, text: str) -> Path:
    """Write `with_bindings(text)` as NAME.cpp into the cache, and return the path. Raises OSError if it cannot."""
    text = with_bindings(text)
    folder = cache_root() / "ladder" / hashlib.sha256(text.encode()).hexdigest()[:16]
    path = folder / f"{name}.cpp"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        plainfile.write(path, [text])
    return path


# ---- the least work of a part: operations and bytes
# An addition, a product, a quotient, a comparison, exp() and log() are one operation each; a multiply-add is two.
# Matrix products and convolutions are counted by their definition, without the products with a border of zeros.
# Strassen's or Winograd's algorithms need fewer. The bytes of each tensor count once as read or as written, and as both
# if the function adds to it. A kernel may move more bytes, because it may read some of them twice.

Shape = Mapping[str, int]

FLOAT_BYTES, LABEL_BYTES = 4, 8
#: Names of the assignment's integer tensors. assignment.yaml does not state their type.
WHOLE = frozenset({"labels", "indices", "index"})


@dataclass(frozen=True)
class Work:
    """Least work of one call: `operations`, counted as in the comment above, and the bytes to read and to write.
    `in_place`: the function only adds to its inputs, so it reads all bytes that it writes.
    """

    operations: int
    read_bytes: int
    written_bytes: int
    in_place: bool = False

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def work(part: Part, shape: Shape) -> Work:
    """Return the least work of one call of a part."""
    read = written = 0
    for name, dims in _tensors(part).items():
        size = math.prod(evaluate_int(dim, shape) for dim in dims)
        size *= LABEL_BYTES if name in WHOLE else FLOAT_BYTES
        read += size if name in part.inputs else 0
        written += size if name in part.outputs else 0
    in_place = part.returns != "tensor" and all(name in part.inputs for name in part.outputs)
    if part.returns == "tensor":
        written += FLOAT_BYTES * math.prod(evaluate_int(dim, shape) for dim in part.output_dims)
    return Work(OPERATIONS[part.oracle](shape), read, written, in_place)


def _tensors(part: Part) -> dict[str, tuple[str, ...]]:
    """Return the dimensions of the tensors that the function takes, by name."""
    outputs = {name: tuple(output.dims) for name, output in part.outputs.items()}
    known = {**outputs, **{name: tuple(dims) for name, dims in part.inputs.items()}}
    return {name: known[name] for name in dict.fromkeys(part.arguments) if name in known}


def _products_of_images(s: Shape) -> int:
    """Return the number of products of a filter element and an image element, over all places, filters and images."""
    taps = arithmetic.usual_taps(s)
    rows = int(((taps.rows >= 0) & (taps.rows < s["height"])).sum())
    columns = int(((taps.columns >= 0) & (taps.columns < s["width"])).sum())
    return s["images"] * s["channels"] * s["filters"] * rows * columns


def _windows(s: Shape) -> int:
    down, right = ((s[name] - s["side"]) // s["step"] + 1 for name in ("rows", "columns"))
    return s["maps"] * s["planes"] * down * right


#: Functions that return the number of operations, by the name of a part's oracle.
OPERATIONS: Mapping[str, Callable[[Shape], int]] = {
    "add": lambda s: s["R"] * s["C"],
    "add_backward": lambda s: 2 * s["R"] * s["C"],
    "mul": lambda s: s["R"] * s["C"],
    "mul_backward": lambda s: 4 * s["R"] * s["C"],
    "relu": lambda s: s["n"],
    "relu_backward": lambda s: 2 * s["n"],
    "matmul": lambda s: 2 * s["M"] * s["K"] * s["N"],
    "matmul_backward": lambda s: 4 * s["M"] * s["K"] * s["N"],
    "linear": lambda s: 2 * s["batch"] * s["I"] * s["O"],
    "linear_backward": lambda s: (4 * s["I"] + 1) * s["batch"] * s["O"],
    "conv2d": lambda s: 2 * _products_of_images(s),
    "conv2d_backward": lambda s: (
        4 * _products_of_images(s) + s["images"] * s["filters"] * math.prod(arithmetic.out_size(s))
    ),
    "maxpool2d": lambda s: _windows(s) * (s["side"] ** 2 - 1),
    "maxpool2d_backward": _windows,
    "mse": lambda s: 3 * s["n"],
    "mse_backward": lambda s: 3 * s["n"],
    # Per logit: a comparison, a difference, exp() and an addition; backward also a quotient and a second addition.
    "cross_entropy": lambda s: 4 * s["batch"] * s["classes"],
    "cross_entropy_backward": lambda s: 6 * s["batch"] * s["classes"],
    "sgd": lambda s: 2 * s["n"],
}


# ---- fast.cpp, built once for each instruction set

FAST = "fast.cpp"
_AVX2 = ("-mavx2", "-mfma")
#: Compiler flags to add to the assignment's, by the instruction set's name in `grader.study.facts`; the widest last.
LEVELS = {"avx2": _AVX2, "avx512": (*_AVX2, "-mavx512f", "-mprefer-vector-width=512")}


def fast_kernels(folder: Path, level: str = "") -> SourceReference:
    """Return the fast kernels, built with the flags of `level`, one of LEVELS; for "", without further flags."""
    return SourceReference(folder, FAST, level=level, flags=LEVELS.get(level, ()))


def all_levels(folder: Path) -> tuple[SourceReference, ...]:
    """Return the builds of the fast kernels for a handout: one for each of LEVELS, or only one if not on x86-64."""
    levels = LEVELS if platform.machine().lower() in X86 else ("",)
    return tuple(fast_kernels(folder, level) for level in levels)


def widest(levels: Iterable[str]) -> str:
    """Return the widest of LEVELS that the processor supports, or "". `levels` are its instruction sets by name."""
    return next((level for level in reversed(LEVELS) if level in levels), "")
