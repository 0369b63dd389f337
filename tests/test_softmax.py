"""The softmax lab: wrong and right kernels, the oracle's error budget, studies, and the handout."""

import csv
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import code_of, in_files, lightly, part_of, put, results_alone, some, write

from grader import __main__ as grading
from grader import score
from grader.assignment import loading, records, regions
from grader.assignment.inputs import CaseInputs
from grader.assignment.mutations import Mutation, in_one_file, place, without_starter
from grader.core.arrays import Array, np
from grader.core.places import ROOT
from grader.core.precision import unwritten
from grader.core.results import PartResult, SubmissionResult
from grader.explain import clues, diagnose
from grader.explain.comparison import compare
from grader.explain.further_calls import FurtherCalls
from grader.explain.shown_lines import ShownLines
from grader.source import landmarks
from grader.study import helpers, writeup
from labs.softmax import kernels
from labs.softmax.inputs import LOGITS, PARTIALS, make_inputs
from labs.softmax.oracle import ORACLES, merged
from labs.softmax.studies import accuracy, traffic

LAB = ROOT / "labs" / "softmax"
ASSIGNMENT = loading.load(LAB / "hidden" / "assignment.yaml")
SOURCE = (LAB / "softmax.cpp").read_text()


def judged(folder: Path, text: str, parts: Sequence[records.Part] = ASSIGNMENT.parts) -> SubmissionResult:
    return results_alone(ASSIGNMENT, write(folder, text, "softmax.cpp"), parts, shape=kernels.SHAPE)


def side_by_side(folder: Path, made: Sequence[Mutation]) -> list[tuple[Mutation, PartResult]]:
    text, parts = in_one_file(kernels, ASSIGNMENT, SOURCE, made)
    return list(zip(made, judged(folder, lightly(text), parts).parts, strict=True))


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("made", in_files(kernels.WRONG, code_of, most=60))
def test_wrong_kernels_are_rejected_by_name(made: Sequence[Mutation], tmp_path: Path) -> None:
    for bug, result in side_by_side(tmp_path, made):
        assert result.verdict == "wrong", bug.name
        assert result.diagnosis.code in bug.codes, (bug.name, result.diagnosis)
        assert bug.says in result.diagnosis.message, (bug.name, result.diagnosis)


@pytest.mark.parametrize("made", in_files(kernels.RIGHT, part_of))
def test_right_variants_pass(made: Sequence[Mutation], tmp_path: Path) -> None:
    """Judge without times. (`grader selftest --lab softmax` times these kernels at full size.)"""
    for variant, result in side_by_side(tmp_path, made):
        assert result.verdict == "pass", (variant.name, result.diagnosis)
        assert all(case.ok for case in result.cases) and len(result.cases) > 8, variant.name


def test_the_master_passes_and_the_starter_is_not_written(tmp_path: Path) -> None:
    master, starter = (judged(tmp_path, text) for text in (SOURCE, regions.strip_solution(SOURCE)))
    assert [part.verdict for part in master.parts] == ["pass"] * 4
    for part in starter.parts:
        assert part.diagnosis.code == "not_written" and "not written yet" in part.diagnosis.message, part
    assert [score.score(ASSIGNMENT, result).earned for result in (master, starter)] == [100, 0]


@pytest.mark.parametrize("rows", [[1], range(4)])
def test_nan_alone_does_not_prove_a_mistake(rows: Sequence[int]) -> None:
    """A suspect that predicts NaN in right rows, too, is not named. NaN in all rows shows no pattern to explain."""
    oracle, shape = ORACLES["safe"], {"R": 4, "C": 9}
    inputs = {"X": np.random.default_rng(2).uniform(-5000, 5000, (4, 9)).astype(np.float32)}
    inputs["X"][:, 0] = -np.inf if len(rows) > 1 else 0
    right = oracle.expected(inputs, shape)
    actual = np.where(np.isin(np.arange(4), rows)[:, None], np.nan, right.value)
    found = diagnose.diagnose(oracle, inputs, shape, right, actual, compare(right, actual))
    (alone,) = diagnose.settled([found])
    assert alone is not None and alone.code == "not_finite" and "smallest" not in alone.message


