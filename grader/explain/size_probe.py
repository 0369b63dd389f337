"""Further calls of a wrong kernel, to find sizes at which it is right, and the smallest sizes at which it is wrong.

The search starts at sizes at which the kernel is wrong and changes one size at a time. The calls are small, limited in
number and time, and made in their own runner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from grader.assignment.inputs import CaseInputs, drawn
from grader.assignment.records import Case
from grader.backends import binding
from grader.core.arrays import np
from grader.explain.case_run import CaseRun
from grader.explain.common_facts import Seen
from grader.explain.judged_part import Kernel
from grader.explain.oracle import Oracle
from grader.runner.session import Session

if TYPE_CHECKING:
    from grader.core.arrays import Array

#: Limits of one search: seconds of processor time, seconds of elapsed time, and number of calls. Processor time hardly
#: depends on other programs, so the explanation stays the same. The elapsed time is a limit for kernels that sleep.
BUDGET_S, ELAPSED_S, MOST_CALLS = 0.6, 30.0, 120
#: Limit on the elements in the output of a call with other sizes, and on sizes beside a large one.
LARGEST, FEW = 1 << 16, 16
#: Values to try when a size shrinks.
SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)


class Ended(Exception):
    """Raised if a call returns no output (`crashed` are its sizes), or would exceed a limit of the search."""

    def __init__(self, crashed: dict[str, int] | None = None) -> None:
        super().__init__()
        self.crashed = crashed


class Prober:
    """Caller of one kernel at various sizes, in the runner `session`. `case` gives the distribution of the inputs."""

    def __init__(self, kernel: Kernel, session: Session, case: Case) -> None:
        self.kernel, self.session, self.case = kernel, session, case
        self.names = [name for name in kernel.oracle.probes if name in kernel.sizes(kernel.shape)]
        self.started_s, self.deadline_s = time.thread_time(), time.monotonic() + ELAPSED_S
        self.called_s, self.calls = 0.0, 0
        self.seen: dict[tuple[tuple[str, int], ...], Seen] = {}
        self.crashed: dict[str, int] | None = None

    def look(self, anchor: Mapping[str, int]) -> None:
        """Call the kernel at the sizes `anchor`, then with one of these sizes changed at a time. Fill `seen`."""
        try:
            self.ask(anchor)
            for name in self.names:
                for value in self.kernel.oracle.probes[name]:
                    self.ask({**anchor, name: value})
        except Ended as end:
            self.crashed = end.crashed

    def smallest(self, anchor: Mapping[str, int]) -> dict[str, int] | None:
        """Return `anchor` with each size shrunk as far as the kernel stays wrong; None if it is right at `anchor`."""
        found = dict(anchor)
        try:
            if not self.is_wrong(found):
                return None
            for _ in range(2):
                before = dict(found)
                for name in self.names:
                    found[name] = self.shrunk(found, name)
                if found == before:
                    break
        except Ended as end:
            self.crashed = end.crashed or self.crashed
        return found

    def shrunk(self, sizes: Mapping[str, int], name: str) -> int:
        usual = self.kernel.assignment.defaults.get(name, 0)
        if name in self.kernel.oracle.tiles:
            tried = takewhile(lambda value: value != sizes[name], (usual, *SMALL))
            return next((value for value in tried if self.is_wrong({**sizes, name: value})), sizes[name])
        right = 0
        for value in SMALL:
            if value >= sizes[name]:
                break
            if self.is_wrong({**sizes, name: value}):
                return self.between(sizes, name, right, value)
            right = value
        return self.between(sizes, name, right, sizes[name])

    def between(self, sizes: Mapping[str, int], name: str, right: int, wrong: int) -> int:
        """Return a value v of the size `name` at which the kernel is wrong although it is right at v - 1.

        The search bisects between `right` (a right value, or 0) and `wrong` (a wrong value). If a call ends the search
        early, the smallest wrong value that was found is returned.
        """
        try:
            while wrong - right > 1:
                middle = (right + wrong) // 2
                right, wrong = (right, middle) if self.is_wrong({**sizes, name: middle}) else (middle, wrong)
        except Ended as end:
            self.crashed = end.crashed
        return wrong

    def is_wrong(self, sizes: Mapping[str, int]) -> bool:
        return self.ask(sizes).wrong is not None

    def ask(self, sizes: Mapping[str, int]) -> Seen:
        """Return the result at these sizes, from an earlier call if there was one. A new call may raise Ended."""
        key = tuple(sorted(sizes.items()))
        if key not in self.seen:
            shape = {**self.kernel.shape, **sizes}
            weak = is_trivial(self.kernel.oracle, shape)
            wrong, output = self.wrong(self.inputs(shape))
            self.seen[key] = Seen(self.kernel.sizes(shape), wrong, weak, output)
        return self.seen[key]

    def inputs(self, shape: Mapping[str, int]) -> CaseInputs:
        return drawn(self.kernel.lab, self.case.distribution, shape, self.case.seed, keep=False)

    def wrong(self, inputs: CaseInputs) -> tuple[Array | None, str]:
        """Return a mask of the wrong elements of the first wrong output, and its name; None and "" if all are right."""
        run = self.called(inputs)
        if run.wrong is None:
            return None, ""
        return run.comparisons[run.wrong].wrong.reshape(run.expected[run.wrong].value.shape), run.wrong

    def called(self, inputs: CaseInputs) -> CaseRun:
        """Call the function. Raises Ended if it returns no outputs, or if a limit is reached."""
        part, shape = self.kernel.part, inputs.shape
        self.calls += 1
        left_s = BUDGET_S - self.called_s - (time.thread_time() - self.started_s)
        if self.calls > MOST_CALLS or left_s < 0 or time.monotonic() > self.deadline_s:
            raise Ended
        if math.prod(binding.output_shape(part, shape)) > LARGEST:
            raise Ended
        threads = shape.get("threads", 1)
        self.session.call_cpu_s = threads * (left_s + 1)
        run = self.kernel.call(self.session, self.case.name, inputs, timeout_s=ELAPSED_S / 4)
        # Processor time is the sum over all threads, so it is divided by their number.
        used_s = run.call.wall_s if run.call.cpu_s is None else min(run.call.wall_s, run.call.cpu_s / threads)
        self.called_s += used_s
        if run.outputs is None:
            raise Ended(self.kernel.sizes(shape))
        return run

    def output(self, sizes: Mapping[str, int], inputs: Mapping[str, Any]) -> Array | None:
        """Return the kernel's first output as float64 for these inputs; None without an output, or at a limit."""
        try:
            run = self.called(CaseInputs({**self.kernel.shape, **sizes}, inputs))
        except Ended:
            return None
        name, first = next(iter((run.outputs or {}).items()))
        return np.asarray(first, np.float64).reshape(run.expected[name].value.shape)


