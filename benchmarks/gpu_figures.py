"""What the lab `gpu`'s kernels reach on this machine's GPU, beside PyTorch's and the card's own limits, in one run.

    python benchmarks/gpu_figures.py [--seconds 230] [--only attention,sweep,...] [--json FILE]

Needs a GPU with its torch and triton; nothing else of the kit. All times are medians of CUDA events with their
quartiles, the rivals of one case taken in turns. Every step is made in a process of its own and has its time: one
that fails or hangs costs its own line. Kernels are compiled beforehand, on all cores. The sweep of tiles comes last
and fills what time is left.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parents[1] / "labs" / "gpu"
SHAPES = ((4, 48, 4096, 32), (4, 16, 4096, 64), (4, 16, 4096, 128))
"""Batch, heads, queries, d of the figures of attention."""
SIDE = 16384
"""Rows and columns of GELU and softmax: 1 GiB of float32."""
LAUNCHING_CYCLES = 1_000_000
"""Half a millisecond of the GPU's clock, longer than the launches of any call here."""
STEP_LIMIT_S = 40.0
CHECKED = (
    ("float16", (3, 200, 200, 64)),
    ("float16", (2, 129, 257, 40)),
    ("float16", (2, 300, 300, 128)),
    ("float16", (2, 1, 77, 128)),
    ("bfloat16", (2, 200, 100, 64)),
    ("float32", (3, 200, 200, 64)),
    ("float32", (2, 65, 129, 128)),
)
"""Types and (heads, queries, keys, d) whose results are looked at."""
Blocks = tuple[Any, ...]

# ---- what is tried


def forward_sweep(d: int) -> list[tuple[str, Blocks]]:
    """("master" or "tuned", (rows, keys, warps, stages))."""
    both = [(64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 2), (64, 128, 4, 2), (64, 128, 4, 3)]
    both += [
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (128, 128, 8, 2),
        (64, 32, 4, 3),
        (64, 64, 4, 4),
        (128, 32, 4, 3),
    ]
    return [(kind, b) for kind in ("tuned", "master") for b in both]


def backward_sweep(d: int) -> list[tuple[str, Blocks]]:
    """("keys" or "queries", (rows, keys, warps, stages)) of the master's two kernels; ("tuned", (..., late, bulk))."""
    keys = [
        (64, 64, 4, 2),
        (64, 128, 4, 2),
        (32, 64, 4, 2),
        (32, 64, 4, 3),
        (64, 64, 4, 1),
        (64, 128, 8, 2),
        (128, 64, 4, 2),
    ]
    queries = [
        (64, 64, 4, 2),
        (64, 64, 4, 3),
        (64, 32, 4, 3),
        (128, 64, 8, 3),
        (128, 64, 8, 2),
        (64, 128, 4, 2),
        (128, 32, 4, 2),
    ]
    tuned = [
        (64, 64, 4, 2),
        (64, 128, 4, 2),
        (64, 64, 4, 1),
        (64, 128, 8, 2),
        (128, 64, 4, 2),
        (64, 64, 8, 2),
        (128, 128, 8, 2),
    ]
    found = [("tuned", (*b, late, bulk)) for b in tuned for late in (False, True) for bulk in (True, False)]
    return found + [("keys", b) for b in keys] + [("queries", b) for b in queries]


def steps() -> Iterator[dict[str, Any]]:
    """Yield all steps, the most important first."""
    yield {"step": "machine"}
    yield {"step": "check_rows"}
    for dtype, sizes in CHECKED:
        for causal in (False, True):
            yield {"step": "check_flash", "dtype": dtype, "sizes": sizes, "causal": causal}
    for shape in SHAPES:
        for causal in (False, True):
            yield {"step": "attention", "shape": shape, "causal": causal}
    yield {"step": "memory_bound"}
    yield {"step": "matmul"}
    yield {"step": "sweep_elements"}
    yield {"step": "waves"}
    yield {"step": "kernels_of_gelu"}
    yield {"step": "memory_of_attention"}
    for causal in (False, True):
        for shape in SHAPES[::-1]:
            for kind, blocks in forward_sweep(shape[3]):
                yield {
                    "step": "sweep_forward",
                    "shape": shape,
                    "causal": causal,
                    "kind": kind,
                    "blocks": blocks,
                }
            for kind, blocks in backward_sweep(shape[3]):
                yield {
                    "step": "sweep_backward",
                    "shape": shape,
                    "causal": causal,
                    "kind": kind,
                    "blocks": blocks,
                }


