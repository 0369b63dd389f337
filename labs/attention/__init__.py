"""The kit's main assignment: four kernels that compute softmax(Q K^T) V, and two accessors of a 4-D tensor.

Q, K, V and O are (B, H, N, d): batches, heads, rows, columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from grader.assignment.labs import Lab, Ladder, OracleFacts, Reference, Step

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.explain.oracle import Oracle

_ATTENTION = (
    "ramp", "random", "onehot", "constant_rows", "permuted_keys", "rising", "dominant", "offset",
)  # fmt: skip
_ACCESSOR = ("indices", "some_indices")


class _Attention(Lab):
    #: Version of the input generator, recorded in results. Version 1 used torch, version 2 uses NumPy. Both draw the
    #: same random numbers. Values computed from these, such as rows scaled to a norm, may differ in their last bit.
    inputs_version = 2
    oracles: ClassVar = {
        "attention": OracleFacts(_ATTENTION),
        "read4d": OracleFacts(_ACCESSOR, columns="iiii"),
        "write4d": OracleFacts(_ACCESSOR, columns="iiiif"),
    }
    options: ClassVar = {
        "N": ("-N", "rows of Q, K and V (1024)"),
        "B": ("-B", "batches (1)"),
        "H": ("-H", "heads (4)"),
        "d": ("-d", "columns of Q, K and V (32)"),
        "Br": ("-br", "rows of a Q tile in part 4 (256)"),
        "Bc": ("-bc", "rows of a K and V tile in part 4 (256)"),
    }

    claim = "manual attention == pytorch attention"
    denial = "YOUR ATTENTION PRODUCED INCORRECT RESULTS"
    proof_sizes: ClassVar = {"N": 256}
    #: Sizes for the search for data races: more rows than threads, several heads, and tiles that do not divide N.
    watched_sizes: ClassVar = {"B": 2, "H": 2, "N": 29, "d": 6, "Br": 8, "Bc": 5}

    studies: ClassVar = {
        "sweep": (".studies.sweep", "time over the tile of part 2, the tiles of part 4, or N"),
        "cache": (".studies.cache", "cache-line traffic of the parts' loops, simulated"),
        "roofline": (".studies.roofline", "the parts and PyTorch on this machine's measured roofline"),
        "frontier": (".ladder", "your part 3 or 4 compared with this kit's best kernels"),
    }

    programs: ClassVar = ("studies/native/cachesim.cpp",)
    tests: ClassVar = ("4Daccess", "part0", "part1", "part2", "part3", "part4", "all")
    has_demo: ClassVar = True
    growth: ClassVar = ("N", (256, 512, 1024, 2048))

    def oracle(self, name: str) -> Oracle:
        from .oracle import ORACLES

        return ORACLES[name]

    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        from .cases import make_inputs

        return make_inputs(distribution, shape, seed)

    def reference(self) -> Reference:
        from module_ref_stub.library import KERNELS

        return KERNELS

    def steps(self) -> Sequence[Step]:
        return (
            Step("machine", "machine"),
            Step("sweep-part2", "sweep", "part2", (), ("--tile", "4,16,64", "-N", "256")),
            Step("cache", "cache"),
            Step("roofline", "roofline", "", (), ("-N", "256")),
            Step("memory", "memory", "", ("-N", "256,512,1024,2048"), ("-N", "128,256")),
            Step("scaling-part3", "sweep", "part3", ("-N", "128,256,512,1024,2048"), ("-N", "64,128,256")),
            Step(
                "threads-part3",
                "threads",
                "part3",
                ("--threads", "1,2,4,8"),
                ("--threads", "1,2,4", "-N", "256"),
            ),
            Step("race", "race", "part3"),
            Step("sweep-part4", "sweep", "part4", (), ("--br", "16,64", "--bc", "16,64", "-N", "256")),
        )

    def ladder(self) -> Ladder:
        from . import ladder

        return ladder


LAB = _Attention()
