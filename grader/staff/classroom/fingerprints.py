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

#: Entry modules of judging. Each module that they import can change a verdict, except those in NOT_DECIDING.
DECIDING = (
    *("grader.judge.evaluate", "grader.integrity.inspection", "grader.staff.classroom.worker"),
    *("grader.backends.torch.forkserver", "grader.runner.runner"),
    *("grader.sandbox.lock", "module_ref_stub.library"),
    # No import statement names a lab, so the search for imports cannot find it.
    *(f"{labs.PACKAGE}.{name}" for name in labs.known()),
)
#: Modules that the search for imports skips: commands for the staff, reports, and the studies for students.
NOT_DECIDING = (
    "grader.staff",
    "grader.report",
    "grader.study",
    *(f"{labs.PACKAGE}.{name}.studies" for name in labs.known()),
)
#: Folders whose compiled sources decide verdicts: headers, the runners, kernels of the judge, and the reference.
COMPILED = ("grader/backends", "module_ref_stub")
COMPILED_SUFFIXES = {".h", ".cpp", ".map", ".cu", ".ptx"}


@dataclass(frozen=True)
class Fingerprints:
    """Digests of a verdict's inputs. `source`: the submission's files. `assignment`: the assignment's files.
    `kit`: the kit's sources, and the versions of Python and torch. `settings`: the run's option `timing`."""

    source: str
    assignment: str
    kit: str
    settings: str

    def changes(self, now: Fingerprints) -> tuple[str, ...]:
        """Return a reason such as "source changed" for each fingerprint that differs from `now`."""
        then, new = asdict(self), asdict(now)
        return tuple(f"{name} changed" for name in then if then[name] != new[name])


def of_text(text: str) -> str:
    """Return the digest of a text, such as the error of an archive or the settings of a run."""
    return _digest([text.encode(errors="surrogateescape")])


def deciding() -> list[Path]:
    """Return the files that can change a verdict: DECIDING, its imports except NOT_DECIDING, and compiled sources."""
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
