# ruff: noqa: E501, PERF203
"""The machine, the judge's own kernels on it, Triton's cache for other steps, and what a lock has to let in."""

from __future__ import annotations

import platform
import subprocess
import sys
import time

from gpu_steps.common import CACHE, KERNELS, LOCKS, ROOT, WORK, quartiles, shell


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

    from grader.backends.gpu.card.arena import Arena, Card, Tensor

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


def step_locks() -> None:
    import runpy

    # Where users of their own can come to.
    path = WORK / "locked.py"
    path.write_text(KERNELS.read_text())
    path.chmod(0o644)
    sys.argv = ["gpu_locks.py", str(path), str(LOCKS)]
    runpy.run_path(str(ROOT / "benchmarks" / "gpu_locks.py"), run_name="__main__")