def test_a_right_output_refutes_a_mistake() -> None:
    """Two mistakes give 1 on rows of equal numbers. A right output on another input excludes one of the two."""
    oracle, shape = ORACLES["online"], {"R": 3, "C": 9}
    inputs = {"X": np.full((3, 9), 2, np.float32)}
    right, actual = oracle.expected(inputs, shape), np.ones((3, 9))
    first = diagnose.diagnose(oracle, inputs, shape, right, actual, compare(right, actual))
    (alone,) = diagnose.settled([first])
    assert alone is not None and "never divided" in alone.message and "equals the maximum" in alone.message
    others = {"X": np.random.default_rng(1).normal(size=(3, 9)).astype(np.float32)}
    right_elsewhere = [(CaseInputs(shape, others), {"": oracle.expected(others, shape)})]
    refuted = diagnose.refuted(oracle, [first], right_elsewhere)
    assert refuted == {"not_divided"}
    (named,) = diagnose.settled([first], refuted)
    assert named is not None and "never divided" not in named.message
    assert "equals the maximum" in named.message
    (kept,) = diagnose.settled([first], frozenset({"not_divided", "ties_left_out"}))
    assert kept == alone, "a mistake that right outputs refute is named if no other is left"


@pytest.mark.parametrize("function", some(["safeSoftmax", "onlineSoftmax"], 2))
def test_one_loop_as_three_parts_is_flagged(function: str, tmp_path: Path) -> None:
    """If all parts run one loop, 2 and 3 are flagged; their equal outputs are not, as honest kernels have them, too."""
    first, last = place(SOURCE, function)
    text, one = SOURCE, SOURCE[first:last]
    for name in ("naiveSoftmax", "safeSoftmax", "onlineSoftmax"):
        first, last = place(text, name)
        text = text[:first] + one.replace(function, name) + text[last:]
    for source, codes in ((text, ["same_as_naive"]), (SOURCE, [])):
        naive, *others = judged(tmp_path, without_starter(source), ASSIGNMENT.parts[:3]).parts
        assert [naive.verdict, *(part.verdict for part in others)] == ["pass"] * 3
        assert [[flag.code for flag in part.flags] for part in (naive, *others)] == [[], codes, codes]
        assert all(flag.level == "review" for part in others for flag in part.flags)


def float32_softmax(x: Array, sums: Array | None = None) -> Array:
    """Return the softmax in float32. `sums` replaces the rows' sums, which by default are NumPy's pairwise sums."""
    weights = np.exp(x - x.max(1, keepdims=True))
    return weights / (weights.sum(1, keepdims=True, dtype=np.float32) if sums is None else sums)


@pytest.mark.parametrize("distribution", LOGITS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (7, 2), (9, 101), (2, 20_000)])
def test_float32_is_within_half_the_budget_on_all_rows(distribution: str, shape: tuple[int, int]) -> None:
    inputs, again = (make_inputs(distribution, {"R": shape[0], "C": shape[1]}, 7) for _ in range(2))
    x = inputs["X"]
    assert np.array_equal(x, again["X"])
    assert x.dtype == np.float32 and x.shape == shape and not np.isnan(x).any() and not np.isposinf(x).any()
    assert np.isfinite(x).any(1).all() and abs(x[np.isfinite(x)]).max() <= 10_000
    found = compare(ORACLES["safe"].expected(inputs, {}), float32_softmax(x))  # type: ignore[arg-type]
    assert found.ok and found.budget_used < 0.5


