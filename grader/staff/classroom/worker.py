"""A worker: a trusted process that imports NumPy once, keeps one zygote and grades one submission after the other.

Theory of operation. The executor starts `python -m grader.staff.classroom.worker` and writes JSON lines to its
standard input: first the settings, then one job at a time. The worker answers in JSON lines: {"ready"}, {"phase"} for
each phase of a submission, and then {"done": ...} or {"failed": why}. It ends when its input does. When the judge dies,
the kernel sends SIGTERM to the worker, which would otherwise disturb the timings of the next run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from grader import score
from grader.assignment.loading import load
from grader.assignment.records import Assignment, Part
from grader.backends.torch.zygote import Zygote
from grader.core import orphans
from grader.core.errors import KitError, UsageError
from grader.core.results import PartResult, SubmissionResult
from grader.judge.evaluate import evaluate, import_numpy
from grader.judge.events import BuildStarted, Event, HiddenStarted, PartStarted, StepStarted
from grader.judge.regrade import Rest, judge_rest
from grader.report import result_json
from grader.sandbox import Sandbox
from grader.staff.classroom.slot import Slot, need_of
from grader.staff.judging import options

OUTPUT_KEPT_BYTES = 4 << 10
"""Most bytes of a part's printed text that are kept in the result files of a class."""
END_WITHIN_S = 3
PARTS_NAMED = 4
"""Most parts that one message names."""


@dataclass(frozen=True)
class Settings:
    """Settings shared by all workers of a run. `sandbox` describes the judge's sandbox in values that JSON can hold."""

    config: str
    assignment_fingerprint: str
    seed: int | None
    timing: bool
    sandbox: Mapping[str, Any]
    slot: str
    timings_alone: bool = False
    """If True, every timing has the machine to itself, also that of a serial part."""
    cores: tuple[int, ...] | None = None
    """Cores on which serial timings may run side by side; None for `machine.timing_cores()`."""
    machine: str = ""
    """Name of the worker's machine in the ledger."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def bounded(result: SubmissionResult, submission_id: str) -> SubmissionResult:
    """Return the result with this submission id, and with printed texts cut to OUTPUT_KEPT_BYTES."""
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
    """Return True if a graded time in the result was measured while the machine was too unsteady."""
    return any(
        part.time and not part.time.fit and "not_graded" not in part.time.flags for part in result.parts
    )


def calibrated(result: Mapping[str, Any], unfit: bool) -> str:
    """Return the reason why a machine may not judge, from its result for the calibration submission; "" if it may."""
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


class PhaseClock:
    """Clock that adds up a submission's wall seconds in each kind of phase."""

    def __init__(self) -> None:
        self._kind, self._since_s = "", time.monotonic()
        self._spent_s: dict[str, float] = {}

    def enter(self, kind: str) -> None:
        now_s = time.monotonic()
        if self._kind:
            self._spent_s[self._kind] = self._spent_s.get(self._kind, 0.0) + now_s - self._since_s
        self._kind, self._since_s = kind, now_s

    def spent_s(self) -> dict[str, float]:
        self.enter("")
        return {kind: round(spent_s, 3) for kind, spent_s in self._spent_s.items()}


class Worker:
    """Grades submissions, and sends phases and results by `say`."""

    def __init__(
        self, settings: Settings, assignment: Assignment, say: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.settings, self.assignment, self.say = settings, assignment, say
        self.slot = Slot(Path(settings.slot), settings.cores, alone=settings.timings_alone)
        self.box = Sandbox(**settings.sandbox)
        self.zygote = self._new_zygote()
        self.part_id = ""
        self.clock = PhaseClock()
        self.timings: list[dict[str, Any]] = []

    def grade(self, submission_id: str, source: Path, left: Rest | None, before: Path | None) -> None:
        self.clock = PhaseClock()
        self.timings = []
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
                "seconds": self.clock.spent_s(),
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
        self.clock.enter(kind)
        self.say({"phase": f"{part_id}: {kind}" if part_id else kind, "kind": kind})

    @contextmanager
    def alone(self, part: Part) -> Iterator[list[int] | None]:
        self.enter("waiting", self.part_id)
        with self.slot.hold(need_of(part)) as held:
            self.enter("timing", self.part_id)
            began_s = time.time()
            try:
                yield held.cpus
            finally:
                self.timings.append(
                    {
                        "part": part.id,
                        "machine": self.settings.machine,
                        "resource": held.resource,
                        "began_s": began_s,
                        "ended_s": time.time(),
                    }
                )
                self.enter("waiting", self.part_id)
        self.enter("results", self.part_id)

    def _new_zygote(self) -> Zygote:
        return Zygote(sandbox=self.box, at_once=False)


def serve(requests: BinaryIO, say: Callable[[Mapping[str, Any]], None]) -> None:
    """Read the settings, then serve jobs until the input ends."""
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


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orphans.end_with_parent(signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        return  # The judge died before its death could send the signal.
    # Move the pipes away from descriptors 0 and 1: prints must not reach the replies, nor children hold the pipes open.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message, allow_nan=False).encode() + b"\n")
        answers.flush()

    try:
        serve(requests, say)
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
