"""Results of trainings, as the kit's studies deliver it: a table, figures, and the digits that were misread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core.arrays import Array, np
from grader.study import figure
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Table

from .training import Training
from .wishes import Data

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
"""Digits in a picture of those that were read wrongly."""
SHADES = " .:-=+*#%@"
LETTERS_ACROSS = 3
"""Digits side by side in letters."""


@dataclass(frozen=True)
class Trainings:
    """All networks that were trained; a `grader.study.outcome.StudyResult`."""

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
        told = " ".join(f"{each.network.name}: {each.agreement.line()}." for each in self.made)
        caption = f"{self.about}. {self.source}. {told}"
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
    """Per cent that are read wrongly, as a logarithmic axis can show it."""
    return max(0.01, 100 * (1 - accuracy))


# ---- digits that were read wrongly


@dataclass(frozen=True)
class Misread:
    """Images (n, 28, 28) that a network reads wrongly, of `of` images, with their labels and its answers."""

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
    """Write the first of them as PNG, each with what was said. Raises KitError, in one line, where matplotlib is
    missing; OSError for the file."""
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
    """The first few in letters: two rows of pixels to a line."""
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
