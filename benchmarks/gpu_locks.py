# ruff: noqa: E501
"""Search by trial for the system calls and files that CUDA, torch and Triton need under a runner's lock.

    python benchmarks/gpu_locks.py FILE FOUND      FILE has scale(x, y, factor), compiled already; FOUND is written (JSON)

The first child is traced. Its filter reports to this process every call that a runner may not make or that names a
file (SECCOMP_RET_USER_NOTIF). This process notes the call and lets it continue. Then children are locked as runners
are, with the traced calls and files allowed as well, and unnecessary ones are removed one by one. Every finding is
printed at once.
"""

from __future__ import annotations

import collections
import ctypes
import importlib.util
import json
import os
import platform
import select
import signal
import struct
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from grader.backends.gpu import devicerunner, kernelfiles, replay, tracing
from grader.sandbox import Sandbox, lock, seccomp, view

NOTIFY, NEW_LISTENER, CONTINUE = 0x7FC00000, 8, 1
RECEIVE, SEND = 0xC0502100, 0xC0182101
PIDFD_OPEN, PIDFD_GETFD = 434, 438
PATH_AT = {
    "open": 0,
    "stat": 0,
    "lstat": 0,
    "access": 0,
    "readlink": 0,
    "mknod": 0,
    "mkdir": 0,
    "unlink": 0,
    "execve": 0,
    "chmod": 0,
    "statfs": 0,
    "openat": 1,
    "newfstatat": 1,
    "readlinkat": 1,
    "faccessat": 1,
    "faccessat2": 1,
    "statx": 1,
    "mknodat": 1,
    "mkdirat": 1,
    "unlinkat": 1,
    "fchmodat": 1,
}
MORE_NAMES = "chmod 90 -, fchmod 91 52, fchmodat 268 53, connect 42 203, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, setsockopt 54 208, bind 49 200, listen 50 201, capget 125 90, capset 126 91, setrlimit 160 164, inotify_init1 294 26, timerfd_create 283 85, signalfd4 289 74, symlink 88 -, link 86 -"
MACHINE = seccomp.MACHINES[platform.machine()]
NAMES = {
    number: name
    for table in (
        MORE_NAMES,
        seccomp.ALLOWED,
        seccomp.STARTS_PROCESSES,
        seccomp.REACHES_OUT,
        seccomp.REFUSED,
        seccomp.BY_ARGUMENT,
    )
    for name, number in seccomp.numbers(table, MACHINE).items()
}
libc = ctypes.CDLL(None, use_errno=True)
FILE, FOUND = sys.argv[1], Path(sys.argv[2])
LIMIT_S = 10.0
SHARED: list[int] = []
"""The descriptor of another process's device memory, as a runner has it of the judge."""


def say(*words: object) -> None:
    print(*words, flush=True)


def work() -> str:
    """Use the GPU as a runner does. Return the first failure, or "ok"."""
    import torch

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if code := cuda.cuInit(0):
            return f"cuInit: {code}"
        count = ctypes.c_int()
        if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
            return f"cuDeviceGetCount: {code}"
        x = torch.ones(100_000, device="cuda")
        y = torch.empty_like(x)
        spec = importlib.util.spec_from_file_location("kernels", FILE)
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        kernels.scale(x, y, 2.0)
        torch.cuda.synchronize()
        if float(y[5]) != 3.0:
            return f"wrong: {float(y[5])}"
        if SHARED:
            devicerunner.mapped_memory(SHARED[0], 2 << 20)[:16].zero_()
            torch.cuda.synchronize()
        return "ok"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"


