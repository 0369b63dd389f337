"""Result of comparing a class: pairs of submissions, and what is needed to show the regions that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.staff.similarity.passages import SharedRegion, regions
from grader.staff.similarity.tokens import Source, tokens


@dataclass(frozen=True)
class Pair:
    """Two submissions, `left` < `right`. `likeness` is 0 to 1, `shared` the weight of common fingerprints. `function`
    is set if this one function is more alike than the files are."""

    left: str
    right: str
    likeness: float
    shared: float
    function: str = ""


@dataclass(frozen=True)
class Similarity:
    """All pairs with anything in common, the most alike first, and what is needed to show their regions.

    `groups` are three or more that are linked by likenesses of at least ALIKE, the largest first. `starters` have less
    than LEAST_OWN_TOKENS beside the starter, and `bare` weigh less than LEAST_WEIGHT. Of `unreadable` few tokens stand
    in many bytes, so that equal or different tokens say nothing. Of these three no two are a pair. Of `cut` only the
    beginning was compared.
    """

    pairs: tuple[Pair, ...]
    sources: Mapping[str, Source]
    given: frozenset[str]
    starter: frozenset[int]
    """Hashes of all runs of the starter, which belong to no region."""
    groups: tuple[tuple[str, ...], ...] = ()
    starters: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def regions(self, pair: Pair) -> tuple[SharedRegion, ...]:
        """The regions that the two texts share, in the order of the left one; none overlaps another on either side."""
        left, right = (tokens(self.sources[name], self.given) for name in (pair.left, pair.right))
        return regions(left, right, self.starter)
