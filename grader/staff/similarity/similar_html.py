"""Page `similar.html`: pairs of similar submissions side by side, for a person to judge. One file without scripts.

Students' texts are escaped; control characters and changes of text direction are removed. The page's security policy
allows nothing but its own styles.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from grader.core import wholefile
from grader.core.errors import explained
from grader.core.harmless import harmless
from grader.staff.similarity.agreement import Group
from grader.staff.similarity.passages import Pair, SharedRegion, Similarity

LONGEST_SHOWN = 200_000
"""Number of characters of one source that the page shows."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1500px; padding: 1rem; color: #1b1f24;
       overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #ddd; }
th, td.n { overflow-wrap: normal; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.two { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: .6rem; }
pre { font: 12px/1.4 ui-monospace, monospace; background: #f6f8fa; padding: .6rem; margin: 0; max-height: 80vh;
      overflow: auto; }
mark { background: #ffe28a; } mark:nth-of-type(even) { background: #b9e3ff; } mark:target { outline: 2px solid #c33; }
mark a { color: #555; text-decoration: none; font-size: 10px; margin-right: .3em; }
p.note { max-width: 60rem; } .quiet { color: #555; }
@media (max-width: 700px) { .two { grid-template-columns: minmax(0, 1fr); } pre { max-height: 60vh;
      white-space: pre-wrap; } }
"""


def write(
    path: Path,
    similarity: Similarity,
    shown: Sequence[Pair],
    groups: Sequence[Group],
    notes: Sequence[str] = (),
) -> None:
    """Write the page, whole or not at all: `notes`, `groups`, and the `shown` pairs side by side. Raises UsageError if
    it cannot be written."""
    with explained(f"cannot write {path}"):
        wholefile.write(path, page(similarity, shown, groups, notes))


def page(
    similarity: Similarity, shown: Sequence[Pair], groups: Sequence[Group], notes: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the HTML of the page in pieces."""
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Submissions that are alike</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body>\n<h1>Submissions that are alike</h1>\n"
        '<p class="note">Similarity is a sign, not a proof, and never changes points. Names, numbers, comments, '
        "layout and text of the starter do not count. Two students who never met can write the same loop, since the "
        "assignment leaves few ways to write it: read both files before you ask anybody.</p>\n"
    )
    yield f'<p class="note">{_spread(similarity)}</p>\n'
    if notes:
        yield f'<ul class="note">{"".join(f"<li>{_text(note)}</li>" for note in notes)}</ul>\n'
    yield from _group_table(groups)
    regions = [similarity.regions(pair) for pair in shown]
    yield from _pair_table(shown, regions)
    for number, (pair, common) in enumerate(zip(shown, regions, strict=True), start=1):
        yield from _side_by_side(similarity, pair, common, number)
    yield "</body></html>\n"


def _spread(similarity: Similarity) -> str:
    """Describe the likeness of all pairs in this class in a sentence, so that outliers can be seen."""
    count = len(similarity.sources)
    total = count * (count - 1) // 2
    if not total:
        return f"{count} submission: nothing to compare."
    likenesses = [pair.likeness for pair in similarity.pairs]
    likenesses += [0.0] * (total - len(likenesses))
    usual, rare = likenesses[total // 2], likenesses[total // 100]
    return (
        f"{count} submissions, {total} pairs. Half of the pairs are alike by no more than {usual:.0%}, "
        f"99 in 100 by no more than {rare:.0%}; pairs far above that are worth reading."
    )


def _group_table(groups: Sequence[Group]) -> Iterator[str]:
    if not groups:
        return
    yield (
        "<h2>Wrong outputs that agree to the last bit</h2>\n"
        '<p class="note">Same bug, same order of summation. A common bug can be a coincidence, a rare one hardly. '
        "Equal right outputs mean nothing and are not listed.</p>\n"
        '<div class="wide" role="region" aria-label="Wrong outputs" tabindex="0">'
        "<table><tr><th>part</th><th>submissions</th><th>on</th><th>what is wrong</th></tr>\n"
    )
    for group in groups:
        kind = "hidden inputs" if group.hidden else "public inputs"
        members = ", ".join(_text(name) for name in group.members)
        cases = ", ".join(_text(name) for name in group.cases)
        yield (
            f"<tr><td>{_text(group.part)}</td><td>{members}</td>"
            f"<td>{len(group.cases)} {kind}: {cases}</td><td>{_text(group.words[:300])}</td></tr>\n"
        )
    yield "</table></div>\n"


def _pair_table(shown: Sequence[Pair], regions: Sequence[tuple[SharedRegion, ...]]) -> Iterator[str]:
    yield "<h2>Pairs, the most alike first</h2>\n"
    if not shown:
        yield "<p>No two submissions have code in common, apart from the starter.</p>\n"
        return
    yield (
        '<div class="wide" role="region" aria-label="Pairs" tabindex="0">'
        '<table><tr><th class="n">#</th><th class="n">alike</th>'
        '<th class="n">longest run</th><th>one</th><th>the other</th></tr>\n'
    )
    for number, (pair, common) in enumerate(zip(shown, regions, strict=True), start=1):
        longest = max((region.tokens for region in common), default=0)
        yield (
            f'<tr><td class="n"><a href="#p{number}">{number}</a></td><td class="n">{pair.likeness:.0%}</td>'
            f'<td class="n">{longest} tokens</td><td>{_text(pair.left)}</td>'
            f"<td>{_text(pair.right)}</td></tr>\n"
        )
    yield "</table></div>\n"


def _side_by_side(
    similarity: Similarity, pair: Pair, regions: Sequence[SharedRegion], number: int
) -> Iterator[str]:
    numbered = list(enumerate(regions, start=1))
    yield (
        f'<h2 id="p{number}">{number}. {_text(pair.left)} and {_text(pair.right)}: {pair.likeness:.0%}</h2>\n'
        f'<p class="quiet">{len(regions)} common regions, {sum(r.tokens for r in regions)} tokens. '
        'Each number links to the same region on the other side.</p>\n<div class="two">'
    )
    for side, other in (("left", "right"), ("right", "left")):
        spans = sorted((*_span(region, side), at) for at, region in numbered)
        text = similarity.sources[getattr(pair, side)].text
        yield f"<div><p>{_text(getattr(pair, side))}</p><pre tabindex='0'>"
        yield from _marked(text[:LONGEST_SHOWN], spans, f"p{number}{side[0]}", f"p{number}{other[0]}")
        yield "</pre></div>\n"
    yield "</div>\n"


def _span(region: SharedRegion, side: str) -> tuple[int, int]:
    return region.left if side == "left" else region.right


def _marked(text: str, spans: Iterable[tuple[int, int, int]], own: str, other: str) -> Iterator[str]:
    """Yield the HTML of a text with its shared regions marked. Each has an anchor, and a link to the same region in the
    other text."""
    place = 0
    for start, end, at in spans:
        yield _text(text[place:start])
        yield f'<mark id="{own}{at}"><a href="#{other}{at}">{at}</a>{_text(text[start:end])}</mark>'
        place = max(place, end)
    yield _text(text[place:])


def _text(text: str) -> str:
    return html.escape(harmless(text, "\ufffd"), quote=True)
