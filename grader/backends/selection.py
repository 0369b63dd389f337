"""Choice of the backends of one submission: the builds of its source, and the hosts that start and call its parts.

Usually a C++ file is judged by the native backend (`native.nativebuild`): in a process that holds only the file and a
stand-in for torch's tensors. Then torch is used only for the profiler's table, with an object that is built on demand.
A file that uses a part of torch that the stand-in lacks cannot be judged natively. The assignment's key `torch_runner`
decides if a process with torch judges such a file, with a flag, or if this is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from grader import sandbox as sandboxes
from grader.assignment.labs import Lab
from grader.assignment.records import Assignment, Part, file_of
from grader.backends.gpu import devicebuild
from grader.backends.gpu.backend import GpuBackend
from grader.backends.gpu.host import DeviceHost
from grader.backends.kinds import kind_of, languages
from grader.backends.native import nativebuild
from grader.backends.native.backend import NativeBackend
from grader.backends.native.nativehost import NativeHost
from grader.backends.native.toolchain import ABSENT, TORCH, torch_version
from grader.backends.protocol import Backend
from grader.backends.records import Build, BuildStep
from grader.backends.torch.backend import OwnTorch, TorchBackend
from grader.backends.torch.torchbuild import build
from grader.backends.torch.zygote import Zygote
from grader.core.errors import UsageError
from grader.core.results import Flag
from grader.integrity import flags as integrity
from grader.sandbox import Sandbox


class BuildSettings(Protocol):
    """Options of a run on which builds depend."""

    @property
    def defines(self) -> Mapping[str, str]: ...

    @property
    def sanitize(self) -> bool: ...

    @property
    def timing(self) -> bool: ...

    @property
    def time_ungraded(self) -> bool: ...


@dataclass(frozen=True)
class Made:
    """Builds of one file. `judged` is the build that gets the verdict, and `native` is True if it is a native build.

    `with_torch()` returns the build for a process with torch, which is made at the first call. `flags` are about the
    file as a whole. `other` is the backend of a file that is not C++, else None.
    """

    judged: Build
    with_torch: Callable[[], Build]
    native: bool
    flags: tuple[Flag, ...] = ()
    other: Backend | None = None

    @classmethod
    def by(cls, backend: Backend, parts: Sequence[Part]) -> Made:
        """Return the record for a file that is not C++. All its `parts` have the same build."""
        judged = backend.build(parts[0])
        assert judged is not None
        return cls(judged, lambda: judged, native=False, other=backend)

    @classmethod
    def of(cls, build: Build) -> Made:
        """Return the record for a file that has only one build."""
        return cls(build, lambda: build, native=isinstance(build, nativebuild.NativeBuild))

    def backend(self, part: Part, lab: Lab, zygote: Zygote, host: NativeHost | None) -> Backend:
        """Return the backend that judges a part."""
        if not kind_of(part).is_students:
            return OwnTorch(self.with_torch, zygote, lab)
        return self.of_file(lab, zygote, host)

    def of_file(self, lab: Lab, zygote: Zygote, host: NativeHost | None) -> Backend:
        """Return the backend of the file. For C++: the native backend if there is a `host`, else the torch backend."""
        if self.other is not None:
            return self.other
        if host is None:
            return TorchBackend(self.with_torch, zygote, lab)
        return NativeBackend(self.judged, host, lab)

    def confinement(self, sandbox: Sandbox, zygote: Zygote, host: NativeHost | None) -> dict[str, Any]:
        """Return the sandbox of these builds' runners, as `result.json` records it."""
        found = (zygote.sandbox if self.other is None else sandbox).describe()
        return found if host is None else {**found, "applied": list(host.applied)}


def make_all(
    assignment: Assignment, source: Path, parts: Sequence[Part], options: BuildSettings, **how: Any
) -> Made:
    """Build everything that these parts need; `how` are keywords of `make_kernels`."""
    if others := languages(parts):
        return MAKERS[others[0]](assignment, source, parts, options, **how)
    return make(assignment, source, options, sandbox=how["sandbox"], on_step=how["on_step"])


def make_kernels(
    assignment: Assignment,
    source: Path,
    parts: Sequence[Part],
    options: BuildSettings,
    *,
    shape: Mapping[str, int],
    sandbox: Sandbox,
    on_step: Callable[[BuildStep], None],
    stack: ExitStack,
) -> Made:
    """Build GPU kernels. The DeviceHost that starts their runners is closed with `stack`."""
    from grader.backends.gpu.card.finding import architecture

    builds = make_for_device(
        assignment, source, parts, options, architecture=architecture(), sandbox=sandbox, on_step=on_step
    )
    timed = {
        part.id
        for part in parts
        if options.timing and part.time and (part.time.graded or options.time_ungraded)
    }
    device = stack.enter_context(DeviceHost(assignment, builds, parts, shape, sandbox, Zygote, timed))
    judged = next((build for build in builds.values() if not build.ok), next(iter(builds.values())))
    return Made(replace(judged, object_path=None), lambda: judged, native=False, other=GpuBackend(device))


