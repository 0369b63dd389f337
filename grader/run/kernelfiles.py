"""A file of kernels for a GPU as a runner loads it: Python with Triton's, or a library of CUDA's.

Imports nothing of the kit, as all that stands beside a stranger's code. `grader.run.devicerunner` serves what is here.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import importlib.util
import inspect
import linecache
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

LONGEST_MESSAGE = 1000
MOST_KERNELS = 90
LONGEST_CHAIN = 50
"""Of exceptions, each the cause of the one before."""
MODULE = "kernels"
"""What a student's file is called as a module."""
#: What is raised where there is no card and a file asks for one, and what to do then.
ASKS_FOR_CARD = re.compile(r"cuda|nvidia|active drivers|nvml", re.IGNORECASE)
NO_CARD = " (this machine has no GPU, and its interpreter cannot answer that)"


class Failed(Exception):
    """The file has no such function, or what it gave is no answer; the text is for the student."""

    is_missing = False
    """True for what is not written yet."""


class NotWritten(Failed):
    is_missing = True


# ---- tensors


def flattened(value: Any) -> Any:
    """A tensor with all axes before its last two as one, which the autograd form expects."""
    import torch

    if isinstance(value, torch.Tensor) and value.dim() > 3:
        return value.reshape(-1, *value.shape[-2:])
    return value


def copied(value: Any, output: Any, name: str) -> None:
    """Put what a function returned where its output belongs. Raises Failed for what does not fit."""
    import torch

    if value is output:
        return
    if not isinstance(value, torch.Tensor):
        raise Failed(f"{name} should be a tensor and is {type(value).__name__}")
    if value.numel() != output.numel() or list(value.shape)[-1:] != list(output.shape)[-1:]:
        raise Failed(f"{name} should have the shape {list(output.shape)} and has {list(value.shape)}")
    if value.dtype != output.dtype:
        raise Failed(f"{name} should be {output.dtype} and is {value.dtype}")
    output.copy_(value.detach().reshape(output.shape))


# ---- what is loaded


