"""Settings that a resumed run keeps from the one before: assignment, seed, timing, sandbox tier, source of times.

A verdict depends on the first three. A `--resume` without them must therefore keep the old ones, or three hundred
verdicts would be out of date. A setting given anew that differs needs --regrade. The tier is kept if the machine
still has it. --trust is decided for each run and never remembered.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from grader import sandbox
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.core.commandline import assignment_file
from grader.core.errors import UsageError
from grader.sandbox import Sandbox
from grader.staff.classroom import gradebook
from grader.staff.classroom.recorded import History, Run

if TYPE_CHECKING:
    from grader.staff.classroom.planning import RunOptions

FILE_TIMES = "file times"
"""In place of a table of times: the modification times of the files on disk."""
COMMIT_TIMES = "commit times"
"""In place of a table of times: the time of the last commit in each clone."""


def settle(wanted: RunOptions, history: History) -> tuple[RunOptions, Assignment, int | None]:
    """Return the complete settings, the assignment, and the seed that replaces its own. That is the caller's, else
    that of the run which is continued, else one drawn now if the assignment has none.

    Raises UsageError for a change that would put verdicts out of date, unless wanted.regrade.
    """
    before = history.runs[-1] if history.runs and wanted.resume else None
    config, is_recorded = wanted.config, False
    if config is None:
        config = gradebook.config_of(wanted.out, before) if before else assignment_file(None)
        is_recorded = before is not None
    seed = wanted.seed if wanted.seed is not None or before is None else before.seed
    timing = wanted.timing
    if before is not None and not wanted.regrade:
        timing = timing and before.timing
    assignment = gradebook.load_recorded(wanted.out, config, seed) if is_recorded else load(config, seed)
    if before is not None and history.records and not wanted.regrade:
        _refuse_changes(wanted, before, config, timing)
    if assignment.seed is None:
        seed = secrets.randbits(31)
        assignment = load(config, seed)
    return replace(wanted, config=config, timing=timing), assignment, seed


def _refuse_changes(wanted: RunOptions, before: Run, config: Path, timing: bool) -> None:
    changes = []
    if str(config.resolve()) != before.config and not _is_same(config, before):
        changes.append(f"--config {config} in place of {before.config}")
    if wanted.seed is not None and wanted.seed != before.seed:
        changes.append(
            f"--seed {wanted.seed} in place of {'its own' if before.seed is None else before.seed}"
        )
    if timing != before.timing:
        changes.append("--no-time, where times were taken")
    if changes:
        raise UsageError(
            f"{wanted.out} was graded otherwise, and {' and '.join(changes)} puts its verdicts out of date: "
            "leave it out to go on as before, or add --regrade"
        )


def _is_same(config: Path, before: Run) -> bool:
    """Return True if another file is the same assignment: moved, say."""
    return load(config, before.seed).fingerprint == before.assignment_fingerprint


def sandbox_for(wanted: RunOptions, history: History, stream: TextIO) -> Sandbox:
    """Return the requested sandbox, else the tier of the run that is continued, else the strongest available."""
    before = history.runs[-1].sandbox if history.runs and wanted.resume else None
    if wanted.tier is not None or before is None:
        return sandbox.choose(wanted.tier, wanted.trust)
    try:
        return sandbox.choose(before, wanted.trust)
    except UsageError as error:
        box = sandbox.choose(None, wanted.trust)
        print(
            f"note: sandbox tier {box.tier} in place of {before} as before: {error}", file=stream, flush=True
        )
        return box


def source_of_times(wanted: RunOptions, history: History) -> str | None:
    """Return the source of submission times besides the export: a table's path, FILE_TIMES, COMMIT_TIMES, or None."""
    if wanted.submitted is not None:
        return str(wanted.submitted.resolve())
    if wanted.file_times:
        return FILE_TIMES
    if wanted.commit_times:
        return COMMIT_TIMES
    before = history.runs[-1].submitted if history.runs and wanted.resume else None
    if before not in (None, FILE_TIMES, COMMIT_TIMES) and not Path(before).is_file():
        raise UsageError(
            f"times of submission came from {before}, which is not there any more: name it with --submitted FILE, "
            "or use --file-times"
        )
    return before
