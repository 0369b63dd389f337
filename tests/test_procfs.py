"""Reading /proc of an untrusted process: within limits, and with the unnamed files that it holds."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from building import built

from grader.backends.torch import forkserver
from grader.core import procfs
from grader.integrity import flags as integrity
from grader.runner import placement
from grader.runner.session import cpu_clock_s
from grader.runner.watch import Evidence, Watch
from grader.sandbox.leftovers import Scratch, nameless_files
from grader.sandbox.limits import Limits
from grader.staff.classroom.executor import Failed, Job, LocalExecutor
from grader.staff.classroom.worker import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

#: Maps a file with a path of 5000 characters, a given number of times with and without code, and waits.
MAPS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
for _ in range(20):
    os.mkdir("m" * 250)
    os.chdir("m" * 250)
fd = os.open("code.so", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
for k in range(int(sys.argv[1])):
    assert libc.mmap(None, 4096, 1 + 4 * (k % 2), 2, fd, 4096 * (k % 2)) not in (None, 1 << 64 - 1)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def ready(program: str, folder: Path, *arguments: str) -> Iterator[int]:
    """Start a program that prints "ready" and then waits. Yield its process ID, and kill it in the end."""
    command = [sys.executable, "-c", program, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads of `grader.core.procfs` by the test's own thread."""
    sizes: list[int] = []
    real, own = os.read, threading.get_ident()

    def counting(descriptor: int, most: int) -> bytes:
        piece = real(descriptor, most)
        sizes.extend([len(piece)] * (threading.get_ident() == own))
        return piece

    monkeypatch.setattr(procfs.os, "read", counting)
    return sizes


def seen_of(pid: int) -> Evidence:
    watch = Watch(pid, None, cpu_clock_s, ())
    watch.ending()
    return watch.evidence


@pytest.mark.parametrize("count", [3000, 8])
def test_long_paths_are_read_up_to_a_limit(count: int, tmp_path: Path, read_bytes: list[int]) -> None:
    with ready(MAPS, tmp_path, str(count)) as pid:
        evidence = seen_of(pid)
    flags = [(flag.code, flag.level) for flag in integrity.evidence_flags(evidence, built(None))]
    if count == 3000:
        assert procfs.MOST_BYTES // 2 < sum(read_bytes) < procfs.MOST_BYTES + (64 << 10)
        assert "maps" in evidence.unseen and ("hides_from_view", "review") in flags
    else:
        # Longer than any path that a system call takes, and shown to its end.
        assert evidence.unseen == "" and any(path.endswith("m/code.so") for path in evidence.new_code)
        assert "hides_from_view" not in dict(flags)


def test_lines_are_cut_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "maps"
    listing.write_bytes(b"one\n\n" + b"x" * 5000 + b"\nlast")
    for piece_bytes in (1, 7, 4096, 1 << 20):
        monkeypatch.setattr(procfs, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(procfs, "LONGEST_LINE", 100)
        excess = procfs.Excess()
        assert list(procfs.lines(str(listing), excess)) == ["one", "", "x" * 100, "last"]
        assert excess.what == ""
        assert list(procfs.lines(str(listing), excess, 3)) == ["one"]
        assert "maps" in excess.what


def test_of_very_many_threads_the_first_ones_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "MOST_THREADS", 5)
    ended = threading.Event()
    with ThreadPoolExecutor(10) as pool, ExitStack() as stack:
        stack.callback(ended.set)
        for _ in range(10):
            pool.submit(ended.wait)
        excess = procfs.Excess()
        assert len(procfs.threads(os.getpid(), excess)) == 5
        assert excess.what == "more than 5 threads"
        assert seen_of(os.getpid()).unseen == "more than 5 threads"
        assert placement._thread_times_s(os.getpid()) == {}


def test_the_nursery_takes_a_list_of_children_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    others = forkserver.children(os.getpid())  # of earlier tests, which nobody has waited for
    with ExitStack() as stack:
        started = []
        for _ in range(6):
            started.append(stack.enter_context(subprocess.Popen(["sleep", "60"])).pid)
            stack.callback(os.kill, started[-1], signal.SIGKILL)
        monkeypatch.setattr(forkserver, "LISTING_BYTES", 20)
        found = forkserver.children(os.getpid())
        # A number that the limit cuts in two would be another process's.
        assert 0 < len(found) < 6 and set(found) <= {*others, *started}
        monkeypatch.setattr(forkserver, "MOST_AT_ONCE", 2)
        assert forkserver.descendants(started[:2]) == started[:2]


GROWING = """
import sys, time
sys.stdin.readline()
print('{"ready": 1}', flush=True)
sys.stdin.readline()
held = bytearray(300 << 20)
held[::4096] = b"x" * len(held[::4096])
time.sleep(600)
"""


def test_a_worker_that_grows_beyond_its_bound_is_ended(tmp_path: Path) -> None:
    settings, limits = Settings("", "", 0, True, {}, ""), {"silence_s": {"": 300.0}, "most_bytes": 200 << 20}
    command = (sys.executable, "-c", GROWING)
    with closing(LocalExecutor(settings, tmp_path, workers=1, command=command, **limits)) as executor:  # type: ignore[arg-type]
        executor.submit(Job("ada", tmp_path / "module.cpp"))
        happenings = [happening for happening in executor.results() if happening is not None]
    died = "the worker that graded it died (it needed more than 200 MiB of memory)"
    assert happenings == [Failed("ada", died, True)]


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


@pytest.mark.parametrize(("statements", "nameless_bytes"), WAYS.values(), ids=WAYS)
def test_files_without_a_name_are_counted_once(statements: str, nameless_bytes: int, tmp_path: Path) -> None:
    program = f"SIZE = {SIZE}\n{PREPARE}\n{statements}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    with ready(program, tmp_path) as pid:
        assert sum(nameless_files(pid).values()) == nameless_bytes
        excess = Scratch(tmp_path, Limits(scratch_bytes=SIZE // 2), pid).excess()
        assert ("files that it deleted" in excess) == (nameless_bytes > 0)
        assert Scratch(tmp_path, Limits(), pid).excess() == ""
