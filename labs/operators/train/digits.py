"""Digits drawn by the kit: images of 28 x 28 pixels in MNIST's style, determined by a seed alone.

Theory of operation. Each digit has several shapes. A shape is one to three strokes. A stroke is a chain of straight
lines and arcs, with points at equal distances along it. For each image a shape is chosen at random, bent by a slow
wave, turned, sheared, stretched and moved. The ink at pixel (r, c) is a sum of Gaussians of the distances to all
points:

    ink(r, c) = w * sum over p of exp(-(r - y_p)^2 / 2 s^2) exp(-(c - x_p)^2 / 2 s^2)

Here s is the width of the pen. For each image this is a product of two matrices, (28, P) and (P, 28). That is faster
than a loop over all points for each pixel. Neighbouring points have the distance h, and w = h / (s sqrt(2 pi)). So the
sum is 1 on a straight line, at any density of points. Sums are cut to 1, full ink. Blots, gaps and noise are added.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from grader.core.arrays import Array, np
from grader.core.errors import UsageError

SIDE = 28
"""Number of pixels along an image's side."""
CLASSES = 10
POINTS = 72
"""Number of points on all strokes of a digit together."""
BLOCK = 512
"""Number of images that are drawn at a time, so that their data stays in the cache."""
#: Variation of images. A number is a standard deviation, a pair are bounds (from, to). BLOTS is the share of images
#: with a blot or a gap.
TURN_RADIANS, SHEAR, SHIFT_PIXELS, WAVE = 0.14, 0.18, 1.15, 0.04
HEIGHT_PIXELS, WIDTH_SHARE, PEN_PIXELS = (15.5, 21.0), (0.6, 1.0), (0.65, 1.5)
CONTRAST, NOISE, BLOTS = (0.75, 1.6), (0.0, 0.14), 0.5

Line = tuple[tuple[float, float], ...]


def arc(
    x: float, y: float, rx: float, ry: float, start: float, end: float, corners: int = 24
) -> tuple[tuple[float, float], ...]:
    """Return part of an ellipse around (x, y) as a chain of points. Angles are in degrees, clockwise from the right."""
    angles = [math.radians(start + (end - start) * k / corners) for k in range(corners + 1)]
    return tuple((x + rx * math.cos(a), y + ry * math.sin(a)) for a in angles)


