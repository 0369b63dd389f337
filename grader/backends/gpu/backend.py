"""The backend of GPU kernels, which run on the machine's GPU or in Triton's interpreter, and its messages.

The messages are for a machine without a GPU, and for GPU files that crash, hang or do not load.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Part
from grader.backends import faults
from grader.backends.faults import Broken, Faulty, fault
from grader.backends.gpu import devicecall, kernelfiles
from grader.backends.gpu.card.finding import GPU
from grader.backends.gpu.devicebuild import PythonBuild
from grader.backends.gpu.devicecall import properties
from grader.backends.gpu.host import NO_ROOM, DeviceHost, gpu_bytes
from grader.backends.kinds import KERNELS
from grader.backends.native.crashes import DAMAGED_HEAP, SIGNAL_HINTS, CallWords
from grader.backends.protocol import Backend, Checks, Observed, Opening, TimedPart
from grader.backends.records import Build
from grader.core.errors import KitError
from grader.core.results import Diagnosis, Flag, Timing
from grader.integrity import flags as integrity
from grader.runner.calls import Call, Request
from grader.runner.session import PipeSession, Session
from grader.runner.watch import Evidence

if TYPE_CHECKING:
    from grader.source.landmarks import Body

INTERPRETER_CPU, INTERPRETER_WALL = 2, 8
"""Limits on the CPU and the wall time of a call in Triton's interpreter, in multiples of the assignment's `call_s`. CPU
time hardly depends on the machine's load. The limit on wall time ends calls that wait."""


@dataclass(frozen=True)
class GpuBackend(Backend):
    """Backend for one submission with GPU kernels."""

    kind = KERNELS

    host: DeviceHost

    def build(self, part: Part) -> Build:
        return self.host.build_of(part)

    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> PipeSession:
        if reference or part is None:
            raise KitError("a GPU runner needs a part, and never runs a reference: please report this")
        has_card = self.host.card is not None
        session = self.host.student(
            part,
            threads=how.threads,
            cpus=how.cpus,
            memory_bytes=how.limits.memory_bytes if how.limits else None,
            freeze=how.freeze and has_card,  # calls in the interpreter are not timed
            call_timeout_s=how.call_timeout_s,
            shared_fd=how.shared_fd,
        )
        if not has_card:
            limit_s = session.call_timeout_s
            session.call_timeout_s, session.call_cpu_s = INTERPRETER_WALL * limit_s, INTERPRETER_CPU * limit_s
        return session

    def request(self, part: Part, inputs: CaseInputs, *, reference: bool = False) -> Request:
        made = devicecall.request(part, inputs.shape, inputs)
        # Limit the memory, because several submissions may share the GPU.
        return replace(made, more={**made.more, "most_bytes": gpu_bytes(self.host.assignment)})

    def unbound(self, part: Part, session: Session) -> Diagnosis | None:
        if properties(part).language != "cuda":
            return devicecall.mismatch(part, session.functions)
        # A CUDA library cannot list its functions: ask the runner if this function exists.
        assert isinstance(session, PipeSession), "as `open` starts it"
        asked = session.command({"op": "offers", "inputs": [], "function": part.function})
        return devicecall.mismatch(part, {part.function: ""} if asked.status == "ok" else {})

    def seen(self, part: Part, functions: Mapping[str, str]) -> Collection[str] | None:
        form = properties(part).autograd
        if form is None or not devicecall.as_autograd(part, functions):
            return None
        # Only these tensors are passed to an autograd.Function, which allocates its outputs itself.
        return {*form.arguments, *([form.gradient] if form.gradient else [])}

    def forward_of(self, part: Part, parts: Iterable[Part]) -> Part | None:
        form = properties(part).autograd
        if form is None or form.gradient is None:
            return None
        wanted = replace(form, gradient=None)
        return next((each for each in parts if properties(each).autograd == wanted), None)

    def function_in(self, part: Part, source: str) -> Body | None:
        from grader.backends.gpu import kernelmarks

        form = properties(part).autograd
        found = kernelmarks.function(source, part.function or "")
        if found is not None or form is None:
            return found
        launches = form.language == "triton" if form.language else None
        return kernelmarks.method(source, "backward" if form.gradient else "forward", form.name, launches)

    def measure(self, timed: TimedPart) -> Timing:
        from grader.backends.gpu import timing

        return timing.measured(timed, self.host)

    def peaks(self, part: Part) -> tuple[int | None, int | None] | None:
        return self.host.peaks.get(part.id, (None, None))

    def flags(self, evidence: Sequence[Evidence], builds: Sequence[Build]) -> Iterator[Flag]:
        seen = [replace(each, new_code=()) for each in evidence]
        for each in seen:
            yield from integrity.evidence_flags(each)
        yield from integrity.late_flags(seen)

    def library_flags(self, checks: Checks, calls: Sequence[Observed], *, play: bool) -> tuple[Flag, ...]:
        # Imported late, because labs without GPU parts need not load it.
        from grader.backends.gpu import operators

        return operators.flags(checks, self.host, calls, play=play)

    def lacks(self, part: Part, step: Literal["results", "time"]) -> Faulty | None:
        if self.host.card is not None:
            return None
        if properties(part).language == "cuda":
            return lacks_gpu("It compiles. Its results and its time are not judged")
        if step == "time":
            return lacks_gpu("Its results are right in Triton's interpreter. Its time is not judged")
        return None

    def is_disturbed(self, diagnosis: Diagnosis) -> bool:
        # Other submissions may fill the GPU's memory, or delay each of the many small operators of a call.
        may_be = diagnosis.code == "timeout" or NO_ROOM.search(diagnosis.message) is not None
        return self.host.card is not None and may_be

    def fault(self, broken: Broken) -> Faulty:
        return call_fault(broken, self.host.assignment.packages)

    def loading_fault(self, session: Session) -> Faulty:
        if session.death is not None:
            return loading_fault(session.death)
        return load_error(session.load_error or "", self.host.assignment.packages)

    def with_loads_outside(self, part: Part, diagnosis: Diagnosis, lines: Sequence[int]) -> Diagnosis:
        return with_loads_outside(diagnosis, lines, self.build(part))


