"""What a runner leaves behind outside of its own process: files beyond measure, files elsewhere, processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.sandbox.limits import Limits

#: Where any user may write on a usual system; what else such folders hold is one level down.
OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")


@dataclass(frozen=True)
class Scratch:
    """A runner's working directory as the judge sees it."""

    folder: Path
    limits: Limits

    def excess(self) -> str:
        """Why there is too much in it, or "". Looks at no more than one entry beyond what is allowed."""
        total_bytes = 0
        for count, entry in enumerate(_entries(self.folder), 1):
            with contextlib.suppress(OSError):
                total_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
            if count > self.limits.scratch_files:
                return f"it wrote more than {self.limits.scratch_files} files"
            if total_bytes > self.limits.scratch_bytes:
                return f"it wrote more than {self.limits.scratch_bytes >> 20} MiB of files"
        return ""


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    pending = [str(folder)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as listing:
            for entry in listing:
                yield entry
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)


def remove_files_of(uids: range | None) -> None:
    """Remove what these users own in folders that are open to everyone. Their files are nobody else's."""
    if uids is None:
        return
    for folder in OPEN_FOLDERS:
        for path in [folder, *_open_folders_in(folder)]:
            _remove_owned(path, uids)


def _open_folders_in(folder: str) -> list[str]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for entry in listing:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & 0o002:
                    found.append(entry.path)
    return found


def _remove_owned(folder: str, uids: range) -> None:
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for entry in listing:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid not in uids:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def kill_dwellers(folder: Path) -> None:
    """Kill every process that works in a folder of ours: runners and their children whose parent is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(folder):
                    os.kill(int(name), signal.SIGKILL)