#: Shapes by digit, each a list of strokes, in a square from (0, 0) at the top left to (1, 1).
SHAPES: tuple[tuple[tuple[Line, ...], ...], ...] = (
    (  # 0
        (arc(0.5, 0.5, 0.36, 0.5, 0, 360),),
        (arc(0.5, 0.5, 0.5, 0.46, -80, 275),),
    ),
    (  # 1
        (((0.5, 0.0), (0.5, 1.0)),),
        (((0.28, 0.24), (0.54, 0.0), (0.54, 1.0)),),
        (((0.3, 0.22), (0.52, 0.0), (0.52, 1.0)), ((0.22, 1.0), (0.82, 1.0))),
    ),
    (  # 2
        ((*arc(0.48, 0.28, 0.4, 0.28, 190, 390), (0.1, 1.0), (0.95, 1.0)),),
        ((*arc(0.45, 0.25, 0.42, 0.25, 200, 400), *arc(0.24, 0.86, 0.16, 0.13, 250, 20, 12), (0.98, 0.94)),),
    ),
    (  # 3
        ((*arc(0.42, 0.26, 0.42, 0.26, 205, 440), *arc(0.42, 0.74, 0.5, 0.26, 280, 515)),),
        (((0.08, 0.0), (0.88, 0.0), (0.42, 0.4), *arc(0.42, 0.7, 0.5, 0.3, 270, 510)),),
    ),
    (  # 4
        (((0.62, 0.0), (0.05, 0.66), (0.98, 0.66)), ((0.68, 0.3), (0.68, 1.0))),
        (((0.12, 0.0), (0.1, 0.5), (0.85, 0.5)), ((0.85, 0.0), (0.82, 1.0))),
    ),
    (  # 5
        (((0.9, 0.0), (0.2, 0.0), (0.14, 0.44), *arc(0.44, 0.68, 0.46, 0.32, 230, 510)),),
        (((0.16, 0.05), (0.14, 0.46), *arc(0.4, 0.7, 0.5, 0.3, 245, 500)), ((0.16, 0.03), (0.95, 0.0))),
    ),
    (  # 6
        ((*arc(0.9, 0.62, 0.8, 0.62, 265, 180, 16), *arc(0.5, 0.7, 0.4, 0.3, 180, -180)),),
        (((0.62, 0.0), (0.22, 0.45), *arc(0.5, 0.7, 0.38, 0.3, 200, -170)),),
    ),
    (  # 7
        (((0.05, 0.04), (0.92, 0.0), (0.4, 1.0)),),
        (((0.08, 0.18), (0.1, 0.02), (0.95, 0.02), (0.52, 0.5), (0.42, 1.0)),),
        (((0.05, 0.02), (0.92, 0.02), (0.36, 1.0)), ((0.28, 0.52), (0.88, 0.5))),
    ),
    (  # 8
        (arc(0.5, 0.25, 0.33, 0.25, 0, 360), arc(0.5, 0.75, 0.42, 0.25, 0, 360)),
        (
            (
                *arc(0.5, 0.24, 0.38, 0.24, -30, -250),
                *arc(0.5, 0.76, 0.4, 0.24, -50, 200),
                (0.42, 0.5),
                (0.83, 0.12),
            ),
        ),
    ),
    (  # 9
        (arc(0.48, 0.28, 0.38, 0.28, 0, 360), ((0.86, 0.28), (0.8, 1.0))),
        ((*arc(0.5, 0.3, 0.38, 0.3, -10, -360), *arc(0.2, 0.45, 0.66, 0.55, 0, 100, 16)),),
    ),
)


@dataclass(frozen=True)
class Digits:
    """Images (n, 28, 28), uint8 with 255 for full ink, and their labels (n), int64."""

    images: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)


