"""The cache of built objects and precompiled headers, and the prebuilt objects of a handout.

An entry is built in a folder under `work` and renamed into place when it is complete. An entry's modification time is
the time of its last use. Nothing is locked, so a killed build cannot block another build. The folder of a killed build
stays under `work` until `prune` removes it.

A handout has some programs and objects without their sources, because the sources show the solution. They lie in a
folder `prebuilt` beside the code that uses them, one file for each platform.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from grader.core.errors import KitError, explained

MAX_BYTES = 2 << 30
MAX_ENTRIES = 200
#: Entries used in the last MIN_AGE_S seconds are not removed: a runner may be about to load them.
MIN_AGE_S = 3600.0


def touch(entry: Path) -> bool:
    """Mark an entry as used now. Return True if it exists."""
    try:
        os.utime(entry)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def workplace(root: Path) -> Iterator[Path]:
    """Yield a new folder in the cache and remove it afterwards. Its files can be renamed to entries of the cache.

    Raises KitError if the cache cannot be written.
    """
    parent = root / "work"
    with explained(f"cannot write the cache {root}", KitError, "point GPT149_CACHE elsewhere"):
        parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def publish(made: Path, entry: Path) -> None:
    """Rename a finished file or folder `made` to `entry`. Do nothing if another build has made that folder first."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(made, entry)
    except OSError:
        if not entry.is_dir():
            raise


def kept(root: Path, entry: Path, make: Callable[[Path], Path]) -> Path:
    """Return the path `entry` in the cache `root`, after building the entry if it is missing.

    `make(folder)` builds the entry in a new folder, and returns the path of the file or folder that becomes the entry.
    """
    if not touch(entry):
        with workplace(root) as place:
            publish(make(place), entry)
        prune(root)
    return entry


def share(root: Path, other: Path, kinds: Collection[str]) -> None:
    """Copy entries whose suffix is in `kinds` (".plain", say) to the cache `other`, as hard links where possible.

    An entry's name is a digest of all that its content depends on, so entries of one name in both caches are equal.
    """
    for folder in ("objects", "headers"):
        for entry in _list(root / folder):
            if entry.suffix in kinds and entry.is_dir() and not (other / folder / entry.name).exists():
                # Another process may remove `entry` meanwhile.
                with workplace(other) as place, contextlib.suppress(OSError):
                    shutil.copytree(entry, place / entry.name, copy_function=second_name)
                    publish(place / entry.name, other / folder / entry.name)


def second_name(file: str, name: str) -> None:
    """Create `name` as a hard link to `file`, or as a copy if a link is not possible."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copy2(file, name)


def prune(
    root: Path, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES, min_age_s: float = MIN_AGE_S
) -> None:
    """Keep the most recently used entries that fit both limits. Remove the others and old leftovers of killed builds.

    Entries used in the last `min_age_s` seconds stay. Other processes may use and prune the cache meanwhile.
    """
    now = time.time()
    paths = [path for folder in ("objects", "headers") for path in _list(root / folder)]
    entries = [(*known, path) for path in paths if (known := _used_and_size(path)) is not None]
    kept_bytes = kept_entries = 0
    for used, size, path in sorted(entries, reverse=True):
        kept_bytes += size
        kept_entries += 1
        if (kept_bytes > max_bytes or kept_entries > max_entries) and now - used > min_age_s:
            kept_bytes -= size
            kept_entries -= 1
            _remove(path)
    for left in _list(root / "work"):
        known = _used_and_size(left)
        if known is not None and now - known[0] > max(min_age_s, MIN_AGE_S):
            _remove(left)


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _used_and_size(path: Path) -> tuple[float, int] | None:
    """Return (time of an entry's last use, its size in bytes); None if another process has removed it."""
    try:
        status = path.stat()
        if not path.is_dir():
            return status.st_mtime, status.st_size
        return status.st_mtime, sum(item.stat().st_size for item in path.iterdir())
    except FileNotFoundError:
        return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


#: Some systems' names for a processor (from `platform.machine()`), with the names used in prebuilt files' names.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def prebuilt_name(stem: str, system: str, machine: str) -> str:
    """Return the name of a prebuilt file: "STEM-linux-x86_64". The name of an object (stem "lib...") ends in ".o".

    `system` and `machine` are the values of `platform.system()` and `platform.machine()`.
    """
    machine = machine.lower()
    return f"{stem}-{system.lower()}-{_MACHINES.get(machine, machine)}{_suffix(stem)}"


def prebuilt(folder: Path, stem: str, what: str, system: str = "", machine: str = "") -> Path:
    """Return the path of the prebuilt file for a platform, by default this one. `what` names the file in messages.

    If the file is missing, raises KitError with the platforms for which `folder` has one.
    """
    system, machine = system or platform.system(), machine or platform.machine()
    found = folder / prebuilt_name(stem, system, machine)
    if found.is_file():
        return found
    there = (each.name.removesuffix(_suffix(stem)) for each in folder.glob(f"{stem}-*{_suffix(stem)}"))
    others = ", ".join(sorted(each.removeprefix(f"{stem}-") for each in there))
    raise KitError(
        f"this handout has no {what} for {system} on {machine} (found: {others or 'none'}): "
        f"use a machine of the course, or ask the staff for {found.name} and put it into {folder}"
    )


def _suffix(stem: str) -> str:
    return ".o" if stem.startswith("lib") else ""
