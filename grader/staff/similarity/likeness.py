"""Similarity of submissions: a sign for a person, who then reads both submissions. It never changes points.

Theory of operation. Each source is converted to tokens that do not depend on the choice of names (`tokens`), and the
tokens to fingerprints (`passages`). Fingerprints of the starter are ignored. A fingerprint has the full weight if only
two submissions have it. It weighs less if more submissions have it, because an assignment leaves few ways to write a
loop. This count takes near-identical submissions as one: code that a large group copied must not look like common code.

The likeness of a pair is the larger of two fractions. The first is the weight of the common fingerprints divided by
the weight of the fingerprints of the file that has less. The second is computed in the same way for a single function,
with additional fingerprints that depend on names: students who write the same short function independently rarely
choose the same names. Two submissions that both have hardly any code of their own form no pair.

A second sign comes from outputs (`agreement`): submissions with equal *wrong* outputs on several inputs have the same
bug in the same order of summation. Equal correct outputs prove nothing, because there are few orders of summation.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from glob import escape as glob_escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.regions import strip_solution
from grader.core import plainfile
from grader.core.commandline import Parser, add_lab
from grader.core.errors import EXIT_PASS, UsageError, explained
from grader.core.harmless import one_line
from grader.core.places import GRADER_COMMAND, MASTER
from grader.core.quantities import size_text
from grader.staff.classroom import gradebook
from grader.staff.similarity import agreement
from grader.staff.similarity.passages import GRAM, WINDOW, Pair, Prints, Similarity, grams, prints
from grader.staff.similarity.tokens import MOST_TOKENS, VERSION, Source, functions, tokens, unread

INDEX = "similar_index.json"


def indexed(
    folder: Path, sources: Mapping[str, Source], key: str, make: Callable[[Source], Prints]
) -> dict[str, Prints]:
    """Return {submission id: fingerprints} of the sources in a folder of an earlier year.

    Fingerprints that the index file in `folder` lacks are computed by `make`, and stored there if the folder is
    writable. `key` is a text that depends on the starter and on the rules for tokens: a changed key makes stored
    fingerprints invalid.
    """
    path, stored = folder / INDEX, dict[str, Prints]()
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        for digest, (whole, named, functions, own) in json.loads(path.read_bytes()).items():
            each = tuple((str(name), frozenset(map(int, values))) for name, values in functions)
            stored[digest] = Prints(frozenset(map(int, whole)), frozenset(map(int, named)), each, int(own))
    digests = {
        name: hashlib.sha256(f"{key} {one.python} {one.text}".encode(errors="surrogatepass")).hexdigest()
        for name, one in sources.items()
    }
    made = {digest: stored.get(digest) or make(sources[name]) for name, digest in digests.items()}
    if made.keys() - stored.keys():
        kept = {
            digest: (
                sorted(one.whole),
                sorted(one.named),
                [(n, sorted(own)) for n, own in one.functions],
                one.own,
            )
            for digest, one in made.items()
        }
        with contextlib.suppress(OSError):
            plainfile.write(path, [json.dumps(kept)])
    return {name: made[digest] for name, digest in digests.items()}


T = TypeVar("T")
ALIKE = 0.93
"""Pairs with at least this likeness form groups. At most 1 of 45,000 pairs of independent students reaches it."""
SAME_TEXT = 0.85
"""Submissions that share this part of their fingerprints count as one when the owners of a fingerprint are counted."""
LEAST_RARITY = 0.2
"""Weight of a fingerprint that every submission has. A fingerprint that only two submissions have has weight 1."""
LEAST_WEIGHT, LEAST_OF_FUNCTION = 6.0, 80.0
"""A common weight is divided by at least this (file, function), so that tiny files do not look alike by chance."""
LEAST_CLASS = 20
"""Weights are computed as for a class of at least this size: a small class does not show which code is common."""
COLUMNS = 2048
"""Number of fingerprints (matrix columns) that are multiplied in one step. It limits the memory."""
LONGEST_TEXT = 1 << 20
"""Maximum number of characters that are compared of one submission."""
LEAST_OWN_TOKENS = GRAM + WINDOW - 1
"""A text with fewer own tokens may have no fingerprint of its own. It counts as the starter, unchanged or nearly so."""
LEAST_UNREAD, UNREAD_FOR_A_TOKEN = 500, 20
"""Limits on the characters in comments and literals that the starter lacks: in total, and per own token. A source above
both limits may hide code in them."""


def compare(
    sources: Mapping[str, Source], starter: Source, old: Mapping[Path, Mapping[str, Source]] | None = None
) -> Similarity:
    """Compare this year's `sources` (by submission id) with each other and with `old` ones (by folder and id)."""
    given = frozenset(functions(starter))
    begun = tokens(starter, given)
    theirs = frozenset(grams(begun.codes)) | frozenset(grams(begun.words))
    known = frozenset(unread(starter))
    texts = {name: sources[name].cut(LONGEST_TEXT) for name in sorted(sources)}
    starters, unreadable, cut, every = set(), set(), [], dict[str, Prints]()
    for name, source in texts.items():
        found = tokens(source, given)
        every[name] = prints(found, functions(source), theirs)
        if found.is_cut or len(sources[name].text) > LONGEST_TEXT:
            cut.append(name)
        elif _hides_text(source, every[name].own, known):
            unreadable.add(name)
        elif every[name].own < LEAST_OWN_TOKENS:
            starters.add(name)
    key = repr((sorted(given), begun.words, GRAM, WINDOW, VERSION))
    for folder, earlier in (old or {}).items():
        earlier = {name: source.cut(LONGEST_TEXT) for name, source in earlier.items()}
        stored = indexed(folder, earlier, key, lambda one: prints(tokens(one, given), functions(one), theirs))
        every |= {f"{folder.name}/{name}": found for name, found in stored.items()}
        texts |= {f"{folder.name}/{name}": source for name, source in earlier.items()}
    pairs, weights = weighed(every, len(sources))
    bare = {name for name in sources if weights[name] < LEAST_WEIGHT}
    pairs = [pair for pair in pairs if not {pair.left, pair.right} <= bare | starters | unreadable]
    return Similarity(
        pairs=tuple(sorted(pairs, key=lambda pair: (-pair.likeness, -pair.shared, pair.left, pair.right))),
        sources=texts,
        given=given,
        starter=theirs,
        groups=_linked([(pair.left, pair.right) for pair in pairs if pair.likeness >= ALIKE]),
        starters=tuple(sorted(starters)),
        bare=tuple(sorted(bare - starters - unreadable)),
        cut=tuple(cut),
        unreadable=tuple(sorted(unreadable)),
        earlier=len(texts) - len(sources),
    )