def draw(count: int, seed: int) -> Digits:
    """Draw `count` digits from a seed, in random order. The numbers of images of any two digits differ by at most 1.

    The same seed gives the same images, but a pixel may differ by 1 on a processor that rounds exp() differently.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    labels = random.permutation(np.arange(count) % CLASSES).astype(np.int64)
    images = np.empty((count, SIDE, SIDE), np.uint8)
    for start in range(0, count, BLOCK):
        block = slice(start, start + BLOCK)
        images[block] = _drawn(labels[block], random)
    return Digits(images, labels)


def _drawn(labels: Array, random: np.random.Generator) -> Array:
    n = len(labels)
    variants = (random.random(n) * _VARIANTS[labels]).astype(np.int64)
    chosen = _FIRST[labels] + variants
    x, y, gap = _placed(_PATHS[chosen], random)
    pen = random.uniform(*PEN_PIXELS, (n, 1, 1)).astype(np.float32)
    pixels = np.arange(SIDE, dtype=np.float32)
    rows = _bells(pixels[:, None] - y[:, None, :], pen)  # (n, 28, P)
    columns = _bells(pixels[:, None] - x[:, None, :], pen)
    weight = gap[:, None, None] * _LENGTHS[chosen][:, None, None] / (pen * math.sqrt(2 * math.pi))
    ink = (rows * weight) @ columns.transpose(0, 2, 1)
    return _aged(ink * random.uniform(*CONTRAST, (n, 1, 1)).astype(np.float32), random)


def _bells(distance: Array, pen: Array) -> Array:
    return np.exp(distance * distance * (-0.5 / (pen * pen)), dtype=np.float32)


def _placed(path: Array, random: np.random.Generator) -> tuple[Array, Array, Array]:
    """Map points (n, P, 2) of the unit square to columns (n, P) and rows (n, P) of an image, with random variation.

    The third result (n,) is the square's size in pixels: the geometric mean of height and width.
    """
    n = len(path)
    path = path - 0.5
    wave = random.normal(0, WAVE, (n, 2, 1)).astype(np.float32)
    phase = random.uniform(0, 2 * math.pi, (n, 2, 1)).astype(np.float32)
    count = random.uniform(0.4, 1.2, (n, 2, 1)).astype(np.float32) * np.float32(2 * math.pi)
    x = path[:, :, 0] + wave[:, 0] * np.sin(count[:, 0] * path[:, :, 1] + phase[:, 0])
    y = path[:, :, 1] + wave[:, 1] * np.sin(count[:, 1] * path[:, :, 0] + phase[:, 1])
    height = random.uniform(*HEIGHT_PIXELS, (n, 1)).astype(np.float32)
    width = height * random.uniform(*WIDTH_SHARE, (n, 1)).astype(np.float32)
    x, y = x * width, y * height
    x = x + y * random.normal(0, SHEAR, (n, 1)).astype(np.float32)
    turn = random.normal(0, TURN_RADIANS, (n, 1)).astype(np.float32)
    x, y = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
    middle = np.float32((SIDE - 1) / 2) + random.normal(0, SHIFT_PIXELS, (n, 2, 1)).astype(np.float32)
    return x + middle[:, 0], y + middle[:, 1], np.sqrt(height * width)[:, 0]


def _aged(ink: Array, random: np.random.Generator) -> Array:
    """Imitate paper and scanner: cut ink to 1, add a blot or a gap to some images and noise to all. Return uint8."""
    n = len(ink)
    pixels = np.arange(SIDE, dtype=np.float32)[:, None]
    place = random.uniform(2, SIDE - 3, (n, 2, 1, 1)).astype(np.float32)
    size = random.uniform(0.8, 2.0, (n, 1, 1)).astype(np.float32)
    blot = _bells(pixels - place[:, 0], size) * _bells(pixels.T - place[:, 1], size)
    kind = random.random((n, 1, 1))
    blot *= np.where(kind < BLOTS / 2, 0.8, np.where(kind < BLOTS, -1.5, 0.0)).astype(np.float32)
    ink = np.clip(ink, 0, 1) + blot
    noise = random.uniform(*NOISE, (n, 1, 1)).astype(np.float32)
    ink += noise * random.standard_normal(ink.shape, dtype=np.float32)
    return (np.clip(ink, 0, 1) * 255).astype(np.uint8)


# ---- the shapes, as points at equal distances


def _paths(shape: Sequence[Line]) -> tuple[Array, float]:
    """Return POINTS points (P, 2) at about equal distances on a shape's strokes, and this distance."""
    lines = [np.array(stroke, np.float64) for stroke in shape]
    steps = [np.hypot(*np.diff(line, axis=0).T) for line in lines]
    total = sum(step.sum() for step in steps)
    counts = [max(2, round(POINTS * step.sum() / total)) for step in steps]
    counts[0] += POINTS - sum(counts)
    found = []
    for line, step, count in zip(lines, steps, counts, strict=True):
        along = np.concatenate(([0.0], np.cumsum(step)))
        places = (np.arange(count) + 0.5) * along[-1] / count
        found.append(np.stack([np.interp(places, along, line[:, k]) for k in (0, 1)], axis=1))
    return np.concatenate(found).astype(np.float32), total / POINTS


_MADE = [_paths(shape) for digit in SHAPES for shape in digit]
_PATHS = np.stack([points for points, _ in _MADE])  # (shapes, P, 2)
_LENGTHS = np.array([gap for _, gap in _MADE], np.float32)
_VARIANTS = np.array([len(digit) for digit in SHAPES])
_FIRST = np.cumsum([0, *_VARIANTS[:-1]])


# ---- options and data of a training, which need no torch


@dataclass(frozen=True)
class Data:
    """Training set and test set (`held_out`) of a network; `source` describes them in words."""

    training: Digits
    held_out: Digits
    source: str


@dataclass(frozen=True)
class Wishes:
    """Options of a training.

    The calls of the first `lockstep` steps are checked. `goes_on`: True to continue after a deviation.
    """

    epochs: int
    batch: int
    rate: float
    seed: int
    lockstep: int
    goes_on: bool = False


