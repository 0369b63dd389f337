"""Page `similar.html`: pairs of similar submissions side by side, for a person to judge. One file without scripts.

Students' texts are escaped, and control characters and changes of text direction are replaced. The page's security
policy allows only its own style sheet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from grader.core import wholefile
from grader.core.errors import explained
from grader.core.harmless import harmless
from grader.report.html import environment, policy
from grader.staff.similarity.agreement import Group
from grader.staff.similarity.passages import Pair, SharedRegion, Similarity

FOLDER = Path(__file__).parent
LONGEST_SHOWN = 200_000
"""Maximum number of characters that the page shows of one source."""


def write(
    path: Path,
    similarity: Similarity,
    shown: Sequence[Pair],
    groups: Sequence[Group],
    notes: Sequence[str] = (),
) -> None:
    """Write the page in one step: `notes`, `groups`, and the `shown` pairs side by side. Raises UsageError if it cannot
    be written."""
    with explained(f"cannot write {path}"):
        wholefile.write(path, page(similarity, shown, groups, notes))


def page(
    similarity: Similarity, shown: Sequence[Pair], groups: Sequence[Group], notes: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the HTML of the page in pieces."""
    from markupsafe import Markup, escape

    pages = environment(None, FOLDER)
    # Unlike the usual filter for untrusted text, this one keeps line breaks and cuts nothing.
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
    """Return a sentence on the likeness of all pairs in this class, by which a reader can recognise outliers."""
    count = len(similarity.sources)
    total = count * (count - 1) // 2
    if not total:
        return f"{count} submission: nothing to compare."
    likenesses = [pair.likeness for pair in similarity.pairs]
    likenesses += [0.0] * (total - len(likenesses))
    usual, rare = likenesses[total // 2], likenesses[total // 100]
    return (
        f"{count} submissions, {total} pairs. Half of the pairs are alike by no more than {usual:.0%}, "
        f"99 in 100 by no more than {rare:.0%}. Read the pairs far above that."
    )


def _pieces(text: str, regions: Sequence[SharedRegion], side: str) -> Iterator[tuple[int, str]]:
    """Yield the text in pieces, as (number of the shared region from 1, or 0; text). `side` is "left" or "right"."""
    place = 0
    for (start, end), at in sorted((getattr(region, side), at) for at, region in enumerate(regions, start=1)):
        yield from ((0, text[place:start]), (at, text[start:end]))
        place = max(place, end)
    yield 0, text[place:]
