"""Inputs keep the numbers that torch drew for them, and the protocol's types their sizes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from grader.base.arrays import array_bytes, as_array, item_bytes, np
from grader.judge.draws import Draws
from grader.run.calls import DTYPE_NAMES
from labs.attention.cases import make_inputs


@pytest.mark.parametrize("seed", [0, 1, 149, 2**32 - 1, 2**40 + 17, 2**60 - 1])
def test_draws_are_torchs(seed: int) -> None:
    ours, theirs = Draws(seed), torch.Generator().manual_seed(seed)
    for size in ((3,), (2, 5, 7), (1000,), (0,)):
        assert np.array_equal(ours.uniform(size), torch.rand(size, generator=theirs).numpy())
        assert np.array_equal(ours.permutation(size[0]), torch.randperm(size[0], generator=theirs).numpy())
        assert np.array_equal(ours.below(11, size), torch.randint(0, 11, size, generator=theirs).numpy())
    scaled = torch.rand(1000, generator=theirs).mul_(2 * 1.3).sub_(1.3)
    assert np.array_equal(ours.uniform((1000,), -1.3, 1.3), scaled.numpy())
    # Only some of a permutation: the rest of the stream stays where it is.
    assert np.array_equal(ours.permutation(97, 5), torch.randperm(97, generator=theirs)[:5].numpy())
    assert np.array_equal(ours.words(4) & 0xFFFFFF, torch.rand(4, generator=theirs).numpy() * 2**24)


def test_random_inputs_are_those_of_version_1() -> None:
    """As torch made them, where nothing is rescaled: for a seed that is printed in a result of then."""
    d, generator = 32, torch.Generator().manual_seed(7)

    def uniform(bound: float, rows: int = 1024) -> torch.Tensor:
        return torch.rand((1, 4, rows, d), generator=generator).mul_(2.0 * bound).sub_(bound)

    bound = (3.0 * 3.3 / d**0.5) ** 0.5
    wanted = {"Q": uniform(bound), "K": uniform(bound), "V": uniform(1.0) + uniform(0.5, rows=1)}
    made = make_inputs("random", {"B": 1, "H": 4, "N": 1024, "d": d}, 7)
    for name, value in wanted.items():
        assert np.array_equal(made[name], value.numpy()), name


def test_the_types_of_the_protocol() -> None:
    for code, name in DTYPE_NAMES.items():
        assert item_bytes(name) == getattr(torch, name).itemsize, code
    assert item_bytes("type 99") is None
    assert as_array(bytearray(8), "bfloat16", (4,)) is None
    payload = bytearray(np.arange(5, dtype=np.int16).tobytes())
    read = as_array(payload, "int16", (2, 2), 2)
    assert read is not None and read.tolist() == [[1, 2], [3, 4]]
    assert bytes(array_bytes(read)) == payload[2:]
    assert bytes(array_bytes(np.array(7, np.uint8))) == b"\x07" and not array_bytes(np.zeros((3, 0)))


def test_numpys_blas_starts_no_threads_and_leaves_the_environment() -> None:
    program = (
        "import os, sys\nbefore = dict(os.environ)\nfrom grader.base.arrays import np\n"
        "a = np.ones((700, 700)); a @ a\n"
        "assert dict(os.environ) == before\n"
        "assert not os.path.isdir('/proc/self/task') or len(os.listdir('/proc/self/task')) == 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MKL_NUM_THREADS": "2"}
    environment.pop("OMP_NUM_THREADS", None)
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
