"""Mistakes of a convolution in where it reads and which weight it takes, forward and backward alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grader.core.arrays import Array, np
from grader.judge.diagnosis.fitting import Situation

from .. import arithmetic
from ..arithmetic import Taps

#: Code, words, and the taps of the mistake: None where it would change nothing.
TAPS: tuple[tuple[str, str, Callable[[Situation], Taps | None]], ...] = (
    (
        "padding_ignored",
        "The border is left out: the image's row is oh * stride + kh - pad, and pad is not taken away.",
        lambda s: arithmetic.taps(s.sizes, s.sizes["stride"], 0) if s.sizes["pad"] else None,
    ),
    (
        "padding_off_by_one",
        "The image is read one row and one column too early: the border counts as one wider than it is.",
        lambda s: arithmetic.taps(s.sizes, s.sizes["stride"], s.sizes["pad"] + 1),
    ),
    (
        "padding_off_by_one",
        "The image is read one row and one column too late: the border counts as one narrower than it is.",
        lambda s: arithmetic.taps(s.sizes, s.sizes["stride"], s.sizes["pad"] - 1),
    ),
    (
        "stride_ignored",
        "The image is read in steps of 1: place oh begins at row oh * stride - pad (its column likewise).",
        lambda s: arithmetic.taps(s.sizes, 1, s.sizes["pad"]) if s.sizes["stride"] > 1 else None,
    ),
    (
        "stride_of_border",
        "The border is multiplied by the stride: the row is oh * stride + kh - pad, and not (oh - pad) * stride + kh.",
        lambda s: (
            arithmetic.taps(s.sizes, s.sizes["stride"], s.sizes["pad"] * s.sizes["stride"])
            if s.sizes["stride"] > 1 and s.sizes["pad"]
            else None
        ),
    ),
    (
        "kernel_flipped",
        "The filter is turned by 180 degrees: W[kh, kw] meets the row oh * stride + kh - pad.",
        lambda s: arithmetic.taps(s.sizes, s.sizes["stride"], s.sizes["pad"], flipped=True),
    ),
    (
        "border_repeated",
        "Beyond the image its outermost numbers are read; there are zeros.",
        lambda s: _clamped(s) if s.sizes["pad"] else None,
    ),
)


def _clamped(s: Situation) -> Taps:
    usual = arithmetic.usual_taps(s.sizes)
    return replace(
        usual,
        rows=np.clip(usual.rows, 0, s.sizes["height"] - 1),
        columns=np.clip(usual.columns, 0, s.sizes["width"] - 1),
    )


#: Code, words and how the elements of W (F, C, K, K) are taken for one another.
WEIGHTS: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
    (
        "im2col_order",
        "W and what the places see are in different orders: W's taps lie as (c, kh, kw), and the columns as (kh, kw, "
        "c). Tap t is c * K * K + kh * K + kw.",
        lambda w: w.reshape(len(w), *w.shape[2:], w.shape[1]).transpose(0, 3, 1, 2),
    ),
    (
        "kernel_transposed",
        "The filter's rows and columns are exchanged: kh belongs to the image's row, kw to its column.",
        lambda w: w.swapaxes(2, 3),
    ),
    (
        "filters_and_channels",
        "W is read as (C, F, K, K): filter f begins at f * C * K * K.",
        lambda w: w.reshape(w.shape[1], w.shape[0], *w.shape[2:]).swapaxes(0, 1),
    ),
    (
        "one_filter",
        "All filters are the first one: the index f of W is left out.",
        lambda w: np.broadcast_to(w[:1], w.shape),
    ),
)
