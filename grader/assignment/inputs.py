"""The inputs of one call, as a record of its sizes and its input arrays.

The inputs of a case and the expected values are the same for every part and every submission of a class. Computing them
can cost as much as a kernel's call, so a process caches both for small cases. Each timed call gets new inputs, which
are not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grader.assignment.labs import Lab

if TYPE_CHECKING:
    from grader.core.arrays import Array

KEPT = 32
MOST_EXPECTED = 8
"""Maximum number of expected values that a `CaseInputs` caches: one for each oracle and choice of inputs."""
LARGEST_KEPT_ELEMENTS = 1 << 20
"""Maximum number of input elements of a cached case: 4 MiB in float32."""


class CaseInputs(dict[str, Any]):
    """Input arrays of one call by name, its sizes, and a cache of expected values. No caller changes the arrays."""

    def __init__(self, shape: Mapping[str, int], arrays: Mapping[str, Any]) -> None:
        super().__init__(arrays)
        self.shape = dict(shape)
        self._expected: dict[tuple[int, Collection[str] | None], tuple[Any, Any]] = {}

    def expected(self, oracle: Any, names: Collection[str] | None = None) -> Any:
        """Return an oracle's expected values. The oracle gets only the inputs `names` (None: all). Cached."""
        key = id(oracle), None if names is None else frozenset(names)
        if key not in self._expected:
            # A lab may make a new oracle for each submission: limit the number of cached values.
            if len(self._expected) == MOST_EXPECTED:
                self._expected.clear()
            # Keep the oracle: while it lives, no other object has its id.
            self._expected[key] = oracle, oracle.expected(self.only(names), self.shape)
        return self._expected[key][1]

    def only(self, names: Collection[str] | None) -> CaseInputs:
        """Return only the inputs `names`; all inputs for None."""
        if names is None:
            return self
        return CaseInputs(self.shape, {name: array for name, array in self.items() if name in names})

    def swapped(self, name: str, other: CaseInputs) -> CaseInputs:
        """Return a copy of these inputs with the array `name` taken from `other`."""
        return CaseInputs(self.shape, {**self, name: other[name]})

    def starting(self, name: str, numbers: Sequence[float]) -> CaseInputs | None:
        """Return a copy whose array `name` starts with `numbers`; None if this array is shorter or not float32."""
        array = self[name].copy()
        if array.dtype != "float32" or array.size < len(numbers):
            return None
        array.reshape(-1)[: len(numbers)] = numbers
        return CaseInputs(self.shape, {**self, name: array})

    def holds(self, name: str, value: Array) -> bool:
        """Return True if there is an input `name` that equals `value`."""
        return name in self and self[name].shape == value.shape and bool((self[name] == value).all())

    @property
    def elements(self) -> int:
        return sum(int(array.size) for array in self.values())


_kept: OrderedDict[tuple[object, ...], tuple[Lab, CaseInputs]] = OrderedDict()
"""Cached inputs, each with its lab. While the lab lives, no other object has its id, which is in the key."""


def drawn(lab: Lab, distribution: str, shape: Mapping[str, int], seed: int, *, keep: bool) -> CaseInputs:
    """Return inputs drawn from a distribution. `shape` holds all sizes. `keep`: cache the inputs if they are small."""
    key = (id(lab), distribution, seed, *sorted(shape.items()))
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key][1]
    made = CaseInputs(shape, lab.make_inputs(distribution, shape, seed))
    if keep and made.elements <= LARGEST_KEPT_ELEMENTS:
        _kept[key] = lab, made
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return made
