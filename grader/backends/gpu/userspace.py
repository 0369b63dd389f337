"""Gives a runner what Python files expect of a user: a name, a home, /tmp, and modules to import.

A runner has a user id of its own without an entry in the system's table, writes in its scratch folder alone, and may
have no way through the folders above Python (an interpreter below /root). Imports nothing of the kit.
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
    """Make this process a user's: before it is locked, with the folders `roots` of modules still in reach."""
    os.environ.update(HOME=scratch, USER=USER, LOGNAME=USER)
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(scratch, "triton"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(scratch, "inductor")
    name_user(scratch)
    tempfile.tempdir = scratch
    if is_locked:
        write_in(scratch)
    keep_open(roots)


def name_user(home: str) -> None:
    """Give a user id without an entry one, as `getpass` and torch's compiler ask for it."""
    import pwd

    known: Callable[[int], Any] = pwd.getpwuid

    def getpwuid(uid: int) -> Any:
        try:
            return known(uid)
        except KeyError:
            return pwd.struct_passwd((USER, "x", uid, uid, USER, home, "/bin/sh"))

    pwd.getpwuid = getpwuid


def write_in(scratch: str) -> None:
    """Let files below /tmp lie in the scratch folder. What the judge made there (the scratch folder, the hand-in) is
    where it is."""
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
    """Find modules by folders that are open, whoever may go through the folders above them."""
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
