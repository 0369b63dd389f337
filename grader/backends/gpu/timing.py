"""Times a part on a GPU, in rounds.

A timed call runs the function once for each set of tensors, and gives all sets new inputs. All outputs of the student
are compared with the reference's, and some rows of both with the oracle in each side's first call.

A round is as in `grader.judge.timing.measure`: calls A B B A of the reference (A) and the student (B). The student's
runner is new in each round. It is started after the reference's first call and ends before the reference's second call,
because processes take turns on a GPU: a kernel that the student left running would halve the reference's speed. The
reference has one runner for all rounds: starting a new one in each round took a third of the round. Each side has its
own arena (GPU memory with many sets), usually with the same number of sets. The k-th calls of both sides in a round
have the same inputs, so that all outputs can be compared on the GPU.

The number of sets in a call is chosen so that the reference's call is long enough to be timed. If the student's kernel
is a hundred times slower, the same call would exceed its time limit, and a right kernel would get "timeout". Therefore
such a file gets fewer sets. If it is not slow then, it is measured again with all sets, for two reasons. A dishonest
file could be slow only while the number of sets is chosen. Times of a fast kernel on few sets are mostly noise.

The clock of a timed call stops when the judge's copy of the outputs is done. The inputs are filled after it has
started, and then the runner gets "go". So a kernel that the student left running cannot work on the inputs before the
clock starts. If it works afterwards, the measured time grows, because processes take turns on a GPU.

The clock also covers overhead: filling the inputs, waking the runner, two switches between processes, and copying the
outputs. To measure the overhead, some calls compute one set only, but fill and copy as many sets as the timed call.
Their median time is subtracted, and the rest is divided by the number of sets that only the timed call computes. The
reference makes these calls for both sides: a student's process could slow down its own calls, so that too much would be
subtracted. A "go" covers so many sets that it lasts at least GO_S, because shorter times are mostly noise.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from grader.assignment.expressions import evaluate_int
from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Part
from grader.backends import binding, faults
from grader.backends.gpu import devicecall
from grader.backends.gpu.card import finding
from grader.backends.gpu.card.arena import Arena, Card, Tensor
from grader.backends.gpu.card.finding import GPU
from grader.backends.gpu.host import NO_ROOM, DeviceHost
from grader.backends.native.compilers import digest
from grader.backends.protocol import SampledRows, TimedPart
from grader.core.draws import derive
from grader.core.errors import KitError
from grader.core.places import SHARED_TRIALS
from grader.core.results import CardClock, Diagnosis, Timing
from grader.runner.calls import Call, Round, Sample
from grader.runner.session import PipeSession, Session
from grader.sandbox import GIB

GO_S = 0.05
"""Least seconds of a timed "go". Measured: times of 1 ms vary by 30 %, times of 25 ms by 2 to 5 %."""
WARM_UP_S = 0.02
"""Seconds of untimed warm-up before each call: an idle GPU takes some milliseconds to reach its full clock."""
BASE_CALLS, WARM_UP_CALLS = 5, 1
MOST_SETS = 2048
MEMORY_SHARE = 0.4
"""Share of the free memory that the sets of one side (student or reference) may take."""
SAMPLED_ROWS = 16
SAME_FACTOR = 4.0
"""Largest allowed difference between student and reference, as a multiple of the tolerance of the sampled rows."""
TRIAL_SETS, TRIAL_CALLS = 8, 3
ROUND_S = 1.5
"""Approximate seconds of a round: half of them for a new student runner."""
LONGEST_GO_S = 2.0
"""Limit on the seconds of a student's call: forty times GO_S. A slower kernel gets fewer sets."""
MOST_UNSTEADY = 8
"""The measurement ends after this many rounds in a row at an unsteady clock."""
REFERENCE = "reference"
"""Entry in `waits_for` if only a copy of the kit with a reference can judge the time."""

_known_sets: dict[tuple[Any, ...], int] = {}