# ---- images and labels in MNIST's format, IDX (LeCun, Cortes and Burges, 1998).
# Files may be compressed by gzip.
# A file is a header of big-endian 32-bit numbers, followed by bytes. For labels the header is the magic number 2049
# and their count. For images it is 2051, their count, rows and columns, and each pixel is one byte. A header is not
# trusted: its sizes are checked before memory is allocated. Only as many bytes as these sizes need are decompressed,
# and the file has to end after them.

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
MOST_BYTES = 256 << 20
"""Size limit of one decompressed file. MNIST's largest has 47 million bytes."""
TRAINING, HELD_OUT = "train", "t10k"
GZIP_MAGIC = b"\x1f\x8b"


def load(folder: Path) -> tuple[Digits, Digits]:
    """Return the training set and the test set from a folder with MNIST's four files, which may end in ".gz".

    Raises UsageError for a missing or malformed file, or for files of images and labels that do not belong together.
    """
    if not folder.is_dir():
        raise UsageError(f"--data takes a folder with MNIST's files, but {folder} is not a folder")
    return _part(folder, TRAINING), _part(folder, HELD_OUT)


def _part(folder: Path, name: str) -> Digits:
    images_path = _found(folder, f"{name}-images", "idx3-ubyte")
    labels_path = _found(folder, f"{name}-labels", "idx1-ubyte")
    images, labels = read(images_path, IMAGES_MAGIC), read(labels_path, LABELS_MAGIC)
    if images.shape[1:] != (SIDE, SIDE):
        size = " x ".join(map(str, images.shape[1:]))
        raise UsageError(f"{images_path}: images of {size} pixels; the networks take {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise UsageError(
            f"{images_path.name} has {len(images)} images, but {labels_path.name} has {len(labels)} labels"
        )
    if int(labels.max()) >= CLASSES:
        place = int((labels >= CLASSES).argmax())
        raise UsageError(
            f"{labels_path}: image {place} has label {labels[place]}, but labels go from 0 to {CLASSES - 1}"
        )
    return Digits(images, labels.astype(np.int64))


def _found(folder: Path, stem: str, kind: str) -> Path:
    """Return the path of a file under one of its possible names."""
    for name in (f"{stem}-{kind}", f"{stem}.{kind}"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise UsageError(
        f"{folder} has no {stem}-{kind}, with or without .gz: --data needs all four files of MNIST"
    )


def read(path: Path, magic: int) -> Array:
    """Return the content of one file: uint8, (count, rows, columns) or (count). Raises UsageError for anything else."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
            file.seek(0)
            return _content(path, cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file, magic)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: the compressed file is damaged or cut short") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _content(path: Path, file: IO[bytes], magic: int) -> Array:
    what, words = ("images", ">4I") if magic == IMAGES_MAGIC else ("labels", ">2I")
    start = file.read(struct.calcsize(words))
    if len(start) < struct.calcsize(words):
        raise UsageError(f"{path}: not an IDX file: {len(start)} bytes are too few for a header of {what}")
    # After the magic number, the header has the count and, for images, rows and columns.
    found, *shape = struct.unpack(words, start)
    if found != magic:
        raise UsageError(f"{path}: not an IDX file of {what}: it begins with {found}, not with {magic}")
    wanted = math.prod(shape)
    if wanted > MOST_BYTES:
        raise UsageError(
            f"{path}: its header claims {wanted / (1 << 20):,.0f} MiB; the limit is {MOST_BYTES >> 20} MiB"
        )
    if not wanted:
        raise UsageError(f"{path}: it is empty: its header gives the sizes {shape}")
    content = file.read(wanted)
    if len(content) < wanted:
        raise UsageError(f"{path}: cut short: its header says {wanted} bytes, only {len(content)} follow")
    if file.read(1):
        raise UsageError(f"{path}: more bytes follow than the {wanted} that its header says")
    return np.frombuffer(content, np.uint8).reshape(shape)
