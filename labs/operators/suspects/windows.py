"""Suspects of the maximum of windows and of its gradient."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.explain.suspect import Situation

from .. import arithmetic
from .gradients import Mistakes, common

MAXPOOL2D = Mistakes()


def _windows(s: Situation) -> Array:
    return arithmetic.pooling_windows(s.inputs["X"], s.sizes)


def _squares(s: Situation) -> Array:
    """Return all windows, (N, C, OH, OW, side, side)."""
    return _windows(s).reshape(*s.expected.shape, s.sizes["side"], s.sizes["side"])


def _stepped(s: Situation, step: int) -> Array | None:
    """Return the output if windows are `step` apart, with NaN for windows beyond the plane. None if `step` is right."""
    if step == s.sizes["step"]:
        return None
    rows, columns = s.expected.shape[2:]
    made = arithmetic.pooled(s.inputs["X"], {**s.sizes, "step": step})[0][:, :, :rows, :columns]
    lacking = [(0, size - have) for size, have in zip(s.expected.shape, made.shape, strict=True)]
    return np.pad(made, lacking, constant_values=np.nan)


_FROM_PLANE = (
    "The search begins with the first number of the plane. If this is larger than the whole window, it is the result: "
    "begin with the first number of the window."
)


def _begins(s: Situation) -> tuple[Array, Array]:
    """Return the first number of each plane, (N, C, 1, 1), and the right maximum of each window."""
    return s.inputs["X"][:, :, :1, :1], _windows(s).max(4)


MAXPOOL2D.gives_each(
    ("from_zero", "maximum_from_zero",
     "The maximum begins at 0 (or FLT_MIN, which is above 0): begin with the window's first number, or at -INFINITY.",
     lambda s: np.maximum(s.expected, 0)),
    ("smallest", "minimum", "Each window gives its smallest number, not its largest one.",
     lambda s: _windows(s).min(4)),
    ("mean", "mean_of_window", "Each window gives the mean of its numbers: take the largest one.",
     lambda s: _windows(s).mean(4)),
    ("first", "first_of_window", "Each window gives its first number: take the largest number.",
     lambda s: _windows(s)[..., 0]),
    ("last", "last_of_window", "Each window gives its last number: take the largest number.",
     lambda s: _windows(s)[..., -1]),
    ("smaller_window", "window_too_small", "The last row and column of each window are left out.",
     lambda s: _squares(s)[..., :-1, :-1].max((4, 5)) if s.sizes["side"] > 1 else None),
    ("steps_of_one", "stride_ignored", "The windows are 1 apart: window oh has to begin at row oh * stride.",
     lambda s: _stepped(s, 1)),
    ("steps_of_window", "stride_is_window",
     "The windows are K apart: window oh has to begin at row oh * stride, not at oh * K.",
     lambda s: _stepped(s, s.sizes["side"])),
    ("first_plane", "plane_ignored", "All outputs are maxima of the first plane: use the indices n and c of X.",
     lambda s: np.broadcast_to(s.expected[:1, :1], s.expected.shape)),
    ("from_plane", "maximum_from_plane", _FROM_PLANE, lambda s: np.maximum(*_begins(s))),
    output="Y",
)  # fmt: skip


def _starts(s: Situation, planes: int) -> Array:
    """Return the index in memory at which each of `planes` planes begins."""
    return np.arange(planes) * s.sizes["rows"] * s.sizes["columns"]


def _first_by_columns(s: Situation) -> Array:
    """Return each maximum's index in its window; for a tie, the first in column-major order."""
    across, down = np.divmod(_squares(s).swapaxes(4, 5).reshape(_windows(s).shape).argmax(4), s.sizes["side"])
    return down * s.sizes["side"] + across


def _indexed(s: Situation, row_length: int) -> Array:
    """Return the indices of the maxima, computed as if a row of a plane had `row_length` numbers."""
    h, w = np.divmod(s.expected, s.sizes["columns"])
    return h * row_length + w


