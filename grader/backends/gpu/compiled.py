"""Folders of compiled Triton kernels, one for each judged file: the build fills them, and runners read them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path

GROUP = "__grp__"
KEPT = "/kept"
"""Placeholder for a folder's path in Triton's lists of files, while a copy of the folder lies outside of `root`."""


class Caches:
    """Folders of compiled kernels below `root`. Runners see `root` under the path `inside`."""

    def __init__(self, root: Path, inside: str) -> None:
        self._root, self._inside = root, inside

    def new(self) -> str:
        """Create an empty folder. Return its name."""
        name = secrets.token_hex(8)
        (self._root / name).mkdir(mode=0o755)
        return name

    def path(self, name: str) -> str:
        """Return the path under which runners see the folder `name`."""
        return f"{self._inside}/{name}"

    def lend(self, name: str, uid: int | None) -> None:
        """Let the user id `uid`, under which kernels are compiled, write to a folder. None changes nothing."""
        if uid is not None:
            os.chown(self._root / name, uid, uid)

    def seal(self, name: str) -> None:
        """Take a folder over from the build: keep only plain files, and make it read-only."""
        for folder, _, names in os.walk(self._root / name, topdown=False):
            for each in names:
                path = Path(folder, each)
                if stat.S_ISREG(path.lstat().st_mode):
                    _own(path, 0o444)
                else:
                    path.unlink()
            _own(Path(folder), 0o555)

    def merge(self, into: str, other: str) -> None:
        """Copy the files that the folder `into` lacks from the sealed folder `other`, and remove `other`."""
        _copy(self._root / other, self._root / into, self.path(other), self.path(into))
        self.drop(other)

    def keep(self, name: str, to: Path) -> None:
        """Copy a sealed folder to the path `to`, outside of the root."""
        _copy(self._root / name, to, self.path(name), KEPT)

    def take(self, kept: Path) -> str:
        """Make a new folder with the content of `kept`, a folder that `keep` has written. Return its name."""
        name = self.new()
        _copy(kept, self._root / name, KEPT, self.path(name))
        return name

    def drop(self, name: str) -> None:
        for folder, _, _ in os.walk(self._root / name):
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
        shutil.rmtree(self._root / name, ignore_errors=True)


def _copy(source: Path, target: Path, old: str, new: str) -> None:
    """Copy the files that the target lacks. In Triton's lists of files, replace the path `old` by `new`."""
    for folder, _, names in os.walk(source):
        to = target / Path(folder).relative_to(source)
        if to.is_dir():
            to.chmod(0o755)
        to.mkdir(mode=0o755, exist_ok=True)
        for name in names:
            if (to / name).exists():
                continue
            if name.startswith(GROUP):
                # This is Triton's list of a kernel's files, with absolute paths.
                text = Path(folder, name).read_text(errors="replace")
                (to / name).write_text(text.replace(old, new))
            else:
                shutil.copyfile(Path(folder, name), to / name)
            (to / name).chmod(0o444)


def _own(path: Path, mode: int) -> None:
    """Set owner and permissions of a file or folder. Links are not followed."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if os.geteuid() == 0:
                os.fchown(fd, 0, 0)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
