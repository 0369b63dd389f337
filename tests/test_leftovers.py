"""Files that a runner keeps without a name count against what it may write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from grader.sandbox.leftovers import Scratch, nameless_files
from grader.sandbox.limits import Limits

SIZE = 1 << 20
PREPARE = """
import mmap, os, sys, threading
def fill(name):
    file = open(name, "w+b")
    file.write(b"x" * SIZE); file.flush()
    return file
"""
#: Statements of a process, and how many bytes of its files have no name.
WAYS = {
    "named": ("kept = fill('a')", 0),
    "deleted": ("kept = fill('a'); os.unlink('a')", SIZE),
    "deleted and open twice": ("kept = fill('a'); os.unlink('a'); also = os.dup(kept.fileno())", SIZE),
    "never named": ("kept = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(kept, b'x' * SIZE)", SIZE),
    "replaced": ("kept = fill('a'); fill('b').close(); os.rename('b', 'a')", SIZE),
    "mapped": ("f = fill('a'); kept = mmap.mmap(f.fileno(), SIZE); f.close(); os.unlink('a')", SIZE),
    "memory": ("kept = mmap.mmap(-1, SIZE); also = os.memfd_create('a'); os.write(also, b'x' * SIZE)", 0),
}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(("statements", "nameless_bytes"), WAYS.values(), ids=WAYS)
def test_files_without_a_name_are_counted_once(statements: str, nameless_bytes: int, tmp_path: Path) -> None:
    program = f"SIZE = {SIZE}\n{PREPARE}\n{statements}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, text=True, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert sum(nameless_files(process.pid).values()) == nameless_bytes
        excess = Scratch(tmp_path, Limits(scratch_bytes=SIZE // 2), process.pid).excess()
        assert ("files without a name" in excess) == (nameless_bytes > 0)
        assert Scratch(tmp_path, Limits(), process.pid).excess() == ""
        process.communicate("")
