"""The folder into which a compiler writes when it compiles a student's text, and the copying of its outputs."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.core import objectcache
from grader.core.errors import KitError
from grader.sandbox.tiers import Sandbox


@dataclass(frozen=True)
class Room:
    """The paths of one compiler run. `folder` is writable; `header` is the precompiled header's folder.

    `read` are the paths that the compiler sees besides the system and Python. `uid` is its user id; None: the judge's.
    """

    folder: Path
    header: Path | None
    read: tuple[Path, ...]
    uid: int | None = None

    def put(self, name: str, content: bytes) -> Path:
        """Write a file into the folder. Every user may read it, even under a strict umask."""
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o644)
        return path


@contextlib.contextmanager
def room(sandbox: Sandbox, place: Path, header: Path | None) -> Iterator[Room]:
    """Yield a Room for the compilers of one build. `header` is the folder of a precompiled header in the build cache.

    The compilers write to `place`, the build's own empty folder. In tier C, however, they run as another user, who
    cannot enter the cache. There they write to a temporary folder, and see hard links or copies of the header's files.
    """
    read = () if header is None else (header,)
    if not sandbox.own_uid or sandbox.hides_files:
        yield Room(place, header, read)
        return
    with (
        sandbox.claimed_uids() as block,
        tempfile.TemporaryDirectory(prefix="gpt149-build-", ignore_cleanup_errors=True) as outer,
    ):
        assert block is not None
        os.chmod(outer, 0o711)
        folder, known = Path(outer, "out"), None
        folder.mkdir()
        os.chown(folder, block[0], block[0])
        if header is not None:
            known = Path(outer, "header")
            shutil.copytree(header, known, copy_function=objectcache.second_name)
            for path in (known, *known.rglob("*")):
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        yield Room(folder, known, (), block[0])


def taken(made: Path, place: Path) -> Path:
    """Return the compiler's output file `made`, copied to `place` if it lies elsewhere.

    Raises KitError if it is missing or is not a plain file.
    """
    try:
        if not stat.S_ISREG(made.lstat().st_mode):
            raise KitError(f"the compiler's output {made.name} is not a regular file; please report this")
    except FileNotFoundError as error:
        raise KitError(f"the compiler reported success without making {made.name}; run it again") from error
    if made.parent == place:
        return made
    return Path(shutil.copyfile(made, place / made.name, follow_symlinks=False))
