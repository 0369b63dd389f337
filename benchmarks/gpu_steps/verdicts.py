"""Whole verdicts on a card: the masters, files in the form of CS336's assignment, and what libraries do for a file."""

from __future__ import annotations

import cProfile
import pstats

from gpu_steps.common import ROOT, WORK, judged, working

LAB = ROOT / "labs" / "gpu" / "kernels.py"
LIBRARY = """
import torch
def matmul(a, b, c):
    c.copy_(getattr(torch, "mat" + "mul")(a, b))
"""


def profiled(*arguments, **how) -> None:
    """Run `judged` under the profiler, and print the functions that took most time."""
    seen = cProfile.Profile()
    seen.enable()
    judged(*arguments, **how)
    seen.disable()
    rows = []
    for (file, _, name), (_, calls, own, whole, _) in pstats.Stats(seen).stats.items():
        rows.append((whole, own, calls, f"{file.rpartition('/')[2]}:{name}"))
    for whole, own, calls, name in sorted(rows, reverse=True)[:45]:
        print(f"    {whole:6.2f} {own:6.2f} {calls:5} {name}")


def step_lab() -> None:
    """The masters, with time; where it goes in one of them."""
    sandbox = working()
    judged(LAB, ("gelu", "flash_backward", "gelu_cuda", "softmax"), sandbox)
    profiled(LAB, ("matmul",), sandbox)
    judged(LAB, ("softmax_long", "flash_forward"), sandbox)


def step_cs336() -> None:
    """Files in the form of CS336's assignment 2, graded unchanged."""
    sandbox = working()
    folder = ROOT / "tests" / "gpu_lab"
    shape = {"B": 16, "N": 1024, "M": 1024}
    reversed_mask = WORK / "autograd_reversed.py"
    reversed_mask.write_text((folder / "autograd_pytorch.py").read_text().replace(">= columns", "<= columns"))
    for name, part in (
        ("autograd_pytorch.py", "flash_forward"),
        ("autograd_pytorch.py", "flash_backward"),
        ("autograd_triton.py", "flash_backward"),
        ("autograd_triton.py", "flash_forward"),
        (reversed_mask, "flash_forward"),
    ):
        print("--", name, flush=True)
        judged(folder / name, (part,), sandbox, shape=shape)


def step_libraries() -> None:
    """A product of the library's, under a name that the source does not show."""
    path = WORK / "library.py"
    path.write_text(LIBRARY)
    judged(path, ("matmul",), working(), timing=False)
