"""Submissions that a class run cannot judge because the machine lacks a program.

Such a submission is recorded with the verdict `unjudged`, and its points are open. It is judged as soon as the class
is continued on a machine that has the program.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterable, Mapping

from grader.backends.gpu import devicebuild
from grader.backends.gpu.card import finding, smclock
from grader.backends.native import ispc
from grader.backends.native.toolchain import ABSENT, TORCH, python_include_dir, torch_version
from grader.backends.torch.torchbuild import PYTHON_HEADERS
from grader.report.progress import shortened
from grader.submission import Submission

#: Checks for programs that need more than to be on the PATH.
CHECKS: Mapping[str, Callable[[], bool]] = {
    ispc.TOOL: lambda: ispc.compiler() is not None,
    TORCH: lambda: torch_version() != ABSENT,
    finding.GPU: finding.is_here,
    devicebuild.NVCC: lambda: bool(devicebuild.nvcc()),
    devicebuild.TRITON: devicebuild.has_triton,
    smclock.STEADY_CLOCK: finding.is_here,
    PYTHON_HEADERS: lambda: python_include_dir() is not None,
}
REMEDIES = {
    ispc.TOOL: f"put ispc on the PATH ({ispc.WHERE_FROM})",
    TORCH: "install torch beside the kit",
    smclock.STEADY_CLOCK: "fix the card's clock (nvidia-smi --lock-gpu-clocks)",
    PYTHON_HEADERS: "install Python's headers (apt install python3-dev)",
    finding.GPU: "go to a machine with a GPU",
    devicebuild.NVCC: "install NVIDIA's CUDA toolkit and put nvcc on the PATH",
    devicebuild.TRITON: f'install Triton (pip install "{devicebuild.TRITON_PACKAGE}")',
}


def is_over(waits_for: str) -> str:
    """Return a sentence that an unjudged submission can be judged now, since its programs are here; "" while one is
    missing."""
    tools = waits_for.split()
    return f"{' and '.join(tools)} is here now" if tools and all(map(is_here, tools)) else ""


def is_here(tool: str) -> bool:
    """Return True if a program, or a Python package of a hand-in's, is there."""
    return CHECKS.get(tool, lambda: bool(shutil.which(tool) or importlib.util.find_spec(tool)))()


def expected(submissions: Iterable[Submission]) -> dict[str, str]:
    """Return the programs that submissions will wait for, by id, as far as they are known before grading."""
    found = {item.id: ispc.waits_for(item.source) for item in submissions if item.source is not None}
    return {name: tool for name, tool in found.items() if tool}


def lines(waits: Mapping[str, str], remedy: str) -> list[str]:
    """Return one line for each missing program: the number of submissions that wait for it, and the `remedy`."""
    return [
        f"{len(names)} cannot be judged without {tool}, their points are open: {shortened(names)}; "
        f"{REMEDIES.get(tool, f'pip install {tool}')}, then {remedy}"
        for tool, names in by_tool(waits).items()
    ]


def by_tool(waits: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the ids of waiting submissions by the programs they wait for, in alphabetical order: jobs end in any."""
    found: dict[str, list[str]] = {}
    for name, tool in sorted(waits.items()):
        found.setdefault(tool, []).append(name)
    return found