def child(act) -> tuple[int, int]:
    """Start a child that reports the result of `act`. Return its process id and the read end of its pipe."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            os.setsid()
            os.write(theirs, (act(theirs) or "").encode()[:3000])
        except BaseException:
            os.write(theirs, traceback.format_exc()[-600:].encode())
        finally:
            os._exit(0)
    os.close(theirs)
    return pid, ours


def told(pid: int, fd: int, limit_s: float = LIMIT_S) -> str:
    ends, text = time.monotonic() + limit_s, b""
    while (left := ends - time.monotonic()) > 0 and select.select([fd], [], [], left)[0]:
        chunk = os.read(fd, 4096)
        if not chunk:
            break
        text += chunk
    else:
        text += b" (no end)"
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    died = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) and not text else ""
    return (text.decode(errors="replace") + died).strip()


def shared_memory() -> None:
    from grader.backends.gpu.card.driver import Driver

    def act(pipe: int) -> str:
        os.write(pipe, f"{Driver().create_shared(2 << 20)[3]}\n".encode())
        time.sleep(600)
        return ""

    pid, pipe = child(act)
    if select.select([pipe], [], [], 20)[0] and (line := os.read(pipe, 100)).strip().isdigit():
        handle = libc.syscall(PIDFD_OPEN, pid, 0)
        SHARED.append(libc.syscall(PIDFD_GETFD, handle, int(line), 0))
        HOLDERS.append(pid)
    say("shared memory", SHARED)


HOLDERS: list[int] = []


# ---- the trace


def traced() -> tuple[list[str], dict[str, bool]]:
    """Return calls beyond the runner's filter, as entries of a table, and files with True if they were opened for
    writing."""
    watched = set(PATH_AT)

    def act(pipe: int) -> str:
        program = seccomp._Program(MACHINE)
        special = seccomp.numbers(seccomp.BY_ARGUMENT, MACHINE)
        known = seccomp.numbers(seccomp.ALLOWED, MACHINE)
        program.returns([n for name, n in known.items() if name not in watched], seccomp.ALLOW)
        program.returns([special["ioctl"], special["fcntl"], special["tgkill"]], seccomp.ALLOW)
        program.returns([special["clone3"]], seccomp.ERRNO | 38)
        program.by_bits(special["clone"], seccomp.CLONE_THREAD, found=seccomp.ALLOW, otherwise=NOTIFY)
        text = b"".join([*program.code, struct.pack("=HBBI", seccomp._RETURN, 0, 0, NOTIFY)])
        code = ctypes.create_string_buffer(text, len(text))
        described = struct.pack("=HxxxxxxQ", len(text) // 8, ctypes.addressof(code))
        libc.prctl(38, 1, 0, 0, 0)
        fd = libc.syscall(seccomp.numbers(seccomp.SECCOMP, MACHINE)["seccomp"], 1, NEW_LISTENER, described)
        os.write(pipe, f"{fd}\n".encode())
        return work()

    pid, pipe = child(act)
    if not select.select([pipe], [], [], 5)[0]:
        say("trace: no listener:", told(pid, pipe, 0.1))
        return [], {}
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(pipe, 1)
    handle = libc.syscall(PIDFD_OPEN, pid, 0)
    listener = libc.syscall(PIDFD_GETFD, handle, int(line), 0)
    if listener < 0:
        say("trace: no listener", line, os.strerror(ctypes.get_errno()), told(pid, pipe, 0.1))
        return [], {}
    calls: collections.Counter[str] = collections.Counter()
    files: dict[str, bool] = {}
    needed: dict[str, str] = {}
    ends, ended = time.monotonic() + 20, False
    while time.monotonic() < ends and not ended:
        ready = select.select([listener, pipe], [], [], 0.5)[0]
        if pipe in ready:
            break
        if listener not in ready:
            continue
        request = ctypes.create_string_buffer(80)
        if libc.ioctl(listener, ctypes.c_ulong(RECEIVE), request) != 0:
            ended = not os.path.exists(f"/proc/{pid}/fd")
            continue
        ident, who, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request.raw)
        name = NAMES.get(number, f"call{number}")
        if name in PATH_AT:
            path = text_at(who, arguments[PATH_AT[name]])
            flags = arguments[PATH_AT[name] + 1] if name in ("open", "openat") else 0
            if name in ("open", "openat", "mknod", "mknodat", "mkdir", "unlink"):
                files[path] = files.get(path, False) or bool(flags & 3) or name not in ("open", "openat")
            if name not in seccomp.numbers(seccomp.ALLOWED, MACHINE):
                needed[name] = f"{name} {number} -"
                calls[f"{name} {path} {arguments[2]:#x}"] += 1
        else:
            shown = " ".join(hex(a) for a in arguments[:3])
            if not (name == "prctl" and arguments[0] in seccomp.PRCTLS) and not (
                name == "prlimit64" and arguments[0] == 0
            ):
                needed[name] = f"{name} {number} -"
                calls[f"{name} {shown}"] += 1
        libc.ioctl(listener, ctypes.c_ulong(SEND), struct.pack("=QqiI", ident, 0, 0, CONTINUE))
    os.close(listener)
    say("trace ended:", told(pid, pipe, 5))
    for text, count in calls.items():
        say(f"  call {count} {text}")
    own = (sys.prefix, "/usr/lib/python", str(Path(FILE).parent))
    for path, writes in files.items():
        if not path.startswith(own) and not path.endswith((".py", ".pyc")):
            say(f"  file {'W' if writes else 'r'} {'' if os.path.exists(path) else 'ABSENT '}{path}")
    return list(needed.values()), files


def text_at(pid: int, address: int) -> str:
    try:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            memory.seek(address)
            return memory.read(512).split(b"\0")[0].decode(errors="replace")
    except OSError:
        return "?"


# ---- trials


def trial(spec: dict, version: int | None = None) -> str:
    def act(_: int) -> str:
        if version is not None:
            lock.landlock_version = lambda: version
        os.environ["CUDA_CACHE_DISABLE"] = "1"
        lock.enter(spec)
        return work()

    return told(*child(act))


def smaller(items: list, works) -> list:
    """Return a minimal subset with which `works` holds, trying to leave out each item once."""
    kept = list(items)
    for item in items:
        without = [other for other in kept if other != item]
        if works(without):
            kept = without
    return kept


def main() -> None:
    import torch  # noqa: F401
    import triton  # noqa: F401

    devicerunner.kernelfiles, devicerunner.tracing, devicerunner.replay = kernelfiles, tracing, replay
    devicerunner.prepare()
    shared_memory()
    version = lock.landlock_version()
    read = [FILE, os.environ["TRITON_CACHE_DIR"]]
    say("landlock", version, "plain:", told(*child(lambda _: work())))
    calls, files = traced()

    def locked(
        sandbox: Sandbox, uid=None, more: list = (), extra_read=(), extra_write=(), build=False
    ) -> dict:
        seccomp.runner_filter.cache_clear()
        seccomp.compiler_filter.cache_clear()
        was = seccomp.CARD_ALLOWED
        seccomp.CARD_ALLOWED = ", ".join([was, *more]) if more else was
        try:
            make = sandbox.compiler_lock if build else sandbox.runner_lock
            return make(uid, [*read, *extra_read], ["/tmp", *extra_write], card=True)
        finally:
            seccomp.CARD_ALLOWED = was

    found: dict[str, object] = {"calls": [], "read": [], "write": [], "landlock": 0}
    only_calls = Sandbox("B", seccomp=True)
    say("seccomp, as it is:", said := trial(locked(only_calls)))
    if said != "ok":
        fatal = set(seccomp.numbers(seccomp.STARTS_PROCESSES, MACHINE))
        given = [entry for entry in calls if entry.split()[0] not in fatal]
        say("seccomp, with", given, ":", said := trial(locked(only_calls, more=given)))
        if said == "ok":
            found["calls"] = smaller(given, lambda few: trial(locked(only_calls, more=few)) == "ok")
            say("seccomp needs", found["calls"])
        else:
            for name in ("socket", "mknod", "memfd_create", "all"):
                numbers = range(500) if name == "all" else [n for n, known in NAMES.items() if known == name]
                numbers = [n for n in numbers if NAMES.get(n) not in fatal]
                entries = [*given, *(f"c{n} {n} -" for n in numbers)]
                say("seccomp, with", name, "besides:", said := trial(locked(only_calls, more=entries)))
                if said == "ok":
                    found["calls"] = entries
                    break
    say("builder's filter:", trial(locked(only_calls, more=found["calls"], build=True)))

    if version:
        only_files = Sandbox("B", landlock=version)
        say("landlock, as it is:", said := trial(locked(only_files)))
        there = [p for p in files if os.path.exists(p) and p.startswith("/")]
        reads = sorted({p for p in there if not files[p]})
        writes = sorted({p for p in there if files[p]})
        if said != "ok":
            for capped in (6, 5, 4, 1):
                say("landlock of version", capped, ":", one := trial(locked(only_files), capped))
                if one == "ok":
                    found["landlock"] = capped
                    break
            say(
                "landlock, with all files of the trace:",
                said := trial(locked(only_files, extra_read=reads, extra_write=writes)),
            )
            if said == "ok":
                # Halves first: there are many files.
                few = [("read", p) for p in reads if not covered(p)] + [("write", p) for p in writes]

                def works(some: list) -> bool:
                    r, w = ([p for kind, p in some if kind == each] for each in ("read", "write"))
                    return trial(locked(only_files, extra_read=r, extra_write=w)) == "ok"

                say("of", len(few), "files")
                half = few
                while len(half) > 6:
                    middle = len(half) // 2
                    first, second = half[:middle], half[middle:]
                    if works(first):
                        half = first
                    elif works(second):
                        half = second
                    else:
                        break
                half = smaller(half[:40], works) if len(half) <= 40 else half
                found["read"] = [p for kind, p in half if kind == "read"]
                found["write"] = [p for kind, p in half if kind == "write"]
                say("landlock needs", half)
            else:
                for name, r, w in (
                    ("/ read", ["/"], []),
                    ("/dev /proc /sys written", [], ["/dev", "/proc", "/sys"]),
                    ("/ written", [], ["/"]),
                ):
                    say(
                        "landlock, with",
                        name,
                        ":",
                        one := trial(locked(only_files, extra_read=r, extra_write=w)),
                    )
                    if one == "ok":
                        found["read"], found["write"] = r, w
                        break
    FOUND.write_text(json.dumps(found))
    uid = 54_321
    for name, sandbox in (
        ("C", Sandbox("C", seccomp=True, own_uid=True)),
        ("B", Sandbox("B", landlock=version, seccomp=True, own_uid=True)),
    ):
        how = {"more": found["calls"], "extra_read": found["read"], "extra_write": found["write"]}
        spec = locked(sandbox, uid, **how)
        say("tier", name, "whole:", trial(spec, found["landlock"] or None))
        say(
            "tier",
            name,
            "builder:",
            trial(locked(sandbox, uid, **how, build=True), found["landlock"] or None),
        )
    say("found", found)
    for pid in HOLDERS:
        os.kill(pid, signal.SIGKILL)


def covered(path: str) -> bool:
    known = [
        *map(str, view.system_paths()),
        *map(str, view.python_paths()),
        *view.CARD_FACTS,
        *view.FACTS,
        "/proc/self",
    ]
    return any(path == each or path.startswith(each + "/") for each in known)


if __name__ == "__main__":
    main()
