"""Files with bugs of the table side by side, which compile once, and their judgement as in a student's own run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conftest import ROOT
from honest.styles import STYLES, source
from table import BUGS, MARK, Base, Bug

from grader.assignment import loading, mutations
from grader.assignment.mutations import Mutation
from grader.assignment.records import Assignment
from grader.base.results import PartResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.study import race
from labs.attention.mutations import FUNCTIONS, KERNELS

#: Larger than an array of 512 and the square root of a short.
SHAPE = {"N": 600, "Br": 64, "Bc": 64}
IN_ONE_SOURCE = 12


@dataclass(frozen=True)
class Judged:
    """Result of judging one bug; `lines` are those of the mistake."""

    bug: Bug
    lines: tuple[int, ...]
    result: PartResult

    @property
    def message(self) -> str:
        return self.result.diagnosis.message if self.result.diagnosis else ""

    @property
    def named(self) -> list[int]:
        """Lines of the file that the message names."""
        return [int(line) for line in re.findall(r"\bmodule\.cpp:(\d+)", self.message)]

    @property
    def distance(self) -> int:
        """Lines between the mistake and the nearest line that is named."""
        return min((abs(a - b) for a in self.named for b in self.lines), default=9999)


def groups() -> list[list[Bug]]:
    """Bugs that share a source: of one base, those with races by themselves, as they need a build of their own."""
    found: list[list[Bug]] = []
    for base in ("softmax", "operators", "published", "master"):
        for racing in (False, True):
            some = [bug for bug in BUGS if bug.base == base and (bug.kind == "race") == racing]
            found += [some[at : at + IN_ONE_SOURCE] for at in range(0, len(some), IN_ONE_SOURCE)]
    return found


@cache
def assignment(base: Base) -> Assignment:
    lab = base in ("softmax", "operators")
    return loading.load(ROOT / (f"labs/{base}/assignment.yaml" if lab else "configs/gpt149.yaml"))


def correct_file(base: Base) -> str:
    if base == "published":
        return source(STYLES[0])
    return (ROOT / ("module.cpp" if base == "master" else f"labs/{base}/{base}.cpp")).read_text()


def functions(base: Base) -> dict[str, str]:
    return FUNCTIONS if base in ("master", "published") else mutations.functions_of(assignment(base))


def mutation(bug: Bug) -> Mutation:
    return Mutation(bug.name, bug.part, bug.edits)


def alone(bug: Bug) -> tuple[str, tuple[int, ...]]:
    """Return the file with this bug alone, and the lines of the mistake."""
    return without_marks(mutations.applied(correct_file(bug.base), functions(bug.base), [mutation(bug)]))


def without_marks(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the text without its marks, and the lines that had one."""
    rows = text.split("\n")
    lines = tuple(number for number, row in enumerate(rows, 1) if MARK in row)
    return "\n".join(row.replace(MARK, "").rstrip() if MARK in row else row for row in rows), lines


def judge(group: Sequence[Bug], folder: Path) -> Iterator[Judged]:
    """Judge bugs of one base as a student's own run does, without time and table."""
    base, made = group[0].base, [mutation(bug) for bug in group]
    dropped = KERNELS if base in ("master", "published") else ()
    text, marked = without_marks(mutations.side_by_side(correct_file(base), functions(base), made, dropped))
    starts = [text[: text.index(f" {mutations.variant(k)}(")].count("\n") + 1 for k in range(len(group))]
    course, file = assignment(base), folder / "module.cpp"
    file.write_text(text)
    options = Options(
        shape={name: size for name, size in SHAPE.items() if name in course.defaults},
        timing=False,
        profile=False,
        second_look=True,
        watch_races=lambda part: race.words_of(course, part, file, {}),
    )
    parts = evaluate(course, file, mutations.parts_of(course, made), options).parts
    for bug, start, end, part in zip(group, starts, [*starts[1:], 1 << 30], parts, strict=True):
        yield Judged(bug, tuple(line for line in marked if start <= line < end), part)