OF_TENSORS = (
    "something outside of a tensor was read or written: check the pointers, strides and masks of all loads and stores "
    "on sizes that do not fill the last block"
)
"""Message for signals that memory errors in a GPU kernel cause."""
DEVICE_HINTS = {
    **SIGNAL_HINTS,
    **dict.fromkeys(("SIGSEGV", "SIGBUS"), OF_TENSORS),
    "SIGABRT": "abort() was called",
}


NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>\w+)(?P<more>[\w.]*)")
NOT_COMPILED = re.compile(r"PermissionError: [^']*'[^']*/compiled/[0-9a-f]{16}/")
"""Error of a runner that needs a kernel which the build did not launch, and so did not compile."""
CANNOT_IMPORT = re.compile(r"raised (?:ModuleNotFound|Import)Error: ")


def lacks_gpu(what: str) -> Faulty:
    """Return the verdict for a part on a machine without a GPU. `what` describes the results that are known."""
    message = f"{what}: this machine has no GPU. No points are lost: they stay open until a GPU is used."
    return Faulty("unjudged", Diagnosis("machine_lacks", message), waits_for=GPU)


def load_error(error: str, packages: Sequence[str]) -> Faulty:
    """Return the verdict for a file that raised `error` while it was loaded.

    `packages` are the packages that the assignment allows. If one of them is not installed, the verdict is `unjudged`.
    """
    if error.endswith(kernelfiles.NO_CARD):
        return lacks_gpu(f"The file needs a GPU when it is imported: {error}")
    lacking = NO_MODULE.search(error)
    name = lacking["name"] if lacking else ""
    if name in packages:
        message = (
            f"The file imports {name}, which this Python lacks: pip install {name}, and judge again. No points are "
            "lost; they stay open."
        )
        return Faulty("unjudged", Diagnosis("machine_lacks", message), waits_for=name)
    advice = ""
    if name:
        allowed = ", ".join(("torch", "triton", "numpy", *packages))
        module = f"{name}{lacking['more']}" if lacking else name
        advice = f". Hand {module} in with the file if it is yours. Otherwise do without: a file may import {allowed}"
    elif "ImportError: attempted relative import" in error:
        advice = ". Hand in the folder that contains its package"
    return fault("compile_error", "load_error", f"the file cannot be loaded: {error}{advice}")


