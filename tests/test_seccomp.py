"""The seccomp filters for x86-64 and aarch64. A BPF interpreter runs both of them on any machine."""

import errno
import functools
import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest

from grader.sandbox import seccomp
from grader.sandbox.seccomp import ALLOW, ERRNO, KILL, compiler_filter, native_filter, runner_filter

EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
OWN_PID, TOKEN = 4711, 0x0123_4567_89AB_CDEF
CLONE_VM, CLONE_VFORK, NEW_USER = 0x100, 0x4000, 0x10000000
REFUSED = (seccomp.STARTS_PROCESSES, seccomp.REACHES_OUT, seccomp.REFUSED)
TABLES = (seccomp.ALLOWED, *REFUSED, seccomp.BY_ARGUMENT)
NATIVE_TABLES = (seccomp.NATIVE_ALLOWED, seccomp.NATIVE_BY_ARGUMENT, seccomp.NETWORK, seccomp.STARTS_DYNAMIC)
NOT_IN_A_TABLE = "pkey_mprotect 329 288, shmat 30 196"
SETOWN, GETFL, TCGETS, TIOCSTI = 8, 3, 0x5401, 0x5412


def verdict(program: seccomp.Filter | None, machine: str, number: int, *arguments: int) -> int:
    """Run a filter (classic BPF, networking/filter.rst of Linux) on a system call. Return its verdict."""
    code = bytearray(program.program)
    for place in program.pid_places:
        struct.pack_into("=I", code, place, OWN_PID)
    for place, half in zip(program.token_places, (TOKEN & 0xFFFFFFFF, TOKEN >> 32), strict=False):
        struct.pack_into("=I", code, place, half)
    audit = 0x40000003 if machine == "i386" else seccomp.MACHINES[machine].audit
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
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}
        counter += if_true if holds[operation] else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def numbers(table: Any, machine: str) -> dict[str, int]:
    return seccomp.numbers(table, seccomp.MACHINES[machine])


def call(machine: str, name: str) -> int:
    tables = (numbers(table, machine) for table in (*TABLES, *NATIVE_TABLES, NOT_IN_A_TABLE))
    return next(found[name] for found in tables if name in found)


