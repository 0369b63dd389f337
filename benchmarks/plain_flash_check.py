"""Check one flash-attention hand-in as the course does, in a plain process: `plain_flash_check.py FILE`.

On a GPU, the file runs unchanged. Without a GPU, Triton's interpreter runs it, and CPU tensors pretend to be CUDA
tensors.
"""

import contextlib
import importlib.util
import json
import os
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
os.environ["TRITON_INTERPRET"] = "01"[DEVICE == "cpu"]
import triton.language as tl  # noqa: E402  (reads TRITON_INTERPRET)
from triton.language.extra import libdevice  # noqa: E402
from triton.runtime import autotuner, interpreter, jit  # noqa: E402

LAUNCHES = []


def pretend_cuda():
    """Make CPU tensors look like CUDA tensors, and replace functions that need a GPU or a compiler."""

    def on_host(function):
        host = lambda x: "cpu" if isinstance(x, str | torch.device) and str(x).startswith("cuda") else x  # noqa: E731
        return lambda *args, **kw: function(*map(host, args), **{k: host(v) for k, v in kw.items()})

    factories = "arange empty empty_like eye full full_like ones ones_like rand randn tensor zeros zeros_like"
    for owner, names in ((torch, factories), (torch.Tensor, "to new_empty new_full new_ones new_zeros")):
        for name in names.split():
            setattr(owner, name, on_host(getattr(owner, name)))
    cuda_device = torch.device("cuda:0")
    torch.Tensor.device, torch.Tensor.is_cuda = property(lambda self: cuda_device), True
    torch.Tensor.cuda, torch.cuda.is_available = lambda self: self, lambda: True
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=100)
    for name in ("Stream", "stream", "current_stream", "synchronize"):
        setattr(torch.cuda, name, MagicMock())
    torch.compile = lambda function=None, **_: function or (lambda f: f)
    autotuner.Autotuner._bench = lambda self, *_, **__: [1.0] * 3  # takes the first configuration
    for name in ("exp", "exp2", "log", "log2"):
        setattr(libdevice, name, lambda x, name=name: getattr(tl, name)(x))
    dot = interpreter.InterpreterBuilder.create_dot  # multiplies the bits of bfloat16 as integers

    def widened_dot(self, a, b, *rest):
        wide = (self.create_fp_ext(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in (a, b))
        return dot(self, *wide, *rest)

    interpreter.InterpreterBuilder.create_dot = widened_dot


def find(module, language, inputs):
    """Return the autograd.Function for a language: by adapter, by name, or by whether it launches a kernel."""
    if adapter := getattr(module, f"get_flashattention_autograd_function_{language}", None):
        return adapter()
    functions = [x for x in vars(module).values() if isinstance(x, type(torch.autograd.Function))]
    named = [x for x in functions if language in x.__name__.lower()]
    for function in [] if named else functions:
        LAUNCHES.clear()
        with contextlib.suppress(Exception):
            function.apply(*inputs, True)
            if bool(LAUNCHES) == (language == "triton"):
                named.append(function)
    return named[0] if named else None


def close(got, want):
    return torch.allclose(got.double(), want, rtol=1e-2, atol=1e-2)


def judge(function, inputs, grad, causal):
    """Yield True if forward is right, else False; then the same for backward, of one call."""
    mine, exact = ([x.to(t, copy=True).requires_grad_() for x in inputs] for t in (torch.float, torch.double))
    scores, at = exact[0] @ exact[1].mT / 8, torch.arange(128, device=DEVICE)
    scores = scores.masked_fill(causal & (at[:, None] < at), -torch.inf)
    want = scores.softmax(-1) @ exact[2]
    out = function.apply(*mine, causal)
    out = out[0] if isinstance(out, tuple) else out
    sums = [x for x in out.grad_fn.saved_tensors if x.shape == (4, 128)]
    yield close(out, want) and len(sums) == 1 and close(sums[0], scores.logsumexp(-1))
    want.backward(grad.double())
    out.backward(grad)
    yield all(close(a.grad, b.grad) for a, b in zip(mine, exact, strict=True))


def verdicts(function, inputs, grad):
    """Return the verdicts on forward and backward: "right", "wrong" or "missing"."""
    found = ["right", "right"] if function else ["missing", "missing"]
    for causal in (False, True) if function else ():
        half, results = 0, judge(function, inputs, grad, causal)
        try:
            for half in (0, 1):
                found[half] = found[half] if next(results) else "wrong"
        except Exception as error:
            message = f"error: {type(error).__name__}: {str(error)[:200]}"
            found[half:] = ["missing" if isinstance(error, NotImplementedError) else message] * (2 - half)
    return found


def main(path):
    torch.manual_seed(0)
    *inputs, grad = (torch.randn(4, 128, 64, device=DEVICE) for _ in range(4))
    if DEVICE == "cpu":
        pretend_cuda()
    launcher = interpreter.InterpretedFunction if DEVICE == "cpu" else jit.JITFunction
    run = launcher.run
    launcher.run = lambda self, *args, **kw: (LAUNCHES.append(self), run(self, *args, **kw))[1]
    spec = importlib.util.spec_from_file_location("hand_in", path)
    module = sys.modules["hand_in"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    judged = {x: verdicts(find(module, x, inputs), inputs, grad) for x in ("pytorch", "triton")}
    return {f"{half}_{x}": judged[x][i] for x in judged for i, half in enumerate(("forward", "backward"))}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        line = json.dumps(main(sys.argv[1]))
    print(line)
