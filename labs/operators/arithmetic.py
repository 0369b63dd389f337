"""The operators and their gradients in NumPy, in the type of their inputs: float64 for expected values.

`Taps` has the indices of the image's rows and columns that a convolution reads. Suspects of mistakes in indices use
other taps (`labs.operators.suspects.pictures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.core.arrays import Array, np

Shape = Mapping[str, int]


def summed_to(x: Array, rows: int, columns: int) -> Array:
    """Return the gradient (rows, columns) of an operand that was broadcast: `x` (R, C), summed over broadcast axes.

    `rows` and `columns` are the operand's sizes. Each is 1 (a broadcast axis) or the size of `x`.
    """
    x = x.sum(0, keepdims=True) if rows == 1 else x
    return x.sum(1, keepdims=True) if columns == 1 else x


# ---- convolution


@dataclass(frozen=True)
class Taps:
    """Indices in the image that a convolution reads. `rows` int (OH, K) has one for each output row and filter row,
    `columns` int (OW, K) one for each output column and filter column. Outside of the image, the value read is 0."""

    rows: Array
    columns: Array


def usual_taps(s: Shape) -> Taps:
    return taps(s, s["stride"], s["pad"])


def taps(s: Shape, stride: int, pad: int, flipped: bool = False) -> Taps:
    """Return the taps of a convolution with this stride and padding. The output has the size that `s` gives. With
    `flipped`, the filter's rows and columns are reversed."""
    along = np.arange(s["kernel"])
    along = along[::-1] if flipped else along
    height, width = out_size(s)
    return Taps(
        np.arange(height)[:, None] * stride + along - pad, np.arange(width)[:, None] * stride + along - pad
    )


def out_size(s: Shape) -> tuple[int, int]:
    height, width = (
        (s[name] + 2 * s["pad"] - s["kernel"]) // s["stride"] + 1 for name in ("height", "width")
    )
    return height, width


def seen(x: Array, t: Taps) -> Array:
    """Return the numbers that the filter multiplies at each place (oh, ow) of the output: (N, OH, OW, C, K, K)."""
    height, width = x.shape[2:]
    rows, columns = t.rows[:, None, :, None], t.columns[None, :, None, :]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    read = x[:, :, np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)] * inside
    return read.transpose(0, 2, 3, 1, 4, 5)


def convolved(x: Array, w: Array, t: Taps) -> Array:
    """Return the convolution of the images x with the filters w, without a bias: (N, F, OH, OW)."""
    return np.tensordot(seen(x, t), w, ([3, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)


def filter_gradient(dy: Array, x: Array, t: Taps) -> Array:
    """Return the filters' gradient (F, C, K, K).

    It is the sum, over all images and places, of dy (N, F, OH, OW) times the numbers of the image read at the place.
    """
    return np.tensordot(dy, seen(x, t), ([0, 2, 3], [0, 1, 2]))


def image_gradient(dy: Array, w: Array, t: Taps, height: int, width: int) -> Array:
    """Return the images' gradient (N, C, height, width).

    At each place, each filter element w reads one element of the image: w * dy is added to this element's gradient.
    """
    given = np.tensordot(dy, w, ([1], [0])).transpose(0, 3, 1, 2, 4, 5)  # (N, C, OH, OW, K, K)
    total = np.zeros((*given.shape[:2], height, width), dy.dtype)
    for kh, kw in np.ndindex(*w.shape[2:]):
        rows, columns = t.rows[:, kh], t.columns[:, kw]
        down, right = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
        at = (slice(None), slice(None), rows[down][:, None], columns[right])
        # Clamped taps may read an element of the image several times: `total[at] += ...` would add only one number.
        np.add.at(total, at, given[:, :, down][:, :, :, right, kh, kw])
    return total


# ---- maximum of windows


def pooling_windows(x: Array, s: Shape) -> Array:
    """Return all windows, (N, C, OH, OW, side * side), each in row-major order."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (s["side"], s["side"]), (2, 3))
    chosen = windows[:, :, :: s["step"], :: s["step"]]
    return chosen.reshape(*chosen.shape[:4], -1)


def pooled(x: Array, s: Shape) -> tuple[Array, Array]:
    """Return the maximum of each window, (N, C, OH, OW), and its index in the plane, int64; for a tie, the first."""
    windows = pooling_windows(x, s)
    first = windows.argmax(4)
    return np.take_along_axis(windows, first[..., None], 4)[..., 0], place_in_plane(first, s)


def place_in_plane(place_in_window: Array, s: Shape) -> Array:
    """Convert indices within windows, (N, C, OH, OW), to indices h * width + w within the plane."""
    down, right = np.divmod(place_in_window, s["side"])
    height, width = place_in_window.shape[2:]
    rows = np.arange(height)[:, None] * s["step"] + down
    return (rows * s["columns"] + np.arange(width) * s["step"] + right).astype(np.int64)


def scattered(dy: Array, index: Array, shape: tuple[int, ...]) -> Array:
    """Add dy (N, C, OH, OW) to zeros of `shape` (N, C, H, W), at the indices `index` within each plane."""
    planes, size = shape[0] * shape[1], shape[2] * shape[3]
    flat = index.reshape(planes, -1) + np.arange(planes)[:, None] * size
    return np.bincount(flat.ravel(), dy.ravel(), planes * size).reshape(shape)


# ---- softmax


def log_softmax(x: Array) -> Array:
    """Return the logarithm of the softmax of each row."""
    below = x - x.max(1, keepdims=True)
    return below - np.log(np.exp(below).sum(1, keepdims=True))


def one_hot(labels: Array, classes: int) -> Array:
    return (labels[:, None] == np.arange(classes)).astype(np.float64)
