"""Which submissions are alike: a sign for a person who then reads both, never points.

Theory of operation. Each text becomes tokens that renaming does not touch (`grader.tokens`). Hashes of all runs of
GRAM tokens are thinned out by winnowing (Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document
fingerprinting", SIGMOD 2003): of each WINDOW consecutive hashes the smallest is kept, so that any run of
GRAM + WINDOW - 1 equal tokens in two texts leaves at least one common fingerprint, wherever it stands in them. A
fingerprint of the starter counts nothing. Any other counts in full when two submissions alone have it, less the more
others have it too (by the logarithm of its rarity), and nothing when half of the class does: an assignment leaves few
ways to write a loop. The likeness of a pair is the weight of what they share over the weight of all that the smaller of
the two has.

What only the outputs show is the second sign: submissions whose *wrong* outputs agree to the last bit on several inputs
have the same bug in the same order of summation. Right outputs that agree mean nothing, since there are only so many
orders in which to sum; nor do outputs that were never written.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from glob import escape as glob_escape
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from grader import agreement
from grader.commandline import Parser
from grader.errors import UsageError
from grader.regions import strip_solution
from grader.results import EXIT_PASS
from grader.tokens import Tokens, functions, tokens

GRAM, WINDOW = 16, 6
COMMON_SHARE = 0.5
"""What so large a part of the class has says nothing."""
LEAST_WEIGHT = 6.0
"""A submission with less text of its own than this many rare fingerprints is measured as if it had so many."""
LEAST_CLASS = 20
"""A class smaller than this cannot tell by numbers what is common: it is treated as one of this size."""
LONGEST_TEXT = 1 << 20
"""Characters of one submission that are looked at."""
LEAST_REGION = 12
"""Tokens of the shortest region that is shown."""

MASTER = Path(__file__).resolve().parent.parent / "module.cpp"
MOST_PLACES = 8
"""Places of one run in a text that are tried when regions are looked for: a text may repeat itself."""

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Region:
    """A run of equal tokens: characters `left[0]` to `left[1]` of one text, the same of the other."""

    left: tuple[int, int]
    right: tuple[int, int]
    tokens: int


@dataclass(frozen=True)
class Pair:
    """Two submissions, `left` < `right`. `likeness` is 0 to 1; `shared` is the weight of common fingerprints."""

    left: str
    right: str
    likeness: float
    shared: float


@dataclass(frozen=True)
class Similarity:
    """All pairs with anything in common, the most alike first, and what is needed to show their regions."""

    pairs: tuple[Pair, ...]
    texts: Mapping[str, str]
    given: frozenset[str]
    starter: frozenset[int]
    """Hashes of all runs of the starter, which belong to no region."""
    common: frozenset[int]
    """Fingerprints that are common in the class: no region is found by them alone."""

    def regions(self, pair: Pair) -> tuple[Region, ...]:
        """The regions that the two texts share, in the order of the left one; none overlaps another on either side."""
        left, right = (tokens(self.texts[name], self.given) for name in (pair.left, pair.right))
        return _regions(left, right, self.starter, self.common)


@cache
def _number(code: str) -> int:
    return zlib.crc32(code.encode("utf-8", "surrogatepass")) + 1


def grams(codes: Iterable[str], size: int = GRAM) -> list[int]:
    """A 64-bit hash of each run of `size` codes, by position. Empty for shorter sequences."""
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
    """The smallest hash of each window, the rightmost among equals: {hash: its positions that were chosen}."""
    chosen: dict[int, list[int]] = defaultdict(list)
    last = -1
    for end in range(min(window, len(hashes)), len(hashes) + 1):
        start = max(0, end - window)
        if last < start:
            smallest = min(hashes[start:end])
            last = end - 1 - hashes[start:end][::-1].index(smallest)
        elif hashes[end - 1] <= hashes[last]:
            last = end - 1
        else:
            continue
        chosen[hashes[last]].append(last)
    return dict(chosen)


def compare(sources: Mapping[str, str], starter: str) -> Similarity:
    """Hold every submission against every other: `sources` are {id: text}, `starter` what all of them were given."""
    given = functions(starter)
    texts = {name: text[:LONGEST_TEXT] for name, text in sources.items()}
    theirs = set(grams(tokens(starter, given).codes))
    names = sorted(texts)
    prints = [set(winnow(grams(tokens(texts[name], given).codes))) - theirs for name in names]
    owners: dict[int, list[int]] = defaultdict(list)
    for at, own in enumerate(prints):
        for value in own:
            owners[value].append(at)
    weights = {value: _weight(len(having), len(names)) for value, having in owners.items()}
    totals = [sum(weights[value] for value in own) for own in prints]
    pairs = [
        Pair(names[a], names[b], min(1.0, weight / max(LEAST_WEIGHT, min(totals[a], totals[b]))), weight)
        for (a, b), weight in _shared(owners, weights).items()
    ]
    return Similarity(
        pairs=tuple(sorted(pairs, key=lambda pair: (-pair.likeness, -pair.shared, pair.left, pair.right))),
        texts=texts,
        given=given,
        starter=frozenset(theirs),
        common=frozenset(value for value, weight in weights.items() if weight == 0),
    )


def _weight(owners: int, submissions: int) -> float:
    """How much a fingerprint that so many submissions have tells of two of them: 1 down to 0."""
    common = max(submissions, LEAST_CLASS) * COMMON_SHARE
    return max(0.0, math.log(common / max(owners, 2)) / math.log(common / 2))


def _shared(owners: Mapping[int, list[int]], weights: Mapping[int, float]) -> dict[tuple[int, int], float]:
    """The weight of the common fingerprints of each pair of submissions that has any."""
    shared: dict[tuple[int, int], float] = defaultdict(float)
    for value, having in owners.items():
        weight = weights[value]
        if weight > 0 and len(having) > 1:
            for both in combinations(having, 2):
                shared[both] += weight
    return shared


def _regions(
    left: Tokens, right: Tokens, starter: frozenset[int], common: frozenset[int]
) -> tuple[Region, ...]:
    """Longest first, every run around a common fingerprint; what is taken is not taken again."""
    hashes_left, hashes_right = grams(left.codes), grams(right.codes)
    places: dict[int, list[int]] = defaultdict(list)
    for at, value in enumerate(hashes_right):
        places[value].append(at)
    runs = {
        _run(left.codes, right.codes, a, b)
        for value, positions in winnow(hashes_left).items()
        if value not in starter and value not in common
        for a in positions
        for b in places[value][:MOST_PLACES]
    }
    taken_left = _covered(hashes_left, starter, len(left.codes))
    taken_right = _covered(hashes_right, starter, len(right.codes))
    found: list[tuple[int, int, int]] = []
    for length, a, b in sorted(runs, reverse=True):
        free = [k for k in range(length) if not (taken_left[a + k] or taken_right[b + k])]
        for start, end in _stretches(free):
            n = end - start
            if n >= LEAST_REGION:
                taken_left[a + start : a + end] = taken_right[b + start : b + end] = b"\1" * n
                found.append((a + start, b + start, n))
    return tuple(
        Region((left.starts[a], left.ends[a + n - 1]), (right.starts[b], right.ends[b + n - 1]), n)
        for a, b, n in sorted(found)
    )


def _covered(hashes: list[int], known: frozenset[int], count: int) -> bytearray:
    """A flag for each of `count` tokens: whether it lies in a run of known ones."""
    covered = bytearray(count)
    for at, value in enumerate(hashes):
        if value in known:
            covered[at : at + GRAM] = b"\1" * GRAM
    return covered


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as (first, last + 1) of each stretch without a gap."""
    cuts = [0, *(k for k in range(1, len(numbers)) if numbers[k] != numbers[k - 1] + 1), len(numbers)]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise(cuts) if a < b]


