"""The filter programs, run by an interpreter of our own for both machines: the kernel here knows only one of them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

import pytest

from grader.sandbox import seccomp
from grader.sandbox.seccomp import (
    ALLOW,
    ERRNO,
    KILL,
    MACHINES,
    compiler_filter,
    native_filter,
    numbers,
    runner_filter,
)

EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
OWN_PID, TOKEN = 4711, 0x0123_4567_89AB_CDEF
CLONE_VM, CLONE_VFORK, NEW_USER = 0x100, 0x4000, 0x10000000
TABLES = (
    seccomp.ALLOWED,
    seccomp.STARTS_PROCESSES,
    seccomp.REACHES_OUT,
    seccomp.REFUSED,
    seccomp.BY_ARGUMENT,
)
#: What only the filter of native runners knows.
NATIVE_TABLES = (seccomp.NATIVE_ALLOWED, seccomp.NATIVE_BY_ARGUMENT, seccomp.NETWORK, seccomp.STARTS_DYNAMIC)
SETOWN, GETFL, TCGETS, TIOCSTI = 8, 3, 0x5401, 0x5412


def verdict(program: seccomp.Filter, machine: str, number: int, *arguments: int) -> int:
    """What the kernel would answer to one call (classic BPF as in the kernel's networking/filter.rst)."""
    code = bytearray(program.program)
    for place in program.pid_places:
        struct.pack_into("=I", code, place, OWN_PID)
    for place, half in zip(program.token_places, (TOKEN & 0xFFFFFFFF, TOKEN >> 32), strict=False):
        struct.pack_into("=I", code, place, half)
    audit = MACHINES[machine].audit if machine in MACHINES else 0x40000003  # i386
    data = struct.pack("=IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator, counter = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * counter)
        counter += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[
            operation
        ]
        counter += if_true if holds else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def call(machine: str, name: str) -> int:
    tables = (numbers(table, MACHINES[machine]) for table in (*TABLES, *NATIVE_TABLES))
    return next(found[name] for found in tables if name in found)


#: What each may do and what not: a call, its arguments, and the kernel's answer.
RUNNER = [
    ("read", (), ALLOW),
    ("futex", (), ALLOW),
    ("execve", (), KILL),
    ("socket", (2, 1, 0), KILL),
    ("socket", (10, 2, 0), KILL),
    ("socket", (1, 1, 0), EPERM),
    ("clone3", (), ENOSYS),
    ("clone", (CLONE_VM | seccomp.CLONE_THREAD,), ALLOW),
    ("clone", (CLONE_VM | CLONE_VFORK,), KILL),
    ("kill", (OWN_PID, 9), ALLOW),
    ("kill", (OWN_PID + 1, 9), KILL),
    ("kill", (0xFFFFFFFF, 9), KILL),
    ("tgkill", (OWN_PID, 5, 6), ALLOW),
    ("tgkill", (1, 1, 9), KILL),
    ("fcntl", (3, GETFL), ALLOW),
    ("fcntl", (3, SETOWN, 1), EPERM),
    ("ioctl", (0, TCGETS), ALLOW),
    ("ioctl", (0, TIOCSTI), EPERM),
    ("prlimit64", (0, 9), ALLOW),
    ("prlimit64", (1, 9), EPERM),
    ("prctl", (15,), ALLOW),
    ("prctl", (1, 0), EPERM),
    ("memfd_create", (), EPERM),
    ("perf_event_open", (), EPERM),
]
AT_EMPTY_PATH, MAP_SHARED, MAP_PRIVATE, ANONYMOUS = 0x1000, 0x1, 0x2, 0x20
NATIVE = [
    ("read", (), ALLOW),
    ("futex", (), ALLOW),
    ("openat", (), EPERM),
    ("getdents64", (), EPERM),
    ("readlinkat", (), EPERM),
    ("unlinkat", (), EPERM),
    ("memfd_create", (), EPERM),
    ("mmap", (0, 4096, 3, MAP_PRIVATE | ANONYMOUS), ALLOW),
    ("mmap", (0, 4096, 3, MAP_PRIVATE, 5), EPERM),
    ("mmap", (0, 4096, 3, MAP_SHARED, 5), EPERM),
    *((name, (fd,), ALLOW if fd == 5 else EPERM) for name in ("pread64", "pwrite64") for fd in range(7)),
    ("ftruncate", (5, 0), EPERM),
    ("execve", (), KILL),
    ("execveat", (5, 0, 0, 0, AT_EMPTY_PATH), KILL),
    ("execveat", (5, 0, 0, 0, AT_EMPTY_PATH, TOKEN), ALLOW),
    ("execveat", (5, 0, 0, 0, AT_EMPTY_PATH, TOKEN & 0xFFFFFFFF), KILL),
    ("execveat", (5, 0, 0, 0, AT_EMPTY_PATH, TOKEN ^ 1), KILL),
    ("socket", (1, 1, 0), KILL),
    ("socketpair", (), KILL),
    ("connect", (), KILL),
    ("clone3", (), ENOSYS),
    ("clone", (CLONE_VM | seccomp.CLONE_THREAD,), ALLOW),
    ("clone", (CLONE_VM | CLONE_VFORK,), KILL),
    ("kill", (OWN_PID, 9), ALLOW),
    ("kill", (OWN_PID + 1, 9), KILL),
    ("tgkill", (OWN_PID, 5, 6), ALLOW),
    ("tgkill", (1, 1, 9), KILL),
    ("timer_create", (1, 0), ALLOW),
    ("timer_create", (1, 0x7F00_0000_0000), EPERM),
    ("timer_create", (1, 0x1000), EPERM),
    ("prlimit64", (0, 9), ALLOW),
    ("prlimit64", (1, 9), EPERM),
    ("prctl", (1, 0), EPERM),
    ("ptrace", (), KILL),
    ("setsid", (), KILL),
]
COMPILER = [
    ("execve", (), ALLOW),
    ("clone", (CLONE_VM | CLONE_VFORK,), ALLOW),
    ("clone", (NEW_USER,), EPERM),
    ("socket", (2, 1, 0), EPERM),
    ("setsid", (), EPERM),
    ("ptrace", (), EPERM),
    ("openat", (), ALLOW),
]


@pytest.mark.parametrize(
    ("built", "name", "arguments", "expected"),
    [(runner_filter, *row) for row in RUNNER]
    + [(native_filter, *row) for row in NATIVE]
    + [(compiler_filter, *row) for row in COMPILER],
)
def test_runner_may_compute_and_compiler_start_its_parts_and_no_more(
    machine: str,
    built: Callable[[str], seccomp.Filter | None],
    name: str,
    arguments: tuple[int, ...],
    expected: int,
) -> None:
    program = built(machine)
    assert program is not None
    assert verdict(program, machine, call(machine, name), *arguments) == expected


def test_other_instruction_sets_and_later_calls_are_no_way_out(machine: str) -> None:
    for program in (runner_filter(machine), native_filter(machine), compiler_filter(machine)):
        assert program is not None
        assert verdict(program, "i386", 11) == KILL  # execve there, munmap on x86-64
        assert verdict(program, machine, 0x40000000 | 59) == KILL  # execve of the x32 set
        assert verdict(program, machine, seccomp.LAST_KNOWN + 1) == ENOSYS


def test_every_call_has_one_verdict(machine: str) -> None:
    listed = [number for table in TABLES for number in numbers(table, MACHINES[machine]).values()]
    assert len(listed) == len(set(listed))
    # A call has the same number in whatever table it stands.
    known = {}
    for table in (*TABLES, *NATIVE_TABLES):
        for name, number in numbers(table, MACHINES[machine]).items():
            assert known.setdefault(name, number) == number, name
    assert len(known) == len(set(known.values()))


def test_a_dynamic_program_may_open_its_libraries_and_no_more(machine: str) -> None:
    program = native_filter(machine, opens_libraries=True)
    assert program is not None
    assert verdict(program, machine, call(machine, "openat")) == ALLOW
    assert verdict(program, machine, call(machine, "mmap"), 0, 4096, 5, MAP_PRIVATE, 3) == ALLOW
    for name in ("execve", "socket", "ptrace"):
        assert verdict(program, machine, call(machine, name)) == KILL
    assert verdict(program, machine, call(machine, "unlinkat")) == EPERM


def test_a_machine_without_a_table_has_no_filter() -> None:
    assert native_filter("riscv64") is None
    assert runner_filter("riscv64") is None
