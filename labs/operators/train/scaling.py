"""`--threads 1,2,4,8`: time of a training step for several numbers of OpenMP threads, with a fit of Amdahl's law.

Each number of threads has its own runner. All runners train the same network from the same weights on the same batches.
Runners take turns: in each round, all make some steps one after the other, and then the same again in reverse order. A
speed-up is a ratio of times within a round. The time of a step includes the pipe and all work besides the student's
functions, which more threads do not shorten. The final losses of the runners are compared, too. They differ only by
rounding, unless there is a data race.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from grader.core import machine
from grader.core.arrays import np
from grader.judge.timing.intervals import Estimate, median_estimate
from grader.judge.timing.measure import CORE_SHARE_LIMIT
from grader.runner import placement
from grader.runner.calls import Sample
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import estimated, one_round
from grader.study.table import Cell, Table, shown
from grader.study.threads import amdahl, serial_share

from .digits import Data, Wishes
from .layers import StudentNetwork
from .networks import Network
from .operations import Start, StudentOperators
from .training import MNIST_IMAGES, Batch, tensors

PUBLISHED_S = {1: 1200.0, 4: 390.0, 8: 260.0}
"""Published times in s, by number of threads, of 10 epochs over MNIST with the course's MLP 784-32-10, on the course's
machine."""
TURN_S, MOST_STEPS = 0.15, 50
"""Minimum duration of a turn in s, and limit on its steps."""
COLUMNS = (
    "network",
    "threads",
    "ms a step",
    "from",
    "to",
    "s per 60,000 images",
    "speed-up",
    "speed-up from",
    "speed-up to",
    "efficiency",
    "published speed-up",
    "note",
)


@dataclass(frozen=True)
class Line:
    """Results for one number of threads: time of a step and speed-up over one thread, both None if not measured.
    `loss_apart` is the relative difference of the final loss from the loss with one thread."""

    threads: int
    step_ms: Estimate | None
    speedup: Estimate | None
    loss_apart: float = 0.0


@dataclass(frozen=True)
class Curve:
    """Results of one network. `serial` is the serial share in Amdahl's law; None with fewer than two thread counts.

    `core_share` shows other load on the machine. It is the CPU time of this process and of the runner with one thread,
    divided by wall time; None if it cannot be read. Without other load it is about 1, because the two work in turn.
    """

    network: Network
    batch: int
    lines: tuple[Line, ...]
    serial: float | None
    core_share: float | None = None


@dataclass(frozen=True)
class Scaling:
    """All networks' curves; a `grader.study.outcome.StudyResult`. `drawn`: True if figures are requested."""

    curves: tuple[Curve, ...]
    cores: int
    rounds: int
    about: str
    drawn: bool

    def table(self) -> Table:
        rows = [self._row(curve, line) for curve in self.curves for line in curve.lines]
        return Table(
            "train-threads",
            "A training step over the number of threads",
            COLUMNS,
            tuple(rows),
            f"{self.about}. Medians over {self.rounds} interleaved rounds, wall-clock time of whole steps, including "
            f"the pipe between judge and runner. {self.law()}",
        )

    def _row(self, curve: Curve, line: Line) -> tuple[Cell, ...]:
        time_ms, speedup = line.step_ms, line.speedup
        published = PUBLISHED_S[1] / PUBLISHED_S[line.threads] if line.threads in PUBLISHED_S else None
        network = curve.network.name
        if time_ms is None or speedup is None:
            return (network, line.threads, *[None] * 8, published, f"not measured: {self.cores} cores")
        return (
            network,
            line.threads,
            time_ms.middle,
            time_ms.low,
            time_ms.high,
            time_ms.middle / 1e3 * MNIST_IMAGES / curve.batch,
            speedup.middle,
            speedup.low,
            speedup.high,
            speedup.middle / line.threads,
            published,
            f"the loss differs by {line.loss_apart:.1e}" if line.loss_apart else "-",
        )

    def law(self) -> str:
        """Return sentences with the fitted serial share of each network, and of the times in PUBLISHED_S."""
        counts, times = tuple(PUBLISHED_S), tuple(PUBLISHED_S.values())
        published = serial_share(counts, times)
        sentences = [
            f"Amdahl's law fits {curve.network.name} with a serial share of {shown(max(0.0, curve.serial))}."
            if curve.serial < 1
            else f"More threads did not make {curve.network.name} faster."
            for curve in self.curves
            if curve.serial is not None
        ]
        sentences.append(
            f"The published times ({', '.join(f'{s:.0f}' for s in times)} s on {', '.join(map(str, counts))} threads) "
            f"fit with a serial share of {shown(published)}."
        )
        return " ".join(sentences) + self._doubt()

    def _doubt(self) -> str:
        shares = [curve.core_share for curve in self.curves if curve.core_share is not None]
        if not shares or min(shares) * CORE_SHARE_LIMIT >= 1:
            return ""
        return (
            f" One thread and the judge had only {100 * min(shares):.0f} % of a core: another program used it, so the "
            "measured speed-ups are too small. Measure again when the machine is idle."
        )

    def figures(self) -> tuple[Figure, ...]:
        if not self.drawn:
            return ()
        counts = sorted({line.threads for curve in self.curves for line in curve.lines} | {*PUBLISHED_S})
        axis = tuple(float(count) for count in counts)
        series = []
        for curve in self.curves:
            points = ((line.threads, line.speedup) for line in curve.lines)
            series.append(estimated(curve.network.name, points))
            if curve.serial is not None and curve.serial < 1:
                model = tuple(amdahl(max(0.0, curve.serial), t) for t in counts)
                series.append(Series(f"{curve.network.name}, Amdahl's law", axis, model, style="line"))
        published = tuple(PUBLISHED_S[1] / time for time in PUBLISHED_S.values())
        series.append(Series("published", tuple(float(t) for t in PUBLISHED_S), published))
        return (
            Plot(
                "train-threads",
                "Training: speed-up over threads",
                self.about,
                "OpenMP threads",
                "speed-up over one thread",
                tuple(series),
                log_x=True,
                x_ticks=axis,
            ),
        )


