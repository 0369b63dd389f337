"""The lab `operators`: oracles, known kernels, and diagnoses that call a student's own forward function."""

import csv
import functools
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from building import needs_tsan
from conftest import ROOT, code_of, in_files, lightly, needs_delays, part_of, refused, results_alone, write
from torch import Tensor
from torch.nn import functional

from grader.assignment import labs, loading, records, regions
from grader.assignment.mutations import Mutation, in_one_file
from grader.backends.native.toolchain import ABSENT
from grader.backends.torch.labreference import PREBUILT
from grader.core import machine, objectcache
from grader.core.arrays import Array, np
from grader.core.results import Diagnosis, PartResult
from grader.explain.comparison import compare
from grader.explain.diagnose import diagnose
from grader.judge import case_order
from grader.report import student
from grader.staff.release import contents, making
from grader.study import facts, race, racereport
from labs.operators import LAB, arithmetic
from labs.operators import known as kernels
from labs.operators.oracle import ORACLES, RESULT
from labs.operators.studies import ladder, sources
from labs.operators.studies.ladder import FAST, PYTORCH, REFERENCE, YOURS, Ladder, Limit, Rung
from labs.operators.suspects import pictures
from labs.softmax import kernels as softmax

FOLDER = labs.named("operators")
STAFF = labs.assignment_file(FOLDER, staff=True)
ASSIGNMENT = loading.load(STAFF)
MASTER_FILE = labs.master(FOLDER, ASSIGNMENT.source)
MASTER = MASTER_FILE.read_text(encoding="utf-8")
TIES = ("tied_maps", "equal_maps")
#: The two operands whose gradients a wrong kernel exchanges, by part.
EXCHANGED = {"linear_backward": "xw", "matmul_backward": "ab"}


def judge(text: str, parts: Sequence[records.Part], folder: Path) -> tuple[PartResult, ...]:
    return results_alone(ASSIGNMENT, write(folder, text, ASSIGNMENT.source), parts).parts


def judged(made: Sequence[Mutation], folder: Path) -> list[tuple[Mutation, PartResult]]:
    text, parts = in_one_file(kernels, ASSIGNMENT, MASTER, made)
    return list(zip(made, judge(lightly(text), parts, folder), strict=True))


SIZES = {
    **ASSIGNMENT.defaults,
    "R": 5, "C": 7, "RB": 1, "CB": 7, "n": 23, "M": 5, "K": 7, "N": 3, "batch": 6, "I": 5, "O": 4, "classes": 5,
    "images": 3, "channels": 2, "height": 9, "width": 6, "filters": 4, "kernel": 3, "stride": 2, "pad": 1,
    "maps": 2, "planes": 3, "rows": 9, "columns": 7, "side": 3, "step": 2,
}  # fmt: skip
FORWARD: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {
    **{of.__name__: lambda x, of=of: of(x["A"], x["B"]) for of in (torch.add, torch.mul, torch.matmul)},
    "relu": lambda x: x["X"].relu(),
    "linear": lambda x: x["X"] @ x["W"] + x["b"],
    "conv2d": lambda x: functional.conv2d(x["X"], x["W"], x["b"], SIZES["stride"], SIZES["pad"]),
    "maxpool2d": lambda x: functional.max_pool2d(x["X"], SIZES["side"], SIZES["step"]),
    "mse": lambda x: functional.mse_loss(x["X"], x["T"]),
    "cross_entropy": lambda x: functional.cross_entropy(x["X"], x["labels"]),
}
# PyTorch does not document which of equal maxima it takes: a separate test checks that the oracle takes the first.
DRAWN = [(name, kind) for name in FORWARD for kind in LAB.oracles[name].distributions if kind not in TIES]


