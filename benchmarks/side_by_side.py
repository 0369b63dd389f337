"""How many serial timings may run side by side: false fails and power, with other cores timing at once.

A serial part is decided by the CPU time of a pinned core. Whether that holds beside other timings is measured here, by
the judge's own rounds (fresh inputs, fresh runners, every output checked): a lane is one process with a core of its
own, which times first the reference against itself and then a kernel that takes 1.3 times as long.
There are 0, half and all of the other cores as further lanes, and, as a worst neighbour of another kind, compilers on
all of the other cores. Verdicts are then drawn from each setting's rounds, in blocks of four (as
benchmarks/verdicts.py says). Everything in one setting happens at once; settings follow one another.

`--class n` then grades n submissions twice in the same run, `--timings-alone` (as it was: each timing has the machine)
and as it is, and compares wall-clock, verdicts and points.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from trials import ROOT, table
from verdicts import at_the_allowance, attempt, percent, slower_source

sys.path.insert(0, str(ROOT))

from grader.assignment.loading import load
from grader.assignment.records import Part
from grader.base import machine
from grader.build import nativebuild
from grader.build.nativebuild import NativeBuild
from grader.build.toolchain import cache_root
from grader.judge import binding
from grader.judge.bench import Bench, Options
from grader.judge.marking import Marker
from grader.judge.timing import rounds
from grader.judge.timing.measure import Round, Sample, TimePolicy, judge, play
from grader.run.nativehost import NativeHost
from grader.run.session import Session
from grader.run.zygote import Zygote
from grader.sandbox import OPEN

CONFIG = ROOT / "configs" / "gpt149.yaml"
SLOWDOWN = {"part1": 1.3, "part2": 1.44}
"""The work of the slower kernel over the master's, so that it takes some 1.3 times as long as the reference: the
master's part 2 takes 0.9 of it."""
VERDICTS = 300
LEAST_ROUNDS = 8
TARGET_RATIO = 0.5


@dataclass(frozen=True)
class Setting:
    """`lanes` time at once, each on a core of its own, beside so many cores that compile."""

    name: str
    lanes: int
    compilers: int


