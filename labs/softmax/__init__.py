"""The softmax of each row of a matrix in four parts: naive, safe, online, and the merge of two partial results.

X and O are (R, C): rows, columns. A partial result is a maximum m (R), a sum l (R) and a weighted mean o (R, d).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from grader.assignment.labs import Lab, OracleFacts, Reference, Step

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.explain.oracle import Oracle

#: _SMALL: distributions of X whose exp() is finite in float32, as `naive` needs. _ANY: all distributions of X.
_SMALL = ("random", "equal", "dominant", "masked")
_ANY = (*_SMALL, "masked_far", "offset", "large", "increasing", "decreasing", "tail", "tail_last")


class _Softmax(Lab):
    oracles: ClassVar = {
        "naive": OracleFacts(_SMALL),
        "safe": OracleFacts(_ANY),
        "online": OracleFacts(_ANY),
        "merge": OracleFacts(("partials", "far", "empty", "same_maximum")),
    }
    options: ClassVar = {
        "R": ("-R", "rows (1024)"),
        "C": ("-C", "columns of X (2048)"),
        "d": ("-d", "columns of a partial result's o (256)"),
    }
    claim = "your result == the float64 result"
    denial = "YOUR SOFTMAX PRODUCED INCORRECT RESULTS"
    proof_sizes: ClassVar = {"R": 256, "C": 1024}
    #: None of these sizes is a multiple of another, so that a kernel that swaps two sizes gives wrong results.
    watched_sizes: ClassVar = {"R": 13, "C": 29, "d": 6}

    studies: ClassVar = {
        "traffic": (".studies.traffic", "loads, stores and cache lines of the parts' loops, simulated"),
        "accuracy": (".studies.accuracy", "logits at which your parts overflow, and their errors"),
    }
    programs: ClassVar = ("studies/native/cachesim.cpp",)
    growth: ClassVar = ("C", (512, 1024, 2048, 4096))

    def oracle(self, name: str) -> Oracle:
        from .oracle import ORACLES

        return ORACLES[name]

    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        from .inputs import make_inputs

        return make_inputs(distribution, shape, seed)

    def reference(self) -> Reference:
        from grader.backends.torch.labreference import SourceReference

        return SourceReference(self.folder)

    def steps(self) -> Sequence[Step]:
        return (
            Step("machine", "machine"),
            Step("accuracy", "accuracy", "", (), ("--columns", "16,1024,65536")),
            Step("traffic", "traffic"),
            Step("memory", "memory", "", (), ("-C", "256,512")),
        )


LAB = _Softmax()
