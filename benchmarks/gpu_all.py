# ruff: noqa: E501, PERF203
"""Everything about a GPU that only a GPU can show, step by step. Prints compact text; a failing step does not end the run.

    python benchmarks/gpu_all.py [--seconds 285] [STEP ...]       each step runs in a process of its own, with a limit

The steps: facts, driver, warm, locks, lab, attacks, rounds, cs336, clock.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
WORK = Path(tempfile.gettempdir()) / "gpt149-gpu"
CACHE = WORK / "triton"
KERNELS = ROOT / "tests" / "gpu" / "kernels.py"
#: Name and seconds that it may take.
STEPS = {
    "facts": 12,
    "driver": 10,
    "warm": 25,
    "locks": 40,
    "lab": 88,
    "attacks": 56,
    "rounds": 60,
    "cs336": 26,
    "clock": 16,
}
LOCKS = WORK / "locks.json"


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--step"]:
        WORK.mkdir(exist_ok=True)
        os.environ["TRITON_CACHE_DIR"] = str(CACHE)
        try:
            globals()[f"step_{arguments[1]}"]()
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        return
    seconds = 285.0
    if arguments[:1] == ["--seconds"]:
        seconds, arguments = float(arguments[1]), arguments[2:]
    shutil.rmtree(WORK, ignore_errors=True)
    started = time.monotonic()
    for name in arguments or STEPS:
        left_s = seconds - (time.monotonic() - started)
        if left_s < 5:
            print(f"== {name}: no time left", flush=True)
            continue
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-u", __file__, "--step", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=min(left_s, STEPS[name]))
            ended = f"exit {process.returncode}"
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            try:
                output, _ = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                output = b"(its processes hold the pipe)"
            ended = "OUT OF TIME"
        text = output.decode(errors="replace").replace(str(ROOT), "")
        print(f"== {name}: {ended}, {time.monotonic() - begun:.1f} s\n{text[-9000:]}", flush=True)


# ---- helpers


def shell(command: str) -> None:
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=15)
        print(f"$ {command}\n{(done.stdout + done.stderr).strip()[:1500]}")
    except subprocess.TimeoutExpired:
        print(f"$ {command}: no answer")


def quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.4f} ({low:.4f}-{high:.4f})"


def environment(**more: str) -> dict[str, str]:
    kept = {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
    return {"CUDA_VISIBLE_DEVICES": "0", "TRITON_CACHE_DIR": str(CACHE), **kept, **more}


def zygote(sandbox=None, **more):
    from grader.run.zygote import Zygote
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
    """A runner; without a `cache` of the zygote's it reads the one that the step `warm` has filled (tier D)."""
    from grader.sandbox import Limits

    limits = Limits(memory_bytes=None, open_files=1024)
    how = {"shared_fd": fd, "cache": cache, "builds": builds, "freeze": not builds}
    return z.spawn(kind, path, threads=1, limits=limits, call_timeout_s=limit_s, **how)


def product_tensors(side: int = 1024):
    from grader.run.card.arena import Tensor

    return [
        Tensor("a", (side, side), "float16"),
        Tensor("b", (side, side), "float16"),
        Tensor("c", (side, side), "float16", is_output=True),
    ]


ARGUMENTS = [{"input": 0}, {"input": 1}, {"input": 2}]


def timed(session, arena, function="product", arguments=ARGUMENTS, **how):
    from grader.run.card.clock import TimedRunner

    runner = TimedRunner(session, arena, arena.attach_request(arguments, function), **how)
    if runner.failure:
        print("attach failed:", runner.failure, "printed:", session.printed[-500:])
    return runner


def byte_call(session, side: int = 67):
    """One right or wrong call whose tensors go as bytes."""
    import numpy as np

    from grader.run.calls import Request

    a, b = (np.random.rand(side, side).astype(np.float16) for _ in range(2))
    more = {"names": ["a", "b", "c"], "outputs": ["c"]}
    call = session.call(
        Request("product", ARGUMENTS, [a, b, np.zeros((side, side), np.float16)], echo=True, more=more)
    )
    if call.status != "ok":
        return f"{call.status} {call.signal_name} {call.message} {call.exit_code}"
    error = abs(call.echoes[2].astype(float) - a.astype(float) @ b.astype(float)).max()
    return f"ok, largest error {error:.4f}, {call.wall_s:.3f} s"


# ---- steps


