"""Fingerprints of texts as tokens, and the passages that two texts have in common. Linear in the texts' length.

Hashes of all runs of GRAM tokens are thinned out by winnowing (Schleimer, Wilkerson and Aiken, "Winnowing: local
algorithms for document fingerprinting", SIGMOD 2003): of each WINDOW consecutive hashes the smallest is kept. So any
run of GRAM + WINDOW - 1 equal tokens in two texts leaves a common fingerprint, at any position.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from grader.staff.similarity.tokens import Source, Tokens, tokens

GRAM, WINDOW = 16, 6
LEAST_REGION = 12
"""Tokens of the shortest region that is shown."""
MOST_PLACES = 8
"""Places of one fingerprint in each text at which regions begin to be looked for: a text may repeat itself."""
MOST_STEPS = 32
"""Comparisons of tokens, for each token of both texts, after which the search for further regions stops."""

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class SharedRegion:
    """A run of equal tokens: characters `left[0]` to `left[1]` of one text, the same of the other."""

    left: tuple[int, int]
    right: tuple[int, int]
    tokens: int


@lru_cache(1 << 16)
def _number(code: str) -> int:
    return zlib.crc32(code.encode("utf-8", "surrogatepass")) + 1


def grams(codes: Iterable[str], size: int = GRAM) -> list[int]:
    """Return a 64-bit hash of each run of `size` codes, by position; empty for shorter sequences."""
    numbers = [_number(code) for code in codes]
    oldest = pow(_BASE, size, 1 << 64)
    value, hashes = 0, []
    for at, number in enumerate(numbers):
        value = value * _BASE + number
        if at >= size:
            value -= numbers[at - size] * oldest
        value &= _MASK
        if at >= size - 1:
            # The low bits of a polynomial hash are poor: fold the high ones in before hashes are compared.
            hashes.append(((value ^ (value >> 31)) * _BASE) & _MASK)
    return hashes


def winnow(hashes: list[int], window: int = WINDOW) -> dict[int, list[int]]:
    """Return the smallest hash of each window: {hash: its chosen positions}. Empty without hashes.

    Among equal hashes, the chosen one is kept until the window has left it, so few of a text's repetitions are kept.
    """
    chosen: dict[int, list[int]] = defaultdict(list)
    last = -1
    for end in range(min(window, len(hashes)), len(hashes) + 1) if hashes else ():
        start = max(0, end - window)
        if last < start:
            smallest = min(hashes[start:end])
            last = end - 1 - hashes[start:end][::-1].index(smallest)
        elif hashes[end - 1] < hashes[last]:
            last = end - 1
        else:
            continue
        chosen[hashes[last]].append(last)
    return dict(chosen)


@dataclass(frozen=True)
class Prints:
    """Fingerprints of one source without the starter's: normalised ones in `whole`, those with names in `named`, and
    both kinds of each function by its name. `own` is the number of tokens outside of the starter's runs."""

    whole: frozenset[int]
    named: frozenset[int]
    functions: tuple[tuple[str, frozenset[int]], ...]
    own: int


def prints(found: Tokens, spans: Mapping[str, list[tuple[int, int]]], starter: frozenset[int]) -> Prints:
    """Return the fingerprints of a text; `spans` are the places of its functions, `starter` the starter's runs."""
    chosen = [
        {value: places for value, places in winnow(grams(codes)).items() if value not in starter}
        for codes in (found.codes, found.words)
    ]
    placed = sorted((start, end, name) for name, each in spans.items() for start, end in each)
    starts, of_function = [start for start, _, _ in placed], [set[int]() for _ in placed]
    for values in chosen:
        for value, places in values.items():
            for place in places:
                at = bisect_right(starts, found.starts[place]) - 1
                if at >= 0 and found.starts[place] < placed[at][1]:
                    of_function[at].add(value)
    functions = tuple((name, frozenset(own)) for (_, _, name), own in zip(placed, of_function, strict=True))
    return Prints(frozenset(chosen[0]), frozenset(chosen[1]), functions, own_tokens(found, starter))


def own_tokens(tokens: Tokens, starter: frozenset[int]) -> int:
    """Return the number of tokens outside of the starter's runs."""
    return len(tokens.codes) - sum(_covered(grams(tokens.codes), starter, len(tokens.codes)))


