"""The backend of GPU kernels, which run on the machine's GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Part
from grader.backends.faults import Broken, Faulty
from grader.backends.gpu import crashes, devicecall
from grader.backends.gpu.devicecall import properties
from grader.backends.gpu.host import NO_ROOM, DeviceHost, gpu_bytes
from grader.backends.kinds import KERNELS
from grader.backends.protocol import Backend, Checks, Observed, Opening, TimedPart
from grader.backends.records import Build
from grader.core.errors import KitError
from grader.core.results import Diagnosis, Flag, Timing
from grader.integrity import flags as integrity
from grader.runner.calls import Request
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
            raise KitError("the reference of a GPU part is only started to time the part; please report this")
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
        # An autograd.Function gets only these tensors and allocates all others itself.
        return {*form.arguments, *([form.gradient] if form.gradient else [])}

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
            return crashes.lacks_gpu("It compiles. Its results and its time are not judged")
        if step == "time":
            return crashes.lacks_gpu("Its results are right in Triton's interpreter. Its time is not judged")
        return None

    def lacked_room(self, diagnosis: Diagnosis) -> bool:
        return self.host.card is not None and NO_ROOM.search(diagnosis.message) is not None

    def fault(self, broken: Broken) -> Faulty:
        return crashes.call_fault(broken, self.host.assignment.packages)

    def loading_fault(self, session: Session) -> Faulty:
        if session.death is not None:
            return crashes.loading_fault(session.death)
        return crashes.load_error(session.load_error or "", self.host.assignment.packages)

    def with_loads_outside(self, part: Part, diagnosis: Diagnosis, lines: Sequence[int]) -> Diagnosis:
        return crashes.with_loads_outside(diagnosis, lines, self.build(part))
