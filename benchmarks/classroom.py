"""What grading a class costs: `grader run` against a plain loop over a `cpp_extension` driver.

The class is made here: copies of the master that differ in a line each, so that every one has to be compiled, every
fifth with a wrong part 1 and every tenth with an error. The plain loop is what a teaching assistant does with the
published kit: for each student compile the extension into an empty folder, then run parts 1 to 4, one process each,
with its Python-loop inputs and its sleeps (benchmarks/published_flow.py). A few students of the loop are measured, in
turn with the class, and stand for the rest; `--looped` says how many.

`--split` evaluates some submissions one after the other in this process, and tells wall and CPU seconds of building,
results and timing. `--flat` grades 10 and then 300 submissions with cheap parts and tells the judge's peak memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from trials import ROOT, checked, run_child, spread, table

sys.path.insert(0, str(ROOT))

PARTS = ("part1", "part2", "part3", "part4")
TARGET_RATIO, TARGET_GROWTH = 6.0, 1.1
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submissions", type=int, default=60, help="in the class (%(default)s)")
    parser.add_argument("--looped", type=int, default=2, help="of them by the plain loop (%(default)s)")
    parser.add_argument("--jobs", help="of the class (the grader's own default)")
    parser.add_argument(
        "--split", type=int, metavar="n", default=0, help="tell what n submissions cost in each phase"
    )
    parser.add_argument("--flat", action="store_true", help="the judge's memory for 10 and 300 submissions")
    parser.add_argument("--no-class", action="store_true", help="only what --split or --flat ask for")
    return parser.parse_args()


# ---- a class


def sources(count: int) -> Iterator[tuple[str, str]]:
    """Name and text of each submission; all texts differ."""
    master = (ROOT / "module.cpp").read_text()
    for k in range(count):
        text = f"// handed in by student {k}\n" + master.replace("TILE_SIZE 16", f"TILE_SIZE {8 + k % 5 * 4}")
        if k % 10 == 9:
            text = text.replace("#include", "#inclood", 1)
        elif k % 5 == 4:
            text = text.replace("std::exp(", "1.0f + (")
        yield f"student{k:03}", text


def write_class(folder: Path, count: int) -> list[Path]:
    written = []
    for name, text in sources(count):
        (folder / name).mkdir(parents=True)
        (folder / name / "module.cpp").write_text(text)
        written.append(folder / name / "module.cpp")
    return written


# ---- class against loop


def grade_class(folder: Path, out: Path, jobs: str | None, *more: str) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one unattended run."""
    command = [sys.executable, "-m", "grader", "run", str(folder), "--out", str(out), *more]
    trial = checked(run_child([*command, *(["--jobs", jobs] if jobs else [])]), command)
    print(trial.output.rstrip().splitlines()[-2], file=sys.stderr)
    return trial.wall_s, trial.cpu_s


def loop_over(source: Path) -> tuple[float, float]:
    """The same for one student by the published way, compile included."""
    wall_s = cpu_s = 0.0
    with tempfile.TemporaryDirectory() as build_dir:
        for part in PARTS:
            script = str(ROOT / "benchmarks" / "published_flow.py")
            trial = run_child(
                [sys.executable, script, part, "--module", str(source), "--build-dir", build_dir]
            )
            wall_s, cpu_s = wall_s + trial.wall_s, cpu_s + trial.cpu_s
    return wall_s, cpu_s


