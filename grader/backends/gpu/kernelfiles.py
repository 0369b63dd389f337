"""Loading of a file with GPU kernels in a runner: a Python file with Triton kernels, or a CUDA library.

`gpu.devicerunner` calls the file's functions. This module imports nothing of the kit, like all files beside untrusted
code.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import gc
import importlib.machinery
import importlib.util
import inspect
import linecache
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

LONGEST_MESSAGE = 1000
MOST_KERNELS = 90
LONGEST_CHAIN = 50
"""Most causes of an exception that are followed, from one exception to the next."""
MODULE = "kernels"
"""Module name under which a student's single file is loaded."""
FILE_BITS = 20
"""A place in a hand-in is one number: its FILE_BITS low bits are the line, the higher bits the file's number."""
OWN = {MODULE: 0}
"""{name of a student's module: its file's number << FILE_BITS}."""
#: The module `grader.core.filebundle`. The zygote (`torch.forkserver`) loads it and sets this variable.
filebundle: Any = None
#: Words in exceptions that a file raises because it needs a GPU and the machine has none.
ASKS_FOR_CARD = re.compile(r"cuda|nvidia|active drivers|nvml", re.IGNORECASE)
#: Modules whose exceptions may mean that a GPU is missing.
OF_CARD = ("torch.cuda", "triton.runtime.driver", "triton.backends")
known_codes: dict[int, types.CodeType] = {}
"""Code objects of torch's and Triton's functions by identity, recorded before a student's file is imported."""
FROM_C = re.compile(
    r"CUDA |Found no NVIDIA|No CUDA GPUs|PyTorch was compiled without CUDA|The NVIDIA driver"
    r"|Cannot (access accelerator|get CUDA)"
)
INTERPRETER = "triton.runtime.interpreter"
NO_CARD = " (this machine has no GPU, and Triton's interpreter cannot do this)"


class Failed(Exception):
    """Raised if a function is missing, raises or returns no usable result. The message is for the student."""

    is_missing = False
    """True if the function is not written yet."""


class NotWritten(Failed):
    is_missing = True


# ---- tensors


def flattened(value: Any) -> Any:
    """Return a tensor as 3-D: all axes before the last two become one axis. CS336's autograd.Function needs that.

    Tensors of at most 3 dimensions and other values are returned unchanged.
    """
    import torch

    if isinstance(value, torch.Tensor) and value.dim() > 3:
        return value.reshape(-1, *value.shape[-2:])
    return value


def copied(value: Any, output: Any, name: str) -> None:
    """Copy a returned value into `output`, which messages call `name`. Raises Failed if type or shape does not fit."""
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


# ---- loading a file