MAKERS: Mapping[str, Callable[..., Made]] = {
    "triton": make_kernels,
    "cuda": make_kernels,
}
"""Functions that build files in a language other than C++, with the parameters of `make_kernels`."""


def make(
    assignment: Assignment,
    source: Path,
    options: BuildSettings,
    *,
    flags: Sequence[str] = (),
    sandbox: Sandbox | None = None,
    on_step: Callable[[BuildStep], None] = lambda step: None,
) -> Made:
    """Build a C++ file for judging; `flags` follow the kit's own flags.

    Raises UsageError for an assignment of GPU kernels, and the errors of `nativebuild.build` and `torchbuild.build`.
    """
    if others := languages(assignment.parts):
        raise UsageError(
            f"{assignment.id} has kernels in {others[0]}, and this command is for C++ files only"
        )
    how = {"flags": flags, **_how(assignment, options, sandbox or sandboxes.of_file(source), on_step)}

    @functools.cache
    def with_torch() -> Build:
        return build(source, **how)

    native = nativebuild.build(source, **how)
    refusal = native.refused
    if native.ok or refusal is None:
        return Made(native, with_torch, native=True)
    rule = assignment.torch_runner
    if not (rule == "always" or (rule == "needed" and refusal.kind != "work")):
        return Made(replace(native, diagnostics=refusal.text), with_torch, native=True)
    if torch_version() == ABSENT:
        # A missing torch is not the student's fault: `waits_for` leads to the verdict `unjudged`.
        words = f"{refusal.text}. Only a process with torch can judge that: install torch, and judge again"
        return Made(replace(native, diagnostics=words, waits_for=TORCH), with_torch, native=True)
    built = with_torch()
    if rule == "needed" and (borrowed := _borrowed(built)):
        return Made(
            replace(built, ok=False, object_path=None, diagnostics=borrowed), with_torch, native=False
        )
    flag = Flag("torch_runner", f"judged in a process with torch, because {refusal.text}", "review")
    return Made(built, with_torch, native=False, flags=(flag,))


def make_for_device(
    assignment: Assignment,
    source: Path,
    parts: Sequence[Part],
    options: BuildSettings,
    *,
    architecture: str,
    sandbox: Sandbox,
    on_step: Callable[[BuildStep], None],
) -> dict[str, Build]:
    """Build a file of GPU kernels and, if parts need it, the CUDA file beside it. Return the builds by language.

    Raises UsageError for a file that cannot be read, and for options that only apply to C++.
    """
    if options.sanitize:
        raise UsageError("--sanitize is for C++ only: check GPU kernels with NVIDIA's compute-sanitizer")
    how = _how(assignment, options, sandbox, on_step)
    made: dict[str, Build] = {}
    for language in languages(parts):
        path = source.with_name(file_of(source.name, language))
        if path != source and not path.is_file():
            lacking = (
                f"There is no {path.name} beside {source.name}: the part in {path.name} is not handed in."
            )
            made[language] = Build(ok=False, object_path=None, diagnostics=lacking, key="")
        elif language == "cuda":
            made[language] = devicebuild.cuda(path, architecture, **how)
        else:
            made[language] = devicebuild.python(path, _entries(parts), **how)
    return made


def _entries(parts: Sequence[Part]) -> list[str]:
    """Return the functions to find in a Python file, as `gpu.readpython` takes them: NAME or NAME=CLASS=REACHED."""
    found = []
    for part in parts:
        form = part.device.autograd if part.device is not None else None
        if form is None:
            found.append(part.function)
        else:
            reached = "forward" if form.gradient is None else "both"
            found.append(f"{part.function}={form.name or form.language or 'any'}={reached}")
    return list(dict.fromkeys(found))


def _how(
    assignment: Assignment, options: BuildSettings, sandbox: Sandbox, on_step: Callable[[BuildStep], None]
) -> dict[str, Any]:
    """Return the fields of BuildOptions that follow from these arguments, as keyword arguments."""
    limits = assignment.limits
    return {
        "defines": options.defines,
        "timeout_s": limits.build_s,
        "object_bytes": int(limits.object_mib * (1 << 20)),
        "sandbox": sandbox,
        "sanitize": options.sanitize,
        "on_step": on_step,
    }


def _borrowed(built: Build) -> str:
    """Return a message if an object built with torch calls torch's operators; else ""."""
    called = [flag.message for flag in integrity.inspect_object(built) if flag.code == "torch_operators"]
    return f"{called[0]}; write their work yourself, with loops over elements" if called else ""
