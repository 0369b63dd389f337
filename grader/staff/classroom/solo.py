"""`grader one`: grade one submission as in a class, and print the result on the terminal or for GitHub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grader import sandbox, score, submission
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.core import pythontree
from grader.core.errors import EXIT_SUBMISSION, UsageError
from grader.core.results import exit_code
from grader.judge.evaluate import evaluate
from grader.judge.events import Listener
from grader.report import feedback, github, result_json
from grader.report.github import Sources
from grader.report.machines import Row
from grader.report.terminal import Terminal
from grader.staff import options
from grader.staff.classroom.gradebook import conditions_text, score_text
from grader.staff.classroom.worker import bounded
from grader.submission import Submission, companions_of


def run(
    path: Path,
    config: Path,
    *,
    seed: int | None,
    timing: bool,
    tier: str | None,
    trust: bool,
    json_file: Path | None,
    for_github: bool = False,
) -> int:
    """Grade the submission at `path`, and print the result. Return the exit code.

    `timing`: measure times. `trust`: allow a sandbox below tier C. `for_github`: print only the student's feedback and
    GitHub's annotations, because students can read a workflow's log. Raises UsageError for a missing path or folder.
    """
    assignment = load(config, seed)
    if json_file and not json_file.absolute().parent.is_dir():
        raise UsageError(f"--json: the folder {json_file.absolute().parent} does not exist")
    if for_github:
        github.can_write()
    box = sandbox.choose(tier, trust)
    with tempfile.TemporaryDirectory(prefix="gpt149-one-", ignore_cleanup_errors=True) as scratch:
        only = submission.find_one(path, assignment.source, Path(scratch) / "submission")
        terminal = Terminal(ladder=assignment.lab.ladder())
        listener: Listener = (lambda event: None) if for_github else terminal
        if only.source is None and not for_github:
            terminal.say(f"{path}: {only.error}")
            return EXIT_SUBMISSION
        sources = _sources(path, only, assignment)
        if only.source is None:
            result = score.unreadable(
                assignment, only.id, only.error or f"there is no {assignment.source} in it"
            )
        else:
            result = evaluate(
                assignment,
                only.source,
                assignment.select("all"),
                options(assignment, timing),
                listener,
                sandbox=box,
            )
    late_s = score.lateness_s(assignment, only.submitted_at) if only.submitted_at else None
    scored = score.score(assignment, result, late_s=late_s)
    if json_file:
        result_json.write(bounded(result, only.id), scored, json_file)
    if for_github:
        result = bounded(result, only.id)
        with github.muted():
            print(feedback.feedback(assignment, Row(only.id, only.name, "", result, scored, None)))
        github.publish(assignment, result, scored, sources)
    else:
        terminal.scoreboard(result, scored)
        terminal.say(conditions_text(result))
        terminal.say(score_text(scored))
    return exit_code(result.parts)


def _sources(path: Path, only: Submission, assignment: Assignment) -> Sources:
    """Return the student's files for GitHub's annotations.

    Their paths are relative to $GITHUB_WORKSPACE or, if that is not set, to the working directory.
    """
    given = path if path.is_file() else path / only.origin
    found = given if only.origin and given.is_file() else github.repository() / assignment.source
    names = (assignment.source, *companions_of(assignment.source))
    places = {name: found.parent / name for name in names} | {assignment.source: found}
    files = (
        {name: only.path / name for name in names}
        if only.path
        else {assignment.source: path / assignment.source}
    )
    imported = pythontree.members(found) if found.is_file() else {}
    return github.sources({**files, **imported}, {**places, **imported})
