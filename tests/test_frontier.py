"""A kernel's place on the ladder: the arithmetic, what is kept for later verdicts, and one measurement of all rungs."""

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import ASSIGNMENT, refused

from grader import score
from grader.backends.torch.zygote import Zygote
from grader.core.commandline import size_options
from grader.core.errors import KitError
from grader.core.results import PartResult, SubmissionResult, Timing
from grader.report import result_json
from grader.report.html import Report
from grader.report.machines import Row
from labs.attention import ladder
from labs.attention.ladder import Yardsticks, main
from module_ref_stub import library

PART = ASSIGNMENT.part("part4")
TIMES = {"naive": 6.0, "reference": 1.0, "rows": 0.6, "plain": 0.25, "pytorch": 0.2, "expert": 0.08}
KNOWN = Yardsticks(TIMES, 0.07, cores=1)
SHAPE = {"B": 1, "H": 2, "N": 48, "d": 16, "Br": 16, "Bc": 16, "threads": 2}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("grader.backends.native.toolchain.cache_root", lambda: tmp_path)
    return tmp_path


def passed(ratio: float, id: str = "part4", is_placed: bool = True) -> PartResult:
    measured = (100.0, 100 * ratio, ratio, (ratio, ratio), 0.98, 8, "cpu", 1.1, "pass")
    frontier = ladder.stand(ratio, KNOWN) if is_placed else None
    time = Timing(*measured, self_ratio=1.0, fit=True)
    return PartResult(id, "Flash", "pass", 1, time=time, frontier=frontier)


def result_of(name: str, *parts: PartResult) -> SubmissionResult:
    return SubmissionResult(name, "0", "gpt149", {}, {}, {}, parts)


def test_a_line_gives_the_speed_beside_each_rung_and_the_table_puts_the_fastest_above() -> None:
    line = ladder.line(ladder.stand(0.5, KNOWN))
    assert line == "12.0× naive · 2.0× reference · 0.4× PyTorch · 0.16× expert · 14 % of one core's peak"
    assert ladder.line(ladder.stand(0.05, dataclasses.replace(KNOWN, cores=8))).startswith("120× naive")
    rows = ladder.table(ladder.stand(0.1, KNOWN), "yours").splitlines()[1:]
    names = [row.split("  ")[-1].strip() for row in rows]
    peak = "nothing but one core's multiply-adds"
    rungs = ["PyTorch", "plain best C++", "fused, V row by row", "reference", "naive"]
    assert names == [peak, "expert", "<---", *rungs]
    assert rows[0].split()[:2] == ["0.7", "100"], "70 % of the peak: the peak takes 0.7 of its time"


def test_a_measurement_is_kept_for_its_shape_alone(cache: Path) -> None:
    three = ASSIGNMENT.part("part3")
    assert ladder.kept(PART, SHAPE) is None
    ladder.keep(PART, SHAPE, KNOWN)
    ladder.keep(three, SHAPE, KNOWN)
    assert ladder.kept(PART, SHAPE) == KNOWN
    assert ladder.kept(PART, {**SHAPE, "threads": 5}) == KNOWN, "part 4 is serial"
    assert ladder.kept(three, {**SHAPE, "threads": 5}) is None, "part 3 is not"
    assert ladder.kept(PART, {**SHAPE, "N": 49}) is None
    for other in ("part1", "4Dread"):
        assert ladder.kept(ASSIGNMENT.part(other), SHAPE) is None


def test_a_damaged_record_is_ignored_and_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    ladder.keep(PART, SHAPE, KNOWN)
    (record,) = (cache / "frontier").iterdir()
    no_peak = json.dumps({**dataclasses.asdict(KNOWN), "peak_against_reference": 0})
    for text in ("", "{}", "[]", '{"against_reference": {"naive": 1}}', '{"cores": null}', no_peak):
        record.write_text(text)
        assert ladder.kept(PART, SHAPE) is None, text
    record.unlink()
    record.parent.rmdir()
    record.parent.write_text("a file where the folder should be")
    refused("GPT149_CACHE", ladder.keep, PART, SHAPE, KNOWN, of=KitError)


