"""Collection of the bad accesses that sanitizers report over many calls, by their places in the student's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grader.backends.native import sanitize
from grader.backends.native.sanitize import Frame, SanitizerReport
from grader.core.results import Diagnosis
from grader.runner.session import Session

MOST_SHOWN = 5


@dataclass(frozen=True)
class Site:
    """One reported place, and the input on which it was first reported: "'ragged', B=2 H=3 N=103 d=40"."""

    report: SanitizerReport
    where: str


@dataclass
class Sites:
    """Reports of the sanitizers so far, one for each place."""

    source: Path
    program: Path | None = None
    found: list[Site] = field(default_factory=list)

    def look(self, session: Session, where: str) -> None:
        """Add the reports that a runner has printed so far, after a call on the input `where`."""
        known = {site.report.place for site in self.found}
        said = session.printed
        if self.program is not None:
            said = sanitize.with_lines(said, self.program)
        for report in sanitize.reports(said, self.source):
            if report.place not in known:
                self.found.append(Site(report, where))
        # Drop reports without a line of the student's file if others have one.
        self.found = [site for site in self.found if site.report.frames] or self.found

    def diagnosis(self, hidden: bool | None = None) -> Diagnosis:
        return Diagnosis("sanitizer", words(self.found, self.source.name), hidden=hidden)


def of_value(sites: Sequence[Site]) -> str:
    """Return the first site's headline if all errors are in values (an overflow, say); "" if one is a wrong access."""
    return sites[0].report.of_value if sites and all(site.report.of_value for site in sites) else ""


def words(sites: Sequence[Site], file_name: str) -> str:
    """Return text for a student with the sites in the order of their calls. The first MOST_SHOWN have source lines."""
    count = len(sites)
    lines = (
        [] if count == 1 else [f"{count} places, in order. Fix the first: the others may disappear with it."]
    )
    for number, site in enumerate(sites[:MOST_SHOWN], 1):
        lead = f"{number}. " if count > 1 else ""
        message = site.report.message
        lines.append(f"{lead}{message[:1].upper()}{message[1:].rstrip('.')}, on {site.where}.")
        lines += _lines(site.report, file_name)
    if count > MOST_SHOWN:
        rest = ", ".join(str(site.report.place[-1]) for site in sites[MOST_SHOWN:] if site.report.place)
        lines.append(f"... and {count - MOST_SHOWN} more, in lines {rest}")
    return "\n".join(lines)


def _lines(report: SanitizerReport, file_name: str) -> list[str]:
    """Return the student's lines of a report, the innermost call first, then the line that allocated the array."""
    frames = [frame for frame in report.frames if not frame.text.startswith("#")] or report.frames
    shown = [f"  {_line(frame, file_name)}" for frame in frames[:3]]
    if report.made is not None and report.made not in report.frames:
        shown.append(f"  the array was allocated in {_line(report.made, file_name)}")
    return shown


def _line(frame: Frame, file_name: str) -> str:
    return f"{file_name}:{frame.line}: {frame.text.strip()}"