class PythonFile:
    """A student's Python file: plain functions, or a subclass of torch.autograd.Function."""

    def __init__(self, path: str) -> None:
        import torch

        if hasattr(sys.stdout, "reconfigure"):
            # What is printed before a crash is what its student looks for, and a runner ends without a last flush.
            sys.stdout.reconfigure(line_buffering=True)
        remember_text(path)
        # A hand-in's folder is the student's: nothing is to appear in it.
        sys.dont_write_bytecode = True
        spec = importlib.util.spec_from_file_location(MODULE, path)
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[MODULE] = self.module
        spec.loader.exec_module(self.module)
        self.classes = autograd_classes(self.module, torch.autograd.Function)
        self.base: Any = torch.autograd.Function
        self.judged_class = ""
        """The class that was called, and how many fitted as well as it."""
        names = [
            name
            for name, value in vars(self.module).items()
            if callable(value) and not inspect.isclass(value)
        ]
        self.functions = [[name, "function"] for name in names if len(name) < 200][:900]
        if self.classes or self.adapter("triton") or self.adapter("pytorch"):
            self.functions.append(["apply", "autograd"])

    def find(self, name: str) -> Any:
        function = getattr(self.module, name, None)
        if not callable(function):
            raise Failed(f"there is no function {name} in the file")
        return function

    def adapter(self, language: str) -> Any:
        """The course's own way to name a class: a function of the file that returns it; None where there is none."""
        return getattr(self.module, f"get_flashattention_autograd_function_{language}", None)

    def chosen(self, form: dict[str, Any]) -> Any:
        """The class to call, by its name if one is asked for, else by the file's adapter, else by the language of its
        forward pass: the last one that fits. Raises Failed where there is none."""
        name, language = form.get("class", ""), form.get("language", "")
        if name:
            found = getattr(self.module, name, None)
            if not (inspect.isclass(found) and issubclass(found, self.base)):
                raise NotWritten(f"there is no autograd.Function {name} in the file")
            return found
        if language and (adapter := self.adapter(language)) is not None:
            return adapter()
        in_triton = language != "pytorch"
        # The language first, then the name, which is all that a class that is not written yet has.
        signs = [(launches(each) == in_triton, says_triton(each) == in_triton) for each in self.classes]
        best = max(signs)
        if language and not any(best):
            kind = "launches a Triton kernel" if in_triton else "launches no Triton kernel"
            raise NotWritten(f"there is no autograd.Function in the file whose forward {kind}")
        fitting = [each for each, sign in zip(self.classes, signs, strict=True) if sign == best]
        self.judged_class = f"{fitting[-1].__name__} of {len(fitting)}" if len(fitting) > 1 else ""
        return fitting[-1]

    def bound(self, request: dict[str, Any], values: list[Any], outputs: list[Any]) -> Callable[[], None]:
        """What calls the function with these values once, and puts what it returns into the outputs."""
        names, form = request["outputs"], request.get("autograd")
        known = callable(getattr(self.module, request["function"], None))
        has_class = ["apply", "autograd"] in self.functions
        if form and has_class and (request.get("as_autograd") or not known):
            return self.by_autograd(form, values, outputs, names)
        function = self.find(request["function"])
        returned = request.get("returned", [])
        if not returned:
            return lambda: function(*values)

        wanted = " and ".join(names[k] for k in returned)
        in_place = any(value is output for value in values for output in outputs)

        def call() -> None:
            found = function(*values)
            several = list(found) if isinstance(found, (tuple, list)) else [found]
            if found is None and in_place:
                return
            if found is None:
                raise Failed(f"it should return {wanted}, and returns nothing")
            if len(several) != len(returned):
                many = f"{len(several)} tensor{'s' * (len(several) != 1)}"
                raise Failed(f"it should return {wanted}, and returns {many}")
            for value, k in zip(several, returned, strict=False):
                copied(value, outputs[k], names[k])

        return call

    def by_autograd(
        self, form: dict[str, Any], values: list[Any], outputs: list[Any], names: list[str]
    ) -> Callable[[], None]:
        import torch

        function = self.chosen(form)
        apply = function.apply
        if form.get("gradient") is not None and function.backward is self.base.backward:
            raise NotWritten(f"{function.__name__} has no backward: it is not implemented")
        given = [flattened(values[k]) for k in form["arguments"]]
        tensors = [k for k, value in enumerate(given) if isinstance(value, torch.Tensor)]
        gradient = flattened(values[form["gradient"]]) if form.get("gradient") is not None else None

        def call() -> None:
            taken = [v.detach().requires_grad_(True) if k in tensors else v for k, v in enumerate(given)]
            found = apply(*taken)
            first = found[0] if isinstance(found, (tuple, list)) else found
            if gradient is not None:
                try:
                    first.backward(gradient)
                except NotImplementedError as error:
                    if _is_students(error):
                        raise NotWritten("backward is not implemented") from error
                    raise
                for k, output, name in zip(tensors, outputs, names, strict=False):
                    copied(taken[k].grad, output, name)
                return
            # Before anything is copied: all sets lie in one tensor, and torch would see it as changed.
            saved = getattr(first.grad_fn, "saved_tensors", ()) if first.grad_fn is not None else ()
            copied(first, outputs[0], names[0])
            for output, name in zip(outputs[1:], names[1:], strict=False):
                fitting = [
                    t
                    for t in saved
                    if t is not None and t.numel() == output.numel() and t.dtype == output.dtype
                ]
                if not fitting:
                    raise Failed(f"no saved tensor has as many elements as {name}")
                copied(fitting[-1].reshape(output.shape), output, name)

        return call


def remember_text(path: str) -> None:
    """Keep a file's lines for `inspect`: the file is out of reach when Triton asks for a kernel's text at a call."""
    with open(path, "rb") as file:
        content = file.read()
    text = importlib.util.decode_source(content)
    # Without a time of change an entry is kept as it is.
    linecache.cache[path] = (len(content), None, text.splitlines(keepends=True), path)


def autograd_classes(module: Any, base: type) -> list[Any]:
    """The file's own subclasses of torch.autograd.Function, in order."""
    return [
        value
        for value in dict.fromkeys(value for value in vars(module).values() if inspect.isclass(value))
        if issubclass(value, base) and value.__module__ == module.__name__
    ]