def step_facts() -> None:
    shell(
        "nvidia-smi --query-gpu=name,driver_version,compute_mode,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,persistence_mode,ecc.mode.current --format=csv,noheader"
    )
    shell("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader")
    shell(
        "uname -r; id -u; which python3 gcc nvcc bwrap ptxas; nvcc --version | tail -2; nproc; free -g | head -2"
    )
    for name in ("torch", "triton", "numpy", "rich", "yaml", "pytest"):
        try:
            module = __import__(name)
            print(name, getattr(module, "__version__", "?"), module.__file__)
        except Exception as error:
            print(name, repr(error))
    from grader.sandbox import lock, seccomp, tiers, view

    print("python", platform.python_version(), sys.executable, "landlock", lock.landlock_version())
    print("filter", bool(seccomp.runner_filter(platform.machine(), True)), "devices", view.card_devices())
    print("python paths", [str(p) for p in view.python_paths()])
    for tier in tiers.TIERS:
        try:
            print("tier", tier, tiers.choose(tier, True))
        except Exception as error:
            print("tier", tier, str(error)[:300])


def step_warm() -> None:
    """Fills Triton's cache with the kernels that later steps call, as the build would."""
    import importlib.util

    import torch

    spec = importlib.util.spec_from_file_location("kernels", KERNELS)
    kernels = importlib.util.module_from_spec(spec)
    started = time.perf_counter()
    spec.loader.exec_module(kernels)
    for side in (67, 1024, 2048, 4096):
        a = torch.rand(side, side, device="cuda", dtype=torch.float16)
        kernels.product(a, a, torch.empty_like(a))
    x = torch.ones(100_000, device="cuda")
    kernels.scale(x, torch.empty_like(x), 2.0)
    kernels.scale(x, torch.empty_like(x), 1.5)
    x = torch.ones(8192 * 8192, device="cuda")
    kernels.scale(x, torch.empty_like(x), 1.5)
    from gpu.attacks import ATTACKS

    (WORK / "wild.py").write_text(KERNELS.read_text() + ATTACKS["an illegal address"][1])
    spec = importlib.util.spec_from_file_location("wild", WORK / "wild.py")
    wild = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wild)
    wild._wild.warmup(torch.empty(16, device="cuda", dtype=torch.float16), grid=(1,))
    torch.cuda.synchronize()
    print(f"{time.perf_counter() - started:.1f} s; {len(list(CACHE.rglob('*')))} files")
    subprocess.run(["chmod", "-R", "a+rX", str(WORK)], check=True)


def step_driver() -> None:
    import card_numbers as numbers
    import numpy as np

    from grader.run.card.arena import Arena, Card, Tensor

    started = time.perf_counter()
    card = Card()
    driver = card.driver
    print(
        f"context and module {time.perf_counter() - started:.2f} s;",
        driver.name(),
        driver.version(),
        driver.memory(),
    )
    print("attributes", {k: driver.attribute(k) for k in (16, 20, 75, 76, 36, 37)})
    for dtype in ("float32", "float16", "bfloat16"):
        tensors = [Tensor("x", (1001, 37), dtype, -3.0, 5.0), Tensor("y", (1001, 37), dtype, is_output=True)]
        arena = Arena(card, tensors, 40)
        arena.poison()
        arena.fill(7)
        same = []
        for k in (0, 3, 39):
            seen = card.read(arena.place(k, tensors[0]), tensors[0]).reshape(-1)
            told = numbers.uniform(tensors[0].count, arena.seed_of(7, k, tensors[0]), -3.0, 8.0, dtype)
            same.append(
                (bool((seen == told).all()), float(seen.min()), float(seen.max()), float(seen.mean()))
            )
        arena.take()
        poison = np.isnan(arena.output_values(1)["y"]).all()
        changed = arena.inputs_changed(7), arena.inputs_changed(8)
        driver.copy(arena.kept(2, tensors[1]), arena.place(2, tensors[0]), tensors[0].size)
        strides = (
            (arena.kept(0, tensors[1]), arena._kept_bytes),
            (arena.place(0, tensors[0]), arena._set_bytes),
        )
        counts = [
            card.differing(
                (arena.kept(2, tensors[1]), 0), (arena.place(2, tensors[0]), 0), tensors[0], 1, 0.0, 0.0
            ),
            card.differing(*strides, tensors[0], 40, 1e9, 0.0),
        ]
        print(dtype, "as NumPy:", same, "poison:", bool(poison), "changed:", changed, "differing:", counts)
        arena.close()
    print("memory after", driver.memory())
    big = [Tensor("x", (8192, 8192), "float32"), Tensor("y", (8192, 8192), "float32", is_output=True)]
    arena = Arena(card, big, 16)
    for name, act in (("poison", arena.poison), ("fill", lambda: arena.fill(1)), ("take", arena.take)):
        times = []
        for _ in range(8):
            begun = time.perf_counter()
            act()
            times.append((time.perf_counter() - begun) * 1e3)
        print(name, "of 16 sets of 256 MiB, ms:", quartiles(times))
    arena.close()


