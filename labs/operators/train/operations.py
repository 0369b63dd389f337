"""The functions of the student's file that training calls, and the calls themselves: in the student's runner.

A call sends its tensors through the judge's pipe and gets back what the function returned and what it wrote into its
arguments. Nothing of the student's is loaded here, and its answers are believed no further than their own sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment
from grader.backends import faults
from grader.backends.binding import CODE_NAMES
from grader.backends.kinds import kind_of
from grader.backends.native.crashes import SIGNAL_HINTS
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import Array
from grader.core.errors import KitError
from grader.judge.bench import Bench, Options
from grader.runner.calls import Call, Request
from grader.runner.session import Session
from grader.sandbox import of_file

if TYPE_CHECKING:
    from grader.sandbox import Limits

RESULT = ""
"""The name of what a function returns, among its answers."""


@dataclass(frozen=True)
class Operation:
    """A function's arguments in order: tensors, whole numbers, then a real one. `written` are the tensors that it
    changes. `returns` is True if it also returns a tensor. `whole` are int64, all others float32."""

    function: str
    tensors: tuple[str, ...]
    sizes: tuple[str, ...]
    written: tuple[str, ...] = ()
    returns: bool = False
    real: str = ""
    whole: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """Return the signature in the codes of `grader.backends.binding.CODE_NAMES`, as "T(TTi)"; a whole number may be
        "l", a real one "d"."""
        codes = "T" * len(self.tensors) + "i" * len(self.sizes) + "f" * bool(self.real)
        return f"{'T' if self.returns else 'v'}({codes})"

    @property
    def prototype(self) -> str:
        """The C++ declaration."""
        arguments = [f"torch::Tensor {name}" for name in self.tensors]
        arguments += [f"int {name}" for name in self.sizes] + [f"float {self.real}" for _ in self.real[:1]]
        return f"{CODE_NAMES['T' if self.returns else 'v']} {self.function}({', '.join(arguments)})"


def _forward(name: str, tensors: str, sizes: str, written: str = "", whole: str = "") -> Operation:
    return Operation(
        f"{name}Forward",
        (*tensors.split(),),
        (*sizes.split(),),
        (*written.split(),),
        True,
        whole=(*whole.split(),),
    )


def _backward(name: str, tensors: str, sizes: str, written: str, whole: str = "") -> Operation:
    return Operation(
        f"{name}Backward",
        (*tensors.split(),),
        (*sizes.split(),),
        (*written.split(),),
        whole=(*whole.split(),),
    )


_CONV2D, _POOL = "N C H Wd F K stride pad", "N C H Wd K stride"
OPERATIONS: Mapping[str, Operation] = {
    each.function: each
    for each in (
        _forward("relu", "X", "n"),
        _backward("relu", "dO X dX", "n", "dX"),
        _forward("linear", "X W b", "N I O"),
        _backward("linear", "dY X W dX dW db", "N I O", "dX dW db"),
        _forward("conv2d", "X W b", _CONV2D),
        _backward("conv2d", "dY X W dX dW db", _CONV2D, "dX dW db"),
        _forward("maxpool2d", "X index", _POOL, "index", "index"),
        _backward("maxpool2d", "dY index dX", _POOL, "dX", "index"),
        _forward("crossEntropy", "X labels", "N C", whole="labels"),
        _backward("crossEntropy", "X labels dX", "N C", "dX", "labels"),
        Operation("sgdStep", ("P", "G"), ("n",), ("P",), real="rate"),
    )
}
_WIDER = {"i": "il", "f": "fd"}


def unfit(functions: Mapping[str, str], wanted: Mapping[str, Operation]) -> str:
    """Return one line about the first of `wanted` that is missing from `functions` or has another signature; "" if
    all fit. `functions` maps the names in a file to the codes of their signatures."""
    for name, operation in wanted.items():
        if name not in functions:
            place = "in PYBIND11_MODULE at the end of the file"
            return f"{name} is not bound {place}; it is called as {operation.prototype}"
        returned, _, codes = functions[name].rstrip(")").partition("(")
        expected, _, accepted = operation.signature.rstrip(")").partition("(")
        # A function that writes its results may return anything: that is ignored.
        fits = (returned == expected or not operation.returns) and len(codes) == len(accepted)
        if not fits or any(
            code not in _WIDER.get(wish, wish) for code, wish in zip(codes, accepted, strict=True)
        ):
            return f"{name} cannot be called; it should be {operation.prototype}"
    return ""


@dataclass(frozen=True)
class Place:
    """A call's place in the network: the layer's number from 1 and its kind; number 0 for calls outside of layers."""

    number: int
    kind: str

    def __str__(self) -> str:
        return f"layer {self.number} ({self.kind})" if self.number else self.kind


class Broken(Exception):
    """The student's function gave no answer, and training cannot go on: one line that names it."""


@dataclass(frozen=True)
class Made:
    """One finished call: `tensors` as sent, and the returned `answers` by name."""

    place: Place
    operation: Operation
    tensors: Mapping[str, Array]
    sizes: Mapping[str, int]
    real: float
    answers: Mapping[str, Array]


