"""Child process of the studies: loads the student's file, measures on the GPU, and answers one request in JSON.

The process reads {"what": a key of ANSWERS, "file": path, ...} from standard input and writes a line of JSON to
standard output: the result, {"missing": why} if this machine lacks something, or {"failed": why} if the file fails.
Times are in ms: medians of several calls, measured with CUDA events.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARMUPS, CALLS = 3, 9
LAUNCHING_CYCLES = 1_000_000
"""Clock cycles that the GPU waits before a timed call: half a millisecond, longer than launching the kernels takes."""
SIDE = 8192
"""Rows and columns of the square matrices for gelu, softmax and matmul."""


def loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    sys.path.append(str(Path(path).parent))  # The file may import modules from its folder.
    spec.loader.exec_module(module)
    return module


def median_ms(call: Callable[[], object]) -> float:
    """Return the median time in ms that the kernels of a call take on the GPU, without the time to launch them."""
    import torch

    for _ in range(WARMUPS):
        call()
    times = []
    for _ in range(CALLS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # Let the GPU wait until all launches are queued. Otherwise the launches' time would be measured, too.
        torch.cuda._sleep(LAUNCHING_CYCLES)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measured(call: Callable[[], object]) -> float | str:
    """Return a call's time in ms. If it fails, return its error as text, so that other calls can still be measured."""
    try:
        return median_ms(call)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80]


def card() -> dict[str, Any]:
    import torch

    about = torch.cuda.get_device_properties(0)
    return {"card": about.name, "multiprocessors": about.multi_processor_count, "torch": torch.__version__}


def waves(file: str, sides: list[int], inner: int) -> dict[str, Any]:
    """Return {"points": [[side, ms], ...]}: times of the student's `matmul` for (side, inner) times (inner, side)."""
    import torch

    kernels, points = loaded(file), []
    for side in sides:
        a, b = (
            torch.randn(*size, device="cuda", dtype=torch.float16) for size in ((side, inner), (inner, side))
        )
        c = torch.empty(side, side, device="cuda", dtype=torch.float16)
        points.append([side, median_ms(lambda a=a, b=b, c=c: kernels.matmul(a, b, c))])
    return {"points": points}


def roofline(file: str) -> dict[str, Any]:
    """Return the result of `roofs`, and as "ms" a dict by function name: its time in ms, or its error as text."""
    import torch

    kernels = loaded(file)
    x, z = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    y = torch.empty_like(x)
    q, k, v, do = (torch.rand(64, 4096, 64, device="cuda", dtype=torch.float16) for _ in range(4))
    calls: dict[str, Callable[[], object]] = {
        "gelu": lambda: kernels.gelu(x, y),
        "softmax": lambda: kernels.softmax(x, y),
        "softmax_long": lambda: kernels.softmax_long(x, y),
        "matmul": lambda: kernels.matmul(x, z, y),
        "flash_forward": lambda: kernels.flash_forward(q, k, v, False),
    }
    found = {name: measured(call) for name, call in calls.items()}
    if isinstance(found["flash_forward"], float):
        saved = kernels.flash_forward(q, k, v, False)
        found["flash_backward"] = measured(lambda: kernels.flash_backward(q, k, v, *saved, do, False))
    return {"ms": found, **roofs()}


