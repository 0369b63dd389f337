"""Differences between two reports of a class: by student and part, the points before and after, and the reason.

The points come from `grades.csv`, which students may have seen. The reasons come from the ledger and each
`result.json`: another file, other cases, another time, another kit or machine. If none of these differs, the reason is
a change of the rubric, or of the points that the staff entered by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.core.harmless import one_line
from grader.core.places import GRADER_COMMAND
from grader.core.quantities import shortened
from grader.core.results import PartResult, SubmissionResult
from grader.report.grades_csv import csv_line, safe_text
from grader.report.terminal import padded
from grader.report.words import number, ratio
from grader.staff.classroom import byhand, ledger
from grader.staff.classroom.ledger import Record

GRADES, CHANGES = "grades.csv", "changes.csv"
BEFORE_POINTS, AFTER_POINTS = "submitted_at", "max_points"
NOT_POINTS = ("late_days", "extension_days", "slip_days")
"""Columns of `grades.csv` that hold numbers of days, although they are among the columns of points."""
MOST_NAMED, MOST_ROWS = 3, 60
COLUMNS = ("id", "part", "before", "after", "change", "why")


@dataclass(frozen=True)
class Standing:
    """Record in the ledger and result from which one student's points were computed; None if missing."""

    record: Record | None = None
    result: SubmissionResult | None = None

    def part(self, part_id: str) -> PartResult | None:
        parts = self.result.parts if self.result else ()
        return next((part for part in parts if part.id == part_id), None)

    @property
    def machine(self) -> str:
        facts = self.result.machine if self.result else {}
        if not facts:
            return ""
        here = f"{facts.get('processor', 'unknown processor')}, {facts.get('cores', '?')} cores"
        cluster = self.record.machine if self.record else ""
        return one_line(f"{cluster}: {here}" if cluster else here, 80)

    @property
    def compiler(self) -> str:
        return one_line(str(self.result.toolchain.get("compiler", "")), 60) if self.result else ""


@dataclass
class Graded:
    """State of a results folder. `grades` are the rows of grades.csv and `records` the ledger's records, both by id."""

    folder: Path
    grades: Mapping[str, Mapping[str, str]]
    records: Mapping[str, Record]
    by_hand: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By student: the columns whose points come from the table of points by hand."""
    known: dict[str, Standing] = field(default_factory=dict)
    """Records and results that were read before a run overwrites them."""

    def standing(self, submission_id: str) -> Standing:
        if submission_id not in self.known:
            record = self.records.get(submission_id)
            return Standing(record, ledger.result(self.folder, submission_id))
        return self.known[submission_id]

    def keep(self, submission_ids: Iterable[str]) -> Graded:
        """Read the results of these submissions into memory, because a run will overwrite them. Return this object."""
        for name in submission_ids:
            self.known[name] = self.standing(name)
        return self


@dataclass(frozen=True)
class Change:
    """Change of one student's points in one column. `before` and `after` are None for points that are still open."""

    submission_id: str
    part: str
    before: float | None
    after: float | None
    why: str

    @property
    def by(self) -> float:
        return (self.after or 0.0) - (self.before or 0.0)


def read(folder: Path) -> Graded:
    """Return the state of a results folder. Raises UsageError without a ledger or a readable grades.csv."""
    history = ledger.read(folder)
    if not history.runs:
        raise UsageError(f"{folder} holds no {ledger.LEDGER}: name the --out folder of a run")
    path = folder / GRADES
    if not path.is_file():
        raise UsageError(f"{folder} holds no {GRADES}: write it with `{GRADER_COMMAND} report {folder}`")
    _, rows = byhand.table(path)
    table = folder / (history.manual or byhand.MANUAL)
    by_hand = byhand.read_manual(table) if table.is_file() else {}
    return Graded(folder, {row["id"]: row for _, row in rows}, dict(history.records), by_hand)


def before(folder: Path, regraded: Iterable[str] = ()) -> Graded | None:
    """Return the state before new reports are written, or None if no earlier reports exist.

    `regraded` are the ids of submissions whose results a run will overwrite: these results are read now.
    """
    try:
        return read(folder).keep(regraded)
    except UsageError:
        return None


def between(old: Graded, new: Graded) -> list[Change]:
    """Return the changes of points of all students who are in both states, in the order of `new.grades`."""
    found: list[Change] = []
    for name, row in new.grades.items():
        earlier = old.grades.get(name)
        if earlier is None:
            continue
        columns = [column for column in _points_columns(row) if earlier.get(column, "") != row[column]]
        standings = (old.standing(name), new.standing(name)) if columns else (Standing(), Standing())
        for column in columns:
            by_hand = any(column in state.by_hand.get(name, ()) for state in (old, new))
            why = "by hand" if by_hand else _why(column, earlier, row, *standings)
            found.append(Change(name, column, _points(earlier.get(column)), _points(row[column]), why))
    return found


def _points_columns(row: Mapping[str, str]) -> list[str]:
    names = list(row)
    if BEFORE_POINTS not in names or AFTER_POINTS not in names:
        raise UsageError(
            f"a {GRADES} of the kit has the columns '{BEFORE_POINTS}' and '{AFTER_POINTS}': this table lacks one"
        )
    points = names[names.index(BEFORE_POINTS) + 1 : names.index(AFTER_POINTS)]
    return [name for name in points if name not in NOT_POINTS]


