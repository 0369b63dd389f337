"""The lines of a ledger as records (`grader.staff.classroom.ledger` writes and reads them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from grader.assignment.prints import PartPrints
from grader.staff.classroom.fingerprints import Fingerprints

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Run:
    """One start of the judge in this folder. `config` is the assignment's file, and `seed` replaces its seed unless
    None. `at` and all times are UTC, ISO 8601. `manual` is the table of points by hand that was named, `submitted`
    the table of times (or FILE_TIMES)."""

    at: str
    config: str
    assignment: str
    assignment_fingerprint: str
    kit: str
    seed: int | None
    timing: bool
    sandbox: str
    workers: int
    manual: str | None = None
    submitted: str | None = None
    schema_version: int = SCHEMA_VERSION
    judging: Mapping[str, PartPrints] = field(default_factory=dict)
    """Digests of the assignment's settings that decide verdicts, by part; {} in older runs."""
    judged_by: str = ""
    """Sentence on the kit, this machine and its load at the start; "" in older runs."""


@dataclass(frozen=True)
class Entry:
    """One submission on the roster. `marked_late`: late according to the platform, lateness unknown. `error`: the
    reason why it cannot be graded. `identities`: its names on platforms (`grader.staff.platforms.matching`)."""

    submission_id: str
    name: str
    emails: tuple[str, ...] = ()
    submitted_at: str | None = None
    marked_late: bool = False
    error: str | None = None
    identities: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One finished submission. `seconds` are wall time by kind of phase, `verdicts` by part id. Points are the
    evaluator's, before late days and points by hand. `trouble` is the reason for a missing result, and `fault` the
    side at fault: the kit's fault gives no verdict and is tried again. `waits_for`: the programs that the machine
    lacked, separated by blanks.
    """

    submission_id: str
    fingerprints: Fingerprints
    at: str
    seconds: Mapping[str, float]
    attempt: int
    sha256: str = ""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    points: float = 0.0
    max_points: float = 0.0
    trouble: str = ""
    fault: Literal["", "submission", "kit"] = ""
    reason: str = ""
    """The reason that it was graded again, if it was."""
    waits_for: str = ""
    machine: str = ""
    """The machine of a cluster that judged it."""
    timings: tuple[HeldTiming, ...] = ()
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Of each part that was timed and right: the ratio to the reference's time, and the ends of its interval."""
    flagged: tuple[str, ...] = ()
    """Parts with a flag that a person should look at; all of them where the file as a whole has one."""


@dataclass(frozen=True)
class HeldTiming:
    """Resource that one timing held, and the period. `resource` is "machine", "core 3" or "card 0" of the machine
    with this name; times are seconds of that machine's clock (since 1970)."""

    part: str
    machine: str
    resource: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster, at its last proof. `refused` is the reason why it may not judge. `ratios` are those
    of the calibration submission, which every machine judges: by part the ratio and the ends of its interval."""

    name: str
    at: str
    host: str = ""
    processor: str = ""
    cores: int = 0
    refused: str = ""
    notes: tuple[str, ...] = ()
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reported:
    """The reports that were last written: the totals by submission, and the table of points by hand that is in them."""

    at: str
    manual: str | None
    totals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """Content of a ledger: the runs in order, the latest roster, the last record of each submission, the last
    reports. `manual` is the table of points by hand that a run or a report used last."""

    runs: tuple[Run, ...] = ()
    roster: tuple[Entry, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    reported: Reported | None = None
    manual: str | None = None
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def judging(self, assignment_fingerprint: str) -> Mapping[str, PartPrints]:
        """Return the digests that decided verdicts under this state of the assignment; {} if no run has recorded
        them."""
        found = (
            run.judging for run in reversed(self.runs) if run.assignment_fingerprint == assignment_fingerprint
        )
        return next(filter(None, found), {})
