"""Interface of a lab's oracle: expected values in float64, and explanations of wrong outputs.

Each lab must write `expected`; the rest is optional. `sample` makes verdicts faster, `flops` reveals times that are too
short to be true, and all other members improve diagnoses.
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
    """Finding about the steps of a kernel's computation. `words` name right and wrong steps. `clues` are keywords for
    lines of the kernel to show (see `grader.explain.clues`)."""

    words: str
    clues: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inquiry:
    """Further calls of a submission's functions that help to explain a wrong result (`grader.judge.correctness`).

    For example, finite differences of a forward function check its derivative. `calls` lists pairs: a part's id, and
    the inputs of its function by name, at the sizes of the case to explain. `conclude` receives the outputs of these
    calls by name, in the same order, and returns a sentence for the student, or "". The outputs have the right types
    and shapes, but may have wrong values.
    """

    calls: Sequence[tuple[str, Mapping[str, Any]]]
    conclude: Callable[[Sequence[Answers]], str]


class Oracle(ABC):
    """Expected outputs of one function of a lab, and explanations of wrong outputs."""

    axes: tuple[Axis, ...] = ()
    """Names of the output's axes; () for the usual names."""
    tiles: tuple[str, ...] = ()
    """Names of the assignment's sizes that are lengths of tiles."""
    cuts: Mapping[str, tuple[str, ...]] = {}
    """Maps an axis's letter to names of sizes and macros that are usual block lengths. Pictures show the blocks."""
    output = "the output"
    """Name of the output in messages."""
    overflowing = ""
    """Distribution of inputs whose exp() overflows in kernels that subtract no maximum; "" without such inputs."""
    relations: tuple[simple.Relation, ...] = (
        *(simple.not_written, simple.partly_not_written, simple.transposed, simple.moved),
        simple.constant_factor,
    )
    """Relations (`grader.explain.relations`) that are tried before the suspects (known mistakes), in this order."""
    weak_relations: tuple[simple.Relation, ...] = (simple.imprecise,)
    """Relations so general that they are tried only if no suspect explains the output."""
    outside_codes: frozenset[str] = frozenset()
    """Codes of suspects that read memory outside of a tensor, whose values may change from call to call."""
    explains_not_finite = False
    """True if suspects also predict NaN and infinity. Only then are they tried on outputs that hold such values."""
    refutes = False
    """True if `suspects`, called for a right output, returns the `likely` suspects that this output refutes."""
    mistakes: tuple[Suspect, ...] = ()
    """Suspects whose `predict` takes a `suspect.Situation` and returns the whole output, simpler ones first."""
    probes: Mapping[str, tuple[int, ...]] = {}
    """Values to try for each size, by its name, to find the sizes at which a wrong kernel is right. One size at a time
    is changed; {} if sizes depend on one another."""
    trivial: Mapping[str, int] = {}
    """For some sizes, by name, the value at which even a wrong kernel is often right."""
    clues: Mapping[str, tuple[str, ...]] = {}
    """Clues to lines of a student's function (`grader.explain.clues`), by diagnosis code."""
    sized_codes: frozenset[str] = frozenset()
    """Codes of causes that depend on sizes: their messages also name the sizes for which the kernel is right."""
    dissected_codes: frozenset[str] = frozenset()
    """Codes of causes that `dissect` may refine."""
    race_advice = (
        "Do threads share a variable or a row of the workspace (declare it inside the parallel loop)? Is memory read "
        "before it is written, or does a static or global variable keep a value from the call before?"
    )
    unsteady_advice = (
        "Only one thread works here, so it is not a race. The function reads memory that was never written or lies "
        "outside of an array, or a static or global variable keeps a value from the call before."
    )
    """Causes of results that change from call to call, for a part without threads."""
    keeping = "a static or global variable keeps a value from call to call"
    """The cause if the first call of a process is right and the same call again is wrong."""

    @abstractmethod
    def expected(self, inputs: Inputs, shape: Shape) -> Expected | Mapping[str, Expected]:
        """Return the whole expected output in float64, with its tolerance.

        For a part with several outputs return a mapping by name. A returned value has the name "".
        """

    def sample(
        self, inputs: Inputs, shape: Shape, draws: Draws, rows: int
    ) -> tuple[Any, Expected | Mapping[str, Expected]]:
        """Return (NumPy index of about `rows` random rows of the output, values expected at this index).

        `draws` chooses the rows. By default the index selects the whole output.
        """
        return (), self.expected(inputs, shape)

    def flops(self, shape: Shape) -> int:
        """Return the least number of operations that the usual computation needs; 0 if it is unknown."""
        return 0

    def diagnose(
        self, inputs: Inputs, shape: Shape, expected: Expected, actual: Array, comparison: Comparison
    ) -> Diagnosis | None:
        """Return a diagnosis that replaces the usual one; None to keep the usual one."""
        return None

    def inquiry(
        self, inputs: Inputs, shape: Shape, expected: Mapping[str, Expected], actual: Mapping[str, Array]
    ) -> Inquiry | None:
        """Return further calls that help to explain the wrong outputs `actual`, or None.

        `expected` and `actual` hold the outputs by name.
        """
        return None

    def dissect(self, ask: Ask, sizes: Shape) -> Dissected | None:
        """Return the wrong step of a kernel, found by calls with inputs that isolate one step; None if it is not found.

        The kernel is wrong at `sizes`. `ask(sizes, inputs)` calls it and returns its output in float64, None without
        an output. Sizes that are not given keep their values.
        """
        return None

    def suspects(self, seen: Deviation, likely: frozenset[str]) -> list[Suspect]:
        """Return all suspects that explain the whole output; if none does, those that explain its wrong elements.

        Simpler suspects come first. `likely` names suspects that fit other outputs of the kernel. They are tried first.
        If one of them explains the whole output, an oracle may skip the rest.
        """
        return matching_suspects(self.mistakes, seen, likely)

    def never_written(self, seen: Deviation) -> simple.Found | None:
        """Return code and message if the inputs explain which elements were never written, else None."""
        return None

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        """Return (code, words) for an output with NaN or infinity; `amount` says how many elements are affected."""
        return "not_finite", f"NaN or infinity in {amount}."
