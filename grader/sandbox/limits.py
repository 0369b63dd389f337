"""Limits of a runner, and the number of processes that they leave a user."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

GIB = 1 << 30
#: Limits on the threads that a kernel may start; a shared uid's limit also covers the user's other programs.
OWN_UID_PROCESSES, SHARED_UID_PROCESSES = 512, 2048
#: Queued signals, each timer's place among them included: a runner has one timer.
OWN_UID_SIGNALS, SHARED_UID_SIGNALS = 8, 64


@dataclass(frozen=True)
class Limits:
    """Limits of a runner. `memory_bytes` is address space beyond what the zygote has mapped at the fork; None
    lifts it (AddressSanitizer reserves terabytes). `cpu_s` is a backstop for the judge's own wall limit.
    `scratch_bytes` and `scratch_files` bound what it leaves in its working directory."""

    memory_bytes: int | None = 4 * GIB
    file_bytes: int = 64 << 20
    open_files: int = 64
    cpu_s: int = 1800
    scratch_bytes: int = 256 << 20
    scratch_files: int = 1000


def process_limit(own_uid: bool) -> int | None:
    """Return the limit for RLIMIT_NPROC, which counts all threads of a user; None where it has no effect."""
    if own_uid:
        return OWN_UID_PROCESSES
    # The kernel lets root start any number.
    if not os.path.isdir("/proc/self/task") or os.geteuid() == 0:
        return None
    return threads_of(os.geteuid()) + SHARED_UID_PROCESSES


def signal_limit(own_uid: bool) -> int:
    """Return a limit for RLIMIT_SIGPENDING, which counts the queued signals of all processes of a user."""
    if own_uid:
        return OWN_UID_SIGNALS
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("SigQ:"):
                return int(line.split()[1].partition("/")[0]) + SHARED_UID_SIGNALS
    return 0


def threads_of(uid: int) -> int:
    """Return the number of a user's threads on this machine, as /proc shows them."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += os.stat(f"/proc/{name}/task").st_nlink - 2
    return total
