"""Record of a platform: a row of the table in `grader.staff.platforms.table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grader.assignment.records import Assignment
from grader.core.results import Score, SubmissionResult
from grader.staff.platforms.gradebook import Gradebook

Results = dict[str, Any]


class Renderer(Protocol):
    """Renderer of the results that a platform with a container of its own takes, as plain JSON values. A module with
    these functions will do (`grader.report.gradescope`)."""

    def results(
        self, assignment: Assignment, result: SubmissionResult, score: Score, *, seconds: float
    ) -> Results:
        """Render a judged submission; `seconds` is the time that grading took."""

    def refused(self, assignment: Assignment, why: str, *, seconds: float) -> Results:
        """Render a submission that has nothing to judge, by its own fault."""

    def kit_fault(self, details: str, *, seconds: float, max_points: float = 0.0) -> Results:
        """Render a failure of grading itself: no traceback for the student, and no grade."""


@dataclass(frozen=True)
class Container:
    """A platform that starts the kit for one submission, in folders of its own making.

    `root` is the folder of all others. In it, `submission` is the hand-in and `results` the results file. `kits` are
    folders in it that may hold the assignment (`configs/`), in this order, before the kit's own. `late_s` reads the
    lateness from the root: seconds after the due date, or None. `limit_s` leaves time to report a time-out before the
    platform stops the container. `limit_variable` names the environment variable that replaces it. `module` is run
    for the child process; `image` names the place where a missing program is to be installed.
    """

    title: str
    module: str
    root: Path
    submission: str
    results: str
    kits: tuple[str, ...]
    renderer: Renderer
    late_s: Callable[[Path, Assignment], float | None]
    limit_s: float
    limit_variable: str
    image: str


@dataclass(frozen=True)
class Limits:
    """Limits of a platform: seconds for one submission, bytes of the results, processors. None: unknown, or chosen by
    the staff."""

    seconds: float | None = None
    bytes_back: int | None = None
    cpus: str = ""

    def __str__(self) -> str:
        told = [f"{self.seconds:g} s"] if self.seconds else []
        told += [f"{self.bytes_back} bytes back"] if self.bytes_back else []
        return ", ".join([*told, *([self.cpus] if self.cpus else [])]) or "none"


@dataclass(frozen=True)
class Platform:
    """One platform: a row of the table. The first five fields after the title are words for people. A feature that is
    None does not exist on the platform.

    `release` describes the files that `release --platform NAME` writes; `grader.staff.release.products` writes them.
    """

    name: str
    title: str
    hands_in: str
    wants_back: str
    matched_by: str
    shown: str
    limits: Limits
    command: str
    container: Container | None = None
    gradebook: Gradebook | None = None
    release: str = ""
