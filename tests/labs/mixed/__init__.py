"""A lab for tests that differs from attention. The staff's solution, mixed.cpp, is also the reference.

Inputs are matrices (R, C). Outputs are ints or floats with one to three axes, or in place. The size `pad` may be 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from grader.assignment.labs import Lab, OracleFacts

if TYPE_CHECKING:
    from grader.assignment.labs import Reference
    from grader.core.arrays import Array
    from grader.explain.oracle import Oracle


class _Mixed(Lab):
    oracles: ClassVar = {
        name: OracleFacts(("random", "steps")) for name in ("softmax", "moments", "scale", "outer", "counts")
    }

    def oracle(self, name: str) -> Oracle:
        from .oracle import ORACLES

        return ORACLES[name]

    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        from .oracle import make_inputs

        return make_inputs(distribution, shape, seed)

    def reference(self) -> Reference:
        from grader.backends.torch.labreference import SourceReference

        return SourceReference(self.folder, "mixed.cpp")


LAB = _Mixed()
