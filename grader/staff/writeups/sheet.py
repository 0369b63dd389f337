"""The table of points that people give, made or updated from the write-ups. It never gives or takes a point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from grader.core import wholefile
from grader.core.errors import UsageError
from grader.report.grades_csv import csv_line, safe_text
from grader.report.progress import shortened
from grader.staff.classroom import ledger, manual

#: What each remark of this room begins with, so that it can be told from a person's.
MARK = "write-up: "


def update(path: Path, remarks: Mapping[str, tuple[str, str]], item: str, results: Path | None) -> str:
    """Bring the table in `path` up to date; returns lines that say what changed.

    `remarks` are (name, remark) by id. Rows and cells that are there stay as they are, but for the comment, which the
    remark fills in where it is empty or was a remark before. With `results`, everybody on that class's roster has a
    row, and a write-up of nobody on it has none, which a line says. Raises UsageError with file and line, and when none
    of the write-ups is of that class.
    """
    rows = _read(path, item)
    by_id = {row["id"]: row for row in rows}
    before, note = len(rows), ""
    if results is not None:
        remarks, note = _with_roster(remarks, results)
    for name, (title, remark) in remarks.items():
        row = by_id.get(name)
        if row is None:
            row = {"id": name, "name": safe_text(title) if title != name else "", item: "", "comment": ""}
            rows.append(row)
        if not row.get("comment") or row["comment"].startswith(MARK):
            row["comment"] = safe_text(MARK + remark) if remark else ""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [csv_line(columns), *(csv_line(row.get(column, "") for column in columns) for row in rows)]
    wholefile.write(path, lines)
    pending = sum(not row.get(item) for row in rows)
    told = f"wrote {path}: {len(rows)} rows, {len(rows) - before} of them new, {pending} without points for {item}"
    return f"{told}\n{note}" if note else told


def _read(path: Path, item: str) -> list[dict[str, str]]:
    """The rows that are there, once `manual` has nothing against them; every one with the item's column."""
    if not path.exists():
        return []
    manual.read_manual(path)
    _, rows = manual.table(path)
    return [{**row, item: row.get(item, ""), "comment": row.get("comment", "")} for _, row in rows]


def _with_roster(
    remarks: Mapping[str, tuple[str, str]], results: Path
) -> tuple[dict[str, tuple[str, str]], str]:
    """The remarks by id for everybody on the roster, and a note about those who are not on it, or ""."""
    roster = {entry.submission_id: entry.name for entry in ledger.read(results).roster}
    if not roster:
        raise UsageError(f"{results} holds no class: name the folder that was --out of a run")
    strangers = [name for name in remarks if name not in roster]
    advice = (
        "hand in the write-ups as the class's sources were (same folder or export), so that their ids agree"
    )
    if strangers and len(strangers) == len(remarks):
        raise UsageError(
            f"no submission in {results} is called '{strangers[0]}', nor as any other write-up: {advice}"
        )
    note = ""
    if strangers:
        note = f"note: {len(strangers)} write-ups are of nobody in {results} and get no row: {shortened(strangers)}"
        note += f"; if one is a student's, {advice}"
    kept = {name: (title, remarks[name][1] if name in remarks else "none") for name, title in roster.items()}
    return kept, note
