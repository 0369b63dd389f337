"""Check one flash-attention hand-in as the course does, in a plain process: `plain_flash_check.py FILE`.

On a GPU, the file runs as it is. Without one, Triton's interpreter runs it and CPU tensors answer as CUDA tensors.
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
    """Make CPU tensors answer as CUDA tensors. Replace what needs a GPU or a compiler."""

    def on_host(function):
        host = lambda x: "cpu" if isinstance(x, str | torch.device) and str(x).startswith("cuda") else x  # noqa: E731
        return lambda *args, **kw: function(*map(host, args), **{k: host(v) for k, v in kw.items()})

    factories = "arange empty empty_like eye full full_like ones ones_like rand randn tensor zeros zeros_like"
    for owner, names in ((torch, factories), (torch.Tensor, "to new_empty new_full new_ones new_zeros")):
        for name in names.split():
            setattr(owner, name, on_host(getattr(owner, name)))
    cuda_device, compute = (
        torch.device("cuda:0"),
        SimpleNamespace(multi_processor_count=100, major=9, minor=0),
    )
    torch.Tensor.device, torch.Tensor.is_cuda = property(lambda self: cuda_device), True
    torch.Tensor.cuda, torch.cuda.is_available = lambda self: self, lambda: True
    torch.cuda.get_device_properties = lambda *_: compute
    for name in ("Stream", "stream", "current_stream", "synchronize"):
        setattr(torch.cuda, name, MagicMock())
    torch.compile = lambda function=None, **_: function or (lambda f: f)
    autotuner.Autotuner._bench = lambda self, *_, **__: [1.0] * 3  # takes the first configuration
    for name in ("exp", "exp2", "log", "log2"):
        setattr(libdevice, name, lambda x, name=name: getattr(tl, name)(x))
    dot = interpreter.InterpreterBuilder.create_dot  # multiplies the bits of bfloat16 as integers

    def widened_dot(self, a, b, *rest):
        return dot(
            self, *(self.create_fp_ext(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in (a, b)), *rest
        )

    interpreter.InterpreterBuilder.create_dot = widened_dot


def find(module, language, inputs):
    """Return the autograd.Function for a language: by adapter, by name, or by whether it launches a kernel."""
    if adapter := getattr(module, f"get_flashattention_autograd_function_{language}", None):
        return adapter()
    functions = [
        x for x in vars(module).values() if isinstance(x, type) and issubclass(x, torch.autograd.Function)
    ]
    named = [x for x in functions if language in x.__name__.lower()]
    for function in [] if named else functions:
        LAUNCHES.clear()
        with contextlib.suppress(Exception):
            function.apply(*inputs, True)
            if bool(LAUNCHES) == (language == "triton"):
                named.append(function)
    return named[0] if named else None


def judge(function, inputs, grad):
    """Return the verdicts on forward and backward."""
    verdicts, out = ["right", "right"] if function else ["missing", "missing"], None
    close = lambda got, want: torch.allclose(got.double(), want, rtol=1e-2, atol=1e-2)  # noqa: E731
    for causal, half in ((c, h) for c in (False, True) for h in (0, 1) if function):
        try:
            if half == 0:
                mine, exact = (
                    [x.to(t).clone().requires_grad_() for x in inputs] for t in (torch.float32, torch.float64)
                )
                scores, at = (
                    exact[0] @ exact[1].mT / inputs[0].shape[-1] ** 0.5,
                    torch.arange(128, device=DEVICE),
                )
                scores = scores.masked_fill(causal & (at[:, None] < at), -torch.inf)
                out, want = function.apply(*mine, causal), scores.softmax(-1) @ exact[2]
                out = out[0] if isinstance(out, tuple) else out
                sums = [x for x in out.grad_fn.saved_tensors if x.shape == (4, 128)]
                good = close(out, want) and len(sums) == 1 and close(sums[0], scores.logsumexp(-1))
            else:
                want.backward(grad.double())
                out.backward(grad)
                good = all(close(a.grad, b.grad) for a, b in zip(mine, exact, strict=True))
            verdicts[half] = verdicts[half] if good else "wrong"
        except NotImplementedError:
            verdicts[half] = "missing"
        except Exception as error:  # noqa: PERF203
            verdicts[half] = f"error: {type(error).__name__}: {str(error)[:200]}"
    return verdicts


def main(path):
    torch.manual_seed(0)
    *inputs, grad = (torch.randn(4, 128, 64, device=DEVICE, requires_grad=True) for _ in range(4))
    if DEVICE == "cpu":
        pretend_cuda()
    launcher = interpreter.InterpretedFunction if DEVICE == "cpu" else jit.JITFunction
    run = launcher.run
    launcher.run = lambda self, *args, **kw: (LAUNCHES.append(self), run(self, *args, **kw))[1]
    spec = importlib.util.spec_from_file_location("hand_in", path)
    module = sys.modules["hand_in"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    judged = {
        x: judge(find(module, x, inputs), [y.detach() for y in inputs], grad.detach())
        for x in ("pytorch", "triton")
    }
    return {f"{half}_{x}": judged[x][i] for x in judged for i, half in enumerate(("forward", "backward"))}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        line = json.dumps(main(sys.argv[1]))
    print(line)
