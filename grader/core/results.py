"""Results of the evaluator, as small frozen records, and their exit code. Reports are pure functions of these
records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION

#: `unjudged` does not judge the submission: the machine lacks a needed tool or device, and the points stay open.
Verdict = Literal[
    "pass", "wrong", "slow", "crash", "timeout", "compile_error", "missing", "rejected", "unjudged"
]

MAP_CELLS = 8
"""Rows and columns of an error map, at most."""


@dataclass(frozen=True)
class Diagnosis:
    """Position of an output's error and, if its pattern shows it, the cause.

    `code` is a stable machine name ("row_range", "not_written", ...). `message` is one to three sentences for the
    student. Indices are those of the output; None if no single element is meant (a crash, say). For a call without an
    answer, `hidden` says if its input was a hidden case's. It is None if no call is meant, and in results of older
    kits.
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
    """Remark on a part that a person should know. `code` is a stable machine name, `message` one line for people.

    `level`: "note" is a fact about the judging (an undecided measurement). "review" is a suspicion, which never changes
    points by itself. "rejected" is a proved cheat, which the part's verdict states too.
    """

    code: str
    message: str = ""
    level: Literal["note", "review", "rejected"] = "note"


@dataclass(frozen=True)
class CaseResult:
    """Result of the kernel on one input. `max_error` is max |actual - expected|, absolute.

    No handout has the `hidden` cases: reports for students show neither their shape nor their diagnosis' numbers.
    `output_sha256` is the digest of a wrong output, so that equal wrong outputs of two people can be found.

    `error_map` locates the wrong elements of an output. It has at most MAP_CELLS rows of as many digits, over the rows
    and columns of the slice with the most wrong elements. A digit runs from 0 (none wrong) to 9 (nearly all wrong).
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
    """A GPU's SM clock over the timed calls of a part, in MHz.

    `repeated` counts rounds that were measured again because the clock changed within them. `slowed_by` names what held
    the clock down ("heat", "power limit" ...).
    """

    lowest_mhz: int
    highest_mhz: int
    repeated: int = 0
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Paired timing of student against reference. Lists hold one value per call, in the order of the calls.

    `ratio_interval` holds the true ratio with probability `ratio_confidence`: 0.98, or less after an early pass.
    `clock` is the one that decided: "cpu" or "wall". `verdict` is "pass" or "slow"; `flags` may hold "undecided".
    `self_ratio` is the reference against itself over the same rounds: 1.0 on a fit machine. `fit` is True if it stayed
    within bounds. If not, `verdict` is always "pass" with the flag "machine_unfit".
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
    """Memory of one call, in bytes.

    Profiler figures are what torch.profiler sees in the scope (the familiar "mem usage"). Peak figures are the growth
    of the process's resident high-water mark during a call, less the inputs.
    """

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
    """A kernel's place among others on this machine.

    Each field is its speed as a multiple of that kernel's, at equal threads. `peak_percent` is its share of the peak of
    `cores` cores that do nothing but multiply-adds.
    """

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
    """Output that the kernel printed, cut to a limit and made harmless for a terminal."""
    frontier: Standing | None = None
    """None if the time was not measured, or the other kernels were not measured on this machine (`Lab.ladder`)."""
    judged_through: str = ""
    """Id of the part that calls this one's function and decided its verdict; "" unless the function is not bound."""
    waits_for: str = ""
    """Program or device that the machine lacks ("ispc"), for an `unjudged` part."""


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
    """The lab's `inputs_version` at the time of judging; 1 in older results, which do not record it."""
    kit: dict[str, object] = field(default_factory=dict)
    """Version and commit of the kit; {} in older results."""
    schema_version: int = field(default=1, init=False)


@dataclass(frozen=True)
class ScoreLine:
    """One row of a score: a part, or an item that people give points for. `reason` is one line for students."""

    id: str
    title: str
    points: float
    max_points: float
    reason: str = ""


@dataclass(frozen=True)
class Score:
    """Points of one submission. `earned` is the sum of the lines. `total` is the rest after `penalty`.

    `max_points` leaves extra credit out, so `total` may exceed it. `late_days` are the started days that were charged.
    `pending` names the lines that are not final: items without points in manual.csv, parts that were not judged.
    `waiting` are the parts among them that this machine could not judge. While there are any, the total is not a grade.
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
    """Return the exit code for the parts of one submission. A submission's fault outranks a missing tool."""
    verdicts = {part.verdict for part in parts}
    if verdicts <= {"pass"}:
        return EXIT_PASS
    return EXIT_KIT if verdicts <= {"pass", "unjudged"} else EXIT_SUBMISSION
