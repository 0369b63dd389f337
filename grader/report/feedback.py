"""Feedback for one student, as `feedback.txt` or as an HTML page.

It does not mention other students. About hidden cases it says only that one failed or that none did.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.results import PartResult, Score, ScoreLine, SubmissionResult
from grader.report import student, terminal, words
from grader.report.machines import load_warning
from grader.report.student import StudentView
from grader.report.terminal import OPEN, case_line, field, printed_text, time_text

if TYPE_CHECKING:
    from grader.report.machines import Row

RULE = "-" * 72
LONG = 200
"""A message of more characters or of several lines is printed once. Further parts with this message say "as above"."""


def write(assignment: Assignment, row: Row, folder: Path) -> None:
    """Write `folder/feedback.txt`. Raises OSError if it cannot be written or the folder is a link."""
    with plainfile.folder(folder, make=True) as place:
        # Do not wait for the disk: if a power cut loses the file, `grader report` can write it again from the results.
        plainfile.replace(place, "feedback.txt", [feedback(assignment, row).encode()], sync=False)


def feedback(assignment: Assignment, row: Row) -> str:
    """Return the text of feedback.txt for one student."""
    lines = [assignment.title, f"Feedback for {words.line(row.name or row.submission_id)}"]
    if row.submitted_at:
        extended = f"; {row.extended}" if row.extended else ""
        lines.append(f"Handed in {words.moment(row.submitted_at, words.zone_of(assignment))}{extended}")
    lines += ["", *summary(assignment, row), RULE]
    if row.result is not None:
        shown: set[str] = set()
        for view in student.views(assignment, row.result):
            line = score_line(row.score, view.part)
            lines += ["", *part_lines(view, line, shown, waits=view.part.id in row.waiting)]
        lines += ["", RULE]
    lines += points_lines(row.score)
    if row.result is not None and (sentence := words.judged_by(row.result.kit, row.result.machine)):
        lines += ["", sentence]
    return "\n".join(lines).rstrip() + "\n"


def html(assignment: Assignment, row: Row) -> str:
    """Return the feedback for one student as an HTML page, with a picture of the timed calls."""
    from markupsafe import Markup

    from grader.report.charts import rounds
    from grader.report.html import document

    views = student.views(assignment, row.result) if row.result else ()
    shown: set[str] = set()
    parts = []
    for view in views:
        line, time = score_line(row.score, view.part), view.part.time
        found = [(label, _once(text, shown)) for label, text in paragraphs(view, line)]
        parts.append(
            {
                "part": view.part,
                "line": line,
                "paragraphs": found,
                "rounds": Markup(rounds(time)) if time else "",
            }
        )
    return document(
        "feedback.html",
        None,
        assignment=assignment,
        row=row,
        name=row.name or row.submission_id,
        zone=words.zone_of(assignment),
        summary=summary(assignment, row),
        parts=parts,
    )


def summary(assignment: Assignment, row: Row) -> list[str]:
    """Return the first sentences: how many parts passed, and notes; or the reason for a missing verdict."""
    if row.trouble:
        kind = "" if row.result is not None else "There is no verdict on this submission. "
        return [f"{kind}{words.block(row.trouble, 1000)}"]
    if row.result is None:
        return ["There is no verdict on this submission yet."]
    views = student.views(assignment, row.result)
    lines = [passed_text(views)]
    if row.waiting:
        lines.append(not_judged(row.result, row.waiting))
    if warning := load_warning(row.result):
        lines.append(warning)
    if failed := hidden_failed(views):
        lines.append(failed)
    elif any(view.hidden_passed is not None for view in views):
        lines.append("None of the hidden tests that were run failed.")
    return lines


def passed_text(views: Sequence[StudentView]) -> str:
    return f"{sum(view.all_passed for view in views)} of {words.plural(len(views), 'part')} passed."


def hidden_failed(views: Sequence[StudentView]) -> str:
    """Return a text that names the parts with a failed hidden test, or "" if none failed."""
    failed = [view for view in views if view.hidden_passed is False]
    if not failed:
        return ""
    text = f"Hidden tests failed in: {', '.join(view.part.id for view in failed)}."
    only_hidden = all(view.public_passed for view in failed)
    return f"{text} Passing the public tests was not enough." if only_hidden else text


def not_judged(result: SubmissionResult, waiting: Sequence[str]) -> str:
    """Return a text on the parts in `waiting`, which the machine could not judge.

    It says that this is not the student's fault and that the points are still open.
    """
    tools = sorted({part.waits_for for part in result.parts if part.id in waiting} - {""})
    lacked = f"has no {' and no '.join(tools)}" if tools else "lacks a tool for them"
    return (
        f"Not judged yet: {', '.join(waiting)}. The grading machine {lacked}, which is not your fault: these points "
        "are open, and the total is not a grade until they are given."
    )


def score_line(score: Score | None, part: PartResult) -> ScoreLine:
    """Return the part's line of the score, or a line with 0 points if the score has none."""
    none = ScoreLine(part.id, part.title, 0.0, part.max_points, "")
    return next((line for line in (score.lines if score else ()) if line.id == part.id), none)


