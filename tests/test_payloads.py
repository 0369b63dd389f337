"""Inputs and outputs in memory that judge and runner hold open: results as through pipes, and nothing to gain."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from building import HEAD
from native_programs import program

from grader.base import procfs
from grader.base.arrays import np
from grader.run.calls import Call, Request
from grader.run.nativehost import NativeHost
from grader.run.payloads import IN_MEMORY, LARGEST_BYTES, Payloads
from grader.run.session import Session
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
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("twice", &twice); m.def("in_place", &in_place); m.def("large", &large); m.def("throws", &throws);
  m.def("wild", &wild); m.def("element", &element); m.def("scribbles", &scribbles); m.def("fills", &fills);
  m.def("closes", &closes); m.def("forges", &forges);
}
"""
)
#: What is measured of a call.
MEASURED = {"wall_s": 0.0, "cpu_s": None, "peak_bytes": None}


@pytest.fixture(scope="module")
def host() -> Iterator[NativeHost]:
    with NativeHost() as started:
        yield started


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program(tmp_path_factory.mktemp("functions"), FUNCTIONS)


def asked(function: str, *values: int, elements: int = 4, output: tuple[int, ...] = (4,)) -> Request:
    arguments = [{"input": 0}, *({"value": value} for value in values)]
    return Request(function, arguments, [np.arange(1, elements + 1, dtype=np.float32)], output)


def plain(call: Call) -> Call:
    return replace(
        call,
        **MEASURED,
        output=None if call.output is None else (call.output.tolist(), call.output.flags.writeable),
        echoes=tuple(echo.tolist() for echo in call.echoes),
    )


@contextlib.contextmanager
def puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Which payloads went through memory."""
    seen: list[bool] = []
    put = Payloads.put

    def noted(memory: Payloads, inputs: list[memoryview]) -> bool:
        seen.append(put(memory, inputs))
        return seen[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Payloads, "put", noted)
        yield seen


@pytest.mark.parametrize("freeze", [True, False])
def test_answers_are_those_that_come_through_pipes(
    host: NativeHost, functions: Path, monkeypatch: pytest.MonkeyPatch, freeze: bool
) -> None:
    columns = [{"input": 0}, {"column": 0}, {"value": 2}]
    tensor, rows = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([[0.0], [2.0], [2.0]])
    requests = [
        asked("twice"),
        asked("twice"),
        asked("twice", elements=1 << 19, output=(1 << 19,)),
        asked("in_place"),
        asked("large"),
        Request("element", columns, [tensor, rows], (3,), op="table"),
        asked("throws"),
        Request("twice", [{"input": 0}], [np.zeros((0, 3), np.float32)], (0, 3)),
        asked("no such function"),
        asked("twice"),
        asked("wild"),
        asked("twice"),
    ]
    answers = []
    for has_memory in (False, True):
        with monkeypatch.context() as patched, puts(monkeypatch) as seen:
            if not has_memory:
                patched.setattr(Payloads, "made", lambda _: None)
            with host.spawn(functions, threads=1, freeze=freeze) as session:
                answers.append([plain(session.call(request, echo_inputs=True)) for request in requests])
        # Who is dead is sent nothing.
        assert seen == [True] * (len(requests) - 1 if has_memory else 0)
    assert answers[0] == answers[1]
    assert answers[1][2].output is not None and answers[1][3].changed_inputs == (0,)
    assert answers[1][5].output == ([1.0, 5.0, 6.0], True) and answers[1][5].changed_inputs == (0,)
    assert [call.status for call in answers[1][6:]] == [
        "exception",
        "ok",
        "exception",
        "ok",
        "crash",
        "crash",
    ]


def test_what_does_not_fit_goes_through_pipes(
    host: NativeHost, functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for the answer that is allowed, in memory no larger than a file may be."""
    small, large = asked("twice"), asked("twice", elements=1 << 19, output=(1 << 19,))
    with puts(monkeypatch) as seen:
        with host.spawn(functions, threads=1, limits=Limits(file_bytes=4 << 20)) as session:
            calls = [session.call(each, echo_inputs=True) for each in (small, large, small)]
        assert seen == [True, True]
        with host.spawn(functions, threads=1, limits=Limits(file_bytes=1 << 20)) as session:
            calls.append(session.call(small))
        assert seen == [True, True]
    assert [call.output.tolist()[:4] for call in calls] == [[2.0, 4.0, 6.0, 8.0]] * 4
    assert calls[1].output[-1] == 2 << 19 and not calls[1].changed_inputs


