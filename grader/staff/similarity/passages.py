"""Fingerprints of tokenised texts, and the regions that two texts share. Time is linear in the length of the texts.

All runs of GRAM tokens are hashed. Winnowing keeps the smallest of each WINDOW consecutive hashes as a fingerprint
(Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document fingerprinting", SIGMOD 2003). So two texts
that share a run of GRAM + WINDOW - 1 tokens, at any position, have a fingerprint in common.
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
"""Length of the shortest region that is shown, in tokens."""
MOST_PLACES = 8
"""Maximum number of positions of one fingerprint that the search for regions tries in each text."""
MOST_STEPS = 32
"""Limit of the search for regions: token comparisons for each token of both texts."""

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class SharedRegion:
    """Run of equal tokens in two texts: its characters [start, end) in each text, and its length in tokens."""

    left: tuple[int, int]
    right: tuple[int, int]
    tokens: int


@lru_cache(1 << 16)
def _number(code: str) -> int:
    return zlib.crc32(code.encode("utf-8", "surrogatepass")) + 1


def grams(codes: Iterable[str]) -> list[int]:
    """Return a 64-bit hash of each run of GRAM consecutive codes, in order; [] for fewer than GRAM codes."""
    numbers = [_number(code) for code in codes]
    oldest = pow(_BASE, GRAM, 1 << 64)
    value, hashes = 0, []
    for at, number in enumerate(numbers):
        value = value * _BASE + number
        if at >= GRAM:
            value -= numbers[at - GRAM] * oldest
        value &= _MASK
        if at >= GRAM - 1:
            # The low bits of a polynomial hash depend on few bits of the codes. Mix the high bits into them.
            hashes.append(((value ^ (value >> 31)) * _BASE) & _MASK)
    return hashes


def winnow(hashes: list[int]) -> dict[int, list[int]]:
    """Return {hash: positions} for the smallest hash of each window of WINDOW consecutive hashes.

    Of equal smallest hashes, an earlier window's choice is kept, so repetitive text gets few positions.
    """
    chosen: dict[int, list[int]] = defaultdict(list)
    last = -1
    for end in range(min(WINDOW, len(hashes)), len(hashes) + 1) if hashes else ():
        start = max(0, end - WINDOW)
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
    """Fingerprints of one source, without those of the starter.

    For `whole`, all names count as equal; for `named`, different names differ. `functions` has (name, fingerprints of
    both kinds) for each function. `own` is the number of the source's tokens that lie in no run of GRAM tokens of the
    starter.
    """

    whole: frozenset[int]
    named: frozenset[int]
    functions: tuple[tuple[str, frozenset[int]], ...]
    own: int


def prints(found: Tokens, spans: Mapping[str, list[tuple[int, int]]], starter: frozenset[int]) -> Prints:
    """Return a text's fingerprints. `spans`: its functions' ranges by name. `starter`: hashes of the starter's runs."""
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
    own = len(found.codes) - sum(_covered(grams(found.codes), starter, len(found.codes)))
    return Prints(frozenset(chosen[0]), frozenset(chosen[1]), functions, own)


def regions(left: Tokens, right: Tokens, starter: frozenset[int]) -> tuple[SharedRegion, ...]:
    """Return the regions that two texts share, in the order of the left text. They do not overlap in either text.

    A region is a run of equal tokens, or what remains of it without pieces of the starter and without longer regions.
    `starter` are the hashes of all runs in the starter.
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
    """Return the longest runs of equal codes around common fingerprints, each as (length, left start, right start).

    `chosen` maps fingerprints of the left text to positions, and `hashes_right` are all hashes of the right text. All
    fingerprints of a run have the same distance (right position - left position), so each run is found only once.
    MOST_PLACES and MOST_STEPS limit the search in repetitive texts.
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
    # Long runs have many fingerprints, all with the same distance. As steps are limited, try the most frequent
    # distances first.
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
    """Return one byte for each of `count` tokens: 1 if the token lies in a run whose hash is in `known`, else 0.

    `hashes` are the hashes of the text's runs (see `grams`).
    """
    covered = bytearray(count)
    for at, value in enumerate(hashes):
        if value in known:
            covered[at : at + GRAM] = b"\1" * GRAM
    return covered


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Return (first, last + 1) for each maximal stretch of consecutive numbers in an increasing list."""
    cuts = [0, *(k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1), len(numbers)]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise(cuts) if a < b]


def _run(left: tuple[str, ...], right: tuple[str, ...], a: int, b: int) -> tuple[int, int]:
    """Return (length, left start) of the longest run of equal codes that contains left[a] and right[b]."""
    back = 0
    while back < min(a, b) and left[a - back - 1] == right[b - back - 1]:
        back += 1
    ahead = 0
    while a + ahead < len(left) and b + ahead < len(right) and left[a + ahead] == right[b + ahead]:
        ahead += 1
    return back + ahead, a - back


@dataclass(frozen=True)
class Pair:
    """Two submissions with common fingerprints, by id. `likeness` is from 0 to 1 (see `likeness`).

    `shared` is the weight of the common fingerprints. `function` names the function to which `likeness` refers; "" for
    the whole files.
    """

    left: str
    right: str
    likeness: float
    shared: float
    function: str = ""


@dataclass(frozen=True)
class Similarity:
    """Result of a comparison: pairs with common fingerprints, the most similar first, and data to show their regions.

    Each of `groups` has three or more submissions that are linked by a likeness of at least ALIKE; the largest is
    first. Submissions in three lists form no pairs with each other. Those in `starters` have fewer than
    LEAST_OWN_TOKENS tokens that the starter lacks. Those in `bare` have fingerprints of less weight than LEAST_WEIGHT.
    Those in `unreadable` have so few tokens for their length that code may be hidden. Of a submission in `cut`, only
    the beginning was compared. `given` are the names of the starter's functions. `earlier` is the number of sources of
    earlier years, which form no pairs with each other.
    """

    pairs: tuple[Pair, ...]
    sources: Mapping[str, Source]
    given: frozenset[str]
    starter: frozenset[int]
    """Hashes of all runs of GRAM tokens in the starter. No region contains such a run."""
    groups: tuple[tuple[str, ...], ...] = ()
    starters: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    earlier: int = 0

    def regions(self, pair: Pair) -> tuple[SharedRegion, ...]:
        """Return the regions that the two texts of a pair share, in the order of the left text."""
        left, right = (tokens(self.sources[name], self.given) for name in (pair.left, pair.right))
        return regions(left, right, self.starter)
