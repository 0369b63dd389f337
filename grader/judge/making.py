"""Builds of one source file: the program that is judged, and the object for a process with torch.

A file is judged in a process that has nothing but the file and a stand-in for torch's tensors
(`native.nativebuild`). Torch itself is only asked for the familiar table, with an object that is built when it is
wanted. A file that uses more of torch than tensors is not judged that way: whether it is judged by torch's runner, with
a flag, or is at fault, the assignment says (`torch_runner`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment, Part, TorchRunner, file_of
from grader.backends.gpu import devicebuild
from grader.backends.native import nativebuild
from grader.backends.native.nativebuild import NativeBuild
from grader.backends.native.standin import Refusal
from grader.backends.native.toolchain import ABSENT, TORCH, torch_version
from grader.backends.records import Build, BuildStep
from grader.backends.torch.torchbuild import build
from grader.core.errors import UsageError
from grader.core.results import Flag
from grader.integrity import flags as integrity
from grader.judge.bench import Options
from grader.sandbox import Sandbox, of_file


@dataclass(frozen=True)
class Made:
    """`judged` is what decides; `with_torch` builds the object for a process with torch, once. `native` says that
    `judged` is a program of its own. `flags` are about the file as a whole."""

    judged: Build | NativeBuild
    with_torch: Callable[[], Build]
    native: bool
    flags: tuple[Flag, ...] = ()


def make(
    assignment: Assignment,
    source: Path,
    options: Options,
    *,
    flags: Sequence[str] = (),
    sandbox: Sandbox | None = None,
    tell: Callable[[BuildStep], None] = lambda step: None,
) -> Made:
    """Build a source file as it is to be judged; `flags` stand behind the kit's own.

    Raises UsageError and KitError as `torch.torchbuild.build`, and KitError where only torch's runner may judge
    the file and this Python has no torch.
    """
    if any(part.device for part in assignment.parts):
        raise UsageError(f"{assignment.id}: its kernels run on a GPU, and this is for C++")
    how = {"flags": flags, **_how(assignment, options, sandbox or of_file(source), tell)}

    @functools.cache
    def with_torch() -> Build:
        return build(source, **how)

    native = nativebuild.build(source, **how)
    refusal = native.refused
    if native.ok or refusal is None:
        return Made(native, with_torch, native=True)
    if not _allowed(refusal, assignment.torch_runner):
        return Made(replace(native, diagnostics=refusal.text), with_torch, native=True)
    if torch_version() == ABSENT:
        # What the machine lacks is not the student's fault: its points stay open until there is a torch.
        words = f"{refusal.text}. Only a process with torch can judge that, and this machine has none"
        return Made(replace(native, diagnostics=words, waits_for=TORCH), with_torch, native=True)
    built = with_torch()
    if assignment.torch_runner == "needed" and (borrowed := _borrowed(built)):
        return Made(
            replace(built, ok=False, object_path=None, diagnostics=borrowed), with_torch, native=False
        )
    flag = Flag("torch_runner", f"judged in a process with torch, since {refusal.text}", "review")
    return Made(built, with_torch, native=False, flags=(flag,))


def make_for_device(
    assignment: Assignment,
    source: Path,
    parts: Sequence[Part],
    options: Options,
    *,
    architecture: str = "",
    sandbox: Sandbox | None = None,
    tell: Callable[[BuildStep], None] = lambda step: None,
) -> dict[str, Build]:
    """Build a file of kernels for a GPU, and the one in CUDA beside it. Returns the builds by language: all that
    these parts need. Raises UsageError for a file that cannot be read, and for what is asked of C++ alone."""
    if options.sanitize:
        raise UsageError("--sanitize is for C++: kernels on a GPU are watched by NVIDIA's compute-sanitizer")
    how = _how(assignment, options, sandbox or of_file(source), tell)
    made: dict[str, Build] = {}
    for language in dict.fromkeys(part.device.language for part in parts if part.device is not None):
        path = source.with_name(file_of(source.name, language))
        if path != source and not path.is_file():
            lacking = f"There is no {path.name} beside {source.name}: its part is not handed in."
            made[language] = Build(
                ok=False,
                object_path=None,
                cached=False,
                diagnostics=lacking,
                notes=(),
                wall_s=0.0,
                cpu_s=0.0,
                key="",
            )
        elif language == "cuda":
            made[language] = devicebuild.cuda(path, architecture, **how)
        else:
            made[language] = devicebuild.python(path, _entries(parts), **how)
    return made


def _entries(parts: Sequence[Part]) -> list[str]:
    """Return the functions that the reader of a Python file looks for (`gpu.readpython`)."""
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
    assignment: Assignment, options: Options, sandbox: Sandbox, tell: Callable[[BuildStep], None]
) -> dict[str, Any]:
    """The fields of BuildOptions."""
    limits = assignment.limits
    return {
        "defines": options.defines,
        "timeout_s": limits.build_s,
        "object_bytes": int(limits.object_mib * (1 << 20)),
        "sandbox": sandbox,
        "sanitize": options.sanitize,
        "tell": tell,
    }


def _borrowed(built: Build) -> str:
    """Return torch's work that the object calls, where something else was the first that the stand-in lacks; or ""."""
    called = [flag.message for flag in integrity.inspect_object(built) if flag.code == "torch_operators"]
    return f"{called[0]}; the assignment gives you tensors, not operators" if called else ""


def _allowed(refusal: Refusal, rule: TorchRunner) -> bool:
    return rule == "always" or (rule == "needed" and refusal.kind != "work")
