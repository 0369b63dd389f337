"""Hostile submissions in the labs of operators and of softmax: each is wrong, crashes or does not build."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from conftest import one_of_each, results_alone, write

from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation
from grader.assignment.records import Assignment
from grader.core.results import PartResult
from labs.operators import kernels as operators
from labs.softmax import kernels as softmax

KERNELS = {"operators": operators, "softmax": softmax}
BEGIN, END = "    // BEGIN SOLUTION\n", "    // END SOLUTION\n"
HEADERS = "#include <chrono>\n#include <cstdlib>\n#include <cstring>\n#include <thread>\n"


@dataclass(frozen=True)
class Attempt:
    lab: str
    made: Mutation
    ends: str  # its verdict, or several with | between them
    code: str = ""  # of its diagnosis; any, where there is none


def attempt(
    lab: str, name: str, part: str, text: str, ends: str = "wrong", code: str = "", old: str = END
) -> Attempt:
    """An attempt whose text comes last in the solution, or first (with old=BEGIN), or in place of another line."""
    new = {BEGIN: f"{BEGIN}{text}\n", END: f"{text}\n{END}"}.get(old, text)
    return Attempt(lab, Mutation(name, part, ((old, new),)), ends, code)


first = partial(attempt, old=BEGIN)
overwritten = partial(attempt, ends="wrong", code="inputs_overwritten")

#: The first result for each address and size of a result.
KEPT = """
    static std::vector<std::pair<const void *, torch::Tensor>> seen;
    for (auto &[at, made] : seen) if (at == {at} && made.numel() == {out}.numel()) return made;
    seen.emplace_back({at}, {out});
"""
LATER = """
    if (M != 7) {
        std::thread([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            const float *x = A.data_ptr<float>(), *y = B.data_ptr<float>();
            for (int e = 0; e < M * N; e++)
                for (int k = 0; k < K; k++) O.data_ptr<float>()[e] += x[e / N * K + k] * y[k * N + e % N];
        }).detach();
        return O;
    }
