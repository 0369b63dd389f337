"""Flash attention as in CS336's assignment: in PyTorch and in Triton, forward and backward.

q, O and their gradients are (B, N, d), k and v are (B, M, d), L is (B, N). B is the total number of heads in all
batches. This lab uses the oracles, suspects, inputs and reference of the lab `gpu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from labs.gpu import ATTENTION, Gpu

if TYPE_CHECKING:
    from types import ModuleType

    from grader.assignment.labs import Reference


class _Cs336(Gpu):
    oracles: ClassVar = {name: Gpu.oracles[name] for name in ATTENTION}
    options: ClassVar = {name: Gpu.options[name] for name in ("B", "N", "M", "d", "causal", "precision")}
    proof_sizes: ClassVar = {"B": 4, "N": 1024, "M": 1024, "d": 64}
    staff: ClassVar = ("known.py",)
    studies: ClassVar = {}

    def reference(self) -> Reference:
        from grader.backends.gpu.kernelreference import KernelReference  # type: ignore[import-not-found]

        found: Reference = KernelReference(self.folder.parent / "gpu")
        return found

    def steps(self) -> tuple[()]:
        return ()

    def kernels(self) -> ModuleType | None:
        return self._of_staff("known")


LAB = _Cs336()