def measured(timed: TimedPart, host: DeviceHost) -> Timing:
    """Time a part in rounds of student and reference on the GPU. The times in the result are for one set.

    Raise Faulty if the student's kernel fails, returns wrong results, changes its inputs or cannot be timed on this
    machine. Raise KitError if the reference is faulty in one of these ways, or if the tensors do not fit on the GPU.
    """

    def compared(most_sets: int | None = None, *, shortens: bool = True) -> Timing:
        with ExitStack() as stack:
            rounds = DeviceRounds(timed, host, stack, most_sets=most_sets, shortens=shortens)
            timing = timed.decide(rounds.play(), "wall", timed.budget_s / ROUND_S * 4 * rounds.set_s)
            return replace(timing, card=rounds.clocks())

    try:
        return compared()
    except Outlasting as outlasting:
        found = compared(outlasting.sets, shortens=False)
    return found if found.verdict == "slow" or not found.fit else compared(shortens=False)


class Outlasting(Exception):
    """Raised if a student's call on all sets takes too long. `sets` is the number of sets for a new measurement."""

    def __init__(self, sets: int) -> None:
        super().__init__(sets)
        self.sets = sets


@dataclass
class Side:
    """Student or reference (`is_reference`) in one round: its runner, number of calls, and seed of the last call."""

    runner: TimedRunner
    is_reference: bool
    calls: int = 0
    seed: int = 0


