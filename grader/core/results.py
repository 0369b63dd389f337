"""Results of the evaluator, as small frozen records, and their exit code. Reports are pure functions of
these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION

#: `unjudged` is none on the submission: the machine lacks what judging it takes, and its points stay open.
Verdict = Literal[
    "pass", "wrong", "slow", "crash", "timeout", "compile_error", "missing", "rejected", "unjudged"
]

MAP_CELLS = 8
"""Rows and columns of an error map."""


@dataclass(frozen=True)
class Diagnosis:
    """Where an output is wrong and, as far as its pattern tells, why.

    `code` is a stable machine name ("row_range", "not_written", ...); `message` is one to three sentences for
    the student. Indices are those of the output; None where no single element is meant (a crash, say).
    `hidden` says of a call that gave no answer whether its input was a hidden case's; None where no call is meant, and
    in results of a kit that did not record it.
    """

    code: str
    message: str
    first_index: tuple[int, ...] | None = None
    expected: float | None = None
    actual: float | None = None
    wrong_count: int | None = None
    total_count: int | None = None
    hidden: bool | None = None


@dataclass(frozen=True)
class Flag:
    """Something a person should know of a part. `code` is a stable machine name, `message` one line for people.

    `level`: "note" is a fact about the judging (an undecided measurement); "review" is a suspicion, which never
    changes points by itself; "rejected" is a proved cheat, and the part's verdict says so too.
    """

    code: str
    message: str = ""
    level: Literal["note", "review", "rejected"] = "note"


@dataclass(frozen=True)
class CaseResult:
    """One input on which the kernel was called. `max_error` is max |actual - expected|, absolute.

    `hidden` cases are in no handout: reports for students show neither their shape nor their diagnosis' numbers.
    `output_sha256` is the digest of a wrong output, so that equal wrong outputs of two people can be found.
    `error_map` says where of a wrong output elements are wrong: at most MAP_CELLS rows of as many digits, over the rows
    and columns of the slice with the most wrong ones; 0 where none is wrong, 9 where nearly all are.
    """

    name: str
    shape: dict[str, int]
    ok: bool
    max_error: float | None
    diagnosis: Diagnosis | None = None
    hidden: bool = False
    output_sha256: str | None = None
    error_map: tuple[str, ...] = ()


@dataclass(frozen=True)
class CardClock:
    """A GPU's SM clock over the timed calls of a part, in MHz. `repeated` counts rounds that were measured again, since
    the clock changed within them; `slowed_by` names what held it down ("heat", "power limit" ...)."""

    lowest_mhz: int
    highest_mhz: int
    repeated: int = 0
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Paired timing of student against reference. Lists hold one value per call, in the order of the calls.

    `ratio_interval` holds the true ratio with probability `ratio_confidence`: 0.98, or less after an early pass.
    `clock` is the one that decided: "cpu" or "wall". `verdict` is "pass" or "slow"; `flags` may hold "undecided".
    `self_ratio` is the reference against itself over the same rounds (1.0 on a fit machine); `fit` says whether it
    stayed within bounds, and without it `verdict` is always "pass" with the flag "machine_unfit".
    """

    reference_ms: float
    student_ms: float
    ratio: float
    ratio_interval: tuple[float, float]
    ratio_confidence: float
    rounds: int
    clock: Literal["cpu", "wall"]
    allowance: float
    verdict: Literal["pass", "slow"]
    self_ratio: float
    fit: bool
    flags: tuple[str, ...] = ()
    reference_wall_ms: tuple[float, ...] = ()
    student_wall_ms: tuple[float, ...] = ()
    reference_cpu_ms: tuple[float, ...] = ()
    student_cpu_ms: tuple[float, ...] = ()
    card: CardClock | None = None


@dataclass(frozen=True)
class Memory:
    """Memory of one call. Profiler figures are what torch.profiler sees in the scope (the familiar "mem usage");
    peak figures are the growth of the process's resident high-water mark during a call, less the inputs."""

    profiler_bytes: int | None
    reference_profiler_bytes: int | None
    peak_bytes: int | None
    reference_peak_bytes: int | None


@dataclass(frozen=True)
class ProfileRow:
    """One row of the torch.profiler table; times in microseconds, memory in bytes."""

    name: str
    self_cpu_us: float
    cpu_total_us: float
    calls: int
    cpu_bytes: int
    self_cpu_bytes: int


@dataclass(frozen=True)
class Standing:
    """A kernel's place on this machine: how many times as fast as each of these it is, at equal threads, and its share
    of what `cores` cores do when they do nothing but multiply-adds."""

    naive: float
    reference: float
    rows: float
    plain: float
    pytorch: float
    expert: float
    peak_percent: float
    cores: int


@dataclass(frozen=True)
class PartResult:
    """Result of one part, without its points (`grader.score` computes them)."""

    id: str
    title: str
    verdict: Verdict
    max_points: float
    cases: tuple[CaseResult, ...] = ()
    time: Timing | None = None
    memory: Memory | None = None
    diagnosis: Diagnosis | None = None
    flags: tuple[Flag, ...] = ()
    output: str = ""
    """Output that the kernel printed, bounded and made harmless for a terminal."""
    frontier: Standing | None = None
    """None where the time was not measured, or the other kernels were not on this machine (`Lab.ladder`)."""
    judged_through: str = ""
    """Of a part whose function is not bound: the id of the part that uses it and decided."""
    waits_for: str = ""
    """Of an `unjudged` part: the program or device that the machine lacks ("ispc")."""


@dataclass(frozen=True)
class SubmissionResult:
    submission_id: str
    sha256: str
    assignment: str
    machine: dict[str, object]
    toolchain: dict[str, object]
    sandbox: dict[str, object]
    parts: tuple[PartResult, ...]
    flags: tuple[Flag, ...] = ()
    max_points: float = 0.0
    inputs_version: int = 1
    """`inputs_version` of the lab when it was judged; results of before have none: version 1."""
    schema_version: int = field(default=1, init=False)


@dataclass(frozen=True)
class ScoreLine:
    """One row of a score: a part, or an item that people give points for. `reason` is one line, made for students."""

    id: str
    title: str
    points: float
    max_points: float
    reason: str = ""


@dataclass(frozen=True)
class Score:
    """Points of one submission. `earned` is the sum of the lines and `total` what is left of it after `penalty`.

    `max_points` leaves extra credit out, so `total` may exceed it. `late_days` are the started days that were charged.
    `pending` names the lines that are not final: items without points in manual.csv, parts that were not judged.
    `waiting` are those of them that this machine could not judge: while there are any, the total is no grade.
    """

    lines: tuple[ScoreLine, ...]
    earned: float
    late_days: int
    penalty: float
    total: float
    max_points: float
    pending: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def exit_code(parts: Iterable[PartResult]) -> int:
    """Of a run that judged these parts of one submission. What it did wrong counts before what the machine lacks."""
    verdicts = {part.verdict for part in parts}
    if verdicts <= {"pass"}:
        return EXIT_PASS
    return EXIT_KIT if verdicts <= {"pass", "unjudged"} else EXIT_SUBMISSION
