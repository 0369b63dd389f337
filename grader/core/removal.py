"""Removing a folder that a stranger's code has filled, whatever its depth, names and modes.

Theory of operation. A folder inside the one to be removed is emptied by moving its own folders up, under fresh names,
beside it. So no path has more than two parts, three descriptors are open at most, and nothing calls itself: 100,000
folders one in another cost what as many side by side do. `shutil.rmtree` and `os.walk` call themselves once per level
before Python 3.13, and paths end at 4096 bytes. Links are removed, never followed.

Imports nothing of the kit: the process beside a stranger's code (`torch.forkserver`) uses this file too.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A fresh name that is taken: by a folder that is not empty, or by something else.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a folder with all that is in it, a file or a link. What cannot be removed stays, without a word."""
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError), _closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as outer:
        _remove_in(outer, name)


def empty(folder: str | os.PathLike[str], kept: Collection[str] = ()) -> None:
    """Remove all that is in a folder but what `kept` names by its path, and the folders on the way to that."""
    with contextlib.suppress(OSError), _closing(os.open(folder, _FOLDER)) as outer:
        for name in os.listdir(outer):
            path = os.path.join(folder, name)
            if any(keep.startswith(path + "/") for keep in kept):
                empty(path, kept)
            elif path not in kept:
                with contextlib.suppress(OSError):
                    _remove_in(outer, name)


def mount_points() -> list[str]:
    """Where other file systems lie in this process's tree: what removes a folder must not enter them (Linux only)."""
    try:
        with open("/proc/self/mountinfo") as listing:
            # The field is written with octal escapes for white space and the backslash.
            return [
                line.split()[4]
                .encode("latin-1")
                .decode("unicode_escape")
                .encode("latin-1")
                .decode(errors="replace")
                for line in listing
            ]
    except OSError:
        return []


def _remove_in(outer: int, name: str) -> None:
    if not stat.S_ISDIR(os.lstat(name, dir_fd=outer).st_mode):
        os.unlink(name, dir_fd=outer)
        return
    with _closing(_open(outer, name)) as top:
        fresh = itertools.count()
        pending = _folders_left(top)
        while pending:
            inner_name = pending.pop()
            with contextlib.suppress(OSError), _closing(_open(top, inner_name)) as inner:
                pending += [_moved_up(inner, found, top, fresh) for found in _folders_left(inner)]
            with contextlib.suppress(OSError):
                os.rmdir(inner_name, dir_fd=top)
    os.rmdir(name, dir_fd=outer)


def _folders_left(folder: int) -> list[str]:
    """Remove everything but folders; the names of those."""
    with os.scandir(folder) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_folder in entries:
        if not is_folder:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in entries if is_folder]


def _moved_up(inner: int, name: str, top: int, fresh: Iterator[int]) -> str:
    """Move a folder up beside the one that it lies in; its new name. Raises OSError."""
    while True:
        new_name = str(next(fresh))
        try:
            try:
                os.rename(name, new_name, src_dir_fd=inner, dst_dir_fd=top)
            except PermissionError:
                # To be moved, a folder has to be writable itself.
                os.chmod(name, 0o700, dir_fd=inner)
                os.rename(name, new_name, src_dir_fd=inner, dst_dir_fd=top)
            return new_name
        except OSError as error:
            if error.errno not in _TAKEN:
                raise


def _open(outer: int, name: str) -> int:
    """A folder, opened and made writable whatever rights it has given away. Raises OSError."""
    try:
        opened = os.open(name, _FOLDER, dir_fd=outer)
    except PermissionError:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=outer).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=outer)
        opened = os.open(name, _FOLDER, dir_fd=outer)
    with contextlib.suppress(OSError):
        os.fchmod(opened, 0o700)
    return opened


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
