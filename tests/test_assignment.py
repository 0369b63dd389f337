"""Reading of assignment files: the public one, the staff's on top of it, and the examples of the documentation."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, refused, write, write_files

from grader.assignment import labs
from grader.assignment.expressions import evaluate_int
from grader.assignment.loading import SCHEMA, load
from grader.assignment.rubric import ManualItem, TimeBand
from grader.backends.native.backend import NativeBackend
from grader.core.seeds import derive
from grader.explain.case_run import question
from grader.judge.marker import Marker
from grader.judge.timing.rounds import TimedInputs
from grader.runner.calls import Request
from labs.attention.cases import DISTRIBUTIONS
from labs.attention.oracle import ORACLES

CONFIG = ROOT / "configs" / "gpt149.yaml"
STAFF = ROOT / "configs" / "hidden" / "gpt149.yaml"
FORMAT = ROOT / "docs" / "assignment-format.md"


def test_the_public_assignment_pays_what_the_handout_says() -> None:
    assignment = load(CONFIG)
    worth = "part0:0 4Dread:1.5 4Dwrite:1.5 part1:10 part2:20 part3:25 part4:35"
    assert " ".join(f"{part.id}:{part.points:g}" for part in assignment.parts) == worth
    ordinary = {item.id: item.points for item in assignment.manual if not item.extra}
    assert ordinary == {"writeup": 7}
    assert sum(part.points for part in assignment.parts) + sum(ordinary.values()) == 100
    assert [item.points for item in assignment.manual if item.extra] == [3, 3, 3, 3]
    assert assignment.commands() == ["part0", "4Daccess", "part1", "part2", "part3", "part4"]
    assert [part.id for part in assignment.select("4Daccess")] == ["4Dread", "4Dwrite"]
    assert "part0" not in [part.id for part in assignment.select("all")]
    assert assignment.seed is None
    assert not any(case.hidden for part in assignment.parts for case in part.cases)


@pytest.mark.parametrize("hidden", [False, True], ids=["public", "staff"])
def test_cases_cover_the_shapes_that_find_faults(hidden: bool) -> None:
    assignment = load(STAFF if hidden else CONFIG)
    cases = [case for case in assignment.part("part4").cases if case.hidden == hidden]
    shapes = [{**assignment.defaults, **case.shape} for case in cases]
    assert any(s["N"] == 1 for s in shapes) and any(s["B"] > 1 and s["H"] > 1 for s in shapes)
    assert any(s["d"] & (s["d"] - 1) for s in shapes)
    assert any(1 < s["N"] < s["Br"] and s["N"] < s["Bc"] for s in shapes)
    assert any(s["N"] % s["Br"] and s["N"] % s["Bc"] and s["N"] > s["Br"] for s in shapes)
    assert any(s["N"] > 60 and all(s["N"] % k for k in range(2, s["N"])) for s in shapes)
    assert {case.distribution for case in cases} > {"random"}


def test_staff_file_adds_cases_and_changes_nothing_else() -> None:
    public, staff = load(CONFIG), load(STAFF)
    for ours, theirs in zip(public.parts, staff.parts, strict=True):
        assert replace(theirs, cases=tuple(case for case in theirs.cases if not case.hidden)) == ours
        assert sum(case.hidden for case in theirs.cases) >= 3
        known = {(case.distribution, tuple(sorted(case.shape.items()))) for case in ours.cases}
        for case in filter(lambda case: case.hidden, theirs.cases):
            assert (case.distribution, tuple(sorted(case.shape.items()))) not in known
            assert str(case.seed) not in CONFIG.read_text()
    assert str(staff.seed) not in CONFIG.read_text()
    assert (public.manual, public.late, public.limits) == (staff.manual, staff.late, staff.limits)
    # Hidden cases go with the cases that they stand beside.
    hidden = {part.id: [case.name for case in part.cases if case.hidden] for part in staff.parts}
    assert hidden["part1"] == hidden["part4"] != hidden["4Dread"] == hidden["4Dwrite"]
    for part in staff.parts:
        assert {case.distribution for case in part.cases} <= set(staff.lab.oracles[part.oracle].distributions)


def test_seed_draws_hidden_cases_and_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    staff, again, other = load(STAFF), load(STAFF), load(STAFF, seed=5)
    assert staff == again and other.seed == 5
    seeds = [case.seed for case in staff.part("part1").cases if case.hidden]
    others = [case.seed for case in other.part("part1").cases if case.hidden]
    assert len(set(seeds + others)) == 2 * len(seeds)
    assert len({load(CONFIG).fingerprint, staff.fingerprint, other.fingerprint}) == 3
    # The fingerprint sees every file that an assignment was read from.
    base, top = tmp_path / "base.yaml", tmp_path / "staff" / "top.yaml"
    texts = {"base.yaml": CONFIG.read_text(), "staff/top.yaml": "extends: ../base.yaml\nseed: 1\n"}
    write_files(tmp_path, texts)
    before = load(top).fingerprint
    base.write_text(CONFIG.read_text() + "\n# a remark\n")
    assert load(top).fingerprint != before


def test_extending_replaces_lists_merges_mappings_and_parts_by_id(tmp_path: Path) -> None:
    text = f"""extends: {CONFIG}
limits: {{call_s: 3}}
manual: [{{id: oral, title: Oral exam, points: 5}}]
late: {{due: 2026-11-14T23:59:00-08:00}}
parts:
  - {{id: part4, points: 40, hidden_cases: []}}
  - {{id: part5, title: Once More, label: ONCE MORE, function: again, points: 1,
     arguments: [Q, K, V, N], returns: [B, H, N, d], oracle: attention}}