class PythonFile:
    """A student's Python hand-in of one or more files: functions, autograd.Function classes, CS336's adapters."""

    def __init__(self, path: str) -> None:
        import torch

        if hasattr(sys.stdout, "reconfigure"):
            # Flush each line at once: otherwise text printed before a crash would be lost.
            sys.stdout.reconfigure(line_buffering=True)
        # Do not write bytecode into the student's folder.
        sys.dont_write_bytecode = True
        with open(path, "rb") as file:
            content = file.read()
        files = filebundle.split(content)
        self.bundle = filebundle.Bundle(files) if files else None
        self.adapters: Any = None
        """Module with CS336's adapters, if they were handed in as a separate file."""
        if self.bundle is None:
            remember_text(path, content)
            spec = importlib.util.spec_from_file_location(MODULE, path)
            assert spec is not None and spec.loader is not None
            self.module = importlib.util.module_from_spec(spec)
            sys.modules[MODULE] = self.module
            spec.loader.exec_module(self.module)
        else:
            finder = Finder(self.bundle)
            sys.meta_path.insert(0, finder)
            self.module = finder.loaded(self.bundle.main)
            adapters = self.bundle.adapters()
            self.adapters = finder.loaded(adapters) if adapters else None
        self.classes = autograd_classes([self.module, self.adapters], torch.autograd.Function)
        self.base: Any = torch.autograd.Function
        self.judged_class = ""
        """Name of the called class, with the number of classes that fitted; "" for the only class of a single file."""
        self.judged_file = 0
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
        """Return CS336's adapter function for a language, which returns the class to judge; None if it is missing."""
        name = f"get_flashattention_autograd_function_{language}"
        return getattr(self.adapters, name, None) or getattr(self.module, name, None)

    def chosen(self, form: dict[str, Any]) -> Any:
        """Return the autograd.Function to call.

        `form` names the class, else the hand-in's adapter returns it, else it is a class with a forward pass in the
        wanted language. If several classes fit, the last one is taken. Raises Failed if none fits.
        """
        name, language = form.get("class", ""), form.get("language", "")
        self.judged_class = ""
        if name:
            own = [self.module, self.adapters, *map(sys.modules.get, OWN)]
            found = next((getattr(each, name) for each in own if hasattr(each, name)), None)
            if not (inspect.isclass(found) and issubclass(found, self.base)):
                raise NotWritten(f"there is no autograd.Function {name} in the file")
            return self.judged(found)
        if language and (adapter := self.adapter(language)) is not None:
            try:
                return self.judged(adapter())
            except NotImplementedError as error:
                if not _is_students(error):
                    raise
        in_triton = language != "pytorch"
        count = len(form["arguments"])
        classes = [each for each in self.classes if takes(each, count)]
        if self.classes and not classes:
            raise NotWritten(f"the file has no autograd.Function whose forward takes {count} arguments")
        # Prefer a class whose code uses the language. If code is not written yet, prefer a class named after it.
        signs = [
            (launches(each) == in_triton, ("triton" in each.__name__.lower()) == in_triton)
            for each in classes
        ]
        best = max(signs, default=(False, False))
        if not signs or (language and not any(best)):
            kind = "launches a Triton kernel" if in_triton else "launches no Triton kernel"
            raise NotWritten(f"the file has no autograd.Function whose forward {kind}")
        fitting = [each for each, sign in zip(classes, signs, strict=True) if sign == best]
        return self.judged(fitting[-1], len(fitting))

    def judged(self, cls: Any, fitting: int = 1) -> Any:
        """Record the name of the class that is called, if several classes fit or the hand-in has several files.

        `fitting` is the number of classes that fit. Return `cls`.
        """
        several = f" of {fitting}" if fitting > 1 else ""
        name = getattr(cls, "__name__", "?")
        self.judged_class = f"{name}{several}" if several or self.bundle is not None else ""
        self.judged_file = OWN.get(getattr(cls, "__module__", ""), 0) >> FILE_BITS
        return cls

    def bound(self, request: dict[str, Any], values: list[Any], outputs: list[Any]) -> Callable[[], None]:
        """Return a function that makes the requested call with the arguments `values`.

        It calls the student's function or autograd.Function and copies returned tensors to `outputs`.
        """
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
        """Return a function that calls the autograd.Function of `form` and copies its results to `outputs`."""
        import torch

        function = self.chosen(form)
        apply = function.apply
        if function.forward is self.base.forward:
            raise NotWritten(f"{function.__name__} has no forward: it is not implemented")
        if form.get("gradient") is not None and function.backward is self.base.backward:
            raise NotWritten(f"{function.__name__} has no backward: it is not implemented")
        given = [flattened(values[k]) for k in form["arguments"]]
        tensors = [k for k, value in enumerate(given) if isinstance(value, torch.Tensor)]
        gradient = flattened(values[form["gradient"]]) if form.get("gradient") is not None else None

        def call() -> None:
            taken = [v.detach().requires_grad_(True) if k in tensors else v for k, v in enumerate(given)]
            try:
                found = apply(*taken)
            except NotImplementedError as error:
                if _is_students(error):
                    raise NotWritten("forward is not implemented") from error
                raise
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
            # Read the saved tensors before outputs are copied: an output may share memory with a saved tensor, and
            # torch refuses to return saved tensors that were changed.
            saved = getattr(first.grad_fn, "saved_tensors", ()) if first.grad_fn is not None else ()
            copied(first, outputs[0], names[0])
            for output, name in zip(outputs[1:], names[1:], strict=False):
                fitting = [
                    t
                    for t in saved
                    if t is not None and t.numel() == output.numel() and t.dtype == output.dtype
                ]
                if not fitting:
                    raise Failed(
                        f"forward saves no tensor with as many elements as {name} (save_for_backward)"
                    )
                copied(fitting[-1].reshape(output.shape), output, name)

        return call