def _points(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _why(
    column: str, earlier: Mapping[str, str], row: Mapping[str, str], old: Standing, new: Standing
) -> str:
    """Return the likely causes of a change in one column of grades.csv, such as "source: another file".

    `earlier` and `row` are the student's old and new row; `old` and `new` are the records and results behind them.
    """
    if column == "total":
        return ""
    if column == "late_penalty":
        days = [
            f"{name.replace('_', ' ')} {earlier.get(name) or 0} -> {row.get(name) or 0}"
            for name in NOT_POINTS
            if (earlier.get(name) or "0") != (row.get(name) or "0")
        ]
        return f"late: {', '.join(days) or 'another penalty'}"
    if f"{column}_verdict" not in row:
        return "by hand"
    then, now = old.part(column), new.part(column)
    causes = _evidence(then, now) if then and now else []
    if old.record and new.record:
        prints, later = old.record.fingerprints, new.record.fingerprints
        if prints.source != later.source:
            causes.insert(0, "source: another file")
        if not causes:
            # `grader report` applies a changed rubric to old records. So a rubric may have changed although the
            # records have equal fingerprints.
            most = earlier.get("max_points"), row.get("max_points")
            is_rubric = prints.assignment != later.assignment or most[0] != most[1]
            return "rubric" if is_rubric else "rubric or by hand"
        causes += [
            name
            for name in ("assignment", "kit", "settings")
            if getattr(prints, name) != getattr(later, name)
        ]
    if old.machine != new.machine:
        causes.append("machine")
    if old.compiler != new.compiler:
        causes.append("compiler")
    return "; ".join(causes) or "rubric or by hand"


def _evidence(then: PartResult, now: PartResult) -> list[str]:
    """Return one text for each difference between two results of a part, with the values before and after."""
    found = []
    verdicts = f" ({then.verdict} -> {now.verdict})" if then.verdict != now.verdict else ""
    wrong, later = (
        {
            case.name: f"'{one_line(case.name, 40)}'" + (" (hidden)" if case.hidden else "")
            for case in part.cases
            if not case.ok
        }
        for part in (then, now)
    )
    cases = [
        f"{word} {shortened([text for name, text in these.items() if name not in those], MOST_NAMED)}"
        for word, these, those in (("right now:", wrong, later), ("wrong now:", later, wrong))
        if these.keys() - those.keys()
    ]
    if cases:
        found.append(f"case: {', '.join(cases)}{verdicts}")
    if then.time and now.time and (then.verdict, now.verdict) != ("wrong", "wrong"):
        texts = [
            f"{ratio(t.ratio)} ({ratio(t.ratio_interval[0])} to {ratio(t.ratio_interval[1])})"
            for t in (then.time, now.time)
        ]
        if texts[0] != texts[1]:
            found.append(f"time: {' -> '.join(texts)}{'' if found else verdicts}")
    if verdicts and not found:
        found.append(f"verdict:{verdicts.replace('(', '').replace(')', '')}")
    return found


# ---- text


def lines(old: Graded, new: Graded, found: Sequence[Change], most: int = MOST_ROWS) -> list[str]:
    """Return lines for a terminal: a summary of the changes `found`, and a table with at most `most` rows."""
    both = [name for name in new.grades if name in old.grades]
    totals = [change for change in found if change.part == "total"]
    rose, fell = (sum(sign * change.by > 0 for change in totals) for sign in (1, -1))
    names = dict.fromkeys(change.submission_id for change in found)
    text = [
        f"points of {len(names)} of {len(both)} submissions changed (totals: {rose} rose, {fell} fell)"
        if names
        else f"points of none of {len(both)} submissions changed"
    ]
    text += _contexts(old, new, names)
    rows = [
        (one_line(c.submission_id, 48), c.part, _shown(c.before), "->", _shown(c.after), f"{c.by:+g}", c.why)
        for c in found
    ]
    text += ["  ".join(row).rstrip() for row in padded(rows, range(2, 6))[:most]]
    if len(rows) > most:
        text.append(f"... {len(rows) - most} more rows")
    for state, other in ((old, new), (new, old)):
        only = [name for name in state.grades if name not in other.grades]
        if only:
            text.append(f"only in {state.folder}: {shortened(only)}")
    return text


def _contexts(old: Graded, new: Graded, names: Collection[str]) -> Iterator[str]:
    """Yield one line for each change of machine or compiler, with the students in `names` whose results it affects."""
    for label in ("machine", "compiler"):
        pairs: dict[tuple[str, str], list[str]] = {}
        for name in names:
            then, now = getattr(old.standing(name), label), getattr(new.standing(name), label)
            if then and now and then != now:
                pairs.setdefault((then, now), []).append(name)
        for (then, now), moved in pairs.items():
            yield f"{label} {then} -> {now}: {shortened(moved)}"


def _shown(points: float | None) -> str:
    return "open" if points is None else number(points)


def write_csv(path: Path, found: Sequence[Change]) -> None:
    """Write the table of changes as CSV. Raises UsageError if the file cannot be written."""
    cells = (
        (
            safe_text(c.submission_id),
            c.part,
            *("" if points is None else number(points) for points in (c.before, c.after, c.by)),
            safe_text(c.why),
        )
        for c in found
    )
    with explained(f"cannot write {path}"):
        plainfile.write(path, [csv_line(COLUMNS), *map(csv_line, cells)], encoding="utf-8-sig")


def diff(old: Path, new: Path, table: Path | None) -> int:
    """Print the changes from one results folder to another, and write them to `table` if given. Return exit code 0."""
    states = read(old), read(new)
    found = between(*states)
    print("\n".join(lines(*states, found, most=len(found))))
    if table is not None:
        write_csv(table, found)
        print(f"wrote {table}")
    return 0
