"""How often a sweep ranks kernels rightly that differ by 1.3 times, on a quiet and on a loaded machine.

Kernels. The master's kernel, and the same with 1.3 and 1.69 times its work (`verdicts.slower_source`): neighbours in
the ranking differ by 1.3. Each has a runner, pinned as in `python gpt149.py sweep`.

A trial. The sweep's own rounds and statistics (`grader.study`: every kernel twice a round, to and fro, medians of the
ratios within rounds), and beside them what is done by hand: every kernel run once, one after the other, by the wall
clock. Both rank the three kernels; a ranking is right when all three stand in order. Runs by hand are drawn before and
after each sweep, so that both meet the same neighbours. Serial parts are ranked by CPU time in a sweep, OpenMP parts
by wall time.

"told" counts the trials in which the sweep also says so: the interval of each slower kernel's ratio to the fastest lies
above 1. "wrongly told" counts those in which it says so of the fastest kernel. What the wall clock of an OpenMP part
cannot rank beside busy neighbours, it must at least not tell.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import verdicts
from trials import ROOT, table

from grader.assignment.loading import load
from grader.assignment.records import Part
from grader.base import machine
from grader.judge.timing.measure import Sample
from grader.run.zygote import Zygote
from grader.study.comparison import Comparison, compared
from grader.study.laboratory import Outcome, Variant, one_round, steadied

FACTORS = (1.0, 1.3, 1.69)
BY_HAND = 4
"""Rankings by hand for each sweep, half of them before it."""

Callers = Mapping[int, Callable[[], Sample]]


@dataclass(frozen=True)
class Trial:
    """One sweep and the rankings by hand around it."""

    sweep: Comparison
    by_hand: tuple[tuple[float, ...], ...]
    """Wall seconds of the kernels, once each."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--module", type=Path, default=ROOT / "module.cpp", help="the kernels (%(default)s)")
    parser.add_argument("--parts", default="part2,part3", help="of the public assignment (%(default)s)")
    parser.add_argument("-N", type=int, default=256, help="rows of Q, K and V (%(default)s)")
    parser.add_argument("--neighbours", default="0,2", help="busy processes beside it (%(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="of a sweep (%(default)s)")
    parser.add_argument("--trials", type=int, default=20, help="of each setting (%(default)s)")
    return parser.parse_args()


def sweep(part: Part, callers: Callers, rounds: int) -> Comparison:
    """Rounds and statistics as `Laboratory.timed` and the sweeps have them."""
    pairs: dict[int, list[tuple[Sample, Sample]]] = {k: [] for k in callers}
    callers = {k: steadied(part, call) for k, call in callers.items()}
    for number in range(rounds):
        samples, broken = one_round(callers, number)
        if broken:
            sys.exit(f"{part.id}: {broken}")
        for k, (first, second) in samples.items():
            pairs[k].append((first, second))
    return compared([Outcome(Variant(f"x{FACTORS[k]:g}", part, {}), tuple(pairs[k])) for k in callers])


def by_hand(callers: Callers) -> tuple[float, ...]:
    """Wall seconds of each kernel, run once."""
    return tuple(call().wall_s for call in callers.values())


def is_right(values: tuple[float, ...]) -> bool:
    """Whether the kernels stand in the order of their work."""
    return all(slower > faster for faster, slower in pairwise(values))


def is_told(found: Comparison) -> bool:
    """Whether the sweep names the right kernel the fastest and tells every other one from it."""
    first, *others = found.lines
    return first.is_fastest and all(line.behind is not None and line.behind.low > 1 for line in others)


def is_wrongly_told(found: Comparison) -> bool:
    """Whether the sweep says that the kernel with the least work is not the fastest."""
    behind = found.lines[0].behind
    return behind is not None and behind.low > 1


def recorded(args: argparse.Namespace) -> dict[tuple[str, int], list[Trial]]:
    """All trials of each part beside each number of neighbours."""
    assignment = load(ROOT / "configs" / "gpt149.yaml")
    shape = {**assignment.defaults, "N": args.N}
    source = args.module.read_text()
    found: dict[tuple[str, int], list[Trial]] = {}
    with tempfile.TemporaryDirectory() as scratch, Zygote() as zygote:
        for name in args.parts.split(","):
            part = assignment.part(name)
            rule = part.time
            threads = (rule.threads if rule else None) or shape["threads"]
            with ExitStack() as stack:
                callers = {}
                for k, factor in enumerate(FACTORS):
                    changed = Path(scratch) / f"{name}-{k}" / "module.cpp"
                    changed.parent.mkdir()
                    changed.write_text(
                        verdicts.slower_source(source, part.function, factor) if factor > 1 else source
                    )
                    session = stack.enter_context(
                        zygote.spawn(
                            "student",
                            verdicts.built(changed),
                            threads=threads,
                            cpus=machine.timing_cpus(rule.threads if rule else None),
                        )
                    )
                    callers[k] = verdicts.caller(session, part, shape)
                    callers[k]()
                for neighbours in map(int, args.neighbours.split(",")):
                    with verdicts.busy_neighbours(neighbours):
                        found[name, neighbours] = [
                            trial(part, callers, args.rounds) for _ in range(args.trials)
                        ]
                    # Said at once: with a limit on its time, a run may end before its table.
                    print("  ".join(row(name, neighbours, found[name, neighbours])), file=sys.stderr)
    return found


def trial(part: Part, callers: Callers, rounds: int) -> Trial:
    before = [by_hand(callers) for _ in range(BY_HAND // 2)]
    found = sweep(part, callers, rounds)
    return Trial(found, (*before, *(by_hand(callers) for _ in range(BY_HAND // 2))))


def row(part: str, neighbours: int, trials: list[Trial]) -> list[str]:
    ratios = [tuple(line.ratio.middle for line in one.sweep.lines if line.ratio) for one in trials]
    hands = [values for one in trials for values in one.by_hand]
    return [
        part,
        str(neighbours),
        trials[0].sweep.clock,
        percent([is_right(values) for values in ratios]),
        percent([is_told(one.sweep) for one in trials]),
        percent([is_wrongly_told(one.sweep) for one in trials]),
        percent([is_right(values) for values in hands]),
        spread([values[1] for values in ratios]),
        spread([values[1] / values[0] for values in hands]),
    ]


def percent(hits: list[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.0f} (n={len(hits)})"


def spread(values: list[float]) -> str:
    return f"{min(values):.2f}..{max(values):.2f}"


HEADER = ("part", "busy", "clock", "sweep right %", "told %", "wrongly told %", "by hand right %")
HEADER += ("1.3 by sweep", "1.3 by hand")


def main() -> int:
    found = recorded(arguments())
    rows = [row(part, neighbours, trials) for (part, neighbours), trials in found.items()]
    print(
        f"\nthree kernels, each 1.3 times the work of the one before, on {len(machine.usable_cpus())} cores"
    )
    print(table(rows, HEADER))
    serial = [line for line in rows if line[2] == "cpu" and not line[3].startswith("100 ")]
    told = [line for line in rows if not line[5].startswith("0 ")]
    print(
        f"\nserial parts: every sweep ranks a 1.3 times difference rightly: {'MISSED' if serial else 'met'}"
    )
    print(f"no sweep tells a wrong fastest kernel: {'MISSED' if told else 'met'}")
    return 1 if serial or told else 0


if __name__ == "__main__":
    sys.exit(main())