@pytest.mark.parametrize("distribution", ["tail", "tail_last"])
def test_a_float_sum_that_loses_a_tail_is_wrong_in_safe_and_online(distribution: str) -> None:
    inputs = make_inputs(distribution, {"R": 2, "C": 100_000}, 3)
    weights = np.exp(inputs["X"] - inputs["X"].max(1, keepdims=True))
    weights = weights if distribution == "tail" else weights[:, ::-1]
    plain = float32_softmax(inputs["X"], np.cumsum(weights, 1, dtype=np.float32)[:, -1:])
    blocks = weights.reshape(2, 100, 1000)
    in_blocks = np.cumsum(np.cumsum(blocks, 2, dtype=np.float32)[:, :, -1], 1, dtype=np.float32)[:, -1:]
    for part, accepted in (("naive", True), ("safe", False), ("online", False)):
        expected = ORACLES[part].expected(inputs, {})
        assert compare(expected, plain).ok == accepted, part
        assert compare(expected, float32_softmax(inputs["X"], in_blocks)).ok, part


@pytest.mark.parametrize("distribution", PARTIALS)
def test_the_merge_is_associative_and_commutative_and_ignores_empty_sides(distribution: str) -> None:
    one, two = (make_inputs(distribution, {"R": 13, "d": 3}, seed) for seed in (1, 2))

    def merge(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
        given = dict(zip(("m1", "l1", "o1", "m2", "l2", "o2"), (*left, *right), strict=True))
        return list(merged(given).values())

    a, b, c = ([given[f"{name}{side}"] for name in "mlo"] for given, side in ((one, 1), (one, 2), (two, 2)))
    empty = [np.full(13, -np.inf), np.zeros(13), np.zeros((13, 3))]
    associative, commutative = (merge(merge(a, b), c), merge(a, merge(b, c))), (merge(a, b), merge(b, a))
    for one, other in (associative, commutative, (merge(a, empty), a), (merge(empty, empty), empty)):
        assert all(np.allclose(x, y, rtol=1e-12, atol=1e-12) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("kernel", traffic.KERNELS)
def test_simulated_traffic_equals_the_theory(kernel: str) -> None:
    rows, columns = 6, 4096
    for size_bytes in (4 << 10, 128 << 10):
        model = traffic.Model(size_bytes)
        (found,) = helpers.simulated(traffic.SIMULATOR, [((kernel, rows, columns), model)])
        assert (found.loads, found.stores) == traffic.theory(kernel, rows, columns)
        expected = traffic.passes(kernel, columns, model)
        if expected is not None:
            assert abs(found.fetched / (rows * columns / 16) - expected) < 0.02


@pytest.mark.full
def test_the_accuracy_study_finds_where_a_part_overflows(tmp_path: Path) -> None:
    """In the judged file, exp() overflows in the naive part, and the online part's float sum loses a tail."""
    head, found, online = SOURCE.partition("torch::Tensor onlineSoftmax")
    lossy = head + found + online.replace("double sum = 0.0", "float sum = 0.0f")
    assert lossy != SOURCE
    put(tmp_path, {"softmax.cpp": lossy, "writeup.md": (LAB / "writeup_template.md").read_text()})
    arguments = ["--module", str(tmp_path / "softmax.cpp"), "--out", str(tmp_path / "out")]
    arguments += ["--config", str(LAB / "assignment.yaml"), "--writeup", str(tmp_path / "writeup.md")]
    assert accuracy.main([*arguments, "--sizes", "40,110", "--columns", "16,65536"]) == 0
    rows = {row["input"]: row for row in csv.DictReader((tmp_path / "out" / "accuracy.csv").open())}
    assert rows["logits around +-110"]["naive"] == accuracy.NO_NUMBER
    assert float(rows["logits around +-40"]["naive"]) < 100
    assert all(float(row["safe"]) < 8 and float(row["merge"]) < 8 for row in rows.values())
    assert float(rows["a tail, C=65536"]["online"]) > 1000 > float(rows["a tail, C=16"]["online"])
    assert "a tail, C=65536" in writeup.tables((tmp_path / "writeup.md").read_text())["accuracy"]


def test_the_commands_take_the_labs_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, read = tmp_path / "writeup.md", tmp_path / "read.md"
    mine.write_text((LAB / "writeup_template.md").read_text())
    assert grading.run(["writeup", str(mine), "--lab", "softmax"]) == 1
    printed = capsys.readouterr().out
    assert "overflow" in printed and "part3" not in printed
    assert grading.run(["writeup", str(mine), "--lab", "softmax", "--read", str(read)]) == 0
    assert "infinite above 88.7" in read.read_text()
    put(tmp_path / "in", dict.fromkeys(("ada/softmax.cpp", "bob/softmax.cpp"), SOURCE))
    page = ["--html", str(tmp_path / "similar.html")]
    assert grading.run(["similar", str(tmp_path / "in"), "--lab", "softmax", *page]) == 0
    assert "2 submissions compared; text of" in capsys.readouterr().out


@pytest.mark.parametrize(("used", "unread"), [("l1", ["l2"]), ("l2", []), ("", [])])
def test_an_input_that_changes_no_output_is_named(used: str, unread: list[str]) -> None:
    """The message names the inputs that change no output. The kernel reads `used` in place of l2 ("": no input)."""
    (part,) = (part for part in ASSIGNMENT.parts if part.id == "merge")
    case = next(case for case in part.cases if case.distribution == "partials")
    shape = {**ASSIGNMENT.defaults, **case.shape, "R": 5, "d": 3}
    case = replace(case, shape=shape)

    def call(session: object, name: str, inputs: CaseInputs) -> SimpleNamespace:
        outputs = merged({**inputs, "l2": inputs[used]} if used else dict.fromkeys(inputs, np.ones((5, 3))))
        return SimpleNamespace(outputs=outputs, expected=ORACLES["merge"].expected(inputs, inputs.shape))

    lab = SimpleNamespace(make_inputs=make_inputs)
    kernel = SimpleNamespace(
        part=replace(part, cases=(case,)), assignment=ASSIGNMENT, body=None, shape=shape, lab=lab, call=call,
        wrong={case.name: True}, sizes=dict,
    )  # fmt: skip
    judged = SimpleNamespace(kernel=kernel, source=None, fresh=lambda threads: nullcontext())
    assert FurtherCalls(judged, None).unread() == (unread, "" if used else case.name)  # type: ignore[arg-type]
    assert ShownLines(judged, None)._alike("l2") == ["l1", "m1", "m2"]  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(2, 3), (1, 2)])
