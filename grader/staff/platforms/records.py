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
    """What a platform with a container of its own wants back, as plain values of JSON. A module with these functions
    will do (`grader.report.gradescope`)."""

    def results(
        self, assignment: Assignment, result: SubmissionResult, score: Score, *, seconds: float
    ) -> Results:
        """Of a submission that was judged; `seconds` is what grading took."""

    def refused(self, assignment: Assignment, why: str, *, seconds: float) -> Results:
        """Of one that holds nothing to judge, by its own fault."""

    def kit_fault(self, details: str, *, seconds: float, max_points: float = 0.0) -> Results:
        """When grading itself failed: no traceback for the student, and no grade."""


@dataclass(frozen=True)
class Container:
    """A platform that starts the kit for one submission, in folders of its own making.

    `root` is where they lie; `submission` and `results` are in it, what is handed in and the file that is wanted back.
    `kits` are folders in it that may hold the assignment (`configs/`), in this order, before the kit's own. `late_s`
    reads what it tells of lateness from the root: seconds after the due date, or None. `limit_s` leaves room to say so
    before the platform stops the container; `limit_variable` names the variable of the environment that replaces it.
    `module` is run for the child process; `image` says where a missing program is to be installed.
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
    """What a platform allows: seconds for one submission, bytes of what is written back, processors. None: not known,
    or the staff's to choose."""

    seconds: float | None = None
    bytes_back: int | None = None
    cpus: str = ""

    def __str__(self) -> str:
        told = [f"{self.seconds:g} s"] if self.seconds else []
        told += [f"{self.bytes_back} bytes back"] if self.bytes_back else []
        return ", ".join([*told, *([self.cpus] if self.cpus else [])]) or "none"


@dataclass(frozen=True)
class Platform:
    """One row. The first five fields after the title are words for people; what is None the platform does not have.

    `release`: what `release --platform NAME` writes, in words; how is `grader.staff.release.products`'s.
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
