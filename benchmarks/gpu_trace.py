# ruff: noqa: E501
"""Which system calls and files CUDA, torch and Triton need besides what a runner's filter allows (Linux, no ptrace).

    python benchmarks/gpu_trace.py FILE     runs FILE's scale(x, y, factor) on a card in a thread that the kernel reports on

The thread has a seccomp filter that lets through what runners may do and notifies this process's first thread of all
else, which notes it and lets it go on (SECCOMP_RET_USER_NOTIF with CONTINUE). Threads that it starts inherit the filter.
"""

from __future__ import annotations

import collections
import ctypes
import importlib.util
import os
import platform
import struct
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from grader.sandbox import seccomp

NOTIFY, NEW_LISTENER, CONTINUE = 0x7FC00000, 8, 1
RECEIVE, SEND = 0xC0502100, 0xC0182101
libc = ctypes.CDLL(None, use_errno=True)


def filter_program(machine: seccomp.Machine) -> bytes:
    program = seccomp._Program(machine)
    special = seccomp.numbers(seccomp.BY_ARGUMENT, machine)
    known = seccomp.numbers(seccomp.ALLOWED, machine)
    watched = {"open", "openat", "stat", "newfstatat", "access", "readlink", "readlinkat"}
    program.returns([n for name, n in known.items() if name not in watched], seccomp.ALLOW)
    program.by_bits(special["clone"], seccomp.CLONE_THREAD, found=seccomp.ALLOW, otherwise=NOTIFY)
    # The first thread of this process answers the notifications by ioctl itself, but has no filter.
    return b"".join([*program.code, struct.pack("=HBBI", seccomp._RETURN, 0, 0, NOTIFY)])


def main() -> None:
    machine = seccomp.MACHINES[platform.machine().lower()]
    names = {}
    for table in (
        seccomp.ALLOWED,
        seccomp.STARTS_PROCESSES,
        seccomp.REACHES_OUT,
        seccomp.REFUSED,
        seccomp.BY_ARGUMENT,
        seccomp.NETWORK,
    ):
        names |= {number: name for name, number in seccomp.numbers(table, machine).items()}
    text = filter_program(machine)
    listener: list[int] = []
    ready, done = threading.Event(), threading.Event()
    import torch  # before the filter: only what a runner does after its lock is of interest

    spec = importlib.util.spec_from_file_location("kernels", sys.argv[1])
    kernels = importlib.util.module_from_spec(spec)
    stage = ["start"]
    if "--triton" not in sys.argv:
        spec.loader.exec_module(kernels)

    def work() -> None:
        code = ctypes.create_string_buffer(text, len(text))
        described = struct.pack("=HxxxxxxQ", len(text) // 8, ctypes.addressof(code))
        libc.prctl(38, 1, 0, 0, 0)
        fd = libc.syscall(machine_number(machine), 1, NEW_LISTENER, described)
        listener.append(fd)
        ready.set()
        if fd < 0:
            print("no listener:", os.strerror(ctypes.get_errno()))
            done.set()
            return
        try:
            stage[0] = "context"
            torch.zeros(1, device="cuda")
            stage[0] = "kernel"
            if "--triton" in sys.argv:
                spec.loader.exec_module(kernels)
            x = torch.ones(100_000, device="cuda")
            y = torch.empty_like(x)
            kernels.scale(x, y, 2.0)
            torch.cuda.synchronize()
            stage[0] = "again"
            kernels.scale(x, y, 2.0)
            torch.cuda.synchronize()
            print("worked:", float(y[5]))
        except BaseException:
            traceback.print_exc()
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait()
    fd = listener[0]
    seen: collections.Counter[str] = collections.Counter()
    if fd >= 0:
        import select

        while not done.is_set():
            if not select.select([fd], [], [], 0.05)[0]:
                continue
            request = ctypes.create_string_buffer(80)
            if libc.ioctl(fd, ctypes.c_ulong(RECEIVE), request) != 0:
                time.sleep(0.001)
                continue
            ident, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request.raw)
            seen[note(names.get(number, f"call {number}"), number, arguments, pid, stage[0])] += 1
            libc.ioctl(fd, ctypes.c_ulong(SEND), struct.pack("=QqiI", ident, 0, 0, CONTINUE))
    for text_, count in sorted(seen.items()):
        print(f"{count:6d}  {text_}")


def machine_number(machine: seccomp.Machine) -> int:
    return seccomp.numbers(seccomp.SECCOMP, machine)["seccomp"]


def note(name: str, number: int, arguments: list[int], pid: int, stage: str) -> str:
    if name in ("openat", "newfstatat", "readlinkat"):
        return f"{stage} {name} {path_at(arguments[1])} {hex(arguments[2]) if name == 'openat' else ''}"
    if name in ("open", "stat", "access", "readlink", "execve", "mknod"):
        return f"{stage} {name} {path_at(arguments[0])}"
    if name == "ioctl":
        return f"{stage} ioctl type {arguments[1] >> 8 & 0xFF:#x} {os.path.basename(link(arguments[0]))}"
    shown = " ".join(hex(value) for value in arguments[:3])
    return f"{stage} {name} {shown if name in ('prctl', 'fcntl', 'socket', 'mmap', 'clone', 'clone3', 'prlimit64') else ''}"


def link(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "?"


def path_at(address: int) -> str:
    if not address:
        return "NULL"
    path = ctypes.string_at(address).decode(errors="replace")
    for prefix, short in ((sys.prefix, "<venv>"), ("/usr/lib", "<lib>"), ("/proc/self/task", "<task>")):
        if path.startswith(prefix):
            return short if short != "<task>" else path
    return path


if __name__ == "__main__":
    main()
