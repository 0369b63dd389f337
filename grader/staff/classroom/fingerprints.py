"""Digests of everything that a verdict depends on. If a digest changes, the verdict is out of date."""

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

#: Modules with which judging starts. All modules that they import can change a verdict; those that display or store
#: verdicts cannot.
DECIDING = (
    *("grader.judge.evaluate", "grader.integrity.inspection", "grader.staff.classroom.worker"),
    *(
        "grader.backends.torch.forkserver",
        "grader.runner.runner",
        "grader.backends.torch.loaded",
        "grader.backends.torch.delays",
    ),
    *("grader.sandbox.lock", "module_ref_stub.library"),
    # Labs are loaded by name, so the search for imports would not find them.
    *(f"{labs.PACKAGE}.{name}" for name in labs.known()),
)
#: Modules that the search for imports leaves out: the worker's protocol with the judge, and studies of students.
NOT_DECIDING = (
    "grader.staff",
    "grader.report",
    "grader.study",
    *(f"{labs.PACKAGE}.{name}.studies" for name in labs.known()),
)
#: Folders with sources in other languages than Python: those compiled with a submission, and the reference.
COMPILED = ("grader/backends/native/shim", "grader/backends/native/inside", "module_ref_stub")
COMPILED_SUFFIXES = {".h", ".cpp", ".map"}


@dataclass(frozen=True)
class Fingerprints:
    """Digests of all that decides a submission's verdict. `source` covers its files, `assignment` those of the
    assignment, `kit` the kit's sources and the versions of Python and torch, `settings` the run's options."""

    source: str
    assignment: str
    kit: str
    settings: str

    def changes(self, now: Fingerprints) -> tuple[str, ...]:
        """Return the reasons why a verdict with these fingerprints is out of date, such as 'source changed'; else
        ()."""
        then, new = asdict(self), asdict(now)
        return tuple(f"{what} changed" for what in then if then[what] != new[what])


def of_text(text: str) -> str:
    """Return the digest of a text, such as the error of an archive or the settings of a run."""
    return _digest([text.encode(errors="surrogateescape")])


def deciding(root: Path = ROOT) -> list[Path]:
    """Return the kit's Python files that can change a verdict: DECIDING and all that these modules import."""
    known = imports.modules(root)
    judging = imports.closure(root, DECIDING, stop=NOT_DECIDING)
    found = [known[name] for name in judging if name in DECIDING or not name.startswith(NOT_DECIDING)]
    for folder in COMPILED:
        found += [path for path in (root / folder).rglob("*") if path.suffix in COMPILED_SUFFIXES]
    found += (root / labs.PACKAGE).glob("*/reference.cpp")
    return sorted(found)


@cache
def of_kit() -> str:
    """Return the digest of the kit: all sources that can change a verdict, and the versions of Python and torch."""
    versions = f"python {platform.python_version()} torch {toolchain.torch_version()}"
    return _digest(
        [
            versions.encode(),
            *(
                item
                for path in deciding()
                for item in (path.relative_to(ROOT).as_posix().encode(), path.read_bytes())
            ),
        ]
    )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]
