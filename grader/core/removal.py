"""Removal of a folder that untrusted code has filled, at any depth and with any names and permissions.

Theory of operation. Before a subfolder is removed, the folders in it are moved up to the top folder, under new names.
So all paths are short, few descriptors are open, and removal does not recurse. 100,000 nested folders cost as much as
100,000 side by side. `shutil.rmtree` and `os.walk` are not used: older Pythons recurse once per level, and a path
cannot be longer than 4096 bytes. Links are removed, never followed.

Imports nothing of the kit: the process beside untrusted code (`torch.forkserver`) uses this file too.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Error numbers of a rename that failed because the new name exists already.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a folder with all its content, a file or a link. Raise no error for an item that cannot be removed."""
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError), _closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as outer:
        _remove_in(outer, name)


def empty(folder: str | os.PathLike[str], kept: Collection[str] = ()) -> None:
    """Remove the content of a folder, except the paths in `kept` and the folders that lead to them."""
    with contextlib.suppress(OSError), _closing(os.open(folder, _FOLDER)) as outer:
        for name in os.listdir(outer):
            path = os.path.join(folder, name)
            if any(keep.startswith(path + "/") for keep in kept):
                empty(path, kept)
            elif path not in kept:
                with contextlib.suppress(OSError):
                    _remove_in(outer, name)


def mount_points() -> list[str]:
    """List the mount points of this process, which a removal must not enter (Linux only; empty elsewhere)."""
    try:
        with open("/proc/self/mountinfo") as listing:
            # Linux writes white space and backslashes in this field as octal escapes.
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
    """Remove `name` in the folder `outer`. Nested folders are moved up first, so that no path becomes too long."""
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
    """Remove everything in a folder except its subfolders. Return the names of the subfolders."""
    with os.scandir(folder) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_folder in entries:
        if not is_folder:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in entries if is_folder]


def _moved_up(inner: int, name: str, top: int, fresh: Iterator[int]) -> str:
    """Move the folder `name` from `inner` to `top`, under an unused name from `fresh`. Return the name."""
    while True:
        new_name = str(next(fresh))
        try:
            try:
                os.rename(name, new_name, src_dir_fd=inner, dst_dir_fd=top)
            except PermissionError:
                # Only a writable folder can be moved to another parent.
                os.chmod(name, 0o700, dir_fd=inner)
                os.rename(name, new_name, src_dir_fd=inner, dst_dir_fd=top)
            return new_name
        except OSError as error:
            if error.errno not in _TAKEN:
                raise


def _open(outer: int, name: str) -> int:
    """Make a folder readable and writable, and open it. Return its descriptor. Raises OSError for a file."""
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
