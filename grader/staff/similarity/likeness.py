"""Measure of likeness between submissions: a sign for a person who then reads both, never points.

Theory of operation. Each text becomes tokens that renaming does not touch (`grader.staff.similarity.tokens`), and these
become fingerprints (`grader.staff.similarity.passages`). A fingerprint of the starter counts nothing. Any other counts
in full when two submissions alone have it, less the more others have it too (by the logarithm of its rarity), and
nothing when half of the class does: an assignment leaves few ways to write a loop. The likeness of a pair is the weight
of what they share over the weight of all that the smaller of the two has. Two who have hardly any text of their own
cannot be told from each other, however much they seem alike: they are named, and are no pair.

What only the outputs show is the second sign: submissions whose *wrong* outputs agree to the last bit on several inputs
have the same bug in the same order of summation. Right outputs that agree mean nothing, since there are only so many
orders in which to sum; nor do outputs that were never written.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from glob import escape as glob_escape
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.regions import strip_solution
from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS, UsageError
from grader.core.harmless import one_line
from grader.core.places import MASTER
from grader.core.quantities import size_text
from grader.staff.similarity import agreement
from grader.staff.similarity.pairs import Pair, Similarity
from grader.staff.similarity.passages import GRAM, WINDOW, grams, own_tokens, winnow
from grader.staff.similarity.tokens import MOST_TOKENS, Tokens, functions, tokens, unread

COMMON_SHARE = 0.5
"""Passages that so large a part of the class has are ignored."""
LEAST_WEIGHT = 6.0
"""A submission with less text of its own than this many rare fingerprints is measured as if it had so many."""
LEAST_CLASS = 20
"""A class smaller than this cannot tell by numbers what is common: it is treated as one of this size."""
LONGEST_TEXT = 1 << 20
"""Characters of one submission that are looked at."""
LEAST_OWN_TOKENS = GRAM + WINDOW - 1
"""Whoever adds fewer than these to the starter leaves no certain fingerprint: an unchanged starter, or nearly one."""
LEAST_UNREAD, UNREAD_FOR_A_TOKEN = 500, 20
"""Characters in comments and literals, beside the starter's: so many in all, and for each own token, hide code."""


def compare(sources: Mapping[str, str], starter: str) -> Similarity:
    """Hold every submission against every other: `sources` are {id: text}, `starter` what all of them were given."""
    given = functions(starter)
    texts = {name: text[:LONGEST_TEXT] for name, text in sources.items()}
    theirs = frozenset(grams(tokens(starter, given).codes))
    names = sorted(texts)
    prints: list[frozenset[int]] = []
    starters, unreadable, cut = set(), set(), []
    known = frozenset(unread(starter))
    for name in names:
        found = tokens(texts[name], given)
        prints.append(frozenset(winnow(grams(found.codes))) - theirs)
        if found.is_cut or len(sources[name]) > LONGEST_TEXT:
            cut.append(name)
        elif _hides_text(texts[name], found, theirs, known):
            unreadable.add(name)
        elif own_tokens(found, theirs) < LEAST_OWN_TOKENS:
            starters.add(name)
    owners: dict[int, list[int]] = defaultdict(list)
    for at, own in enumerate(prints):
        for value in own:
            owners[value].append(at)
    weights = {value: _weight(len(having), len(names)) for value, having in owners.items()}
    totals = [sum(weights[value] for value in own) for own in prints]
    bare = {name for name, total in zip(names, totals, strict=True) if total < LEAST_WEIGHT}
    pairs = [
        Pair(names[a], names[b], min(1.0, weight / max(LEAST_WEIGHT, min(totals[a], totals[b]))), weight)
        for (a, b), weight in _shared(owners, weights).items()
        if not {names[a], names[b]} <= bare | starters | unreadable
    ]
    return Similarity(
        pairs=tuple(sorted(pairs, key=lambda pair: (-pair.likeness, -pair.shared, pair.left, pair.right))),
        texts=texts,
        given=given,
        starter=theirs,
        common=frozenset(value for value, weight in weights.items() if weight == 0),
        starters=tuple(sorted(starters)),
        bare=tuple(sorted(bare - starters - unreadable)),
        cut=tuple(cut),
        unreadable=tuple(sorted(unreadable)),
    )


def _hides_text(text: str, found: Tokens, starter: frozenset[int], known: frozenset[str]) -> bool:
    """Return True if few tokens stand in many bytes. `known` are the lines of `unread` that the starter has.

    A comment that a compiler ends elsewhere than the lexer here (by spliced lines, say) hides a whole file.
    """
    own = own_tokens(found, starter)
    if UNREAD_FOR_A_TOKEN * own >= len(text):
        return False
    hidden = sum(len(line) for line in unread(text) if line not in known)
    return hidden >= max(LEAST_UNREAD, UNREAD_FOR_A_TOKEN * own)


def _weight(owners: int, submissions: int) -> float:
    """Return the weight of a fingerprint that so many submissions have: 1 down to 0."""
    common = max(submissions, LEAST_CLASS) * COMMON_SHARE
    return max(0.0, math.log(common / max(owners, 2)) / math.log(common / 2))