class StudentOperators:
    """Calls of the student's functions in one runner. `told` is called with each answered call, off the clock.
    `wall_s` is the time of the calls, their pipe included."""

    def __init__(self, session: Session, told: Callable[[Made], None] | None = None) -> None:
        self.session, self.told = session, told
        self.calls, self.wall_s, self.told_s = 0, 0.0, 0.0

    def __call__(
        self,
        place: Place,
        function: str,
        tensors: Mapping[str, Array],
        sizes: Mapping[str, int],
        output_shape: tuple[int, ...] = (),
        real: float = 0.0,
    ) -> Mapping[str, Array]:
        """Return the function's answers: RESULT, if it returns a tensor, and the tensors that it has written. Raises
        Broken."""
        operation = OPERATIONS[function]
        arguments: list[dict[str, object]] = [{"input": k} for k in range(len(operation.tensors))]
        arguments += [{"value": sizes[name]} for name in operation.sizes]
        if operation.real:
            arguments.append({"value": real})
        inputs = [tensors[name] for name in operation.tensors]
        request = Request(function, arguments, inputs, output_shape, echo=bool(operation.written))
        call = self.session.call(request)
        self.calls += 1
        self.wall_s += call.wall_s
        answers = self._answers(place, operation, output_shape, call)
        if self.told is not None:
            started = time.perf_counter()
            self.told(Made(place, operation, tensors, sizes, real, answers))
            self.told_s += time.perf_counter() - started
        return answers

    @staticmethod
    def _answers(place: Place, operation: Operation, shape: tuple[int, ...], call: Call) -> dict[str, Array]:
        at = f"{operation.function} in {place}"
        if call.status != "ok":
            raise Broken(f"{at} {_ended(call)}")
        found: dict[str, Array] = {}
        if operation.returns:
            if (
                call.kind != "a tensor"
                or call.dtype != "float32"
                or call.shape != shape
                or call.output is None
            ):
                got = f"{call.dtype} {_shown(call.shape)}" if call.kind == "a tensor" else call.kind
                raise Broken(f"{at} returned {got}, not float32 {_shown(shape)}")
            found[RESULT] = call.output
        for name in operation.written:
            if operation.tensors.index(name) >= len(call.echoes):
                raise Broken(f"{at}: the process sent {name} back incomplete")
            found[name] = call.echoes[operation.tensors.index(name)]
        return found


def _ended(call: Call) -> str:
    """Describe a call without an answer, in words to follow the function's name."""
    if call.status == "timeout":
        return f"did not end within {call.wall_s:.0f} s"
    if call.status == "exception":
        return f"threw a C++ exception: {call.message}"
    if call.signal_name:
        hint = SIGNAL_HINTS.get(call.signal_name, "the process was ended by this signal")
        return f"crashed with {call.signal_name}: {hint}"
    if call.status == "protocol":
        return "crashed: the process sent back something that is no result"
    return f"ended the process ({call.message})"


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


# ---- from the student's file to a runner that answers calls for as long as training takes

CPU_LIMIT_S = 1 << 20
"""Each call has its own limit, and there are many of them."""

Start = Callable[[int], StudentOperators]


class Unfit(Exception):
    """The file cannot be used for training, by its own fault. The message is for the student."""


class _LongBench(Bench):
    """A bench for more calls than a judgement makes."""

    @property
    def limits(self) -> Limits:
        return replace(super().limits, cpu_s=CPU_LIMIT_S)


@contextmanager
def opened(assignment: Assignment, source: Path, wanted: dict[str, Operation]) -> Iterator[Start]:
    """Build the file, and yield a function that maps a number of threads to operators in a fresh runner. End all
    runners afterwards.

    Raises:
        Unfit: the file does not compile, cannot be loaded or lacks one of the functions `wanted`.
        KitError: the machine cannot build it.
    """
    made = make(assignment, source, Options())
    if made.judged.waits_for:
        raise KitError(made.judged.diagnostics)
    if not made.judged.ok:
        raise Unfit(f"{source.name} does not compile:\n{made.judged.diagnostics}")
    with ExitStack() as stack:
        zygote = stack.enter_context(Zygote(sandbox=of_file(source), at_once=False))
        host = stack.enter_context(NativeHost(of_file(source))) if made.native else None
        runners = stack.enter_context(ExitStack())
        bench = _LongBench(
            assignment,
            source,
            Options(profile=False),
            lambda event: None,
            made.judged,
            zygote,
            runners,
            host=host,
            with_torch=made.with_torch,
        )
        part = next(part for part in assignment.parts if kind_of(part).is_students)

        def start(threads: int) -> StudentOperators:
            try:
                # The runner is not stopped between calls: that would take as long as a small one.
                session = bench.student(part, threads=threads, freeze=False)
            except faults.Faulty as fault:
                raise Unfit(fault.diagnosis.message) from fault
            if why := unfit(session.functions, wanted):
                raise Unfit(why)
            return StudentOperators(session)

        yield start
