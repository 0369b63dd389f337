"""Everything about a GPU that only a GPU can show, step by step, printed as it is found.

    python benchmarks/gpu_all.py [--seconds 580] [STEP ...]       each step runs in a process of its own, with a limit

A failing step does not end the run. Without names the steps of ORDER are made; `facts`, `driver` and `locks` besides.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]
#: By name: the module in gpu_steps, and the seconds that it may take.
STEPS = {
    "facts": ("machine", 12),
    "driver": ("machine", 10),
    "warm": ("machine", 20),
    "locks": ("machine", 40),
    "clock": ("clock", 30),
    "cs336": ("verdicts", 480),
    "lab": ("verdicts", 90),
    "attacks": ("attacks", 85),
    "libraries": ("verdicts", 20),
    "slower": ("slower", 180),
    "aa": ("slower", 150),
    "studies": ("studies", 60),
}
#: The most important ones first.
ORDER = ("warm", "clock", "cs336", "lab", "attacks", "slower", "aa", "libraries", "studies")


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--step"]:
        name = arguments[1]
        module = importlib.import_module(f"gpu_steps.{STEPS[name][0]}")
        module.WORK.mkdir(exist_ok=True)
        os.environ["TRITON_CACHE_DIR"] = str(module.WORK / "triton")
        try:
            getattr(module, f"step_{name}")()
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        return
    seconds = 580.0
    if arguments[:1] == ["--seconds"]:
        seconds, arguments = float(arguments[1]), arguments[2:]
    from gpu_steps.common import WORK

    shutil.rmtree(WORK, ignore_errors=True)
    started = time.monotonic()
    for name in arguments or ORDER:
        left_s = seconds - (time.monotonic() - started)
        if left_s < 5:
            print(f"== {name}: no time left", flush=True)
            continue
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-u", __file__, "--step", name], stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended = f"exit {process.wait(timeout=min(left_s, STEPS[name][1]))}"
        except subprocess.TimeoutExpired:
            ended = "OUT OF TIME"
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        print(f"-- {name}: {ended}, {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
