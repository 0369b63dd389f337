"""Detection of saved files, for all ways in which editors write files, with or without notifications by the system.

The file's folder is watched, because some editors write a new file and rename it. After a notification, the file is
read once it has not changed for QUIET_S seconds. It counts as saved only if its content differs. The content is also
read every LOOK_S seconds, because the system does not report all changes, for example those in a network folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.backends.native.toolchain import cache_root
from grader.core import pythontree
from grader.core.errors import UsageError, explained

LIBRARY = "watchfiles"
#: Seconds without a change after which a file is read. Editors may write a file in several pieces.
QUIET_S = 0.03
#: Seconds after which a missing file counts as removed. Some editors remove a file before they write it anew.
GONE_S = 0.3
LOOK_S = 1.0
#: Interval in seconds at which the file is read if the system sends no notifications.
POLL_S = 0.1
#: Options of the package watchfiles. `step`: after a change, wait this many ms for further changes, again and again,
#: but at most `debounce` ms in total.
HOW: dict[str, Any] = {
    "debounce": 50,
    "step": 10,
    "rust_timeout": round(1e3 * LOOK_S),
    "yield_on_timeout": True,
    "raise_interrupt": False,
    "recursive": False,
}


def missing_library() -> str:
    """Return a message if the package that --watch needs is missing, else ""."""
    if importlib.util.find_spec(LIBRARY):
        return ""
    return f"--watch needs the package {LIBRARY}: `pip install {LIBRARY}`"


@dataclass(frozen=True)
class Content:
    """Content of the judged files in bytes: the source, then the files compiled with it. None: a file is missing."""

    files: tuple[bytes | None, ...]

    @property
    def source(self) -> bytes | None:
        return self.files[0]

    @property
    def text(self) -> str:
        return (self.source or b"").decode(errors="replace")


class Watcher:
    """Thread that watches a source and the files that are compiled with it. It runs inside a `with` block.

    The thread calls `on_save` with each new content. If the source is missing, it waits GONE_S seconds before the call.
    """

    def __init__(self, paths: tuple[Path, ...], on_save: Callable[[Content], None]) -> None:
        self.paths, self._on_save = paths, on_save
        self._imported: tuple[Path, ...] = ()
        """Files that the source imported when it was last read."""
        self.polls = False
        """True: the system cannot send notifications, so the file is read at intervals."""
        self._ended = threading.Event()
        self._last = self.content()
        self._thread = threading.Thread(target=self._look, daemon=True, name="watcher")

    def __enter__(self) -> Watcher:
        self.polls = not _has_file_events(self._folders())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * LOOK_S)

    def content(self) -> Content:
        """Return the current content of the source, with the modules that it imports, and of the other files."""
        source, *beside = self.paths
        self._imported = tuple(pythontree.members(source).values())
        return Content((_whole(source), *map(_bytes, beside)))

    # ---- the thread

    def _look(self) -> None:
        for _ in self._changes():
            self._settle()

    def _changes(self) -> Iterator[object]:
        """Yield each time a watched file may have changed, until the watcher ends. The values have no meaning."""
        if self.polls:
            while not self._ended.wait(POLL_S):
                yield None
            return
        from watchfiles import watch

        def is_followed(_: object, path: str) -> bool:
            return os.path.basename(path) in {each.name for each in self._followed()}

        while not self._ended.is_set():
            folders = self._folders()
            with contextlib.suppress(OSError, RuntimeError):
                for change in watch(*folders, watch_filter=is_followed, stop_event=self._ended, **HOW):
                    yield change
                    if set(self._folders()) != set(folders):
                        break  # The source now imports a file from another folder.
            # A watched folder was removed or replaced, or another folder must be watched: start again.
            yield None
            self._ended.wait(POLL_S)

    def _settle(self) -> None:
        """Wait until the files stop changing. Then call `on_save` if their content differs from the last content."""
        gone_s = time.monotonic() + GONE_S
        signs = self._signs()
        now = self.content()
        while not self._ended.wait(QUIET_S) and (
            (again := self._signs()) != signs or (now.source is None and time.monotonic() < gone_s)
        ):
            signs, now = again, self.content()
        if now != self._last and not self._ended.is_set():
            self._last = now
            self._on_save(now)

    def _signs(self) -> list[tuple[int, int, int] | None]:
        return [_sign(path) for path in (*self.paths, *self._imported)]

    def _followed(self) -> list[Path]:
        """Return the watched files, and the targets of those that are links."""
        paths = (*self.paths, *self._imported)
        return list(dict.fromkeys([*paths, *(path.resolve() for path in paths)]))

    def _folders(self) -> list[Path]:
        return [folder for folder in {path.absolute().parent for path in self._followed()} if folder.is_dir()]


def _whole(source: Path) -> bytes | None:
    """Return the source with its imported modules (alone if the imports are at fault); None if it is missing."""
    try:
        return pythontree.whole(source) if source.is_file() else None
    except UsageError:
        return _bytes(source)


def _bytes(path: Path) -> bytes | None:
    try:
        # Read regular files only: a read from a named pipe might never end.
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _sign(path: Path) -> tuple[int, int, int] | None:
    """Return (inode, size in bytes, modification time in ns) of a file; None if missing. A save changes one of them."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _has_file_events(folders: list[Path]) -> bool:
    """Return True if this process can get notifications of changes in `folders`. Linux limits their number."""
    from watchfiles import watch

    try:
        next(watch(*folders, stop_event=threading.Event(), **{**HOW, "rust_timeout": 1}), None)
    except (OSError, RuntimeError):
        return False
    return True


@contextlib.contextmanager
def only_one(source: Path) -> Iterator[None]:
    """Hold a lock for `source` in the `with` block. Raises UsageError if another --watch session watches it."""
    folder = cache_root() / "watched"
    name = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:24]
    with explained(f"cannot write the cache {folder}", UsageError, "set GPT149_CACHE to another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 20, 0).decode(errors="replace").strip()
            raise UsageError(
                f"another --watch{f' (process {owner})' if owner.isdigit() else ''} already follows "
                f"{source}: end that one first, because the two would disturb each other's times"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)
