"""What networks of the lab `operators` learn from: drawn digits, and files in MNIST's format with their mistakes."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import refused

from grader.base.arrays import Array, np
from labs.operators.train import digits, idx


def test_a_seed_draws_its_balanced_digits_and_no_other_seed_does() -> None:
    drawn, again, other = (digits.draw(1203, seed) for seed in (3, 3, 8))  # over a block, no multiple of ten
    assert drawn.images.shape == (1203, 28, 28)
    assert drawn.images.dtype == np.uint8 and drawn.labels.dtype == np.int64
    assert np.array_equal(drawn.images, again.images) and np.array_equal(drawn.labels, again.labels)
    assert not np.array_equal(drawn.images, other.images)
    counts = np.bincount(drawn.labels, minlength=10)
    assert counts.max() - counts.min() <= 1 and counts.sum() == 1203
    assert len({image.tobytes() for image in drawn.images}) == 1203
    ink = drawn.images.reshape(1203, -1)
    assert (ink.max(1) > 128).mean() > 0.99 and (ink < 64).mean() > 0.6


def test_digits_can_be_learned_but_not_by_their_means_alone() -> None:
    """Ridge regression onto the ten digits reads most of them; the nearest mean image, many fewer."""
    train, held = digits.draw(2500, 1), digits.draw(600, 2)
    x, y = (each.images.reshape(len(each), -1) / 255.0 for each in (train, held))
    centre = x.mean(0)
    centred = x - centre
    wanted = np.eye(10)[train.labels] - 0.1
    weights = np.linalg.solve(centred.T @ centred + 30 * np.eye(784), centred.T @ wanted)
    linear = (((y - centre) @ weights).argmax(1) == held.labels).mean()
    means = np.stack([x[train.labels == digit].mean(0) for digit in range(10)])
    nearest = ((y**2).sum(1)[:, None] - 2 * y @ means.T + (means**2).sum(1)).argmin(1)
    assert linear > 0.8
    assert 0.4 < (nearest == held.labels).mean() < 0.9


def idx_bytes(array: Array) -> bytes:
    magic = {3: idx.IMAGES_MAGIC, 1: idx.LABELS_MAGIC}[array.ndim]
    return struct.pack(f">I{array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PACKED = "t10k-images-idx3-ubyte.gz"
Spoil = Callable[[bytes], bytes | None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve training images and four held out, one file compressed and one under MNIST's other name."""
    drawn = digits.draw(16, 1)
    (tmp_path / IMAGES).write_bytes(idx_bytes(drawn.images[:12]))
    (tmp_path / LABELS).write_bytes(idx_bytes(drawn.labels[:12]))
    (tmp_path / PACKED).write_bytes(gzip.compress(idx_bytes(drawn.images[12:])))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx_bytes(drawn.labels[12:]))
    return tmp_path


def test_files_come_back_as_they_were_written(folder: Path) -> None:
    drawn = digits.draw(16, 1)
    training, held = idx.load(folder)
    assert np.array_equal(np.concatenate([training.images, held.images]), drawn.images)
    assert np.array_equal(held.labels, drawn.labels[12:]) and held.labels.dtype == np.int64


HUGE = struct.pack(">4I", 2051, 1 << 31, 28, 28)


@pytest.mark.parametrize(
    ("name", "spoil", "told"),
    [
        (IMAGES, lambda data: data[:-5], "cut short: 9403 bytes after the header, and it says 9408"),
        *((IMAGES, lambda data, n=n: data[:n], "fewer than the header") for n in (9, 0)),
        (IMAGES, lambda data: b"\0\0\x08\x01" + data[4:], "begins with 2049, not with 2051"),
        (LABELS, lambda data: b"%PDF" + data[4:], "no IDX file of labels"),
        (IMAGES, lambda data: HUGE + data[16:], "its header claims 1,605,632 MiB"),
        (IMAGES, lambda data: data + b"\0", "more bytes follow"),
        (IMAGES, lambda data: struct.pack(">4I", 2051, 12, 14, 56) + data[16:], "images of 14 x 56 pixels"),
        (IMAGES, lambda data: struct.pack(">4I", 2051, 0, 28, 28), "it is empty"),
        (LABELS, lambda data: struct.pack(">2I", 2049, 11) + data[8:-1], f"has 12 images and {LABELS} 11"),
        (LABELS, lambda data: data[:-1] + b"\x0a", "label 10 of image 11"),
        (LABELS, lambda data: None, "has no train-labels-idx1-ubyte"),
        (PACKED, lambda data: data[:-5], "damaged or cut short"),
        (PACKED, lambda data: data[:30] + bytes(20) + data[50:], "damaged or cut short"),
        # Honest sizes in the header, and then a thousand times as many bytes.
        (PACKED, lambda data: gzip.compress(gzip.decompress(data) + bytes(4 << 20)), "more bytes follow"),
        (PACKED, lambda data: gzip.compress(b"no images"), "fewer than the header"),
    ],
)
def test_a_spoiled_file_is_told_in_one_line(folder: Path, name: str, spoil: Spoil, told: str) -> None:
    path = folder / name
    spoiled = spoil(path.read_bytes())
    path.unlink() if spoiled is None else path.write_bytes(spoiled)
    refused(told, idx.load, folder)


def test_a_folder_that_is_none_or_empty_is_told(tmp_path: Path) -> None:
    refused("has no train-images-idx3-ubyte, with or without", idx.load, tmp_path)
    refused("takes a folder", idx.load, tmp_path / "nowhere")
    (tmp_path / "train-images-idx3-ubyte").mkdir()
    refused("has no train-images", idx.load, tmp_path)
