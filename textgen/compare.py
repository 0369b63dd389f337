"""`gpt149.py compare`: parts 0 to 4 generate the same text, and their speeds are compared. With --figure, speeds for
longer contexts are drawn, too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grader.assignment.records import Part
from grader.backends import faults
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.judge.bench import Bench
from grader.study import figure
from grader.study.figure import Plot, Series
from textgen.generate import Tally
from textgen.kernel import Broken, Decoder, StudentKernel
from textgen.textsetup import fault_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from textgen.textsetup import TextSetup

CONTEXTS = (16, 32, 64, 128, 256, 512, 1024)
ROUNDS = 3
SLOWEST_TOKEN_S = 0.3
"""A part that needs more seconds per token is not measured with longer contexts: the next takes four times as long."""


@dataclass(frozen=True)
class Speaker:
    """One part, and its text and times in `tally` (None if the kernel cannot be called).

    `trouble` describes the kernel's fault; "" if it has none.
    """

    part: Part
    tally: Tally | None
    trouble: str = ""


def run(setup: TextSetup, bench: Bench, parts: Sequence[Part]) -> int:
    """Print texts and speeds, and with --figure draw speed over context length. Return 1 if a part failed, else 0."""
    if file := setup.options.figure:
        if file.is_dir():
            raise UsageError(f"--figure takes a file, but {file} is a folder")
        if not file.absolute().parent.is_dir():
            raise UsageError(f"--figure: no such folder: {file.absolute().parent}")
        figure.matplotlib_pyplot()  # if matplotlib is missing, raise now, not after minutes of measuring
    speakers = [speak(setup, bench, part) for part in parts]
    print("\n" + "\n".join(texts(speakers, setup)))
    print("\n" + "\n".join(table(speakers)))
    if file:
        able = [speaker.part for speaker in speakers if speaker.tally and not speaker.trouble]
        draw(setup, bench, able, file)
    return EXIT_PASS if not any(speaker.trouble for speaker in speakers) else EXIT_SUBMISSION


def speak(setup: TextSetup, bench: Bench, part: Part) -> Speaker:
    print(f"{part.id} ({part.title}) ...", end=" ", flush=True)
    try:
        kernel = setup.kernel(bench, part)
    except faults.Faulty as fault:
        print("cannot generate text")
        return Speaker(part, None, fault.diagnosis.message)
    with kernel.session:
        tally = setup.generate(kernel)
    print(f"{tally.new_tokens} tokens, {tally.decode_s:.2f} s")
    trouble = " ".join(fault_lines(tally, setup, part)) if tally.fault else ""
    return Speaker(part, tally, trouble)


def texts(speakers: Sequence[Speaker], setup: TextSetup) -> list[str]:
    """Return lines with each distinct text once, below the names of the parts that generated it."""
    said: dict[str, list[str]] = {}
    for speaker in speakers:
        if speaker.tally:
            text = "\n".join(setup.loaded.words.decode(row) for row in speaker.tally.tokens.tolist())
            said.setdefault(text, []).append(speaker.part.id)
    lines = []
    for text, names in said.items():
        lines += [f"-- {', '.join(names)}{': the same text' if len(names) > 1 else ''} --", text.rstrip(), ""]
    return lines[:-1]


def table(speakers: Sequence[Speaker]) -> list[str]:
    rows = [f"{'':6}  {'':34}  {'tokens/s':>9}  {'in the kernel':>13}  {'ms a call':>9}"]
    for speaker in speakers:
        tally = speaker.tally
        figures = ""
        if tally and tally.new_tokens and tally.kernel_calls:
            tokens = tally.new_tokens * len(tally.tokens)
            figures = (
                f"{tokens / tally.decode_s:9.0f}  {100 * tally.kernel_s / tally.decode_s:11.0f} %  "
                f"{1e3 * tally.kernel_s / tally.kernel_calls:9.2f}"
            )
        rows.append(f"{speaker.part.id:6}  {speaker.part.title[:34]:34}  {figures}")
        if speaker.trouble:
            rows.append(f"        {speaker.trouble}")
    return rows


# ---- speed for several lengths of the context


def draw(setup: TextSetup, bench: Bench, parts: Sequence[Part], file: Path) -> None:
    print("\ntokens/s for each length of the context (parts measured in turn):")
    curves = measure(setup, bench, parts)
    longest = max(len(curve) for curve in curves.values())
    print(f"{'':8}" + "".join(f"{n:>8}" for n in CONTEXTS[:longest]))
    for name, curve in curves.items():
        print(f"{name:8}" + "".join(f"{speed:8.0f}" for speed in curve))
    series = (Series(part.title, CONTEXTS[: len(curves[part.id])], tuple(curves[part.id])) for part in parts)
    drawn = Plot(
        "speed",
        "Tokens per second over the tokens that attention sees",
        f"{setup.loaded.name}, one text, median of {ROUNDS} rounds",
        "N, the length of the context in tokens",
        "tokens/s",
        tuple(series),
        log_x=True,
        log_y=True,
        x_ticks=CONTEXTS[:longest],
    )
    figure.draw(drawn, file, "svg")
    print(f"drawn to {file}")


def measure(setup: TextSetup, bench: Bench, parts: Sequence[Part]) -> dict[str, list[float]]:
    """Return the median tokens/s of each part, by id, at each length of CONTEXTS.

    A part is not measured beyond the first length at which a token takes more than SLOWEST_TOKEN_S.
    """
    curves: dict[str, list[float]] = {part.id: [] for part in parts}
    with _kernels(setup, bench, parts) as kernels:
        for context in CONTEXTS:
            decoders = {part_id: _filled(setup, kernel, context) for part_id, kernel in kernels.items()}
            seconds: dict[str, list[float]] = {part_id: [] for part_id in decoders}
            for _ in range(ROUNDS):
                for part_id, decoder in decoders.items():
                    seconds[part_id].append(_one_token_s(decoder, context))
            for part_id, series in seconds.items():
                curves[part_id].append(1.0 / statistics.median(series))
                if statistics.median(series) > SLOWEST_TOKEN_S:
                    del kernels[part_id]
    return curves


@contextmanager
def _kernels(setup: TextSetup, bench: Bench, parts: Sequence[Part]) -> Iterator[dict[str, StudentKernel]]:
    kernels = {part.id: setup.kernel(bench, part) for part in parts}
    for kernel in kernels.values():
        # The figure shows the kernel's speed over N, so do not cut the keys into chunks, which would keep N small.
        kernel.window, kernel.chunk = CONTEXTS[-1], 0
    yield kernels
    for kernel in kernels.values():
        kernel.session.close()


def _filled(setup: TextSetup, kernel: StudentKernel, context: int) -> Decoder:
    """Return a decoder whose cache has `context` - 1 random keys and values. Their values do not affect the time."""
    model = setup.loaded.model
    decoder = Decoder(model, kernel, 1, context + 1, CONTEXTS[-1])
    decoder.fill(torch.Generator().manual_seed(1), context - 1)
    return decoder


def _one_token_s(decoder: Decoder, context: int) -> float:
    decoder.position = context - 1
    started = time.perf_counter()
    try:
        decoder.extend(torch.zeros(1, 1, dtype=torch.long))
    except Broken as end:
        raise UsageError(f"no figure: {end.fault.message}") from end
    return time.perf_counter() - started