def compare(args: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as place:
        written = write_class(Path(place) / "class", args.submissions)
        before = [loop_over(source) for source in written[: args.looped // 2 + args.looped % 2]]
        ours = grade_class(Path(place) / "class", Path(place) / "out", args.jobs)
        after = [loop_over(source) for source in written[1 : args.looped // 2 + 1]]
    looped = before + after
    n = args.submissions
    rows = [
        ["wall", f"{ours[0]:.0f} s", f"{ours[0] / n:.2f} s", spread([wall for wall, _ in looped])],
        ["CPU", f"{ours[1]:.0f} s", f"{ours[1] / n:.2f} s", spread([cpu for _, cpu in looped])],
    ]
    print(table(rows, ("", f"class of {n}", "per submission", "plain loop, per submission")))
    ratio = median(wall for wall, _ in looped) * n / ours[0]
    print(f"\nthe plain loop takes {ratio:.1f} x the wall-clock (target >= {TARGET_RATIO:g})")
    return ratio >= TARGET_RATIO


# ---- where the time goes


class FamilyCpu:
    """CPU seconds of this process and all its descendants, sampled: whose parent does not wait for them would be
    lost when they end, as a sandbox's processes are. What a process does after its last sample is not counted."""

    PERIOD_S = 0.5

    def __init__(self) -> None:
        self._used_s: dict[tuple[int, str], float] = {}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._sampler = threading.Thread(target=self._keep_sampling)

    def __enter__(self) -> FamilyCpu:
        self._sampler.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._sampler.join()

    def _keep_sampling(self) -> None:
        while not self._ended.wait(self.PERIOD_S):
            self.so_far_s()

    def so_far_s(self) -> float:
        parents: dict[int, list[int]] = {}
        stats: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
                    stats[int(entry.name)] = fields
        with self._lock:
            family = [os.getpid()]
            while family:
                pid = family.pop()
                family += parents.get(pid, [])
                if fields := stats.get(pid):
                    user, system, began = fields[11], fields[12], fields[19]
                    self._used_s[pid, began] = (int(user) + int(system)) * TICK_S
            return sum(self._used_s.values())


def split(count: int) -> None:
    """Phases by the evaluator's own events: what is timed begins where it asks to be alone."""
    from grader import sandbox
    from grader.assignment.loading import load
    from grader.judge.bench import Options
    from grader.judge.evaluate import evaluate, import_numpy
    from grader.judge.events import BuildStarted, Built, Event, PartDone

    assignment, box = load(ROOT / "configs" / "gpt149.yaml"), sandbox.choose(None, True)
    import_numpy(assignment)
    wall: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    phase, since = "", (0.0, 0.0)

    def enter(name: str) -> None:
        nonlocal phase, since
        now = (time.perf_counter(), used.so_far_s())
        if phase:
            wall[phase][-1] += now[0] - since[0]
            cpu[phase][-1] += now[1] - since[1]
        phase, since = name, now

    def hear(event: Event) -> None:
        if isinstance(event, (BuildStarted, Built, PartDone)):
            enter("build" if isinstance(event, BuildStarted) else "results and memory")

    @contextmanager
    def alone(_part: object) -> Iterator[None]:
        enter("timing")
        yield

    with FamilyCpu() as used, tempfile.TemporaryDirectory() as place:
        for source in write_class(Path(place), count):
            for series in (wall, cpu):
                for name in ("build", "results and memory", "timing"):
                    series.setdefault(name, []).append(0.0)
            evaluate(
                assignment, source, assignment.select("all"), Options(), hear, exclusive=alone, sandbox=box
            )
            enter("")
    rows = [[name, spread(wall[name]), spread(cpu[name])] for name in wall]
    print(table(rows, ("phase", f"wall, tier {box.tier}", "CPU, all processes")))


# ---- memory


CHEAP_CONFIG = """schema_version: 1
id: cheap
title: Accessors only
source: module.cpp
defaults: {B: 1, H: 1, N: 8, d: 4, Br: 4, Bc: 4, threads: 1}
inputs: {Q: [B, H, N, d]}
limits: {build_s: 180, call_s: 10, memory_gib: 4}
cases:
  - {name: small, distribution: indices, seed: 10, shape: {B: 2, H: 3, N: 4, d: 5}}
parts:
  - id: read
    title: 4-D Read
    label: 4D READ
    function: fourDimRead
    arguments: [tensor, "column(0)", "column(1)", "column(2)", "column(3)", H, N, d]
    table: [index]
    returns: number
    oracle: read4d
    points: 1
"""


def peak_bytes(folder: Path, place: Path, config: Path) -> tuple[int, Counter[str]]:
    """Largest resident size of the judge's own process while it grades a folder."""
    command = [
        sys.executable,
        "-m",
        "grader",
        "run",
        str(folder),
        "--out",
        str(place),
        "--config",
        str(config),
    ]
    child = subprocess.Popen([*command, "--no-time"], cwd=ROOT, stdout=subprocess.DEVNULL)
    peak = 0
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
            peak = max(
                peak,
                *(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")),
            )
        except (OSError, TypeError):
            pass
        time.sleep(0.05)
    return peak, Counter({"exit code": child.returncode})


def flat() -> bool:
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "cheap.yaml"
        config.write_text(CHEAP_CONFIG)
        text = (ROOT / "module.cpp").read_text()
        found = {}
        for count in (10, 300):
            folder = Path(place) / f"class{count}"
            for k in range(count):
                (folder / f"student{k:03}").mkdir(parents=True)
                (folder / f"student{k:03}" / "module.cpp").write_text(text)
            started = time.perf_counter()
            found[count], ended = peak_bytes(folder, Path(place) / f"out{count}", config)
            wall_s = time.perf_counter() - started
            print(
                f"{count} submissions: {found[count] / 2**20:.1f} MB at the most, {wall_s:.0f} s, {dict(ended)}"
            )
    growth = found[300] / found[10]
    print(f"the judge's memory grows by {growth:.2f} x (target <= {TARGET_GROWTH:g})")
    return growth <= TARGET_GROWTH


def main() -> int:
    args = arguments()
    met = True
    if args.split:
        split(args.split)
    if args.flat:
        met &= flat()
    if not args.no_class:
        met &= compare(args)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
