"""Suspects of a convolution's forward and backward function."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grader.core.arrays import Array, np
from grader.explain.suspect import Situation

from .. import arithmetic
from ..arithmetic import Taps
from .gradients import Mistakes, beyond, common, divided, exchanged, only, without


def _taps(by: Callable[[Mapping[str, int]], tuple[int, int] | None]) -> Callable[[Situation], Taps | None]:
    """Return a function that returns the taps for (stride, padding) = `by(sizes)`, or None if `by` returns None."""
    return lambda s: None if (used := by(s.sizes)) is None else arithmetic.taps(s.sizes, *used)


def _clamped(s: Situation) -> Taps | None:
    t, z = arithmetic.usual_taps(s.sizes), s.sizes
    return (
        Taps(np.clip(t.rows, 0, z["height"] - 1), np.clip(t.columns, 0, z["width"] - 1)) if z["pad"] else None
    )


def _spread(s: Situation) -> Taps:
    """Return the taps of a filter whose elements are `stride` apart, and that is moved in steps of 1."""
    along = np.arange(s.sizes["kernel"]) * s.sizes["stride"] - s.sizes["pad"]
    height, width = arithmetic.out_size(s.sizes)
    return Taps(np.arange(height)[:, None] + along, np.arange(width)[:, None] + along)


#: Rows: code, words for students, and a function that returns the mistake's taps, or None if the sizes rule it out.
TAPS: tuple[tuple[str, str, Callable[[Situation], Taps | None]], ...] = (
    (
        "padding_ignored",
        "The border is left out: the image's row has to be oh * stride + kh - pad, but pad is not subtracted.",
        _taps(lambda z: (z["stride"], 0) if z["pad"] else None),
    ),
    (
        "padding_off_by_one",
        "The image is read one row and one column too early, as if the border were wider by 1.",
        _taps(lambda z: (z["stride"], z["pad"] + 1)),
    ),
    (
        "padding_off_by_one",
        "The image is read one row and one column too late, as if the border were narrower by 1.",
        _taps(lambda z: (z["stride"], z["pad"] - 1)),
    ),
    (
        "stride_ignored",
        "The image is read in steps of 1: the window of row oh of the output begins at row "
        "oh * stride - pad of the image (columns likewise).",
        _taps(lambda z: (1, z["pad"]) if z["stride"] > 1 else None),
    ),
    (
        "stride_of_border",
        "The border is multiplied by the stride: the row is oh * stride + kh - pad, not (oh - pad) * stride + kh.",
        _taps(lambda z: (z["stride"], z["pad"] * z["stride"]) if z["stride"] > 1 and z["pad"] else None),
    ),
    (
        "stride_of_filter",
        "The stride is multiplied by the wrong index: the row is oh * stride + kh - pad, not oh + kh * stride - pad.",
        lambda s: _spread(s) if s.sizes["stride"] > 1 else None,
    ),
    (
        "kernel_flipped",
        "The filter is turned by 180 degrees: W[kh, kw] has to multiply row oh * stride + kh - pad of the image.",
        lambda s: arithmetic.taps(s.sizes, s.sizes["stride"], s.sizes["pad"], flipped=True),
    ),
    (
        "border_repeated",
        "Outside of the image, its outermost numbers are read: use zeros there.",
        _clamped,
    ),
)
#: Rows: code, words for students, and a function that returns W (F, C, K, K) as the mistake reads it.
WEIGHTS: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
    (
        "im2col_order",
        "W and the columns have different orders: W has (c, kh, kw), but the columns have (kh, kw, c). Use row "
        "c * K * K + kh * K + kw of the columns.",
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
        "The first filter is used for all: the index f of W is left out.",
        lambda w: np.broadcast_to(w[:1], w.shape),
    ),
)


def _with_bias(s: Situation, made: Array) -> Array:
    return made + s.inputs["b"][:, None, None]


def _conv(s: Situation, t: Taps | None = None, w: Array | None = None, x: Array | None = None) -> Array:
    x = s.inputs["X"] if x is None else x
    return arithmetic.convolved(x, s.inputs["W"] if w is None else w, t or arithmetic.usual_taps(s.sizes))


def _places(s: Situation) -> int:
    return s.expected.shape[2] * s.expected.shape[3]


def _turned(x: Array) -> Array:
    """Return the images (N, C, H, W) as read by a kernel that exchanges rows and columns."""
    return x.reshape(*x.shape[:2], x.shape[3], x.shape[2]).swapaxes(2, 3)


def _rows_of_height(s: Situation) -> Array | None:
    """Return the images as read by a kernel that assumes rows of H numbers; None if H is the right length.

    Numbers read beyond a plane are NaN (unknown).
    """
    x, (h, w) = s.inputs["X"], (s.sizes["height"], s.sizes["width"])
    if h == w:
        return None
    planes = x.reshape(*x.shape[:2], -1)
    places = np.arange(h)[:, None] * h + np.arange(w)
    return np.where(places < h * w, planes[:, :, np.minimum(places, h * w - 1)], np.nan)


CONV2D = Mistakes()


_ALL = slice(None)

CONV2D.gives_each(
    ("without_bias", "bias_missing", "The bias is not added.", lambda s: _conv(s)),
    ("first_bias", "bias_wrong_index", "The first bias is added to all filters: b[f] belongs to filter f.",
     lambda s: _conv(s) + s.inputs["b"][0]),
    ("bias_of_place", "bias_wrong_index",
     "The bias's index is the place in the image: b[f] belongs to filter f.",
     lambda s: _conv(s) + beyond(s.inputs["b"], _places(s)).reshape(s.expected.shape[2:]) if _places(s) > 1 else None),
    ("bias_of_image", "bias_wrong_index", "The bias's index is the image of the batch: b[f] belongs to filter f.",
     lambda s:
         _conv(s) + beyond(s.inputs["b"], s.sizes["images"])[:, None, None, None] if s.sizes["images"] > 1 else None),
    ("bias_of_channels", "bias_added_often", "The bias is added once for each channel: add it once for each place.",
     lambda s: _conv(s) + s.sizes["channels"] * s.inputs["b"][:, None, None]),
    ("bias_of_taps", "bias_added_often",
     "The bias is added once for each term of the sum: add it once for each place.",
     lambda s: _conv(s) + (s.sizes["channels"] * s.sizes["kernel"] ** 2) * s.inputs["b"][:, None, None]),
    ("first_image", "image_ignored", "All outputs are computed from the first image: the index n of X is left out.",
     lambda s: np.broadcast_to(s.expected[:1], s.expected.shape)),
    ("first_channel", "channels_missing", "Only the first channel of the images is used: add up all channels.",
     lambda s:
         _with_bias(s, _conv(s, x=only(s.inputs["X"], _ALL, 0))) if s.sizes["channels"] > 1 else None),
    ("last_channel", "channels_missing",
     "Only the last channel of the images is used: each replaces the previous one. Use += in place of =.",
     lambda s:
         _with_bias(s, _conv(s, x=only(s.inputs["X"], _ALL, -1))) if s.sizes["channels"] > 1 else None),
    ("image_transposed", "sizes_exchanged",
     "The images are read with rows and columns exchanged: row h begins at h * Wd.",
     lambda s: _with_bias(s, _conv(s, x=_turned(s.inputs["X"])))),
    ("row_of_height", "row_length", "The images are read as if a row had H numbers: row h begins at h * Wd.",
     lambda s: None if (x := _rows_of_height(s)) is None else _with_bias(s, _conv(s, x=x))),
    ("last_tap", "tap_missing", "The last row and column of the filter are left out.",
     lambda s:
         _with_bias(s, _conv(s, w=without(without(s.inputs["W"], _ALL, _ALL, -1), _ALL, _ALL, _ALL, -1)))
         if s.sizes["kernel"] > 1 else None),
    ("last_term", "not_summed",
     "Only the last term of each sum counts: use += in place of =.",
     lambda s:
         _conv(s, w=only(s.inputs["W"], _ALL, -1, -1, -1)) if s.sizes["kernel"] * s.sizes["channels"] > 1 else None),
    *(
        (f"without {edge}", "image_edge",
         f"The {edge} of the image counts as border: rows 0 to H - 1 and columns 0 to Wd - 1 are inside.",
         lambda s, at=at: _with_bias(s, _conv(s, x=without(s.inputs["X"], _ALL, _ALL, *at))))
        for edge, at in (
            ("first row", (0,)), ("last row", (-1,)), ("first column", (_ALL, 0)), ("last column", (_ALL, -1)),
        )
    ),
)  # fmt: skip


# ---- mistakes in a convolution's gradients

CONV2D_BACKWARD = Mistakes()
common(CONV2D_BACKWARD, "dX", "dW", "db", loops=("channels", "filters", "images"))
for _name in ("dW", "db", "dX"):
    divided(CONV2D_BACKWARD, _name, "images", "batch")


def _filters(s: Situation, images: slice = _ALL, t: Taps | None = None) -> Array:
    t = t or arithmetic.usual_taps(s.sizes)
    return arithmetic.filter_gradient(s.inputs["dY"][images], s.inputs["X"][images], t)


def _image(s: Situation, w: Array, t: Taps | None = None) -> Array:
    t = t or arithmetic.usual_taps(s.sizes)
    return arithmetic.image_gradient(s.inputs["dY"], w, t, s.sizes["height"], s.sizes["width"])


def _filters_at(s: Situation, taken: Callable[[Array], Array]) -> Array:
    """Return dW if each element's gradient is added at the index at which the mistake reads the element of W.

    `taken`, a function of WEIGHTS, returns W as the mistake reads it.
    """
    right = _filters(s)
    numbers = taken(np.arange(right.size).reshape(right.shape)).ravel()
    return np.bincount(numbers, right.ravel(), right.size).reshape(right.shape)


def _by(
    wrong_taps: Callable[[Situation], Taps | None], use: Callable[[Situation, Taps], Array]
) -> Callable[[Situation], Array | None]:
    return lambda s: None if (t := wrong_taps(s)) is None else use(s, t)


def _of_one_axis(wrong: Callable[[Situation], Taps | None], axis: str) -> Callable[[Situation], Taps | None]:
    """Return a function that returns the taps of a mistake in the rows alone, or in the columns alone."""

    def taps(s: Situation) -> Taps | None:
        t, usual = wrong(s), arithmetic.usual_taps(s.sizes)
        return t and (Taps(t.rows, usual.columns) if axis == "rows" else Taps(usual.rows, t.columns))

    return taps


_OF_ONE_AXIS = [
    (code, f"In the {axis} only: {words.replace(' (columns likewise)', '')}", _of_one_axis(wrong, axis))
    for axis in ("rows", "columns")
    for code, words, wrong in TAPS
]
for _number, (_code, _words, _wrong) in enumerate((*TAPS, *_OF_ONE_AXIS)):
    _row = (f"taps{_number}", _code, _words)
    CONV2D.gives_each((*_row, _by(_wrong, lambda s, t: _with_bias(s, _conv(s, t)))))
    CONV2D_BACKWARD.adds_each("dW", (*_row, _by(_wrong, lambda s, t: _filters(s, t=t))))
    CONV2D_BACKWARD.adds_each("dX", (*_row, _by(_wrong, lambda s, t: _image(s, s.inputs["W"], t))))
for _number, (_code, _words, _taken) in enumerate(WEIGHTS):
    _row = (f"weights{_number}", _code, _words)
    CONV2D.gives_each((*_row, lambda s, taken=_taken: _with_bias(s, _conv(s, w=taken(s.inputs["W"])))))
    CONV2D_BACKWARD.adds_each("dX", (*_row, lambda s, taken=_taken: _image(s, taken(s.inputs["W"]))))
    CONV2D_BACKWARD.adds_each("dW", (*_row, lambda s, taken=_taken: _filters_at(s, taken)))


exchanged(
    CONV2D_BACKWARD,
    "dX",
    "dW",
    lambda s, name: _image(s, s.inputs["W"]) if name == "dX" else _filters(s),
)

_FIRST = "gets the gradient of only the first image of the batch: add up the gradients of all images."
_LAST = "gets the gradient of only the last image of the batch: add up the gradients of all images."


CONV2D_BACKWARD.adds_each("dW",
    ("filters_of_first", "batch_not_summed", f"dW {_FIRST}",
     lambda s: _filters(s, slice(0, 1)) if s.sizes["images"] > 1 else None),
    ("filters_of_last", "batch_not_summed", f"dW {_LAST}",
     lambda s: _filters(s, slice(-1, None)) if s.sizes["images"] > 1 else None),
)  # fmt: skip


CONV2D_BACKWARD.gives_each(
    ("filters_of_last_alone", "batch_not_summed",
     "dW contains only the gradient of the last image: each replaces the previous one. Use += in place of =.",
     lambda s: _filters(s, slice(-1, None)) if s.sizes["images"] > 1 else None),
    output="dW",
)  # fmt: skip


CONV2D_BACKWARD.adds_each("db",
    ("bias_of_first", "batch_not_summed", f"db {_FIRST}",
     lambda s: s.inputs["dY"][0].sum((1, 2)) if s.sizes["images"] > 1 else None),
    ("bias_of_last", "batch_not_summed", f"db {_LAST}",
     lambda s: s.inputs["dY"][-1].sum((1, 2)) if s.sizes["images"] > 1 else None),
)  # fmt: skip


CONV2D_BACKWARD.gives_each(
    ("bias_of_last_alone", "batch_not_summed",
     "db contains only the gradient of the last image: each replaces the previous one. Use += in place of =.",
     lambda s: s.inputs["dY"][-1].sum((1, 2)) if s.sizes["images"] > 1 else None),
    output="db",
)  # fmt: skip


CONV2D_BACKWARD.adds_each("db",
    ("bias_of_first_place", "places_not_summed",
     "db gets the gradient of one place of each image: add up the gradients of all places.",
     lambda s: s.inputs["dY"][:, :, 0, 0].sum(0) if s.inputs["dY"].shape[2] * s.inputs["dY"].shape[3] > 1 else None),
    ("bias_of_last_place", "places_not_summed",
     "db gets the gradient of the last place of each image: add up the gradients of all places.",
     lambda s:
         s.inputs["dY"][:, :, -1, -1].sum(0) if s.inputs["dY"].shape[2] * s.inputs["dY"].shape[3] > 1 else None),
    ("bias_of_mean", "gradient_mean", "db gets the mean over all places of the batch: take the sum.",
     lambda s: s.inputs["dY"].mean((0, 2, 3))),
    ("bias_of_mean_place", "gradient_mean",
     "db gets the sum over the batch of the means over the places: take the sum over both.",
     lambda s: s.inputs["dY"].mean((2, 3)).sum(0)),
    ("bias_of_all", "bias_wrong_axis", "Each element of db gets the sum of all of dY: add up only its filter's.",
     lambda s: np.full(s.sizes["filters"], s.inputs["dY"].sum()) if s.sizes["filters"] > 1 else None),
)  # fmt: skip


CONV2D_BACKWARD.adds_each("dX",
    ("image_of_last_filter", "filters_not_summed",
     "dX gets the gradient of only the last filter: add up the gradients of all filters.",
     lambda s: _image(s, only(s.inputs["W"], -1)) if s.sizes["filters"] > 1 else None),
    ("image_of_first_filter", "filters_not_summed",
     "dX gets the gradient of only the first filter: add up the gradients of all filters.",
     lambda s: _image(s, only(s.inputs["W"], 0)) if s.sizes["filters"] > 1 else None),
)  # fmt: skip


@CONV2D_BACKWARD.gives(
    "overlap_overwritten",
    "Where places overlap, dX contains only the gradient of the last place: use += in place of =.",
    "dX",
)
def last_tap_alone(s: Situation) -> Array:
    """Return dX if each filter element overwrites dX at the elements that it reads: only the last write counts."""
    held, w, dy = s.inputs["dX"].copy(), s.inputs["W"], s.inputs["dY"]
    t = arithmetic.usual_taps(s.sizes)
    for kh, kw in np.ndindex(*w.shape[2:]):
        one = only(w, _ALL, _ALL, kh, kw)
        # `seen` counts how often this filter element reads each element of the image. Overwrite the elements it reads.
        seen = arithmetic.image_gradient(
            np.ones_like(dy[:1, :1]), 1.0 * (one[:1, :1] != 0), t, *held.shape[2:]
        )
        held = np.where(seen > 0, arithmetic.image_gradient(dy, one, t, *held.shape[2:]), held)
    return held


CONV2D_BACKWARD.adds_each("dX",
    ("first_channel_for_all", "channels_exchanged",
     "All channels of dX get the gradient of the first channel: the index c of W is left out.",
     lambda s: _image(s, np.broadcast_to(s.inputs["W"][:, :1], s.inputs["W"].shape))
         if s.sizes["channels"] > 1
         else None),
)  # fmt: skip
