"""`python gpt149.py lab operators train`: reads options, builds the student's file, trains and prints results."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from grader.core import machine
from grader.core.commandline import Parser, positive_number, whole_number
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.core.places import PUBLIC_CONFIG, STUDENT_PROGRAM
from grader.report.progress import duration
from grader.study import options, outcome
from grader.study.laboratory import show_progress

if TYPE_CHECKING:
    from grader.study.options import Settings

    from .digits import Data, Wishes
    from .networks import Network
    from .operations import Start, StudentOperators
    from .training import Epoch, Training


def progress(title: str) -> Callable[[int, int], None]:
    """Return a function to call with the numbers of finished and of all steps. It shows these and the time left."""
    began_s, shown_s = time.monotonic(), 0.0

    def show(done: int, total: int) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s > BETWEEN_S:
            left = duration((now_s - began_s) / done * (total - done))
            show_progress(f"{title}: {done} of {total}, {left} left")
            shown_s = now_s

    return show


BETWEEN_S = 0.25
"""Seconds between two updates of the progress."""
MODELS = ("mlp", "cnn")
DEFAULT_IMAGES, FEWEST_IMAGES, MOST_IMAGES = 12_000, 120, 600_000
HELD_OUT_SHARE = 6
"""One in HELD_OUT_SHARE drawn digits is held out: used for testing, not for training."""
DEFAULT_SEED, DEFAULT_BATCH, DEFAULT_LOCKSTEP = 1, 128, 200
MOST_EPOCHS, MOST_BATCH, MOST_LOCKSTEP, MOST_THREADS = 1000, 4096, 1_000_000, 1024
LARGEST_RATE = 100.0
MOST_PRINTED = 20
"""Limit on the shown lines of the text that the student's functions print."""


def parser() -> Parser:
    parse = Parser(
        prog=f"{STUDENT_PROGRAM} lab operators train",
        description="Train a network that reads digits with your operators, beside the same network in PyTorch.",
    )
    parse.path("--module", "the file to train with, or its folder (operators.cpp)", "PATH")
    parse.path("--data", "MNIST's four files, also .gz (without it, digits are drawn)", "DIR")
    parse.path("--out", "folder for CSV and PNG (default: %(default)s/)", "DIR", default=options.DEFAULT_OUT)
    parse.path("--writeup", "also fill this write-up's tables")
    parse.path("--config", argparse.SUPPRESS, default=PUBLIC_CONFIG)
    group = parse.add_argument_group("training")
    for flag, name, what in (
        ("--model", "mlp|cnn|both", "which network (default: both)"),
        ("--epochs", "n", "passes through all images (default: mlp 10, cnn 8)"),
        ("--batch", "n", f"images in a step (default: {DEFAULT_BATCH})"),
        ("--rate", "x", "learning rate (default: mlp 0.2, cnn 0.05); the cnn's first 200 steps use a fifth"),
        ("--seed", "n", f"seed of the digits, the first weights and the order (default: {DEFAULT_SEED})"),
        ("--images", "n", f"digits to draw, a sixth of them for testing (default: {DEFAULT_IMAGES})"),
        ("--lockstep", "n", f"steps in which every call is checked (default: {DEFAULT_LOCKSTEP})"),
        ("--threads", "n,n,...", "OpenMP threads (default: 1); several also give a table of the speed-up"),
        ("--rounds", "n", f"rounds of timing for --threads (default: {options.DEFAULT_ROUNDS})"),
    ):
        group.add_argument(flag, metavar=name, help=what)
    group.add_argument("--go-on", action="store_true", help="continue after a wrong result")
    parse.flag("--plot", "draw loss, accuracy and the wrongly read digits as PNG")
    parse.flag("--show", "draw them in the terminal, in letters")
    return parse


