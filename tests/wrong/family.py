"""Judges the family of wrong kernels and right variants, and prints what became of each.

As a program, from the project's folder: `PYTHONPATH=. python tests/wrong/family.py`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from right_variants import RIGHT
from wrong_kernels import WRONG

from grader import assignment
from grader.bench import Options
from grader.evaluate import evaluate
from grader.results import PartResult
from grader.selftest.mutations import Mutation, apply, packed
from grader.zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
#: Small enough for a hundred kernels in minutes; the assignment's other cases keep their own shapes.
SHAPE = {"N": 256, "Br": 64, "Bc": 64}


def judge(
    group: tuple[Mutation, ...], zygote: Zygote, folder: Path, *, profile: bool = False
) -> list[tuple[Mutation, PartResult]]:
    """Build the master with these mutations made and judge just the parts they are in, without timing. Flags of the
    file as a whole are given to each of its parts."""
    source = folder / "module.cpp"
    source.write_text(apply((ROOT / "module.cpp").read_text(), group))
    course = assignment.load(ROOT / "configs" / "gpt149.yaml")
    options = Options(shape=SHAPE, timing=False, profile=profile)
    # A part judged through another one would be judged by a kernel that is mutated as well.
    parts = tuple(replace(course.part(mutation.part), stands_in=None) for mutation in group)
    result = evaluate(course, source, parts, options, zygote=zygote)
    return [
        (mutation, replace(part, flags=result.flags))
        for mutation, part in zip(group, result.parts, strict=True)
    ]


def judge_all(mutations: Iterable[Mutation]) -> Iterator[tuple[Mutation, PartResult]]:
    with Zygote() as zygote, tempfile.TemporaryDirectory() as folder:
        for group in packed(mutations):
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
