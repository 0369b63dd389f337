"""Judges the table of students' bugs and prints what became of each: how a reader finds the line.

As a program, from the project's folder: `PYTHONPATH=. python tests/student_bugs/judged.py`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from table import BUGS, Bug
from written import assignment, together

from grader.base.results import PartResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.study import race

#: Larger than an array of 512 and the square root of a short.
SHAPE = {"N": 600, "Br": 64, "Bc": 64}
IN_ONE_SOURCE = 12


@dataclass(frozen=True)
class Judged:
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


def groups() -> list[tuple[Bug, ...]]:
    """Bugs that share a source: of one base, those with races by themselves, as they need a build of their own."""
    found: list[tuple[Bug, ...]] = []
    for base in ("master", "published", "softmax", "operators"):
        for racing in (False, True):
            some = [bug for bug in BUGS if bug.base == base and (bug.kind == "race") == racing]
            found += [tuple(some[at : at + IN_ONE_SOURCE]) for at in range(0, len(some), IN_ONE_SOURCE)]
    return found


def judge(group: Sequence[Bug], folder: Path) -> Iterator[Judged]:
    """As a student's own run does, without time and table."""
    course, made = assignment(group[0].base), together(group)
    source = folder / "module.cpp"
    source.write_text(made.text)
    options = Options(
        shape={name: size for name, size in SHAPE.items() if name in course.defaults},
        timing=False,
        profile=False,
        second_look=True,
        watch_races=lambda part: race.words_of(course, part, source, {}),
    )
    result = evaluate(course, source, made.parts, options)
    for bug, lines, part in zip(group, made.lines, result.parts, strict=True):
        yield Judged(bug, lines, part)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for group in groups():
            for each in judge(group, Path(folder)):
                code = each.result.diagnosis.code if each.result.diagnosis else "-"
                print(
                    f"{each.bug.kind:10} {each.bug.name:45} {each.result.verdict:8} {code:20} {each.distance}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