class Finder:
    """Import finder for the files of a hand-in of several files, whose modules take precedence over installed packages.

    These modules cannot replace Python's own modules or modules that the runner has imported before.
    """

    def __init__(self, bundle: Any) -> None:
        self.bundle = bundle
        self.kept = {name.partition(".")[0] for name in sys.modules}
        self.numbers = {file: number for number, file in enumerate(bundle.files)}
        for file, content in bundle.files.items():
            remember_text(file, content)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        place = "" if name.partition(".")[0] in self.kept else self.bundle.place(name)
        if not place.endswith("/"):
            return self.spec(name, place) if place else None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec

    def spec(self, name: str, file: str) -> Any:
        OWN[name] = self.numbers[file] << FILE_BITS
        # `spec_from_file_location` would add the runner's folder to the file's name.
        spec = importlib.machinery.ModuleSpec(name, cast("Any", self), origin=file)
        spec.has_location = True
        if file.endswith("/__init__.py"):
            spec.submodule_search_locations = [file.rpartition("/")[0]]
        return spec

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: Any) -> None:
        file = module.__spec__.origin
        exec(compile(self.bundle.files[file], file, "exec", dont_inherit=True), vars(module))

    def loaded(self, file: str) -> Any:
        """Import a file of the hand-in by its path. Return the module."""
        name = self.bundle.module_of(file)
        if name and name.partition(".")[0] not in self.kept:
            return importlib.import_module(name)
        spec = self.spec(MODULE, file)
        module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def remember_text(path: str, content: bytes) -> None:
    """Keep a file's lines in `linecache`: Triton reads them by `inspect` when the file can no longer be opened."""
    try:
        text = importlib.util.decode_source(content)
    except (SyntaxError, UnicodeDecodeError):
        return  # the import will raise this error, with its line
    # An entry without modification time is never reloaded.
    linecache.cache[path] = (len(content), None, text.splitlines(keepends=True), path)


def autograd_classes(modules: list[Any], base: type) -> list[Any]:
    """Return the subclasses of torch.autograd.Function that are defined in the hand-in and named in these modules."""
    named = [value for module in modules if module is not None for value in vars(module).values()]
    return [
        value
        for value in dict.fromkeys(value for value in named if inspect.isclass(value))
        if issubclass(value, base) and value.__module__ in OWN
    ]


def takes(cls: Any, count: int) -> bool:
    """Return True if `apply` of this autograd.Function takes `count` arguments, or if its signature is unknown."""
    try:
        parameters = inspect.signature(cls.forward)
    except (TypeError, ValueError):
        return True
    # `forward` may take the context as a further argument, unless the class has `setup_context`.
    for given in (count, count + 1):
        with contextlib.suppress(TypeError):
            parameters.bind(*range(given))
            return True
    return False


def launches(cls: Any) -> bool:
    """Return True if a class's forward pass uses a Triton kernel, directly or through functions of the hand-in."""
    pending = [getattr(cls, "forward", None)]
    done: set[int] = set()
    while pending:
        function = pending.pop()
        function = inspect.unwrap(function) if callable(function) else function
        if id(function) in done or not inspect.isfunction(function):
            continue
        done.add(id(function))
        names = set(names_in(function.__code__))
        spaces = [function.__globals__]
        spaces += [
            vars(each)
            for each in function.__globals__.values()
            if inspect.ismodule(each) and each.__name__ in OWN
        ]
        for name, value in (item for space in spaces for item in list(space.items())):
            if name in names and is_kernel(value):
                return True
            pending += [value] if name in names and inspect.isfunction(value) else []
        pending += [getattr(cls, name) for name in names if inspect.isfunction(getattr(cls, name, None))]
    return False


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, inner functions included."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from names_in(each)


def is_kernel(value: Any) -> bool:
    """Return True for a kernel made by `triton.jit` or an autotuner, compiled or interpreted."""
    kind = type(value)
    return (
        kind.__module__.partition(".")[0] == "triton"
        and hasattr(kind, "__getitem__")
        and hasattr(kind, "run")
    )


class CudaLibrary:
    """A library of C functions that take pointers, ints and floats, then the stream, and return 0 or a CUDA error."""

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


# ---- exceptions


def attempted(work: Callable[[], None]) -> None:
    """Run a student's function. Ignore a NotImplementedError that the file itself raises, as unfinished starters do.

    The judge then finds that the output was not written. All other exceptions, including NotImplementedError from torch
    or Triton, pass through to `gpu.devicerunner.raising_failed`.
    """
    try:
        work()
    except NotImplementedError as error:
        if not _is_students(error):
            raise


