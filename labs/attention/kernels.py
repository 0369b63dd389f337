"""Test kernels with known verdicts. Each is the course's solution (the master) with one named change.

Kernels of WRONG have a bug that students often make, or that the check of the published assignment does not find. SLOW
is right but must be too slow. `tests/wrong/` has many more wrong kernels.
"""

from __future__ import annotations

from grader.assignment.mutations import Mutation

FUNCTIONS = {
    "4Dread": "fourDimRead",
    "4Dwrite": "fourDimWrite",
    "part1": "myNaiveAttention",
    "part2": "myUnfusedAttentionBlocked",
    "part3": "myFusedAttention",
    "part4": "myFlashAttention",
}
#: Sizes small enough for a self-test in two minutes.
SHAPE = {"N": 256, "Br": 64, "Bc": 64}

_OFFSET = "((x * sizeX + y) * sizeY + z) * sizeZ + b"
_HEADS = "for (int h = 0; h < H; h++) {"
_RETURN = "return fillTensor(OTensor, O);"
_COPY_HEAD_0 = """for (int b = 0; b < B; b++)
        for (int h = 1; h < H; h++)
            for (int e = 0; e < N * d; e++) O[(b * H + h) * N * d + e] = O[b * H * N * d + e];
    """


def _in_half_precision() -> tuple[tuple[str, str], ...]:
    """Return edits (old, new) that round Q, K and V to the 11 significant bits of a float16, by Dekker's splitting."""
    given = [f"std::vector<float> {t} = formatTensor({t}Tensor);" for t in "QKV"]
    return tuple(
        (line, f"{line}\n    for (float &x : {t}) {{ volatile float c = x * 8193.0f; x = c - (c - x); }}")
        for t, line in zip("QKV", given, strict=True)
    )


WRONG = (
    Mutation("reads with two sizes swapped", "4Dread", ((_OFFSET, _OFFSET.replace("sizeX + y", "sizeZ + y")),)),
    Mutation("writes something else, too", "4Dwrite", (("    // END", "    tensor[0] = val;\n    // END"),)),
    Mutation(
        "one head copied",
        "part1",
        ((_HEADS, "for (int h = 0; h < 1; h++) {"), (_RETURN, _COPY_HEAD_0 + _RETURN)),
    ),
    Mutation("1 + x for exp(x)", "part1", (("std::exp(", "1.0f + ("),)),
    Mutation("all keys weighted alike", "part1", (("std::exp(", "std::exp(0 * "),)),
    Mutation(
        "whole tiles only", "part2", (("i0 = 0; i0 < N", "i0 = 0; i0 + T <= N", 2),)
    ),
    Mutation("half precision", "part2", _in_half_precision()),
    Mutation("not divided by the sum", "part2", (("/ rowSum", ""),)),
    Mutation("threads share a row", "part3", (("int row = omp_get_thread_num();", "int row = 0;"),)),
    Mutation("wrong by a thousandth", "part3", (("/ rowSum", "/ rowSum * 1.001f"),)),
    Mutation("nothing written", "part3", body=""),
    Mutation("old sums kept for the next head", "part4", (("std::fill(L.begin(), L.end(), 0.0f);", ""),)),
    Mutation("earlier blocks not rescaled", "part4", (("value = Li[i] * ", "value = "),)),
    Mutation("last block of keys left out", "part4", (("j0 = 0; j0 < N", "j0 = 0; j0 + Bc <= N"),)),
)  # fmt: skip

#: Right, and clearly too slow: it begins with an idle loop of 100 N^2 additions.
SLOW = Mutation(
    "twice the work",
    "part1",
    (
        (
            "    // BEGIN SOLUTION",
            "    // BEGIN SOLUTION\n    volatile float idle = 0;\n"
            "    for (long e = 0; e < 100L * N * N; e++) idle = idle + 1;",
        ),
    ),
)
