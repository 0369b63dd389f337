"""One submission graded by the same path as a class, with its result on the terminal."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grader import sandbox, score, submission
from grader.assignment.loading import load
from grader.base.errors import UsageError
from grader.base.results import EXIT_SUBMISSION, exit_code
from grader.judge.evaluate import evaluate
from grader.report import result_json
from grader.report.terminal import Terminal
from grader.staff.classroom.gradebook import score_text
from grader.staff.classroom.worker import bounded, options


def run(
    path: Path,
    config: Path,
    *,
    seed: int | None,
    timing: bool,
    tier: str | None,
    trust: bool,
    json_file: Path | None,
) -> int:
    """Grade what `path` holds; returns the exit code.

    Raises UsageError when there is nothing at `path`, or the result cannot be written.
    """
    assignment = load(config, seed)
    if json_file and not json_file.absolute().parent.is_dir():
        raise UsageError(f"--json: no such folder: {json_file.absolute().parent}")
    box = sandbox.choose(tier, trust)
    with tempfile.TemporaryDirectory(prefix="gpt149-one-", ignore_cleanup_errors=True) as scratch:
        only = submission.find_one(path, assignment.source, Path(scratch) / "submission")
        terminal = Terminal(ladder=assignment.lab.ladder())
        if only.source is None:
            terminal.say(f"{path}: {only.error}")
            return EXIT_SUBMISSION
        result = evaluate(
            assignment,
            only.source,
            assignment.select("all"),
            options(assignment, timing),
            terminal,
            sandbox=box,
        )
    late_s = score.lateness_s(assignment, only.submitted_at) if only.submitted_at else None
    scored = score.score(assignment, result, late_s=late_s)
    terminal.scoreboard(result, scored)
    terminal.say(score_text(scored))
    if json_file:
        result_json.write(bounded(result, only.id), scored, json_file)
    return exit_code(result.parts)
