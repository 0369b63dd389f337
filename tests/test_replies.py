"""Replies of runners are accepted only in the requested kind and size."""

import json
from dataclasses import replace
from typing import Any

import pytest
from conftest import refused

from grader.core.arrays import np
from grader.core.results import Diagnosis, Flag, PartResult, Score, SubmissionResult
from grader.report import result_json
from grader.runner import calls
from grader.runner.calls import MOST_TRACE, Call, Request
from grader.runner.frames import RunnerDied

REQUEST = Request("attention", [], [np.ones(2, np.float32)], (2, 3))
NO_SCORE = Score((), 0.0, 0, 0.0, 0.0, 0.0)
REPLY = {"status": "ok", "kind": 2, "dtype": 6, "shape": [2, 3]}


def understood(payload: bytearray | None = None, request: Request = REQUEST, **changed: Any) -> Call:
    return calls.understood({**REPLY, **changed}, payload or bytearray(32), request, 1.0, 1.0)


def test_a_reply_is_understood() -> None:
    call = understood(profile=[["aten::zeros", 1, 2.5, 3, 64, 64]], profiled_wall_s=0.5)
    assert (call.status, call.kind, call.dtype, call.shape) == ("ok", "a tensor", "float32", (2, 3))
    assert call.output.shape == (2, 3) and call.changed_inputs == (0,)
    assert (call.profile[0].name, call.profile[0].calls, call.profiled_wall_s) == ("aten::zeros", 3, 0.5)
    assert understood(dtype=99).dtype == "type 99"
    assert call.trace == "" and call.outside == () and understood(outside=[3, 7]).outside == (3, 7)
    assert understood(trace="lost").trace == "lost"


@pytest.mark.parametrize(("code", "size"), [(15, 2), (0, 1), (5, 2), (7, 8)])
def test_inputs_are_found_behind_an_output_of_any_type(code: int, size: int) -> None:
    """Inputs are found also after an output of a type that NumPy lacks (bfloat16), or of an odd number of bytes."""
    sent, known = [np.array([1.5, 2.5], np.float32), np.arange(3)], code != 15
    for spoilt in (False, True):
        payload = bytearray(5 * size) + b"".join(each.tobytes() for each in sent)
        payload[-1] ^= spoilt
        call = understood(payload, replace(REQUEST, inputs=sent), dtype=code, shape=[5])
        assert call.shape == (5,) and (call.output is not None) == known
        assert call.changed_inputs == ((1,) if spoilt else ())
        assert call.echoes[0].tolist() == [1.5, 2.5] and len(call.echoes) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": " 99 \n"}, {"dtype": "٩٩"}, {"dtype": 6.0}, {"dtype": True}, {"dtype": 10**400}, {"kind": "2"},
        {"shape": "23"}, {"shape": {"2": 3}}, {"shape": [2.0, 3]}, {"shape": [2, -3]}, {"shape": [1] * 9},
        {"profile": [["aten::zeros", "1", 2, 3, 4, 5]]}, {"profile": [["x", 1, 2, 3, 4, 5]] * 2000},
        {"profile": {"x": 1}}, {"profiled_wall_s": float("nan")}, {"shape": [float("inf")]},
        *({"outside": lines} for lines in (["7"], [-1], [1.5], [True], 7, [1] * 21, [[]], None)),
        *({"trace": trace} for trace in (7, ["a"], "\u20ac", "a" * (MOST_TRACE + 1))),
    ],
)  # fmt: skip
def test_numbers_are_numbers_before_they_are_anything_else(changed: dict[str, Any]) -> None:
    refused("", understood, **changed, of=RunnerDied)


TABLE = Request("read", [], [np.ones(2, np.float32), np.ones((3, 4))], (3,), op="table")
NUMBERS = {"kind": 1, "dtype": 7, "shape": [3]}
WRONG = [{"dtype": 15}, {"dtype": 6}, {"shape": [2]}, {"shape": [3, 1]}, {"withheld": True}, {"payload": 31}]


@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_a_table_has_its_numbers_and_its_tensor_or_is_none(changed: dict[str, Any]) -> None:
    """A reply of another type or size used to pass, to end the judge, or to take gigabytes."""
    changed = {**NUMBERS, **changed}
    assert understood(bytearray(32), TABLE, **NUMBERS).output.tolist() == [0.0] * 3
    refused("", understood, bytearray(changed.pop("payload", 32)), TABLE, **changed, of=RunnerDied)


def test_inputs_that_were_asked_for_come_back() -> None:
    assert len(calls.understood(REPLY, bytearray(32), REQUEST, 1.0, 1.0, echo=True).echoes) == 1
    refused("", calls.understood, REPLY, bytearray(31), REQUEST, 1.0, 1.0, echo=True, of=RunnerDied)


def test_words_are_texts_and_bounded() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    assert understood(status="exception", message=nested).message == ""
    assert understood(status="exception", message="\x1b" * 5000).message == "?" * 1000
    assert calls.offered({"functions": [["f", "T(T)"], ["g" * 1000, "T"]]}) == {"f": "T(T)"}
    for nonsense in (None, {"f": "T"}, [["f"]], [["f", nested]], ["ab"], [["f", "T"]] * 5000):
        refused("", calls.offered, {"functions": nonsense}, of=RunnerDied)


def result(text: str) -> SubmissionResult:
    part = PartResult("p", "t", "crash", 1.0, diagnosis=Diagnosis("x", text), output=text)
    return SubmissionResult("a", "b", "c", {}, {}, {}, (part,) * 6, flags=(Flag("code", text, "review"),))


def test_a_result_file_has_a_largest_size_and_says_what_it_left_out() -> None:
    honest = result("o" * 60_000)
    assert result_json.from_dict(result_json.to_dict(honest, NO_SCORE)) == honest
    for text in ("é" * 500_000, "\x00" * 300_000, "o" * 5_000_000):
        values = result_json.to_dict(result(text), NO_SCORE)
        assert len(json.dumps(values, indent=2)) <= result_json.LARGEST_BYTES
        kept, _, left = values["parts"][0]["output"].partition("... ")
        assert len(kept) > 50 and left == f"{len(text) - len(kept)} more characters"
        assert result_json.from_dict(values).parts[0].output == f"{kept}... {left}"
