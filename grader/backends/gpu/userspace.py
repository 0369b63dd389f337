"""Gives a runner the environment that Python files expect: a user name, a home folder, /tmp, and modules to import.

The user id of a runner has no entry in the system's table of users. A runner may write only in its scratch folder. It
may lack access to the folders above Python, such as /root. This file imports nothing of the kit.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

USER = "student"
TEMPORARY = "/tmp"


def settle(scratch: str, roots: Iterable[str], *, is_locked: bool) -> None:
    """Set up this process, before it is locked: while it can still open `roots`, the folders with Python's modules.

    `is_locked`: the process will be able to write in `scratch` only.
    """
    os.environ.update(HOME=scratch, USER=USER, LOGNAME=USER)
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(scratch, "triton"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(scratch, "inductor")
    name_user(scratch)
    tempfile.tempdir = scratch
    if is_locked:
        write_in(scratch)
    keep_open(roots)


def name_user(home: str) -> None:
    """Make `pwd.getpwuid` return an entry for any user id: `getpass` and torch's compiler ask for one."""
    import pwd

    known: Callable[[int], Any] = pwd.getpwuid

    def getpwuid(uid: int) -> Any:
        try:
            return known(uid)
        except KeyError:
            return pwd.struct_passwd((USER, "x", uid, uid, USER, home, "/bin/sh"))

    pwd.getpwuid = getpwuid


def write_in(scratch: str) -> None:
    """Redirect files and folders below /tmp to the scratch folder, except those in the judge's own folder there."""
    plain_open, plain_mkdir = io.open, os.mkdir
    judges = "/".join(scratch.split("/")[:3])

    def moved(path: Any) -> Any:
        if not isinstance(path, (str, os.PathLike)):
            return path
        text = os.fspath(path)
        if (
            not isinstance(text, str)
            or not text.startswith(f"{TEMPORARY}/")
            or f"{text}/".startswith(f"{judges}/")
        ):
            return path
        return os.path.join(scratch, os.path.relpath(os.path.normpath(text), TEMPORARY))

    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        return plain_open(moved(file), *arguments, **named)

    def made(path: Any, *arguments: Any, **named: Any) -> None:
        plain_mkdir(moved(path), *arguments, **named)

    builtins.open = io.open = opened
    os.mkdir = made


def keep_open(roots: Iterable[str]) -> None:
    """Open the folders `roots` and import through them. So imports work even if the folders above cannot be entered."""
    ways = {}
    for root in roots:
        if os.path.isdir(root):
            ways[root] = f"/proc/self/fd/{os.open(root, os.O_PATH | os.O_DIRECTORY)}"

    def way(path: str) -> str:
        found = next((root for root in ways if path == root or path.startswith(f"{root}/")), None)
        return path if found is None else ways[found] + path[len(found) :]

    sys.path[:] = [way(path) for path in sys.path]
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            places[:] = [way(path) for path in places]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
