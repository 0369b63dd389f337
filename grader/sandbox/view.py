"""Files that code in a sandbox may see: the system's libraries, Python and torch, but not the kit."""

from __future__ import annotations

import _ctypes
import functools
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from grader.core import machine
from grader.core.places import ROOT

INSTALLED = ("site-packages", "dist-packages")
#: Subfolders of the kit that compilers and runners read: they hold the headers and the runner's files.
NEEDED = ("grader",)
#: Names in the folder of a Python environment. The kit has no files of these names, so they can be skipped if the kit's
#: folder is also an environment.
ENVIRONMENT = ("bin", "etc", "include", "lib", "lib64", "pyvenv.cfg", "share")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: The only files of /etc visible without a GPU: tables of the loader, Debian's alternatives, the local time zone.
SYSTEM_TABLES = tuple(
    f"/etc/{name}" for name in ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
)
#: Paths at which the loader finds the files that it opens before a dynamic program starts.
LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_FACTS = "/sys/devices/system/cpu /sys/devices/system/node /proc/cpuinfo /proc/meminfo /proc/stat"
FACTS = tuple(_FACTS.split())
_CARD_FACTS = """
/proc/driver/nvidia /proc/driver/nvidia-uvm /proc/devices /proc/modules /proc/sys/vm/overcommit_memory
/proc/sys/vm/mmap_min_addr /sys/module /sys/bus/pci /sys/devices /sys/class/drm /etc/nvidia /etc/passwd
"""
CARD_FACTS = tuple(_CARD_FACTS.split())
"""Files that CUDA's driver reads, besides FACTS."""


def card_devices() -> list[str]:
    """Return the device files of the machine's GPUs and of their driver."""
    found = [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("nvidia-caps/*"), Path("/dev/dxg")]
    return sorted(str(path) for path in found if path.is_char_device())


@functools.cache
def system_paths() -> tuple[Path, ...]:
    """Return the paths of SYSTEM and SYSTEM_TABLES that exist, without the kit, which may be in /usr/src."""
    return tuple(
        without([Path(path) for path in (*SYSTEM, *SYSTEM_TABLES) if os.path.exists(path)], kit_paths())
    )


@functools.cache
def python_paths() -> tuple[Path, ...]:
    """Return the folders of the interpreter, its environment, torch and other installed packages, without the kit."""
    return tuple(without(outermost(_python_roots()), kit_paths()))


@functools.cache
def interpreter_paths() -> tuple[Path, ...]:
    """Return the interpreter, its standard library and the libraries that `lock.py` loads; no installed packages."""
    installed = [
        folder
        for root in _python_roots()
        for name in INSTALLED
        for folder in root.glob(f"lib*/python*/{name}")
    ]
    # The module ctypes, which lock.py imports, needs a library that the interpreter itself does not need: libffi. A
    # static interpreter contains it.
    programs = (sys.executable, getattr(_ctypes, "__file__", sys.executable))
    libraries = [path for program in programs for path in loaded_files(program)]
    return (*without(python_paths(), installed), *libraries)


def loaded_files(program: str) -> Iterator[Path]:
    """Yield a program (or a library) and the libraries that it loads, each with the links that lead to the file."""
    for name in (program, *re.findall(r"(/[^\s()]+)", machine.answer(["ldd", program]))):
        yield from _steps(Path(name))


def _steps(path: Path) -> Iterator[Path]:
    """Yield a path and, if it is a link, each path of the chain of links down to the file. Skip missing paths."""
    for _ in range(40):
        if path.exists():
            yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / os.readlink(path)))


def _python_roots() -> set[Path]:
    roots = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent}
    if torch := torch_file():
        roots.add(Path(torch).parent.parent)
    # Add a user's own packages, and the folders of PYTHONPATH and .pth files.
    roots |= {Path(place) for place in sys.path if place and next(Path(place).glob("*.dist-info"), None)}
    # If an environment is a link, its target must be visible, too.
    return roots | {root.resolve() for root in roots}


def torch_file() -> str:
    """Return the path of a file of torch; "" if torch is not installed. Does not import torch."""
    spec = importlib.util.find_spec("torch")
    return (spec.origin or "") if spec is not None else ""


def kit_paths(root: Path = ROOT) -> tuple[Path, ...]:
    """Return the paths in the kit's folder, without a Python environment that lies there."""
    environments = _python_roots()
    return tuple(
        path
        for path in sorted(root.iterdir())
        if path.name not in ENVIRONMENT
        # Leave out a link to an environment, too: the environment would be hidden with the link.
        and not any(each.is_relative_to(place) for each in environments for place in (path, path.resolve()))
    )


def secrets() -> tuple[Path, ...]:
    """Return the paths in the kit's folder that no submission may read: the solution, hidden cases, tests and others.

    All paths are secret except NEEDED, a Python environment, and a folder that contains the temporary folder.
    """
    temporary = Path(tempfile.gettempdir())
    return tuple(
        path for path in kit_paths() if path.name not in NEEDED and not temporary.is_relative_to(path)
    )


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that do not lie inside another one of these paths."""
    ordered = sorted({Path(os.path.abspath(path)) for path in paths})
    kept: list[Path] = []
    for path in ordered:
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def without(paths: Iterable[Path], secrets: Iterable[Path]) -> Iterator[Path]:
    """Yield the paths without the secrets. In place of a folder that holds a secret, yield its other entries."""
    hidden = [Path(os.path.realpath(secret)) for secret in secrets]
    pending = [*paths][::-1]
    while pending:
        path = pending.pop()
        real = Path(os.path.realpath(path))
        if any(real.is_relative_to(secret) for secret in hidden):
            continue
        if any(secret.is_relative_to(real) for secret in hidden):
            pending += sorted(path.iterdir(), reverse=True)
        else:
            yield path


def programs_folders(program: str) -> tuple[Path, ...]:
    """Return the folder with a compiler's own parts (PREFIX of PREFIX/bin/NAME); () if sandboxes show it anyway."""
    prefix = Path(program).resolve().parent.parent
    known = (*system_paths(), *python_paths())
    if prefix == Path("/") or any(prefix.is_relative_to(os.path.realpath(path)) for path in known):
        return ()
    return (prefix,)
