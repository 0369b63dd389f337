"""Limits of a runner, and the number of processes that its user id may have."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

GIB = 1 << 30
#: OWN_UID_PROCESSES limits the threads of a user id that only one runner has. SHARED_UID_PROCESSES limits the threads
#: that are started in addition to the present ones, if other processes have the runner's user id, too.
OWN_UID_PROCESSES, SHARED_UID_PROCESSES = 512, 2048


@dataclass(frozen=True)
class Limits:
    """Limits of a runner.

    `memory_bytes` limits the address space that a runner adds to its program or, if forked, to the zygote's space.
    None means no limit (AddressSanitizer reserves terabytes). `cpu_s` applies only if the judge's limit on wall time
    fails. `scratch_bytes` and `scratch_files` limit the files in the runner's working directory.
    """

    memory_bytes: int | None = 4 * GIB
    file_bytes: int = 64 << 20
    open_files: int = 64
    cpu_s: int = 1800
    scratch_bytes: int = 256 << 20
    scratch_files: int = 1000


def process_limit(own_uid: bool) -> int | None:
    """Return a runner's RLIMIT_NPROC, which counts all threads of a user; None if the limit would have no effect.

    `own_uid`: True if the runner has a user id that no other process uses.
    """
    if own_uid:
        return OWN_UID_PROCESSES
    # Root may start any number of threads in spite of the limit.
    if not os.path.isdir("/proc/self/task") or os.geteuid() == 0:
        return None
    return threads_of(os.geteuid()) + SHARED_UID_PROCESSES


def threads_of(uid: int) -> int:
    """Return the number of threads that a user has on this machine, according to /proc."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += os.stat(f"/proc/{name}/task").st_nlink - 2
    return total
