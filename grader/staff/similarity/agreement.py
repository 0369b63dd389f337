"""Groups of submissions whose wrong outputs are equal in every bit on several inputs.

Such submissions have the same bug and add numbers in the same order. This can be chance if many students make the bug,
so the report shows each group with its diagnosis. Outputs that are equal even without a common bug are left out, such
as an output that was never written.

This module also writes the page `similar.html`, which shows pairs of similar submissions side by side, for a person to
judge. The page is one file without scripts. Students' texts are escaped, and characters that control the terminal or
the text's direction are replaced. The page's security policy allows only its own style sheet.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from grader.core import plainfile
from grader.core.errors import explained
from grader.core.harmless import harmless
from grader.report.html import environment, policy
from grader.report.words import plural
from grader.staff.similarity.passages import Pair, SharedRegion, Similarity

MOST_RESULT_BYTES = 8 << 20
MOST_CASES = 100
"""Maximum number of cases examined in one part; parts of the main assignment have about 20."""
LEAST_CASES = 2
"""Minimum number of cases of a part on which a group must agree. One case may have only one plausible wrong answer."""
#: Codes of diagnoses whose wrong outputs are equal even if the students worked independently.
SAYS_NOTHING = frozenset({"not_written", "copied_input", "wrong_shape", "wrong_dtype", "inputs_overwritten"})


@dataclass(frozen=True)
class WrongOutput:
    """One wrong output of a part on a case (`hidden`: on a hidden one). `words` is the text of its diagnosis."""

    part: str
    case: str
    hidden: bool
    digest: str
    words: str


@dataclass(frozen=True)
class Group:
    """Submissions (`members`, ids) with equal wrong outputs of `part` on `cases`. `words` is one member's diagnosis."""

    part: str
    members: tuple[str, ...]
    cases: tuple[str, ...]
    hidden: bool
    words: str


def wrong_outputs(result: Mapping[str, Any]) -> list[WrongOutput]:
    """Return the wrong outputs in a parsed `result.json`, except those with a diagnosis in SAYS_NOTHING."""
    found = []
    for part in result.get("parts") or ():
        about = part.get("diagnosis") or {}
        for case in (part.get("cases") or ())[:MOST_CASES]:
            digest, own = case.get("output_sha256"), case.get("diagnosis") or {}
            code = own.get("code") or about.get("code") or ""
            if case.get("ok") or not digest or {code, about.get("code")} & SAYS_NOTHING:
                continue
            hidden = bool(case.get("hidden"))
            texts = (part["id"], case["name"], digest, about.get("message") or "")
            if not all(isinstance(text, str) for text in (*texts, code)):
                raise TypeError("not a result of this kit")
            found.append(WrongOutput(*texts[:2], hidden, *texts[2:]))
    return found


def read(folder: Path) -> dict[str, list[WrongOutput]]:
    """Return {submission id: wrong outputs} of a class's results folder; [] for a `result.json` that cannot be read."""
    return {path.parent.name: _of_result(path, wrong_outputs, []) for path in _results(folder)}


def not_written(folder: Path) -> frozenset[str]:
    """Return the ids of the submissions in a class's results folder whose parts are all "not written yet"."""
    return frozenset(path.parent.name for path in _results(folder) if _of_result(path, _is_unwritten, False))


def _is_unwritten(result: Mapping[str, Any]) -> bool:
    parts = result.get("parts") or ()
    return bool(parts) and all((part.get("diagnosis") or {}).get("code") == "not_written" for part in parts)