def settings(cores: int) -> list[Setting]:
    found = [Setting("no other", 1, 0)]
    if (cores - 1) // 2 > 0:
        found.append(Setting(f"half of the others ({(cores - 1) // 2})", 1 + (cores - 1) // 2, 0))
    if cores > 1:
        found.append(Setting(f"all others ({cores - 1})", cores, 0))
        found.append(Setting(f"compilers on all others ({cores - 1})", 1, cores - 1))
    return found


# ---- one lane


class ItselfPairs(rounds.Pairs):
    """The reference on both sides."""

    def student_call(self, session: Session) -> Sample:
        return self.draw.sample(session, is_reference=True)

    def small_call(self, mine: Session, shape: Mapping[str, int], inputs: Mapping[str, Any]) -> None:
        request = binding.request(self.marker.part, shape, inputs, reference=True)
        self.marker.refuse_failed_reference(mine.call(request))


def sources(scratch: Path, part: Part) -> Path:
    """A kernel that does 1.3 times the work of the master's."""
    source = scratch / part.id / "module.cpp"
    if not source.exists():  # the lanes find it written
        source.parent.mkdir()
        source.write_text(
            slower_source((ROOT / "module.cpp").read_text(), part.function, SLOWDOWN.get(part.id, 1.3))
        )
    return source


def pairs_of(bench: Bench, part: Part, core: int, kernel: str) -> rounds.Pairs:
    marker = Marker(bench, part)
    draw = rounds.TimedInputs(marker, random.getrandbits(60))
    assert part.time is not None
    if kernel == "identical":
        return ItselfPairs(marker, partial(bench.reference), draw, part.time, [core])
    return rounds.Pairs(marker, partial(bench.student, part), draw, part.time, [core])


def lane(part_id: str, core: int, seconds: float, scratch: Path) -> None:
    """Record rounds of both kernels for so long each, as the parent says go, and print them."""
    assignment = load(CONFIG)
    part = assignment.part(part_id)
    built = nativebuild.build(sources(scratch, part))
    assert isinstance(built, NativeBuild) and built.ok, built.diagnostics
    with ExitStack() as stack:
        host = stack.enter_context(NativeHost())
        zygote = stack.enter_context(Zygote(sandbox=OPEN, at_once=False))
        bench = Bench(assignment, ROOT, Options(), lambda event: None, built, zygote, stack, host=host)
        recorded = {}
        for kernel in ("identical", "slower"):
            played = play(pairs_of(bench, part, core, kernel))
            next(played)
            print("ready", flush=True)
            sys.stdin.readline()
            recorded[kernel] = [asdict(one) for one in until(played, seconds)]
    print(json.dumps(recorded), flush=True)


def until(played: Iterator[Round], seconds: float) -> Iterator[Round]:
    ends = time.monotonic() + seconds
    for count, one in enumerate(played, 1):
        yield one
        if count >= LEAST_ROUNDS and time.monotonic() > ends and count % 2 == 0:
            return


# ---- a setting


def compiling(place: Path, core: int) -> Callable[[], None]:
    """A core that compiles the master again and again; returns what ends it."""
    script = f"while :; do g++ -O3 -fopenmp -I{ROOT / 'grader/run/inside/plain'} -x c++ -c {place} -o /dev/null; done"
    child = subprocess.Popen(
        ["sh", "-c", script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )

    def end() -> None:
        os.killpg(child.pid, 9)
        child.wait()

    return end


def record(setting: Setting, part: Part, seconds: float, scratch: Path) -> dict[str, list[list[Round]]]:
    """Of each lane, the rounds of both kernels."""
    order = list(reversed(machine.core_order()))
    command = [sys.executable, str(Path(__file__).resolve()), "--seconds", str(seconds), "--lane", part.id]
    with ExitStack() as stack:
        children = []
        for core in order[: setting.lanes]:
            child = subprocess.Popen(
                [*command, str(core), str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            stack.callback(child.kill)
            children.append(child)
        busy = scratch / "busy.cpp"
        busy.write_text(
            '#include <map>\n#include <regex>\n#include <iostream>\nint f(){std::regex r("a"); return 0;}\n'
        )
        for core in order[setting.lanes : setting.lanes + setting.compilers]:
            stack.callback(compiling(busy, core))
        for _ in ("identical", "slower"):
            for child in children:
                if child.stdout.readline() != "ready\n":
                    sys.exit("a lane ended early")
            for child in children:
                child.stdin.write("go\n")
                child.stdin.flush()
        told = [json.loads(child.stdout.readline()) for child in children]
    return {
        kernel: [[restored(one) for one in lane[kernel]] for lane in told]
        for kernel in ("identical", "slower")
    }


def restored(raw: dict) -> Round:
    sides = (tuple(Sample(**sample) for sample in raw[side]) for side in ("reference", "student"))
    return Round(*sides)


def row(setting: Setting, part: Part, found: dict[str, list[list[Round]]], rng: random.Random) -> list[str]:
    policy = policy_of(part)

    def drawn(lanes: list[list[Round]]) -> list:
        return [attempt(rng.choice(lanes), policy, rng) for _ in range(VERDICTS)]

    identical, slower = drawn(found["identical"]), drawn(found["slower"])
    edge = drawn([list(at_the_allowance(lane, policy)) for lane in found["identical"]])
    all_ratios = [judge(lane, policy) for lane in found["identical"]]
    singles = sorted(judge([one], policy).ratio for lane in found["identical"] for one in lane)
    calls = [sample.cpu_s for lane in found["identical"] for one in lane for sample in one.reference]
    return [
        part.id,
        setting.name,
        str(sum(map(len, found["identical"]))),
        f"{1e3 * median(calls):.0f}",
        f"{sum(timing.verdict == 'slow' for timing in identical)} of {VERDICTS}",
        percent([not timing.fit for timing in identical]),
        percent(["undecided" in timing.flags for timing in identical]),
        percent([timing.verdict == "slow" for timing in edge]),
        percent([timing.verdict == "slow" for timing in slower]),
        f"{median(timing.ratio for timing in slower):.2f}/{median(timing.allowance for timing in slower):.2f}",
        f"{min(t.ratio for t in all_ratios):.3f}..{max(t.ratio for t in all_ratios):.3f}",
        f"{singles[0]:.2f}..{singles[-1]:.2f}",
        f"{min(t.self_ratio for t in all_ratios):.3f}..{max(t.self_ratio for t in all_ratios):.3f}",
    ]


def policy_of(part: Part) -> TimePolicy:
    rule = part.time
    return TimePolicy(rule.clock, allowance_ratio=rule.allowance_ratio, allowance_ms=rule.allowance_ms)


HEADER = (
    "part",
    "timing beside it",
    "rounds",
    "ms a call",
    "false fails",
    "unfit %",
    "undecided %",
    "at the allowance: slow %",
)
HEADER += ("x1.3: slow %", "its ratio/allowance", "A/A of lanes", "single rounds", "first call/second")


# ---- a class, as it was and as it is


def grade(folder: Path, out: Path, *more: str) -> tuple[float, dict[str, list[str]]]:
    command = [
        sys.executable,
        "-m",
        "grader",
        "run",
        str(folder),
        "--out",
        str(out),
        "--seed",
        "149",
        "--trust",
        *more,
    ]
    started = time.perf_counter()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - started
    if ended.returncode:
        sys.exit(ended.stdout[-2000:] + ended.stderr[-2000:])
    with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        grades = {entry["id"]: [entry["total"], entry["flags"]] for entry in csv.DictReader(file)}
    return wall_s, grades


def compare_classes(count: int) -> bool:
    from classroom import write_class

    os.environ["GPT149_CACHE"] = str(cache_root())
    with tempfile.TemporaryDirectory() as place:
        taken = {}
        for how, more in {"alone": ("--timings-alone",), "side by side": ()}.items():
            folder = Path(place) / how.replace(" ", "-")
            for source in write_class(folder, count):
                # Otherwise the second run would find the first one's objects.
                source.write_text(f"// {how} {random.random()}\n" + source.read_text())
            taken[how] = grade(folder, Path(place) / f"out-{folder.name}", *more)
    (alone_s, before), (beside_s, now) = taken["alone"], taken["side by side"]
    other = [name for name in before if before[name][0] != now[name][0]]
    print(table([[how, f"{wall_s:.0f} s", f"{wall_s / count:.2f} s"] for how, (wall_s, _) in taken.items()],
                (f"timings of {count} submissions", "wall-clock", "each")))  # fmt: skip
    print(f"ratio {beside_s / alone_s:.2f} (target <= {TARGET_RATIO:g} on 16 cores, <= 1 on 2)")
    print(f"other totals: {other or 'none'}")
    return beside_s / alone_s <= (TARGET_RATIO if len(machine.usable_cpus()) >= 16 else 1.0) and not other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default="part1,part2", help="serial ones of the assignment (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of rounds, for each kernel and setting (%(default)s)"
    )
    parser.add_argument(
        "--class", dest="count", type=int, default=0, help="also grade so many submissions both ways"
    )
    parser.add_argument("--no-table", action="store_true", help="only the class")
    parser.add_argument("--lane", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.lane:
        lane(given.lane[0], int(given.lane[1]), given.seconds, Path(given.lane[2]))
        return 0
    met, rng = True, random.Random(1)
    if not given.no_table:
        assignment, rows = load(CONFIG), []
        with tempfile.TemporaryDirectory() as scratch:
            for part in map(assignment.part, given.parts.split(",")):
                nativebuild.build(sources(Path(scratch), part))  # the lanes find it
                for setting in settings(len(machine.core_order())):
                    found = record(setting, part, given.seconds, Path(scratch))
                    rows.append(row(setting, part, found, rng))
                    print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        print(f"{len(machine.core_order())} cores; {VERDICTS} verdicts drawn of each setting")
        print(table(rows, HEADER))
        met = all(one[4].startswith("0 ") for one in rows)
        print(f"false fails of the reference against itself, target 0: {'met' if met else 'MISSED'}")
    if given.count:
        met &= compare_classes(given.count)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