class _Turns:
    """Training with one number of threads: runner, network, and the number of finished steps."""

    def __init__(
        self,
        operators: StudentOperators,
        threads: int,
        network: Network,
        wishes: Wishes,
        batches: Sequence[Batch],
    ) -> None:
        self.operators, self.threads, self.batches = operators, threads, batches
        self.rate = wishes.rate * network.warm_up  # a small rate, so that rounding differences stay small
        self.net = StudentNetwork(network, network.first_weights(wishes.seed), operators)
        self.done = 0
        self.loss = math.nan
        self.turns_s: list[float] = []
        """Seconds of each turn; each round adds two."""
        self.busy_s = self.wall_s = 0.0
        """Total CPU time of the runner and of this process in steps, and the wall time of these steps, in s."""

    def steps_s(self, count: int) -> float:
        """Make `count` steps and return their time in seconds."""
        session = self.operators.session
        cpu_s, mine_s, started = session.cpu_clock_s(), time.process_time(), time.perf_counter()
        for _ in range(count):
            images, labels = self.batches[self.done % len(self.batches)]
            self.loss = self.net.step(images, labels, self.rate)
            self.done += 1
        wall_s, mine_s = time.perf_counter() - started, time.process_time() - mine_s
        if cpu_s is not None and (now_s := session.cpu_clock_s()) is not None:
            self.busy_s += now_s - cpu_s + mine_s
            self.wall_s += wall_s
        return wall_s

    def settle(self) -> float:
        """Make the first steps to warm up, with each thread pinned to a core. Return the last step's time in s."""
        cores = machine.core_order()[: self.threads]
        session = self.operators.session
        placement.warm_up(session, lambda: Sample(self.steps_s(1), None), pin_to=cores)
        self.steps_s(placement.SETTLING_CALLS + 1 - self.done)
        return self.steps_s(1)

    def rounds_s(self) -> list[float]:
        """Return the seconds of a turn for each round: the geometric mean of the round's two turns."""
        pairs = zip(self.turns_s[::2], self.turns_s[1::2], strict=True)
        return [math.sqrt(one * other) for one, other in pairs]


def measure(
    network: Network,
    start: Start,
    data: Data,
    wishes: Wishes,
    counts: Sequence[int],
    cores: int,
    rounds: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Curve:
    """Time the network's steps with 1 thread, and with each of `counts` that is at most `cores`.

    `on_progress` is called with the numbers of finished turns and of all turns. Raises `operations.Broken`.
    """
    counts = sorted({1, *counts})
    order = np.random.Generator(np.random.PCG64(wishes.seed)).permutation(len(data.training))
    some = min(MOST_STEPS, len(order) // wishes.batch)
    batches = [tensors(data.training, order[k * wishes.batch : (k + 1) * wishes.batch]) for k in range(some)]
    able = [_Turns(start(t), t, network, wishes, batches) for t in counts if t <= cores]
    slowest_s = max(turns.settle() for turns in able)
    steps = max(1, min(MOST_STEPS, math.ceil(TURN_S / slowest_s)))
    finished = count(1)

    def turn(turns: _Turns) -> Sample:
        sample = Sample(turns.steps_s(steps), None)
        on_progress(next(finished), 2 * len(able) * rounds)
        return sample

    callers = {k: partial(turn, turns) for k, turns in enumerate(able)}
    for number in range(rounds):
        samples, _ = one_round(callers, number)
        for k, turns in enumerate(able):
            turns.turns_s += [sample.wall_s for sample in samples[k]]
    lines = [_line(able, threads, steps) for threads in counts]
    alone = able[0]
    share = alone.busy_s / alone.wall_s if alone.wall_s else None
    return Curve(network, wishes.batch, tuple(lines), serial(lines), share)


def serial(lines: Sequence[Line]) -> float | None:
    """Return the serial share s of Amdahl's law, fitted by least squares; None with fewer than two measured lines."""
    fitted = [(line.threads, 1 / line.speedup.middle) for line in lines if line.speedup is not None]
    counts, times = [t for t, _ in fitted], [time for _, time in fitted]
    return serial_share(counts, times) if len(fitted) > 1 else None


def _line(able: Sequence[_Turns], threads: int, steps: int) -> Line:
    turns = next((each for each in able if each.threads == threads), None)
    if turns is None:
        return Line(threads, None, None)
    one, mine = able[0].rounds_s(), turns.rounds_s()
    return Line(
        threads,
        median_estimate([1e3 * turn_s / steps for turn_s in mine]),
        median_estimate([alone_s / turn_s for alone_s, turn_s in zip(one, mine, strict=True)]),
        abs(turns.loss - able[0].loss) / max(abs(able[0].loss), 1e-30),
    )