def _results(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/result.json") if path.is_file())


T = TypeVar("T")


def _of_result(path: Path, read: Callable[[Mapping[str, Any]], T], otherwise: T) -> T:
    """Return `read(content)` of a result file, or `otherwise` if the file is invalid, for example edited by hand."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_RESULT_BYTES + 1)
        return read(json.loads(text)) if len(text) <= MOST_RESULT_BYTES else otherwise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return otherwise


def groups(outputs: Mapping[str, Iterable[WrongOutput]]) -> tuple[Group, ...]:
    """Return the groups of submissions that agree on at least LEAST_CASES cases of a part.

    `outputs` are the wrong outputs by submission id. If a part has wrong outputs of hidden cases, only these are
    compared, because students do not know hidden cases. A subset of a group is left out if it agrees on the same cases.
    Small groups come first, because a bug that only two students have is rarely a coincidence.
    """
    by_part: dict[str, list[tuple[str, WrongOutput]]] = defaultdict(list)
    for name, items in outputs.items():
        for item in items:
            by_part[item.part].append((name, item))
    found: list[Group] = []
    for part, items in by_part.items():
        hidden = any(item.hidden for _, item in items)
        found += _groups(part, hidden, [pair for pair in items if pair[1].hidden or not hidden])
    return tuple(sorted(found, key=lambda g: (len(g.members), -len(g.cases), g.part, g.members)))


def _groups(part: str, hidden: bool, items: list[tuple[str, WrongOutput]]) -> list[Group]:
    """Return the groups of one part from (submission id, wrong output). `hidden`: the outputs are of hidden cases."""
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    words: dict[str, str] = {}
    for name, item in items:
        owners[item.case, item.digest].add(name)
        words[name] = item.words
    sharing = {frozenset(names) for names in owners.values() if len(names) > 1}
    # Each set holds the submissions with one output. Submissions in two sets agree on both outputs, so they form a
    # group, too.
    of_member = _by_member(sharing)
    sharing |= {
        both for sets in of_member.values() for a, b in combinations(sets, 2) if len(both := a & b) > 1
    }
    outputs: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)
    for (case, _), names in owners.items():
        for name in names:
            outputs[name].append((case, names))
    agreed = {
        members: tuple(sorted({case for case, names in outputs[min(members)] if members <= names}))
        for members in sharing
    }
    agreed = {members: cases for members, cases in agreed.items() if len(cases) >= LEAST_CASES}
    of_member = _by_member(agreed)
    return [
        Group(part, tuple(sorted(members)), cases, hidden, words[min(members)])
        for members, cases in agreed.items()
        if not any(members < other and cases == agreed[other] for other in of_member[min(members)])
    ]


def _by_member(sets: Iterable[frozenset[str]]) -> dict[str, list[frozenset[str]]]:
    found: dict[str, list[frozenset[str]]] = defaultdict(list)
    for members in sets:
        for member in members:
            found[member].append(members)
    return found


FOLDER = Path(__file__).parent
LONGEST_SHOWN = 200_000
"""Maximum number of characters that the page shows of one source."""


def write_page(
    path: Path,
    similarity: Similarity,
    shown: Sequence[Pair],
    groups: Sequence[Group],
    notes: Sequence[str] = (),
) -> None:
    """Write the page of groups and pairs. Raises UsageError if that fails; an old page then stays as it is."""
    with explained(f"cannot write {path}"):
        plainfile.write(path, page(similarity, shown, groups, notes))


def page(
    similarity: Similarity, shown: Sequence[Pair], groups: Sequence[Group], notes: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the HTML of the page in pieces."""
    from markupsafe import Markup, escape

    pages = environment(None, FOLDER)
    # The usual filter for untrusted text removes line breaks and cuts long texts. Sources need both.
    pages.filters["whole"] = lambda text: escape(harmless(text, "\ufffd"))
    style = Markup((FOLDER / "similar.css").read_text(encoding="utf-8"))
    yield from pages.get_template("similar.html").generate(
        style=style,
        policy=policy(style, ""),
        spread=_spread(similarity),
        notes=notes,
        groups=groups,
        pairs=[(pair, similarity.regions(pair)) for pair in shown],
        text=lambda name: similarity.sources[name].text[:LONGEST_SHOWN],
        pieces=_pieces,
    )


def _spread(similarity: Similarity) -> str:
    """Return sentences on the distribution of likeness over all pairs, so that a reader can recognise outliers."""
    count = len(similarity.sources)
    total = count * (count - 1) // 2 - similarity.earlier * (similarity.earlier - 1) // 2
    if not total:
        return f"{count} submission: nothing to compare."
    likenesses = [pair.likeness for pair in similarity.pairs]
    likenesses += [0.0] * (total - len(likenesses))
    usual, rare = likenesses[total // 2], likenesses[total // 100]
    return (
        f"{count} submissions, {plural(total, 'pair')}. Half of the pairs are alike by no more than {usual:.0%}, "
        f"99 in 100 by no more than {rare:.0%}. Read the pairs far above that."
    )


def _pieces(text: str, regions: Sequence[SharedRegion], side: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the shared region from 1, or 0 outside; piece of the text). `side` is "left" or "right"."""
    place = 0
    for (start, end), at in sorted((getattr(region, side), at) for at, region in enumerate(regions, start=1)):
        yield from ((0, text[place:start]), (at, text[start:end]))
        place = max(place, end)
    yield 0, text[place:]