# ---- the process that measures


@functools.cache
def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"figures_{name}", LAB / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def once_ms(call: Callable[[], object]) -> float:
    """Measure the time on the GPU of the kernels that a call launches, without the time that Python takes to launch
    them."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # The card waits, so that all launches are queued when it comes to the first event.
    torch.cuda._sleep(LAUNCHING_CYCLES)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def in_turns(calls: dict[str, Callable[[], object]], rounds: int, warmups: int = 3) -> dict[str, Any]:
    """Return (median, lower quartile, upper quartile) in ms of each call, or its error."""
    import torch

    found: dict[str, Any] = {}
    times: dict[str, list[float]] = {}
    for name, call in calls.items():
        try:
            for _ in range(warmups):
                call()
            torch.cuda.synchronize()
            times[name] = []
        except Exception as error:  # noqa: PERF203  one rival less is no reason for none
            found[name] = f"{type(error).__name__}: {str(error)[:90]}"
    for _ in range(rounds):
        for name in times:
            times[name].append(once_ms(calls[name]))
    for name, values in times.items():
        lower, middle, upper = statistics.quantiles(values, n=4)
        found[name] = [round(middle, 4), round(lower, 4), round(upper, 4)]
    return found


def heads(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Any]:
    """q, k, v and dO, (B, H, N, d)."""
    import torch

    torch.manual_seed(seed)
    return [torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(4)]


def machine() -> dict[str, Any]:
    import torch
    import triton

    about = torch.cuda.get_device_properties(0)
    found = {"gpu": about.name, "SMs": about.multi_processor_count, "torch": torch.__version__}
    found |= {
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "GiB": about.total_memory >> 30,
    }
    asked = "driver_version,compute_mode,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    shown = subprocess.run(
        ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True
    )
    return {**found, asked: shown.stdout.strip()}


def exact(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """O and the log-sum-exp of (heads, N, d) in float64."""
    import torch

    s = q @ k.transpose(1, 2) * q.shape[2] ** -0.5
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[1:], dtype=torch.bool, device=s.device).tril(), float("-inf"))
    return torch.softmax(s, 2) @ v, torch.logsumexp(s, 2)


def error(got: Any, right: Any) -> float:
    """The largest error, against the largest right number."""
    import torch

    worst = ((got.double() - right).abs().max() / right.abs().max()).item()
    return round(worst, 8) if torch.isfinite(got).all() else float("inf")


def check_rows() -> dict[str, Any]:
    """Largest errors of GELU, softmax and the product on this card, in all types and on columns that lie in rows."""
    import torch

    kernels, found = module("kernels"), {}
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        x = (torch.randn(37, 1031, device="cuda") * 4).to(dtype)
        rights = {
            "gelu": torch.nn.functional.gelu(x.double(), approximate="tanh"),
            "softmax": torch.softmax(x.double(), 1),
        }
        for function in ("gelu", "softmax", "softmax_long"):
            right = rights[function.partition("_")[0]]
            errors = []
            for given in (x, x.t().contiguous().t()):
                y = torch.full(x.shape, float("nan"), device="cuda", dtype=dtype)
                getattr(kernels, function)(given, y)
                errors.append(error(y, right))
            found[f"{function} {name}"] = errors
        errors = []
        for m, inner, n in ((129, 65, 257), (1024, 1040, 1056), (1, 1000, 17)):
            a, b = (
                torch.randn(m, inner, device="cuda").to(dtype),
                torch.randn(n, inner, device="cuda").to(dtype).t(),
            )
            c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
            kernels.matmul(a, b, c)
            errors.append(error(c, a.double() @ b.double()))
        found[f"matmul {name}"] = errors
    return found


def check_flash(dtype: str, sizes: tuple[int, ...], causal: bool) -> dict[str, Any]:
    """Largest errors of O, lse, dQ, dK and dV where heads lie beside each other in memory."""
    import torch

    kernels = module("kernels")
    count, n, m, d = sizes
    device = "meta" if COMPILING else "cuda"
    torch.manual_seed(0)
    q, k, v, do = (
        torch.randn(rows, count, d, device=device).to(getattr(torch, dtype)).transpose(0, 1)
        for rows in (n, m, m, n)
    )
    o, lse = kernels.flash_forward(q, k, v, causal)
    if COMPILING:
        kernels.flash_backward(q, k, v, o, lse, do, causal)
        return {}
    double = [t.double().requires_grad_() for t in (q, k, v)]
    right, sums = exact(*double, causal)
    right.backward(do.double())
    grads = kernels.flash_backward(q, k, v, right.to(q.dtype), sums.float(), do, causal)
    return {
        "errors": [
            error(o, right),
            error(lse, sums),
            *(error(g, t.grad) for g, t in zip(grads, double, strict=True)),
        ]
    }


def attention(shape: tuple[int, ...], causal: bool) -> dict[str, Any]:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels, tuned = module("kernels"), module("tuned")
    q, k, v, do = heads(shape, torch.float16)
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    grads = [t.detach().requires_grad_() for t in (q, k, v)]
    o, lse = kernels.flash_forward(*flat, causal)
    dflat = do.flatten(0, 1)
    forward: dict[str, Callable[[], object]] = {}
    backward: dict[str, Callable[[], object]] = {}
    for name, backend in (
        ("pytorch flash", SDPBackend.FLASH_ATTENTION),
        ("pytorch cudnn", SDPBackend.CUDNN_ATTENTION),
    ):

        def sdpa(backend: Any = backend) -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        forward[name] = sdpa
        try:
            with sdpa_kernel(backend):
                made = F.scaled_dot_product_attention(*grads, is_causal=causal)
            backward[name] = functools.partial(torch.autograd.grad, made, grads, do, retain_graph=True)
        except RuntimeError:
            pass
    forward |= {
        "master": lambda: kernels.flash_forward(*flat, causal),
        "tuned": lambda: tuned.flash_forward(*flat, causal),
    }
    backward |= {
        "master": lambda: kernels.flash_backward(*flat, o, lse, dflat, causal),
        "tuned": lambda: tuned.flash_backward(*flat, o, lse, dflat, causal),
    }
    found: dict[str, Any] = {"forward": in_turns(forward, 21), "backward": in_turns(backward, 15)}
    flops = 4 * shape[0] * shape[1] * shape[2] ** 2 * shape[3] / (2 if causal else 1)
    for which, count in (("forward", flops), ("backward", 2.5 * flops)):
        times = {name: t[0] for name, t in found[which].items() if isinstance(t, list)}
        best = min((t for name, t in times.items() if name.startswith("pytorch")), default=float("nan"))
        found[which + " TFLOP/s"] = {name: round(count / t / 1e9) for name, t in times.items()}
        found[which + " x best of PyTorch"] = {name: round(best / t, 3) for name, t in times.items()}
    found["errors"] = flash_errors({"master": kernels, "tuned": tuned}, flat, o, lse, dflat, causal)
    return found


def flash_errors(
    modules: dict[str, Any], flat: list[Any], o: Any, lse: Any, do: Any, causal: bool
) -> dict[str, Any]:
    """Errors of O, lse, dQ, dK and dV in the last head."""
    found = {}
    double = [t[-1:].double().requires_grad_() for t in flat]
    right, sums = exact(*double, causal)
    right.backward(do[-1:].double())
    for name, kernels in modules.items():
        try:
            got, got_sums = kernels.flash_forward(*flat, causal)
            grads = kernels.flash_backward(*flat, o, lse, do, causal)
            errors = [error(got[-1:], right), error(got_sums[-1:], sums)]
            found[name] = errors + [error(g[-1:], t.grad) for g, t in zip(grads, double, strict=True)]
        except Exception as failed:  # noqa: PERF203
            found[name] = f"{type(failed).__name__}: {str(failed)[:90]}"
    return found


def memory_bound() -> dict[str, Any]:
    import torch

    return {str(dtype): rows_of(dtype) for dtype in (torch.float32, torch.bfloat16)}


def rows_of(dtype: Any) -> dict[str, Any]:
    """GELU and softmax of SIDE x SIDE numbers, in ways that read and write them at least once."""
    import torch
    import torch.nn.functional as F

    kernels = module("kernels")
    torch.cuda.empty_cache()
    x = torch.randn(SIDE, SIDE, device="cuda").to(dtype)
    y = torch.empty_like(x)

    def by_hand(x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))

    def softmax_by_hand(x: Any) -> Any:
        e = torch.exp(x - x.max(1, keepdim=True).values)
        return e / e.sum(1, keepdim=True)

    compiled, softmax_compiled = torch.compile(by_hand), torch.compile(softmax_by_hand)
    calls = {
        "copy": lambda: y.copy_(x),
        "gelu": lambda: kernels.gelu(x, y),
        "softmax": lambda: kernels.softmax(x, y),
        "softmax_long": lambda: kernels.softmax_long(x, y),
        "gelu pytorch": lambda: F.gelu(x, approximate="tanh"),
        "softmax pytorch": lambda: torch.softmax(x, 1),
        "gelu by hand": lambda: by_hand(x),
        "softmax by hand": lambda: softmax_by_hand(x),
        "gelu compiled": lambda: compiled(x),
        "softmax compiled": lambda: softmax_compiled(x),
    }
    times = in_turns(calls, 21)
    bytes_moved = 2 * x.numel() * x.element_size()
    rates = {name: bytes_moved / t[0] / 1e9 for name, t in times.items() if isinstance(t, list)}
    return {
        name: {"ms": t, "TB/s": round(rates[name], 3), "of copy": round(rates[name] / rates["copy"], 3)}
        if name in rates
        else t
        for name, t in times.items()
    }


def matmul() -> dict[str, Any]:
    import torch

    kernels, found = module("kernels"), {}
    for dtype in (torch.float16, torch.float32):
        torch.backends.cuda.matmul.allow_tf32 = True
        for n in (1024, 4096, 8192):
            a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
            c = torch.empty_like(a)
            times = in_turns(
                {
                    "master": functools.partial(kernels.matmul, a, b, c),
                    "cublas": functools.partial(torch.matmul, a, b),
                },
                11,
            )
            rate = {name: round(2 * n**3 / t[0] / 1e9) for name, t in times.items() if isinstance(t, list)}
            found[f"{str(dtype)[6:]} {n}"] = {**times, "TFLOP/s": rate}
    return found


def swept(
    shape: tuple[int, ...], causal: bool, kind: str, blocks: Blocks, *, backward: bool
) -> Callable[[], object]:
    """A call with these blocks. On meta tensors where GPT149_COMPILE is set, and then nothing runs."""
    import torch

    kernels, tuned = module("kernels"), module("tuned")
    device = "meta" if COMPILING else "cuda"
    torch.manual_seed(0)
    rows = (shape[0] * shape[1], *shape[2:])
    q, k, v, do, o = (torch.empty(rows, device=device, dtype=torch.float16) for _ in range(5))
    lse = torch.empty(rows[:2], device=device)
    if not COMPILING:
        for t in (q, k, v, do):
            t.normal_()
        o, lse = kernels.flash_forward(q, k, v, causal)
    if kind == "tuned":
        if backward:
            return lambda: tuned.flash_backward(q, k, v, o, lse, do, causal, tuple(blocks))
        return lambda: tuned.flash_forward(q, k, v, causal, tuple(blocks))
    name = {"master": "_forward_blocks", "keys": "_key_blocks", "queries": "_query_blocks"}[kind]

    def call() -> object:
        usual = getattr(kernels, name)
        setattr(kernels, name, lambda *_: tuple(blocks))
        try:
            if backward:
                return kernels.flash_backward(q, k, v, o, lse, do, causal)
            return kernels.flash_forward(q, k, v, causal)
        finally:
            setattr(kernels, name, usual)

    return call


def sweep(
    shape: tuple[int, ...], causal: bool, kind: str, blocks: Blocks, *, backward: bool
) -> dict[str, Any]:
    times = in_turns({"t": swept(shape, causal, kind, blocks, backward=backward)}, 9, 2)["t"]
    return {"ms": times}


def sweep_elements() -> dict[str, Any]:
    import torch

    kernels, found = module("kernels"), {}
    x = torch.randn(SIDE, SIDE, device="cuda")
    y = torch.empty_like(x)
    calls = {}
    for block in (1024, 2048, 4096, 8192, 16384):
        for warps in (4, 8, 16):
            blocks = SIDE // block
            calls[f"gelu {block} {warps}"] = functools.partial(
                kernels._gelu[(SIDE * blocks,)],
                x,
                y,
                SIDE,
                1,
                SIDE,
                1,
                SIDE,
                blocks,
                BLOCK=block,
                num_warps=warps,
            )
            if block <= 8192:
                calls[f"softmax_long {block} {warps}"] = functools.partial(
                    kernels._softmax_blocks[(SIDE,)],
                    x,
                    y,
                    SIDE,
                    1,
                    SIDE,
                    1,
                    SIDE,
                    BLOCK=block,
                    num_warps=warps,
                )
    for warps in (4, 8, 16, 32):
        calls[f"softmax {warps}"] = functools.partial(
            kernels._softmax_row[(SIDE,)], x, y, SIDE, 1, SIDE, 1, SIDE, BLOCK=SIDE, num_warps=warps
        )
    for name, t in in_turns(calls, 7, 2).items():
        found[name] = round(2 * x.numel() * 4 / t[0] / 1e9, 3) if isinstance(t, list) else t
    return found


def waves() -> dict[str, Any]:
    """[side, ms] of square fp16 products with tiles of 128 x 256, inner size 4096."""
    import torch
    import triton

    kernels, inner, found = module("kernels"), 4096, []
    for side in range(1024, 5633, 128):
        a, b = (torch.randn(*s, device="cuda", dtype=torch.float16) for s in ((side, inner), (inner, side)))
        c = torch.empty(side, side, device="cuda", dtype=torch.float16)
        tiles = triton.cdiv(side, 128) * triton.cdiv(side, 256)
        call = functools.partial(
            kernels._matmul[(tiles,)], a, b, c, *a.stride(), *b.stride(), *c.stride(), side, side, inner,
            ROWS=128, COLUMNS=256, INNER=64, GROUP=8, num_warps=8, num_stages=3,
        )  # fmt: skip
        t = in_turns({"t": call}, 9, 2)["t"]
        found.append([side, t[0] if isinstance(t, list) else t])
    return {"tile": [128, 256], "inner": inner, "points": found}


def kernels_of_gelu() -> dict[str, Any]:
    """The kernels that each way to write GELU launches, by torch's profiler: [name, how often, us]."""
    import torch
    import torch.nn.functional as F
    from torch.profiler import ProfilerActivity, profile

    kernels = module("kernels")
    x = torch.randn(4096, 4096, device="cuda")
    y = torch.empty_like(x)

    def by_hand(x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))

    compiled, found = torch.compile(by_hand), {}
    ways = {
        "by hand": lambda: by_hand(x),
        "pytorch": lambda: F.gelu(x, approximate="tanh"),
        "compiled": lambda: compiled(x),
        "triton": lambda: kernels.gelu(x, y),
    }
    for name, call in ways.items():
        call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            call()
            torch.cuda.synchronize()
        found[name] = [
            [e.key[:80], e.count, round(e.self_device_time_total, 1)]
            for e in seen.key_averages()
            if e.self_device_time_total > 0 and e.device_type != torch.autograd.DeviceType.CPU
        ]
    return found