def main(arguments: list[str]) -> int:
    """Train and print the results. Return exit code 1 if the student's file is at fault, else 0."""
    given = parser().parse_args(arguments)
    models = _models(given.model)
    wishes = [_wishes(given, model) for model in models]
    rounds = _whole(given.rounds, "--rounds", options.DEFAULT_ROUNDS, 1, options.MOST_ROUNDS)
    images = _whole(given.images, "--images", DEFAULT_IMAGES, FEWEST_IMAGES, MOST_IMAGES)
    if given.data is not None and given.images is not None:
        raise UsageError("--images is for drawn digits, and --data draws none: give only one of them")
    asked = options.numbers(given.threads or "1", "--threads", 1, MOST_THREADS)
    given.rounds, given.seed = str(rounds), None
    settings = options.settings(given)
    data = _data(given.data, images, wishes[0].seed)
    names = ("train", "train-threads") if len(asked) > 1 else ("train",)
    outcome.prepare(settings, *names)
    _require_torch()
    return _study(_Study(settings, given.plot, data, asked, rounds), models, wishes)


def _models(text: str | None) -> tuple[str, ...]:
    if text in (None, "both"):
        return MODELS
    if text not in MODELS:
        raise UsageError(f"--model takes {', '.join(MODELS)} or both, not '{text}'")
    return (text,)


def _whole(text: str | None, flag: str, usual: int, low: int, high: int) -> int:
    return usual if text is None else whole_number(text, flag, low, high)


def _wishes(given: argparse.Namespace, model: str) -> Wishes:
    from .digits import Wishes
    from .networks import NETWORKS

    network = NETWORKS[model]()
    return Wishes(
        epochs=_whole(given.epochs, "--epochs", network.epochs, 1, MOST_EPOCHS),
        batch=_whole(given.batch, "--batch", DEFAULT_BATCH, 1, MOST_BATCH),
        rate=network.rate if given.rate is None else positive_number(given.rate, "--rate", LARGEST_RATE),
        seed=_whole(given.seed, "--seed", DEFAULT_SEED, 0, options.LARGEST_SEED),
        lockstep=_whole(given.lockstep, "--lockstep", DEFAULT_LOCKSTEP, 0, MOST_LOCKSTEP),
        goes_on=given.go_on,
    )


def _data(folder: Path | None, images: int, seed: int) -> Data:
    from . import digits
    from .digits import Data

    if folder is not None:
        training, held_out = digits.load(folder)
        source = f"{len(training)} images of {folder.name or folder}, {len(held_out)} held out"
        return Data(training, held_out, source)
    held = images // HELD_OUT_SHARE
    # The seeds differ, so no image is in both sets.
    training, held_out = digits.draw(images - held, 2 * seed), digits.draw(held, 2 * seed + 1)
    return Data(training, held_out, f"{images - held} digits drawn with seed {seed}, {held} held out")


def _require_torch() -> None:
    from grader.backends.native.toolchain import ABSENT, torch_version

    if torch_version() == ABSENT:
        raise KitError(
            "train also trains the network in PyTorch, and this Python has no torch: pip install torch"
        )


class _Study:
    """Settings shared by all networks of one command."""

    def __init__(
        self, settings: Settings, plot: bool, data: Data, asked: tuple[int, ...], rounds: int
    ) -> None:
        self.settings, self.plot, self.data, self.rounds = settings, plot, data, rounds
        self.cores = len(machine.usable_cpus()) or os.cpu_count() or 1
        self.asked = asked
        self.threads = max((count for count in asked if count <= self.cores), default=self.cores)
        self.about = options.about({})

    def cap(self) -> str:
        """Return one line that names the requested numbers of threads above the number of cores; "" without any."""
        beyond = [str(count) for count in self.asked if count > self.cores]
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return f"This machine has {cores}: {' and '.join(beyond)} threads are left out" if beyond else ""