def _hides_text(source: Source, own: int, known: frozenset[str]) -> bool:
    """Return True if a source has so few tokens for its length that a comment or literal may hide code.

    For example, this lexer may end a comment later than the compiler does. `own` is the number of tokens that the
    starter lacks. `known` are the starter's lines in comments, imports and literals (`unread`).
    """
    if UNREAD_FOR_A_TOKEN * own >= len(source.text):
        return False
    hidden = sum(len(line) for line in unread(source) if line not in known)
    return hidden >= max(LEAST_UNREAD, UNREAD_FOR_A_TOKEN * own)


def weighed(every: Mapping[str, Prints], count: int) -> tuple[list[Pair], dict[str, float]]:
    """Compute likeness. Return (pairs with a common fingerprint, {submission id: weight of its fingerprints}).

    Only fingerprints that do not depend on names count here. `every` has fingerprints by submission id: first those of
    this year's `count` submissions, then those of earlier years, which form no pairs with each other.
    """
    import numpy as np

    names, files = list(every), [one.whole | one.named for one in every.values()]
    parts = [
        (at, name, own)
        for at, one in enumerate(every.values())
        for name, own in one.functions
        if LEAST_RARITY * len(own) >= LEAST_WEIGHT / 2
    ]
    named = frozenset[int]().union(*(one.named for one in every.values()))
    values = sorted(frozenset[int]().union(*files))

    def blocks(rows: Sequence[Collection[int]]) -> Iterator[Any]:
        """Yield (plain, table) for each block of at most COLUMNS fingerprints, as float32 arrays of 0 and 1.

        plain[k] is 1 if fingerprint k of the block does not depend on names. table[r, k] is 1 if `rows[r]` has it.
        """
        ordered = [sorted(row) for row in rows]
        for first in range(0, len(values), COLUMNS):
            column = {value: k for k, value in enumerate(values[first : first + COLUMNS])}
            table = np.zeros((len(rows), len(column)), np.float32)
            for row, own in zip(table, ordered, strict=True):
                begin, end = (
                    bisect_left(own, values[k]) for k in (first, min(first + COLUMNS, len(values) - 1))
                )
                row[[column[value] for value in own[begin : end + 1] if value in column]] = 1
            yield np.array([value not in named for value in column], np.float32), table

    size, same = len(names), np.zeros((len(names), len(names)), np.float32)
    for plain, table in blocks(files):
        same += (table * plain) @ table.T
    counts = np.diagonal(same)
    near = same >= SAME_TEXT * (counts[:, None] + counts - same)
    owners = [*_linked([(a, b) for a, b in np.argwhere(near).tolist() if a < b], 2)]
    owners += [(k,) for k in set(range(size)).difference(*owners)]
    common = max(len(owners), LEAST_CLASS)
    shared, own_shared = np.zeros_like(same), np.zeros((len(parts), size), np.float32)
    totals = np.zeros(len(parts), np.float32)
    for (plain, table), (_, rows) in zip(blocks(files), blocks([own for _, _, own in parts]), strict=True):
        number = np.array([table[list(group)].max(0) for group in owners]).sum(0)
        weight = np.log(common / np.maximum(number, 2)) / np.log(common / 2)
        weight = np.maximum(weight, LEAST_RARITY).astype(np.float32)
        shared += (table * (weight * plain)) @ table.T
        own_shared += (rows * weight) @ table.T
        totals += rows @ weight
    weights = np.diagonal(shared)
    alike = np.minimum(1, shared / np.maximum(LEAST_WEIGHT, np.minimum(weights[:, None], weights)))
    same_files = alike >= ALIKE
    functions = {(a, b): "" for a, b in np.argwhere(shared > 0).tolist() if a < min(b, count)}
    for (owner, name, _), row in zip(
        parts, own_shared / np.maximum(LEAST_OF_FUNCTION, totals)[:, None], strict=True
    ):
        for other in np.flatnonzero((row > alike[owner]) & ~same_files[owner]).tolist():
            if (min(owner, other), max(owner, other)) in functions:
                alike[owner, other] = alike[other, owner] = min(1, row[other])
                functions[min(owner, other), max(owner, other)] = name
    pairs = [
        Pair(*sorted((names[a], names[b])), float(alike[a, b]), float(shared[a, b]), name)
        for (a, b), name in functions.items()
    ]
    return pairs, dict(zip(names, weights.tolist(), strict=True))