@pytest.mark.parametrize("stride", [1, 2])
def test_an_images_gradient_is_adjoint_to_the_convolution_with_a_mistakes_taps(stride: int) -> None:
    rng, situation = np.random.default_rng(1), SimpleNamespace(sizes={**SIZES, "stride": stride})
    made = {code: taps_of(cast(Any, situation)) for code, _, taps_of in pictures.TAPS}
    assert made["border_repeated"] is not None
    for code, t in made.items():
        if t is not None:
            x, w = rng.normal(size=(3, 2, 9, 6)), rng.normal(size=(4, 2, 3, 3))
            y = arithmetic.convolved(x, w, t)
            dy = rng.normal(size=y.shape)
            assert np.isclose((dy * y).sum(), (arithmetic.image_gradient(dy, w, t, 9, 6) * x).sum()), code


@pytest.mark.parametrize("name, distribution", DRAWN)
def test_expected_values_and_gradients_are_pytorchs(name: str, distribution: str) -> None:
    made = LAB.make_inputs(distribution, SIZES, 3)
    x = {key: torch.from_numpy(t) for key, t in made.items()}
    x = {key: t.double() if t.is_floating_point() else t for key, t in x.items()}
    slopes = ORACLES[f"{name}_backward"].of
    for operand in slopes.operands.values():
        x[operand].requires_grad_()
    result = FORWARD[name](x)
    result.backward(x[slopes.upstream] if slopes.upstream else None)
    forward = ORACLES[name].expected(made, SIZES)[RESULT]
    assert torch.allclose(torch.from_numpy(forward.value), result.detach().reshape(forward.value.shape), 1e-9)
    for gradient, operand in slopes.operands.items():
        expected = ORACLES[f"{name}_backward"].expected(made, SIZES)[gradient]
        wanted = torch.from_numpy(made[gradient]).double() + x[operand].grad
        assert torch.allclose(torch.from_numpy(expected.value), wanted, 1e-9, 1e-12), gradient


def test_the_first_of_equal_maxima_is_expected() -> None:
    made = LAB.make_inputs("equal_maps", SIZES, 1)
    index = ORACLES["maxpool2d"].expected(made, SIZES)["index"].value
    rows, columns = (torch.arange(index.shape[k]) * SIZES["step"] for k in (2, 3))
    assert (torch.from_numpy(index) == rows[:, None] * SIZES["columns"] + columns).all()
    assert (made["indices"] == index).all()


def of_labels(x: dict[str, Array]) -> Array:
    """Return a wrong gradient of the cross entropy: the 1 at the label is divided by the sum of exp(), as exp() is."""
    w = np.exp(x["X"] - x["X"].max(1, keepdims=True))
    return x["dX"] + (w - np.eye(SIZES["classes"])[x["labels"]]) / w.sum(1, keepdims=True) / len(w)


PREDICTED: dict[str, tuple[str, str, str, Callable[[dict[str, Array]], Array]]] = {
    "matmul": ("matrices", RESULT, "terms_left_out", lambda x: x["A"][:, :4] @ x["B"][:4]),
    "conv2d_backward": ("images", "db", "gradient_added_often",
                        lambda x: x["db"] + SIZES["channels"] * x["dY"].sum((0, 2, 3))),
    "linear_backward": ("layers", "dX", "sum_not_reset", lambda x: x["dX"] + np.cumsum(x["dY"] @ x["W"].T, 0)),
    "add_backward": ("operands", "dB", "broadcast_wrong_index",
                     lambda x: x["dB"] + x["dO"].sum() * (np.arange(x["dB"].size) == 0)),
    "cross_entropy_backward": ("logits", "dX", "label_divided", of_labels),
}  # fmt: skip
FEW = {**SIZES, "images": 2, "channels": 1, "height": 3, "width": 3, "filters": 2, "stride": 1, "maps": 2}
FEW |= {"planes": 3, "rows": 5, "columns": 4, "side": 2, "step": 2}


@pytest.mark.parametrize("name", PREDICTED)
def test_a_wrong_output_is_explained(name: str) -> None:
    distribution, output, code, wrong = PREDICTED[name]
    made, oracle = LAB.make_inputs(distribution, SIZES, 3), ORACLES[name]
    right, actual = oracle.expected(made, SIZES)[output], wrong(made)
    found = diagnose(oracle, made, SIZES, right, actual, compare(right, actual), name=output)
    assert found.code == code, found.message


