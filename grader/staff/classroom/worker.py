"""A worker: a trusted process that imports NumPy once and grades one submission after the other.

Theory of operation. The executor starts `python -m grader.staff.classroom.worker` and writes JSON lines to its
standard input: first the settings, then one job at a time. The worker answers in JSON lines: {"ready"}, {"phase"} for
each phase of a submission, and then {"done": ...} or {"failed": why}. It exits at the end of its input. When the judge
dies, the kernel sends SIGTERM to the worker, so that no old worker disturbs the timings of the next run. For PyTorch
parts a worker keeps one zygote: a process that has imported torch and is forked for each runner.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal

from grader import score
from grader.assignment.loading import load
from grader.assignment.records import Assignment, Part
from grader.backends.kinds import kind_of
from grader.backends.torch.zygote import Zygote
from grader.core import machine, procfs
from grader.core.errors import KitError, UsageError
from grader.core.results import PartResult, SubmissionResult
from grader.judge.evaluate import evaluate, import_numpy
from grader.judge.events import BuildStarted, Event, HiddenStarted, PartStarted, StepStarted
from grader.judge.regrade import Rest, judge_rest
from grader.report import result_json
from grader.sandbox import Sandbox
from grader.staff import options

Need = Literal["core", "machine"]
Say = Callable[[Mapping[str, Any]], None]
LOOK_S = 0.02
"""Interval in seconds at which a worker that waits to time a part looks for a free core. Timings take over 1 s."""


def need_of(part: Part) -> Need:
    """Return the resource that a timing locks: "core" for a serial CPU part timed by CPU time, else "machine"."""
    rule = part.time
    serial = rule is not None and rule.clock == "cpu" and rule.threads == 1
    return "core" if serial and not kind_of(part).on_card else "machine"


class Slot:
    """One process's access to the locks that the workers on a machine share. Each timing locks a core or the machine.

    A part's clock decides which resource its timing locks (`need_of`). A serial part runs on one pinned core and is
    timed by CPU time, which work on other cores hardly affects. Such a timing locks one core (`core-K`), while timings
    on other cores, builds and checks of results continue. A part with threads or on a GPU is timed by wall time. Such a
    timing locks the machine, and no other work runs. (Beside other work, calls of one GPU reference took 4 to 18 ms.)

    There are three kinds of lock files: `core-K`, `room` and `gate`. Workers lock `room` shared while they build or
    check results. A timing that needs the machine locks `room` exclusively. A worker must lock `gate` for a moment
    before it locks `room` shared. A timing that needs the machine locks `gate` from the start of its wait until it
    ends. So several such timings follow one another, and other work pauses only once for all of them. After such a
    timing, the worker must lock `room` shared before its next timing of this kind. So other work waits for at most one
    timing per worker. A worker also releases `room` before it starts a runner (`give_way`). Otherwise timings would
    wait for the whole check of a submission, which can take minutes. The locks use flock: the kernel releases the locks
    of a killed process.

    `alone`: every timing locks the machine, and other work may run between two timings. This is for machines on which
    work on other cores disturbs timings. A Slot is not thread-safe, because its locks belong to the whole process.
    """

    def __init__(self, folder: Path, cores: Sequence[int] | None = None, *, alone: bool = False) -> None:
        """Open the lock files in `folder`, which all workers of the machine share.

        On each of `cores`, by default `machine.timing_cores()`, one serial timing may run at a time. `alone`: every
        timing locks the machine.
        """
        self.folder, self.alone = folder, alone
        self.cores = machine.timing_cores() if cores is None else list(cores)
        self._times = False
        self._gate = _open(folder / "gate")
        self._room = _open(folder / "room")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold a shared lock on `room` during the `with` block, in which this worker builds and checks results."""
        self._enter()
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def give_way(self) -> None:
        """Let timings that wait for the machine run first. Call this in `shared`, while this process has no runner."""
        if not self._times:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            self._enter()

    @contextmanager
    def hold(self, need: Need) -> Iterator[tuple[str, list[int] | None]]:
        """Lock the resource that a timing needs during the `with` block. Call this inside `shared`.

        Yields (the resource's name, the cores for the timed runner, or None for the default cores).
        """
        self._times = True
        try:
            if need == "machine" or self.alone or (need == "core" and not self.cores):
                with self.exclusive():
                    yield "machine", None
            else:
                with self._core() as core:
                    yield f"core {core}", [core]
        finally:
            self._times = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the machine during the `with` block. Call this inside `shared`, whose lock is released for that time."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._gate, fcntl.LOCK_EX if self.alone else fcntl.LOCK_SH)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX)
            if self.alone:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
            try:
                yield
            finally:
                fcntl.flock(self._room, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            self._enter()

    def close(self) -> None:
        """Release all locks."""
        os.close(self._gate)
        os.close(self._room)

    @contextmanager
    def _core(self) -> Iterator[int]:
        """Lock the first free core and yield its number. Wait until a core is free."""
        while True:
            for number in self.cores:
                lock = _open(self.folder / f"core-{number}")
                try:
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        yield number
                        return
                finally:
                    os.close(lock)
            time.sleep(LOOK_S)

    def _enter(self) -> None:
        """Lock `room` shared, through `gate`: if timings wait for the machine, this waits until they have ended."""
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


OUTPUT_KEPT_BYTES = 4 << 10
"""Maximum bytes of a part's printed text that a result.json of a class keeps."""
END_WITHIN_S = 3
PARTS_NAMED = 4
"""Maximum number of parts that one message names."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run's workers. `config` is the assignment's path, and `seed` replaces its seed unless None.

    `timing`: measure times. `sandbox` are the fields of `Sandbox`. `slot` is the folder with the lock files of `Slot`.
    """

    config: str
    assignment_fingerprint: str
    seed: int | None
    timing: bool
    sandbox: Mapping[str, Any]
    slot: str
    timings_alone: bool = False
    """True: every timing has the machine to itself, even that of a serial part."""
    cores: tuple[int, ...] | None = None
    """Cores on which serial timings may run side by side; None for `machine.timing_cores()`."""
    machine: str = ""
    """Name of the worker's machine in the ledger."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def bounded(result: SubmissionResult, submission_id: str) -> SubmissionResult:
    """Return a copy of the result with this submission id. Each part's printed text is cut to OUTPUT_KEPT_BYTES."""
    return replace(
        result, submission_id=submission_id, parts=tuple(_with_short_output(part) for part in result.parts)
    )


def _with_short_output(part: PartResult) -> PartResult:
    text = part.output.encode(errors="replace")
    if len(text) <= OUTPUT_KEPT_BYTES:
        return part
    kept = text[:OUTPUT_KEPT_BYTES].decode(errors="ignore")
    return replace(part, output=f"{kept}\n... {len(text) - OUTPUT_KEPT_BYTES} more bytes")


def is_unfit(result: SubmissionResult) -> bool:
    """Return True if the machine was too unsteady to measure at least one of the graded times in the result."""
    return any(
        part.time and not part.time.fit and "not_graded" not in part.time.flags for part in result.parts
    )


def calibrated(result: Mapping[str, Any], unfit: bool) -> str:
    """Return why a machine may not judge, or "". `result` is its result.json for the calibration submission."""
    wrong = [f"{part['id']} '{part['verdict']}'" for part in result["parts"] if part["verdict"] != "pass"]
    if wrong:
        return f"the calibration submission, which is right, did not pass: {', '.join(wrong[:PARTS_NAMED])}"
    if unfit:
        apart = [
            f"{part['id']} {part['time']['self_ratio']:.2f}"
            for part in result["parts"]
            if part["time"] and not part["time"]["fit"]
        ]
        return f"too unsteady to time kernels: the reference differs from itself ({', '.join(apart[:PARTS_NAMED])})"
    return ""


class Worker:
    """Grader of submissions, one after the other. `say` sends a message for each phase and result to the judge."""

    def __init__(self, settings: Settings, assignment: Assignment, say: Say) -> None:
        self.settings, self.assignment, self.say = settings, assignment, say
        self.slot = Slot(Path(settings.slot), settings.cores, alone=settings.timings_alone)
        self.box = Sandbox(**settings.sandbox)
        self.zygote = self._new_zygote()
        self.part_id = ""
        self.entered: list[tuple[str, float]] = []
        """Kind of each phase of the submission so far, and the time when it began, in seconds."""
        self.timings: list[dict[str, Any]] = []

    def grade(self, submission_id: str, source: Path, left: Rest | None, before: Path | None) -> None:
        self.entered, self.timings = [], []
        self.enter("waiting")

        def judged(parts: tuple[Part, ...]) -> SubmissionResult:
            return evaluate(
                self.assignment,
                source,
                parts,
                options(self.assignment, self.settings.timing),
                self.hear,
                self.zygote,
                exclusive=self.alone,
                give_way=self.slot.give_way,
                sandbox=self.box,
            )

        try:
            with self.slot.shared():
                if left is not None and before is not None:
                    result = judge_rest(self.assignment, result_json.read(before), left, judged)
                else:
                    result = judged(self.assignment.select("all"))
        except (KitError, UsageError, OSError) as error:
            # After an error the zygote may be broken: the next submission gets a new one.
            self.zygote.close()
            self.zygote = self._new_zygote()
            self.say({"failed": str(error)})
            return
        self.say(
            {
                "done": result_json.to_dict(
                    bounded(result, submission_id), score.score(self.assignment, result)
                ),
                "unfit": is_unfit(result),
                "seconds": self.spent_s(),
                "timings": self.timings,
            }
        )

    def hear(self, event: Event) -> None:
        if isinstance(event, BuildStarted):
            self.enter("building")
        elif isinstance(event, StepStarted):
            self.enter(event.step)
        elif isinstance(event, (PartStarted, HiddenStarted)):
            self.part_id = event.part.id
            self.enter("results", self.part_id)

    def enter(self, kind: str, part_id: str = "") -> None:
        self.entered.append((kind, time.monotonic()))
        self.say({"phase": f"{part_id}: {kind}" if part_id else kind, "kind": kind})

    def spent_s(self) -> dict[str, float]:
        """Return the submission's wall time by kind of phase, in seconds."""
        spent_s: defaultdict[str, float] = defaultdict(float)
        for (kind, began_s), (_, ended_s) in pairwise([*self.entered, ("", time.monotonic())]):
            spent_s[kind] += ended_s - began_s
        return {kind: round(seconds, 3) for kind, seconds in spent_s.items()}

    @contextmanager
    def alone(self, part: Part) -> Iterator[list[int] | None]:
        """Lock a part's timing resource, and record for how long. Yields the runner's cores; None means the default."""
        self.enter("waiting", self.part_id)
        with self.slot.hold(need_of(part)) as (resource, cpus):
            self.enter("timing", self.part_id)
            began_s = time.time()
            try:
                yield cpus
            finally:
                self.timings.append(
                    {
                        "part": part.id,
                        "machine": self.settings.machine,
                        "resource": resource,
                        "began_s": began_s,
                        "ended_s": time.time(),
                    }
                )
                self.enter("waiting", self.part_id)
        self.enter("results", self.part_id)

    def _new_zygote(self) -> Zygote:
        return Zygote(sandbox=self.box, at_once=False)


def serve(requests: BinaryIO, say: Say) -> None:
    """Read the settings, then serve jobs until the input ends. Raises UsageError if the assignment file has changed."""
    settings = Settings(**json.loads(requests.readline()))
    assignment = load(Path(settings.config), settings.seed)
    if assignment.fingerprint != settings.assignment_fingerprint:
        raise UsageError(f"{settings.config} was changed during the run; run again with --resume")
    worker = Worker(settings, assignment, say)
    try:
        import_numpy(assignment)
        say({"ready": os.getpid()})
        for line in requests:
            job = json.loads(line)
            left = (
                Rest({name: tuple(cases) for name, cases in job["left"].items()}) if "left" in job else None
            )
            before = Path(job["before"]) if left else None
            worker.grade(job["submission_id"], Path(job["source"]), left, before)
    finally:
        worker.zygote.close()


def _end(_signal: int, _frame: object) -> None:
    # SystemExit lets the worker end its compilers and runners. The alarm ends the worker if that hangs.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_WITHIN_S)
    raise SystemExit(0)


def replies() -> Say:
    """Return a function that sends a message to the judge, as a JSON line on the pipe that is now standard output.

    From now on, printed text goes to standard error, so that it cannot mix with messages. Child processes do not
    inherit the pipe.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message, allow_nan=False).encode() + b"\n")
        answers.flush()

    return say


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    procfs.end_with_parent(signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        return  # The judge died before `end_with_parent` was called, so no signal will come.
    # Child processes must not inherit the pipe of requests: move it from descriptor 0 to one that is closed on exec.
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        serve(requests, replies())
    except (KitError, UsageError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(3)
    except (BrokenPipeError, SystemExit):
        pass
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
