"""Records the trace of a call: the torch operators and kernel launches that compute its outputs from its inputs.

`Trace.follow` records one call of a student's function: each torch operator that makes or changes a tensor, and each
launch of a Triton kernel, with all arguments. A tensor is recorded as a part of a storage. If no recorded step made a
storage (it comes from NumPy or an earlier call), its content becomes a constant of the trace.

The process runs the student's code, so the trace may be forged. Therefore it is replayed (`gpu.replay`) on new inputs,
in a process that runs no Python code of the student. Numbers that the student obtained in another way fit only the
earlier inputs, so the replay's result is wrong. A forged trace that is right on new inputs is as good as the kernel.

This file imports nothing of the kit, like all files that run beside untrusted code.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import dis
import enum
import functools
import importlib
import inspect
import json
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

MOST_NAMES = 900
MOST_BYTES, MOST_PACKED, MOST_STEPS = 64 << 20, 700_000, 50_000
"""Limits on a trace: bytes of its constants, length of the packed text, and number of steps."""
DEEPEST = 8
PLAIN = (bool, int, float, str, type(None))
LANGUAGE = "triton.language"
LAUNCH = "launch "
"""Prefix of a launched kernel's name in the list of a call's operations."""


class NoTrace(Exception):
    """Raised if the call does something that a trace cannot record. The message names it."""


class Trace:
    """Records calls in this process, one at a time. A new call discards the record of the last one."""

    def __init__(self) -> None:
        self.following, self.depth = False, 0
        self.seen: dict[str, int] = {}
        """Number of calls of each operator ("op mm") and launches of each kernel ("launch k")."""
        self.steps: list[list[Any] | str] = []
        """Steps [kind, ...] for `gpu.replay.Player.play`, each as a list or as JSON."""
        self.kernels: dict[str, int] = {}
        self.storages: dict[int, tuple[int, Any]] = {}
        self.lost = ""
        self.bytes = 0
        self.mode: Any = None

    # ---- storages and values

    def number_of(self, storage: Any) -> int | None:
        """Return the number of a storage in the trace; None for an unknown storage."""
        known = self.storages.get(storage._cdata)
        return None if known is None else known[0]

    def add(self, storage: Any) -> int:
        """Give a storage a number and return it. Keep the storage, so that its address is not reused."""
        number = len(self.storages)
        self.storages[storage._cdata] = number, storage
        return number

    def part(self, tensor: Any) -> list[Any]:
        """Return a tensor as [number of its storage, type, sizes, strides, offset]. Record an unknown storage first."""
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized:
            raise NoTrace(f"a tensor of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        number = self.number_of(storage)
        if number is None:
            content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().numpy()
            self.bytes += content.nbytes
            if self.bytes > MOST_BYTES:
                raise NoTrace("tensors of earlier calls and of NumPy's, too large to be sent")
            number = self.add(storage)
            packed = base64.b64encode(zlib.compress(content.tobytes(), 1)).decode()
            self.steps.append(["constant", number, content.nbytes, packed])
        kind = str(tensor.dtype).removeprefix("torch.")
        return [number, kind, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return the JSON description of an operator's or kernel's argument. Raise NoTrace if it has none."""
        import torch

        kind = type(value)
        if kind in PLAIN:
            return value
        for plain in (bool, int, float, str):
            if isinstance(value, plain):  # a member of an enumeration
                return plain(value)
        if depth > DEEPEST:
            raise NoTrace("an argument that is nested too deeply")
        inner = functools.partial(self.value, depth=depth + 1)
        if isinstance(value, torch.Tensor):
            return {"tensor": self.part(value)}
        if kind is list:
            return [*map(inner, value)]
        if (
            kind is tuple
            or kind is torch.Size
            or f"{kind.__module__}.{kind.__name__}" == f"{LANGUAGE}.core.tuple"
        ):
            return {"tuple": [*map(inner, value)]}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"fields": list(kind._fields), "tuple": [*map(inner, value)]}
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": 0}
        if isinstance(value, enum.Enum):
            return inner(value.value)
        recorded = self.of_triton(value, inner)
        if recorded is None and hasattr(value, "item") and kind.__module__ == "numpy":
            recorded = inner(value.item())
        if recorded is None and dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value)]
            recorded = {"fields": fields, "tuple": [inner(getattr(value, name)) for name in fields]}
        if recorded is None:
            raise NoTrace(f"an argument of type {kind.__name__}")
        return recorded

    def of_triton(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        """Return the JSON description of an object of Triton, such as a constexpr; None for any other value.

        `inner` describes the values in the object.
        """
        core = sys.modules.get(f"{LANGUAGE}.core")
        if core is None:
            return None
        if isinstance(value, core.constexpr):
            return {"constexpr": inner(value.value)}
        if type(value) is core.dtype:
            return {"type": value.name}
        if hasattr(value, "block_shape") and hasattr(value, "base"):
            fields = (value.base, [*value.shape], [*value.strides], [*value.block_shape])
            return {"descriptor": [*map(inner, fields)], "padding": getattr(value, "padding", "zero")}
        if hasattr(type(value), "__members__"):
            for name, found in vars(sys.modules[LANGUAGE]).items():
                if found is type(value):
                    return {"from": [LANGUAGE, name, value.name]}
        if type(value).__name__ == "TensorWrapper":
            return {"wrapper": [inner(value.base), inner(value.dtype)]}
        return self.callable(value, DEEPEST)

    def callable(self, value: Any, depth: int, name: str = "") -> Any:
        """Return the JSON description of a function of Triton or a kernel of the file; None for any other value."""
        function = getattr(value, "fn", value)
        while not isinstance(function, types.FunctionType) and hasattr(function, "fn"):
            function = function.fn
        for place in (
            getattr(value, "__module__", ""),
            getattr(function, "__module__", ""),
            LANGUAGE,
            "triton",
        ):
            for known in (getattr(value, "__name__", ""), name):
                module = sys.modules.get(str(place))
                if str(place).partition(".")[0] == "triton" and getattr(module, str(known), None) is value:
                    return {"from": [place, known]}
        is_kernel = type(value).__name__ in ("JITFunction", "InterpretedFunction", "ConstexprFunction")
        if is_kernel and isinstance(function, types.FunctionType):
            return {"kernel": self.kernel(function, depth - 1), "kind": type(value).__name__}
        return None

    def kernel(self, function: types.FunctionType, depth: int = DEEPEST) -> int:
        """Record a kernel: its place in the file and the values of the global names that it uses. Return its number.

        `depth` limits how far kernels that call other kernels are followed.
        """
        names, code = {}, function.__code__
        if depth > 0:
            for name in sorted(global_names(code)):
                found = function.__globals__.get(name)
                with contextlib.suppress(NoTrace):
                    if isinstance(found, types.ModuleType):
                        names[name] = self.module(found, code, depth)
                    elif found is not None:
                        names[name] = self.meaning(found, depth, name)
            cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
            for name, cell in cells:
                with contextlib.suppress(NoTrace, ValueError):
                    names[name] = self.meaning(cell.cell_contents, depth, name)
        constants = sorted(self.constants(function))
        entry = json.dumps([code.co_filename, function.__name__, code.co_firstlineno, names, constants])
        return self.kernels.setdefault(entry, len(self.kernels))

    def module(self, module: types.ModuleType, code: types.CodeType, depth: int) -> dict[str, Any]:
        """Return the JSON description of a module. For a student's module, it has the values of names in `code`."""
        if module.__name__.partition(".")[0] in ("triton", "math"):
            return {"module": module.__name__}
        own = {}
        for name in code.co_names:
            if (found := getattr(module, name, None)) is not None:
                with contextlib.suppress(NoTrace):
                    own[name] = self.meaning(found, depth, name)
        return {"namespace": own}

    def meaning(self, value: Any, depth: int, name: str) -> Any:
        """Return the JSON description of the value of `name`, a global name that a kernel uses."""
        recorded = self.callable(value, depth, name)
        return self.value(value) if recorded is None else recorded

    def constants(self, function: types.FunctionType) -> set[str]:
        """Return the names of a kernel's constexpr arguments, even if the file imports constexpr by another name."""
        mark = getattr(sys.modules.get(f"{LANGUAGE}.core"), "constexpr", None)
        return {
            name
            for name, text in function.__annotations__.items()
            if text is mark or "constexpr" in str(text) or function.__globals__.get(str(text)) is mark
        }

    # ---- steps

    def append(self, step: list[Any] | str) -> None:
        if len(self.steps) >= MOST_STEPS:
            raise NoTrace(f"more than {MOST_STEPS} operators and launches")
        self.steps.append(step)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Context for code that records. Its exceptions do not reach the student's code, but the trace is lost."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        # Usually torch has already disabled all dispatch modes. Disabling them again takes longer than an operator.
        is_left = torch._C._len_torch_dispatch_stack() > 0
        try:
            with _disable_current_modes() if is_left else contextlib.nullcontext():
                yield
        except NoTrace as error:
            self.lost = str(error)
        except Exception as error:
            self.lost = f"{type(error).__name__}: {error}"[:200]

    def run(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an operator, record it if it makes or changes a storage, and return its result."""
        if self.depth:
            # The interpreter calls operators during a launch. They are parts of the launch, not steps of the trace.
            return function(*arguments, **keywords)
        space, _, name = function._schema.name.partition("::")
        if space != "aten":
            return self.run_own(function, arguments, keywords)
        self.count(f"op {name}")
        if self.lost:
            return function(*arguments, **keywords)
        result, recorded = None, None
        if not function._schema.is_mutable:
            result = function(*arguments, **keywords)
            if all(self.number_of(each.untyped_storage()) is not None for each in tensors_in(result)):
                return result  # A view is not a step: later steps refer to parts of its storage.
        with self.recording():
            recorded = self.value(list(arguments)), {key: self.value(each) for key, each in keywords.items()}
        if function._schema.is_mutable:
            result = function(*arguments, **keywords)
        if self.lost or recorded is None:
            return result
        with self.recording():
            made = []
            for place, tensor in enumerate(tensors_in(result)):
                storage = tensor.untyped_storage()
                if self.number_of(storage) is None:
                    made.append([place, self.add(storage)])
            if made or function._schema.is_mutable:
                # Store the step as a string: lists would keep the garbage collector busy with many small objects.
                self.append(json.dumps(["operator", name, function._overloadname, *recorded, made]))
        return result

    def run_own(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an operator that the student's file defines. Record the launches and operators that it calls."""
        import torch

        held = tensors_in([*arguments, *keywords.values()])
        # Ask the storage for its device: on a stand-in GPU, the tensor itself claims to be on a GPU.
        place = next((tensor.untyped_storage().device.type for tensor in held), "cpu")
        below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, place.upper()))
        with self.mode():
            # Redispatch below this dispatch mode: an ordinary call would call this method again.
            return function.redispatch(below, *arguments, **keywords)

    @contextlib.contextmanager
    def launch(
        self, function: types.FunctionType, arguments: Sequence[Any], named: dict[str, Any]
    ) -> Iterator[Any]:
        """Record one launch of a kernel, which the `with` block makes. Yield a function to call with the grid.

        Operators that are called in the block are not recorded, because they come from the interpreter.
        """
        grid: list[int] = []
        place = len(self.steps)
        if self.following and not self.depth:
            self.count(f"{LAUNCH}{function.__name__}")
        if self.following and not (self.depth or self.lost):
            with self.recording():
                signature = inspect.signature(function)
                taken = {key: each for key, each in named.items() if key in signature.parameters}
                options = {
                    key: each for key, each in named.items() if key not in taken and type(each) in PLAIN
                }
                given = signature.bind(*arguments, **taken)
                given.apply_defaults()
                values = {key: self.value(each) for key, each in given.arguments.items()}
                self.append(["launch", self.kernel(function), grid, values, options])
        self.depth += 1
        try:
            yield grid.extend
        finally:
            self.depth -= 1
            if not grid and len(self.steps) > place:
                self.lost = self.lost or "a launch without a grid"

    # ---- a call

    def count(self, name: str) -> None:
        if name in self.seen or len(self.seen) < MOST_NAMES:
            self.seen[name] = self.seen.get(name, 0) + 1
        else:
            self.seen["op more"] = 1

    @contextlib.contextmanager
    def follow(self, tensors: Iterable[Any] = ()) -> Iterator[None]:
        """Context that records one call. `tensors` are the call's inputs and outputs, in order."""
        from torch.utils._python_dispatch import TorchDispatchMode

        run = self.run

        class Following(TorchDispatchMode):
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                """Return False: for True, torch would import its compiler, which takes seconds in each runner."""
                return False

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return run(func, args, kwargs or {})

        self.mode = Following
        self.seen, self.steps, self.kernels, self.storages = {}, [], {}, {}
        self.lost, self.bytes, self.depth = "", 0, 0
        for tensor in tensors:
            self.add(tensor.untyped_storage())
        self.following = True
        try:
            with Following():
                yield
        finally:
            self.following = False

    def packed(self) -> str:
        """Return the trace of the last call as a string, or "lost: " with the reason."""
        if not self.lost:
            steps = [each if isinstance(each, str) else json.dumps(each) for each in self.steps]
            whole = f'{{"kernels": [{", ".join(self.kernels)}], "steps": [{", ".join(steps)}]}}'
            text = base64.b64encode(zlib.compress(whole.encode(), 1)).decode()
            if len(text) <= MOST_PACKED:
                return text
            self.lost = "more operators, launches and constants than can be sent"
        return f"lost: {self.lost}"[:300]


