"""Options and outcome of a build: the records that builds with and without torch share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.core.quantities import MIB
from grader.sandbox import OPEN, Sandbox

OBJECT_BYTES = 8 * MIB
"""Largest size of an object. The master's has 0.09 MiB, with sanitizers 2.1."""

SANITIZED_SIZE = 8
"""Factor by which sanitizers and debug information may enlarge an object."""

#: Steps that take time: the kit's own headers, a compiler, or reading the source, the compiler's output or the object.
BuildStep = Literal["headers", "building", "inspection"]


@dataclass(frozen=True)
class BuildOptions:
    """`flags` come after the published ones and so override them; `defines` are macros, as `-D NAME=VALUE`. `cache` is
    the user's own where it is None. `timeout_s` is processor time for all compilers of the student's code together; an
    object of more than `object_bytes` is refused. In a `sandbox` compilers see a copy of the source, the headers and
    one folder for their output, nothing else; the kit's own headers are precompiled outside of it. `sanitize` builds
    with AddressSanitizer, UBSan and checked vectors in place of optimisation, and lets the object be SANITIZED_SIZE
    times as large. `on_step` is called with each step as it begins."""

    flags: Sequence[str] = ()
    defines: Mapping[str, str] | None = None
    cache: Path | None = None
    timeout_s: float = 120
    object_bytes: int = OBJECT_BYTES
    sandbox: Sandbox = OPEN
    sanitize: bool = False
    on_step: Callable[[BuildStep], None] = lambda step: None

    @property
    def largest_bytes(self) -> int:
        """Limit on the object's size in bytes, sanitizers considered."""
        return self.object_bytes * (SANITIZED_SIZE if self.sanitize else 1)


@dataclass(frozen=True, kw_only=True)
class Build:
    """Result of building one source file.

    `object_path`, the student's object, is None unless `ok`; `diagnostics` is "" if `ok`. `cached` says that nothing
    was compiled. `notes` are for the student, also after a build that worked. `wall_s` is the whole call, `cpu_s` the
    CPU time of all compilers that it started. `key` is the content hash of the object, "" if no such file was handed
    in. `waits_for` names a program that this machine lacks ("ispc"), else "". Then the source is not to blame, and
    `diagnostics` says what to install.
    """

    ok: bool
    object_path: Path | None
    cached: bool
    diagnostics: str
    notes: tuple[str, ...]
    wall_s: float
    cpu_s: float
    key: str
    waits_for: str = ""
    program: Path | None = None
    """Native program of the object, if it is linked into one."""
