"""Tokens per second over the length of the context, as one SVG without dependencies; both axes in powers of two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 820, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 540, 50, 360
COLOURS = ("#6b7280", "#b45309", "#0369a1", "#15803d", "#a21caf", "#be123c")


def speeds(contexts: Sequence[int], curves: Mapping[str, Sequence[float]]) -> str:
    """`curves` by title; a curve may be shorter than `contexts`."""
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