def test_sizes_that_do_not_fit_are_refused() -> None:
    refused("RB is 1 or R", LAB.make_inputs, "operands", {**SIZES, "RB": 2}, 1)
    refused("a window of 9 does not fit", LAB.make_inputs, "maps", {**SIZES, "side": 9}, 1)


@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("made", in_files(kernels.WRONG, code_of, elsewhere=softmax.WRONG))
def test_wrong_kernels_are_named(made: Sequence[Mutation], tmp_path: Path) -> None:
    for mutation, result in judged(made, tmp_path):
        shown = f"{mutation.part}: {mutation.name}: {result.diagnosis}"
        assert result.verdict == "wrong" and result.diagnosis is not None, shown
        assert result.diagnosis.code in mutation.codes and mutation.says in result.diagnosis.message, shown


@pytest.mark.full
@needs_delays
def test_races_of_short_calls_show_on_one_core(tmp_path: Path) -> None:
    """On one core, races are found by many short calls. With 200 delays in each, one verdict in ten would be "pass"."""
    usable = machine.usable_cpus()
    racy = [m for m in kernels.WRONG if m.name in ("rows of dO shared out for dB", "batch shared out for dW")]
    try:
        os.sched_setaffinity(0, usable[:1])
        found = judged(racy * 12, tmp_path)
    finally:
        os.sched_setaffinity(0, usable)
    assert [result.verdict for _, result in found] == ["wrong"] * 24


@needs_tsan
def test_windows_that_overlap_race(tmp_path: Path) -> None:
    part = ASSIGNMENT.select("maxpool2d_backward")[0]
    head, begun, text = MASTER.partition("void maxpool2dBackward")
    text = text.replace("omp parallel for", "omp parallel for collapse(2)", 1)
    source = write(tmp_path, head + begun + text)
    (found,) = race.watch(ASSIGNMENT, part, source, race.watched_sizes(ASSIGNMENT, part)).races
    said = "".join(racereport.words(found, "operators.cpp"))
    assert found.variable == "gx" and "same element of gx" in said


@pytest.mark.full
@pytest.mark.parametrize("made", in_files(kernels.RIGHT, part_of))
def test_right_variants_pass(made: Sequence[Mutation], tmp_path: Path) -> None:
    for mutation, result in judged(made, tmp_path):
        assert result.verdict == "pass", f"{mutation.part}: {mutation.name}: {result.diagnosis}"


@pytest.mark.full  # the fast tier judges the starters of softmax and attention
def test_every_part_of_the_starter_is_not_written_yet(tmp_path: Path) -> None:
    untimed = [part for part in ASSIGNMENT.parts if not part.id.endswith("_threads")]
    parts = [replace(part, cases=part.cases[:1]) for part in untimed]
    for result in judge(regions.strip_solution(MASTER), parts, tmp_path):
        assert result.diagnosis is not None and "not written yet" in result.diagnosis.message, result.id