def is_trivial(oracle: Oracle, shape: Mapping[str, int]) -> bool:
    """Return True if even a wrong kernel is often right at these sizes."""
    trivial = {**oracle.trivial, **dict.fromkeys(oracle.tiles, 1)}
    return any(shape.get(name) == size for name, size in trivial.items())


def choose(kernel: Kernel) -> Case | None:
    """Return the public case whose distribution of inputs is used; None if no case fits.

    A case fits if its weight is above 0 and it has no sizes of its own. Such a case takes the sizes of a command line,
    so a student can repeat a finding. If several cases fit, the one with the largest weight is returned.
    """
    sized = [case for case in kernel.part.cases if not case.hidden and not case.shape and case.weight > 0]
    return max(sized, key=lambda case: case.weight, default=None)


def anchors(kernel: Kernel) -> list[dict[str, int]]:
    """Return the sizes at which wrong public cases with at most LARGEST output elements were called, smallest first.

    Only the sizes that the oracle's `probes` name are included. If all these cases are larger, the sizes of each are
    returned with all but one of them limited to FEW.
    """
    names = [name for name in kernel.oracle.probes if name in kernel.sizes(kernel.shape)]
    found = [
        {name: shape[name] for name in names}
        for case in kernel.part.cases
        if not case.hidden and kernel.wrong.get(case.name) is not None
        for shape in [{**kernel.shape, **case.shape}]
    ]
    limited = [
        {name: size if name == kept else min(size, FEW) for name, size in sizes.items()}
        for sizes in found
        for kept in names
    ]

    def is_small(sizes: Mapping[str, int]) -> bool:
        return math.prod(binding.output_shape(kernel.part, {**kernel.shape, **sizes})) <= LARGEST

    small = [*filter(is_small, found)] or [*filter(is_small, limited)]
    return sorted(small, key=lambda sizes: math.prod(sizes.values()))
