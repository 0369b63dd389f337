"""Training, epoch by epoch: the student's network and PyTorch's own, on the same batches from the same weights.

In the first steps the networks alternate: each step is made by both, and the student's calls are compared (`lockstep`).
Later the student's network makes all steps of an epoch in a row, without comparison, and then PyTorch's makes the same
steps. If they alternated, idle threads of one, which wait in a busy loop, would slow the other. Speeds are computed
only from the steps without comparison.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grader.core.arrays import Array, np
from grader.core.errors import UsageError
from grader.study import figure
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Table

from .digits import Data, Digits, Wishes
from .layers import StudentNetwork, TorchNetwork
from .lockstep import Agreement, Watch
from .networks import WARM_UP_STEPS, Network
from .operations import Broken, StudentOperators

MEAN_INK, INK_SPREAD = 0.18, 0.30
"""Approximate mean and standard deviation of pixels (0 to 1) in drawn digits and in MNIST. With them, a network's input
is scaled to mean 0 and deviation 1."""
MNIST_IMAGES = 60_000


@dataclass(frozen=True)
class Epoch:
    """Results of both networks for one epoch: mean loss, share of test images read correctly, and images per second.

    Steps in which each call is compared with torch are not timed. The images per second are None if no step is timed.
    """

    number: int
    loss: float
    torch_loss: float
    accuracy: float
    torch_accuracy: float
    images_per_s: float | None
    torch_images_per_s: float | None


@dataclass(frozen=True)
class Training:
    """Result of one training. `read` has the digit that the student's network finally reads in each test image.

    `calls_per_step` and `call_share` describe the steps without comparison; without such steps they are 0.
    `calls_per_step` is the number of calls of the student's functions in a step. `call_share` is the time of these
    calls, including the pipe, divided by the steps' time.
    """

    network: Network
    epochs: tuple[Epoch, ...]
    agreement: Agreement
    read: Array
    calls_per_step: float
    call_share: float


class Stopped(Exception):
    """Raised if training cannot continue because of the student's file. The message is one line."""


@dataclass
class _Tally:
    """Sums over one network's steps of an epoch. Images and seconds are sums over the steps without comparison."""

    losses: list[float] = field(default_factory=list)
    images: int = 0
    wall_s: float = 0.0

    def add(self, loss: float, images: int, wall_s: float, *, watched: bool) -> None:
        self.losses.append(loss)
        if not watched:
            self.images += images
            self.wall_s += wall_s

    @property
    def loss(self) -> float:
        return math.fsum(self.losses) / max(1, len(self.losses))

    @property
    def images_per_s(self) -> float | None:
        return self.images / self.wall_s if self.wall_s else None


Batch = tuple[Tensor, Tensor]