def test_result_json_holds_the_place_and_older_files_are_read() -> None:
    result = result_of("a", passed(0.5))
    values = json.loads(json.dumps(result_json.to_dict(result, score.score(ASSIGNMENT, result))))
    assert result_json.from_dict(values) == result
    del values["parts"][0]["frontier"]
    assert result_json.from_dict(values).parts[0].frontier is None


def test_the_class_report_draws_every_right_kernel(tmp_path: Path) -> None:
    parts = {"ada": passed(0.5), "grace": passed(2.0), "alan": passed(1.0, is_placed=False)}
    with Report(ASSIGNMENT, datetime(2026, 1, 1)) as report:
        for name, part in parts.items():
            report.add(Row(name, name, "", result_of(name, part), None, None))
        report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "of 2 students and 6 other kernels" in page
    assert "expert 88 %" in page and "naive 1.2 %" in page
    assert page.count("Frontier: ") == 2
    assert "12.0× naive · 2.0× reference" in page and "0.5× reference" in page


def test_a_hint_only_where_a_place_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(part: PartResult, sizes: Sequence[str] = ()) -> str:
        return ladder.hint(ASSIGNMENT, result_of("a", part), sizes)

    timed = passed(1.0, "part3", is_placed=False)
    assert "`python gpt149.py frontier part3`" in of(timed)
    chosen = size_options({"Bc": 64, "N": 256}, ASSIGNMENT.size_options)
    assert "`python gpt149.py frontier part3 -N 256 -bc 64`" in of(timed, sizes=chosen)
    for change in ({"frontier": ladder.stand(1.0, KNOWN)}, {"time": None}, {"id": "4Dread"}):
        assert not of(dataclasses.replace(timed, **change)), change
    for name in ("SOURCE_DIR", "PREBUILT"):
        monkeypatch.setattr(library, name, tmp_path)
    assert not of(timed), "a handout without the expert library cannot measure"


def test_all_rungs_are_measured(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratios of the times are not judged: they depend on how busy the machine is."""
    concluded: list[Any] = []
    monkeypatch.setattr(ladder, "_conclude", lambda *arguments: concluded.extend(arguments) or KNOWN)
    assert ladder.measure(ASSIGNMENT, PART, SHAPE, zygote, rounds=2) is KNOWN
    rounds, flops, shape, cores = concluded
    assert len(rounds) == 2
    for times in rounds:
        assert times.keys() == {*ladder.RUNGS, "nothing", "peak"} and min(times.values()) > 0
    assert (flops, shape, cores) == (4 * 2 * 48**2 * 16, SHAPE, 1)


def test_rounds_become_ratios_and_times_too_short_are_refused() -> None:
    shape = {**SHAPE, "N": 2000, "d": 32}
    flops = 4 * 2 * 2000**2 * 32
    limit = flops / 1e11

    def concluded(nothing: float, expert: float) -> Yardsticks:
        """Conclude from three rounds at 1e11 multiply-adds and additions a second."""
        calls = dict.fromkeys(ladder.RUNGS, nothing + 0.1)
        calls |= {"expert": nothing + expert, "nothing": nothing, "peak": 1e11}
        return ladder._conclude([calls] * 3, flops, shape, 1)

    known = concluded(0.001, 1.25 * limit)
    assert known.against_reference.keys() == set(ladder.RUNGS) and known.cores == 1
    assert known.against_reference["reference"] == 1.0
    assert known.peak_against_reference / known.against_reference["expert"] == pytest.approx(0.8)
    refused("N = 2000 is too small", concluded, 10 * limit, 1.25 * limit)
    refused("faster than multiply-adds", concluded, 0.001, 0.9 * limit, of=KitError)


def test_a_part_without_a_frontier_is_refused() -> None:
    refused("choose part1, part2, part3, part4", main, ["4Dread"])