def memory_of_attention() -> dict[str, Any]:
    """[N, peak bytes of naive attention, of flash attention] at 8 heads of d = 64, fp16."""
    import torch

    def naive(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(2, 3) * 0.125, -1) @ v

    kernels, found = module("kernels"), []
    for n in (512, 1024, 2048, 4096, 8192, 16384):
        q, k, v, _ = heads((1, 8, n, 64), torch.float16)
        row: list[Any] = [n]
        for call in (
            functools.partial(naive, q, k, v),
            functools.partial(kernels.flash_forward, *(t.flatten(0, 1) for t in (q, k, v)), False),
        ):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            try:
                call()
                torch.cuda.synchronize()
                row.append(torch.cuda.max_memory_allocated() - before)
            except torch.OutOfMemoryError:
                row.append("out of memory")
        found.append(row)
        torch.cuda.empty_cache()
    return {"points": found}


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "machine": machine,
    "check_rows": check_rows,
    "check_flash": check_flash,
    "attention": attention,
    "memory_bound": memory_bound,
    "matmul": matmul,
    "sweep_forward": functools.partial(sweep, backward=False),
    "sweep_backward": functools.partial(sweep, backward=True),
    "sweep_elements": sweep_elements,
    "waves": waves,
    "kernels_of_gelu": kernels_of_gelu,
    "memory_of_attention": memory_of_attention,
}
COMPILING = False


