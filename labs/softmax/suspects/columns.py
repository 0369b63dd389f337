"""Columns that a loop leaves out: the last one, or those beyond the last full block of an unrolled or vector loop."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect

from ..scene import Scene, shifted, total

WIDTHS = (2, 4, 8, 16, 32, 64)


def suspects(columns: int, *, has_maximum: bool) -> list[Suspect]:
    """Return the suspects for rows of `columns` elements. Widths that leave out the same columns are one suspect."""
    cuts: dict[int, list[str]] = {}
    cuts[columns - 1] = ["the last one"]
    for width in WIDTHS:
        if columns % width:
            cuts.setdefault(columns // width * width, []).append(str(width))
    kinds = (_KINDS[0], _KINDS[1], *(_KINDS[2:] if has_maximum else ()))
    return [
        Suspect(
            code,
            f"{words} from {cut} on: {_why(columns, names)}.",
            make(cut),
            tuple(f"{code} {name}" for name in names),
            {f"{code} {name}": f"a block of {name}" for name in names if name.isdigit()}
            | {f"{code} the last one": "one column less"},
        )
        for code, words, make in kinds
        for cut, names in cuts.items()
    ]


def _why(columns: int, names: list[str]) -> str:
    found = ["the loop ends at C - 1"] if "the last one" in names else []
    if any(name.isdigit() for name in names):
        found.append(f"what is left of {columns} columns beyond the last full block is forgotten")
    return ", or ".join(found)


def _largest(x: Array) -> Array:
    """The maximum of each row, that of no columns as a loop leaves it."""
    return x.max(1, keepdims=True, initial=np.float32(-np.inf))


def _left_out(cut: int) -> Callable[[Scene], Array]:
    def predict(s: Scene) -> Array:
        x = s.x[:, :cut]
        weights = np.exp(x - _largest(x))
        found = np.zeros_like(s.x)
        found[:, :cut] = weights / total(weights)
        return found

    return predict


def _sum_lacks(cut: int) -> Callable[[Scene], Array]:
    return lambda s: s.weights / total(s.weights[:, :cut])


def _maximum_lacks(cut: int) -> Callable[[Scene], Array]:
    return lambda s: shifted(s, _largest(s.x[:, :cut]))


_KINDS: tuple[tuple[str, str, Callable[[int], Callable[[Scene], Array]]], ...] = (
    ("columns_left_out", "All passes leave out the columns", _left_out),
    ("sum_misses_columns", "The sum leaves out the columns", _sum_lacks),
    ("maximum_misses_columns", "The maximum leaves out the columns", _maximum_lacks),
)
