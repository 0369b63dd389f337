"""Shared memory of judge and runner, and reading /proc of an untrusted process: limits hold, and cheats fail."""

import fcntl
import itertools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from building import asked, binding, built, includes, plain, program
from classes.acting_class import holding
from conftest import Patch, refused

from grader.backends.native.nativehost import NativeHost
from grader.backends.torch import forkserver
from grader.core import procfs
from grader.core.arrays import np
from grader.integrity import flags as integrity
from grader.runner import placement, watch
from grader.runner.calls import Request
from grader.runner.frames import IN_MEMORY, LARGEST_BYTES, Payloads
from grader.runner.session import Session, cpu_clock_s
from grader.sandbox import Limits, leftovers
from grader.staff.classroom.executor import Failed, Job, LocalExecutor
from grader.staff.classroom.worker import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfd_create and /proc")

#: C++ functions. `forges` writes a forged reply without a payload to the pipe, and prevents the runner's own reply.
FUNCTIONS = (
    includes("cstdint stdexcept string thread unistd.h")
    + r"""
torch::Tensor twice(torch::Tensor t) {
  torch::Tensor made = torch::zeros(t.sizes());
  for (int64_t k = 0; k < t.numel(); k++) made.data_ptr<float>()[k] = 2 * t.data_ptr<float>()[k];
  return made;
}
torch::Tensor in_place(torch::Tensor t) { t.data_ptr<float>()[0] = -1; return t; }
torch::Tensor large(torch::Tensor t) { return torch::zeros({1 << 20}); }
torch::Tensor throws(torch::Tensor t) { throw std::runtime_error("no"); }
torch::Tensor wild(torch::Tensor t) { return torch::from_blob((void *)4096, {4}); }
float element(std::vector<float> &tensor, int x, int size) { return tensor[x * size] += 1; }
torch::Tensor scribbles(torch::Tensor t) {
  std::thread([] {
    std::vector<float> other(1 << 16, 666);
    for (;;) if (pwrite(5, other.data(), 4 * other.size(), 0) < 0) return;
  }).detach();
  return t;
}
torch::Tensor fills(torch::Tensor t) {
  std::vector<char> other(1 << 20, 1);
  int64_t mib = 0;
  while (pwrite(5, other.data(), other.size(), mib << 20) == (1 << 20)) mib++;
  return torch::full({1}, (float)mib);
}
torch::Tensor closes(torch::Tensor t) { close(5); return t; }
torch::Tensor forges(torch::Tensor t, int64_t high, int64_t low) {
  std::string said = "{\"status\": \"ok\", \"kind\": 2, \"dtype\": 6, \"shape\": [4]}";
  uint32_t length = said.size();
  uint64_t bytes = (uint64_t)high << 32 | (uint64_t)low;
  std::string frame((char *)&length, 4);
  frame.append((char *)&bytes, 8);
  frame += said;
  if (write(4, frame.data(), frame.size()) < 0) return t;
  for (;;) pause();
}
"""
    + binding("twice in_place large throws wild element scribbles fills closes forges")
)
TWICE = [2.0, 4.0, 6.0, 8.0]
LARGE = asked("twice", shape=(1 << 19,), output=(1 << 19,))
freezing = pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "running"])
Spawn = Callable[..., Session]


@pytest.fixture(scope="module")
def spawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawn]:
    with NativeHost() as host:
        yield partial(host.spawn, program(tmp_path_factory.mktemp("functions"), FUNCTIONS), threads=1)


@pytest.fixture
def puts(monkeypatch: Patch) -> list[bool]:
    """Return a list with an entry for each attempt to put a call's inputs into shared memory: True if it succeeded."""
    seen: list[bool] = []
    put = Payloads.put

    def recorded(memory: Payloads, inputs: list[memoryview]) -> bool:
        done = put(memory, inputs)
        # A request without inputs only reads back the inputs of the last call.
        seen.extend([done] if inputs else [])
        return done

    monkeypatch.setattr(Payloads, "put", recorded)
    return seen


@freezing
def test_memory_answers_like_pipes(spawn: Spawn, puts: list[bool], monkeypatch: Patch, freeze: bool) -> None:
    tensor, rows = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([[0.0], [2.0], [2.0]])
    table = Request("element", [{"input": 0}, {"column": 0}, {"value": 2}], [tensor, rows], (3,), op="table")
    empty = Request("twice", [{"input": 0}], [np.zeros((0, 3), np.float32)], (0, 3))
    before, after = ("in_place", "large"), ("no such function", "twice", "wild", "twice")
    requests = [asked("twice"), asked("twice"), LARGE, *map(asked, before), table, asked("throws"), empty]
    requests += map(asked, after)
    answers = []
    for made in (lambda _: None, Payloads.made):
        monkeypatch.setattr(Payloads, "made", made)
        puts.clear()
        with spawn(freeze=freeze) as session:
            answers.append([plain(session.call(request, echo_inputs=True)) for request in requests])
    # Nothing is sent to a dead runner. Without shared memory, data goes through the pipe.
    assert puts == [True] * (len(requests) - 1) and answers[0] == answers[1]
    assert answers[1][2].output is not None and answers[1][3].changed_inputs == (0,)
    assert answers[1][5].output[0] == [1.0, 5.0, 6.0] and answers[1][5].changed_inputs == (0,)
    assert [call.status for call in answers[1][6:]] == ["exception", "ok"] * 2 + ["crash"] * 2


