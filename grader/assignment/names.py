"""What an assignment may call by name, for its reader, which has to answer before NumPy is imported."""

from __future__ import annotations

_ATTENTION = (
    "ramp", "random", "onehot", "constant_rows", "permuted_keys", "rising", "dominant", "offset",
)  # fmt: skip
_ACCESSOR = ("indices", "some_indices")

#: Each oracle of `grader.judge.oracle` with the distributions of `grader.judge.cases` that give it what it needs.
DISTRIBUTIONS_OF = {"attention": _ATTENTION, "read4d": _ACCESSOR, "write4d": _ACCESSOR}
DISTRIBUTIONS = tuple(dict.fromkeys(name for names in DISTRIBUTIONS_OF.values() for name in names))

#: How inputs are made from distribution, shape and seed: with one version equal seeds give equal bits on any machine.
#: Version 1 was torch's arithmetic. Version 2 draws the same numbers; what is computed from them (rows brought to a
#: norm, heads rescaled, see `grader.judge.cases`) may differ in its last bit.
INPUTS_VERSION = 2


def timed_distribution(oracle: str) -> str:
    """What the inputs of timed calls are like: "random" where the oracle takes it, else the first that it takes."""
    taken = DISTRIBUTIONS_OF[oracle]
    return "random" if "random" in taken else taken[0]
