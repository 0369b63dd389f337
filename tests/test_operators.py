"""The lab of operators: its oracles, its known kernels, and diagnoses that call a student's own forward function."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import code_of, in_files, lightly, needs_delays, part_of, refused, results_alone, write
from torch import Tensor
from torch.nn import functional

from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation
from grader.assignment.records import Part
from grader.assignment.regions import strip_solution
from grader.core import machine
from grader.core.results import PartResult
from grader.explain.diagnose import SAME_OUTPUT
from grader.judge import case_order
from grader.report import student
from labs.operators import LAB, kernels
from labs.operators.oracle import ORACLES, RESULT
from labs.softmax import kernels as softmax

FOLDER = labs.named("operators")
ASSIGNMENT = load(labs.assignment_file(FOLDER, staff=True))
MASTER = labs.master(FOLDER, ASSIGNMENT.source).read_text(encoding="utf-8")
TIES = ("tied_maps", "equal_maps")


def judge(text: str, parts: Sequence[Part], folder: Path) -> tuple[PartResult, ...]:
    return results_alone(ASSIGNMENT, write(folder, text, ASSIGNMENT.source), parts).parts


def judged(made: Sequence[Mutation], folder: Path) -> list[tuple[Mutation, PartResult]]:
    text, parts = kernels.side_by_side(ASSIGNMENT, MASTER, made)
    return list(zip(made, judge(lightly(text), parts, folder), strict=True))


SIZES = {
    **ASSIGNMENT.defaults,
    "R": 5, "C": 7, "RB": 1, "CB": 7, "n": 23, "M": 5, "K": 7, "N": 3, "batch": 6, "I": 5, "O": 4, "classes": 5,
    "images": 3, "channels": 2, "height": 9, "width": 6, "filters": 4, "kernel": 3, "stride": 2, "pad": 1,
    "maps": 2, "planes": 3, "rows": 9, "columns": 7, "side": 3, "step": 2,
}  # fmt: skip
FORWARD: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {
    "add": lambda x: x["A"] + x["B"],
    "mul": lambda x: x["A"] * x["B"],
    "relu": lambda x: x["X"].relu(),
    "matmul": lambda x: x["A"] @ x["B"],
    "linear": lambda x: x["X"] @ x["W"] + x["b"],
    "conv2d": lambda x: functional.conv2d(x["X"], x["W"], x["b"], SIZES["stride"], SIZES["pad"]),
    "maxpool2d": lambda x: functional.max_pool2d(x["X"], SIZES["side"], SIZES["step"]),
    "mse": lambda x: functional.mse_loss(x["X"], x["T"]),
    "cross_entropy": lambda x: functional.cross_entropy(x["X"], x["labels"]),
}


# PyTorch does not promise which of several equal maxima it takes; a test below says that it is the first.
@pytest.mark.parametrize(
    "name, distribution",
    [(name, kind) for name in FORWARD for kind in LAB.oracles[name].distributions if kind not in TIES],
)
def test_expected_values_and_gradients_are_pytorchs(name: str, distribution: str) -> None:
    made = LAB.make_inputs(distribution, SIZES, 3)
    x = {key: torch.from_numpy(t) for key, t in made.items()}
    x = {key: t.double() if t.is_floating_point() else t for key, t in x.items()}
    slopes = ORACLES[f"{name}_backward"].of
    assert slopes is not None
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


def test_sizes_that_do_not_fit_are_refused() -> None:
    refused("RB is 1 or R", LAB.make_inputs, "operands", {**SIZES, "RB": 2}, 1)
    refused("a window of 9 does not fit", LAB.make_inputs, "maps", {**SIZES, "side": 9}, 1)


@pytest.mark.parametrize("made", in_files(kernels.WRONG, code_of, elsewhere=softmax.WRONG))
def test_wrong_kernels_are_named(made: Sequence[Mutation], tmp_path: Path) -> None:
    for mutation, result in judged(made, tmp_path):
        told = f"{mutation.part}: {mutation.name}: {result.diagnosis}"
        assert result.verdict == "wrong" and result.diagnosis is not None, told
        assert result.diagnosis.code in mutation.codes and mutation.says in result.diagnosis.message, told


@pytest.mark.full
@needs_delays
def test_races_of_short_calls_show_on_one_core(tmp_path: Path) -> None:
    """With 200 delays in every call, one verdict of ten was "pass": calls too small to race used up the time."""
    usable = machine.usable_cpus()
    racy = [m for m in kernels.WRONG if m.name in ("rows of dO shared out for dB", "batch shared out for dW")]
    try:
        os.sched_setaffinity(0, usable[:1])
        found = judged(racy * 12, tmp_path)
    finally:
        os.sched_setaffinity(0, usable)
    assert [result.verdict for _, result in found] == ["wrong"] * 24


@pytest.mark.parametrize("made", in_files(kernels.RIGHT, part_of))
def test_right_variants_pass(made: Sequence[Mutation], tmp_path: Path) -> None:
    for mutation, result in judged(made, tmp_path):
        assert result.verdict == "pass", f"{mutation.part}: {mutation.name}: {result.diagnosis}"


def test_the_starter_is_not_written_yet_anywhere(tmp_path: Path) -> None:
    untimed = [part for part in ASSIGNMENT.parts if not part.id.endswith("_threads")]
    parts = [replace(part, cases=part.cases[:1]) for part in untimed]
    for result in judge(strip_solution(MASTER), parts, tmp_path):
        assert result.diagnosis is not None and "not written yet" in result.diagnosis.message, result.id


def test_a_wrong_gradient_is_held_beside_the_students_own_forward(tmp_path: Path) -> None:
    text = MASTER
    for old, new in (
        # Backward wrong; right for a wrong forward; both wrong in other ways; a forward without an answer.
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
    assert "The factor 2 is missing" in messages[0] and "Your own mseForward says so too" in messages[0]
    assert "It does agree with your own linearForward" in messages[1] and "db[" in messages[1]
    assert "Look at the forward function as well" in messages[2] and "own mulForward" in messages[2]
    assert "All of dO is added" in messages[3] and "reluForward" not in messages[3]
    assert {part.verdict for part in found} == {"wrong"}


@pytest.mark.parametrize("part, pair", [("linear_backward", "xw"), ("matmul_backward", "ab")])
def test_a_crash_tells_what_the_answers_before_it_show(part: str, pair: str, tmp_path: Path) -> None:
    """Two gradients' tensors are exchanged: a wrong result if they are equally large, else a write out of bounds."""
    first, second = pair
    held, other = (f"d{name.upper()}.data_ptr<float>()" for name in pair)
    exchanged = (f"*g{first} = {held}, *g{second} = {other}", f"*g{first} = {other}, *g{second} = {held}")
    ((_, result),) = judged([Mutation("exchanged", part, (exchanged,))], tmp_path)
    diagnosis = result.diagnosis
    assert diagnosis is not None and diagnosis.code.startswith("sig")
    assert "Before that it was wrong on '" in diagnosis.message
    assert f"d{first.upper()} gets what belongs into d{second.upper()}" in diagnosis.message


