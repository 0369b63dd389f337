"""Judges the family of wrong kernels and right variants, and prints what became of each.

As a program, from the project's folder: `PYTHONPATH=. python tests/wrong/family.py`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from right_variants import RIGHT
from wrong_kernels import WRONG

from grader import assignment
from grader.bench import Options
from grader.evaluate import evaluate
from grader.results import PartResult
from grader.selftest.mutations import Mutation, parts_of, side_by_side
from grader.zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
#: Small enough for a hundred kernels in minutes; the assignment's other cases keep their own shapes.
SHAPE = {"N": 256, "Br": 64, "Bc": 64}
#: Few compiles, and still enough sources to keep parallel workers busy to the end.
IN_ONE_SOURCE = 13


def groups(mutations: Sequence[Mutation]) -> list[tuple[Mutation, ...]]:
    """Mutations that share a source."""
    return [tuple(mutations[at : at + IN_ONE_SOURCE]) for at in range(0, len(mutations), IN_ONE_SOURCE)]


def judge(
    group: tuple[Mutation, ...], zygote: Zygote, folder: Path, *, profile: bool = False
) -> list[tuple[Mutation, PartResult]]:
    """Build the master's functions with these mutations made and judge them, without timing. Flags of the file as a
    whole are given to each of its parts."""
    source = folder / "module.cpp"
    source.write_text(side_by_side((ROOT / "module.cpp").read_text(), group))
    course = assignment.load(ROOT / "configs" / "gpt149.yaml")
    options = Options(shape=SHAPE, timing=False, profile=profile)
    result = evaluate(course, source, parts_of(course, group), options, zygote=zygote)
    return [
        (mutation, replace(part, flags=result.flags))
        for mutation, part in zip(group, result.parts, strict=True)
    ]


def judge_all(mutations: Sequence[Mutation]) -> Iterator[tuple[Mutation, PartResult]]:
    with Zygote() as zygote, tempfile.TemporaryDirectory() as folder:
        for group in groups(mutations):
            yield from judge(group, zygote, Path(folder))


def main() -> int:
    named = rejected = 0
    for mutation, result in judge_all(WRONG):
        code = result.diagnosis.code if result.diagnosis else "-"
        hit = code in mutation.codes
        rejected += result.verdict != "pass"
        named += hit
        wanted = "" if hit else f"  (not {' or '.join(mutation.codes) or 'named'})"
        print(f"{mutation.name:32} {result.verdict:8} {code}{wanted}", flush=True)
    accepted = 0
    for mutation, result in judge_all(RIGHT):
        accepted += result.verdict == "pass"
        if result.verdict != "pass":
            print(f"{mutation.name:32} {result.verdict:8} {result.diagnosis}", flush=True)
    print(
        f"wrong kernels rejected {rejected} of {len(WRONG)}, bug named {named}; "
        f"right ones accepted {accepted} of {len(RIGHT)}"
    )
    return 0 if rejected == len(WRONG) and accepted == len(RIGHT) else 1


if __name__ == "__main__":
    sys.exit(main())