def _linked(links: Iterable[tuple[T, T]], least: int = 3) -> tuple[tuple[T, ...], ...]:
    """Return the connected components of the graph of `links` that have at least `least` members, largest first."""
    group: dict[T, list[T]] = {}
    for pair in links:
        left, right = (group.setdefault(one, [one]) for one in pair)
        if left is not right:
            if len(left) < len(right):
                left, right = right, left
            left += right
            group |= dict.fromkeys(right, left)
    found = {id(one): tuple(sorted(one)) for one in group.values() if len(one) >= least}
    return tuple(sorted(found.values(), key=lambda one: (-len(one), one)))


# ---- the command


def main(arguments: list[str]) -> int:
    """Run `python -m grader similar DIR`. DIR is the results folder of a class, or a folder of submissions."""
    parse = Parser(
        prog=f"{GRADER_COMMAND} similar",
        description="Find similar submissions, and groups with the same wrong outputs, for a person to read.",
    )
    parse.path("folder", "results folder of a class, or folder of submissions", "DIR")
    parse.path(
        "--old",
        f"submissions of earlier years; their fingerprints are stored in DIR/{INDEX}",
        "DIR",
        nargs="+",
        default=[],
    )
    parse.path("--submissions", "the sources, if DIR has only results", "PATH")
    parse.path(
        "--starter",
        "file that students got; its text is left out (default: the assignment's); may be repeated",
        action="append",
    )
    parse.value("--source", "NAME", "name of the file to compare (default: the assignment's, module.cpp)")
    parse.path("--config", "the assignment (default: the one of the class's results, else the main one)")
    add_lab(parse)
    parse.add_argument("--top", metavar="n", type=int, default=20, help="pairs to show (default: 20)")
    parse.path("--html", "page to write (default: similar.html; for a class, in DIR)")
    given = parse.parse_args(arguments)
    if given.top < 1:
        raise UsageError(f"--top takes a number from 1 up, not {given.top}")

    masters = [MASTER]
    config = given.config or gradebook.config_in(given.folder)
    if config is not None:
        assignment = load(config)
        masters = [labs.master(assignment.lab_folder, name) for name in assignment.sources]
    outputs = agreement.read(given.folder) if given.folder.is_dir() else {}
    name = given.source or masters[0].name
    sources = read_sources(given.submissions or given.folder, name, bool(outputs) and not given.submissions)
    old = {folder: read_sources(folder, name, bool(agreement.read(folder))) for folder in given.old}
    starters = given.starter or masters
    similarity = compare(sources, joined({str(path): read_starter(path) for path in starters}), old)
    groups = agreement.groups(outputs)
    not_written = agreement.not_written(given.folder) if outputs else frozenset()
    shown = _shown(similarity, not_written)[: given.top]
    page = given.html or (given.folder if outputs else Path()) / "similar.html"

    from grader.report import words
    from grader.report.html import missing_library

    linked = [
        f"{len(group)} submissions are alike (1 pair shown): {', '.join(map(one_line, group))}"
        for group in similarity.groups
    ]
    said = notes(similarity, not_written)
    missing = missing_library()
    if missing is None:
        agreement.write_page(page, similarity, shown, groups, [*linked, *said])
    print(*linked, sep="\n", end="\n" if linked else "")
    for group in groups:
        kind = "hidden" if group.hidden else "public"
        members = ", ".join(words.line(name) for name in group.members)
        print(f"same wrong outputs on {len(group.cases)} {kind} inputs of {group.part}: {members}")
    for pair in shown:
        alone = f"  (only the function {one_line(pair.function, 60)})" if pair.function else ""
        print(f"{pair.likeness:6.1%}  {words.line(pair.left)}  {words.line(pair.right)}{alone}")
    print(*said, sep="\n", end="\n" if said else "")
    discounted = ", ".join(map(str, starters))
    print(
        f"{words.plural(len(sources), 'submission')} compared; text of the starter is left out: {discounted}"
        + ("" if given.starter else " (if students got another starter, name it: --starter FILE)")
        + (f"\nno page was written: `pip install {missing}`" if missing else f"\nside by side: {page}")
        + "\nSimilarity is a sign for a person to check; it never changes points."
    )
    return EXIT_PASS


