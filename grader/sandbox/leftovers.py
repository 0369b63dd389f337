"""Leftovers of a runner: too many or too large files in its folder, files elsewhere, and processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.core import removal
from grader.core.quantities import size_text
from grader.sandbox.limits import Limits

#: Folders in which any user may write on a usual system. Their writable subfolders are searched, too.
OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")


@dataclass(frozen=True)
class Scratch:
    """A runner's working directory. With `pid`, deleted files that this process still uses are counted, too."""

    folder: Path
    limits: Limits
    pid: int | None = None

    def excess(self) -> str:
        """Return a message if the runner's files exceed a limit, else "". Stop counting at the first excess."""
        total_bytes = sum(nameless_files(self.pid).values()) if self.pid is not None else 0
        if total_bytes > self.limits.scratch_bytes:
            return f"it keeps more than {size_text(self.limits.scratch_bytes)} in files that it deleted or never named"
        try:
            for count, entry in enumerate(_entries(self.folder), 1):
                with contextlib.suppress(OSError):
                    total_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                if count > self.limits.scratch_files:
                    return f"it wrote more than {self.limits.scratch_files} files"
                if total_bytes > self.limits.scratch_bytes:
                    return f"it wrote more than {size_text(self.limits.scratch_bytes)} of files"
        except TooDeep:
            return "it made folders that are nested too deep to be checked"
        return ""


def nameless_files(pid: int) -> dict[tuple[int, int], int]:
    """Return the bytes on disk of deleted files that a process holds open or mapped, by device and inode.

    The descriptors of each thread are read, because a thread may have its own. If this user may not read the size of a
    mapped file, the size of the mapping is used.
    """
    found: dict[tuple[int, int], int] = {}

    def add(path: str, otherwise_bytes: int = 0) -> None:
        with contextlib.suppress(OSError):
            if not _is_nameless(os.readlink(path)):
                return
            try:
                status = os.stat(path)
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
            except PermissionError:
                found[-1, len(found)] = otherwise_bytes

    for task in _names(f"/proc/{pid}/task"):
        for number in _names(f"/proc/{pid}/task/{task}/fd"):
            add(f"/proc/{pid}/task/{task}/fd/{number}")
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if _is_nameless(line.rstrip("\n")):
                span = line.split(" ", 1)[0]
                first, last = (int(end, 16) for end in span.split("-"))
                add(f"/proc/{pid}/map_files/{span}", last - first)
    return found


def _is_nameless(link: str) -> bool:
    """Return True for a link to a deleted file on a disk. Files in memory are left out: another limit bounds them."""
    return link.endswith(" (deleted)") and not any(word in link for word in ("/memfd:", "/dev/zero", "/SYSV"))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


class TooDeep(Exception):
    """Raised for a folder whose path is longer than the system allows, so that its files cannot be counted."""


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries of a folder, at any depth. Raises TooDeep if a path is longer than the system allows."""
    pending = [str(folder)]
    while pending:
        for entry in _listed(pending.pop()):
            yield entry
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def _listed(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            yield from listing
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise TooDeep from error


def remove_files_of(uids: range | None) -> None:
    """Remove all files of these user ids, which only runners have, from the folders where any user may write.

    Does nothing if `uids` is None: the runners have the judge's user id.
    """
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
                removal.remove(entry.path)


def kill_processes_in(folder: Path) -> None:
    """Kill every process whose working directory lies in `folder`: runners, and their children left without parent."""
    with contextlib.suppress(OSError):
        top = os.stat(folder)
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and _works_in(f"/proc/{name}/cwd", folder, top):
                    os.kill(int(name), signal.SIGKILL)


def _works_in(cwd: str, folder: Path, top: os.stat_result) -> bool:
    """Return True if the link `cwd` leads into `folder` (stat result: `top`). Raises OSError if it is unreadable."""
    try:
        return Path(os.readlink(cwd)).is_relative_to(folder)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    # The path is too long for readlink: go up from parent to parent until `folder` or the root is reached.
    here = os.open(cwd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not os.path.samestat(os.fstat(here), top):
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            below, here = here, above
            is_root = os.path.samestat(os.fstat(below), os.fstat(above))
            os.close(below)
            if is_root:
                return False
        return True
    finally:
        os.close(here)
