"""Inputs and outputs in memory shared by judge and runner: results as through pipes, and no way to cheat."""

import fcntl
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from unittest.mock import Mock

import pytest
from building import HEAD, binding
from native_programs import asked, plain, program

from grader.backends.native.nativehost import NativeHost
from grader.core import procfs
from grader.core.arrays import np
from grader.runner.calls import Request
from grader.runner.payloads import IN_MEMORY, LARGEST_BYTES, Payloads
from grader.runner.session import Session
from grader.sandbox import Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create is a call of Linux alone")

#: `forges` answers by itself, without a payload, and never lets its runner answer.
FUNCTIONS = (
    HEAD
    + r"""
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
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
    made = program(tmp_path_factory.mktemp("functions"), FUNCTIONS)
    with NativeHost() as host:
        yield partial(host.spawn, made, threads=1)


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each call's payload whether it went through memory."""
    seen: list[bool] = []
    put = Payloads.put

    def recorded(memory: Payloads, inputs: list[memoryview]) -> bool:
        done = put(memory, inputs)
        # A request without inputs only asks for the inputs of the last call as they are now.
        seen.extend([done] if inputs else [])
        return done

    monkeypatch.setattr(Payloads, "put", recorded)
    return seen


@freezing
def test_same_as_pipes(spawn: Spawn, puts: list[bool], monkeypatch: pytest.MonkeyPatch, freeze: bool) -> None:
    columns = [{"input": 0}, {"column": 0}, {"value": 2}]
    tensor, rows = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([[0.0], [2.0], [2.0]])
    table = Request("element", columns, [tensor, rows], (3,), op="table")
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
    # A dead runner is sent nothing, and without memory nothing goes through it.
    assert puts == [True] * (len(requests) - 1)
    assert answers[0] == answers[1]
    assert answers[1][2].output is not None and answers[1][3].changed_inputs == (0,)
    assert answers[1][5].output[0] == [1.0, 5.0, 6.0] and answers[1][5].changed_inputs == (0,)
    assert [call.status for call in answers[1][6:]] == ["exception", "ok"] * 2 + ["crash"] * 2


def test_payloads_that_do_not_fit_go_through_pipes(spawn: Spawn, puts: list[bool]) -> None:
    """The memory has room for the allowed answer, up to the limit on files."""
    with spawn(limits=Limits(file_bytes=4 << 20)) as session:
        calls = [session.call(each, echo_inputs=True) for each in (asked("twice"), LARGE, asked("twice"))]
    with spawn(limits=Limits(file_bytes=1 << 20)) as session:
        calls.append(session.call(asked("twice")))
    assert puts == [True, True]
    assert [call.output.tolist()[:4] for call in calls] == [TWICE] * 4
    assert all(call.output.flags.writeable for call in calls)
    assert calls[1].output[-1] == 2 << 19 and not calls[1].changed_inputs


def test_without_memory_to_be_had_there_are_pipes(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
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


def states(pid: int) -> set[str]:
    threads = procfs.threads(pid, procfs.Excess())
    stats = (procfs.text(f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@freezing
def test_it_stands_while_inputs_are_put(spawn: Spawn, monkeypatch: pytest.MonkeyPatch, freeze: bool) -> None:
    """Before the clock starts, every thread must be stopped, also one that never waits."""
    put, seen = Payloads.put, set()
    with spawn(freeze=freeze) as session:
        session.call(asked("scribbles"))
        # On a busy machine, a runner may not be seen to stand after a call: then its clock runs meanwhile.
        calls = 0
        while freeze and not session._stands and calls < 500:
            session.call(asked("twice"))
            calls += 1

        def noted(memory: Payloads, inputs: list[memoryview]) -> bool:
            started = time.monotonic()
            while time.monotonic() - started < (0.05 if freeze or "R" in seen else 30):
                seen.update(states(session.pid))
            return put(memory, inputs)

        monkeypatch.setattr(Payloads, "put", noted)
        call = session.call(asked("twice"))
    assert call.status == "ok"
    assert seen == {"T"} if freeze else ("R" in seen and call.wall_s > 0.05)


@freezing
def test_what_is_written_after_the_answer_is_not_seen(spawn: Spawn, freeze: bool) -> None:
    with spawn(freeze=freeze) as session:
        requests = (asked(name, shape=(1 << 16,), output=(1 << 16,)) for name in ("scribbles", "in_place"))
        outputs = [session.call(request).output for request in requests]
        before = [output.tobytes() for output in outputs]
        time.sleep(0.02)
        assert [output.tobytes() for output in outputs] == before


def test_the_memory_can_be_filled_and_nothing_else(spawn: Spawn) -> None:
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
    # All is overwritten, first by the inputs and then by zeros.
    for elements, left in ((4, [1.0, 2.0, 3.0, 4.0]), (1, [1.0, 0.0, 0.0, 0.0])):
        with spawn() as session:
            assert session.call(asked("twice"), echo_inputs=True).output.tolist() == TWICE
            call = session.call(asked("forges", 0, 16, shape=(elements,)))
        assert call.output.tolist() == left


def test_each_runner_has_memory_of_its_own(spawn: Spawn) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with spawn() as one, spawn() as other:
        assert len({os.stat(f"/proc/{pid}/fd/5").st_ino for pid in (one.pid, other.pid)}) == 2
        for session in (one, other):
            assert sorted(os.listdir(f"/proc/{session.pid}/fd")) == list("012345"), "one holds the other's"
    assert set(os.listdir("/proc/self/fd")) <= before


def test_memory_keeps_its_size_and_stays_writable() -> None:
    with closing(Payloads.made(8192)) as memory:
        for size in (0, 4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert memory.put([memoryview(struct.pack("4f", 1, 2, 3, 4))])
        answer = bytearray(16)
        assert memory.take(answer) and struct.unpack("4f", answer) == (1, 2, 3, 4)
        assert not memory.take(bytearray(8193)) and not memory.put([memoryview(bytes(8193))])