def loading_fault(death: Call) -> Faulty:
    """Return the verdict for a file that crashed or hung while it was loaded, by statements outside of functions."""
    return faults.loading_fault(
        death, "statements outside of functions that", "statements outside of functions"
    )


class KernelWords(CallWords):
    """Verdicts and messages for calls of functions with GPU kernels."""

    def exception(self, broken: Broken) -> str:
        return f"{broken.at_end}: {broken.call.message}"

    def signal(self, broken: Broken) -> str:
        name = broken.call.signal_name
        hint = DEVICE_HINTS.get(name, "the process was ended by this signal")
        if name == "SIGABRT" and DAMAGED_HEAP.search(broken.printed) is not None:
            hint = OF_TENSORS
        return f"{name}: {hint}."

    def timeout(self, broken: Broken) -> str:
        call = broken.call
        if call.cpu_s is None:
            return super().timeout(broken)
        return (
            f"{broken.at} did not end within {call.cpu_s:.0f} s of processor time and {call.wall_s:.0f} s in all. This "
            "machine has no GPU: Triton's interpreter runs the kernel, and each operation of it takes about 50 "
            "microseconds there. Use larger blocks, so that there are fewer programs and steps (tl.dot instead of a "
            "loop over single numbers), or look for a loop whose bound never lets it end."
        )


def call_fault(broken: Broken, packages: Sequence[str] = ()) -> Faulty:
    """Return the verdict and message for a call without an output. The assignment allows importing `packages`."""
    message = broken.call.message
    if not broken.hidden and CANNOT_IMPORT.search(message):
        # The import may be inside of a function, as in CS336's adapters.
        return load_error(message, packages)
    if message.endswith(kernelfiles.NO_CARD):
        return lacks_gpu(f"{broken.part.function} on the input '{broken.where}' needs a GPU: {message}")
    if NOT_COMPILED.search(message):
        words = (
            f"{broken.part.function} on the input '{broken.where}' launches a kernel that it did not launch in the "
            "build, where kernels are compiled. So this part is not judged, and no points are lost. Launch the same "
            "kernels in all calls of one size, or ask for a judgement by hand."
        )
        return Faulty("unjudged", Diagnosis("machine_lacks", words), waits_for=GPU)
    return KernelWords().fault(broken)


def with_loads_outside(diagnosis: Diagnosis, lines: Sequence[int], build: Build) -> Diagnosis:
    """Return the diagnosis with a note on source lines that loaded from outside of every tensor, a possible cause."""
    places = [place_of(line, build) for line in lines]
    which = "Line" if len(lines) == 1 else "Lines"
    note = (
        f"{which} {', '.join(places)} loaded from outside of every tensor. Such a load gives NaN, or a meaningless "
        "integer: check the masks."
    )
    return replace(diagnosis, message=f"{diagnosis.message} {note}")


def place_of(line: int, build: Build) -> str:
    """Return "FILE:LINE" for a hand-in of several files, else "LINE".

    The number `line` holds the file's index above its low FILE_BITS bits, which hold the line number.
    """
    file, number = divmod(line, 1 << kernelfiles.FILE_BITS)
    files = build.files if isinstance(build, PythonBuild) else ()
    return f"{files[file]}:{number}" if file < len(files) else str(number)
