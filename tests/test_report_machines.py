"""Machines beside one another in the report: whether they agree, who is apart, who judged whom."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from classrows import the_class
from conftest import ROOT

from grader.assignment.loading import load
from grader.report import classbook
from grader.report.machines import MachineRow, compared
from grader.report.progress import Progress


def machine(name: str, ratio: float, half: float = 0.01, **more: str) -> MachineRow:
    ratios = {"part1": (ratio, ratio - half, ratio + half)}
    return MachineRow(name, ratios=ratios, cores=4, processor="a processor", **more)  # type: ignore[arg-type]


def test_a_machine_is_apart_only_with_its_whole_interval() -> None:
    rows, spreads = compared(
        [
            machine("a", 1.0),
            machine("b", 1.02),
            machine("c", 1.2),
            machine("d", 1.05, 0.2),
            machine("e", 9, refused="no"),
        ]
    )
    assert [row.apart for row in rows] == [(), (), ("part1",), (), ()]
    (spread,) = spreads
    assert (spread.machines, spread.lowest, spread.highest) == (4, 1.0, 1.2)
    assert compared([]) == ([], [])
    assert compared([MachineRow("x", refused="no")])[1] == []


def test_the_report_names_who_judged_whom_and_who_is_apart(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    rows = [
        replace(row, submission_id=f"s{k}", machine=("lab-1", "<b>lab-2")[k % 2])
        for k, row in enumerate(list(the_class(6))[:6])
    ]
    met = [
        machine("lab-1", 1.0),
        machine("lab-0", 1.0),
        machine("<b>lab-2", 1.3),
        machine("old", 1, refused="another compiler"),
    ]
    classbook.write(
        tmp_path, load(ROOT / "configs" / "gpt149.yaml"), rows, made_at=datetime(2026, 1, 1), machines=met
    )
    page = (tmp_path / "report.html").read_text()
    section = page.partition('<section id="machines">')[2].partition("</section>")[0]
    assert "1.00 to 1.30 of the reference" in section.replace("\u00d7", "").replace(" x", "")
    assert section.count("<summary>3</summary>") == 2
    assert section.count("t-review") == 1 and "&lt;b&gt;lab-2" in section and "<b>lab-2" not in page
    assert "may not judge</span> another compiler" in section
    assert page.count("judged on lab-1") == 3
    classbook.write(tmp_path, load(ROOT / "configs" / "gpt149.yaml"), rows[:1], made_at=datetime(2026, 1, 1))
    assert 'id="machines"' not in (tmp_path / "report.html").read_text()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_each_machine_with_what_it_does() -> None:
    from rich.console import Console

    stream = io.StringIO()
    progress = Progress(4, stream)
    progress.machine("lab-1", "")
    progress.machine("lab-2", "another compiler")
    progress.phase("ada", "part1: timing", "lab-1")
    progress.phase("bob", "building", "lab-3")
    progress.finished("eve", {"part1": "pass", "part2": "slow"}, "3 points", machine="lab-1")
    progress.machine("lab-3", "", "it is gone")
    shown = io.StringIO()
    Console(file=shown, width=100).print(progress.table())
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert lines[2].startswith("lab-1: 1 judged (1 pass, 1 slow)")
    assert lines[3].startswith("ada part1: timing")
    assert lines[4] == "lab-2: 0 judged; another compiler"
    assert lines[5] == "lab-3: 0 judged; lost: it is gone" and lines[6].startswith("bob building")
    said = stream.getvalue()
    assert "machine lab-1 proved itself" in said and "machine lab-2 may not judge: another compiler" in said
