"""Images and labels from files in MNIST's format, IDX (LeCun, Cortes and Burges, 1998), also compressed by gzip.

A file is a header of big-endian 32-bit numbers, followed by bytes. For labels the header is the magic number 2049 and
their count. For images it is 2051, their count, rows and columns, and each pixel is one byte. A header is not
trusted: its sizes are checked before anything is allocated, no more bytes than they require are decompressed, and the
file has to end there.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO, NamedTuple, cast

from grader.core.arrays import Array, np
from grader.core.errors import UsageError

from .digits import CLASSES, SIDE, Digits

IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
MOST_BYTES = 256 << 20
"""Size limit of one file, decompressed: MNIST's largest has 47 million bytes."""
TRAINING, HELD_OUT = "train", "t10k"
GZIP_MAGIC = b"\x1f\x8b"


class Header(NamedTuple):
    """Fields after the magic number; rows and columns are 1 for labels."""

    entries: int
    rows: int = 1
    columns: int = 1


def load(folder: Path) -> tuple[Digits, Digits]:
    """Return the training and the held-out part of a folder with MNIST's four files, each as it is or with ".gz".

    Raises UsageError, in one line, for a file that is missing, malformed, or does not fit its partner.
    """
    if not folder.is_dir():
        raise UsageError(f"--data takes a folder with MNIST's files, and {folder} is none")
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
            f"{images_path.name} has {len(images)} images and {labels_path.name} {len(labels)} labels"
        )
    if int(labels.max()) >= CLASSES:
        place = int((labels >= CLASSES).argmax())
        raise UsageError(
            f"{labels_path}: label {labels[place]} of image {place}; labels go from 0 to {CLASSES - 1}"
        )
    return Digits(images, labels.astype(np.int64))


def _found(folder: Path, stem: str, kind: str) -> Path:
    """Return the path of a file under one of its possible names."""
    for name in (f"{stem}-{kind}", f"{stem}.{kind}"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise UsageError(
        f"{folder} has no {stem}-{kind}, with or without .gz (MNIST's four files have to be there)"
    )


def read(path: Path, magic: int) -> Array:
    """The content of one file: uint8, (count, rows, columns) or (count). Raises UsageError for anything else."""
    try:
        with path.open("rb") as file:
            if file.read(2) != GZIP_MAGIC:
                file.seek(0)
                return _content(path, file, magic)
            file.seek(0)
            with gzip.GzipFile(fileobj=file) as packed:
                return _content(path, cast("IO[bytes]", packed), magic)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: the compressed file is damaged or cut short") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _content(path: Path, file: IO[bytes], magic: int) -> Array:
    header = _header(path, file, magic)
    wanted = header.entries * header.rows * header.columns
    if wanted > MOST_BYTES:
        raise UsageError(
            f"{path}: its header claims {wanted / (1 << 20):,.0f} MiB; at most {MOST_BYTES >> 20} MiB are read"
        )
    if not wanted:
        raise UsageError(f"{path}: it is empty: its header says {header.entries} entries")
    content = file.read(wanted)
    if len(content) < wanted:
        raise UsageError(f"{path}: cut short: {len(content)} bytes after the header, and it says {wanted}")
    if file.read(1):
        raise UsageError(f"{path}: more bytes follow than the {wanted} that its header says")
    shape = header if magic == IMAGES_MAGIC else header[:1]
    return np.frombuffer(content, np.uint8).reshape(shape)


def _header(path: Path, file: IO[bytes], magic: int) -> Header:
    what = "images" if magic == IMAGES_MAGIC else "labels"
    words = struct.Struct(">4I" if magic == IMAGES_MAGIC else ">2I")
    start = file.read(words.size)
    if len(start) < words.size:
        raise UsageError(f"{path}: no IDX file: {len(start)} bytes, fewer than the header of {what} has")
    found, *sizes = words.unpack(start)
    if found != magic:
        raise UsageError(f"{path}: no IDX file of {what}: it begins with {found}, not with {magic}")
    return Header(*sizes)
