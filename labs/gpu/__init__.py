"""Kernels for a GPU in Triton and CUDA: GELU, softmax, a tiled product, flash attention forward and backward.

x and y are (R, C); in the softmax of long rows they are (lines, width). In c = a b, a is (rows, inner) and b is (inner,
columns). In attention q, O and their gradients are (B, N, d), k and v are (B, M, d). L, the log-sum-exp of each query's
scores, is (B, N). B is the total number of heads in all batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from grader.assignment.labs import Lab, OracleFacts, Reference, Step

if TYPE_CHECKING:
    from types import ModuleType

    from grader.core.arrays import Array
    from grader.explain.oracle import Oracle

_LOGITS = ("random", "wide", "large", "far", "masked", "increasing")
_HEADS = ("heads", "dominant", "climbing", "falling", "equal", "huge", "below")


#: Names of attention's oracles.
ATTENTION = ("flash_forward", "flash_backward")


class Gpu(Lab):
    oracles: ClassVar = {
        "gelu": OracleFacts(("random", "wide")),
        "softmax": OracleFacts(_LOGITS),
        "softmax_long": OracleFacts(tuple(f"long_{name}" for name in _LOGITS)),
        "matmul": OracleFacts(("matrices", "positive")),
        "flash_forward": OracleFacts(_HEADS),
        "flash_backward": OracleFacts(tuple(f"{name}_gradient" for name in _HEADS)),
    }
    options: ClassVar = {
        "R": ("-R", "rows of x in gelu and softmax"),
        "C": ("-C", "columns of x in gelu and softmax"),
        "lines": ("--lines", "rows of x in softmax_long"),
        "width": ("--width", "columns of x in softmax_long"),
        "rows": ("--rows", "rows of a in matmul"),
        "inner": ("--inner", "columns of a in matmul"),
        "columns": ("--columns", "columns of b in matmul"),
        "B": ("-B", "heads of all batches in attention"),
        "N": ("-N", "queries of a head"),
        "M": ("-M", "keys of a head"),
        "d": ("-d", "length of a query"),
        "causal": ("--causal", "1: causal mask, so query i uses only the keys 0 ... i; 0: no mask"),
        "precision": ("--precision", "type of the inputs: 24 float32, 11 float16, 8 bfloat16"),
        "layout": (
            "--layout",
            "order of the inputs in memory: 0 contiguous, 1 by columns or heads, 2 with gaps",
        ),
    }
    claim = "your result == the float64 result"
    denial = "YOUR KERNEL PRODUCED INCORRECT RESULTS"
    #: Sizes at which a release checks the solution's speed. They fit into the memory of a small GPU and take seconds.
    proof_sizes: ClassVar = {
        "R": 2048, "C": 2048, "lines": 64, "width": 65536, "rows": 1024, "inner": 1024, "columns": 1024,
        "B": 16, "N": 1024, "M": 1024, "d": 64,
    }  # fmt: skip
    #: Files that students do not get. `known` has the kernels with known verdicts, which other labs keep in kernels.py.
    staff: ClassVar = ("known.py", "tuned.py")
    studies: ClassVar = {
        "profile": (".studies.profile", "kernels that five versions of GELU launch, with traces"),
        "ladder": (".studies.ladder", "your kernel's time beside the naive kernel's and the GPU's limit"),
        "roofline": (".studies.roofline", "your kernels' speed compared with this GPU's limits"),
        "waves": (".studies.waves", "throughput of your product over its size, and where it drops"),
        "attention-memory": (".studies.memory", "memory of naive and of flash attention over N"),
    }
    growth: ClassVar = ("N", (512, 1024, 2048, 4096))

    def oracle(self, name: str) -> Oracle:
        from .oracle import ORACLES

        return ORACLES[name]

    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        from .inputs import make_inputs

        return make_inputs(distribution, shape, seed)

    def reference(self) -> Reference:
        from grader.backends.gpu.kernelreference import KernelReference  # type: ignore[import-not-found]

        found: Reference = KernelReference(self.folder)
        return found

    def steps(self) -> Sequence[Step]:
        return (
            Step("profile", "profile", "gelu"),
            Step("ladder", "ladder", "flash_forward"),
            Step("roofline", "roofline"),
            Step("waves", "waves", "", (), ("--sizes", "1024,2048,3072,4096")),
            Step("attention-memory", "attention-memory", "", (), ("--lengths", "512,1024,2048")),
        )

    def kernels(self) -> ModuleType | None:
        # In this lab `kernels.py` is the students' file, so the kernels with known verdicts are in `known`.
        return self._of_staff("known")


LAB = Gpu()
