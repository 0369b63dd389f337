"""Records of the evaluator's results, and the exit code that follows from them. Reports are made from these records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION

#: `unjudged` leaves the points open: the machine lacks a tool or device that judging the part needs.
Verdict = Literal[
    "pass", "wrong", "slow", "crash", "timeout", "compile_error", "missing", "rejected", "unjudged"
]

MAP_CELLS = 8
"""Maximum number of rows, and of columns, of an error map (`CaseResult.error_map`)."""


@dataclass(frozen=True)
class Diagnosis:
    """Reason why a part or a case did not pass: for a wrong output the place of the error and, if found, its cause.

    `code` is a stable name for programs ("row_range", "not_written", ...). `message` is text for the student: a few
    sentences, often with lines of the file. `first_index` is the index of the first wrong element of the output; None
    if none is known (after a crash, say). `hidden` is set only if a call on a case's input returned no output: True for
    a hidden case, False for a public one. In all other diagnoses, and in results of older kits, `hidden` is None.
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
    """Remark on a part for a person. `code` is a stable name for programs, `message` one line for people.

    `level`: "note" is a fact about the judging (an undecided measurement). "review" is a suspicion. It changes points
    only through the assignment's keys `parallel` and `races`. "rejected" is a proved cheat and sets this verdict.
    """

    code: str
    message: str = ""
    level: Literal["note", "review", "rejected"] = "note"


@dataclass(frozen=True)
class CaseResult:
    """Result of the kernel on the input of one case. `ok`: True if the output is right and no input was overwritten.

    `max_error` is the largest |actual - expected|; None if the output was not compared.

    `hidden`: True if students do not get the case. They learn at most that one of the hidden cases failed.
    `output_sha256` is the digest of a wrong output, so that equal wrong outputs of two people can be found.

    `error_map` shows the wrong places in one 2-D slice of the output: the slice with the most wrong elements. The
    slice is divided into at most MAP_CELLS x MAP_CELLS cells. Each string is a row of cells, with a digit for each
    cell. The digit is the share of wrong elements, from 0 (none) to 9 (nearly all).
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
    """Range of a GPU's clock (of its multiprocessors) during the timed calls of a part, in MHz.

    `repeated` counts the rounds of calls that were measured again because the clock changed during them. `slowed_by`
    names the reasons for a reduced clock ("heat", "power limit" ...).
    """

    lowest_mhz: int
    highest_mhz: int
    repeated: int = 0
    slowed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Timing of a part: student and reference were called in turn. `..._ms` tuples hold one value per call, in order.

    `ratio` is student time / reference time. `ratio_interval` contains the true ratio with probability
    `ratio_confidence`: 0.98, or less if the measurement ended early. `clock` names the clock that decided. `flags` may
    hold "undecided". `self_ratio` compares the reference with itself in the same rounds: about 1.0 on a quiet machine.
    `fit` is True if `self_ratio` is within bounds. Otherwise `verdict` is always "pass", with the flag "machine_unfit".
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
    """Memory of one call, in bytes; None if it was not measured.

    `..._profiler_bytes` are the figures that torch.profiler reports for the call ("mem usage"). `..._peak_bytes` are
    the growth of the process's peak resident memory during a call, less the size of the inputs. For a part on a GPU,
    they are the GPU memory that the process took for its timed calls.
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
    """Speed of a student's kernel, compared with known kernels on this machine.

    Each of the first six fields is named after a known kernel. It is the student's speed divided by the speed of the
    known kernel on the same number of threads. `peak_percent` is the student's speed in % of the most multiply-adds per
    second that `cores` cores can do.
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
    """Result of one part, without its points, which `grader.score` computes."""

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
    """Speed compared with known kernels (`Lab.ladder`); None if the part or these kernels were not timed here."""
    judged_through: str = ""
    """Id of the part whose function was judged instead, because it calls this part's function; else ""."""
    waits_for: str = ""
    """Program or device that an `unjudged` part needs and the machine lacks ("ispc"); or ""."""


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
    """The lab's `inputs_version` (it changes with the inputs of its cases); 1 in older results, which lack it."""
    kit: dict[str, object] = field(default_factory=dict)
    """Version and commit of the kit; {} in older results."""
    schema_version: int = field(default=1, init=False)


@dataclass(frozen=True)
class ScoreLine:
    """One row of a score: a part, or an item to which a person gives points. `reason` is one line for students."""

    id: str
    title: str
    points: float
    max_points: float
    reason: str = ""


@dataclass(frozen=True)
class Score:
    """Points of one submission. `earned` is the sum of the lines, `total` is `earned` less `penalty` (for late days).

    `max_points` leaves extra credit out, so `total` may exceed it. `late_days` counts the started days that are
    charged. `pending` holds the ids of lines that are not final: items without points in manual.csv, unjudged parts.
    `waiting` holds the ids of parts that this machine could not judge. Until it is empty, the total is not a grade.
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
