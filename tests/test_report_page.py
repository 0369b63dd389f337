"""The page of one verdict (`--html`) and its pictures: what is drawn, for outputs of any shape, and what is escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from classrows import assignment, part, result, score
from test_report_html import Page

from grader.base.results import CaseResult, Diagnosis
from grader.judge import grid
from grader.judge.diagnosis.deviation import usual_axes
from grader.judge.events import Deviated, PartStarted
from grader.report import page, picture
from grader.report.terminal import Terminal

MADE_AT = datetime(2025, 11, 21, 14, 2)
EVIL = "</style><script>alert(1)</script>\x1b]0;x\x07 ‮ '\"<b>&"


def deviated(
    actual: np.ndarray, *, case: str = "random", blocks: Any = None, allowed: float = 1e-3
) -> Deviated:
    """An output that should be all ones."""
    expected = np.ones(actual.shape)
    wrong = ~(abs(actual - expected) <= allowed)
    return Deviated(
        part=SimpleNamespace(id="part4"),
        case=case,
        hidden=False,
        shape={"N": 8, "threads": 8},
        axes=usual_axes(actual.ndim),
        blocks=blocks or (None,) * actual.ndim,
        expected=expected,
        actual=actual,
        tolerance=allowed,
        wrong=wrong,
    )


def test_the_worst_slice_is_drawn_with_its_blocks() -> None:
    output = np.ones((2, 3, 103, 40))
    output[0, 1, 0, 0] = 7
    output[1, 2, 48:96] = 1.5
    output[1, 2, 96, 3] = np.nan
    seen = picture.reduced(deviated(output, blocks=(None, None, ("Br", 48), ("T", 64))))
    assert (seen.place, seen.rows, seen.columns, seen.wrong_slices) == ("a=1, b=2", 103, 40, 2)
    assert seen.wrong == 48 * 40 + 2 and seen.total == output.size
    assert len(seen.cells) == 64 and len(seen.cells[0]) == 40
    levels = np.array([[picture.level(cell) for cell in band] for band in seen.cells])
    edges = picture._edges(103)
    for row in (0, 47, 48, 95, 100):
        band = next(k for k in range(64) if edges[k] <= row < edges[k + 1])
        assert levels[band, 20] == (3 if 48 <= row < 96 else 0), row
    assert (levels == picture.DECADES + 1).sum() == 1, "no number"
    drawn = ElementTree.fromstring(picture.svg(seen))
    lines = [each.get("d") for each in drawn.iter("path") if each.get("class") == "block"]
    assert len(lines) == 1 and lines[0].count("M") == 2, "at 48 and 96; a block of 64 columns covers all 40"
    below = [each.get("d") for each in drawn.iter("path") if each.get("class") == "under"]
    assert below == lines, "a light line below each, or it would not be seen on dark cells"
    told = " ".join(picture.caption(seen))
    assert (
        f"{seen.wrong} of {output.size} elements are wrong, in 2 of 6 slices. Shown: the slice a=1, b=2."
        in told
    )
    assert "Lines: i every 48 (Br); T = 64, which covers all of j" in told and "threads" not in told


@pytest.mark.parametrize("shape", [(5,), (3000,), (1, 1), (2, 5000), (4, 3, 2, 2, 3), (1, 1, 1, 1)], ids=str)
def test_any_output_has_a_picture(shape: tuple[int, ...]) -> None:
    output = np.ones(shape)
    output.reshape(-1)[-1] = np.inf
    seen = picture.reduced(deviated(output))
    assert picture.level(seen.cells[-1][-1]) == picture.DECADES + 1
    drawn = ElementTree.fromstring(picture.svg(seen))
    _, _, width, height = map(float, drawn.get("viewBox", "").split())
    for each in drawn.iter("rect"):
        assert float(each.get("x", 0)) + float(each.get("width", 0)) <= width + 0.1
        assert float(each.get("y", 0)) + float(each.get("height", 0)) <= height + 0.1
    assert picture.caption(seen)[0].startswith("On 'random' (N=8): ")


def test_blocks_come_from_sizes_of_the_call_or_from_macros_of_the_body() -> None:
    source = "#define T 16\n// f(T)\nint g(int n) { return T; }\nint f(int a, int b)\n{ if (a) { b; } return T; }\n"
    axes, cuts = usual_axes(2), {"i": ("R", "T"), "j": ("T",)}

    def found(function: str, sizes: dict[str, int], **defines: str) -> object:
        return grid.blocks(axes, cuts, sizes, source, function, defines)

    assert found("f", {}) == (("T", 16), ("T", 16))
    assert found("f", {"R": 4}, T="8") == (("R", 4), ("T", 8))
    assert found("h", {"R": 4}) == (("R", 4), None), "a body that is not there names nothing"
    assert found("f", {}, T="x + 1") == (None, None)
    assert grid.body_of("f(a); int f(int a) { { } b; } c;", "f").split() == ["{", "}", "b;"]


def test_a_message_is_wrapped_but_for_the_lines_of_source_in_it() -> None:
    source = "    2 |         for (;;) {\n      |         ^~~"
    message = f"a.cpp:2: error: expected ';'\n{source}\nhint: a semicolon\n  a.cpp:3: x | y"
    assert page.told(message) == [
        (False, "a.cpp:2: error: expected ';'"),
        (True, "    2 | for (;;) {\n      | ^~~"),
        (False, "hint: a semicolon\n  a.cpp:3: x | y"),
    ]
    assert page.told("    2 |\n      |") == [(True, "    2 |\n      |")]


def told_page(tmp_path: Path, text: str) -> str:
    """A page on a part whose every text is this one."""
    found = part("part4", text, 35, "wrong")
    diagnosis = Diagnosis("wrong", text)
    case = CaseResult(text, {"N": 8}, False, 1.0, diagnosis, error_map=("09",))
    hidden = CaseResult("secret", {"N": 77}, False, 1.0, diagnosis, hidden=True)
    found = replace(found, cases=(case, hidden), diagnosis=diagnosis, output=text)
    timed = part("part1", "naive", 10)
    several = replace(result((found, timed)), submission_id=text)
    heard: list[object] = []
    pictures = page.Collector(heard.append)
    event = deviated(np.zeros((4, 4)), case=text)
    for one in (PartStarted(event.part, {}), event, replace(event, case="secret", hidden=True)):
        pictures(one)
    assert len(heard) == 3 and list(pictures.pictures["part4"]) == [text]
    page.write(tmp_path / "a.html", assignment(), several, score(several), pictures, MADE_AT)
    pictures(PartStarted(event.part, {}))
    assert pictures.of(found) is None, "the next run has pictures of its own"
    return (tmp_path / "a.html").read_text(encoding="utf-8")


def test_a_page_runs_nothing_and_asks_nobody(tmp_path: Path) -> None:
    text = told_page(tmp_path, EVIL)
    read = Page(text)
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "img", "link", "iframe", "object", "form", "a", "base"}
    assert not [
        name
        for _, given in read.elements
        for name in given
        if name.startswith("on") or name in ("src", "href")
    ]
    assert "http:" not in text and "https:" not in text and "url(" not in text
    assert "\x1b" not in text and "\u202e" not in text
    policy = next(given["content"] for tag, given in read.elements if given.get("http-equiv"))
    assert (
        policy
        and policy.startswith("default-src 'none'; style-src 'sha256-")
        and "script-src 'none'" in policy
    )
    assert text.count("<style>") == text.count("</style>") == 1
    assert "secret" not in text and "N=77" not in text, "of a hidden case only that there is one"


def test_a_page_shows_where_and_how_long(tmp_path: Path) -> None:
    text = told_page(tmp_path, "ramp")
    assert "Where it is wrong" in text and text.count('class="e4"') >= 2 and "to 1000 x" in text
    timed = part("part1", "naive", 10).time
    assert timed is not None
    calls = (100.0, 110.0, 105.0, 95.0)
    timed = replace(timed, clock="wall", rounds=2, reference_wall_ms=calls, student_wall_ms=calls)
    drawn = ElementTree.fromstring(page.rounds(timed))
    dots = [each.get("class") for each in drawn.iter("circle")]
    assert dots.count("reference") == dots.count("student") == 4
    heights = [float(each.get("cy", 0)) for each in drawn.iter("circle")]
    assert heights[1] < heights[0] < heights[3] and all(0 < height < 150 for height in heights)
    assert page.rounds(replace(timed, student_wall_ms=(), student_cpu_ms=())) == ""


class Tty:
    """A terminal that keeps what it is sent."""

    encoding, errors, closed = "utf-8", None, False

    def __init__(self, is_terminal: bool) -> None:
        self.text, self.is_terminal = "", is_terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self.is_terminal


def test_a_terminal_with_colours_shows_a_small_map() -> None:
    diagnosis = Diagnosis("wrong", "It is.")
    cases = (
        CaseResult("other", {"N": 8}, False, 1.0, None, error_map=("5",)),
        CaseResult("told", {"N": 8}, False, 1.0, diagnosis, error_map=("09", "10")),
        CaseResult("secret", {"N": 8}, False, 1.0, diagnosis, hidden=True, error_map=("77",)),
    )
    wrong = replace(part("part4", "flash", 35, "wrong"), cases=cases, diagnosis=diagnosis)
    shown = {}
    for is_terminal in (True, False):
        stream = Tty(is_terminal)
        Terminal(stream).verdict(wrong, 0)  # type: ignore[arg-type]
        shown[is_terminal] = stream.text
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown[True])
    assert "  where     ·  9 " in plain and "            1  · " in plain and "(on 'told')" in plain
    assert "\x1b[97;48;5;160m 9 \x1b[0m" in shown[True]
    assert "where" not in shown[False] and "\x1b" not in shown[False]
    quiet = Tty(True)
    Terminal(quiet).verdict(part("part1", "naive", 10), 10)  # type: ignore[arg-type]
    assert "where" not in quiet.text