def test_nan_in_masked_rows_alone_is_told(wrong: tuple[int, int]) -> None:
    logits, actual = np.zeros((4, 5), np.float32), np.zeros((4, 5))
    logits[2, :3] = logits[3, :4] = -np.inf
    actual[wrong, :] = np.nan
    seen = SimpleNamespace(inputs={"X": logits}, actual=actual)
    _, words = ORACLES["online"].not_finite(seen, "10 of 20 elements")  # type: ignore[arg-type]
    assert ("only in rows with 3 or more" in words) == (wrong == (2, 3))


@pytest.mark.parametrize(("row", "code"), [(0, "left_empty"), (1, "right_empty"), (2, "row_range")])
def test_rows_that_are_never_written_are_named_by_their_inputs(row: int, code: str) -> None:
    oracle, shape = ORACLES["merge"], {"R": 4, "d": 2}
    inputs = make_inputs("partials", shape, 1)
    for side, empty in (("1", 0), ("2", 1)):
        inputs[f"m{side}"][empty], inputs[f"l{side}"][empty] = -np.inf, 0
    expected = oracle.expected(inputs, shape)
    actual = expected["o"].value.astype(np.float32)
    actual[row] = unwritten((2,), "float32")
    compared = compare(expected["o"], actual)
    found = diagnose.diagnose(oracle, inputs, shape, expected["o"], actual, compared, name="o")
    assert found.code == code, found.message


def test_declarations_before_the_loop_over_rows_are_quoted() -> None:
    text = "void f(int R) {\n  Pair even, odd;\n  float *o = p, m = 0;\n  for (int i = 0; i < R; i++) {\n"
    text += "    const float x = o[i];\n    even.take(x);\n    return use(even);\n  }\n}\n"
    body = landmarks.function(text, "f")
    assert body is not None
    shown = clues.lines(body, ASSIGNMENT.parts[0], ORACLES["online"].clues["state_not_reset"])
    assert [each.place.line for each in shown] == [2]
