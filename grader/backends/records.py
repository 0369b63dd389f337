"""Options and result of a build, used by all backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.core.quantities import MIB
from grader.sandbox import OPEN, Sandbox

OBJECT_BYTES = 8 * MIB
"""Largest size of a student's object. The kit's own solution takes 0.09 MiB, with sanitizers 2.1 MiB."""

SANITIZED_SIZE = 8
"""Factor by which an object may be larger if it has sanitizers and debug information."""

#: Steps of a build: compiling the kit's headers; compiling the student's file; analysing its object or the errors.
BuildStep = Literal["headers", "building", "inspection"]


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build.

    `flags` follow the published flags, and so override them. `defines` are macros, as `-D NAME=VALUE`. `cache` is the
    folder of the cache, None for the user's cache. `timeout_s` limits the processor time of all compilers together. An
    object larger than `largest_bytes` is refused. In the `sandbox`, compilers see only a copy of the source, the
    headers and a folder for their output. The kit's headers are precompiled outside of the sandbox. `sanitize`: True to
    build with AddressSanitizer, UBSan and checked vectors. `on_step` is called when a step begins.
    """

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
        """Largest size of the object in bytes, which is higher with sanitizers."""
        return self.object_bytes * (SANITIZED_SIZE if self.sanitize else 1)


@dataclass(frozen=True, kw_only=True)
class Build:
    """Result of building one source file.

    `ok` is True if the file compiles. `object_path` is the student's object, None if the build failed. `diagnostics` is
    the message for a failed build, else "". `cached` is True if nothing was compiled. `notes` are for the student, even
    after a successful build. `wall_s` is the wall time of the build, `cpu_s` the CPU time of all its compilers. `key`
    is a hash of the build's inputs, "" if the file was not handed in. `waits_for` is "" if this machine has all that
    the build needs. Else it names what is missing ("ispc", "torch"): then the source is not to blame, and `diagnostics`
    says what to install. `failed_at` has the lines and columns of a native compiler's first errors.
    """

    ok: bool
    object_path: Path | None
    diagnostics: str
    key: str
    cached: bool = False
    notes: tuple[str, ...] = ()
    wall_s: float = 0.0
    cpu_s: float = 0.0
    waits_for: str = ""
    failed_at: tuple[tuple[int, int], ...] = ()
    program: Path | None = None
    """The native program that contains the object; None if a process with torch loads the object."""