def by_hand(x: Any) -> Any:
    """Return GELU of x, by plain PyTorch operations. Each of them launches a kernel that reads and writes a tensor."""
    import torch

    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def profile(file: str, trace: str) -> dict[str, Any]:
    """Time five versions of GELU. For each version that runs, write a trace to a file whose path begins with `trace`.

    Return {"ways": {version: error text, or {"ms": time, "kernels": [[name, number of launches, total us], ...]}}}.
    """
    import torch
    import torch.nn.functional as F
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    kernels = loaded(file)
    x = torch.randn(SIDE, SIDE, device="cuda")
    y = torch.empty_like(x)
    ways: dict[str, Callable[[], object]] = {
        "by hand": lambda: by_hand(x),
        "PyTorch": lambda: F.gelu(x, approximate="tanh"),
        "compiled": (lambda compiled: lambda: compiled(x))(torch.compile(by_hand)),
        "Triton": lambda: kernels.gelu(x, y),
    }
    found: dict[str, Any] = {}
    source = Path(file).with_suffix(".cu")
    try:
        launch = cuda_gelu(source)
        ways["CUDA"] = lambda: launch(x, y)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        found["CUDA"] = f"{source.name}: {str(error)[:80]}"
    for name, call in ways.items():
        try:
            ms = median_ms(call)
            with profiling(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                call()
                torch.cuda.synchronize()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:80]
            continue
        launched = [e for e in seen.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
        found[name] = {"ms": ms, "kernels": [[e.key, e.count, e.self_device_time_total] for e in launched]}
        seen.export_chrome_trace(f"{trace}-{name.lower().replace(' ', '-')}.json")
    return {"ways": found}


def cuda_gelu(source: Path) -> Callable[[Any, Any], None]:
    """Compile a CUDA source, and return a function that launches its `gelu`. Raises an error if compiling fails."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        flags = ("-O3", "-shared", "-Xcompiler", "-fPIC", "-arch=native")
        command = ["nvcc", *flags, "-o", str(library), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        function = ctypes.CDLL(str(library)).gelu

    def launch(x: Any, y: Any) -> None:
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, y))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if code := function(*pointers, x.shape[0], x.shape[1], stream):
            raise RuntimeError(f"gelu returned {code}")

    return launch


def memory(file: str, lengths: list[int], heads: int, d: int) -> dict[str, Any]:
    """Return {"points": [[N, peak bytes of naive attention, peak bytes of the student's attention], ...]}. The bytes do
    not include the inputs. They are None for a call that ran out of memory."""
    import torch

    kernels, points = loaded(file), []
    for n in lengths:
        q, k, v = (torch.randn(heads, n, d, device="cuda", dtype=torch.float16) for _ in range(3))
        row: list[int | None] = [n]
        for call in (
            lambda q=q, k=k, v=v: torch.softmax(q @ k.transpose(1, 2) * d**-0.5, -1) @ v,
            lambda q=q, k=k, v=v: kernels.flash_forward(q, k, v, False),
        ):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            try:
                call()
                torch.cuda.synchronize()
                row.append(torch.cuda.max_memory_allocated() - before)
            except torch.OutOfMemoryError:
                row.append(None)
        points.append(row)
        torch.cuda.empty_cache()
    return {"points": points}


# ---- the ladder

TYPES = {24: "float32", 11: "float16", 8: "bfloat16"}


def roofs() -> dict[str, float]:
    """Return the GPU's measured limits: "bytes_s" (bytes/s) of a copy, "flops_s" (FLOP/s) of a float16 product."""
    import torch

    x, z = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    y = torch.empty_like(x)
    bytes_s = 2 * x.numel() * 2 / median_ms(lambda: y.copy_(x)) * 1e3
    return {"bytes_s": bytes_s, "flops_s": 2 * SIDE**3 / median_ms(lambda: torch.matmul(x, z)) * 1e3}


def ladder(file: str, part: str, shape: dict[str, int], others: dict[str, str]) -> dict[str, Any]:
    """Return the result of `roofs`, and as "ms" a dict by kernel name: its time in ms, or its error as text.

    `others` has the paths of further files with a function called `part`, by name.
    """
    import torch

    dtype = getattr(torch, TYPES[shape["precision"]])
    kernels = {"yours": file, **others}
    calls, own = (_heads if part.startswith("flash") else _plain)(part, shape, dtype)
    for name, path in kernels.items():
        module = loaded(path)
        if hasattr(module, part):
            calls[name] = own(getattr(module, part))
    return {"ms": {name: measured(call) for name, call in calls.items()}, **roofs()}


Calls = tuple[dict[str, Callable[[], object]], Callable[[Any], Callable[[], object]]]


def _plain(part: str, shape: dict[str, int], dtype: Any) -> Calls:
    """Return functions without arguments that call PyTorch's versions of a part, by name.

    Also return a function that takes a kernel and returns such a function: it calls the kernel with the same inputs.
    """
    import torch
    import torch.nn.functional as F

    def softmax_by_hand(x: Any) -> Any:
        e = torch.exp(x - x.max(1, keepdim=True).values)
        return e / e.sum(1, keepdim=True)

    if part == "matmul":
        a = torch.randn(shape["rows"], shape["inner"], device="cuda").to(dtype)
        b = torch.randn(shape["inner"], shape["columns"], device="cuda").to(dtype)
        c = torch.empty(shape["rows"], shape["columns"], device="cuda", dtype=dtype)
        return {"PyTorch's best": lambda: torch.matmul(a, b)}, lambda function: lambda: function(a, b, c)
    sizes = ("lines", "width") if part == "softmax_long" else ("R", "C")
    x = torch.randn(*(shape[name] for name in sizes), device="cuda").to(dtype)
    y = torch.empty_like(x)
    naive = by_hand if part == "gelu" else softmax_by_hand
    compiled = torch.compile(naive)
    calls: dict[str, Callable[[], object]] = {
        "by hand": lambda: naive(x),
        "compiled": lambda: compiled(x),
        "PyTorch's best": (lambda: F.gelu(x, approximate="tanh"))
        if part == "gelu"
        else (lambda: torch.softmax(x, 1)),
    }
    return calls, lambda function: lambda: function(x, y)


def _heads(part: str, shape: dict[str, int], dtype: Any) -> Calls:
    """Return functions as `_plain` does, for the parts of attention."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads, n, m, d, causal = shape["B"], shape["N"], shape["M"], shape["d"], bool(shape["causal"])
    q, k, v, do = (torch.randn(heads, rows, d, device="cuda").to(dtype) for rows in (n, m, m, n))
    backward = part == "flash_backward"
    seen = torch.ones(n, m, dtype=torch.bool, device="cuda").tril() if causal else None

    def naive(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.transpose(1, 2) * d**-0.5
        if seen is not None:
            s = s.masked_fill(~seen, float("-inf"))
        return torch.softmax(s, -1) @ v

    given = [t.detach().requires_grad_(backward) for t in (q, k, v)]

    def way(function: Callable[..., Any]) -> Callable[[], object]:
        if not backward:
            return lambda: function(*given)
        made = function(*given)
        return lambda: torch.autograd.grad(made, given, do, retain_graph=True)

    def library(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]

    calls: dict[str, Callable[[], object]] = {"by hand": way(naive), "compiled": way(torch.compile(naive))}
    best: tuple[float, Callable[[], object]] | None = None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        try:
            with sdpa_kernel(backend):
                made = way(library)

            def call(backend: Any = backend, made: Callable[[], object] = made) -> object:
                with sdpa_kernel(backend):
                    return made()

            ms = median_ms(call)
        except RuntimeError:
            continue
        if best is None or ms < best[0]:
            best = ms, call
    if best is not None:
        calls["PyTorch's best"] = best[1]
    if not backward:
        return calls, lambda function: lambda: function(q, k, v, causal)
    o, lse = _saved(q, k, v, seen)
    return calls, lambda function: lambda: function(q, k, v, o, lse, do, causal)


def _saved(q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """Return O (B, N, d) and the log-sum-exp (B, N) for the inputs q, k and v, computed head by head to save memory.

    `seen` is the mask (N, M) of the keys that each query uses; None for all keys.
    """
    import torch

    o, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=q.device)
    for head in range(len(q)):
        s = (q[head].float() @ k[head].float().T) * q.shape[2] ** -0.5
        s = s if seen is None else s.masked_fill(~seen, float("-inf"))
        lse[head] = torch.logsumexp(s, 1)
        o[head] = (torch.softmax(s, 1) @ v[head].float()).to(q.dtype)
    return o, lse


ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "waves": waves,
    "roofline": roofline,
    "profile": profile,
    "memory": memory,
    "ladder": ladder,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return {"missing": f"{error.name} is not installed: pip install torch triton"}
    if not torch.cuda.is_available():
        return {"missing": "this study needs a GPU, and torch finds none"}
    what = request.pop("what")
    try:
        return {**card(), **ANSWERS[what](**request)}
    except Exception as error:
        last = (str(error).strip().splitlines() or [""])[-1]
        return {"failed": f"{type(error).__name__}: {last}"[:300]}


if __name__ == "__main__":
    # Keep the student's prints out of the reply.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(answer(json.load(sys.stdin))), file=replies, flush=True)
