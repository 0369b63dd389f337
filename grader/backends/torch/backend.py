"""The backends that use processes with torch: for C++ objects, and for functions of torch itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grader.assignment.labs import Lab
from grader.assignment.records import Part
from grader.backends.kinds import CPP_IN_TORCH, TORCH
from grader.backends.native.backend import CppCalls
from grader.backends.protocol import Opening
from grader.backends.records import Build
from grader.backends.torch.zygote import Zygote
from grader.core.errors import KitError
from grader.core.results import Diagnosis
from grader.runner.session import Session


@dataclass(frozen=True)
class TorchBackend(CppCalls):
    """Backend for one C++ submission, built into an object that a process with torch loads."""

    kind = CPP_IN_TORCH

    built: Callable[[], Build]
    """Function that returns the object's build, made at the first call."""
    zygote: Zygote
    lab: Lab

    def build(self, part: Part) -> Build | None:
        return self.built()

    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> Session:
        if not reference:
            return self.zygote.spawn("student", self.built().object_path or "", **how.on_cpu)
        kernels = self.lab.reference().for_torch()
        if kernels is None:
            raise KitError(
                "this copy of the kit has no reference that can run with torch: judge without the profiler's table"
            )
        return self.zygote.spawn(*kernels, **how.on_cpu)


class OwnTorch(TorchBackend):
    """Backend for parts that call a function of torch itself."""

    kind = TORCH

    def build(self, part: Part) -> Build | None:
        return None

    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> Session:
        return (
            super().open(part, how, reference=True)
            if reference
            else self.zygote.spawn("torch", "", **how.on_cpu)
        )

    def unbound(self, part: Part, session: Session) -> Diagnosis | None:
        return None
