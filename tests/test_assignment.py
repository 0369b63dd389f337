"""An assignment file is checked to the last key, and every mistake is told with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT

from grader.assignment import evaluate_int, load
from grader.errors import UsageError

CONFIG = ROOT / "configs" / "gpt149.yaml"


def test_the_public_assignment_pays_what_the_handout_says() -> None:
    assignment = load(CONFIG)
    points = {part.id: part.points for part in assignment.parts}
    assert points == {
        "part0": 0,
        "4Dread": 1.5,
        "4Dwrite": 1.5,
        "part1": 10,
        "part2": 20,
        "part3": 25,
        "part4": 35,
    }
    assert assignment.commands() == ["part0", "4Daccess", "part1", "part2", "part3", "part4"]
    assert [part.id for part in assignment.select("4Daccess")] == ["4Dread", "4Dwrite"]
    assert "part0" not in [part.id for part in assignment.select("all")]


def test_cases_cover_the_shapes_that_find_faults() -> None:
    shapes = [{**load(CONFIG).defaults, **case.shape} for case in load(CONFIG).part("part4").cases]
    assert any(s["N"] == 1 for s in shapes)
    assert any(s["B"] > 1 and s["H"] > 1 for s in shapes)
    assert any(s["d"] % 16 for s in shapes)
    assert any(s["N"] < s["Br"] for s in shapes)
    assert any(s["N"] % s["Br"] and s["N"] % s["Bc"] and s["N"] > s["Br"] for s in shapes)
    names = {case.distribution for case in load(CONFIG).part("part1").cases}
    assert {"ramp", "random"} < names


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    points: 10\n", "    pionts: 10\n", "unknown key 'pionts'"),
        ("    points: 10\n", "    points: ten\n", "points should be a number"),
        ("    points: 10\n", "    points: -1\n", "points should be a number of at least 0"),
        ("    points: 10\n", "    points: 3\n", "points_if_slow (5) is more than points (3)"),
        ("clock: wall", "clock: sundial", "clock should be one of cpu, wall"),
        ("defaults: {B: 1,", "defaults: {B: 0,", "defaults: B should be a whole number of at least 1"),
        ('"zeros(threads, N)"', '"zeros(treads, N)"', "cannot evaluate 'treads'"),
        ("returns: number", "returns: numbers", "returns should be a list"),
        ("  - id: part2\n", "  - id: part1\n", "two parts are called 'part1'"),
        ("stands_in: part1", "stands_in: part7", "stands_in names no part"),
        ("    function: myFusedAttention\n", "", "needs either 'function' or 'torch_function'"),
        ("schema_version: 1", "schema_version: 2", "this kit reads schema_version 1"),
        ("    reference: gpt149_ref_fused\n", "", "no reference to be timed against"),
        ("shape: {B: 2, H: 3, N: 103,", "shape: {B: 2, H: 3, M: 103,", "'M' is not among the defaults"),
        ("id: gpt149\n", "id: gpt149\nid: gpt150\n", "'id' stands twice"),
        ("parts:\n", "parts: [\n", "not valid YAML"),
        ('"column(0)"', '"column(x)"', "column(k) takes one whole number"),
    ],
)
def test_mistakes_are_told_with_file_and_line(old: str, new: str, says: str, tmp_path: Path) -> None:
    text = CONFIG.read_text()
    assert old in text
    path = tmp_path / "assignment.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert says in message
    line = int(message.removeprefix(f"{path}:").partition(":")[0])
    assert 1 <= line <= len(path.read_text().splitlines()) + 1
    assert "\n" not in message


@pytest.mark.parametrize("content", ["", "[]", "just text", "a: b: c"])
def test_other_files_are_refused_in_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "assignment.yaml"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "assignment.yaml"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(UsageError, match="not UTF-8"):
        load(path)


def test_expressions_are_arithmetic_and_nothing_else() -> None:
    assert evaluate_int("2 * (N + Br - 1) // Br", {"N": 10, "Br": 4}) == 2 * 13 // 4
    for expression in ("__import__('os')", "N.bit_length()", "N ** N", "M", "N // 0", "1.5", "N if N else 0"):
        with pytest.raises(UsageError):
            evaluate_int(expression, {"N": 10})
