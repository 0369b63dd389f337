"""The native runner and the master's kernels on another processor: compiled for 64-bit Arm, run by an emulator, judged
by the oracle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from grader.assignment.loading import load
from grader.judge import binding
from grader.judge.comparison import compare
from grader.study.standalone import ran
from labs.attention.oracle import ORACLES

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SHAPE = {"B": 2, "H": 3, "N": 97, "d": 33, "threads": 3}
missing = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"not installed: {' '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = Path(__file__).with_name("aarch64_build.py")
    environment = {
        **os.environ,
        "CXX": COMPILER,
        "PYTHONPATH": str(ROOT),
        "GPT149_CACHE": str(tmp_path_factory.mktemp("cache")),
    }
    done = subprocess.run(
        [sys.executable, str(script), str(ROOT / "module.cpp")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.parametrize("name", ["part1", "part2", "part3", "part4"])
def test_kernels_are_right_on_another_processor(program: Path, name: str) -> None:
    assignment = load(ROOT / "configs" / "gpt149.yaml")
    part, shape = assignment.part(name), {**assignment.defaults, **SHAPE}
    inputs = assignment.typical_inputs(part, shape, 5)
    request = binding.request(part, shape, inputs)
    with ran(program, request, prefix=(EMULATOR,), threads=3, memory_bytes=None) as run:
        assert run.call is not None and run.call.status == "ok", run.output
        found = run.call.output
    assert compare(ORACLES["attention"].expected(inputs, shape), found).ok