def test_payloads_that_do_not_fit_go_through_pipes(spawn: Spawn, puts: list[bool]) -> None:
    """Inputs and answers go through pipes if shared memory for them would exceed the limit on the size of files."""
    with spawn(limits=Limits(file_bytes=4 << 20)) as session:
        calls = [session.call(each, echo_inputs=True) for each in (asked("twice"), LARGE, asked("twice"))]
    with spawn(limits=Limits(file_bytes=1 << 20)) as session:
        calls.append(session.call(asked("twice")))
    assert puts == [True, True] and [call.output.tolist()[:4] for call in calls] == [TWICE] * 4
    assert all(call.output.flags.writeable for call in calls)
    assert calls[1].output[-1] == 2 << 19 and not calls[1].changed_inputs


def test_without_shared_memory_pipes_are_used(spawn: Spawn, monkeypatch: Patch) -> None:
    none = Mock(side_effect=OSError("no memory"))
    with spawn() as session:
        monkeypatch.setattr(os, "pwritev", none)
        assert session.call(asked("twice")).output.tolist() == TWICE
        monkeypatch.undo()
        assert session.call(asked("twice")).output.tolist() == TWICE
    monkeypatch.setattr(os, "memfd_create", none)
    assert Payloads.made() is None
    with spawn() as session:
        assert session.call(asked("twice")).output.tolist() == TWICE


@freezing
def test_runner_is_stopped_during_writes(spawn: Spawn, monkeypatch: Patch, freeze: bool) -> None:
    """While the judge writes inputs, all threads of the runner are stopped, also a thread that never waits."""
    put, seen = Payloads.put, set()
    with spawn(freeze=freeze) as session:
        session.call(asked("scribbles"))
        # On a busy machine the judge may need several calls to notice that the runner is stopped.
        calls = 0
        while freeze and not session._is_stopped and calls < 500:
            session.call(asked("twice"))
            calls += 1

        def noted(memory: Payloads, inputs: list[memoryview]) -> bool:
            started = time.monotonic()
            while time.monotonic() - started < (0.05 if freeze or "R" in seen else 30):
                threads = procfs.threads(session.pid, procfs.Excess())
                stats = (procfs.text(f"/proc/{session.pid}/task/{tid}/stat") for tid in threads)
                seen.update(stat.rpartition(")")[2].split()[0] for stat in stats)
            return put(memory, inputs)

        monkeypatch.setattr(Payloads, "put", noted)
        call = session.call(asked("twice"))
    assert call.status == "ok"
    assert seen == {"T"} if freeze else ("R" in seen and call.wall_s > 0.05)


@freezing
def test_writes_after_the_answer_do_not_change_it(spawn: Spawn, freeze: bool) -> None:
    with spawn(freeze=freeze) as session:
        requests = (asked(name, shape=(1 << 16,), output=(1 << 16,)) for name in ("scribbles", "in_place"))
        outputs = [session.call(request).output for request in requests]
        before = [output.tobytes() for output in outputs]
        time.sleep(0.02)
        assert [output.tobytes() for output in outputs] == before


def test_each_runner_has_its_own_shared_memory_and_can_fill_but_not_unmap_it(spawn: Spawn) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with spawn() as one, spawn() as other:
        assert len({os.stat(f"/proc/{pid}/fd/5").st_ino for pid in (one.pid, other.pid)}) == 2
        for session in (one, other):
            assert sorted(os.listdir(f"/proc/{session.pid}/fd")) == list("012345"), "two memories"
    assert set(os.listdir("/proc/self/fd")) <= before
    with spawn() as session:
        assert session.call(asked("fills", output=(1,))).output.tolist() == [LARGEST_BYTES >> 20]
        assert session.call(asked("twice")).output.tolist() == TWICE
    with spawn() as session:
        assert [session.call(asked(name)).status for name in ("closes", "twice")] == ["crash", "crash"]


def test_a_forged_length_is_refused_and_no_former_answer_is_seen(spawn: Spawn) -> None:
    for claimed in (LARGEST_BYTES + 1, IN_MEMORY >> 1, (1 << 20) + 17):
        with spawn() as session:
            call = session.call(asked("forges", claimed >> 32, claimed & 0x7FFFFFFF))
        assert (call.status, call.message) == ("protocol", "reply frame")
    # The previous answer is overwritten: its beginning by the inputs, the rest by zeros.
    for elements, left in ((4, [1.0, 2.0, 3.0, 4.0]), (1, [1.0, 0.0, 0.0, 0.0])):
        with spawn() as session:
            assert session.call(asked("twice"), echo_inputs=True).output.tolist() == TWICE
            call = session.call(asked("forges", 0, 16, shape=(elements,)))
        assert call.output.tolist() == left