@pytest.mark.full
def test_a_wrong_gradient_is_compared_with_the_students_own_forward(tmp_path: Path) -> None:
    text = MASTER
    for old, new in (
        # Wrong: mse's gradient; linear's bias, forward and backward; both of mul; relu's gradient (forward crashes).
        ("gx[i] += 2 * (x[i] - t[i]) / n;", "gx[i] += (x[i] - t[i]) / n;"),
        ("y[n * O + o] = bias[o];", "y[n * O + o] = 2 * bias[o];"),
        ("gb[o] += gy[n * O + o];", "gb[o] += 2 * gy[n * O + o];"),
        ("ga[at] += go[at] * b[other];", "ga[at] += 2 * go[at] * b[other];"),
        ("a[i * C + j] * row[CB == 1 ? 0 : j]", "5 * a[i * C + j] * row[CB == 1 ? 0 : j]"),
        ("if (x[i] > 0) gx[i] += go[i];", "gx[i] += go[i];"),
        ("o[i] = x[i] > 0 ? x[i] : 0;", "if (n > 1) *(volatile int *)nullptr = 0;"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    parts = ("mse_backward", "linear_backward", "mul_backward", "relu_backward")
    found = judge(text, [ASSIGNMENT.part(name) for name in parts], tmp_path)
    messages = [part.diagnosis.message for part in found]  # type: ignore[union-attr]
    assert "The factor 2 is missing" in messages[0] and "your own mseForward confirms this" in messages[0]
    assert "difference of your own linearForward agrees" in messages[1] and "db[" in messages[1]
    assert "Look at the forward function as well" in messages[2] and "own mulForward" in messages[2]
    assert "All of dO is added" in messages[3] and "reluForward" not in messages[3]
    assert {part.verdict for part in found} == {"wrong"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Diagnosis]:
    """Judge mutations in one file. Return diagnoses by "NAME: PART". Those of EXCHANGED crash, others return NaN."""
    made = [each for each in kernels.WRONG if each.name == "no maximum"]
    made.append(Mutation("no number", "mse", body="    loss.data_ptr<float>()[0] = std::sqrt(-1.0f);"))
    for part, (first, second) in EXCHANGED.items():
        held, other = (f"d{name.upper()}.data_ptr<float>()" for name in (first, second))
        exchanged = (f"*g{first} = {held}, *g{second} = {other}", f"*g{first} = {other}, *g{second} = {held}")
        made.append(Mutation("exchanged", part, (exchanged,)))
    results = judged(made, tmp_path_factory.mktemp("together"))
    return {f"{each.name}: {each.part}": part.diagnosis for each, part in results if part.diagnosis}


@pytest.mark.full
@pytest.mark.parametrize("part", EXCHANGED)
def test_a_crash_message_explains_earlier_wrong_results(part: str, found: dict[str, Diagnosis]) -> None:
    """The kernel exchanges two gradients: if their sizes are equal, it returns wrong ones; else it crashes."""
    diagnosis, (first, second) = found[f"exchanged: {part}"], EXCHANGED[part].upper()
    assert diagnosis.code.startswith("sig") and "Before that, the result was wrong on '" in diagnosis.message
    assert f"d{first} gets the gradient of d{second}" in diagnosis.message


def test_nan_is_explained_by_the_formula_of_the_part(found: dict[str, Diagnosis]) -> None:
    """A message about NaN names exponentials only if the part's formula has some, even without its numbers."""
    for name in ("no maximum: cross_entropy", "no maximum: cross_entropy_backward"):
        assert found[name].code == "not_finite" and "exponential" in student.numberless(found[name].message)
    of_mse = found["no number: mse"]
    assert of_mse.code == "not_finite" and "exp(" not in of_mse.message


def test_cases_are_grouped_by_number_of_threads() -> None:
    steps = case_order.steps(ASSIGNMENT.part("linear_backward"), look=True)
    grouped = case_order.by_threads(steps, usual=8)
    assert list(grouped) == [8, 1] and [step.case.name for step in grouped[1]] == ["one thread"]
    assert sum(map(len, grouped.values())) == len(steps)


@pytest.mark.full
def test_the_fast_kernels_are_right() -> None:
    parts = tuple(part for part in ASSIGNMENT.parts if not part.id.endswith("_threads"))
    assert all(any(case.hidden for case in part.cases) for part in parts)
    for part in results_alone(ASSIGNMENT, FOLDER / sources.FAST, parts).parts:
        assert part.verdict == "pass", f"{part.id}: {part.diagnosis}"


@pytest.mark.parametrize("part, operations, read, written, in_place", [
    ("add", 35, 4 * (35 + 7), 4 * 35, False),
    ("add_backward", 70, 4 * (35 + 35 + 7), 4 * (35 + 7), True),
    ("mul_backward", 140, 4 * (35 + 35 + 7 + 35 + 7), 4 * (35 + 7), True),
    ("relu", 23, 4 * 23, 4 * 23, False),
    ("matmul", 2 * 105, 4 * (35 + 21), 4 * 15, False),
    ("matmul_backward", 4 * 105, 4 * (15 + 35 + 21 + 35 + 21), 4 * (35 + 21), True),
    ("linear_backward", 4 * 120 + 24, 4 * (24 + 30 + 20 + 30 + 20 + 4), 4 * (30 + 20 + 4), True),
    # 3 x 3 filters, 3 x 3 images, border 1. Along an axis, they read 2 + 3 + 2 numbers: 7 * 7 = 49 in the plane.
    ("conv2d", 2 * (2 * 2 * 49), 4 * (18 + 18 + 2), 4 * 36, False),
    ("conv2d_backward", 4 * (2 * 2 * 49) + 36, 4 * (36 + 18 + 18 + 18 + 18 + 2), 4 * (18 + 18 + 2), True),
    # 2 x 2 windows on 6 planes of 5 x 4 numbers; an index has eight bytes.
    ("maxpool2d", 24 * 3, 4 * 120, 4 * 24 + 8 * 24, False),
    ("maxpool2d_backward", 24, 4 * 24 + 8 * 24 + 4 * 120, 4 * 120, True),
    ("mse", 3 * 23, 8 * 23, 4, False),
    ("cross_entropy_backward", 6 * 30, 4 * 30 + 8 * 6 + 4 * 30, 4 * 30, True),
    ("sgd", 2 * 23, 8 * 23, 4 * 23, True),
])  # fmt: skip
def test_work_equals_hand_counts(part: str, operations: int, read: int, written: int, in_place: bool) -> None:
    assert sources.work(ASSIGNMENT.part(part), FEW) == sources.Work(operations, read, written, in_place)


def test_every_part_has_a_limit() -> None:
    for part in ASSIGNMENT.parts:
        work = sources.work(part, ASSIGNMENT.defaults)
        assert work.operations > 0 and work.moved_bytes > 0
        assert work.operations >= LAB.oracle(part.oracle).flops(ASSIGNMENT.defaults)


def made_up(binds_ms: float) -> Ladder:
    """Return a ladder of four invented rounds. The machine needs 2 ms for operations, `binds_ms` ms to move bytes."""
    limit = Limit(sources.Work(2_000_000, 8, 4), 1e9, (binds_ms,) * 4)
    hand_made = Rung(REFERENCE, (40.0, 44.0, 48.0, 52.0)), Rung(YOURS, (10.0, 11.0, 12.0, 13.0))
    without_torch = Rung(PYTORCH, trouble="not here: this Python has no torch")
    rungs = (*hand_made, without_torch, Rung(FAST, (5.0, 5.5, 6.0, 6.5)))
    return Ladder(ASSIGNMENT.part("matmul"), rungs, limit, "cpu", 1, "a machine")


def test_ratios_are_those_of_a_round_and_the_longer_limit_binds() -> None:
    rows = {row[0]: row for row in made_up(1.0).table().rows}
    assert rows[REFERENCE][4:7] == (4.0, 4.0, 4.0) and rows[FAST][4:7] == (0.5, 0.5, 0.5)
    assert rows[FAST][1:4] == (5.75, 5.375, 6.125) and rows["limit: multiply-adds"][1] == 2.0
    assert rows[YOURS][7] == pytest.approx(100 * 2 / 11.5, rel=0.01)
    assert rows[PYTORCH][1:] == (*[None] * 7, "not here: this Python has no torch")
    assert "here that of the operations" in made_up(1.0).caption()
    other = made_up(4.0)
    assert other.table().rows[-1][:2] == ("limit: a copy", 4.0) and "that of the bytes" in other.caption()


def run(out: Path, source: Path, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    files = ("--out", str(out), "--module", str(source), "--config", str(STAFF))
    code = ladder.main(["matmul", "-M", "24", "-K", "16", "-N", "40", "--rounds", "2", *files, *more])
    with (out / "ladder-matmul.csv").open() as file:
        return code, {row["kernel"]: row for row in csv.DictReader(file)}


@pytest.mark.full
def test_the_ladder_study_measures_right_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Avoid precompiled headers (30 s each): no torch, and only one instruction-set level. Measure the machine once.
    monkeypatch.setattr(ladder, "torch_version", lambda: ABSENT)
    monkeypatch.setattr(facts, "measure", functools.cache(facts.measure))
    monkeypatch.setattr(sources, "LEVELS", dict.fromkeys([*sources.LEVELS][:1], ()))
    writeup = write(tmp_path, (FOLDER / "writeup_template.md").read_text(), "writeup.md")
    code, rows = run(tmp_path, MASTER_FILE, "--writeup", str(writeup))
    assert code == 0 and list(rows)[:4] == [REFERENCE, YOURS, PYTORCH, FAST] and len(rows) == 5
    assert "no torch" in rows[PYTORCH]["note"] and not rows[PYTORCH]["ms"]
    for name in (REFERENCE, YOURS, FAST):
        assert float(rows[name]["ms q1"]) <= float(rows[name]["ms"]) <= float(rows[name]["ms q3"])
        assert float(rows[name]["time / yours"]) > 0
    assert float(rows[YOURS]["time / yours"]) == 1
    assert "The limit is the longer" in capsys.readouterr().out and FAST in writeup.read_text()
    assert (tmp_path / "ladder-matmul.png").stat().st_size > 10_000
    right, added, rest = MASTER_FILE.read_text().partition("o[i * N + j] += factor * b[k * N + j]")
    assert added and added not in rest
    code, rows = run(tmp_path, write(tmp_path, right + added.replace("+=", "=") + rest, "operators.cpp"))
    assert code == 1 and not rows[YOURS]["ms"] and "wrong result" in rows[YOURS]["note"]
    assert float(rows[FAST]["ms"]) > 0 and not rows[FAST]["time / yours"]
    assert "was not measured" in " ".join(capsys.readouterr().out.split())


@pytest.mark.full
def test_a_handout_has_compiled_kernels(tmp_path: Path) -> None:
    kit = contents.kit(ROOT, STAFF)
    assert FOLDER / sources.FAST in kit.reference_sources
    files = contents.handout(kit, {})
    making.refuse(files, kit)
    assert "labs/operators/studies/ladder.py" in files
    assert not any(b"packedB" in file.content for file in files.values())
    leaking = {**files, "docs/x.md": contents.File((FOLDER / sources.FAST).read_bytes())}
    assert making.leaks(leaking, making.secrets(kit))
    kernels = sources.all_levels(FOLDER)[0]
    name = objectcache.prebuilt_name(kernels.stem, platform.system(), platform.machine())
    assert f"labs/operators/prebuilt/{name}" in LAB.reference().compiled(tmp_path, {})
    # If the folder lacks the source, the prebuilt object is linked.
    (tmp_path / PREBUILT).mkdir()
    (tmp_path / name).rename(tmp_path / PREBUILT / name)
    _, _, level = kernels.stem.partition("_")
    assert sources.fast_kernels(tmp_path, level).program().is_file()


def test_all_files_bind_the_assignments_functions() -> None:
    asked = {part.function for part in ASSIGNMENT.parts}
    compared = {part.reference for part in ASSIGNMENT.parts if part.reference}
    texts = {name: (FOLDER / name).read_text() for name in ("operators.cpp", "reference.cpp", sources.FAST)}
    for name, text in {**texts, "pytorch": sources.with_bindings(sources.PYTORCH)}.items():
        bound = re.findall(r'm\.def\("(\w+)", &(\w+)\);', text)
        assert all(called == function for called, function in bound), name
        wanted = compared if name == "reference.cpp" else asked
        assert {called for called, _ in bound} - {sources.NOTHING} == wanted, name