def part_lines(view: StudentView, line: ScoreLine, shown: set[str], *, waits: bool) -> list[str]:
    """Return the lines on one part: the verdict, then labelled paragraphs.

    `shown` are the messages printed so far; this part's messages are added. `waits`: the part could not be judged yet,
    so its points are open.
    """
    part = view.part
    most = line.max_points
    worth = f"  {OPEN if waits else words.number(line.points)} of {words.number(most)} points" if most else ""
    head = f"{part.id}: {words.line(part.title)} "
    lines = [f"{head}{'.' * max(2, 56 - len(head))} {words.verdict_words(part.verdict)}{worth}"]
    for name, text in paragraphs(view, line):
        lines += field(name, _once(text, shown))
    return lines


def _once(text: str, shown: set[str]) -> str:
    """Return the text, or "as above" if it is long or has several lines and is in `shown`. Add it to `shown`."""
    repeated = (len(text) > LONG or "\n" in text) and text in shown
    shown.add(text)
    return "as above" if repeated else text


def paragraphs(view: StudentView, line: ScoreLine | None = None) -> list[tuple[str, str]]:
    """Return (label, text) for each paragraph about a part, for feedback files and the reports to platforms."""
    part = view.part
    found = [("results", results_text(view))]
    if view.note:
        found.append(("note", view.note))
    if part.time:
        found.append(("time", time_text(part.time)))
    if part.memory:
        found.append(("memory", memory_text(part)))
    if part.output:
        found.append(("printed", printed_text(words.block(part.output, 2000))))
    rejected = [flag.message or flag.code for flag in part.flags if flag.level == "rejected"]
    if rejected:
        found.append(("rejected", "\n".join(words.line(text, 400) for text in rejected)))
    # Leave out the reason for a wrong part's points: it names the number of all inputs, and so of the hidden ones.
    if line and line.reason and not (part.verdict == "wrong" and view.hidden_passed is not None):
        found.append(("points", words.line(line.reason, 400)))
    return [(name, text) for name, text in found if text]


def part_text(view: StudentView, line: ScoreLine | None = None) -> str:
    """Return all paragraphs about a part as one text."""
    return "\n".join(f"{name}: {text}" for name, text in paragraphs(view, line))


def results_text(view: StudentView) -> str:
    """Return a text on the public inputs: how many are right or wrong, which are wrong, and the part's diagnosis."""
    part = view.part
    total, wrong = len(part.cases), [case for case in part.cases if not case.ok]
    public = "inputs" if view.hidden_passed is None else "public inputs"
    text = words.block(part.diagnosis.message, 3000, lines=40) if part.diagnosis else ""
    if part.verdict in ("pass", "slow", "wrong") and not wrong:
        return "\n".join([f"right on {total} of {total} {public}", *([text] if text else [])])
    if part.verdict == "wrong":
        names = ", ".join(f"'{words.line(case.name, 60)}'" for case in wrong)
        lines = [f"wrong on {len(wrong)} of {total} {public}: {names}", *([text] if text else [])]
        source = [case for case in wrong if case.diagnosis == part.diagnosis and case.max_error is not None]
        return "\n".join(lines + [case_line(case) for case in source][:1])
    return text or {
        "crash": "the process ended before the call returned",
        "timeout": "a call did not end within its time limit",
    }.get(part.verdict, "no result")


def memory_text(part: PartResult) -> str:
    """Return a text with the peak memory, to two significant digits, which suffice to notice an N x N matrix.

    With more digits, a kernel could reveal hidden inputs by the size of its allocations.
    """
    memory = part.memory
    if memory is None or not memory.peak_bytes:
        return ""
    theirs = memory.reference_peak_bytes
    beside = f" (reference {terminal.size(_two_digits(theirs))})" if theirs is not None else ""
    return f"true peak of the call: about {terminal.size(_two_digits(memory.peak_bytes))}{beside}"


def _two_digits(count: int) -> float:
    return float(f"{count:.1e}")


def points_lines(score: Score | None) -> list[str]:
    """Return the lines of the table of points; [] without a score."""
    if score is None:
        return []
    lines = []
    for line in score.lines:
        pending = line.id in score.pending
        points = "to come" if pending else words.number(line.points)
        most = f"of {words.number(line.max_points)}" if line.max_points else "extra"
        lines.append(f"{words.line(line.title or line.id, 50):<52}{points:>8} {most}")
    if score.late_days or score.penalty:
        days = words.plural(score.late_days, "day")
        lines.append(f"{'Late by ' + days:<52}{words.number(-score.penalty):>8}")
    total = OPEN if score.waiting else words.number(score.total)
    lines.append(f"{'Total':<52}{total:>8} of {words.number(score.max_points)}")
    if score.pending:
        lines.append(f"Not final: {', '.join(words.line(item, 60) for item in score.pending)}.")
    return lines
