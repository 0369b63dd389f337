"""Whether honest kernels in the published style (tests/honest) are in time: their ratios, and how often they pass.

Recording. For each kernel and part a number of rounds as in a graded measurement: fresh inputs, a fresh pair of
runners for each round, pinned, stopped between calls; alone and beside processes that keep a core busy each.
Resampling: a verdict is drawn by playing recorded rounds to the rule of grader.judge.timing.measure, as
benchmarks/verdicts.py does.

"serial" is the CPU time of a part's reference on one thread over that of part 1, in interleaved calls.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean, median

from trials import ROOT, table

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))

from honest.styles import STYLES, Style, source
from verdicts import attempt, busy_neighbours, percent, policy_of

from grader.assignment.loading import load
from grader.assignment.records import Assignment, Part
from grader.backends import binding
from grader.backends.native.nativebuild import build
from grader.backends.native.nativehost import NativeHost
from grader.backends.pairs import Pairs, play
from grader.backends.torch.zygote import Zygote
from grader.core import machine
from grader.judge.bench import Bench, Options
from grader.judge.marking import Marker
from grader.judge.timing.measure import judge
from grader.judge.timing.rounds import timed_part
from grader.runner.samples import Round
from labs.attention.cases import make_inputs
from module_ref_stub.library import native_program

WANTED_PERCENT = 99.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default="part1,part2,part3", help="timed parts (%(default)s)")
    parser.add_argument("-N", type=int, default=1024)
    parser.add_argument("--styles", type=int, default=len(STYLES), help="so many of the table (all)")
    parser.add_argument(
        "--named", default="", help="only those whose name has one of these words: maximum,starter (all)"
    )
    parser.add_argument("--neighbours", default="0,1", help="busy processes beside it (%(default)s)")
    parser.add_argument("--rounds", type=int, default=16, help="recorded of each kernel (%(default)s)")
    parser.add_argument("--verdicts", type=int, default=300, help="resampled of each kernel (%(default)s)")
    parser.add_argument("--cores", type=int, help="use so many of the machine's cores (all)")
    parser.add_argument("--seed", type=int, default=1, help="of the resampling (%(default)s)")
    return parser.parse_args()


@dataclass(frozen=True)
class Recorded:
    """The rounds of one style in one part, beside a number of busy processes."""

    part: str
    style: str
    neighbours: int
    rounds: tuple[Round, ...]


def record(
    assignment: Assignment, folder: Path, host: NativeHost, args: argparse.Namespace
) -> Iterator[Recorded]:
    """Every style in every part; the styles take turns, a few rounds each, so that all meet the same machine."""
    words = args.named.split(",")
    styles = [style for style in STYLES if any(word in style.name for word in words)][: args.styles]
    for neighbours in map(int, args.neighbours.split(",")):
        for part in (assignment.part(name) for name in args.parts.split(",")):
            with busy_neighbours(neighbours), ExitStack() as stack:
                playing = [
                    rounds_of(assignment, part, style, folder, host, stack, args.N) for style in styles
                ]
                found: list[list[Round]] = [[] for _ in styles]
                while len(found[0]) < args.rounds:
                    for rounds, source_of_rounds in zip(found, playing, strict=True):
                        rounds += islice(source_of_rounds, 4)
            print(f"recorded {part.id}, {neighbours} busy", file=sys.stderr)
            for style, rounds in zip(styles, found, strict=True):
                yield Recorded(part.id, style.name, neighbours, tuple(rounds))


def rounds_of(
    assignment: Assignment,
    part: Part,
    style: Style,
    folder: Path,
    host: NativeHost,
    stack: ExitStack,
    N: int,
) -> Iterator[Round]:
    """Rounds without end, just as a graded measurement takes them."""
    path = folder / style.name / assignment.source
    if not path.exists():
        path.parent.mkdir(parents=True)
        path.write_text(source(style))
    made = build(path)
    if not made.ok:
        sys.exit(f"{style.name} does not compile:\n{made.diagnostics}")
    idle = Zygote(at_once=False)
    bench = Bench(assignment, path, Options({"N": N}), lambda event: None, made, idle, stack, host=host)
    marker = Marker(bench, part)

    def student(**how: object) -> object:
        return bench.student(part, **how)  # type: ignore[arg-type]

    return play(Pairs(timed_part(marker, student, attempt=1)))  # type: ignore[arg-type]


def row(recorded: Recorded, verdicts: int, seed: int) -> tuple[list[str], float]:
    policy = policy_of(recorded.part)
    rng = random.Random(f"{seed} {recorded}")
    drawn = [attempt(recorded.rounds, policy, rng) for _ in range(verdicts)]
    passed = 100 * mean(timing.verdict == "pass" for timing in drawn)
    whole = judge(recorded.rounds, policy)
    cells = [
        recorded.part,
        str(recorded.neighbours),
        recorded.style,
        f"{whole.ratio:.2f}",
        f"{whole.ratio_interval[0]:.2f}..{whole.ratio_interval[1]:.2f}",
        f"{whole.allowance:.2f}",
        f"{passed:.1f}",
        percent(["undecided" in timing.flags for timing in drawn]),
        percent([not timing.fit for timing in drawn]),
    ]
    return cells, passed


def serial_ratios(assignment: Assignment, host: NativeHost, N: int, rounds: int = 9) -> str:
    """CPU time of each part's reference over part 1's, on one thread; medians of interleaved calls."""
    parts = [assignment.part(f"part{k}") for k in (1, 2, 3, 4)]
    shape = {**assignment.defaults, "N": N}
    inputs = make_inputs("random", shape, 1)
    found: list[list[float]] = []
    with host.spawn(native_program(), threads=1, cpus=machine.timing_cpus(1)) as session:
        for _ in range(rounds + 1):
            calls = [session.call(binding.request(part, shape, inputs, reference=True)) for part in parts]
            found.append([call.cpu_s or call.wall_s for call in calls])
    ratios = [median(one[k] / one[0] for one in found[1:]) for k in range(len(parts))]
    return ", ".join(f"{part.id} {ratio:.2f}" for part, ratio in zip(parts, ratios, strict=True))


HEADER = ("part", "busy", "kernel", "ratio", "98 %", "allowed", "pass %", "undecided %", "unfit %")


def main() -> int:
    args = arguments()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    assignment = load(ROOT / "configs" / "gpt149.yaml")
    rows, rates = [], []
    with tempfile.TemporaryDirectory() as folder, NativeHost() as host:
        for recorded in record(assignment, Path(folder), host, args):
            cells, passed = row(recorded, args.verdicts, args.seed)
            rows.append(cells)
            rates.append(passed)
        serial = serial_ratios(assignment, host, args.N)
    print(f"{args.verdicts} resampled verdicts of each kernel, from {args.rounds} recorded rounds")
    print(table(rows, HEADER))
    print(f"\nserial: {serial}")
    print(
        f"every kernel passes in >= {WANTED_PERCENT:g} %: {'met' if min(rates) >= WANTED_PERCENT else 'MISSED'}"
    )
    return 0 if min(rates) >= WANTED_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
