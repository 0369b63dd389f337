"""A course's year: changes between reports, appeals, extensions, and feedback to give out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import classrows
import pytest
from classes import ledgers
from classes.acting_class import Class
from conftest import refused

from grader.core.results import PartResult, SubmissionResult
from grader.staff.classroom import changes
from grader.staff.classroom.changes import Graded, Standing

ROW = {"id": "ada", "submitted_at": "", "part1": "10", "late_days": "0", "late_penalty": "0", "total": "10"}
ROW |= {"max_points": "10", "part1_verdict": "pass"}


def standing(part: PartResult, **facts: str) -> Standing:
    prints = replace(
        ledgers.FINGERPRINTS, **{key: facts.pop(key) for key in ("kit", "assignment") if key in facts}
    )
    machine = {"processor": facts.get("processor", "P"), "cores": 2}
    toolchain = {"compiler": "g++ 12"}
    result = SubmissionResult("ada", "", "gpt149", dict(machine), dict(toolchain), {}, (part,))
    return Standing(replace(ledgers.record("ada"), fingerprints=prints), result)


RIGHT = classrows.part("part1", "Naive", 10.0)
WRONG = classrows.part("part1", "Naive", 10.0, "wrong")


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        (standing(WRONG), standing(RIGHT, kit="new"), ("case: right now: 'random'", "(wrong -> pass)", "kit")),
        (standing(RIGHT), standing(classrows.part("part1", "Naive", 10.0, "slow", ratio=1.5)), ("time: 1.00", "1.50")),
        (standing(RIGHT), standing(RIGHT, assignment="new"), ("rubric",)),
        (standing(RIGHT), standing(RIGHT), ("by hand",)),
        (standing(WRONG), standing(RIGHT, processor="Q"), ("case", "machine")),
        (standing(RIGHT), standing(classrows.part("part1", "Naive", 10.0, "crash")), ("verdict: pass -> crash",)),
    ],
    ids=("case and kit", "time", "rubric", "by hand", "machine", "verdict"),
)  # fmt: skip
def test_a_change_of_points_names_its_cause(then: Standing, now: Standing, why: tuple[str, ...]) -> None:
    old = Graded(Path("a"), {"ada": ROW, "gone": ROW}, {}, known={"ada": then})
    new = Graded(Path("b"), {"ada": {**ROW, "part1": "7.5", "total": "7.5"}}, {}, known={"ada": now})
    part, total = changes.between(old, new)
    assert (part.part, part.before, part.after, part.by) == (
        "part1",
        10.0,
        7.5,
        -2.5,
    ) and total.part == "total"
    assert all(text in part.why for text in why)
    text = "\n".join(changes.lines(old, new, [part, total]))
    assert "1 of 1 changed: 0 rose, 1 fell" in text and "only in a: gone" in text and "-2.5" in text


def test_a_regrade_and_a_report_print_what_rose(acting: Class, tmp_path: Path) -> None:
    acting.add_all({"ada": "wrong", "bob": ""})
    assert "changed" not in acting.grade()
    acting.add("ada")
    said = acting.grade()
    assert "1 of 2 changed: 1 rose, 0 fell" in said and "source: another file" in said
    assert (acting.out / "changes.csv").read_text(encoding="utf-8-sig").startswith("id,part,before,after")
    (acting.out / "manual.csv").write_text("id,part1\nbob,4\n")
    said = acting.report()
    assert "bob  part1  10  ->   4  -6  by hand" in said and "1 totals are LOWER" in said
    assert "changed" not in acting.report(), "nothing has changed since"
    refused("holds no ledger.jsonl", changes.diff, tmp_path, acting.out, None)