def test_memory_keeps_its_size_and_stays_writable() -> None:
    with closing(Payloads.made(8192)) as memory:
        for size in (0, 4096, 16384):
            refused("", os.ftruncate, memory.fd, size, of=PermissionError)
        refused("", fcntl.fcntl, memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE, of=PermissionError)
        assert memory.put([memoryview(struct.pack("4f", 1, 2, 3, 4))])
        answer = bytearray(16)
        assert memory.take(answer) and struct.unpack("4f", answer) == (1, 2, 3, 4)
        assert not memory.take(bytearray(8193)) and not memory.put([memoryview(bytes(8193))])


#: Program that maps a file, whose path has 5000 characters, a given number of times; every second time as executable.
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
    with holding(program, *arguments, folder=folder) as (process, said):
        assert said == "ready"
        yield process.pid


def seen_of(pid: int) -> watch.Evidence:
    seen = watch.Watch(pid, None, cpu_clock_s, ())
    seen.ending()
    return seen.evidence


@pytest.mark.parametrize("used_s", [0.0, 0.1])
def test_a_runner_without_a_core_gets_more_time_to_stop(used_s: float, monkeypatch: Patch) -> None:
    states, clock = iter("RRRT"), itertools.count(0.0, used_s)
    monkeypatch.setattr(watch, "STOP_WITHIN_S", 0.0)
    monkeypatch.setattr(watch, "_thread_states", lambda *_: [next(states)])
    seen = watch.Watch(os.getpid(), None, lambda _: next(clock), ())
    seen.stopped()
    seen.ending()
    assert (seen.evidence.stops, seen.evidence.unstopped, seen.evidence.late) == (1, used_s > 0, used_s > 0)


@pytest.mark.parametrize("count", [3000, 8])
def test_long_paths_are_read_up_to_a_limit(count: int, tmp_path: Path, monkeypatch: Patch) -> None:
    read_bytes, real, own = list[int](), os.read, threading.get_ident()

    def counting(descriptor: int, most: int) -> bytes:
        piece = real(descriptor, most)
        read_bytes.extend([len(piece)] * (threading.get_ident() == own))
        return piece

    monkeypatch.setattr(procfs.os, "read", counting)
    with ready(MAPS, tmp_path, str(count)) as pid:
        evidence = seen_of(pid)
    flags = [(flag.code, flag.level) for flag in integrity.evidence_flags(evidence, built(None))]
    if count == 3000:
        assert procfs.MOST_BYTES // 2 < sum(read_bytes) < procfs.MOST_BYTES + (64 << 10)
        assert "maps" in evidence.unseen and ("hides_from_view", "review") in flags
    else:
        # Linux lists the whole path of a mapping, even if it is too long for system calls.
        assert evidence.unseen == "" and any(path.endswith("m/code.so") for path in evidence.new_code)
        assert "hides_from_view" not in dict(flags)


def test_lines_are_cut_in_pieces_of_any_size(tmp_path: Path, monkeypatch: Patch) -> None:
    listing = tmp_path / "maps"
    listing.write_bytes(b"one\n\n" + b"x" * 5000 + b"\nlast")
    for piece_bytes in (1, 7, 4096, 1 << 20):
        monkeypatch.setattr(procfs, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(procfs, "LONGEST_LINE", 100)
        excess = procfs.Excess()
        assert list(procfs.lines(str(listing), excess)) == ["one", "", "x" * 100, "last"]
        assert excess.what == "" and list(procfs.lines(str(listing), excess, 3)) == ["one"]
        assert "maps" in excess.what


def test_only_the_first_of_very_many_threads_are_read(monkeypatch: Patch) -> None:
    monkeypatch.setattr(procfs, "MOST_THREADS", 5)
    ended = threading.Event()
    with ThreadPoolExecutor(10) as pool, ExitStack() as stack:
        stack.callback(ended.set)
        for _ in range(10):
            pool.submit(ended.wait)
        excess = procfs.Excess()
        assert len(procfs.threads(os.getpid(), excess)) == 5 and excess.what == "more than 5 threads"
        assert seen_of(os.getpid()).unseen == "more than 5 threads"
        assert placement._thread_times_s(os.getpid()) == {}


def test_the_zygote_reads_a_list_of_children_in_pieces(monkeypatch: Patch) -> None:
    others = forkserver.children(os.getpid())  # zombies from earlier tests, not started here
    with ExitStack() as stack:
        started = []
        for _ in range(6):
            started.append(stack.enter_context(subprocess.Popen(["sleep", "60"])).pid)
            stack.callback(os.kill, started[-1], signal.SIGKILL)
        monkeypatch.setattr(forkserver, "LISTING_BYTES", 20)
        found = forkserver.children(os.getpid())
        # If the limit cuts an id in two, the pieces must not be read as ids of other processes.
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
#: Statements that a process executes, and the bytes that it then holds in deleted or nameless files on disk.
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
        assert sum(leftovers.nameless_files(pid).values()) == nameless_bytes
        excess = leftovers.Scratch(tmp_path, Limits(scratch_bytes=SIZE // 2), pid).excess()
        assert ("files that it deleted" in excess) == (nameless_bytes > 0)
        assert leftovers.Scratch(tmp_path, Limits(), pid).excess() == ""
