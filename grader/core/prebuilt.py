"""Programs and objects that a handout holds compiled, because their sources would give the solution away.

They lie in a folder `prebuilt` beside the code that uses them, one file for each platform.
"""

from __future__ import annotations

import platform
from pathlib import Path

from grader.core.errors import KitError

#: Other names of a processor that `platform.machine()` returns.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def name(stem: str, system: str, machine: str) -> str:
    """Return the file name for a platform, from `platform.system()` and `platform.machine()`.

    Object files end in ".o".
    """
    machine = machine.lower()
    return f"{stem}-{system.lower()}-{_MACHINES.get(machine, machine)}{_suffix(stem)}"


def path(folder: Path, stem: str, what: str, system: str = "", machine: str = "") -> Path:
    """Return the file for a platform, by default this one. `what` is its name in messages.

    Raises KitError, listing the existing files, if this platform's is missing.
    """
    system, machine = system or platform.system(), machine or platform.machine()
    found = folder / name(stem, system, machine)
    if found.is_file():
        return found
    there = (each.name.removesuffix(_suffix(stem)) for each in folder.glob(f"{stem}-*{_suffix(stem)}"))
    others = ", ".join(sorted(each.removeprefix(f"{stem}-") for each in there))
    raise KitError(
        f"this handout has no {what} for {system} on {machine} (it has {others or 'none'}): "
        f"use a machine of the course, or ask the staff for {found.name}, to be put into {folder}"
    )


def _suffix(stem: str) -> str:
    return ".o" if stem.startswith("lib") else ""
