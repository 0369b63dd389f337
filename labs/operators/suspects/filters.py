"""Mistakes of a convolution's gradients."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.fitting import Situation

from .. import arithmetic
from .gradients import common, divided, exchanged
from .registry import Mistakes
from .taps import TAPS, WEIGHTS

_CONV2D_BACKWARD = Mistakes()
common(_CONV2D_BACKWARD, "dX", "dW", "db")
for _name in ("dW", "db", "dX"):
    divided(_CONV2D_BACKWARD, _name, "images", "batch")


def _of_tables() -> None:
    for number, (code, words, wrong_taps) in enumerate(TAPS):

        def filters(s: Situation, wrong_taps=wrong_taps) -> Array | None:
            t = wrong_taps(s)
            return None if t is None else arithmetic.filter_gradient(s.inputs["dY"], s.inputs["X"], t)

        def image(s: Situation, wrong_taps=wrong_taps) -> Array | None:
            t = wrong_taps(s)
            size = (s.sizes["height"], s.sizes["width"])
            return None if t is None else arithmetic.image_gradient(s.inputs["dY"], s.inputs["W"], t, *size)

        filters.__name__ = image.__name__ = f"taps{number}"
        _CONV2D_BACKWARD.adds("dW", code, words)(filters)
        _CONV2D_BACKWARD.adds("dX", code, words)(image)
    for number, (code, words, taken) in enumerate(WEIGHTS):

        def image_by(s: Situation, taken=taken) -> Array:
            return _image(s, taken(s.inputs["W"]))

        def filters_by(s: Situation, taken=taken) -> Array:
            right = arithmetic.filter_gradient(s.inputs["dY"], s.inputs["X"], arithmetic.usual_taps(s.sizes))
            # Where an element is read from, its gradient is stored.
            numbers = taken(np.arange(right.size).reshape(right.shape)).ravel()
            return np.bincount(numbers, right.ravel(), right.size).reshape(right.shape)

        filters_by.__name__ = image_by.__name__ = f"weights{number}"
        _CONV2D_BACKWARD.adds("dX", code, words)(image_by)
        _CONV2D_BACKWARD.adds("dW", code, words)(filters_by)


_of_tables()


def _filters(s: Situation, images: slice) -> Array:
    t = arithmetic.usual_taps(s.sizes)
    return arithmetic.filter_gradient(s.inputs["dY"][images], s.inputs["X"][images], t)


exchanged(
    _CONV2D_BACKWARD,
    "dX",
    "dW",
    lambda s, name: _image(s, s.inputs["W"]) if name == "dX" else _filters(s, slice(None)),
)

_FIRST = "gets the gradient of the first image of the batch alone: add up those of all images."
_LAST = "gets the gradient of the last image of the batch alone: add up those of all images."


_CONV2D_BACKWARD.adds_each("dW",
    ("filters_of_first", "batch_not_summed", f"dW {_FIRST}",
     lambda s: _filters(s, slice(0, 1)) if s.sizes["images"] > 1 else None),
    ("filters_of_last", "batch_not_summed", f"dW {_LAST}",
     lambda s: _filters(s, slice(-1, None)) if s.sizes["images"] > 1 else None),
)  # fmt: skip


_CONV2D_BACKWARD.gives_each(
    ("filters_of_last_alone", "batch_not_summed",
     "dW holds the gradient of the last image alone: each replaces the one before (= for +=).",
     lambda s: _filters(s, slice(-1, None)) if s.sizes["images"] > 1 else None),
    output="dW",
)  # fmt: skip


_CONV2D_BACKWARD.adds_each("db",
    ("bias_of_first", "batch_not_summed", f"db {_FIRST}",
     lambda s: s.inputs["dY"][0].sum((1, 2)) if s.sizes["images"] > 1 else None),
    ("bias_of_last", "batch_not_summed", f"db {_LAST}",
     lambda s: s.inputs["dY"][-1].sum((1, 2)) if s.sizes["images"] > 1 else None),
)  # fmt: skip


_CONV2D_BACKWARD.gives_each(
    ("bias_of_last_alone", "batch_not_summed",
     "db holds the gradient of the last image alone: each replaces the one before (= for +=).",
     lambda s: s.inputs["dY"][-1].sum((1, 2)) if s.sizes["images"] > 1 else None),
    output="db",
)  # fmt: skip


_CONV2D_BACKWARD.adds_each("db",
    ("bias_of_first_place", "places_not_summed",
     "db gets the gradient of one place of each image: add up those of all places.",
     lambda s: s.inputs["dY"][:, :, 0, 0].sum(0) if s.inputs["dY"].shape[2] * s.inputs["dY"].shape[3] > 1 else None),
    ("bias_of_last_place", "places_not_summed",
     "db gets the gradient of the last place of each image: add up those of all places.",
     lambda s:
         s.inputs["dY"][:, :, -1, -1].sum(0) if s.inputs["dY"].shape[2] * s.inputs["dY"].shape[3] > 1 else None),
    ("bias_of_mean", "gradient_mean", "db gets the mean over all places of the batch, and the sum is right.",
     lambda s: s.inputs["dY"].mean((0, 2, 3))),
    ("bias_of_mean_place", "gradient_mean",
     "db gets the sum over the batch of the mean over the places, and the sum of all is right.",
     lambda s: s.inputs["dY"].mean((2, 3)).sum(0)),
    ("bias_of_all", "bias_wrong_axis", "Each element of db gets the sum of all of dY: add up its own filter's.",
     lambda s: np.full(s.sizes["filters"], s.inputs["dY"].sum()) if s.sizes["filters"] > 1 else None),
)  # fmt: skip


@_CONV2D_BACKWARD.adds(
    "dX",
    "filters_not_summed",
    "dX gets what the last filter made of it alone: add up what all filters make.",
)
def image_of_last_filter(s: Situation) -> Array | None:
    w = s.inputs["W"].copy()
    w[:-1] = 0
    return _image(s, w) if len(w) > 1 else None


@_CONV2D_BACKWARD.adds(
    "dX",
    "filters_not_summed",
    "dX gets what the first filter made of it alone: add up what all filters make.",
)
def image_of_first_filter(s: Situation) -> Array | None:
    w = s.inputs["W"].copy()
    w[1:] = 0
    return _image(s, w) if len(w) > 1 else None


@_CONV2D_BACKWARD.gives(
    "overlap_overwritten",
    "Where places overlap, dX holds what the last one gave: each replaces what was there (= for +=).",
    "dX",
)
def last_tap_alone(s: Situation) -> Array:
    """Taps in order, each of which writes to all places that it saw."""
    held, w, dy = s.inputs["dX"].copy(), s.inputs["W"], s.inputs["dY"]
    t = arithmetic.usual_taps(s.sizes)
    for kh, kw in np.ndindex(*w.shape[2:]):
        one = np.zeros_like(w)
        one[:, :, kh, kw] = w[:, :, kh, kw]
        # Where this tap reads at all, and what it gives there.
        seen = arithmetic.image_gradient(
            np.ones_like(dy[:1, :1]), np.ones_like(one[:1, :1]) * (one[:1, :1] != 0), t, *held.shape[2:]
        )
        held = np.where(seen > 0, arithmetic.image_gradient(dy, one, t, *held.shape[2:]), held)
    return held


_CONV2D_BACKWARD.adds_each("dX",
    ("first_channel_for_all", "channels_exchanged",
     "All channels of dX get what belongs to the first one: the index c of W is left out.",
     lambda s: _image(s, np.broadcast_to(s.inputs["W"][:, :1], s.inputs["W"].shape))
         if s.sizes["channels"] > 1
         else None),
)  # fmt: skip


def _image(s: Situation, w: Array) -> Array:
    t = arithmetic.usual_taps(s.sizes)
    return arithmetic.image_gradient(s.inputs["dY"], w, t, s.sizes["height"], s.sizes["width"])


CONV2D_BACKWARD = _CONV2D_BACKWARD.all