class Trainer:
    """Trains both networks. `on_step` is called after each step of the student's network, with the number of finished
    steps and the total number."""

    def __init__(
        self,
        network: Network,
        operators: StudentOperators,
        data: Data,
        wishes: Wishes,
        threads: int,
        on_step: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Prepare both networks. Raises UsageError for a batch that is larger than the training set."""
        if wishes.batch > len(data.training):
            raise UsageError(
                f"--batch {wishes.batch} is larger than the training set of {len(data.training)} images"
            )
        self.network, self.data, self.wishes, self.on_step = network, data, wishes, on_step
        weights = network.first_weights(wishes.seed)
        self.operators = operators
        self.student = StudentNetwork(network, weights, operators)
        self.torch = TorchNetwork(network, weights)
        self.watch = Watch(network)
        self.steps_per_epoch = len(data.training) // wishes.batch
        self.steps = self.torch_steps = 0
        self._unwatched = np.zeros(4)
        """Sums over steps without comparison: their number, calls, the calls' time and the steps' time in s."""
        torch.set_num_threads(threads)

    def run(self, epoch_ends: Callable[[Epoch], None] = lambda epoch: None) -> Training:
        """Train for all epochs. Stop at the first deviation, except with `wishes.goes_on`.

        Raises:
            operations.Broken, Stopped: the student's file is at fault.
            UsageError: numbers became too large for float32 in both networks.
        """
        random = np.random.Generator(np.random.PCG64(self.wishes.seed + 1))
        epochs: list[Epoch] = []
        for number in range(1, self.wishes.epochs + 1):
            order = random.permutation(len(self.data.training))
            mine, torchs = _Tally(), _Tally()
            if not self._epoch(order, mine, torchs):
                break
            epochs.append(
                Epoch(
                    number,
                    mine.loss,
                    torchs.loss,
                    self._accuracy(self.student.forward),
                    self._accuracy(self.torch.forward),
                    mine.images_per_s,
                    torchs.images_per_s,
                )
            )
            epoch_ends(epochs[-1])
        steps, calls, call_s, step_s = self._unwatched.tolist()
        return Training(
            self.network,
            tuple(epochs),
            self.watch.agreement(),
            self._read(self.student.forward) if epochs else np.zeros(0, np.int64),
            calls / max(1, steps),
            call_s / step_s if step_s else 0.0,
        )

    # ---- one epoch

    def _epoch(self, order: Array, mine: _Tally, torchs: _Tally) -> bool:
        """Train one epoch on the images in this order. Return True if training goes on, False after a deviation."""
        watched = max(0, min(self.wishes.lockstep - self.steps, self.steps_per_epoch))
        for images, labels in self._batches(order, 0, watched):
            self._student_step(images, labels, mine, watched=True)
            if self.watch.deviation is not None and not self.wishes.goes_on:
                return False
            self._torch_step(images, labels, torchs, watched=True)
            self.watch.compared(mine.losses[-1], torchs.losses[-1])
            self._finite(mine.losses[-1], torchs.losses[-1])
        for images, labels in self._batches(order, watched, self.steps_per_epoch):
            self._student_step(images, labels, mine, watched=False)
            if not math.isfinite(mine.losses[-1]):
                break
        for images, labels in self._batches(order, watched, len(mine.losses)):
            self._torch_step(images, labels, torchs, watched=False)
        self._finite(mine.losses[-1], torchs.losses[-1])
        return True

    def _student_step(self, images: Tensor, labels: Tensor, tally: _Tally, *, watched: bool) -> None:
        call = self.operators
        call.on_call = self.watch if watched else None
        calls, call_s, on_call_s = call.calls, call.wall_s, call.on_call_s
        started = time.perf_counter()
        try:
            loss = self.student.step(images, labels, self._rate(self.steps))
        except Broken as fault:
            raise Broken(f"step {self.steps + 1}: {fault}") from fault
        wall_s = time.perf_counter() - started - (call.on_call_s - on_call_s)
        tally.add(loss, len(images), wall_s, watched=watched)
        if not watched:
            self._unwatched += (1, call.calls - calls, call.wall_s - call_s, wall_s)
        call.on_call = None
        self.steps += 1
        self.on_step(self.steps, self.steps_per_epoch * self.wishes.epochs)

    def _torch_step(self, images: Tensor, labels: Tensor, tally: _Tally, *, watched: bool) -> None:
        started = time.perf_counter()
        loss = self.torch.step(images, labels, self._rate(self.torch_steps))
        self.torch_steps += 1
        tally.add(loss, len(images), time.perf_counter() - started, watched=watched)

    def _rate(self, steps: int) -> float:
        """Return the learning rate after `steps` steps."""
        return self.wishes.rate * (self.network.warm_up if steps < WARM_UP_STEPS else 1.0)

    def _finite(self, loss: float, torch_loss: float) -> None:
        if math.isfinite(loss):
            return
        if not math.isfinite(torch_loss):
            raise UsageError(
                f"with --rate {self.wishes.rate:g} the loss is infinite or NaN at step {self.steps}, in PyTorch, too: "
                "give a smaller --rate"
            )
        raise Stopped(
            f"step {self.steps}: the loss is {loss}, but PyTorch's loss is {torch_loss:.4g}: a larger --lockstep "
            "checks the calls of more steps"
        )

    # ---- images

    def _batches(self, order: Array, start: int, end: int) -> Iterator[Batch]:
        """Yield batches `start` to `end` - 1 of an epoch. Images that do not fill the last batch are left out: a few
        images would change the weights as much as a full batch."""
        size = self.wishes.batch
        for k in range(start, end):
            yield tensors(self.data.training, order[k * size : (k + 1) * size])

    def _read(self, forward: Callable[[Tensor], Tensor]) -> Array:
        """Return the digit that a network reads in each test image, int64."""
        count, size = len(self.data.held_out), self.wishes.batch
        found = []
        with torch.no_grad():
            for start in range(0, count, size):
                images, _ = tensors(self.data.held_out, np.arange(start, min(start + size, count)))
                found.append(forward(images).argmax(1).numpy())
        return np.concatenate(found)

    def _accuracy(self, forward: Callable[[Tensor], Tensor]) -> float:
        return float((self._read(forward) == self.data.held_out.labels).mean())


def tensors(digits: Digits, chosen: Array) -> Batch:
    """Return the chosen images (n, 28, 28), float32 with mean 0 and deviation 1, and their labels (n)."""
    ink = digits.images[chosen].astype(np.float32)
    ink *= np.float32(1 / (255 * INK_SPREAD))
    ink -= np.float32(MEAN_INK / INK_SPREAD)
    return torch.from_numpy(ink), torch.from_numpy(digits.labels[chosen])


# ---- results in the form of a study: a table, figures, and the misread digits

COLUMNS = (
    "network",
    "epoch",
    "loss",
    "PyTorch's loss",
    "right, %",
    "PyTorch's right, %",
    "images/s",
    "PyTorch's images/s",
)
ACROSS, DOWN = 10, 4
"""Columns and rows of misread digits in the picture."""
SHADES = " .:-=+*#%@"
LETTERS_ACROSS = 3
"""Number of digits side by side if they are drawn with characters."""


@dataclass(frozen=True)
class Trainings:
    """All trained networks; a `grader.study.outcome.StudyResult`. `drawn`: True if figures are requested."""

    made: tuple[Training, ...]
    source: str
    about: str
    drawn: bool

    def table(self) -> Table:
        rows = [
            (
                each.network.name,
                epoch.number,
                epoch.loss,
                epoch.torch_loss,
                100 * epoch.accuracy,
                100 * epoch.torch_accuracy,
                epoch.images_per_s,
                epoch.torch_images_per_s,
            )
            for each in self.made
            for epoch in each.epochs
        ]
        agreements = " ".join(f"{each.network.name}: {each.agreement.line()}." for each in self.made)
        caption = f"{self.about}. {self.source}. {agreements}"
        return Table("train", "Networks trained on your operators", COLUMNS, tuple(rows), caption)

    def figures(self) -> tuple[Figure, ...]:
        trained = [each for each in self.made if each.epochs]
        if not (self.drawn and trained):
            return ()
        loss, wrong = [], []
        for each in trained:
            numbers = tuple(float(epoch.number) for epoch in each.epochs)
            name = each.network.name
            loss.append(Series(f"{name}, yours", numbers, tuple(e.loss for e in each.epochs)))
            loss.append(Series(f"{name}, PyTorch", numbers, tuple(e.torch_loss for e in each.epochs)))
            wrong.append(Series(f"{name}, yours", numbers, tuple(_wrong(e.accuracy) for e in each.epochs)))
            torchs = tuple(_wrong(e.torch_accuracy) for e in each.epochs)
            wrong.append(Series(f"{name}, PyTorch", numbers, torchs))
        ticks = tuple(float(k + 1) for k in range(max(len(each.epochs) for each in trained)))
        ticks = ticks if len(ticks) <= 12 else ()
        unit = "mean cross entropy of an epoch's steps"
        return (
            self._plot("train-loss", "Loss over epochs", unit, loss, ticks),
            self._plot("train-accuracy", "Held-out digits that are read wrongly", "%", wrong, ticks),
        )

    def _plot(self, name: str, title: str, unit: str, series: list[Series], ticks: tuple[float, ...]) -> Plot:
        return Plot(name, title, self.about, "epoch", unit, tuple(series), log_y=True, x_ticks=ticks)


def _wrong(accuracy: float) -> float:
    """Return the percentage of images that are read wrongly; at least 0.01, because a logarithmic axis has no 0."""
    return max(0.01, 100 * (1 - accuracy))


# ---- digits that were read wrongly


@dataclass(frozen=True)
class Misread:
    """Test images (n, 28, 28) that a network reads wrongly, with their labels (n).

    `said` (n) has the digits that the network reads. `of` is the number of all test images.
    """

    network: str
    images: Array
    labels: Array
    said: Array
    of: int

    @property
    def title(self) -> str:
        shown = f", the first {ACROSS * DOWN}" if len(self.labels) > ACROSS * DOWN else ""
        return f"{self.network}: {len(self.labels)} of {self.of} held-out digits read wrongly{shown}"


def misread(training: Training, data: Data) -> Misread:
    wrong = np.nonzero(training.read != data.held_out.labels)[0]
    digits = data.held_out
    return Misread(
        training.network.name, digits.images[wrong], digits.labels[wrong], training.read[wrong], len(digits)
    )


def draw(wrong: Misread, about: str, path: Path) -> None:
    """Write a PNG of the first misread digits, each with the network's answer. Raises KitError if matplotlib is
    missing, OSError if the file cannot be written.
    """
    pyplot = figure.matplotlib_pyplot()
    frame, places = pyplot.subplots(DOWN, ACROSS, figsize=figure.SIZE_INCHES, layout="constrained")
    try:
        for k, axes in enumerate(places.flat):
            axes.axis("off")
            if k < len(wrong.labels):
                axes.imshow(wrong.images[k], cmap="gray_r", vmin=0, vmax=255)
                axes.set_title(f"{wrong.labels[k]} read as {wrong.said[k]}", fontsize=7)
        frame.suptitle(f"{wrong.title}\n", fontsize=11, fontweight="bold")
        frame.supxlabel(about, fontsize=6.5, color="#333333")
        frame.savefig(path, dpi=figure.DOTS_PER_INCH)
    finally:
        pyplot.close(frame)


def text(wrong: Misread) -> str:
    """Return the first few misread digits as text, with two rows of pixels in each line."""
    shown = range(min(LETTERS_ACROSS, len(wrong.labels)))
    if not shown:
        return wrong.title
    heads = [f"{wrong.labels[k]} read as {wrong.said[k]}" for k in shown]
    columns = [_letters(wrong.images[k]) for k in shown]
    width = len(columns[0][0]) + 2
    lines = ["".join(head.ljust(width) for head in heads)]
    lines += ["".join(line.ljust(width) for line in row) for row in zip(*columns, strict=True)]
    return "\n".join([wrong.title, "", *(line.rstrip() for line in lines)])


def _letters(image: Array) -> Sequence[str]:
    pairs: Any = image.reshape(image.shape[0] // 2, 2, image.shape[1]).mean(axis=1)
    return ["".join(SHADES[int(ink) * len(SHADES) // 256] for ink in row) for row in pairs]
