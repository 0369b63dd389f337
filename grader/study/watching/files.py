"""When a file has been saved: by whichever way an editor writes it, with or without help of the system's.

The file's folder is looked at, not the file: an editor that renames a new file into place gives its name to another
file. Whatever tells of a change only says when to look; what counts is the file's content, read once it has been left
alone for QUIET_S. A look at every LOOK_S besides finds what nobody told of (a network's folder, a folder that was
removed and made again).
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
from grader.core.errors import UsageError

LIBRARY = "watchfiles"
#: How long a file has to be left alone before it is read: editors write in pieces.
QUIET_S = 0.03
#: For how long a file that is gone may come back before that is told: some editors remove it first.
GONE_S = 0.3
LOOK_S = 1.0
#: Between two looks where the system does not tell of changes.
POLL_S = 0.1
#: Of watchfiles: after a first change others are waited for in steps, for `debounce` at most.
HOW: dict[str, Any] = {
    "debounce": 50,
    "step": 10,
    "rust_timeout": round(1e3 * LOOK_S),
    "yield_on_timeout": True,
    "raise_interrupt": False,
    "recursive": False,
}


def missing_library() -> str:
    """Return advice on what to install, as one line, or ""."""
    if importlib.util.find_spec(LIBRARY):
        return ""
    return f"--watch needs the package {LIBRARY}: `pip install {LIBRARY}`"


@dataclass(frozen=True)
class Content:
    """The bytes of what is judged: the source and the files beside it that are compiled with it, None where one is not
    there."""

    files: tuple[bytes | None, ...]

    @property
    def source(self) -> bytes | None:
        return self.files[0]

    @property
    def text(self) -> str:
        return (self.source or b"").decode(errors="replace")


class Watcher:
    """Looks at a file and those beside it from a thread of its own.

    `on_save` hears of each new content, in that thread; of a source that is gone once it has been so for GONE_S.
    """

    def __init__(self, paths: tuple[Path, ...], on_save: Callable[[Content], None]) -> None:
        self.paths, self._on_save = paths, on_save
        self._imported: tuple[Path, ...] = ()
        """Files that the source imports, as of the last look."""
        self.polls = False
        """True if the system has no way left to tell of changes."""
        self._ended = threading.Event()
        self._last = self.content()
        self._thread = threading.Thread(target=self._look, daemon=True, name="watcher")

    def __enter__(self) -> Watcher:
        self.polls = not _system_tells(self._folders())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * LOOK_S)

    def content(self) -> Content:
        """Return the present state of the source and of all that it imports."""
        source, *beside = self.paths
        self._imported = tuple(pythontree.members(source).values())
        return Content((_whole(source), *map(_bytes, beside)))

    # ---- the thread

    def _look(self) -> None:
        for _ in self._told():
            self._settle()

    def _told(self) -> Iterator[object]:
        """Once for each time that something may have changed."""
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
                        break  # the source imports from another one now
            # The folder is gone, or was made anew: from here on it is another one.
            yield None
            self._ended.wait(POLL_S)

    def _settle(self) -> None:
        """Wait until the files are left alone, and tell of them if they are other ones than before."""
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
        """The files, and what they are links to."""
        paths = (*self.paths, *self._imported)
        return list(dict.fromkeys([*paths, *(path.resolve() for path in paths)]))

    def _folders(self) -> list[Path]:
        return [folder for folder in {path.absolute().parent for path in self._followed()} if folder.is_dir()]


def _whole(source: Path) -> bytes | None:
    """The source as it is judged."""
    try:
        return pythontree.whole(source) if source.is_file() else None
    except UsageError:
        return _bytes(source)


def _bytes(path: Path) -> bytes | None:
    try:
        # What is no file (a pipe, say) might never end.
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _sign(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _system_tells(folders: list[Path]) -> bool:
    """Return True if the system lets this process be told of changes: watches are a resource that may be used up."""
    from watchfiles import watch

    try:
        next(watch(*folders, stop_event=threading.Event(), **{**HOW, "rust_timeout": 1}), None)
    except (OSError, RuntimeError):
        return False
    return True


@contextlib.contextmanager
def only_one(source: Path) -> Iterator[None]:
    """Keep a second watcher from the file: each would disturb the other's times. Raises UsageError where there is
    one."""
    folder = cache_root() / "watched"
    name = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:24]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot write the cache {folder}: {error.strerror}; point GPT149_CACHE elsewhere"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(handle, 20, 0).decode(errors="replace").strip()
            raise UsageError(
                f"another --watch{f' (process {owner})' if owner.isdigit() else ''} has {source} already: "
                "end it first, as each would disturb the other's times"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)
