"""The second assignment that docs/ta-guide.md describes: its pieces, as they stand there, work."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from grader.assignment import loading, names
from grader.base.arrays import np
from grader.judge import comparison
from grader.judge.draws import Draws
from labs.attention import cases, oracle

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "ta-guide.md").read_text()
SHAPE = {"B": 2, "H": 3, "N": 37, "d": 41}


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", GUIDE, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


@pytest.fixture(scope="module")
def defined() -> dict[str, Any]:
    """What the guide's Python defines, beside what the two rooms hold."""
    scope = {**vars(cases), **vars(oracle)}
    for block in blocks("python"):
        exec(block, scope)
    return scope


def test_the_oracle_is_right_and_knows_wrong(defined: dict[str, Any]) -> None:
    softmax = defined["Softmax"]()
    inputs = defined["_wide_rows"](SHAPE, Draws(1))
    expected = softmax.expected(inputs, SHAPE)
    weights = np.exp(inputs["X"])
    right = weights / weights.sum(3, keepdims=True)
    assert comparison.compare(expected, right).ok
    for wrong in (right * 1.001, right.astype(np.float16), np.zeros_like(right), weights):
        assert not comparison.compare(expected, wrong).ok
    rows = np.array([3, 1])
    some = softmax.expected_rows(inputs, rows)
    assert comparison.compare(some, right[:, :, rows]).ok
    assert softmax.flops(SHAPE) > right.size


def test_the_assignment_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = blocks("yaml")
    public = tmp_path / "softmax.yaml"
    public.write_text(text)
    monkeypatch.setitem(names.DISTRIBUTIONS_OF, "softmax", ("wide_rows",))
    monkeypatch.setattr(loading, "DISTRIBUTIONS", (*names.DISTRIBUTIONS, "wide_rows"))
    (part,) = loading.load(public).parts
    assert part.function == "mySoftmax" and len(part.cases) == 3
    assert names.timed_distribution("softmax") == "wide_rows"
    assert names.timed_distribution("attention") == "random"


def test_every_file_and_command_that_the_guide_names_is_there() -> None:
    from grader.__main__ import parser

    known = parser().format_help()
    for command in set(re.findall(r"python -m grader (\w+)", GUIDE)):
        assert f"    {command}" in known, command
    made = {"configs/softmax.yaml", "configs/hidden/softmax.yaml", "docs/softmax.md"}
    for path in set(re.findall(r"\b(?:configs|docs|grader|tests|module_ref_stub)/[\w/.-]+\w", GUIDE)) - made:
        assert (ROOT / path).exists(), path
    for anchor in re.findall(r"\]\(#([\w-]+)\)", GUIDE):
        headings = [
            re.sub(r"[^\w -]", "", line[3:].lower()) for line in GUIDE.splitlines() if line.startswith("## ")
        ]
        assert anchor in [heading.replace(" ", "-") for heading in headings], anchor