"""

ATTEMPTS = (
    first("operators", "a thread that goes on", "matmul", LATER, "wrong|rejected"),
    first("operators", "all but one size", "linear", "if (N == 60000) return Y;"),
    first("operators", "no hidden sizes", "matmul", "if (M == 13 || M == 3 || M == 2) return O;"),
    first("operators", "no hidden lengths", "mse", "if (n == 211 || n == 7) return loss;"),
    overwritten("operators", "an input halved", "relu", "const_cast<float *>(x)[0] *= 0.5f;"),
    overwritten("operators", "the upstream gradient cleared", "mul_backward",
        "std::fill(dO.data_ptr<float>(), dO.data_ptr<float>() + R * C, 0.0f);"),
    overwritten("operators", "labels changed", "cross_entropy", "labels.data_ptr<int64_t>()[0] = 0;"),
    overwritten("operators", "indices changed", "maxpool2d_backward",
        "index.data_ptr<int64_t>()[N * C * OH * OW - 1] ^= 1;"),
    overwritten("operators", "the gradient changed by the step", "sgd", "G.data_ptr<float>()[n - 1] = 0;"),
    overwritten("operators", "an input in place of a result", "relu",
        "std::copy(o, o + n, const_cast<float *>(x)); return X;"),
    attempt("operators", "float64", "relu", "return O.to(at::kDouble);", "wrong", "wrong_dtype"),
    attempt("operators", "another shape", "matmul", "return O.reshape({N, M});"),
    attempt("operators", "a step of another shape", "add", "return O.reshape({R * C});", "wrong", "wrong_shape"),
    attempt("operators", "no number", "matmul", "o[0] = NAN;"),
    attempt("operators", "infinite", "matmul_backward", "gb[0] = INFINITY;"),
    attempt("operators", "eight bits", "matmul", old="const float factor = a[i * K + k];",
        text="float factor = a[i * K + k]; int32_t bits; std::memcpy(&bits, &factor, 4); bits &= 0xffff0000;\n"
            "            std::memcpy(&factor, &bits, 4);"),
    first("operators", "the end of the process", "mse_backward", "std::exit(0);", "crash"),
    first("operators", "an exception of its own", "sgd", "throw 1;", "crash"),
    attempt("operators", "far outside", "relu_backward", "gx[1 << 28] = 1;", "crash"),
    attempt("operators", "a little outside", "add", "for (int e = 1; e < 64; e++) o[R * C + e] = 1;", "crash"),
    first("softmax", "by pointer", "safe", KEPT.format(at="XTensor.data_ptr<float>()", out="OTensor")),
    first("softmax", "some sizes alone", "online", "if (C > 1000) return OTensor;"),
    overwritten("softmax", "an input changed", "naive", "const_cast<float *>(X)[0] = 0;"),
    overwritten("softmax", "a maximum changed", "merge", "m1Tensor.data_ptr<float>()[R - 1] = 1;"),
    attempt("softmax", "sums exchanged afterwards", "merge", "std::swap_ranges(l, l + R, l2Tensor.data_ptr<float>());"),
    attempt("softmax", "float64", "naive", "return OTensor.to(at::kDouble);", "wrong", "wrong_dtype"),
    attempt("softmax", "no number in a masked place", "online", "O[0] = NAN;"),
    first("softmax", "the end of the process", "safe", "std::_Exit(0);", "crash"),
    attempt("softmax", "outside", "merge", "for (int e = 0; e < 64; e++) o[R * d + 1 + e] = 1;", "crash"),
)  # fmt: skip


def course(lab: str) -> tuple[Assignment, str]:
    place = labs.named(lab)
    assignment = load(labs.assignment_file(place, staff=True))
    master = labs.master(place, assignment.source).read_text(encoding="utf-8")
    return assignment, master.replace("#include <vector>\n", f"{HEADERS}#include <vector>\n", 1)


def judged(lab: str, made: Sequence[Mutation], folder: Path, timing: bool = False) -> tuple[PartResult, ...]:
    """Each in a function of its own, of one file."""
    assignment, master = course(lab)
    text, parts = KERNELS[lab].side_by_side(assignment, master, made)
    return results_alone(assignment, write(folder, text, assignment.source), parts, timing=timing).parts


@pytest.mark.parametrize("lab", KERNELS)
def test_attempts_gain_nothing(lab: str, tmp_path: Path) -> None:
    tried = [each for each in ATTEMPTS if each.lab == lab]
    results = judged(lab, [each.made for each in tried], tmp_path)
    unlike = [
        f"{each.made.name}: {result.verdict} {result.diagnosis}"
        for each, result in zip(tried, results, strict=True)
        if result.verdict not in each.ends.split("|")
        or (each.code and (result.diagnosis is None or result.diagnosis.code != each.code))
    ]
    assert not unlike, "\n".join(unlike)


@pytest.mark.parametrize(
    ("lab", "part", "out"),
    one_of_each([("softmax", "online", "OTensor"), ("operators", "matmul", "O")], lambda _: "kept"),
)
def test_no_timed_call_is_answered_from_one_before(lab: str, part: str, out: str, tmp_path: Path) -> None:
    """A result that is kept for its size is right wherever a content comes again: timed calls have new ones."""
    kept = first(lab, "by size", part, KEPT.format(at="nullptr", out=out))
    (result,) = judged(lab, [kept.made], tmp_path, timing=True)
    assert result.verdict == "wrong", result


@pytest.mark.parametrize(
    ("lab", "part", "text"),
    [
        ("operators", "matmul", "return at::matmul(A, B);"),
        ("operators", "conv2d_backward", "dX.add_(at::conv_transpose2d(dY, W));"),
        ("softmax", "safe", "return XTensor.softmax(1);"),
    ],
)
def test_torchs_own_work_is_refused(lab: str, part: str, text: str, tmp_path: Path) -> None:
    (result,) = judged(lab, [first(lab, "torch", part, text).made], tmp_path)
    assert result.verdict == "compile_error" and result.diagnosis is not None
    assert "torch's own work" in result.diagnosis.message


def test_a_hostile_forward_function_costs_its_sentence_alone(tmp_path: Path) -> None:
    """A diagnosis calls the student's own forward function. A broken one changes neither verdict nor code."""
    assignment, text = course("operators")
    assignment = replace(assignment, limits=replace(assignment.limits, call_s=2.0))
    broken = {
        "mul": ("for (volatile int idle = 0;; idle = 1) {}", "ga[at]"),
        "linear": ("std::exit(0);", "gb[o]"),
        "relu": ("std::fill(O.data_ptr<float>(), O.data_ptr<float>() + n, NAN); return O;", "gx[i]"),
        "matmul": ("return at::zeros({1}, at::kFloat);", "ga[i * K + k]"),
    }
    for name, (body, sum_of) in broken.items():
        text = operators.edited(text, first("operators", "broken", name, body).made)
        sign = (f"{sum_of} +=", f"{sum_of} -=")
        text = operators.edited(text, Mutation("subtracted", f"{name}_backward", (sign,)))
    chosen = [assignment.part(f"{name}_backward") for name in broken]
    for result in results_alone(assignment, write(tmp_path, text, assignment.source), chosen).parts:
        assert result.verdict == "wrong" and result.diagnosis is not None, result
        assert result.diagnosis.code == "gradient_negated", result