def step_clock() -> None:
    """The judge's clock against CUDA events, the empty call, and the noise of the reference against itself."""
    import importlib.util

    from grader.run.card.arena import Arena, Card, Tensor
    from grader.run.card.clock import sets_for

    card = Card()
    import torch

    spec = importlib.util.spec_from_file_location("kernels", KERNELS)
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    side = 8192
    wide = [Tensor("x", (side, side), "float32"), Tensor("y", (side, side), "float32", is_output=True)]
    scaled = [{"input": 0}, {"input": 1}, {"value": 1.5}]
    with zygote() as z:
        for name, function, tensors, arguments, set_s in (
            ("product 4096", "product", product_tensors(4096), ARGUMENTS, 2.7e-4),
            ("product 1024", "product", product_tensors(1024), ARGUMENTS, 2e-5),
            ("scale 8192", "scale", wide, scaled, 1.3e-4),
        ):
            sets = sets_for(tensors, set_s, card.driver.memory()[0])
            arena = Arena(card, tensors, sets)
            session = spawn(z, KERNELS, arena.fd)
            runner = timed(session, arena, function, arguments)
            ended = runner.calibrate(5)
            begun = time.perf_counter()
            calls = [runner.raw(50 + k, sets) for k in range(10)]
            took = (time.perf_counter() - begun) / 10
            own = [runner.seconds(call) * 1e3 for call in calls]
            empties = [runner.raw(90 + k, 0).wall_s * 1e3 for k in range(8)]
            print(
                f"{name}: {ended or ''} {sets} sets, go {quartiles([c.wall_s * 1e3 for c in calls])} ms ({took * 1e3:.0f} with all),",
                f"empty {quartiles(empties)} ms, a set {quartiles(own)} ms",
                flush=True,
            )
            session.close()
            arena.close()
            kinds = {"float16": torch.float16, "float32": torch.float32}
            made = [
                [
                    torch.rand(t.shape, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(kinds[t.dtype])
                    for t in tensors
                ]
                for _ in range(min(sets, 24))
            ]
            values = [[*one, 1.5] if function == "scale" else one for one in made]
            act = getattr(kernels, function)
            events, times = [], max(1, int(0.05 / set_s / len(values)))
            for k in range(12):
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                for one in values * times:
                    act(*one)
                last.record()
                torch.cuda.synchronize()
                if k > 2:
                    events.append(first.elapsed_time(last) / len(values) / times)
            print(
                f"{name}: CUDA events, a set {quartiles(events)} ms ({len(values) * times} calls)", flush=True
            )
            del made, values
            torch.cuda.empty_cache()


def found_locks() -> None:
    """Let in what the step `locks` has found to be needed."""
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
    """The strongest sandbox whose runners reach the card, chosen as a class would."""
    from grader.judge.ondevice import host
    from grader.run.card import finding
    from grader.run.zygote import Zygote
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
            host.place(sandbox)
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
    return f"{part.id}: {part.verdict} {right}/{len(part.cases)} {figures} mem {memory} {told} {[f.code + ' ' + f.message[:120] for f in part.flags]}"


def judged(source: Path, parts, sandbox, assignment=None, **options):
    """Each part by itself through the one evaluator, with what it took."""
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
            print(f"{shown(result.parts[0])}; {time.perf_counter() - begun:.1f} s", flush=True)
        except BaseException as error:
            print(
                f"{name}: {type(error).__name__} {str(error)[:500]}; {time.perf_counter() - begun:.1f} s",
                flush=True,
            )


PARTS = ("softmax", "matmul", "flash_forward", "flash_backward", "gelu_cuda", "gelu", "softmax_long")


def step_locks() -> None:
    import runpy

    # Where users of their own can come to.
    path = WORK / "locked.py"
    path.write_text(KERNELS.read_text())
    path.chmod(0o644)
    sys.argv = ["gpu_locks.py", str(path), str(LOCKS)]
    runpy.run_path(str(ROOT / "benchmarks" / "gpu_locks.py"), run_name="__main__")


def step_lab() -> None:
    """The masters through the evaluator, with time on the card."""
    judged(ROOT / "labs" / "gpu" / "kernels.py", PARTS, working())


def step_attacks() -> None:
    """What a file may try, behind the lab's master: the part `matmul` through the evaluator, with one case."""
    from dataclasses import replace

    from gpu.attacks import ATTACKS

    from grader.judge.timing import measure
    from grader.run.card import clock

    sandbox = working()
    side = 64 if sandbox.tier == "D" and not Path("/dev/nvidiactl").exists() else 2048
    clock.EMPTY_CALLS, clock.GO_S, clock.MEMORY_SHARE = 3, 0.03, 0.15
    measure.EARLY_PASS_ROUNDS = 2
    master = (ROOT / "labs" / "gpu" / "kernels.py").read_text()
    assignment = lab()
    part = assignment.part("matmul")
    part = replace(part, cases=part.cases[:1])
    assignment = replace(assignment, parts=(part,), limits=replace(assignment.limits, call_s=4.0))
    first = (
        "plain",
        "work before go",
        "answers before the end",
        "work on a side stream, nobody waits",
        "outputs remembered by pointer",
    )
    first += (
        "an illegal address",
        "writes into the inputs",
        "no end",
        "70 GB",
        "outputs remembered by content",
    )
    for name in dict.fromkeys([*first, *ATTACKS]):
        end, text = ATTACKS[name]
        path = WORK / "attack.py"
        path.write_text(
            master
            + text.replace("product", "matmul").replace("SLEEP", str(48 << 20)).replace("SIDE", str(side))
        )
        print(f"-- {name} ({end}):", end=" ")
        judged(path, ["matmul"], sandbox, assignment, shape={"rows": side, "inner": side, "columns": side})


def step_rounds() -> None:
    """Rounds of the reference against itself, and against 1.3 times its work: verdicts resampled from them."""
    import random
    from contextlib import ExitStack
    from itertools import islice

    from grader.build.records import Build
    from grader.judge.bench import Bench, Options
    from grader.judge.correctness import Runners
    from grader.judge.marking import Marker
    from grader.judge.ondevice import host
    from grader.judge.ondevice.timing import DeviceRounds
    from grader.judge.timing import measure

    sandbox, assignment = working(), lab()
    source = ROOT / "labs" / "gpu" / "reference.py"
    slow = WORK / "slow.py"
    for name, what, count in (
        ("flash_forward", "A/A", 5),
        ("softmax", "A/A", 4),
        ("flash_forward", "1.3", 3),
        ("matmul", "A/A", 4),
    ):
        part = assignment.part(name)
        begun = time.perf_counter()
        slow.write_text(
            source.read_text()
            + f"\n_plain, _n = {part.function}, 0\ndef {part.function}(*a):\n    global _n\n    _n += 1\n    if _n % 10 < 3:\n        _plain(*a)\n    return _plain(*a)\n"
        )
        for path in (source,) if what == "A/A" else (slow,):
            with ExitStack() as stack:
                built = Build(
                    ok=True,
                    object_path=path,
                    cached=False,
                    diagnostics="",
                    notes=(),
                    wall_s=0,
                    cpu_s=0,
                    key="",
                )
                device = stack.enter_context(
                    host.DeviceHost(assignment, {"triton": built}, [part], assignment.defaults, sandbox)
                )
                bench = Bench(
                    assignment,
                    path,
                    Options(),
                    lambda event: None,
                    built,
                    device.place.zygote,
                    stack,
                    device=device,
                )
                rounds = DeviceRounds(Marker(bench, part), Runners(bench, part).fresh, 7, stack)
                taken = list(islice(measure.play(rounds), count))
            policy = measure.TimePolicy(
                clock="wall",
                allowance_ratio=part.time.allowance_ratio if what == "A/A" else 1.1,
                allowance_ms=0.0,
                budget_s=None,
            )
            ratios = measure._view(taken, policy, "wall").ratios()
            draw, ends = random.Random(1), []
            for _ in range(200):
                found = measure.sequential((draw.choice(taken) for _ in range(30)), policy)
                ends.append((found.verdict, found.rounds, "undecided" in found.flags))
            slow_share = sum(end[0] == "slow" for end in ends) / len(ends)
            print(
                f"{name} {what}: sets {rounds.mine.sets}, {rounds.set_s * 1e3:.4f} ms; ratios {[round(r, 3) for r in ratios]}; of 200 resampled slow {slow_share:.3f}, undecided {sum(e[2] for e in ends)}, rounds {statistics.mean(e[1] for e in ends):.1f}; self {[round(one.reference[0].wall_s / one.reference[1].wall_s, 3) for one in taken]}; {time.perf_counter() - begun:.1f} s",
                flush=True,
            )


def step_cs336() -> None:
    """Files in the form of CS336's assignment 2, graded unchanged."""
    sandbox = working()
    folder = ROOT / "tests" / "gpu_lab"
    for name in ("autograd_triton.py", "autograd_pytorch.py", "autograd_reversed.py"):
        print("--", name)
        judged(
            folder / name, ("flash_forward", "flash_backward"), sandbox, shape={"B": 16, "N": 1024, "M": 1024}
        )


if __name__ == "__main__":
    main()