AT_EMPTY_PATH, MAP_SHARED, MAP_PRIVATE, ANONYMOUS = 0x1000, 0x1, 0x2, 0x20
HUGE = 0x40000 | MAP_PRIVATE | ANONYMOUS
READ_EXEC, ALL_RIGHTS = 0x5, 0x7
#: System calls by which a program could execute code that it has written to memory.
NEW_CODE: list[tuple[Any, ...]] = [
    *(("mprotect", 0, 4096, rights) for rights in (0x4, READ_EXEC, ALL_RIGHTS)),
    *(("mmap", 0, 4096, rights, MAP_PRIVATE | ANONYMOUS, 3) for rights in (READ_EXEC, ALL_RIGHTS)),
    *(("mmap", 0, 4096, READ_EXEC, how, 5) for how in (MAP_SHARED, MAP_PRIVATE)),
    ("mmap", 0, 4096, ALL_RIGHTS, MAP_PRIVATE, 3), ("pkey_mprotect",), ("memfd_create",), ("shmat",),
]  # fmt: skip
#: System calls with their arguments, by verdict, for each filter.
BOTH_RUNNERS = {
    ALLOW: [
        ("read",), ("futex",), ("clone", CLONE_VM | seccomp.CLONE_THREAD), ("kill", OWN_PID, 9),
        ("tgkill", OWN_PID, 5, 6), ("prlimit64", 0, 9), ("timer_settime", 0, 0, 0x7F00_0000_0000, 0),
    ],
    EPERM: [
        ("timer_settime", 0, 0, 0x7F00_0000_0000, 0x7F00_0000_0000),
        ("prlimit64", 1, 9), ("prctl", 1, 0), ("memfd_create",), ("mmap", 0, 4096, 3, HUGE),
    ],
    ENOSYS: [("clone3",)],
    KILL: [
        ("execve",), ("clone", CLONE_VM | CLONE_VFORK), ("kill", OWN_PID + 1, 9), ("tgkill", 1, 1, 9),
    ],
}  # fmt: skip
RUNNER = {
    ALLOW: [("fcntl", 3, GETFL), ("ioctl", 0, TCGETS), ("prctl", 15)],
    EPERM: [("socket", 1, 1, 0), ("fcntl", 3, SETOWN, 1), ("ioctl", 0, TIOCSTI), ("perf_event_open",)],
    KILL: [("socket", 2, 1, 0), ("socket", 10, 2, 0), ("kill", 0xFFFFFFFF, 9)],
}
NATIVE = {
    ALLOW: [
        ("mmap", 0, 4096, 3, MAP_PRIVATE | ANONYMOUS), ("madvise", 0, 4096, 4),
        ("pread64", 5), ("pwrite64", 5), ("timer_create", 1, 0),
        ("execveat", 5, 0, 0, 0, AT_EMPTY_PATH, TOKEN), ("mprotect", 0, 4096, 1), ("mprotect", 0, 4096, 3),
    ],
    EPERM: [
        *NEW_CODE, ("mmap", 0, 4096, READ_EXEC, MAP_PRIVATE, 3),
        ("openat",), ("getdents64",), ("readlinkat",), ("unlinkat",), ("ftruncate", 5, 0),
        ("mmap", 0, 4096, 3, MAP_PRIVATE, 5), ("mmap", 0, 4096, 3, MAP_SHARED, 5),
        ("mmap", 0, 4096, 3, MAP_SHARED | ANONYMOUS), *(("madvise", 0, 4096, advice) for advice in (9, 20, 21)),
        *((name, fd) for name in ("pread64", "pwrite64") for fd in (0, 1, 2, 3, 4, 6)),
        ("timer_create", 1, 0x7F00_0000_0000), ("timer_create", 1, 0x1000),
    ],
    KILL: [
        ("execveat", 5, 0, 0, 0, AT_EMPTY_PATH), ("execveat", 5, 0, 0, 0, AT_EMPTY_PATH, TOKEN & 0xFFFFFFFF),
        ("execveat", 5, 0, 0, 0, AT_EMPTY_PATH, TOKEN ^ 1), ("socket", 1, 1, 0), ("socketpair",), ("connect",),
        ("ptrace",), ("setsid",),
    ],
}  # fmt: skip
#: Further calls of a dynamic program, which opens and maps its libraries.
DYNAMIC = {
    ALLOW: [
        ("openat",), ("mmap", 0, 4096, READ_EXEC, MAP_PRIVATE, 3), ("mmap", 0, 4096, 3, MAP_PRIVATE | ANONYMOUS),
        ("mmap", 0, 4096, 3, MAP_PRIVATE, 3), ("mprotect", 0, 4096, 1), ("mprotect", 0, 4096, 3),
    ],
    EPERM: [*NEW_CODE, ("unlinkat",)],
    KILL: [("execve",), ("socket", 1, 1, 0), ("ptrace",)],
}  # fmt: skip
COMPILER = {
    ALLOW: [("execve",), ("clone", CLONE_VM | CLONE_VFORK), ("openat",)],
    EPERM: [("clone", NEW_USER), ("socket", 2, 1, 0), ("setsid",), ("ptrace",)],
}

FILTERS: dict[Callable[[str], seccomp.Filter | None], list[dict[int, list[tuple[Any, ...]]]]] = {
    runner_filter: [BOTH_RUNNERS, RUNNER],
    native_filter: [BOTH_RUNNERS, NATIVE],
    functools.partial(native_filter, opens_libraries=True): [DYNAMIC],
    compiler_filter: [COMPILER],
}


@pytest.mark.parametrize("built", FILTERS, ids=["runner", "native", "dynamic", "compiler"])
def test_runner_may_compute_and_compiler_start_its_parts_and_no_more(machine: str, built: Any) -> None:
    program = built(machine)
    for expected, calls in itertools.chain(*(table.items() for table in FILTERS[built])):
        for name, *arguments in calls:
            assert verdict(program, machine, call(machine, name), *arguments) == expected, (name, arguments)


def test_other_instruction_sets_and_unknown_calls_are_refused(machine: str) -> None:
    assert native_filter("riscv64") is runner_filter("riscv64") is None, "a machine without a table"
    for program in (built(machine) for built in FILTERS):
        assert verdict(program, "i386", 11) == KILL  # 11 is execve on i386, but munmap on x86-64
        assert verdict(program, machine, 0x40000000 | 59) == KILL  # execve of x32, x86-64's 32-bit pointers
        assert verdict(program, machine, seccomp.LAST_KNOWN + 1) == ENOSYS


def test_every_call_has_one_verdict(machine: str) -> None:
    listed = [number for table in TABLES for number in numbers(table, machine).values()]
    assert len(listed) == len(set(listed))
    known = {}
    for table in (*TABLES, *NATIVE_TABLES):
        for name, number in numbers(table, machine).items():
            assert known.setdefault(name, number) == number, name
    assert len(known) == len(set(known.values()))
