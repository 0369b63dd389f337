"""Mistakes of a convolution's forward function."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.fitting import Situation

from .. import arithmetic
from ..arithmetic import Taps
from .registry import Mistakes
from .taps import TAPS, WEIGHTS


def _with_bias(s: Situation, made: Array) -> Array:
    return made + s.inputs["b"][:, None, None]


def _conv(s: Situation, t: Taps | None = None, w: Array | None = None) -> Array:
    return arithmetic.convolved(
        s.inputs["X"],
        s.inputs["W"] if w is None else w,
        t or arithmetic.usual_taps(s.sizes),
    )


_CONV2D = Mistakes()


_CONV2D.gives_each(
    ("without_bias", "bias_missing", "The bias is not added.", lambda s: _conv(s)),
    ("first_bias", "bias_wrong_index", "The first bias is added to all filters: b[f] belongs to filter f.",
     lambda s: _conv(s) + s.inputs["b"][0]),
)  # fmt: skip


@_CONV2D.gives("bias_wrong_index", "The bias is added by the place in the picture: b[f] belongs to filter f.")
def bias_of_place(s: Situation) -> Array | None:
    made, b = _conv(s), s.inputs["b"]
    places = made.shape[2] * made.shape[3]
    if places == 1:
        return None
    known = np.concatenate([b, np.full(max(0, places - len(b)), np.nan)])[:places]
    return made + known.reshape(made.shape[2:])


@_CONV2D.gives("bias_wrong_index", "The bias is added by the image of the batch: b[f] belongs to filter f.")
def bias_of_image(s: Situation) -> Array | None:
    b, images = s.inputs["b"], s.sizes["images"]
    if images == 1:
        return None
    known = np.concatenate([b, np.full(max(0, images - len(b)), np.nan)])[:images]
    return _conv(s) + known[:, None, None, None]


_CONV2D.gives_each(
    ("bias_of_channels", "bias_added_often", "The bias is added once for each channel: add it once for each place.",
     lambda s: _conv(s) + s.sizes["channels"] * s.inputs["b"][:, None, None]),
    ("bias_of_taps", "bias_added_often",
     "The bias is added once for each term of the sum: add it once for each place.",
     lambda s: _conv(s) + (s.sizes["channels"] * s.sizes["kernel"] ** 2) * s.inputs["b"][:, None, None]),
    ("first_image", "image_ignored", "All outputs are of the first image: the index n of X is left out.",
     lambda s: np.broadcast_to(s.expected[:1], s.expected.shape)),
)  # fmt: skip


@_CONV2D.gives("channels_missing", "Only the first channel of the images is used: add up all channels.")
def first_channel(s: Situation) -> Array | None:
    if s.sizes["channels"] == 1:
        return None
    x = s.inputs["X"].copy()
    x[:, 1:] = 0
    return _with_bias(s, arithmetic.convolved(x, s.inputs["W"], arithmetic.usual_taps(s.sizes)))


@_CONV2D.gives(
    "channels_missing",
    "Only the last channel of the images is used: each replaces the one before (= for +=).",
)
def last_channel(s: Situation) -> Array | None:
    if s.sizes["channels"] == 1:
        return None
    x = s.inputs["X"].copy()
    x[:, :-1] = 0
    return _with_bias(s, arithmetic.convolved(x, s.inputs["W"], arithmetic.usual_taps(s.sizes)))


@_CONV2D.gives(
    "sizes_exchanged", "The images are read with rows and columns exchanged: row h begins at h * Wd."
)
def image_transposed(s: Situation) -> Array | None:
    x = s.inputs["X"]
    turned = x.reshape(*x.shape[:2], x.shape[3], x.shape[2]).swapaxes(2, 3)
    return _with_bias(s, arithmetic.convolved(turned, s.inputs["W"], arithmetic.usual_taps(s.sizes)))


@_CONV2D.gives("row_length", "The images are read as if a row had H numbers: row h begins at h * Wd.")
def row_of_height(s: Situation) -> Array | None:
    x, (h, w) = s.inputs["X"], (s.sizes["height"], s.sizes["width"])
    if h == w:
        return None
    planes = x.reshape(*x.shape[:2], -1)
    places = np.arange(h)[:, None] * h + np.arange(w)
    read = np.where(places < h * w, planes[:, :, np.minimum(places, h * w - 1)], np.nan)
    return _with_bias(s, arithmetic.convolved(read, s.inputs["W"], arithmetic.usual_taps(s.sizes)))


@_CONV2D.gives("tap_missing", "The last row and column of the filter are left out.")
def last_tap(s: Situation) -> Array | None:
    if s.sizes["kernel"] == 1:
        return None
    w = s.inputs["W"].copy()
    w[:, :, -1, :], w[:, :, :, -1] = 0, 0
    return _with_bias(s, _conv(s, w=w))


@_CONV2D.gives(
    "not_summed", "Only the last term of each sum is there: each one replaces the one before (= for +=)."
)
def last_term(s: Situation) -> Array | None:
    if s.sizes["kernel"] * s.sizes["channels"] == 1:
        return None
    w = np.zeros_like(s.inputs["W"])
    w[:, -1, -1, -1] = s.inputs["W"][:, -1, -1, -1]
    return _conv(s, w=w)


def _edges() -> None:
    every = slice(None)
    places: dict[str, tuple[slice | int, ...]] = {
        "first row": (every, every, 0),
        "last row": (every, every, -1),
        "first column": (every, every, every, 0),
        "last column": (every, every, every, -1),
    }
    for edge, at in places.items():

        def without_edge(s: Situation, at: tuple[slice | int, ...] = at) -> Array:
            x = s.inputs["X"].copy()
            x[at] = 0
            return _with_bias(s, arithmetic.convolved(x, s.inputs["W"], arithmetic.usual_taps(s.sizes)))

        without_edge.__name__ = f"without {edge}"
        _CONV2D.gives(
            "image_edge",
            f"The {edge} of the image counts as border: from 0 to before H (and Wd) an index is inside.",
        )(without_edge)


_edges()


def _of_tables() -> None:
    for number, (code, words, wrong_taps) in enumerate(TAPS):

        def by_taps(s: Situation, wrong_taps=wrong_taps) -> Array | None:
            t = wrong_taps(s)
            return None if t is None else _with_bias(s, _conv(s, t))

        by_taps.__name__ = f"taps{number}"
        _CONV2D.gives(code, words)(by_taps)
    for number, (code, words, taken) in enumerate(WEIGHTS):

        def by_weights(s: Situation, taken=taken) -> Array:
            return _with_bias(s, _conv(s, w=taken(s.inputs["W"])))

        by_weights.__name__ = f"weights{number}"
        _CONV2D.gives(code, words)(by_weights)


_of_tables()
CONV2D = _CONV2D.all