def work() -> None:
    """Read a line of JSON and answer with one, until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        given = json.loads(line)
        name = given.pop("step")
        try:
            found = STEPS[name](**given)
        except Exception as failed:
            found = {"failed": f"{type(failed).__name__}: {str(failed)[:300]}"}
            if "CUDA error" in str(failed) or "device-side" in str(failed):
                found["fatal"] = True
        print(json.dumps(found), file=out, flush=True)


def compile_share(share: int, of: int) -> None:
    """Compile every `of`-th kernel of the sweeps into Triton's cache, and run none."""
    global COMPILING
    COMPILING = True
    import triton

    run = triton.runtime.JITFunction.run
    triton.runtime.JITFunction.run = lambda self, *a, **k: run(self, *a, **{**k, "warmup": True})
    wanted = [s for s in steps() if "blocks" in s or s["step"] == "check_flash"]
    for given in wanted[share::of]:
        name = given.pop("step")
        try:
            if name == "check_flash":
                check_flash(**given)
            else:
                swept(**given, backward=name == "sweep_backward")()
        except Exception:  # the step itself will say so
            continue


# ---- the process that asks


class Worker:
    """A process that measures, replaced when it hangs."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()

    def ask(self, given: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if self.process is None:
            command = [sys.executable, str(Path(__file__).resolve()), "--work"]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            self.lines = queue.Queue()
            threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(given) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=limit_s)
        except (queue.Empty, OSError):
            self.stop()
            return {"failed": f"no answer within {limit_s:.0f} s"}
        if line is None:
            self.stop()
            return {"failed": "the process ended"}
        found: dict[str, Any] = json.loads(line)
        if found.get("fatal"):
            self.stop()
        return found

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def shown(given: dict[str, Any], found: dict[str, Any]) -> str:
    about = " ".join(str(value) for key, value in given.items() if key != "step")
    head = f"{given['step']} {about}".strip()
    if len(found) == 1 and "failed" not in found:
        return f"{head}  {json.dumps(*found.values())}"
    if "failed" in found:
        return f"{head}  FAILED {found['failed']}"
    return f"{head}\n" + "\n".join(f"    {key}: {json.dumps(value)}" for key, value in found.items())


def best_of_sweep(results: list[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[str]:
    best: dict[tuple[str, ...], tuple[float, Blocks]] = {}
    for given, found in results:
        if given["step"] in ("sweep_forward", "sweep_backward") and isinstance(found.get("ms"), list):
            key = (
                given["step"],
                given["kind"],
                f"d={given['shape'][3]}",
                "causal" if given["causal"] else "full",
            )
            best[key] = min(best.get(key, (float("inf"), ())), (found["ms"][0], tuple(given["blocks"])))
    for key, (ms, blocks) in sorted(best.items()):
        yield f"best {' '.join(key)}: {ms} ms {blocks}"


def main() -> int:
    parse = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parse.add_argument("--seconds", type=float, default=230, help="what may be spent in all (%(default)s)")
    parse.add_argument(
        "--only", help="these steps alone, by the beginnings of their names: attention,sweep_forward"
    )
    parse.add_argument("--json", type=Path, help="write every result there as well, a line each")
    parse.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parse.add_argument("--compile", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.work:
        work()
        return 0
    if given.compile:
        compile_share(*given.compile)
        return 0
    began = time.monotonic()
    only = tuple(given.only.split(",")) if given.only else ("",)
    wanted = [step for step in steps() if step["step"].startswith(only)]
    compilers = []
    if any("blocks" in step or step["step"] == "check_flash" for step in wanted):
        count = max(1, (os.cpu_count() or 2) - 2)
        command = [sys.executable, str(Path(__file__).resolve()), "--compile"]
        for share in range(count):
            arguments = [*command, str(share), str(count)]
            compilers.append(
                subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
    worker, results = Worker(), []
    # Nothing is measured while compilers keep the processor busy; a third of the time is enough for them.
    while any(process.poll() is None for process in compilers):
        if time.monotonic() - began > given.seconds / 3:
            break
        time.sleep(0.2)
    for process in compilers:
        process.kill()
        process.wait()
    print(f"compiled beforehand in {time.monotonic() - began:.0f} s", flush=True)
    with given.json.open("w") if given.json else open(os.devnull, "w") as log:
        for step in wanted:
            left_s = given.seconds - (time.monotonic() - began)
            if left_s < 3:
                print(f"no time left for {step['step']}", flush=True)
                break
            limit_s = 5.0 if "blocks" in step else STEP_LIMIT_S
            found = worker.ask(step, max(3.0, min(limit_s + (0 if worker.process else 15), left_s)))
            results.append((step, found))
            print(shown(step, found), flush=True)
            print(json.dumps([step, found]), file=log, flush=True)
    worker.stop()
    for line in best_of_sweep(results):
        print(line)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