"""
    assignment, below = load(write(tmp_path, text, "top.yaml")), load(CONFIG)
    assert assignment.limits == replace(below.limits, call_s=3)
    assert assignment.manual == (ManualItem("oral", "Oral exam", 5),)
    assert assignment.late is not None and assignment.late.cap_days == 3
    assert assignment.late.due == datetime(2026, 11, 14, 23, 59, tzinfo=timezone(timedelta(hours=-8)))
    assert [part.id for part in assignment.parts] == [*(part.id for part in below.parts), "part5"]
    assert assignment.part("part4") == replace(below.part("part4"), points=40)
    # points_if_slow, which bands replaced, still pays.
    bands = re.search(r"    time_bands: &time_bands\n(      - .*\n)+", CONFIG.read_text())
    assert bands is not None
    path, text = tmp_path / "assignment.yaml", CONFIG.read_text().replace(bands[0], "    points_if_slow: 5\n")
    path.write_text(text.replace("*time_bands", "[{up_to: 2, share: 0.6}, {share: 0.5}]"))
    assert load(path).part("part1").points_if_slow == 5
    assert load(path).part("part2").time_bands == (TimeBand(2, 0.6), TimeBand(None, 0.5))


def timed_inputs(seed: int, calls: int) -> list[list[float]]:
    """Return the first input number of each of `count` timed calls. Each call ends with an error."""
    assignment, noted = load(CONFIG), []

    def call(request: Request, *, delays: bool) -> None:
        assert not delays
        noted.append([tensor.reshape(-1)[0].item() for tensor in request.inputs])
        raise TimeoutError

    shape = {"B": 1, "H": 1, "N": 8, "d": 4, "threads": 1}
    native = NativeBackend(None, None, None)
    bench = SimpleNamespace(assignment=assignment, shape=shape, backend=lambda part: native)
    draw = TimedInputs(Marker(bench, assignment.part("part1")), seed)  # type: ignore[arg-type]
    for _ in range(calls):
        refused("", draw.sample, SimpleNamespace(call=call), is_reference=False, of=TimeoutError)
    return noted


def test_a_seed_repeats_the_timed_inputs_and_seeds_do_not_reveal_one_another() -> None:
    first = timed_inputs(149, 4)
    assert timed_inputs(149, 4) == first
    numbers = {number for call in [*first, *timed_inputs(150, 4)] for number in call}
    assert len(numbers) == 3 * 8, "no two calls are alike"
    seeds = [derive(7, label, call) for label in ("inputs", "rows") for call in range(500)]
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == len(seeds), "torch uses the low 32 bits of a seed"
    differences = {(b - a) & 0xFFFFFFFF for a, b in pairwise(seeds)}
    assert len(differences) == len(seeds) - 1, "nothing is gained by adding the last step once more"
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert derive(1, "12") != derive(1, "1", "2") != derive(11, "2")
    assignment = load(CONFIG)
    case = next(case for case in assignment.part("part1").cases if case.distribution == "random")
    shape = {**assignment.defaults, **case.shape}
    first, again, other = (question(assignment.lab, replace(case, seed=k), shape) for k in (7, 7, 8))
    assert all((first[name] == again[name]).all() for name in first)
    assert not any((first[name] == other[name]).all() for name in "QKV")


def test_every_accepted_key_is_documented_and_every_documented_key_is_accepted() -> None:
    documented = {}
    for section in FORMAT.read_text().split("\n## ")[1:]:
        # The first cells of its table; a star marks a key that may be left out.
        if keys := dict(re.findall(r"^\| `(\w+)`( \*)? \|", section, re.MULTILINE)):
            documented[section.partition("\n")[0]] = keys
    sections = {re.sub(r"^(an?|the) ", "", keys.what).capitalize(): keys for keys in SCHEMA}
    assert set(documented) == set(sections)
    for name, keys in sections.items():
        assert set(documented[name]) == set(keys.all)
        assert not any(documented[name][key] for key in keys.required), "a required key that may be left out"
    # The names of oracles and distributions are those of the evaluator.
    known = labs.load(labs.find("attention")).oracles
    assert set(known) == set(ORACLES)
    assert {name for facts in known.values() for name in facts.distributions} == set(DISTRIBUTIONS)


def test_documented_examples_hold_every_key_and_are_read(tmp_path: Path) -> None:
    files = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", FORMAT.read_text(), re.DOTALL))
    write_files(tmp_path, files)
    assert load(tmp_path / "example.yaml").seed is None
    assert load(tmp_path / "hidden" / "example.yaml").seed is not None
    text = "\n".join(files.values())
    unused = {key for keys in SCHEMA for key in keys.all if not re.search(rf"\b{key}:", text)}
    # Each of these excludes another key of its mapping, which the examples show.
    assert unused == {"torch_function", "keywords", "stands_in", "points_if_slow"}
    (kernel,) = load(tmp_path / "kernels.yaml").parts
    assert kernel.device is not None and kernel.device.ranges == {"x": (-4.0, 4.0)}
    public = load(CONFIG)
    assert any(part.is_torch and part.keywords for part in public.parts)
    assert any(part.stands_in for part in public.parts)


def test_expressions_are_arithmetic_and_nothing_else() -> None:
    assert evaluate_int("2 * (N + Br - 1) // Br", {"N": 10, "Br": 4}) == 2 * 13 // 4
    calls = ("__import__('os')", "N.bit_length()", "N if N else 0", "N ** N", "N // 0")
    for expression in (*calls, "M", "1.5", "True", "", "N\0"):
        refused("", evaluate_int, expression, {"N": 10})
