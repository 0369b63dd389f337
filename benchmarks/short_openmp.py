"""How often a short OpenMP kernel that is the reference itself is called slow: whole verdicts, not resampled ones.

Each verdict is a measurement as a graded one: the reference against itself, by the wall clock, with an allowance of
1.10 and no milliseconds on top, so that nothing hides the noise. "fresh pairs" is the kit's way: a pair of processes
for each round, threads pinned to cores. "one pair" has all rounds of a verdict in one pair of processes and leaves the
threads to the system. Both take turns, alone and beside processes that keep a core busy each.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles

from trials import ROOT, table

sys.path.insert(0, str(ROOT))

from verdicts import busy_neighbours

from grader.assignment.loading import load
from grader.assignment.records import Part
from grader.base import machine
from grader.base.results import Timing
from grader.doctor.steady import reference_twice
from grader.judge.timing import measure
from grader.run.nativehost import NativeHost

ASSIGNMENT = load(ROOT / "configs" / "gpt149.yaml")
POLICY = measure.TimePolicy("wall", allowance_ratio=1.10, allowance_ms=0.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-N", type=int, default=96, help="rows; a call should take 1 to 3 ms (%(default)s)")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--verdicts", type=int, default=500, help="for each setting (%(default)s)")
    parser.add_argument(
        "--one-pair", type=int, default=50, help="of them the other way as well (%(default)s)"
    )
    parser.add_argument("--neighbours", default="0,1,2", help="busy processes beside it (%(default)s)")
    parser.add_argument(
        "--within-s", type=float, default=math.inf, help="of each setting, fewer then (no limit)"
    )
    parser.add_argument("--cores", type=int, help="use so many of the machine's cores (all)")
    return parser.parse_args()


def in_one_pair(host: NativeHost, part: Part, shape: dict[str, int]) -> Timing:
    """A verdict whose rounds share one pair of processes, with no thread pinned."""

    @contextmanager
    def same() -> Iterator[tuple[Callable[[], measure.Sample], Callable[[], measure.Sample]]]:
        yield calls

    cores, machine.core_order = machine.core_order, list
    try:
        with reference_twice(host, ASSIGNMENT, part, shape)() as calls:
            return measure.compare(same, POLICY)
    finally:
        machine.core_order = cores


def row(way: str, neighbours: int, timings: list[Timing]) -> list[str]:
    ratios = [timing.ratio for timing in timings]
    ends = quantiles(ratios, n=100) if len(ratios) > 1 else [ratios[0]] * 99
    return [
        way,
        str(neighbours),
        str(len(timings)),
        str(sum(timing.verdict == "slow" for timing in timings)),
        str(sum("undecided" in timing.flags for timing in timings)),
        str(sum(not timing.fit for timing in timings)),
        f"{sum(timing.rounds for timing in timings) / len(timings):.1f}",
        f"{median(ratios):.3f}",
        f"{ends[0]:.2f}..{ends[-1]:.2f}",
        f"{min(ratios):.2f}..{max(ratios):.2f}",
        f"{median(timing.reference_ms for timing in timings):.2f}",
    ]


HEADER = (
    "rounds in",
    "busy",
    "verdicts",
    "slow",
    "undecided",
    "unfit",
    "rounds",
    "ratio",
    "1..99 %",
    "range",
    "ms",
)


def main() -> int:
    args = arguments()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    assignment = ASSIGNMENT
    part = assignment.part("part3")
    shape = {**assignment.defaults, "N": args.N, "threads": args.threads}
    rows, false = [], 0
    with NativeHost() as host:
        for neighbours in map(int, args.neighbours.split(",")):
            ours: list[Timing] = []
            others: list[Timing] = []
            deadline = time.monotonic() + args.within_s
            with busy_neighbours(neighbours):
                for number in range(args.verdicts):
                    if time.monotonic() > deadline:
                        break
                    ours.append(measure.compare(reference_twice(host, ASSIGNMENT, part, shape), POLICY))
                    if number * args.one_pair // args.verdicts >= len(others):
                        others.append(in_one_pair(host, part, shape))
            false += sum(timing.verdict == "slow" for timing in ours)
            rows += [row("fresh pairs", neighbours, ours)]
            rows += [row("one pair", neighbours, others)] if others else []
            print(f"{neighbours} busy: {len(ours)} verdicts", file=sys.stderr)
    print(table(rows, HEADER))
    print(f"\nan identical kernel called slow, target 0: {'met' if not false else 'MISSED'}")
    return 1 if false else 0


if __name__ == "__main__":
    sys.exit(main())
