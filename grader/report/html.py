"""`report.html`: the class on one page, for the staff. It is one file and needs no network.

All text goes through `words`, which removes control characters, and then through jinja2's escaping. The page's
Content-Security-Policy allows only its own style sheet and script, both by digest. So even injected markup could not
run a script. The script only sorts and filters: the page can be read without it.

A student's section and table row are rendered when the row is added, and kept in temporary files. The overview above
them is computed at the end, when the page is written.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import tempfile
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.results import PartResult
from grader.report import charts, words
from grader.report.machines import APART, Machine, compared, load_text, load_warning
from grader.report.tally import Link, Links, Tally, flags_of, sandbox_words
from grader.report.terminal import VERDICT_WORDS

if TYPE_CHECKING:
    from grader.assignment.labs import Ladder
    from grader.report.machines import Row

TEMPLATES = Path(__file__).with_name("templates")
_COPY_CHARACTERS = 1 << 13


def missing_library() -> str | None:
    """Return "jinja2" if this package, which HTML pages need, is not installed; else None."""
    return None if importlib.util.find_spec("jinja2") else "jinja2"


class Report:
    """Collector of the students' rows, which are added one at a time. `write` then makes the page."""

    def __init__(self, assignment: Assignment, made_at: datetime, machines: Collection[Machine] = ()) -> None:
        self.assignment, self.made_at = assignment, made_at
        self.machines, (self.apart, self.spreads) = machines, compared(machines)
        self.judged: dict[str, Links] = {}
        """Links to the students whom each machine judged, by machine name."""
        self.tally = Tally(assignment)
        self.pages = environment(self.tally.ladder)
        self._rows = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._sections = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._sections.close()

    def add(self, row: Row) -> None:
        name = words.line(row.name or row.submission_id, 60)
        link = Link(f"s{self.tally.submissions + 1}", name)
        self.tally.add(row, link)
        if row.machine:
            self.judged.setdefault(row.machine, Links()).add(link)
        context = {
            "row": row,
            "link": link,
            "zone": words.zone_of(self.assignment),
            "columns": list(self.tally.parts),
            "points": {part_id: row.part_points(part_id) for part_id in self.tally.parts},
            "parts": {part.id: part for part in row.result.parts} if row.result else {},
            "lines": {line.id: line for line in row.score.lines} if row.score else {},
            "flags": flags_of(row.result) if row.result else [],
            "sandbox": sandbox_words(row.result) if row.result else "",
        }
        self._rows.write(self.pages.get_template("row.html").render(context))
        self._sections.write(self.pages.get_template("student.html").render(context))

    def write(self, path: Path) -> None:
        """Write the page. Raises OSError if it cannot be written."""
        from markupsafe import Markup

        style, script = (
            Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in ("report.css", "report.js")
        )
        tally = self.tally
        limits = charts.ratio_limits(
            [dot.ratio for part in tally.parts.values() for dot in part.dots],
            [allowance for part in tally.parts.values() for allowance in part.allowances],
        )
        pieces = self.pages.get_template("report.html").generate(
            assignment=self.assignment,
            fingerprint=getattr(self.assignment, "fingerprint", ""),
            made_at=self.made_at,
            style=style,
            script=script,
            policy=policy(style, script),
            tally=tally,
            machines=self.machines,
            spreads=self.spreads,
            judged=self.judged,
            apart=self.apart,
            apart_share=APART,
            median=median(tally.totals) if tally.totals else None,
            histogram=Markup(charts.histogram(tally.totals, tally.max_points)),
            cards=self._cards(limits),
            rows=_pieces(self._rows),
            sections=_pieces(self._sections),
        )
        plainfile.write(path, pieces)

    def _cards(self, limits: tuple[float, float]) -> list[list[dict[str, Any]]]:
        """Return the columns of the overview. A card has the figures of one part.

        Columns with up to three untimed parts come first, then columns with one timed part each.
        """
        cards = [self._card(part, limits) for part in self.tally.parts.values()]
        small = [card for card in cards if not card["ratios"]]
        columns = [small[k : k + 3] for k in range(0, len(small), 3)]
        return columns + [[card] for card in cards if card["ratios"]]

    def _card(self, part: Any, limits: tuple[float, float]) -> dict[str, Any]:
        from markupsafe import Markup

        ratios = [dot.ratio for dot in part.dots]
        middle = {word: median(shares) for word, shares in part.rungs.items()}
        counts = {verdict: part.verdicts[verdict] for verdict in VERDICT_WORDS if part.verdicts[verdict]}
        return {
            "part": part,
            "counts": counts,
            "bar": Markup(charts.verdict_bar(counts)),
            "speed_up": (1 / median(ratios), 1 / min(ratios)) if ratios else None,
            "slow": sum(dot.slow for dot in part.dots),
            "ratios": Markup(charts.ratios(part.dots, part.allowances, limits)) if part.dots else "",
            "ladder": Markup(charts.ladder(part.places, middle)) if part.places else "",
        }


def environment(ladder: Ladder | None, folder: Path = TEMPLATES) -> Any:
    """Return a jinja2 environment for the templates in a folder, which escapes texts and removes harmful characters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Clean and cut each text, because a template may use a text without a filter that does so.
        finalize=lambda value: words.block(value, 8000) if type(value) is str else value,
    )
    pages.filters.update(
        line=words.line,
        block=words.block,
        number=words.number,
        verdict=words.verdict_words,
        ratio=words.ratio,
        ms=words.milliseconds,
        size=words.size,
        peak=words.peak,
        error=words.error,
        shape=words.shape,
        moment=words.moment,
        plural=lambda count, one, many="": words.plural(count, one, many),
        coded=lambda code: words.line(code, 80).replace("_", " "),
    )
    pages.globals.update(ladder=ladder, load_text=load_text, load_warning=load_warning)
    pages.globals.update(marks=words.VERDICT_MARKS, verdicts=VERDICT_WORDS)
    pages.globals.update(
        interval=lambda part: Markup(_interval(part)), share=lambda *counts: Markup(charts.share(*counts))
    )
    return pages


def document(template: str, ladder: Ladder | None, **context: Any) -> str:
    """Return the HTML of a page about one submission, with the style sheet page.css and without a script."""
    from markupsafe import Markup

    style = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    page = environment(ladder).get_template(template)
    return str(page.render(context, style=style, script="", policy=policy(style, "")))


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows only this style sheet and this script; "" stands for no script."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    allowed = f"'sha256-{digest(script)}'" if script else "'none'"
    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )


def _interval(part: PartResult) -> str:
    time = part.time
    if time is None:
        return ""
    allowance = None if "not_graded" in time.flags else time.allowance
    return charts.interval(time.ratio, time.ratio_interval, allowance)


def _pieces(file: Any) -> Iterator[Any]:
    """Yield the rendered markup in a file, in pieces that jinja2 does not escape again."""
    from markupsafe import Markup

    file.seek(0)
    while piece := file.read(_COPY_CHARACTERS):
        yield Markup(piece)
