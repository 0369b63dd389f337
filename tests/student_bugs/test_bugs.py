"""The output for every bug of the table leads to its line, and says nothing that leads elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import one_of_each
from judged import alone, groups, judge
from table import BUGS, MARK, Bug

from grader.build.toolchain import toolchain
from grader.study import race

ADDR2LINE = shutil.which("addr2line") is not None
WATCHED = race.has_thread_sanitizer(toolchain())
#: Words for an access outside of an array, one to freed memory, and a division by zero.
OUTSIDE = ("out of range", "beyond", "before an array", "freed", "out of bounds", "division by zero")


@pytest.mark.skipif(toolchain().family != "gcc", reason="gcc's sanitizers, containers and warnings")
@pytest.mark.parametrize(
    "group",
    one_of_each(groups(), key=lambda group: None, name=lambda group: f"{group[0].base}: {group[0].name}"),
)
def test_the_output_leads_to_the_line(group: list[Bug], tmp_path: Path) -> None:
    for each in judge(group, tmp_path):
        bug, told = each.bug, f"{each.bug.name}: {each.message}"
        # A damaged heap may also make free() wait for ever.
        assert each.result.verdict in ("wrong", "crash", "timeout"), told
        assert each.result.diagnosis is not None
        assert not bug.codes or each.result.diagnosis.code in bug.codes, (
            f"{each.result.diagnosis.code} {told}"
        )
        if (bug.kind == "race" and not WATCHED) or (bug.part.startswith("4D") and not ADDR2LINE):
            continue
        assert each.distance <= bug.within, f"named {each.named}, wrong {each.lines}: {told}"
        assert bug.said in each.message, told
        assert bug.kind not in ("outside", "crash") or any(words in each.message for words in OUTSIDE), told
        # Words that would send their reader elsewhere.
        assert bug.kind == "race" or "Do threads share" not in each.message, told
        assert "Run again with --sanitize" not in each.message, told


def test_every_bug_marks_its_line() -> None:
    for bug in BUGS:
        text, lines = alone(bug)
        assert lines and MARK not in text, bug.name
