"""Finder of prebuilt programs and objects. A handout has them compiled only, because their sources show the solution.

The prebuilt files lie in a folder `prebuilt` beside the code that uses them, one file for each platform.
"""

from __future__ import annotations

import platform
from pathlib import Path

from grader.core.errors import KitError

#: Names that `platform.machine()` returns on some systems, and the names that files use for the same processor.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def name(stem: str, system: str, machine: str) -> str:
    """Return the name of a prebuilt file: "STEM-linux-x86_64". The name of an object (stem "lib...") ends in ".o".

    `system` and `machine` are the values of `platform.system()` and `platform.machine()`.
    """
    machine = machine.lower()
    return f"{stem}-{system.lower()}-{_MACHINES.get(machine, machine)}{_suffix(stem)}"


def path(folder: Path, stem: str, what: str, system: str = "", machine: str = "") -> Path:
    """Return the path of the prebuilt file for a platform, by default this one. `what` names the file in messages.

    If the file is missing, raises KitError with the platforms for which `folder` has one.
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