def _run(left: tuple[str, ...], right: tuple[str, ...], a: int, b: int) -> tuple[int, int, int]:
    """The longest run of equal codes through positions a and b: (length, its start on each side)."""
    back = 0
    while back < min(a, b) and left[a - back - 1] == right[b - back - 1]:
        back += 1
    ahead = 0
    while a + ahead < len(left) and b + ahead < len(right) and left[a + ahead] == right[b + ahead]:
        ahead += 1
    return back + ahead, a - back, b - back


# ---- the command


def main(arguments: list[str]) -> int:
    """`python -m grader similar DIR`: DIR is the folder of a class run, or the submissions themselves."""
    parse = Parser(
        prog="python -m grader similar",
        description="Pairs of submissions that are alike, and groups that are wrong alike: for a person to look at.",
    )
    parse.add_argument("folder", metavar="DIR", type=Path, help="--out of a class run, or the submissions")
    parse.add_argument(
        "--submissions", metavar="PATH", type=Path, help="the sources, if DIR holds results only"
    )
    parse.add_argument(
        "--starter", metavar="FILE", type=Path, help="what students were given (the kit's module.cpp)"
    )
    parse.add_argument(
        "--source", metavar="NAME", default=MASTER.name, help="the file handed in (module.cpp)"
    )
    parse.add_argument("--top", metavar="n", type=int, default=20, help="pairs to show (20)")
    parse.add_argument(
        "--html", metavar="FILE", type=Path, help="the page (similar.html, in DIR of a class run)"
    )
    given = parse.parse_args(arguments)
    if given.top < 1:
        raise UsageError(f"--top takes a number from 1 up, not {given.top}")

    outputs = agreement.read(given.folder) if given.folder.is_dir() else {}
    sources = read_sources(
        given.submissions or given.folder, given.source, bool(outputs) and not given.submissions
    )
    similarity = compare(sources, read_starter(given.starter or MASTER))
    groups = agreement.groups(outputs)
    shown = similarity.pairs[: given.top]
    page = given.html or (given.folder if outputs else Path()) / "similar.html"

    from grader.report import similar_html, words

    similar_html.write(page, similarity, shown, groups)
    for group in groups:
        kind = "hidden" if group.hidden else "public"
        members = ", ".join(words.line(name) for name in group.members)
        print(f"wrong alike on {len(group.cases)} {kind} inputs of {group.part}: {members}")
    for pair in shown:
        print(f"{pair.likeness:6.1%}  {words.line(pair.left)}  {words.line(pair.right)}")
    print(f"{len(sources)} submissions compared; side by side: {page}\nA sign for a person, never points.")
    return EXIT_PASS


def read_sources(folder: Path, name: str, is_class_run: bool) -> dict[str, str]:
    """{id: text} of a class run's folder, or of submissions in any form. Raises UsageError when there are none."""
    if is_class_run:
        paths = {
            path.parent.name: path
            for path in sorted(folder.glob(f"*/{glob_escape(name)}"))
            # Without a result it is of an earlier version that was graded.
            if path.with_name("result.json").is_file()
        }
        if not paths:
            raise UsageError(
                f"{folder} holds results but no sources: name the submissions with --submissions PATH"
            )
        return {name: _read(path) for name, path in paths.items()}
    from grader import submission

    with TemporaryDirectory(prefix="gpt149-") as scratch:
        found = submission.find(folder, name, Path(scratch))
        sources = {item.id: _read(item.source) for item in found if item.source is not None}
    if not sources:
        raise UsageError(f"no {name} in {folder}")
    return sources


def read_starter(path: Path) -> str:
    """What students were given: a starter, or the master with the staff's regions left out."""
    try:
        return strip_solution(_read(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_TEXT)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
