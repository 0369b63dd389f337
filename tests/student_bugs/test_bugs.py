"""Of every bug of the table the output leads to the line, and says nothing that leads elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from judged import groups, judge
from table import BUGS, Bug
from written import alone

from grader.build.toolchain import toolchain
from grader.study import race

ADDR2LINE = shutil.which("addr2line") is not None
WATCHED = race.has_thread_sanitizer(toolchain())
#: Words of what is touched outside of an array, freed or divided by zero.
OUTSIDE = ("out of range", "beyond", "before an array", "freed", "out of bounds", "division by zero")


def group_name(group: tuple[Bug, ...]) -> str:
    return f"{group[0].base}: {group[0].name}"


@pytest.mark.skipif(toolchain().family != "gcc", reason="gcc's sanitizers, containers and warnings")
@pytest.mark.parametrize("group", groups(), ids=group_name)
def test_the_output_leads_to_the_line(group: tuple[Bug, ...], tmp_path: Path) -> None:
    for each in judge(group, tmp_path):
        bug, told = each.bug, f"{each.bug.name}: {each.message}"
        # A damaged heap may also make free() wait for ever.
        assert each.result.verdict in ("wrong", "crash", "timeout"), told
        assert each.result.diagnosis is not None
        assert not bug.codes or each.result.diagnosis.code in bug.codes, (
            f"{each.result.diagnosis.code} {told}"
        )
        if bug.kind == "race" and not WATCHED:
            continue
        if bug.part.startswith("4D") and not ADDR2LINE:
            continue
        assert each.distance <= bug.within, f"named {each.named}, wrong {each.lines}: {told}"
        assert bug.said in each.message, told
        assert bug.kind not in ("outside", "crash") or any(words in each.message for words in OUTSIDE), told
        # What would send its reader elsewhere.
        assert bug.kind == "race" or "Do threads share" not in each.message, told
        assert "Run again with --sanitize" not in each.message, told


def test_the_table_is_as_large_as_promised() -> None:
    assert len(BUGS) >= 40 and len({bug.name for bug in BUGS}) == len(BUGS)
    assert {bug.kind for bug in BUGS} >= {"outside", "crash", "race", "ragged", "head", "stride", "two"}
    named = [bug for bug in BUGS if bug.within == 0]
    assert len(named) > len(BUGS) / 2, "most mistakes are named by their very line"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_marks_its_line(bug: Bug) -> None:
    text, lines = alone(bug)
    assert lines and "/*!*/" not in text