def regions(left: Tokens, right: Tokens, starter: frozenset[int]) -> tuple[SharedRegion, ...]:
    """Return the regions that two texts share, in the order of the left one; none overlaps another on either side.

    Each contains a common fingerprint that is not the starter's. The longest are taken first, without overlap.
    """
    hashes_left, hashes_right = grams(left.codes), grams(right.codes)
    chosen = {value: positions for value, positions in winnow(hashes_left).items() if value not in starter}
    taken_left = _covered(hashes_left, starter, len(left.codes))
    taken_right = _covered(hashes_right, starter, len(right.codes))
    found: list[tuple[int, int, int]] = []
    for length, a, b in sorted(_runs(left.codes, right.codes, chosen, hashes_right), reverse=True):
        free = [k for k in range(length) if not (taken_left[a + k] or taken_right[b + k])]
        for start, end in _stretches(free):
            n = end - start
            if n >= LEAST_REGION:
                taken_left[a + start : a + end] = taken_right[b + start : b + end] = b"\1" * n
                found.append((a + start, b + start, n))
    return tuple(
        SharedRegion((left.starts[a], left.ends[a + n - 1]), (right.starts[b], right.ends[b + n - 1]), n)
        for a, b, n in sorted(found)
    )


def _runs(
    left: tuple[str, ...], right: tuple[str, ...], chosen: Mapping[int, list[int]], hashes_right: list[int]
) -> list[tuple[int, int, int]]:
    """Return the longest runs of equal codes around common fingerprints: (length, its start on each side).

    A run is found once, although each of its fingerprints leads to it: all have the same distance between their
    positions in the two texts. Texts that repeat themselves without end have few such distances, since only the first
    MOST_PLACES of a fingerprint are tried. MOST_STEPS bounds the remaining cases.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for at, value in enumerate(hashes_right):
        if value in chosen and len(places[value]) < MOST_PLACES:
            places[value].append(at)
    by_distance: dict[int, list[int]] = defaultdict(list)
    for value, at_right in places.items():
        for a in chosen[value][:MOST_PLACES]:
            for b in at_right:
                by_distance[b - a].append(a)
    steps = MOST_STEPS * (len(left) + len(right))
    runs = []
    # The longest runs lie where most fingerprints agree: try these first, since the steps are limited.
    for distance in sorted(by_distance, key=lambda one: (-len(by_distance[one]), one)):
        end = 0
        for a in sorted(by_distance[distance]):
            if a < end or steps < 0:
                continue
            length, start = _run(left, right, a, a + distance)
            end = start + length
            steps -= length + 1
            runs.append((length, start, start + distance))
    return runs


def _covered(hashes: list[int], known: frozenset[int], count: int) -> bytearray:
    """Return a flag for each of `count` tokens: 1 if it lies in a run of known ones."""
    covered = bytearray(count)
    for at, value in enumerate(hashes):
        if value in known:
            covered[at : at + GRAM] = b"\1" * GRAM
    return covered


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as (first, last + 1) of each stretch without a gap."""
    cuts = [0, *(k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1), len(numbers)]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise(cuts) if a < b]


def _run(left: tuple[str, ...], right: tuple[str, ...], a: int, b: int) -> tuple[int, int]:
    """Return the longest run of equal codes through positions a and b: (length, its start on the left)."""
    back = 0
    while back < min(a, b) and left[a - back - 1] == right[b - back - 1]:
        back += 1
    ahead = 0
    while a + ahead < len(left) and b + ahead < len(right) and left[a + ahead] == right[b + ahead]:
        ahead += 1
    return back + ahead, a - back


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
    """All pairs with anything in common, the most similar first, and the data to show their regions.

    `groups` are three or more that are linked by likenesses of at least ALIKE, the largest first. `starters` have less
    than LEAST_OWN_TOKENS beside the starter, and `bare` weigh less than LEAST_WEIGHT. Files in `unreadable` have few
    tokens in many bytes, so that a comparison of tokens means nothing. Members of these three groups form no pairs. Of
    files in `cut` only the beginning was compared.
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
        """Return the regions that the two texts share, in the order of the left one; none overlaps another on either
        side.
        """
        left, right = (tokens(self.sources[name], self.given) for name in (pair.left, pair.right))
        return regions(left, right, self.starter)
