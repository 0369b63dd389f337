"""Interface of a lab's oracle: expected values in float64, and explanations of wrong ones.

Only `expected` must be written. The rest makes verdicts quicker (`sample`), cheats and hangs easier to see (`flops`)
and diagnoses better (all else).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grader.core.arrays import Array
from grader.core.draws import Draws
from grader.core.results import Diagnosis
from grader.explain import relations as simple
from grader.explain.comparison import Comparison, Expected
from grader.explain.deviation import Axis, Deviation
from grader.explain.suspect import Suspect, matching_suspects

Shape = Mapping[str, int]
Inputs = Mapping[str, Array]
Answers = Mapping[str, Any]
Ask = Callable[[Shape, Inputs], "Array | None"]


@dataclass(frozen=True)
class Dissected:
    """Description of a kernel's right and wrong steps, and the clues for its lines."""

    words: str
    clues: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inquiry:
    """Calls of a submission's other functions, to explain a wrong result (`grader.judge.correctness`).

    For example, finite differences of a forward function check its derivative. `calls` are parts, by id, with the
    inputs, by name, of their functions, at the sizes of the case to explain. `conclude` receives the outputs, by name,
    in the same order: types and shapes are right, values may be anything. It returns a sentence for the student, or "".
    """

    calls: Sequence[tuple[str, Mapping[str, Any]]]
    conclude: Callable[[Sequence[Answers]], str]


class Oracle(ABC):
    """Expected outputs of one function of a lab, and explanations of wrong ones."""

    axes: tuple[Axis, ...] = ()
    """Names of the output's axes, one for each; () for the usual names."""
    tiles: tuple[str, ...] = ()
    """Sizes of the assignment that are lengths of tiles."""
    cuts: Mapping[str, tuple[str, ...]] = {}
    """Sizes and macros by which kernels usually cut an axis into blocks, by the axis's letter. Used for pictures."""
    output = "the output"
    """Name of the output in messages."""
    relations: tuple[simple.Relation, ...] = (
        *(simple.not_written, simple.partly_not_written, simple.transposed, simple.moved),
        simple.constant_factor,
    )
    """Relations that are tried first, in this order: see `grader.explain.relations`."""
    weak_relations: tuple[simple.Relation, ...] = (simple.imprecise,)
    """Relations that are reported only if no suspect explains the output: they are very general."""
    outside_codes: frozenset[str] = frozenset()
    """Codes of suspects that read beside a tensor. The values that they read change from call to call without a race.
    """
    explains_not_finite = False
    """True if `suspects` also predicts NaN and infinities; it is then called for outputs that hold some."""
    mistakes: tuple[Suspect, ...] = ()
    """Suspects whose `predict` takes a `suspect.Situation` and gives the whole output, simpler ones first."""
    probes: Mapping[str, tuple[int, ...]] = {}
    """Sizes that may be changed one at a time to find out on which a wrong kernel is right, by name, with values for
    each; {} where sizes depend on one another."""
    trivial: Mapping[str, int] = {}
    """Sizes at which a wrong kernel is right by chance, by name."""
    clues: Mapping[str, tuple[str, ...]] = {}
    """Patterns to look for in a student's function, by diagnosis code (`grader.explain.clues`)."""
    sized_codes: frozenset[str] = frozenset()
    """Codes of causes that depend on sizes: the diagnosis also names the sizes that are right."""
    dissected_codes: frozenset[str] = frozenset()
    """Codes of causes that `dissect` may refine."""
    race_advice = (
        "Do threads share a variable or a row of the workspace (declare it inside the parallel loop)? Is memory read "
        "before it is written, or does something stay behind from the call before (a static or global variable)?"
    )

    @abstractmethod
    def expected(self, inputs: Inputs, shape: Shape) -> Expected | Mapping[str, Expected]:
        """Return the whole output in float64, with the tolerance of the assignment's precision.

        A part with several `outputs` gets a mapping by name; the returned value then has the name "".
        """

    def sample(
        self, inputs: Inputs, shape: Shape, draws: Draws, rows: int
    ) -> tuple[Any, Expected | Mapping[str, Expected]]:
        """Return the index of about `rows` random rows of the output, chosen by `draws`, and the values expected."""
        return (), self.expected(inputs, shape)

    def flops(self, shape: Shape) -> int:
        """Operations that no way of computing it exactly can leave out; 0 where nothing is known."""
        return 0

    def diagnose(
        self, inputs: Inputs, shape: Shape, expected: Expected, actual: Array, comparison: Comparison
    ) -> Diagnosis | None:
        """Return a diagnosis in place of the usual one; None for the usual one."""
        return None

    def inquiry(
        self, inputs: Inputs, shape: Shape, expected: Mapping[str, Expected], actual: Mapping[str, Array]
    ) -> Inquiry | None:
        """Return further calls of the submission's functions that help to explain the wrong outputs `actual`; None if
        none would. `expected` and `actual` map the same names.
        """
        return None

    def dissect(self, ask: Ask, sizes: Shape) -> Dissected | None:
        """Explain a kernel by its answers to inputs that isolate one of its steps.

        `ask` returns the kernel's float64 output for sizes (the others are the run's) and inputs, None if it gives
        none. The kernel is wrong at `sizes`.
        """
        return None

    def suspects(self, seen: Deviation, likely: frozenset[str]) -> list[Suspect]:
        """Return all suspects that explain the whole output, else those that explain its wrong elements; simpler ones
        first.

        `likely` names suspects that fit other outputs of the kernel. If some of them explain the whole output, the
        others need not be tried.
        """
        return matching_suspects(self.mistakes, seen, likely)

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        """Return code and words for an output with NaN or infinity; `amount` says where, in words."""
        return "not_finite", (
            f"NaN or infinity in {amount}. Is something divided by a sum that is still 0, or is memory read that was "
            "never written?"
        )