def _study(study: _Study, models: tuple[str, ...], wishes: list[Wishes]) -> int:
    from . import operations
    from .networks import NETWORKS
    from .operations import Broken
    from .training import Stopped

    networks = [NETWORKS[model]() for model in models]
    wanted = dict.fromkeys(part for network in networks for part in network.parts())
    if line := study.cap():
        print(line)
    try:
        with operations.opened(study.settings.assignment, study.settings.source, wanted) as start:
            return _trained(study, list(zip(networks, wishes, strict=True)), start)
    except (Broken, Stopped, operations.Unfit) as fault:
        show_progress("")
        print(fault)
        return EXIT_SUBMISSION


def _trained(study: _Study, pairs: list[tuple[Network, Wishes]], start: Start) -> int:
    from . import training

    made = []
    for network, wishes in pairs:
        operators = start(study.threads)
        made.append(_train(study, network, wishes, operators))
        if printed := operators.session.printed.splitlines():
            more = [f"... ({len(printed)} lines)"] if len(printed) > MOST_PRINTED else []
            print("\n".join(["  your functions printed:", *printed[:MOST_PRINTED], *more]))
        operators.session.close()
    drawn = study.plot or study.settings.show
    found = training.Trainings(tuple(made), study.data.source, study.about, drawn)
    if any(each.epochs for each in made):
        outcome.deliver(found, study.settings)
    if drawn:
        _show_misread(study, made)
    if any(each.agreement.deviation is not None for each in made):
        return EXIT_SUBMISSION
    if len(study.asked) > 1:
        _scale(study, pairs, start)
    return EXIT_PASS


def _train(study: _Study, network: Network, wishes: Wishes, operators: StudentOperators) -> Training:
    from .training import Trainer

    threads = f"{study.threads} thread{'s' if study.threads > 1 else ''}"
    print(
        f"\n{network.name}: {network.title}, {study.data.source}, batch {wishes.batch}, rate {wishes.rate:g}, {threads}"
    )

    def say(epoch: Epoch) -> None:
        show_progress("")
        print(_line(epoch, wishes), flush=True)

    trainer = Trainer(network, operators, study.data, wishes, study.threads, progress(network.name))
    training = trainer.run(say)
    show_progress("")
    print(f"  {training.agreement.line()}")
    if training.calls_per_step:
        print(
            f"  each step makes {training.calls_per_step:.0f} calls. They take {100 * training.call_share:.0f} % of "
            "its time, including the time to send the tensors to your process and back"
        )
    return training


def _line(epoch: Epoch, wishes: Wishes) -> str:
    mine, torchs = epoch.images_per_s, epoch.torch_images_per_s
    speed = "" if mine is None or torchs is None else f", {mine:,.0f} images/s ({torchs:,.0f})"
    return (
        f"  epoch {epoch.number} of {wishes.epochs}: loss {epoch.loss:.4f} (PyTorch {epoch.torch_loss:.4f}), "
        f"{100 * epoch.accuracy:.2f} % of held-out digits right ({100 * epoch.torch_accuracy:.2f} %){speed}"
    )


def _show_misread(study: _Study, made: list[Training]) -> None:
    from . import training

    for each in made:
        if not each.epochs:
            continue
        wrong = training.misread(each, study.data)
        path = study.settings.out / f"train-misread-{each.network.name}.png"
        lacking = not study.plot
        if study.plot:
            try:
                training.draw(wrong, study.about, path)
                print(f"{wrong.title}: {path}")
            except KitError:
                lacking = True
        if lacking or study.settings.show:
            print(f"\n{training.text(wrong)}")


def _scale(study: _Study, pairs: list[tuple[Network, Wishes]], start: Start) -> None:
    from . import scaling

    curves = []
    for network, wishes in pairs:
        measured = (study.asked, study.cores, study.rounds, progress(f"{network.name}, threads"))
        curves.append(scaling.measure(network, start, study.data, wishes, *measured))
    show_progress("")
    drawn = study.plot or study.settings.show
    found = scaling.Scaling(tuple(curves), study.cores, study.rounds, study.about, drawn)
    outcome.deliver(found, study.settings)