def test_without_memory_to_be_had_there_are_pipes(
    host: NativeHost, functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> int:
        raise OSError("no memory")

    with host.spawn(functions, threads=1) as session:
        monkeypatch.setattr(os, "pwritev", none)
        assert session.call(asked("twice")).output.tolist() == [2.0, 4.0, 6.0, 8.0]
        monkeypatch.undo()
        assert session.call(asked("twice")).output.tolist() == [2.0, 4.0, 6.0, 8.0]
    monkeypatch.setattr(os, "memfd_create", none)
    assert Payloads.made() is None
    with host.spawn(functions, threads=1) as session:
        assert session.call(asked("twice")).output.tolist() == [2.0, 4.0, 6.0, 8.0]


def states(pid: int) -> set[str]:
    threads = procfs.threads(pid, procfs.Excess())
    return {
        procfs.text(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()[0] for thread in threads
    }


def test_inputs_are_written_while_the_runner_stands_or_the_clock_runs(
    host: NativeHost, functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long before the clock must find every thread stopped, also one that wants to work on."""
    put, seen = Payloads.put, []
    for freeze in (True, False):
        with host.spawn(functions, threads=1, freeze=freeze) as session:
            session.call(asked("scribbles"))

            def noted(memory: Payloads, inputs: list[memoryview], session: Session = session) -> bool:
                seen.append(states(session.pid))
                time.sleep(0.05)
                return put(memory, inputs)

            monkeypatch.setattr(Payloads, "put", noted)
            call = session.call(asked("twice"))
            monkeypatch.undo()
        assert call.status == "ok"
        assert seen[-1] == {"T"} if freeze else "R" in seen[-1] and call.wall_s > 0.05


# ---- runners that want to gain something by it


def test_what_is_written_after_the_answer_is_not_seen(host: NativeHost, functions: Path) -> None:
    for freeze in (True, False):
        with host.spawn(functions, threads=1, freeze=freeze) as session:
            outputs = [session.call(asked("scribbles", elements=1 << 16, output=(1 << 16,))).output]
            outputs.append(session.call(asked("in_place", elements=1 << 16, output=(1 << 16,))).output)
            before = [output.tobytes() for output in outputs]
            time.sleep(0.02)
            assert [output.tobytes() for output in outputs] == before


def test_the_memory_can_be_filled_and_nothing_else(host: NativeHost, functions: Path) -> None:
    with host.spawn(functions, threads=1) as session:
        assert session.call(asked("fills", output=(1,))).output.tolist() == [LARGEST_BYTES >> 20]
        assert session.call(asked("twice")).output.tolist() == [2.0, 4.0, 6.0, 8.0]
    with host.spawn(functions, threads=1) as session:
        assert (session.call(asked("closes")).status, session.call(asked("twice")).status) == (
            "crash",
            "crash",
        )


@pytest.mark.parametrize("claimed", [LARGEST_BYTES + 1, IN_MEMORY >> 1, (1 << 20) + 17])
def test_a_length_beyond_what_was_asked_for_is_nonsense(
    host: NativeHost, functions: Path, claimed: int
) -> None:
    """Also one that the memory has room for."""
    with host.spawn(functions, threads=1) as session:
        call = session.call(asked("forges", claimed >> 32, claimed & 0x7FFFFFFF))
    assert (call.status, call.message) == ("protocol", "reply frame")


def test_an_answer_that_was_not_written_is_no_former_one(host: NativeHost, functions: Path) -> None:
    """All is overwritten, first by the inputs and then by zeros."""
    for elements, left in ((4, [1.0, 2.0, 3.0, 4.0]), (1, [1.0, 0.0, 0.0, 0.0])):
        with host.spawn(functions, threads=1) as session:
            assert session.call(asked("twice"), echo_inputs=True).output.tolist() == [2.0, 4.0, 6.0, 8.0]
            call = session.call(asked("forges", 0, 16, elements=elements))
        assert call.output.tolist() == left


def test_each_runner_has_memory_of_its_own(host: NativeHost, functions: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with host.spawn(functions, threads=1) as one, host.spawn(functions, threads=1) as other:
        files = [os.stat(f"/proc/{pid}/fd/5").st_ino for pid in (one.pid, other.pid)]
        assert files[0] != files[1]
        # Neither holds that of the other.
        for session in (one, other):
            assert sorted(os.listdir(f"/proc/{session.pid}/fd")) == list("012345")
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_keeps_its_size_and_stays_writable() -> None:
    import fcntl

    memory = Payloads.made(8192)
    assert memory is not None
    try:
        for size in (0, 4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert memory.put([memoryview(struct.pack("4f", 1, 2, 3, 4))])
        answer = bytearray(16)
        assert memory.take(answer) and struct.unpack("4f", answer) == (1, 2, 3, 4)
        assert not memory.take(bytearray(8193)) and not memory.put([memoryview(bytes(8193))])
    finally:
        memory.close()