MAXPOOL2D.gives_each(
    ("index_from_plane", "maximum_from_plane", _FROM_PLANE,
     lambda s: np.where(_begins(s)[0] >= _begins(s)[1], 0, s.expected)),
    ("place_in_window", "index_in_window",
     "index is kh * K + kw, the index in the window: store h * Wd + w, the index in the plane.",
     lambda s: _windows(s).argmax(4)),
    ("place_in_tensor", "index_in_tensor",
     "index counts from the beginning of the tensor: store h * Wd + w, the index in the plane.",
     lambda s: s.expected + _starts(s, s.sizes["maps"] * s.sizes["planes"]).reshape(*s.expected.shape[:2], 1, 1)),
    ("place_in_image", "index_in_tensor",
     "index counts from the beginning of the image: store h * Wd + w, the index in the plane, without c.",
     lambda s: s.expected + _starts(s, s.sizes["planes"])[:, None, None]),
    ("transposed", "index_transposed", "index is w * H + h: in row-major order it is h * Wd + w.",
     lambda s: s.expected % s.sizes["columns"] * s.sizes["rows"] + s.expected // s.sizes["columns"]),
    ("row_of_height", "index_row_length", "index is h * H + w: a row of the plane has Wd numbers.",
     lambda s: _indexed(s, s.sizes["rows"])),
    ("row_of_output", "index_row_length", "index is h * OW + w: a row of the plane has Wd numbers.",
     lambda s: _indexed(s, s.expected.shape[3])),
    ("row_alone", "index_row", "index is only the row h: store h * Wd + w.",
     lambda s: s.expected // s.sizes["columns"]),
    ("column_alone", "index_row", "index is only the column w: store h * Wd + w.",
     lambda s: s.expected % s.sizes["columns"]),
    ("place_in_output", "index_of_output",
     "index is oh * OW + ow, the index in the output: store the maximum's index in the plane, h * Wd + w.",
     lambda s:
         np.broadcast_to(
             np.arange(s.expected[0, 0].size).reshape(s.expected.shape[2:]), s.expected.shape)),
    ("last_of_equal", "last_of_equal",
     "If there are several equal maxima, index belongs to the last one: compare with > to store the first one's.",
     lambda s: arithmetic.place_in_plane(s.sizes["side"] ** 2 - 1 - _windows(s)[..., ::-1].argmax(4), s.sizes)),
    ("first_by_columns", "first_by_columns",
     "If there are several equal maxima, index belongs to the first one in column-major order: put the loop over kw "
     "inside the loop over kh.",
     lambda s: arithmetic.place_in_plane(_first_by_columns(s), s.sizes)),
    output="index",
)  # fmt: skip


MAXPOOL2D_BACKWARD = Mistakes()
common(MAXPOOL2D_BACKWARD, "dX")


def _flat(s: Situation) -> tuple[Array, Array]:
    """Return dY and the indices as matrices with a row for each plane."""
    planes = s.sizes["maps"] * s.sizes["planes"]
    return s.inputs["dY"].reshape(planes, -1), s.inputs["indices"].reshape(planes, -1)


@MAXPOOL2D_BACKWARD.gives(
    "overlap_overwritten",
    "At each maximum, dX contains only the gradient of the last window: use += in place of =, because windows may "
    "share a maximum.",
    "dX",
)
def written(s: Situation) -> Array:
    (dy, index), held = _flat(s), s.inputs["dX"].copy()
    for plane, values, places in zip(held.reshape(len(dy), -1), dy, index, strict=True):
        plane[places] = values
    return held


@MAXPOOL2D_BACKWARD.adds(
    "dX",
    "plane_ignored",
    "All gradients are added to the first plane: the index counts from the beginning of each plane.",
)
def into_first_plane(s: Situation) -> Array | None:
    dy, index = _flat(s)
    if len(dy) == 1:
        return None
    total = np.zeros(s.expected.size)
    size = s.sizes["rows"] * s.sizes["columns"]
    total[:size] = np.bincount(index.ravel(), dy.ravel(), size)
    return total.reshape(s.expected.shape)


MAXPOOL2D_BACKWARD.adds_each("dX",
    ("whole_window", "whole_window",
     "Each number of a window gets the gradient: give it only to the maximum.",
     lambda s: _over_windows(s, np.ones(s.sizes["side"] ** 2))),
    ("shared_out", "whole_window",
     "Each number of a window gets a share of the gradient, as for a mean: give all of it to the maximum.",
     lambda s: _over_windows(s, np.full(s.sizes["side"] ** 2, s.sizes["side"] ** -2.0))),
    ("into_first", "first_of_window",
     "The first number of each window gets the gradient: give it to the number at index.",
     lambda s: _over_windows(s, np.eye(1, s.sizes["side"] ** 2)[0])),
    ("index_in_window", "index_as_window", "index is used as an index in the window: it is the index in the plane.",
     lambda s: _in_window(s)),
    ("ones", "upstream_ignored", "1 is added at each maximum: add dY.",
     lambda s: arithmetic.scattered(np.ones_like(s.inputs["dY"]), s.inputs["indices"], s.expected.shape)),
)  # fmt: skip


def _over_windows(s: Situation, shares: Array) -> Array:
    """Return dX if element k of each window gets `shares[k]` times the window's dY."""
    total, dy = np.zeros(s.expected.shape), s.inputs["dY"]
    for place, share in enumerate(shares):
        if share:
            index = arithmetic.place_in_plane(np.full(dy.shape, place), s.sizes)
            total += arithmetic.scattered(share * dy, index, s.expected.shape)
    return total


def _in_window(s: Situation) -> Array | None:
    dy, indices = s.inputs["dY"], s.inputs["indices"]
    rows = np.arange(dy.shape[2])[:, None] * s.sizes["step"] * s.sizes["columns"]
    moved = indices + rows + np.arange(dy.shape[3]) * s.sizes["step"]
    inside = moved < s.sizes["rows"] * s.sizes["columns"]
    return arithmetic.scattered(dy * inside, moved * inside, s.expected.shape)