def _shown(similarity: Similarity, not_written: Collection[str]) -> list[Pair]:
    """Return the pairs to show: only the first of each group, and no pair with both submissions in `not_written`."""
    group = {name: number for number, names in enumerate(similarity.groups) for name in names}
    found: list[Pair] = []
    seen: set[int] = set()
    for pair in similarity.pairs:
        left, right = group.get(pair.left, -1), group.get(pair.right, -2)
        if not {pair.left, pair.right} <= not_written and not (left == right and left in seen):
            found.append(pair)
            seen |= {left} if left == right else set()
    return found


def notes(similarity: Similarity, not_written: Collection[str] = ()) -> list[str]:
    """Return a note for each kind of submission that could not be compared well.

    `not_written` are ids of submissions in which no part is written.
    """
    names_by_note = {
        "cannot be compared, because a comment or literal may hide code (few tokens for so many bytes): read it "
        "yourself": similarity.unreadable,
        "the starter, unchanged or nearly unchanged": similarity.starters,
        "hardly any own code: nearly all of it is in the starter or in other files, too": similarity.bare,
        "no part is written, so these are not compared with one another": sorted(
            set(not_written)
            & set(similarity.sources) - {*similarity.starters, *similarity.bare, *similarity.unreadable}
        ),
        f"too long, so that only the first {MOST_TOKENS} tokens or {size_text(LONGEST_TEXT)} were compared: "
        "read the rest yourself": similarity.cut,
    }
    return [f"{what}: {', '.join(map(one_line, names))}" for what, names in names_by_note.items() if names]


def read_sources(folder: Path, name: str, is_class_run: bool) -> dict[str, Source]:
    """Return {submission id: source}, where a source joins all files that were handed in.

    `name` is the file name of the main source. `is_class_run`: True if `folder` is a class's results folder, False if
    it holds submissions in any form. Raises UsageError if it has no submission.
    """
    from grader import submission

    beside = submission.companions_of(name)
    if is_class_run:
        paths = {
            path.parent.name: path
            for path in sorted(folder.glob(f"*/{glob_escape(name)}"))
            # A source without a result is a remainder of an earlier hand-in: skip it.
            if path.with_name("result.json").is_file() and path.is_file() and not path.is_symlink()
        }
        if not paths:
            raise UsageError(
                f"{folder} has results but no sources: name the submissions with --submissions PATH"
            )
        return {name: _read_all(path, beside) for name, path in paths.items()}
    with TemporaryDirectory(prefix="gpt149-") as scratch:
        found = submission.find(folder, name, Path(scratch))
        sources = {item.id: _read_all(item.source, beside) for item in found if item.source is not None}
    if not sources:
        raise UsageError(f"no {name} in {folder}")
    return sources


def read_starter(path: Path) -> str:
    """Return the text that students got: the source without solution. Raises UsageError if its marks are wrong."""
    try:
        return strip_solution(_read(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _read_all(source: Path, beside: Sequence[str]) -> Source:
    """Read a file as one source, together with the files `beside` (names) that exist in its folder."""
    further = [source.with_name(name) for name in beside]
    return joined(
        {
            path.name: _read(path)
            for path in (source, *further)
            if path == source or (path.is_file() and not path.is_symlink())
        }
    )


def joined(texts: Mapping[str, str]) -> Source:
    """Join texts, given by file name, into one source: first the Python files, then the others."""
    python = "".join(f"{text}\n" for name, text in texts.items() if name.endswith(".py"))
    return Source(
        python + "\n".join(text for name, text in texts.items() if not name.endswith(".py")), len(python)
    )


def _read(path: Path) -> str:
    with explained(f"cannot read {path}"), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_TEXT + 1)
