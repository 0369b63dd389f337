"""The page of one verdict (`--html`) and its pictures: what is drawn, for outputs of any shape, and what is escaped."""

from __future__ import annotations

import io
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

from grader.base.results import CaseResult, Diagnosis, PartResult
from grader.judge import grid
from grader.judge.diagnosis.deviation import usual_axes
from grader.judge.events import Deviated, PartStarted
from grader.report import page, picture
from grader.report.terminal import Terminal

MADE_AT = datetime(2025, 11, 21, 14, 2)
EVIL = "</style><script>alert(1)</script>\x1b]0;x\x07 ‮ '\"<b>&"


def deviated(actual: np.ndarray, *, case: str = "random", blocks: Any = None) -> Deviated:
    """Return the event of an output that should be all ones."""
    expected, allowed = np.ones(actual.shape), 1e-3
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
        wrong=~(abs(actual - expected) <= allowed),
    )


def test_the_worst_slice_is_drawn_with_its_blocks() -> None:
    output = np.ones((2, 3, 103, 40))
    output[0, 1, 0, 0] = 7
    output[1, 2, 48:96] = 1.5
    output[1, 2, 96, 3] = np.nan
    seen = picture.reduced(deviated(output, blocks=(None, None, ("Br", 48), ("T", 64))))
    assert (seen.place, seen.rows, seen.columns, seen.wrong_slices) == ("a=1, b=2", 103, 40, 2)
    assert seen.wrong == 48 * 40 + 2 and seen.total == output.size
    levels = np.array([[picture.level(cell) for cell in band] for band in seen.cells])
    assert levels.shape == (64, 40)
    edges = picture._edges(103)
    for row in (0, 47, 48, 95, 100):
        band = next(k for k in range(64) if edges[k] <= row < edges[k + 1])
        assert levels[band, 20] == (3 if 48 <= row < 96 else 0), row
    assert (levels == picture.DECADES + 1).sum() == 1, "no number"
    drawn = ElementTree.fromstring(picture.svg(seen))
    lines = {
        kind: [p.get("d") for p in drawn.iter("path") if p.get("class") == kind]
        for kind in ("block", "under")
    }
    (line,) = lines["block"]
    assert line.count("M") == 2, "at 48 and 96; a block of 64 columns covers all 40"
    assert lines["under"] == [line], "a light line below each, or it would not be seen on dark cells"
    words = " ".join(picture.caption(seen))
    counts = f"{seen.wrong} of {output.size} elements are wrong, in 2 of 6 slices. Shown: the slice a=1, b=2."
    assert counts in words
    assert "Lines: i every 48 (Br); T = 64, which covers all of j" in words and "threads" not in words


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


def page_on(tmp_path: Path, text: str) -> str:
    """Write a page on a part whose every text is this one."""
    diagnosis = Diagnosis("wrong", text)
    case = CaseResult(text, {"N": 8}, False, 1.0, diagnosis, error_map=("09",))
    hidden = CaseResult("secret", {"N": 77}, False, 1.0, diagnosis, hidden=True)
    found = part("part4", text, 35, "wrong")
    found = replace(found, cases=(case, hidden), diagnosis=diagnosis, output=text)
    several = replace(result((found, part("part1", "naive", 10))), submission_id=text)
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
    text = page_on(tmp_path, EVIL)
    read = Page(text)
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "img", "link", "iframe", "object", "form", "a", "base"}
    names = {name for _, given in read.elements for name in given}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href")]
    assert not [harm for harm in ("http:", "https:", "url(", "\x1b", "\u202e") if harm in text]
    (policy,) = (given["content"] or "" for _, given in read.elements if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "script-src 'none'" in policy
    assert text.count("<style>") == text.count("</style>") == 1
    assert "secret" not in text and "N=77" not in text, "of a hidden case only that there is one"


def test_a_page_shows_where_and_how_long(tmp_path: Path) -> None:
    text = page_on(tmp_path, "ramp")
    assert "Where it is wrong" in text and text.count('class="e4"') >= 2 and "to 1000 x" in text
    timed = part("part1", "naive", 10).time
    assert timed is not None
    calls = (100.0, 110.0, 105.0, 95.0)
    timed = replace(timed, clock="wall", rounds=2, reference_wall_ms=calls, student_wall_ms=calls)
    circles = list(ElementTree.fromstring(page.rounds(timed)).iter("circle"))
    dots = [each.get("class") for each in circles]
    assert dots.count("reference") == dots.count("student") == 4
    heights = [float(each.get("cy", 0)) for each in circles]
    assert heights[1] < heights[0] < heights[3] and all(0 < height < 150 for height in heights)
    assert page.rounds(replace(timed, student_wall_ms=(), student_cpu_ms=())) == ""


def shown(found: PartResult, points: float, *, is_terminal: bool) -> str:
    """Return the lines of a verdict, on a terminal or in a file."""
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    Terminal(stream).verdict(found, points)
    return stream.getvalue()


def test_a_terminal_with_colours_shows_a_small_map() -> None:
    diagnosis = Diagnosis("wrong", "It is.")
    cases = (
        CaseResult("other", {"N": 8}, False, 1.0, None, error_map=("5",)),
        CaseResult("told", {"N": 8}, False, 1.0, diagnosis, error_map=("09", "10")),
        CaseResult("secret", {"N": 8}, False, 1.0, diagnosis, hidden=True, error_map=("77",)),
    )
    wrong = replace(part("part4", "flash", 35, "wrong"), cases=cases, diagnosis=diagnosis)
    coloured = shown(wrong, 0, is_terminal=True)
    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert "  where     ·  9 " in plain and "            1  · " in plain and "(on 'told')" in plain
    assert "\x1b[97;48;5;160m 9 \x1b[0m" in coloured
    in_a_file = shown(wrong, 0, is_terminal=False)
    assert "where" not in in_a_file and "\x1b" not in in_a_file
    assert "where" not in shown(part("part1", "naive", 10), 10, is_terminal=True)