@dataclass
class DeviceRounds:
    """Makes the rounds of one timing. Its arenas are closed when `stack` is closed."""

    timed: TimedPart
    device: DeviceHost
    stack: ExitStack
    most_sets: int | None = None
    """Limit on the sets in a student's call; None: as many as in the reference's call."""
    shortens: bool = False
    """If True, a student's warm-up that takes too long raises Outlasting."""
    round: int = 0
    set_s: float = field(default=0.0, init=False)
    """Approximate seconds that the reference takes for one set."""
    unsteady: int = field(default=0, init=False)
    """Number of rounds that were repeated because the GPU's clock changed during them."""
    readings: list[finding.Reading] = field(default_factory=list, init=False)
    """The GPU's clock after each call of the rounds that are used."""
    tuned: str = field(default="", init=False)
    """The choices of the student's autotuners in its first timed runner."""
    sampled_set: int = field(default=0, init=False)
    """Number of the set, in each side's first call, whose outputs are compared with the oracle."""
    looked_at: Callable[[Mapping[str, Any]], dict[str, SampledRows]] = field(init=False)
    """Function that compares random rows of the outputs of set `sampled_set` with the oracle."""
    tolerances: dict[str, float] = field(default_factory=dict, init=False)
    """Maps each output to the largest allowed difference between student and reference."""
    their_bytes: int = field(default=0, init=False)
    """GPU memory that the reference's runner took."""

    def __post_init__(self) -> None:
        device, self.checks, self.seed = self.device, self.timed.checks, self.timed.seed
        self.part = self.checks.part
        assert device.card is not None
        self.card: Card = device.card
        self.card.driver.make_current()
        self.clock = finding.clock_of(self.card.driver)
        self.seen_clocks: dict[bool, list[finding.Reading]] = {True: [], False: []}
        self.shape = {**self.checks.shape, "layout": 0}
        self.as_autograd = False
        path = device.reference_file(self.part)
        if path is None:
            message = "This kit has no reference to time it against: the results are right, the time is open."
            raise faults.Faulty("unjudged", Diagnosis("machine_lacks", message), waits_for=REFERENCE)
        self.path: Path = path
        self.tensors = tensors_of(self.part, self.shape)
        sets = self.sets()
        self.theirs = self.arena(sets)
        self.mine = self.arena(min(sets, self.most_sets or sets))

    def arena(self, sets: int) -> Arena:
        from grader.backends.gpu.card.driver import CudaError

        try:
            made = Arena(self.card, self.tensors, sets)
        except CudaError as error:
            raise KitError(f"the GPU has not enough memory to time {self.part.id}: {error}") from error
        self.stack.callback(made.close)
        return made

    def sets(self) -> int:
        """Return the number of sets in a call of the reference, from its time in a trial and the free GPU memory."""
        part, allowed_gib = self.part, self.checks.assignment.limits.memory_gib
        free_bytes = judges_bytes(self.card.driver.memory()[0], int(allowed_gib * GIB))
        key = (self.path, part.id, *sorted(self.shape.items()))
        if key not in _known_sets:
            self.set_s = self.shared_trial_s(key, free_bytes)
            _known_sets[key] = sets_for(self.tensors, self.set_s, free_bytes)
            _known_seconds[key] = self.set_s
        self.set_s = _known_seconds[key]
        return min(_known_sets[key], sets_for(self.tensors, 0.0, free_bytes))

    def shared_trial_s(self, key: tuple[Any, ...], free_bytes: int) -> float:
        """Return the reference's seconds for one set. When a class is judged, all its workers share one trial.

        These seconds only decide how many sets a call has. Every timing measures the reference anew in its rounds.
        """
        if (folder := os.environ.get(SHARED_TRIALS)) is None:
            return self.trial_s(free_bytes)
        file = Path(folder, f"trial-{digest(repr(key).encode())}")
        # A timing has the machine to itself, so no other worker reads or writes the file now.
        with contextlib.suppress(OSError, ValueError):
            return float(file.read_text())
        found_s = self.trial_s(free_bytes)
        with contextlib.suppress(OSError):
            file.write_text(repr(found_s))
        return found_s

    def trial_s(self, free_bytes: int) -> float:
        """Return approximate seconds of the reference for one set, from a few calls on few sets."""
        few = min(TRIAL_SETS, sets_for(self.tensors, 0.0, free_bytes))
        trial = Arena(self.card, self.tensors, few)
        try:
            with self.reference(trial) as session:
                runner = self.attached(session, trial, is_reference=True)
                return min(runner.seconds(runner.raw(k, few)) for k in range(TRIAL_CALLS))
        finally:
            trial.close()

    def reference(self, arena: Arena) -> PipeSession:
        limit_s = self.checks.call_timeout_s(self.shape)
        return self.device.reference(
            self.part, self.path, threads=1, shared_fd=arena.fd, call_timeout_s=limit_s
        )

    def attached(
        self, session: Session, arena: Arena, *, is_reference: bool, as_autograd: bool = False
    ) -> TimedRunner:
        """Return a warmed-up runner that has mapped the arena. `as_autograd`: True to call an autograd.Function.

        `is_reference`: True for the reference's runner. In this case, the overhead of a call is also measured.

        Raises KitError if the reference's warm-up fails, Faulty if the student's does, and Outlasting if the student's
        warm-up takes too long.
        """
        assert isinstance(session, PipeSession), "as `GpuBackend.open` starts it"
        part = self.part
        called = devicecall.device_call(part, self.shape)
        called.pop("names")
        called.pop("outputs")
        function = part.reference if is_reference and part.reference else part.function
        called |= {"as_autograd": as_autograd, "tuned": "" if is_reference else self.tuned}
        request = arena.attach_request(called.pop("arguments"), function, **called)
        runner = TimedRunner(session, arena, request)
        seed = derive(self.seed, "warm-up", self.round)
        ended = runner.failure or runner.warm_up(seed)
        if is_reference:
            if ended is None:
                runner.base_s = self.taken_off(runner)
        elif ended is None and runner.tuned and not self.tuned:
            # Reuse the autotuners' choices: measuring many configurations in every round would take many seconds.
            self.tuned = runner.tuned
            ended = runner.warm_up(seed)
        if not is_reference and self.shortens and arena.sets > 1:
            if ended is not None and ended.status == "timeout":
                raise Outlasting(1)
            if runner.warm_up_s > LONGEST_GO_S:
                raise Outlasting(max(1, int(arena.sets * LONGEST_GO_S / runner.warm_up_s)))
        if ended is not None:
            self.refuse(ended, session, is_reference)
        return runner

    def taken_off(self, runner: TimedRunner, laid: int | None = None) -> float:
        """Return the overhead in seconds of a timed call with `laid` sets (None: all), as the reference measures it."""
        found = runner.calibrate(derive(self.seed, "warm-up", self.round), laid)
        if isinstance(found, Call):
            self.checks.refuse_failed_reference(found)
        assert isinstance(found, float), "a call that failed is refused"
        return found

    def refuse(self, call: Any, session: Session, is_reference: bool) -> None:
        if is_reference:
            self.checks.refuse_failed_reference(call)
        if not self.timed.rule.graded and NO_ROOM.search(call.message):
            message = (
                "The results are right. The timed call needs more memory than the GPU has: no time is shown."
            )
            raise faults.Faulty("unjudged", Diagnosis("machine_lacks", message), waits_for=GPU)
        self.checks.refuse_broken(call, session, "timed call")

    def play(self) -> Iterator[Round]:
        """Make and yield rounds without end. Rounds during which the GPU's clock was unsteady are not yielded.

        Raise Faulty after MOST_UNSTEADY unsteady rounds in a row, and as `measured` does.
        """
        in_a_row = 0
        while True:
            self.seen_clocks = {True: [], False: []}
            one = self.one_round()
            # Check the clock for each side separately: a kernel that draws more power runs at a slower clock.
            if all(map(finding.is_steady, self.seen_clocks.values())):
                in_a_row = 0
                self.readings += [*self.seen_clocks[True], *self.seen_clocks[False]]
                yield one
                continue
            self.unsteady, in_a_row = self.unsteady + 1, in_a_row + 1
            if in_a_row == MOST_UNSTEADY:
                found = ", ".join(str(reading.mhz) for side in self.seen_clocks.values() for reading in side)
                message = (
                    f"The GPU's clock changes by more than {finding.STEADY:.0%} from call to call (MHz: {found}). The "
                    "results are right, the time is open. Cool the GPU, stop other programs on it, or fix its clock "
                    "(nvidia-smi --lock-gpu-clocks), and judge again."
                )
                raise faults.Faulty(
                    "unjudged", Diagnosis("machine_lacks", message), waits_for=finding.STEADY_CLOCK
                )

    def clocks(self) -> CardClock | None:
        """Return the range of the GPU's clock in the rounds that are used; None if it could not be read."""
        if not self.readings:
            return None
        known = [reading.mhz for reading in self.readings]
        slowed_by = sorted(frozenset().union(*(reading.slowed_by for reading in self.readings)))
        return CardClock(min(known), max(known), self.unsteady, tuple(slowed_by))

    @functools.cached_property
    def their_runner(self) -> TimedRunner:
        """The reference's runner, warmed up. Raises Faulty as `refuse_other_form` does."""
        form, free_bytes = self.other_form(), self.card.driver.memory()[0]
        session = self.stack.enter_context(self.reference(self.theirs))
        self.refuse_other_form(form, session)
        runner = self.attached(session, self.theirs, is_reference=True, as_autograd=form)
        self.their_bytes = max(0, free_bytes - self.card.driver.memory()[0])
        return runner

    @functools.cached_property
    def student_base_s(self) -> float:
        """Seconds of overhead to subtract from the student's calls."""
        is_same = self.mine.sets == self.theirs.sets
        return self.their_runner.base_s if is_same else self.taken_off(self.their_runner, self.mine.sets)

    def one_round(self) -> Round:
        """Make one round of calls: reference, student, student, reference."""
        self.round += 1
        part, driver = self.part, self.card.driver
        theirs, base_s = Side(self.their_runner, True), self.student_base_s
        theirs.runner.warm_up(derive(self.seed, "warm-up", self.round))
        first = self.sample(theirs)
        free_bytes = driver.memory()[0]
        with self.timed.student(threads=1, shared_fd=self.mine.fd) as own:
            runner = self.attached(own, self.mine, is_reference=False)
            runner.base_s = base_s
            if self.mine.sets < self.theirs.sets:
                # The overhead was measured in calls that compute one set of the reference: take off the set's time, so
                # that the student's time is divided by all of its few sets.
                runner.base_s, runner.base_sets = max(0.0, base_s - first.wall_s), 0
            # Both numbers include the memory of an idle runner. It is equal on both sides, so it is not subtracted.
            self.device.peaks[part.id] = (max(0, free_bytes - driver.memory()[0]), self.their_bytes)
            mine = Side(runner, False)
            student = self.sample(mine, theirs), self.sample(mine, theirs)
        # Warm up again: the GPU was idle while the student's runner ended.
        theirs.runner.warm_up(derive(self.seed, "warm-up", self.round))
        return Round((first, self.sample(theirs, mine)), student)

    def other_form(self) -> bool:
        """Return True if the student's file computes this part by an autograd.Function."""
        part = self.part
        if devicecall.properties(part).autograd is None:
            return False
        if self.round == 1:
            if self.checks.functions is None:
                with self.timed.student(threads=1) as own:
                    self.checks.functions = own.functions
            self.as_autograd = devicecall.as_autograd(part, self.checks.functions)
        return self.as_autograd

    def refuse_other_form(self, as_autograd: bool, other: Session) -> None:
        """Raise Faulty if the student's gradients come from an autograd.Function, but the reference has none."""
        form = devicecall.properties(self.part).autograd
        if as_autograd and form and form.gradient and devicecall.AUTOGRAD not in other.functions:
            message = (
                "Its results are right. Its time is open: the reference has no autograd.Function to compare with. Hand "
                f"in a function {self.part.function} to have it timed."
            )
            raise faults.Faulty("unjudged", Diagnosis("machine_lacks", message), waits_for=REFERENCE)

    # ---- one call

    def sample(self, side: Side, other: Side | None = None) -> Sample:
        """Make one timed call. If the other side's last call had the same inputs, compare the outputs.

        Raise Faulty if the student's outputs are wrong or it changed its inputs.
        """
        side.calls += 1
        side.seed = derive(self.seed, "inputs", self.round, side.calls) & 0xFFFFFFFF
        runner = side.runner
        call = runner.raw(side.seed, runner.arena.sets)
        if self.clock and (reading := self.clock.read()):
            self.seen_clocks[side.is_reference].append(reading)
        if call.status != "ok":
            self.refuse(call, runner.session, side.is_reference)
        if changed := runner.arena.inputs_changed(side.seed):
            self.refuse_changed(changed, side)
        if self.round == 1 and side.calls == 1:
            # The outputs of later calls are only compared with the reference's outputs, not with the oracle.
            for name, tolerance in self.check_rows(side).items():
                self.tolerances[name] = max(tolerance, self.tolerances.get(name, 0.0))
        if other is not None and other.seed == side.seed:
            self.compare(*((other, side) if other.is_reference else (side, other)))
        return Sample(runner.seconds(call), None)

    def refuse_changed(self, names: list[str], side: Side) -> None:
        if side.is_reference:
            raise KitError(f"the reference of {self.part.id} changed its inputs; please report this")
        inputs = [tensor.name for tensor in self.tensors if not tensor.is_output]
        raise faults.Faulty("wrong", self.checks.changed_inputs(names, inputs))

    def check_rows(self, side: Side) -> dict[str, float]:
        """Compare rows of one set's outputs with the oracle. Return {output: allowed difference from the reference}.

        Student and reference have equal inputs and share one random choice of set and rows, because the oracle may take
        seconds. The student's process does not learn which rows were drawn. Raise Faulty if the student's rows are
        wrong, KitError if the reference's are.
        """
        if side.is_reference:
            self.sampled_set = secrets.randbelow(self.mine.sets)
            arrays = side.runner.arena.input_values(side.seed, self.sampled_set)
            self.looked_at = self.checks.sampled(CaseInputs(self.shape, arrays), SAMPLED_ROWS)
        found = self.looked_at(side.runner.arena.output_values(self.sampled_set))
        for name, rows in found.items():
            if not rows.wrong:
                continue
            if side.is_reference:
                raise KitError(
                    f"the reference of {self.part.id} is wrong in a timed call; please report this"
                )
            words = (
                f"{rows.wrong} of {rows.count} checked elements of {name} are wrong in a "
                f"timed call, the largest error is {rows.max_error:.3g}. Smaller inputs gave right "
                "results. Does the function wait for all kernels that it launches, and does it use the inputs of this "
                "call, not of an earlier one?"
            )
            raise faults.Faulty("wrong", Diagnosis("wrong_when_timed", words))
        return {name: SAME_FACTOR * rows.tolerance for name, rows in found.items()}

    def compare(self, theirs: Side, mine: Side) -> None:
        """Compare all outputs of two calls that had the same inputs. Raise Faulty if they differ too much."""
        tolerances = {name: (tolerance, 0.0) for name, tolerance in self.tolerances.items()}
        counts = mine.runner.arena.differing(theirs.runner.arena, tolerances)
        for tensor in mine.runner.arena.outputs:
            if counts[tensor.name]:
                total = tensor.count * mine.runner.arena.sets
                words = (
                    f"{counts[tensor.name]} of {total} elements of {tensor.name} in a timed call are further from the "
                    "reference's than rounding explains, or were never written. Does the function wait for all kernels "
                    "that it launches, and does it use the inputs of this call, not of an earlier one?"
                )
                raise faults.Faulty("wrong", Diagnosis("wrong_when_timed", words))


