"""The message for every bug of the table leads to its line, and to no wrong place."""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, one_of_each
from honest.styles import STYLES, source
from table import BUGS, MARK, Bug

from grader.assignment import loading, mutations
from grader.assignment.mutations import Mutation
from grader.assignment.records import Assignment
from grader.backends.native.toolchain import toolchain
from grader.explain import closer_look
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.study import race, watch_races

ADDR2LINE = shutil.which("addr2line") is not None
WATCHED = race.has_thread_sanitizer(toolchain())
#: Words for an access outside of an array, one to freed memory, and a division by zero.
OUTSIDE = ("out of range", "beyond", "before an array", "freed", "out of bounds", "division by zero")
#: N is larger than an array of 512 and the square root of a short.
SHAPE = {"N": 600, "Br": 64, "Bc": 64}
IN_ONE_SOURCE = 12


def groups() -> list[list[Bug]]:
    """Group bugs that share a source: those of one base, races apart, since they need a different build."""
    found: list[list[Bug]] = []
    for base in ("softmax", "operators", "published", "master"):
        for racing in (False, True):
            some = [bug for bug in BUGS if bug.base == base and (bug.kind == "race") == racing]
            found += [some[at : at + IN_ONE_SOURCE] for at in range(0, len(some), IN_ONE_SOURCE)]
    return found


@cache
def course_of(base: str) -> tuple[Assignment, str, dict[str, str]]:
    """Return the assignment of a base, its correct file, and its functions by part."""
    if base in ("softmax", "operators"):
        lab = loading.load(ROOT / f"labs/{base}/assignment.yaml")
        return lab, (ROOT / f"labs/{base}/{base}.cpp").read_text(), lab.lab.kernels().FUNCTIONS
    text = source(STYLES[0]) if base == "published" else (ROOT / "module.cpp").read_text()
    course = loading.load(ROOT / "configs/gpt149.yaml")
    return course, text, course.lab.kernels().FUNCTIONS


def mutation(bug: Bug) -> Mutation:
    return Mutation(bug.name, bug.part, bug.edits)


def without_marks(text: str) -> tuple[str, list[int]]:
    """Return the text without its marks, and the lines that had one."""
    rows = text.split("\n")
    lines = [number for number, row in enumerate(rows, 1) if MARK in row]
    return "\n".join(row.replace(MARK, "").rstrip() if MARK in row else row for row in rows), lines


@pytest.mark.skipif(toolchain().family != "gcc", reason="gcc's sanitizers, containers and warnings")
@pytest.mark.parametrize(
    "group",
    one_of_each(groups(), key=lambda group: None, name=lambda group: f"{group[0].base}: {group[0].name}"),
)
def test_output_leads_to_the_line(group: list[Bug], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged as in a student's own run, without time and table."""
    monkeypatch.chdir(tmp_path)
    course, correct, functions = course_of(group[0].base)
    made, file = [mutation(bug) for bug in group], tmp_path / "module.cpp"
    text, marked = without_marks(mutations.side_by_side(correct, functions, made))
    starts = [text[: text.index(f" {mutations.variant(k)}(")].count("\n") + 1 for k in range(len(group))]
    file.write_text(text)
    shape = {name: size for name, size in SHAPE.items() if name in course.defaults}
    options = Options(shape, timing=False, profile=False, second_look=True, watch_races=watch_races)
    parts = evaluate(course, file, mutations.parts_of(course, made), options).parts
    failed = [flag for part in parts for flag in part.flags if flag.code == "explanation_failed"]
    assert not failed, failed
    for bug, start, end, part in zip(group, starts, [*starts[1:], 1 << 30], parts, strict=True):
        # A damaged heap may also make free() wait for ever.
        assert part.verdict in ("wrong", "crash", "timeout") and part.diagnosis is not None, bug.name
        message = part.diagnosis.message
        shown = f"{bug.name}: {message}"
        assert not bug.codes or part.diagnosis.code in bug.codes, f"{part.diagnosis.code} {shown}"
        if (bug.kind == "race" and not WATCHED) or (bug.part.startswith("4D") and not ADDR2LINE):
            continue
        lines = [line for line in marked if start <= line < end]
        named = [int(line) for line in re.findall(r"\bmodule\.cpp:(\d+)", message)]
        distance = min((abs(a - b) for a in named for b in lines), default=9999)
        assert distance <= bug.within, f"named {named}, wrong {lines}: {shown}"
        # A proved access outside of an array takes the place of what the numbers show.
        assert bug.said in message or message.startswith(closer_look.OUTSIDE), shown
        assert bug.kind not in ("outside", "crash") or any(words in message for words in OUTSIDE), shown
        # Advice that would lead the student to the wrong place.
        assert bug.kind == "race" or "Do threads share" not in message, shown
        assert "Run again with --sanitize" not in message, shown


def test_every_bug_marks_its_line() -> None:
    for bug in BUGS:
        _, correct, functions = course_of(bug.base)
        text, lines = without_marks(mutations.applied(correct, functions, [mutation(bug)]))
        assert lines and MARK not in text, bug.name
