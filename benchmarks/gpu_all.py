# ruff: noqa: E501, PERF203
"""Everything about a GPU that only a GPU can show, step by step. Prints compact text; a failing step does not end the run.

    python benchmarks/gpu_all.py [--seconds 285] [STEP ...]       each step runs in a process of its own, with a limit

The steps: facts, warm, driver, share, clock, locks, build, trace, attacks, cuda, rounds.
"""

from __future__ import annotations

import contextlib
import glob
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
    "facts": 30,
    "warm": 60,
    "driver": 30,
    "share": 40,
    "clock": 70,
    "locks": 75,
    "build": 60,
    "trace": 40,
    "attacks": 110,
    "cuda": 30,
    "rounds": 90,
}


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
        text = output.decode(errors="replace")
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
        "uname -r; id -u; cat /sys/kernel/security/lsm; ls -la /dev/nvidia* /dev/nvidia-caps /proc/driver/nvidia; which python3 gcc nvcc bwrap unshare setpriv ptxas ldconfig file"
    )
    shell(
        "ldconfig -p | grep -E 'libcuda|libnvidia-ml'; echo LD=$LD_LIBRARY_PATH; echo PATH=$PATH; env | grep -iE 'cuda|triton|nccl|nvidia' | head -20; ulimit -a | head -20; grep -i nvidia /proc/mounts | head"
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
    import numpy as np

    from grader.run.card import numbers
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
        arena = Arena(card, tensors, 3)
        arena.poison()
        arena.fill(7)
        same = []
        for k in range(3):
            seen = card.read(arena.place(k, tensors[0]), tensors[0]).reshape(-1)
            told = numbers.uniform(tensors[0].count, arena.seed_of(7, k, tensors[0]), -3.0, 8.0, dtype)
            same.append(
                (bool((seen == told).all()), float(seen.min()), float(seen.max()), float(seen.mean()))
            )
        arena.take()
        poison = np.isnan(arena.output_values(1)["y"]).all()
        changed = arena.inputs_changed(7), arena.inputs_changed(8)
        driver.copy(arena.kept(2, tensors[1]), arena.place(2, tensors[0]), tensors[0].size)
        counts = (
            card.differing(arena.kept(2, tensors[1]), arena.place(2, tensors[0]), tensors[0], 0.0, 0.0),
            card.differing(arena.kept(1, tensors[1]), arena.place(1, tensors[0]), tensors[0], 1e9, 0.0),
        )
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


def step_share() -> None:
    from grader.run.card.arena import Arena, Card

    card = Card()
    arena = Arena(card, product_tensors(), 2)
    print("arena", hex(arena.address), arena.size, "fd", arena.fd, os.readlink(f"/proc/self/fd/{arena.fd}"))
    started = time.perf_counter()
    with zygote() as z:
        z.start()
        z._wait_ready()
        print(f"zygote with torch and triton: {time.perf_counter() - started:.2f} s")
        started = time.perf_counter()
        session = spawn(z, KERNELS, arena.fd)
        print(
            f"runner {time.perf_counter() - started:.2f} s; dead {session.death}; load {session.load_error}; {list(session.functions)}"
        )
        for _ in range(3):
            print("bytes:", byte_call(session))
        runner = timed(session, arena)
        for seed in (1, 2):
            call = runner.raw(seed, 2)
            print(
                "go:", call.status, call.message, f"{call.wall_s * 1e3:.2f} ms", "right:", right(arena, seed)
            )
        print("printed:", repr(session.printed[-800:]))


def right(arena, seed: int) -> str:
    """Set by set: the largest error of some rows against float64."""
    import numpy as np

    found = []
    for k in {0, arena.sets - 1}:
        values, outputs = arena.input_values(seed, k), arena.output_values(k)
        rows = np.arange(0, values["a"].shape[0], 97)
        told = values["a"][rows].astype(float) @ values["b"].astype(float)
        found.append(f"{abs(outputs['c'][rows] - told).max():.3f}")
    return f"{found} changed {arena.inputs_changed(seed)}"


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
            ("product 1024", "product", product_tensors(1024), ARGUMENTS, 2e-5),
            ("product 2048", "product", product_tensors(2048), ARGUMENTS, 8e-5),
            ("product 4096", "product", product_tensors(4096), ARGUMENTS, 4e-4),
            ("scale 8192", "scale", wide, scaled, 1.3e-4),
        ):
            for fill_in_clock in (True, False):
                sets = sets_for(tensors, set_s, card.driver)
                arena = Arena(card, tensors, sets)
                session = spawn(z, KERNELS, arena.fd)
                runner = timed(session, arena, function, arguments, fill_in_clock=fill_in_clock)
                free = card.driver.memory()[0]
                ended = runner.calibrate(5)
                calls = [runner.raw(50 + k, sets) for k in range(16)]
                own = [runner.seconds(call) * 1e3 for call in calls]
                empties = [runner.raw(90 + k, 0).wall_s * 1e3 for k in range(12)]
                print(
                    f"{name} fill_in_clock={fill_in_clock}: {ended or ''} {sets} sets, go {quartiles([c.wall_s * 1e3 for c in calls])} ms,",
                    f"empty {quartiles(empties)} ms, a set {quartiles(own)} ms; runner took {(free - card.driver.memory()[0]) >> 20} MiB more",
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
            events = []
            for k in range(14):
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                for one in values:
                    act(*one)
                last.record()
                torch.cuda.synchronize()
                if k > 3:
                    events.append(first.elapsed_time(last) / len(values))
            print(f"{name}: CUDA events, a set {quartiles(events)} ms ({len(values)} sets)")
            del made, values
            torch.cuda.empty_cache()


def step_rounds() -> None:
    """Paired rounds A B B A with a pair of runners, the statistics of the kit: the same kernel, and one with 1.3 times the work."""
    from grader.judge.timing import measure
    from grader.run.card.arena import Arena, Card
    from grader.run.card.clock import TimedRunner

    card = Card()
    tensors, sets = product_tensors(2048), 160
    WORK.mkdir(exist_ok=True)
    slow = WORK / "slow.py"
    slow.write_text(
        KERNELS.read_text()
        + "\n_plain, _n = product, 0\ndef product(a, b, c):\n    global _n\n    _n += 1\n    _plain(a, b, c)\n    if _n % 10 < 3:\n        _plain(a, b, c)\n"
    )
    policy = measure.TimePolicy(clock="wall", allowance_ratio=1.1, allowance_ms=0.0, budget_s=20.0)
    with zygote() as z:
        for name, other in (("A/A", KERNELS), ("1.3 times", slow)):
            print(name, flush=True)
            ratios = []
            begun = time.perf_counter()
            mine, theirs = Arena(card, tensors, sets), Arena(card, tensors, sets)
            seed = [1000]

            @contextlib.contextmanager
            def pair(other=other, mine=mine, theirs=theirs, seed=seed):
                one, two = spawn(z, KERNELS, theirs.fd), spawn(z, other, mine.fd)
                a = TimedRunner(one, theirs, theirs.attach_request(ARGUMENTS, "product"))
                b = TimedRunner(two, mine, mine.attach_request(ARGUMENTS, "product"))
                a.calibrate(seed[0])
                b.calibrate(seed[0])

                def sample(runner):
                    seed[0] += 1
                    call = runner.raw(seed[0], sets)
                    if call.status != "ok":
                        raise RuntimeError(str(call))
                    return measure.Sample(runner.seconds(call) * sets, None)

                try:
                    yield (lambda: sample(a)), (lambda: sample(b))
                finally:
                    one.close()
                    two.close()

            while time.perf_counter() - begun < 12:
                first = time.perf_counter()
                found = measure.compare(pair, policy)
                ratios.append(found.ratio)
                print(
                    f"{found.verdict} {found.ratio:.3f} [{found.ratio_interval[0]:.3f} {found.ratio_interval[1]:.3f}] self {found.self_ratio:.3f} {found.rounds} rounds {','.join(found.flags)} {time.perf_counter() - first:.1f} s"
                )
            mine.close()
            theirs.close()


def step_locks() -> None:
    """Which parts of the runner's lock CUDA and Triton live with: each alone, then a whole tier."""
    from dataclasses import replace

    from grader.run.card.arena import Arena, Card
    from grader.sandbox import Sandbox, lock, tiers

    card = Card()
    arena = Arena(card, product_tensors(), 2)
    version = lock.landlock_version()
    shapes = {
        "seccomp": Sandbox("B", seccomp=True),
        "own uid": Sandbox("C", own_uid=True),
        "landlock": Sandbox("B", landlock=version),
    }
    for tier in ("A", "B", "C"):
        with contextlib.suppress(Exception):
            shapes[f"tier {tier}"] = tiers.choose(tier)
    for name, sandbox in shapes.items():
        begun = time.perf_counter()
        try:
            with zygote(replace(sandbox)) as z:
                cache = z.caches.new()
                shutil.copytree(CACHE, z._caches / cache, dirs_exist_ok=True)
                z.caches.seal(cache)
                session = spawn(z, KERNELS, arena.fd, cache=cache)
                said = (
                    f"dead {session.death}"
                    if session.death
                    else f"load error {session.load_error}"
                    if session.load_error
                    else byte_call(session)
                )
                went = ""
                if said.startswith("ok"):
                    runner = timed(session, arena)
                    call = runner.raw(3, 2)
                    went = f"go {call.status} {call.message} {call.signal_name} {right(arena, 3)}"
                status = Path(f"/proc/{session.pid}/status")
                sizes = (
                    [
                        line.split()[:2]
                        for line in status.read_text().splitlines()
                        if line[:6] in ("VmPeak", "VmData", "VmRSS:", "VmLck:", "Thread")
                    ]
                    if status.exists()
                    else ""
                )
                evidence = session.evidence
                session.close()
                print(
                    f"{name}: {said}; {went}; {sizes}; frozen cpu {session.evidence.frozen_cpu_s:.4f} of {session.evidence.frozen_wall_s:.2f} s, late {session.evidence.late}/{session.evidence.stops}, children {session.evidence.children}, new code {len(session.evidence.new_code)}; {time.perf_counter() - begun:.1f} s; printed {session.printed[-400:]!r}"
                )
                del evidence
        except Exception as error:
            print(f"{name}: {type(error).__name__} {str(error)[:400]}; {time.perf_counter() - begun:.1f} s")


def step_build() -> None:
    """Triton's compiler in the build's sandbox, with a cache that is empty before; then a runner that only reads it."""
    from grader.run.card.arena import Arena, Card
    from grader.sandbox import tiers

    card = Card()
    arena = Arena(card, product_tensors(), 2)
    for tier in ("A", "B", "C", "D"):
        begun = time.perf_counter()
        try:
            sandbox = tiers.choose(tier, True)
        except Exception as error:
            print(tier, str(error)[:200])
            continue
        try:
            with zygote(sandbox) as z:
                cache = built(z, KERNELS, (67, 1024))
                session = spawn(z, KERNELS, arena.fd, cache=cache)
                said = f"{session.death} {session.load_error} {byte_call(session)}"
                session.close()
                empty = spawn(z, KERNELS, arena.fd, cache=z.caches.new())
                none = f"{empty.death} {empty.load_error} {byte_call(empty)}"
                empty.close()
                took = time.perf_counter() - begun
                print(
                    f"{tier}: runner {said}; with an empty cache: {none[:300]}; {took:.1f} s; {session.printed[-300:]!r}"
                )
        except Exception as error:
            print(f"{tier}: {type(error).__name__} {str(error)[:600]}")


def built(z, path: Path, sides, say: bool = True) -> str:
    """A cache that a builder has filled by calling `product` on these shapes."""
    begun = time.perf_counter()
    cache = z.caches.new()
    session = spawn(z, path, cache=cache, builds=True, limit_s=60.0)
    said = [session.death, session.load_error, *(byte_call(session, side) for side in sides)]
    session.close()
    size = z.caches.seal(cache)
    if say:
        print(
            f"   builder: {said}; {size >> 10} KiB; {time.perf_counter() - begun:.1f} s; {session.printed[-600:]!r}"
        )
    return cache


def step_trace() -> None:
    shell(
        f"{sys.executable} {ROOT / 'benchmarks' / 'gpu_trace.py'} {KERNELS} 2>&1 | grep -vE '<venv>|<lib>' | cut -c1-150 | head -120"
    )


def step_attacks() -> None:
    from gpu.attacks import ATTACKS

    from grader.run.card.arena import Arena, Card
    from grader.sandbox import tiers

    card = Card()
    sandbox = None
    for tier in ("A", "B", "C"):
        with contextlib.suppress(Exception):
            sandbox = tiers.choose(tier)
            break
    print("sandbox", sandbox)
    tensors, sets = product_tensors(2048), 80
    reference, mine = Arena(card, tensors, sets), Arena(card, tensors, sets)
    jobs = [(name, "", end, text) for name, (end, text) in ATTACKS.items()]
    jobs = [
        job
        for name, _, end, text in jobs
        for job in (
            [
                (
                    name,
                    f" {cycles >> 20} Mi cycles",
                    end,
                    text.replace("MANY", str(sets)).replace("SLEEP", str(cycles)),
                )
                for cycles in (4 << 20, 16 << 20, 48 << 20)
            ]
            if "SLEEP" in text
            else [(name, "", end, text)]
        )
    ]
    try:
        z = zygote(sandbox)
        cache = z.caches.new()
        shutil.copytree(CACHE, z._caches / cache, dirs_exist_ok=True)
        z.caches.seal(cache)
        probe = spawn(z, KERNELS, mine.fd, cache=cache)
        print("locked runner:", probe.death, probe.load_error, byte_call(probe))
        failed = probe.death is not None or not byte_call(probe).startswith("ok")
        probe.close()
    except Exception as error:
        print("the sandbox does not hold a card:", error)
        failed = True
    if failed:
        print("attacks in tier D")
        z, cache = zygote(), ""
    truth = spawn(z, KERNELS, reference.fd, cache=cache)
    base = timed(truth, reference)
    print("reference:", base.calibrate(1), f"empty {base.empty_s * 1e3:.2f} ms")
    for name, more, end, text in jobs:
        begun = time.perf_counter()
        path = WORK / f"attack_{abs(hash(name + more))}.py"
        path.write_text(KERNELS.read_text() + text)
        path.chmod(0o644)
        free = card.driver.memory()[0]
        try:
            session = spawn(z, path, mine.fd, limit_s=6.0, cache=cache)
            if session.death or session.load_error:
                print(f"{name}{more} ({end}): not loaded: {session.death} {session.load_error}")
                session.close()
                continue
            line = []
            runner = timed(session, mine, fill_in_clock="before" not in name or True)
            ended = runner.calibrate(20)
            for seed in (31, 32, 33):
                call = runner.raw(seed, sets)
                if call.status != "ok":
                    line.append(f"{call.status} {call.signal_name}{call.message[:160]}")
                    break
                told = base.raw(seed, sets)
                counts = mine.differing(reference, {"c": (0.05, 0.01)})
                line.append(
                    f"{runner.seconds(call) / base.seconds(told):.3f}x differing {counts['c']} changed {mine.inputs_changed(seed)}"
                )
            taken = (free - card.driver.memory()[0]) >> 20
            session.close()
            served = time.perf_counter()
            after = spawn(z, KERNELS, mine.fd, cache=cache)
            said = byte_call(after)
            after.close()
            print(
                f"{name}{more} ({end}): {f'calibration {ended.status} {ended.signal_name}{ended.message[:200]}; ' if ended else ''}{' | '.join(line)}; {taken} MiB; empty {runner.empty_s * 1e3:.2f} ms; next: {said} after {time.perf_counter() - served:.1f} s; {time.perf_counter() - begun:.1f} s; late {session.evidence.late}/{session.evidence.stops} unstopped {session.evidence.unstopped} children {session.evidence.children}; {session.printed[-200:]!r}"
            )
        except Exception as error:
            print(f"{name}{more}: {type(error).__name__} {str(error)[:500]}")
            traceback.print_exc(limit=3)
    z.close()


def step_cuda() -> None:
    from grader.run.card.arena import Arena, Card, Tensor

    shell(
        f"cd {WORK} && time nvcc -O3 -arch=native -shared -Xcompiler -fPIC -o kernels.so {KERNELS.with_suffix('.cu')}; ls -la {WORK}/kernels.so"
    )
    card = Card()
    n = 1 << 24
    tensors = [Tensor("x", (n,), "float32"), Tensor("y", (n,), "float32", is_output=True)]
    arena = Arena(card, tensors, 40)
    with zygote() as z:
        session = spawn(z, WORK / "kernels.so", arena.fd, kind="cuda")
        print("dead", session.death, "load", session.load_error)
        runner = timed(session, arena, "scale", [{"input": 0}, {"input": 1}, {"value": n}, {"value": 1.5}])
        print("calibration", runner.calibrate(3))
        calls = [runner.raw(9 + k, 40) for k in range(10)]
        print(
            calls[0].status,
            calls[0].message,
            quartiles([runner.seconds(c) * 1e3 for c in calls]),
            "ms a set of 2 x 64 MiB, empty",
            runner.empty_s * 1e3,
        )
        values, outputs = arena.input_values(18, 7), arena.output_values(7)
        print("right:", bool((abs(outputs["y"] - (1.5 * values["x"] + 1)) < 1e-6).all()))
    for path in glob.glob(str(WORK / "*.so")):
        os.unlink(path)


if __name__ == "__main__":
    main()
