# ruff: noqa: E501, PERF203
"""Shared parts of the steps: files, runners of their own, and the sandbox that works."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = Path(tempfile.gettempdir()) / "gpt149-gpu"
CACHE = WORK / "triton"
KERNELS = Path(__file__).with_name("kernels.py")
LOCKS = WORK / "locks.json"


def shell(command: str) -> None:
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=15)
        print(f"$ {command}\n{(done.stdout + done.stderr).strip()[:1500]}")
    except subprocess.TimeoutExpired:
        print(f"$ {command}: no answer")


def quartiles(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values}"
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.4f} ({low:.4f}-{high:.4f})"


def environment(**more: str) -> dict[str, str]:
    kept = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    return {"CUDA_VISIBLE_DEVICES": "0", "TRITON_CACHE_DIR": str(CACHE), **kept, **more}


def zygote(sandbox=None, **more):
    from grader.backends.torch.zygote import Zygote
    from grader.sandbox import OPEN

    return Zygote(
        environment(**more),
        sandbox or OPEN,
        modules=["numpy", "triton", "triton.language"],
        card=True,
    )


def spawn(
    z,
    path: Path,
    fd: int | None = None,
    kind: str = "triton",
    limit_s: float = 20.0,
    cache: str = "",
    builds: bool = False,
):
    """Start a runner; without a `cache` of the zygote's it reads the one that the step `warm` has filled (tier D)."""
    from grader.sandbox import Limits

    limits = Limits(memory_bytes=None, open_files=1024)
    how = {"shared_fd": fd, "cache": cache, "builds": builds, "freeze": not builds}
    return z.spawn(kind, path, threads=1, limits=limits, call_timeout_s=limit_s, **how)


def product_tensors(side: int = 1024):
    from grader.backends.gpu.card.arena import Tensor

    return [
        Tensor("a", (side, side), "float16"),
        Tensor("b", (side, side), "float16"),
        Tensor("c", (side, side), "float16", is_output=True),
    ]


ARGUMENTS = [{"input": 0}, {"input": 1}, {"input": 2}]


def timed(session, arena, function="product", arguments=ARGUMENTS, **how):
    from grader.backends.gpu.card.clock import TimedRunner

    runner = TimedRunner(session, arena, arena.attach_request(arguments, function), **how)
    if runner.failure:
        print("attach failed:", runner.failure, "printed:", session.printed[-500:])
    return runner


def found_locks() -> None:
    """Allow the calls and files that the step `locks` has found necessary."""
    import json

    from grader.sandbox import lock, seccomp, view

    if not LOCKS.is_file():
        return
    found = json.loads(LOCKS.read_text())
    if found["calls"]:
        seccomp.CARD_ALLOWED = ", ".join([seccomp.CARD_ALLOWED, *found["calls"]])
    view.CARD_FACTS = (*view.CARD_FACTS, *found["read"])
    devices = [*view.card_devices(), *found["write"]]
    view.card_devices = lambda: devices
    if found["landlock"]:
        lock.landlock_version = lambda: found["landlock"]


def working():
    """Return the strongest sandbox whose runners reach the GPU, chosen as for a class."""
    from grader.backends.gpu import host
    from grader.backends.gpu.card import finding
    from grader.backends.torch.zygote import Zygote
    from grader.sandbox import OPEN, tiers

    found_locks()
    card = finding.card()
    if card is not None and card.driver.name() == "a pretended card":
        # tests/gpu/pretended.c: this machine's memory, and Triton's interpreter.
        pretended = Zygote({"TRITON_INTERPRET": "1"}, OPEN, modules=host.MODULES)
        host._places[OPEN] = host.Place(pretended, card, True)
        return OPEN
    known = WORK / "tier"
    for tier in known.read_text() if known.is_file() else "ABC":
        try:
            sandbox = tiers.choose(tier, True)
            host.place(sandbox, Zygote)
            print("sandbox", sandbox)
            known.write_text(tier)
            return sandbox
        except Exception as error:
            print("tier", tier, ":", str(error)[-300:])
    known.write_text("D")
    return OPEN


def lab():
    from grader.assignment.loading import load

    return load(ROOT / "labs" / "gpu" / "assignment.yaml")


def shown(part) -> str:
    time_ = part.time
    figures = (
        f"{time_.ratio:.3f} [{time_.ratio_interval[0]:.3f} {time_.ratio_interval[1]:.3f}] {time_.reference_ms:.4f} ms self {time_.self_ratio:.3f} rounds {time_.rounds}"
        if time_
        else ""
    )
    memory = part.memory.peak_bytes if part.memory else None
    told = f"{part.diagnosis.code}: {part.diagnosis.message[:260]}" if part.diagnosis else ""
    right = sum(case.ok for case in part.cases)
    return f"{part.id}: {part.verdict} {right}/{len(part.cases)} {figures} mem {memory} {time_.flags if time_ else ''} {told} {[f.code + ' ' + f.message[:120] for f in part.flags]}"


def judged(source: Path, parts, sandbox, assignment=None, **options):
    """Judge each part by itself through the evaluator, and measure the time."""
    from grader.judge.bench import Options
    from grader.judge.evaluate import evaluate

    assignment = assignment or lab()
    for name in parts:
        begun = time.perf_counter()
        try:
            result = evaluate(
                assignment,
                source,
                (assignment.part(name),),
                Options(time_budget_s=15, **options),
                sandbox=sandbox,
            )
            part = result.parts[0]
            said = f"; printed {part.output.strip()[-150:]!r}" if part.output.strip() else ""
            print(f"{shown(part)}{said}; {time.perf_counter() - begun:.1f} s", flush=True)
        except BaseException as error:
            print(
                f"{name}: {type(error).__name__} {str(error)[:500]}; {time.perf_counter() - begun:.1f} s",
                flush=True,
            )