def launches(cls: Any) -> bool:
    """Return True if a class's forward pass names a Triton kernel, or a function of its module that does."""
    pending = [getattr(cls, "forward", None)]
    done: set[int] = set()
    while pending:
        function = pending.pop()
        function = inspect.unwrap(function) if callable(function) else function
        if id(function) in done or not inspect.isfunction(function):
            continue
        done.add(id(function))
        names = set(names_in(function.__code__))
        for name, value in function.__globals__.items():
            if name in names and is_kernel(value):
                return True
            pending += [value] if name in names and inspect.isfunction(value) else []
        pending += [getattr(cls, name) for name in names if inspect.isfunction(getattr(cls, name, None))]
    return False


def says_triton(cls: Any) -> bool:
    return "triton" in cls.__name__.lower()


def names_in(code: types.CodeType) -> Iterator[str]:
    """Names that a function's code uses, in functions inside of it too."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from names_in(each)


def is_kernel(value: Any) -> bool:
    """Return True for what `triton.jit` and an autotuner make of a function, on a card or in the interpreter."""
    kind = type(value)
    return (
        kind.__module__.partition(".")[0] == "triton"
        and hasattr(kind, "__getitem__")
        and hasattr(kind, "run")
    )


class CudaLibrary:
    """A library of C functions: pointers, ints, floats, and the stream last; each returns 0 or CUDA's error."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.functions: list[list[str]] = []

    def find(self, name: str) -> Any:
        try:
            return getattr(self.library, name)
        except AttributeError:
            raise Failed(f'there is no function {name} in the library: is it extern "C"?') from None

    def bound(self, request: dict[str, Any], values: list[Any], outputs: list[Any]) -> Callable[[], None]:
        import torch

        function = self.find(request["function"])
        function.restype = ctypes.c_int
        cells = [_cell(value) for value in values]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def call() -> None:
            if code := function(*cells, stream):
                raise Failed(f"it returned CUDA's error {code}")

        return call


def _cell(value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int(int(value))


# ---- what is raised


def attempted(work: Callable[[], None]) -> None:
    """Run a student's function. An unfinished starter raises NotImplementedError and writes nothing, which the judge
    says; what else is raised, torch's and Triton's own NotImplementedError too, is told where operations are served
    (`grader.run.devicerunner.told`)."""
    try:
        work()
    except NotImplementedError as error:
        if not _is_students(error):
            raise


def _is_students(error: BaseException) -> bool:
    """Whether a raise of the student's file itself is its origin, and nothing that the file called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or error.__cause__ is not None or trace.tb_frame.f_globals.get("__name__") != MODULE:
        return False
    # What is raised in C, as torch does, has no frame of its own: the instruction is a call then.
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def described(error: BaseException, *, has_card: bool = True) -> str:
    """The innermost line of the student's file and what was raised, whatever the student's own class of exception does
    when it is asked for its text."""
    try:
        text = _described(error)
        return text if has_card or not ASKS_FOR_CARD.search(text) else text + NO_CARD
    except BaseException:
        return "it raised an exception that fails when it is asked for its text"


def _described(error: BaseException) -> str:
    root: BaseException = error
    for _ in range(LONGEST_CHAIN):  # An exception can be its own cause.
        if root.__cause__ is None:
            break
        root = root.__cause__
    lines = []
    for link in (error, root):
        trace = link.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") == MODULE:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
    where = f"line {lines[-1]}" if lines else "it"
    text = str(root)
    return f"{where} raised {type(root).__name__}{': ' if text else ''}{text}"[:LONGEST_MESSAGE]


# ---- what a call launches


@contextlib.contextmanager
def profiled_kernels(names: list[str], device: str) -> Iterator[None]:
    """Note the kernels that are launched on a GPU meanwhile, libraries' too, each once; nothing without a GPU."""
    if device == "cpu":
        yield
        return
    import torch

    with torch.autograd.profiler.profile(use_device="cuda") as profiler:
        yield
    for event in profiler.key_averages():
        is_new = event.key not in names and len(names) < MOST_KERNELS
        if is_new and event.device_type == torch._C._autograd.DeviceType.CUDA:
            names.append(event.key)