def tensors_in(value: Any) -> list[Any]:
    """Return all tensors in a value or in nested lists and tuples, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [tensor for each in value for tensor in tensors_in(each)] if isinstance(value, (list, tuple)) else []
    )


def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that a function and its inner functions use."""
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [global_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return frozenset(own).union(*inner)


def watch_attention(trace: Trace) -> list[Any]:
    """From now on, count calls of torch's attention functions in `trace`, in every thread and in backward passes.

    A dispatch mode does not see composite operators, because torch splits them first. So their kernels are replaced in
    torch's dispatcher. Attention functions in Python are replaced in their modules. Return objects that must stay
    alive.
    """
    import torch

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if trace.following:
                trace.count(f"op {name}")
            return function(*arguments, **named)

        return call

    module: Any = torch.nn.functional
    for name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        function = getattr(module, name)
        setattr(module, name, functools.wraps(function)(counted(name, function)))
    kernel_of = getattr(torch.library, "get_kernel", None)
    if kernel_of is None:  # torch before 2.9
        return []
    library, composite = torch.library.Library("aten", "IMPL"), "CompositeImplicitAutograd"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about replaced kernels
        for name in torch._C._dispatch_get_all_op_names():
            space, _, operator = name.partition("::")
            if space != "aten" or "attention" not in operator:
                continue
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, composite):
                call = counted(operator, kernel_of(name, "CPU").call_boxed)
                library.impl(operator, call, composite, with_keyset=True, allow_override=True)
    return [library]


def watch_launches(trace: Trace) -> None:
    """From now on, record launches of Triton's compiled kernels in `trace`.

    Raise ImportError or AttributeError if this version of Triton has another structure.
    """
    kernel: Any = importlib.import_module("triton.runtime.jit").JITFunction
    run: Callable[..., Any] = kernel.run

    def followed(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if warmup or not trace.following:
            return run(self, *arguments, grid=grid, warmup=warmup, **named)
        with trace.launch(self.fn, arguments, named) as take_grid:
            given = {**dict(zip(self.arg_names, arguments, strict=False)), **named}
            chosen = tuple(grid(given)) if callable(grid) else tuple(grid)
            take_grid(map(int, chosen))
            return run(self, *arguments, grid=chosen, warmup=warmup, **named)

    kernel.run = followed