def _is_students(error: BaseException) -> bool:
    """Return True if a `raise` statement in the student's file raised the exception, and no called library did."""
    links = _links(error)
    if not links or error.__cause__ is not None or _module(links[-1]) not in OWN:
        return False
    # C code (such as torch's) has no Python frame. If it raises, the file's last instruction is a call, not a raise.
    return _raises(links[-1])


def _links(error: BaseException) -> list[types.TracebackType]:
    """Return an exception's traceback as a list, the innermost frame last."""
    links, link = [], error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    return links


def _module(link: types.TracebackType) -> str:
    return str(link.tb_frame.f_globals.get("__name__"))


def _raises(link: types.TracebackType) -> bool:
    return link.tb_frame.f_code.co_code[link.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def described(error: BaseException, *, has_card: bool = True) -> str:
    """Return a text that describes an exception and names the innermost line of the student's file in its traceback.

    If the machine has no GPU (`has_card` is False) and this caused the exception, the text ends with a note. Works even
    if the student's exception class raises an error when it is converted to text.
    """
    try:
        text = _described(error)
        root = _root(error)
        if not has_card and ((ASKS_FOR_CARD.search(text) and _is_of_card(root)) or _is_unsupported(root)):
            return text + NO_CARD
        # The judge takes a text that ends in NO_CARD as proof of a missing GPU, so a student's text must not end with
        # it.
        return f"{text}." if text.endswith(NO_CARD) else text
    except BaseException:
        return "it raised an exception whose text cannot be read"


def remember_code() -> None:
    """Record the code objects of all functions in OF_CARD and in Triton (see `known_codes`)."""
    pending: list[Any] = [
        each.__code__
        for each in gc.get_objects()
        if isinstance(each, types.FunctionType)
        and str(each.__globals__.get("__name__")).startswith((*OF_CARD, "triton."))
    ]
    while pending:
        code = pending.pop()
        known_codes[id(code)] = code
        pending += [each for each in code.co_consts if isinstance(each, types.CodeType)]


def _is_known(link: types.TracebackType) -> bool:
    return known_codes.get(id(link.tb_frame.f_code)) is link.tb_frame.f_code


def _is_of_card(error: BaseException) -> bool:
    """Return True if this exception came from code of torch or Triton that needs a GPU, not from the student's file."""
    links = _links(error)
    own = [k for k, link in enumerate(links) if _module(link) in OWN]
    for link in links[own[-1] + 1 if own else 0 :]:
        # The module's name is not enough: a student's file can have any name, and can put functions into these modules.
        if _module(link).startswith(OF_CARD) and _is_known(link):
            return True
    # An exception that torch raises in C++ has no Python frame in torch: compare its text.
    import torch

    is_call = bool(links) and not _raises(links[-1])
    is_of_torch = type(error) in (RuntimeError, getattr(torch, "AcceleratorError", RuntimeError))
    return is_call and is_of_torch and FROM_C.match(str(error)) is not None


def _is_unsupported(error: BaseException) -> bool:
    """Return True if Triton's interpreter raised this exception because it lacks a feature that a GPU has."""
    links = _links(error)
    if not links or not _is_known(links[-1]):
        return False
    if isinstance(error, NotImplementedError):
        return _module(links[-1]) == INTERPRETER
    # A function of Triton's language uses an operation that the interpreter's builder lacks.
    return isinstance(error, AttributeError) and type(error.obj).__module__ == INTERPRETER


def _root(error: BaseException) -> BaseException:
    for _ in range(LONGEST_CHAIN):  # an exception can be its own cause
        if error.__cause__ is None:
            break
        error = error.__cause__
    return error


def _described(error: BaseException) -> str:
    """Return a message about an exception, with the place in the student's files where it was raised."""
    root = _root(error)
    places = []
    for link in (*_links(error), *_links(root)):
        if _module(link) in OWN:
            file = link.tb_frame.f_code.co_filename
            # Show the file's name only if the hand-in has several files. Their names are relative.
            places.append(f"{file}:" * (not file.startswith("/")) + str(link.tb_lineno))
    where = "it"
    if places:
        where = places[-1] if ":" in places[-1] else f"line {places[-1]}"
    text = str(root)
    return f"{where} raised {type(root).__name__}{': ' if text else ''}{text}"[:LONGEST_MESSAGE]


# ---- launches of a call


@contextlib.contextmanager
def profiled_kernels(names: list[str], device: str) -> Iterator[None]:
    """Add the names of all kernels launched in the block, also by libraries, to `names`; none without a GPU."""
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
