"""`gpt149.py compare`: the same text by part 0 to part 4, how fast each speaks, and how that falls with the context."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import torch

from grader.assignment.records import Part
from grader.backends import faults
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.judge.bench import Bench
from textgen.decode import Decoder
from textgen.generate import Tally
from textgen.kernel import Broken, StudentKernel
from textgen.textsetup import fault_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textgen.textsetup import TextSetup

CONTEXTS = (16, 32, 64, 128, 256, 512, 1024)
ROUNDS = 3
SLOWEST_TOKEN_S = 0.3
"""Limit of seconds per token. A slower part skips the next context, which would take four times as long."""
WIDTH, HEIGHT = 820, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 540, 50, 360
COLOURS = ("#6b7280", "#b45309", "#0369a1", "#15803d", "#a21caf", "#be123c")


@dataclass(frozen=True)
class Speaker:
    """One part and the result of its text: a tally, or in `trouble` the reason why it has none."""

    part: Part
    tally: Tally | None
    trouble: str = ""


def run(setup: TextSetup, bench: Bench, parts: Sequence[Part]) -> int:
    """Print texts and speeds; with --figure, measure and draw the curve as well. Returns the exit code."""
    if setup.options.figure and setup.options.figure.is_dir():
        raise UsageError(f"--figure takes a file, and {setup.options.figure} is a folder")
    if setup.options.figure and not setup.options.figure.absolute().parent.is_dir():
        raise UsageError(f"--figure: no such folder: {setup.options.figure.absolute().parent}")
    speakers = [speak(setup, bench, part) for part in parts]
    print("\n" + "\n".join(texts(speakers, setup)))
    print("\n" + "\n".join(table(speakers)))
    if setup.options.figure:
        able = [speaker.part for speaker in speakers if speaker.tally and not speaker.trouble]
        draw(setup, bench, able)
    return EXIT_PASS if not any(speaker.trouble for speaker in speakers) else EXIT_SUBMISSION


def speak(setup: TextSetup, bench: Bench, part: Part) -> Speaker:
    print(f"{part.id} ({part.title}) ...", end=" ", flush=True)
    try:
        kernel = setup.kernel(bench, part)
    except faults.Faulty as fault:
        print("cannot talk")
        return Speaker(part, None, fault.diagnosis.message)
    with kernel.session:
        tally = setup.generate(kernel)
    print(f"{tally.new_tokens} tokens, {tally.decode_s:.2f} s")
    trouble = " ".join(fault_lines(tally, setup, part)) if tally.fault else ""
    return Speaker(part, tally, trouble)


def texts(speakers: Sequence[Speaker], setup: TextSetup) -> list[str]:
    """Return each different text once, with the parts that wrote it."""
    said: dict[str, list[str]] = {}
    for speaker in speakers:
        if speaker.tally:
            text = "\n".join(setup.loaded.words.decode(row) for row in speaker.tally.tokens.tolist())
            said.setdefault(text, []).append(speaker.part.id)
    lines = []
    for text, names in said.items():
        lines += [f"-- {', '.join(names)}{' alike' if len(names) > 1 else ''} --", text.rstrip(), ""]
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


# ---- speed over the length of the context


def draw(setup: TextSetup, bench: Bench, parts: Sequence[Part]) -> None:
    print("\ntokens/s over the context, all parts in turn:")
    curves = measure(setup, bench, parts)
    longest = max(len(curve) for curve in curves.values())
    print(f"{'':8}" + "".join(f"{n:>8}" for n in CONTEXTS[:longest]))
    for name, curve in curves.items():
        print(f"{name:8}" + "".join(f"{speed:8.0f}" for speed in curve))
    assert setup.options.figure is not None
    titles = {part.id: part.title for part in parts}
    setup.options.figure.write_text(svg(CONTEXTS, {titles[name]: curve for name, curve in curves.items()}))
    print(f"drawn to {setup.options.figure}")


def measure(setup: TextSetup, bench: Bench, parts: Sequence[Part]) -> dict[str, list[float]]:
    """Tokens/s of one text by part at each of CONTEXTS: the median of rounds in which the parts take turns."""
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
        # The picture is of the kernel's own cost over N, so nothing is cut up.
        kernel.window, kernel.chunk = CONTEXTS[-1], 0
    yield kernels
    for kernel in kernels.values():
        kernel.session.close()


def _filled(setup: TextSetup, kernel: StudentKernel, context: int) -> Decoder:
    """Return a decoder in the middle of a text. The content of the cache does not affect the time."""
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


# ---- the picture


def svg(contexts: Sequence[int], curves: Mapping[str, Sequence[float]]) -> str:
    """Draw tokens per second over the length of the context as SVG, with both axes in powers of two.

    `curves` are by title; a curve may be shorter than `contexts`.
    """
    values = [value for curve in curves.values() for value in curve]
    low, high = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    high = max(high, low + 1)

    def x(context: int) -> float:
        first, last = math.log2(contexts[0]), math.log2(contexts[-1])
        return LEFT + (math.log2(context) - first) / (last - first) * (RIGHT - LEFT)

    def y(speed: float) -> float:
        return BOTTOM - (math.log2(speed) - low) / (high - low) * (BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="13"><title>Tokens per second over the length of the context</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="16">Tokens per second over the tokens that attention sees</text>',
    ]
    for power in range(low, high + 1):
        parts.append(_rule(LEFT, y(2.0**power), RIGHT, y(2.0**power)))
        parts.append(_label(LEFT - 8, y(2.0**power) + 4, f"{2.0**power:g}", "end"))
    parts += [_label(x(context), BOTTOM + 20, str(context), "middle") for context in contexts]
    parts.append(_label((LEFT + RIGHT) / 2, BOTTOM + 42, "N, the length of the context in tokens", "middle"))
    ends = _spread([y(curve[-1]) for curve in curves.values()])
    for k, ((title, curve), end) in enumerate(zip(curves.items(), ends, strict=True)):
        colour = COLOURS[k % len(COLOURS)]
        points = " ".join(f"{x(n):.1f},{y(v):.1f}" for n, v in zip(contexts, curve, strict=False))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [
            f'<circle cx="{x(n):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>'
            for n, v in zip(contexts, curve, strict=False)
        ]
        parts.append(_label(RIGHT + 12, end + 4, title, "start", colour))
    return "\n".join([*parts, "</svg>\n"])


def _spread(heights: Sequence[float], gap: float = 17.0) -> list[float]:
    """Heights of labels moved apart, in the same order from top to bottom."""
    order = sorted(range(len(heights)), key=lambda k: heights[k])
    placed = list(heights)
    for above, below in itertools.pairwise(order):
        placed[below] = max(placed[below], placed[above] + gap)
    return placed


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e5e7eb"/>'


def _label(x: float, y: float, text: str, anchor: str, colour: str = "#374151") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
