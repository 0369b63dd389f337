"""Result of comparing a class: pairs of submissions, and what is needed to show the regions that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.staff.similarity.passages import SharedRegion, regions
from grader.staff.similarity.tokens import tokens


@dataclass(frozen=True)
class Pair:
    """Two submissions, `left` < `right`. `likeness` is 0 to 1; `shared` is the weight of common fingerprints."""

    left: str
    right: str
    likeness: float
    shared: float


@dataclass(frozen=True)
class Similarity:
    """All pairs with anything in common, the most alike first, and what is needed to show their regions.

    `starters` have less than LEAST_OWN_TOKENS beside the starter. `bare` have more, but weigh less than LEAST_WEIGHT:
    what they have is what half of the class has. Of `unreadable` few tokens stand in many bytes, so that equal or
    different tokens say nothing. Of these three no two are a pair. Of `cut` only the beginning was compared.
    """

    pairs: tuple[Pair, ...]
    texts: Mapping[str, str]
    given: frozenset[str]
    starter: frozenset[int]
    """Hashes of all runs of the starter, which belong to no region."""
    common: frozenset[int]
    """Fingerprints that are common in the class: no region is found by them alone."""
    starters: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def regions(self, pair: Pair) -> tuple[SharedRegion, ...]:
        """The regions that the two texts share, in the order of the left one; none overlaps another on either side."""
        left, right = (tokens(self.texts[name], self.given) for name in (pair.left, pair.right))
        return regions(left, right, self.starter, self.common)