def test_numbers_that_are_none_are_explained_by_what_the_part_computes(tmp_path: Path) -> None:
    """Exponentials are named for the losses that have some, also if hidden tests follow."""
    body = "    loss.data_ptr<float>()[0] = std::sqrt(-1.0f);"
    made = [each for each in kernels.WRONG if each.name == "no maximum"]
    made.append(Mutation("nothing by nothing", "mse", body=body))
    told = {mutation.part: part.diagnosis for mutation, part in judged(made, tmp_path)}
    assert {each and each.code for each in told.values()} == {"not_finite"}
    for name in ("cross_entropy", "cross_entropy_backward"):
        assert (found := told[name]) and "exponential" in student.numberless(found.message)
    assert (found := told["mse"]) and "exp(" not in found.message


def test_indistinguishable_mistakes_are_named_together(tmp_path: Path) -> None:
    """With a stride of 2 and a border of 1 as the only such input, two mistakes in the place are one."""
    part = ASSIGNMENT.part("conv2d")
    alike = next(case for case in part.cases if case.name == "a step of 2 and a border")
    wrong = next(m for m in kernels.WRONG if m.name == "border times stride")
    course = replace(ASSIGNMENT, parts=(replace(part, cases=(alike,)),))
    source = write(tmp_path, kernels.edited(MASTER, wrong), "operators.cpp")
    (result,) = results_alone(course, source, course.parts).parts
    assert result.diagnosis is not None
    assert SAME_OUTPUT in result.diagnosis.message and "multiplied by the stride" in result.diagnosis.message


def test_cases_are_called_on_threads_of_their_own() -> None:
    steps = case_order.steps(ASSIGNMENT.part("linear_backward"), look=True)
    grouped = case_order.by_threads(steps, usual=8)
    assert list(grouped) == [8, 1] and [step.case.name for step in grouped[1]] == ["one thread"]
    assert sum(map(len, grouped.values())) == len(steps)