_known_seconds: dict[tuple[Any, ...], float] = {}


def tensors_of(part: Part, shape: Mapping[str, int]) -> list[Tensor]:
    """Return the inputs and outputs that make up one set of a part's timed call."""
    found = []
    for name in binding.tensor_names(part, part.inputs):
        sizes = tuple(evaluate_int(dim, shape) for dim in binding.dims_of(part, name))
        low, high = devicecall.properties(part).ranges.get(name, (-1.0, 1.0))
        found.append(
            Tensor(name, sizes, devicecall.dtype_of(part, name, shape), low, high, name in part.outputs)
        )
    return found


# ---- one call


class TimedRunner:
    """A runner that has mapped an arena's memory. `failure` is the failed call if it could not map the memory."""

    def __init__(self, session: PipeSession, arena: Arena, request: Mapping[str, Any]) -> None:
        """Make the runner map the memory. `request` comes from `Arena.attach_request`."""
        self.session, self.arena = session, arena
        self.failure = _failed(session.command(dict(request)))
        self.base_sets = 1 if arena.sets > 1 else 0
        """Number of sets that the calls for measuring the overhead compute."""
        self.base_s = 0.0
        self.warm_up_s = 0.0
        """Seconds of the last warm-up call, including overhead."""
        self.tuned = ""
        """The choices of the runner's autotuners, for the next runner of this file (`devicerunner.tuned`)."""

    def warm_up(self, seed: int) -> Call | None:
        """Make an untimed call, so that the runner loads everything. Return the call if it failed; else None."""
        for k in range(WARM_UP_CALLS):
            call = self.raw(seed + k, self.arena.sets)
            if ended := _failed(call):
                return ended
            self.warm_up_s, self.tuned = call.wall_s, call.message
        return None

    def calibrate(self, seed: int, laid: int | None = None) -> float | Call:
        """Return the median overhead in seconds of calls that fill and copy `laid` sets (None: all).

        If a call fails, return the failed Call.
        """
        times = []
        for k in range(BASE_CALLS):
            call = self.raw(seed + 100 + k, self.base_sets, laid)
            if ended := _failed(call):
                return ended
            times.append(call.wall_s)
        return median(times)

    def raw(self, seed: int, sets: int, laid: int | None = None) -> Call:
        """Make a call on `sets` sets and return it. Its time includes filling and copying `laid` sets (None: all)."""
        header = {"op": "go", "inputs": [], "sets": sets}
        self.arena.warm_up(WARM_UP_S)
        self.arena.poison()
        return self.session.command(
            header, begin=lambda: self.arena.fill(seed, laid), finish=lambda: self.arena.take(laid)
        )

    def seconds(self, call: Call) -> float:
        """Return the seconds per set of a call on all sets, without overhead."""
        return max(call.wall_s - self.base_s, 0.0) / (self.arena.sets - self.base_sets)


def _failed(call: Call) -> Call | None:
    """Return the call if it failed, else None."""
    return None if call.status == "ok" else call


def sets_for(tensors: Sequence[Tensor], set_s: float, free_bytes: int) -> int:
    """Return the number of sets for a call of at least GO_S seconds, if one set takes `set_s` seconds.

    The number is limited by `free_bytes` of GPU memory and by MOST_SETS.
    """
    most = int(MEMORY_SHARE * free_bytes / Arena.bytes_for(tensors))
    return max(1, min(MOST_SETS, most, -int(-GO_S // max(set_s, 1e-7))))


def judges_bytes(free_bytes: int, kernel_bytes: int) -> int:
    """Return the bytes of GPU memory that the judge may take: all but `kernel_bytes`, and at least half."""
    return max(free_bytes // 2, free_bytes - kernel_bytes)
