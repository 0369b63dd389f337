"""Locks that a process puts on itself before it runs a student's code: limits, another uid, fewer files, a filter.

Runs in a runner after its fork, or as a script that becomes a compiler. The judge decides on the locks
(`grader.sandbox`); this file only applies them, so it needs only the standard library. The process cannot undo a lock.

Sources: landlock(7), seccomp(2), prctl(2), capset(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

#: Byte that the script writes when the lock is on, before the command starts; exit code if the lock failed.
ENTERED, EXIT_FAILED = b"1", 125
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SECCOMP_SET_MODE_FILTER = 1
#: Flags to try in turn: TSYNC (1) applies the filter to every thread. SPEC_ALLOW (4) avoids Spectre protections that
#: make a filtered process slow on Linux before 5.16.
SECCOMP_FLAGS = (1 | 4, 1)
#: Landlock's three calls have the same numbers on x86-64 and aarch64.
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_VERSION, LANDLOCK_PATH_BENEATH = 1, 1
#: Rights on files that each version of Landlock knows: 13 at first, then REFER, TRUNCATE and IOCTL_DEV.
LANDLOCK_FILE_RIGHTS = {
    1: (1 << 13) - 1,
    2: (1 << 14) - 1,
    3: (1 << 15) - 1,
    4: (1 << 15) - 1,
    5: (1 << 16) - 1,
}
EXECUTE, READ_FILE, READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
#: EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV: the rights that apply to a path that is not a folder.
RIGHTS_ON_A_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15

libc = ctypes.CDLL(None, use_errno=True)


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call by its number and return its result. Integer arguments are passed as 64-bit values."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(libc.syscall(ctypes.c_long(number), *wide))


def enter(lock: dict[str, Any]) -> None:
    """Apply a lock's entries "uid", "files" and "calls" to this process. Raises OSError if the system refuses.

    The entries are a user id, the files for Landlock, and a seccomp filter. An entry is None if the tier lacks it.
    """
    # Open the files of the rules before the uid changes: the new user may not be allowed to open them.
    ruleset = None if lock["files"] is None else file_ruleset(lock["files"])
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if lock["uid"] is not None:
        os.setgroups([])
        os.setresgid(lock["uid"], lock["uid"], lock["uid"])
        os.setresuid(lock["uid"], lock["uid"], lock["uid"])
    if sys.platform == "linux":
        # A change of uid clears the signal that ends this process with its parent: set it again.
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    drop_capabilities()
    if ruleset is not None:
        check(system_call(LANDLOCK_RESTRICT, ruleset, 0), "landlock")
        os.close(ruleset)
    if lock["calls"] is not None:
        filter_calls(lock["calls"])


def check(result: int, what: str) -> int:
    """Return `result`. Raises OSError if it is negative: a lock failed, so the student's code must not run."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def drop_capabilities() -> None:
    """Give up all capabilities: a process that stays root would keep them. With no_new_privs it cannot regain them."""
    if sys.platform == "linux":
        header = struct.pack("=Ii", 0x20080522, 0)
        check(libc.capset(header, bytes(24)), "capabilities")


# ---- files (Landlock)


def landlock_version() -> int:
    """Return the version of Landlock in this Linux, 0 without it."""
    if sys.platform != "linux":
        return 0
    return max(0, system_call(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION))


def file_ruleset(files: dict[str, Any]) -> int:
    """Return the descriptor of a Landlock ruleset that allows "read", "run" and "write" only below these `files`."""
    version = landlock_version()
    rights = LANDLOCK_FILE_RIGHTS.get(version, LANDLOCK_FILE_RIGHTS[5])
    # From version 4 on, TCP can be refused, too; from version 6 on, signals and abstract sockets to other processes.
    network, scope = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    attributes = struct.pack("=QQQ", rights, network, scope)[
        : 8 if version < 4 else 16 if version < 6 else 24
    ]
    ruleset = check(system_call(LANDLOCK_CREATE, attributes, len(attributes), 0), "landlock")
    for paths, allowed in (
        (files["read"], READ_FILE | READ_FOLDER),
        (files["run"], READ_FILE | READ_FOLDER | EXECUTE),
        (files["write"], rights & ~EXECUTE),
    ):
        for path in paths:
            add_rule(ruleset, path, allowed & rights)
    return ruleset


def add_rule(ruleset: int, path: str, allowed: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # a path that this process cannot open needs no rule
    try:
        if not os.path.isdir(path):
            allowed &= RIGHTS_ON_A_FILE
        rule = struct.pack("=Qi", allowed, fd)
        check(system_call(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, rule, 0), f"landlock rule for {path}")
    finally:
        os.close(fd)


# ---- system calls (seccomp)


class FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def filter_calls(calls: dict[str, Any]) -> None:
    """Install a seccomp filter in this process for good. Raises OSError if the system refuses.

    `calls` has the fields of a `seccomp.Filter`, with the program in hexadecimal.
    """
    program = bytearray.fromhex(calls["program"])
    for place in calls["pid_places"]:
        struct.pack_into("=I", program, place, os.getpid())
    code = (ctypes.c_char * len(program)).from_buffer(program)
    described = FilterProgram(len(program) // 8, ctypes.addressof(code))
    for flags in SECCOMP_FLAGS:
        if system_call(calls["call_number"], SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(described)) == 0:
            return
    check(-1, "seccomp")


# ---- resources


def limit(limits: dict[str, Any], mapped: int) -> None:
    """Set resource limits for this process and its children.

    `limits` has the fields of `sandbox.Limits`, and "processes", the limit on threads (`limits.process_limit`). The
    address space may be "memory_bytes" larger than `mapped` bytes.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"],) * 2)
    if limits["processes"] is not None:
        with contextlib.suppress(ValueError, OSError):  # raised if a lower limit is in force already
            resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"],) * 2)
    if limits["memory_bytes"] is not None:
        ceiling = mapped + limits["memory_bytes"]
        with contextlib.suppress(ValueError, OSError):  # raised on macOS, which has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    # If memory runs out, Linux should kill this process rather than the judge.
    with contextlib.suppress(OSError):
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)


def mapped_bytes() -> int:
    """Return the size of this process's address space in bytes; 0 except on Linux."""
    if sys.platform != "linux":
        return 0
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    pages = os.read(statm, 256).split()[0]
    os.close(statm)
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# ---- as a script


def probe(secrets: list[str]) -> None:
    """Try forbidden actions in the locked process: read the files `secrets`, print the readable ones, open a socket."""
    readable = []
    for path in secrets:
        with contextlib.suppress(OSError), open(path, "rb") as secret:
            secret.read(1)
            readable.append(path)
    print(json.dumps({"readable": readable}), flush=True)
    with contextlib.suppress(OSError):
        socket.socket().close()
        print("network", flush=True)


def main() -> None:
    """Run as `lock.py SPEC COMMAND...`: lock this process, then become the command.

    Just before the process becomes the command, it writes ENTERED to the descriptor spec["entered_fd"]. With
    `--probe FILE...` in place of a command, it tests the lock instead: it tries to read the files and to open a socket.
    """
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        # The command starts with an empty address space, so mapped=0. (`mapped_bytes` would need /proc, which a
        # compiler in tier A lacks.)
        limit(spec["limits"], mapped=0)
        enter(spec["lock"])
        if command[0] == "--probe":
            probe(command[1:])
        else:
            # From here on, all output is the command's.
            os.write(spec["entered_fd"], ENTERED)
            os.set_inheritable(spec["entered_fd"], False)
            os.execvp(command[0], command)
    except OSError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
