"""Digests of a verdict's inputs: files, assignment, kit and settings. If one changes, the verdict is out of date."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from grader.assignment import labs
from grader.backends.native import toolchain
from grader.core import imports
from grader.core.places import ROOT

#: Modules at which judging starts. These modules, and all that they import, can change a verdict, except NOT_DECIDING.
DECIDING = (
    *("grader.judge.evaluate", "grader.integrity.inspection", "grader.staff.classroom.worker"),
    *("grader.backends.torch.forkserver", "grader.runner.runner"),
    *("grader.sandbox.lock", "module_ref_stub.library"),
    # Labs are imported by name at run time, so the search for import statements does not find them.
    *(f"{labs.PACKAGE}.{name}" for name in labs.known()),
)
#: Packages that the search for imports skips, because they cannot change a verdict: commands for the staff (except the
#: worker, see DECIDING), reports, and the studies for students.
NOT_DECIDING = (
    "grader.staff",
    "grader.report",
    "grader.study",
    *(f"{labs.PACKAGE}.{name}.studies" for name in labs.known()),
)
#: Folders with sources in C++ and CUDA that can change a verdict: headers, the runners, the judge's kernels, and the
#: reference.
COMPILED = ("grader/backends", "module_ref_stub")
COMPILED_SUFFIXES = {".h", ".cpp", ".map", ".cu", ".ptx"}


@dataclass(frozen=True)
class Fingerprints:
    """Digests of a verdict's inputs.

    `source`: the submission's files. `assignment`: the assignment's files. `kit`: the kit's sources, and the versions
    of Python and torch. `settings`: the run's option `timing`.
    """

    source: str
    assignment: str
    kit: str
    settings: str

    def changes(self, now: Fingerprints) -> tuple[str, ...]:
        """Return a text such as "source changed" for each digest that differs from that in `now`."""
        then, new = asdict(self), asdict(now)
        return tuple(f"{name} changed" for name in then if then[name] != new[name])


def of_text(text: str) -> str:
    """Return the digest of a text, such as the error of an archive or the settings of a run."""
    return _digest([text.encode(errors="surrogateescape")])


def deciding() -> list[Path]:
    """Return the sorted paths of sources that can change a verdict: those of DECIDING, its imports and COMPILED."""
    known = imports.modules(ROOT)
    judging = imports.closure(ROOT, DECIDING, stop=NOT_DECIDING)
    found = [known[name] for name in judging if name in DECIDING or not name.startswith(NOT_DECIDING)]
    sources = [path for folder in COMPILED for path in (ROOT / folder).rglob("*")]
    sources += (ROOT / labs.PACKAGE).glob("*/reference.*")
    return sorted([*found, *(path for path in sources if path.suffix in COMPILED_SUFFIXES)])


@cache
def of_kit() -> str:
    """Return the digest of the kit's sources that can change a verdict, and of the versions of Python and torch."""
    parts = [f"python {platform.python_version()} torch {toolchain.torch_version()}".encode()]
    for path in deciding():
        parts += [path.relative_to(ROOT).as_posix().encode(), path.read_bytes()]
    return _digest(parts)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]