def _shared(owners: Mapping[int, list[int]], weights: Mapping[int, float]) -> dict[tuple[int, int], float]:
    """The weight of the common fingerprints of each pair of submissions that has any."""
    # Copies share all their fingerprints: each set of owners is divided into pairs once.
    by_owners: dict[tuple[int, ...], float] = defaultdict(float)
    for value, having in owners.items():
        if weights[value] > 0 and len(having) > 1:
            by_owners[tuple(having)] += weights[value]
    shared: dict[tuple[int, int], float] = defaultdict(float)
    for all_owners, weight in by_owners.items():
        for both in combinations(all_owners, 2):
            shared[both] += weight
    return shared


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
        "--starter",
        metavar="FILE",
        type=Path,
        action="append",
        help="what students were given, and counts nothing (the kit's module.cpp); again for a second one",
    )
    parse.add_argument(
        "--source", metavar="NAME", help="the file handed in (default: the assignment's, module.cpp)"
    )
    parse.add_argument(
        "--config", metavar="FILE", type=Path, help="the assignment, for its file and its starter"
    )
    parse.add_argument("--top", metavar="n", type=int, default=20, help="pairs to show (20)")
    parse.add_argument(
        "--html", metavar="FILE", type=Path, help="the page (similar.html, in DIR of a class run)"
    )
    given = parse.parse_args(arguments)
    if given.top < 1:
        raise UsageError(f"--top takes a number from 1 up, not {given.top}")

    masters = [MASTER]
    if given.config is not None:
        assignment = load(given.config)
        masters = [labs.master(assignment.lab_folder, name) for name in assignment.sources]
    outputs = agreement.read(given.folder) if given.folder.is_dir() else {}
    sources = read_sources(
        given.submissions or given.folder,
        given.source or masters[0].name,
        bool(outputs) and not given.submissions,
    )
    starters = given.starter or masters
    similarity = compare(sources, "\n".join(map(read_starter, starters)))
    groups = agreement.groups(outputs)
    not_written = agreement.not_written(given.folder) if outputs else frozenset()
    shown = [pair for pair in similarity.pairs if not {pair.left, pair.right} <= not_written][: given.top]
    page = given.html or (given.folder if outputs else Path()) / "similar.html"

    from grader.report import words
    from grader.staff.similarity import similar_html

    said = notes(similarity, not_written)
    similar_html.write(page, similarity, shown, groups, said)
    for group in groups:
        kind = "hidden" if group.hidden else "public"
        members = ", ".join(words.line(name) for name in group.members)
        print(f"wrong alike on {len(group.cases)} {kind} inputs of {group.part}: {members}")
    for pair in shown:
        print(f"{pair.likeness:6.1%}  {words.line(pair.left)}  {words.line(pair.right)}")
    print(*said, sep="\n", end="\n" if said else "")
    discounted = ", ".join(map(str, starters))
    print(
        f"{len(sources)} submissions compared; what {discounted} holds counts nothing"
        + ("" if given.starter else " (did students get another starter? name it by --starter FILE)")
        + f"\nside by side: {page}\nA sign for a person, never points."
    )
    return EXIT_PASS


def notes(similarity: Similarity, not_written: Collection[str] = ()) -> list[str]:
    """Lines on those whose place among the pairs says little. `not_written`: ids without any part by their results."""
    told = {
        "cannot be compared, as few tokens stand in many bytes (a comment or literal may hide code): look at it "
        "yourself": similarity.unreadable,
        "the starter, unchanged or nearly": similarity.starters,
        "hardly any text of their own, beside the starter and what half of the class has": similarity.bare,
        "no part is written, by their results, so that no two of them are a pair": sorted(
            set(not_written)
            & set(similarity.texts) - {*similarity.starters, *similarity.bare, *similarity.unreadable}
        ),
        f"too long, so that only the first {MOST_TOKENS} tokens or {size_text(LONGEST_TEXT)} were compared: "
        "look at it yourself": similarity.cut,
    }
    return [f"{what}: {', '.join(map(one_line, names))}" for what, names in told.items() if names]


def read_sources(folder: Path, name: str, is_class_run: bool) -> dict[str, str]:
    """Return {id: text} of a class run's folder, or of submissions in any form.

    A text holds all files that were handed in: the source, then those beside it. Raises UsageError for no sources.
    """
    from grader import submission

    beside = submission.companions_of(name)
    if is_class_run:
        paths = {
            path.parent.name: path
            for path in sorted(folder.glob(f"*/{glob_escape(name)}"))
            # Without a result it is of an earlier version that was graded.
            if path.with_name("result.json").is_file() and path.is_file() and not path.is_symlink()
        }
        if not paths:
            raise UsageError(
                f"{folder} holds results but no sources: name the submissions with --submissions PATH"
            )
        return {name: _read_all(path, beside) for name, path in paths.items()}
    with TemporaryDirectory(prefix="gpt149-") as scratch:
        found = submission.find(folder, name, Path(scratch))
        sources = {item.id: _read_all(item.source, beside) for item in found if item.source is not None}
    if not sources:
        raise UsageError(f"no {name} in {folder}")
    return sources


def read_starter(path: Path) -> str:
    """Return the text that students were given: a starter, or the master without the staff's regions."""
    try:
        return strip_solution(_read(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _read_all(source: Path, beside: Sequence[str]) -> str:
    """Text of a source, and of the files of these names in its folder."""
    further = [source.with_name(name) for name in beside]
    return "\n".join(
        map(_read, [source, *(path for path in further if path.is_file() and not path.is_symlink())])
    )


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_TEXT + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
