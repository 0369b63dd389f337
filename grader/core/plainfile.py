"""Access to files and folders at untrusted paths, without following links or waiting for pipes.

A results folder may be shared, copied or unpacked from an archive. So another person may have replaced a file of the
kit by a link or a pipe, say. Only plain files and folders are opened. Anything else raises an OSError whose `strerror`
describes the object at the path. Every read has a limit. `replace`, `write` and `write_bytes` write files whole:
such a file never appears half-written, neither to concurrent readers nor after an interruption.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from grader.core.quantities import size_text

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Flags for opening a file. Without O_NONBLOCK, opening would block if a pipe has replaced the file.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open a folder and yield its descriptor. `make`: True to create it if it is missing. Raises OSError for a link."""
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            with folder(path.parent.resolve()) as parent:
                os.fsync(parent)
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError as error:
        raise _described(error, path, None) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(
    path: Path | str, flags: int = os.O_RDONLY, *, inside: int | None = None, mode: int = 0o666
) -> int:
    """Open the plain file at `path`, relative to the folder descriptor `inside` if given. Return its descriptor.

    With O_CREAT in `flags` a missing file is created. Raises OSError for links, pipes and folders. When opening for
    writing, also raises OSError if the file has a second name (a hard link): the file under that name would change,
    too.
    """
    try:
        descriptor = os.open(path, flags | _FILE, mode, dir_fd=inside)
    except OSError as error:
        raise _described(error, path, inside) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {_kind(status.st_mode)}: remove it")
        if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise OSError(
                errno.EMLINK, "it has a second name elsewhere (a hard link): replace it by a copy of it"
            )
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path | str, most_bytes: int, *, inside: int | None = None) -> bytes:
    """Return the content of a plain file. Raises OSError for a link or a pipe, and for more than `most_bytes`."""
    with os.fdopen(open_file(path, inside=inside), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {size_text(most_bytes)}")
    return content


def replace(inside: int, name: str, pieces: Iterable[bytes], *, sync: bool = True) -> None:
    """Write the file `name` in the folder with the descriptor `inside`. An existing file or link is replaced.

    If writing fails, raises OSError, and the old file is still there. Also raises OSError if `name` is a folder.
    `sync`: True to wait until the content is on the disk.
    """
    partial = f".{name}.partial"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=inside)
        descriptor = open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, inside=inside)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(partial, name, src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=inside)
        raise
    if sync:
        os.fsync(inside)


def trouble_with(path: Path, *, wants_folder: bool) -> str:
    """Return the reason why `path` cannot be written (a link in place of a folder, say); "" if it can be.

    `wants_folder`: True if a folder is to be written there, False for a file.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return ""
    if wants_folder:
        return "" if stat.S_ISDIR(mode) else f"it is {_kind(mode)}: remove it"
    return "it is a folder: remove it" if stat.S_ISDIR(mode) else ""


def _described(error: OSError, path: Path | str, inside: int | None) -> OSError:
    """Return the error, with a clearer message if a link, a pipe or a folder at the path caused it."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
        return error
    with contextlib.suppress(OSError):
        mode = os.stat(path, dir_fd=inside, follow_symlinks=False).st_mode
        return OSError(error.errno, f"it is {_kind(mode)}: remove it")
    return error


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link, and links are not followed here"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a pipe or a device"


def write(path: Path, pieces: Iterable[str], *, encoding: str = "utf-8") -> None:
    """Encode the pieces of a text and write them with `write_bytes`. Raises OSError if that fails."""
    # One encoder for all pieces: only the beginning of the file gets a byte order mark.
    encoder = codecs.getincrementalencoder(encoding)()
    write_bytes(path, map(encoder.encode, pieces))


def write_bytes(path: Path, pieces: Iterable[bytes], *, mode: int | None = None) -> None:
    """Write the pieces to a file beside `path`, flush it to the disk, and rename it to `path`.

    A link at `path` is replaced, not followed. `mode` gives the file's permissions, by default the usual permissions of
    a new file. Raises OSError if writing fails.
    """
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        if mode is None:
            # mkstemp makes files that only their owner may read. A report should have the usual permissions.
            mask = os.umask(0)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(partial, mode)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
