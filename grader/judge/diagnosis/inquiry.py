"""Questions of an oracle to a submission's other functions, to explain a wrong result (`grader.judge.correctness`).

How a function changes with its inputs says what its derivative should be, an inverse undoes it: another function of the
same file may tell why one is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answers = Mapping[str, Any]


@dataclass(frozen=True)
class Inquiry:
    """`calls` are parts, by id, with the inputs, by name, on which their functions are called, at the sizes of the case
    that is explained. `told` is given their answers in this order, each by the output's name, of the right types and
    shapes but of any values, and makes a sentence for the student of them, or ""."""

    calls: Sequence[tuple[str, Mapping[str, Any]]]
    told: Callable[[Sequence[Answers]], str]
