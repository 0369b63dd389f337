"""Plays a call's trace (`grader.run.tracing`) again on other inputs, in a process without the student's Python.

Of the student's file the text of its kernels is used alone: a `Player` reads the file, and where the trace launches a
kernel, it compiles that function's text with the names that the trace gives. Names may stand for Triton's own
functions, for other kernels of the file and for plain constants; statements and attributes are those of Triton's
language. So whatever the trace says, what is computed here is computed by torch's operators, which are reported by
name, and by kernels that are in the file.

Imports nothing of the kit. Runs on a GPU, where it compiles kernels, or in Triton's interpreter.
"""

from __future__ import annotations

import ast
import base64
import builtins
import functools
import importlib
import json
import linecache
import types
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

filebundle: Any = None
"""`grader.base.filebundle`: who loads this file gives it."""
MOST_TEXT, MOST_STEPS = 256 << 20, 50_000
LANGUAGE = "triton.language"
POISON = 0xFF
"""Each byte of an empty tensor: a NaN, so that what was not written shows."""
#: Of `triton` itself; the rest of it is for the host.
OF_TRITON = frozenset(("language", "cdiv", "next_power_of_2", "constexpr_function", "jit"))
#: What a launch says to the compiler.
OPTIONS = frozenset(("num_warps", "num_stages", "num_ctas", "maxnreg"))
#: Python's own functions that Triton's compiler takes.
BUILTINS = (
    "abs bool enumerate float hasattr int isinstance len list max min pow print range reversed round str sum tuple zip "
    "AssertionError Exception ValueError"
)
_NODES = """
Add And AnnAssign Assert Assign Attribute AugAssign BinOp BitAnd BitOr BitXor BoolOp Break Call Compare Constant
Continue Div Eq Expr FloorDiv For FormattedValue FunctionDef GeneratorExp Gt GtE If IfExp In Invert Is IsNot JoinedStr
LShift List ListComp Load Lt LtE MatMult Mod Mult Name Not NotEq NotIn Or Pass Pow RShift Raise Return Slice Starred
Store Sub Subscript Tuple UAdd USub UnaryOp While arg arguments comprehension keyword
"""
NODES = tuple(getattr(ast, name) for name in _NODES.split())
#: Public attributes of the interpreter's values that lead out of Triton's language.
HIDDEN = frozenset(("handle", "fn", "format", "format_map", "run"))


class Unplayable(Exception):
    """The trace cannot be played; the text says why, to follow "its trace ..."."""


class Player:
    """The kernels of one file, as text. `seen` counts operators and launches of the last trace."""

    judged_class, judged_file, functions = "", 0, ()

    def __init__(self, path: str, device: str) -> None:
        self.device = device
        with open(path, "rb") as file:
            content = file.read()
        texts = filebundle.split(content)
        self.trees = {name: ast.parse(text) for name, text in texts.items()}
        #: A single file lies at another place for each runner.
        self.other = ast.Module([], []) if texts else ast.parse(content)
        self.seen: Counter[str] = Counter()
        self.kernels: list[Any] = []
        self.made: dict[int, Any] = {}
        self.storages: dict[int, Any] = {}

    def play(self, packed: str, tensors: list[Any]) -> None:
        """Do what the trace says with the call's tensors, in the order that the trace was made with.

        Raises Unplayable, and whatever operators and kernels raise.
        """
        trace = unpacked(packed)
        self.kernels, self.made, self.seen = trace["kernels"], {}, Counter()
        self.storages = {number: tensor.untyped_storage() for number, tensor in enumerate(tensors)}
        do: dict[str, Any] = {"constant": self.constant, "operator": self.operator, "launch": self.launch}
        for kind, *step in trace["steps"][:MOST_STEPS]:
            do[kind](*step)

    # ---- steps

    def constant(self, number: int, size: int, packed: str) -> None:
        import torch

        content = bytearray(zlib.decompressobj().decompress(base64.b64decode(packed), size))
        if len(content) != size:
            raise Unplayable("holds a constant of another size")
        made = torch.frombuffer(content, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        self.storages[number] = made.to(self.device).untyped_storage()

    def operator(
        self, name: str, overload: str, given: list[Any], named: dict[str, Any], made: list[Any]
    ) -> None:
        import torch

        function = getattr(getattr(torch.ops.aten, name), overload or "default")
        arguments = {
            argument.name: each for argument, each in zip(function._schema.arguments, given, strict=False)
        }
        sums = {**arguments, **named}.get("accumulate") or {**arguments, **named}.get("reduce")
        keywords = {key: self.value(each) for key, each in named.items()}
        results = tensors_in(function(*map(self.value, given), **keywords))
        self.seen[f"op accumulating {name}" if sums else f"op {name}"] += 1
        self.seen[f"numbers {name}"] += sum(each.numel() for each in results)
        for place, number in made:
            self.storages[number] = storage = results[place].untyped_storage()
            if name.startswith(("empty", "new_empty")):
                torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage).fill_(POISON)

    def launch(self, number: int, grid: list[int], given: dict[str, Any], options: dict[str, Any]) -> None:
        kernel = self.kernel(number)
        self.seen[f"launch {kernel.__name__}"] += 1
        arguments = {key: self.value(each) for key, each in given.items()}
        kernel[tuple(map(int, grid))](**arguments, **{k: options[k] for k in OPTIONS.intersection(options)})

    # ---- values

    def value(self, told: Any) -> Any:
        import torch

        if isinstance(told, list):
            return [*map(self.value, told)]
        if not isinstance(told, dict):
            return told
        (kind, inner), *more = told.items()
        if kind == "tensor":
            return self.tensor(*inner)
        if kind == "tuple":
            return tuple(map(self.value, inner))
        if kind == "fields":
            names = [name for name in inner if name.isidentifier() and not name.startswith("_")]
            return _named(tuple(names))(*map(self.value, told["tuple"]))
        if kind == "torch":
            return public(torch, inner)
        if kind == "device":
            return torch.device(self.device)
        core = importlib.import_module(f"{LANGUAGE}.core")
        if kind == "constexpr":
            return core.constexpr(self.value(inner))
        if kind == "type":
            return core.dtype(inner)
        if kind == "descriptor":
            make = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
            return make(*map(self.value, inner), *(padding for _, padding in more))
        if kind == "wrapper":
            return importlib.import_module("triton").reinterpret(*map(self.value, inner))
        if kind == "from":
            return from_triton(*inner)
        if kind == "kernel":
            return self.kernel(inner, told.get("kind", ""))
        raise Unplayable(f"holds a value of an unknown kind ({kind})")

    def tensor(self, number: int, kind: str, sizes: list[int], strides: list[int], offset: int) -> Any:
        import torch

        storage = self.storages[number]
        tensor = torch.empty(0, dtype=public(torch, kind), device=self.device)
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if 0 not in sizes and (last + 1) * tensor.element_size() > storage.nbytes():
            raise Unplayable("reaches beyond a tensor")
        return tensor.set_(storage, offset, sizes, strides)

    # ---- kernels

    def kernel(self, number: int, kind: str = "") -> Any:
        """Compile a kernel of the trace out of the file's text."""
        if number not in self.made:
            self.made[number] = None
            file, name, line, names = self.kernels[number]
            node = self.found(file, name, line)
            space = {"constexpr": importlib.import_module(LANGUAGE).constexpr}
            for known, told in names.items():
                space[known] = from_module(told["module"]) if _is_module(told) else self.value(told)
            check(node, space)
            space["__builtins__"] = {each: getattr(builtins, each) for each in BUILTINS.split()}
            # The interpreter looks for it among a kernel's names.
            space.setdefault("triton.language", importlib.import_module(LANGUAGE))
            place = f"<kernel {number}>"
            text = ast.unparse(bare(node)) + "\n"
            linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
            space["__name__"] = "replayed"
            exec(compile(text, place, "exec"), space)
            triton: Any = importlib.import_module("triton")
            make = triton.constexpr_function if kind == "ConstexprFunction" else triton.jit
            self.made[number] = make(space[name])
        if self.made[number] is None:
            raise Unplayable("holds a kernel that needs itself")
        return self.made[number]

    def found(self, file: str, name: str, line: int) -> ast.FunctionDef:
        """The function of this name around this line."""
        for node in ast.walk(self.trees.get(file, self.other)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first <= line <= node.lineno:
                    return node
        raise Unplayable(f"launches a kernel {name} that is not in the file's text")


def unpacked(packed: str) -> dict[str, Any]:
    """The trace as `Trace.packed` made it. Raises Unplayable."""
    if packed.startswith("lost: "):
        raise Unplayable(f"was lost ({packed.removeprefix('lost: ')})")
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(packed), MOST_TEXT)
        trace: dict[str, Any] = json.loads(content)
    except (ValueError, zlib.error, RecursionError) as error:
        raise Unplayable(f"cannot be read: {error}") from error
    return trace


def check(node: ast.FunctionDef, space: Mapping[str, Any]) -> None:
    """Raises Unplayable for a kernel that does what Triton's language has not, with the line.

    `space` are the names that it finds around itself.
    """
    own = {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    own |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    own |= {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
    known = {*own, *space, *BUILTINS.split()}
    for each in parts_of(node):
        place = f"{node.name} (line {getattr(each, 'lineno', node.lineno)})"
        if not isinstance(each, NODES):
            raise Unplayable(f"launches {place}, which uses what kernels have not: {type(each).__name__}")
        if isinstance(each, ast.Name) and each.id not in known:
            raise Unplayable(
                f"launches {place}, which uses {each.id}: neither Triton's, nor a kernel, nor a constant"
            )
        if isinstance(each, ast.Attribute):
            if each.attr.startswith("_") or each.attr in HIDDEN:
                raise Unplayable(f"launches {place}, which uses .{each.attr}")
            resolve(each, own, space, place)


def parts_of(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """All of a function but its decorators, defaults and annotations, which are not played."""
    yield node
    inner: list[ast.AST] = list(node.body)
    while inner:
        each = inner.pop()
        yield each
        inner += ast.iter_child_nodes(each)


def resolve(node: ast.Attribute, own: set[str], space: Mapping[str, Any], place: str) -> Any:
    """Follow a chain of attributes that begins at a module, which stays within Triton's language. None for others."""
    base: Any = None
    if isinstance(node.value, ast.Name) and node.value.id not in own:
        base = space.get(node.value.id)
    elif isinstance(node.value, ast.Attribute):
        base = resolve(node.value, own, space, place)
    if not isinstance(base, types.ModuleType):
        return None
    found = getattr(base, node.attr, None)
    if isinstance(found, types.ModuleType):
        found = from_module(found.__name__)
    elif base.__name__ == "triton" and node.attr not in OF_TRITON:
        raise Unplayable(f"launches {place}, which uses triton.{node.attr}")
    return found


def from_module(name: str) -> Any:
    """A module that kernels may name. Raises Unplayable for any other."""
    if name not in ("triton", "math") and name != LANGUAGE and not name.startswith(f"{LANGUAGE}."):
        raise Unplayable(f"launches a kernel that uses the module {name}")
    return importlib.import_module(name)


def from_triton(module: str, name: str) -> Any:
    if module == "triton" and name not in OF_TRITON:
        raise Unplayable(f"uses {module}.{name}")
    found = public(from_module(module), name)
    if isinstance(found, types.ModuleType):
        raise Unplayable(f"uses the module {name} as a function")
    return found


def public(place: Any, name: str) -> Any:
    if name.startswith("_") or not name.isidentifier():
        raise Unplayable(f"uses a name that is not public ({name})")
    return getattr(place, name)


def _is_module(told: Any) -> bool:
    return isinstance(told, dict) and "module" in told


@functools.cache
def _named(fields: tuple[str, ...]) -> Any:
    from collections import namedtuple

    return namedtuple("Fields", fields)


def bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """The function without decorators and defaults: all arguments are given. Constants stay marked as such."""
    copied: ast.FunctionDef = ast.parse(ast.unparse(node)).body[0]  # type: ignore[assignment]  # it is one
    copied.decorator_list, copied.returns = [], None
    copied.args.defaults, copied.args.kw_defaults = [], [None] * len(copied.args.kwonlyargs)
    for each in (*copied.args.posonlyargs, *copied.args.args, *copied.args.kwonlyargs):
        constant = each.annotation is not None and "constexpr" in ast.unparse(each.annotation)
        each.annotation = ast.Name("constexpr", ast.Load()) if constant else None
    return ast.fix_missing_locations(copied)


def tensors_in(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    return (
        [tensor for each in value for tensor in tensors_in(each)] if isinstance(value, (list, tuple)) else []
    )


def described(error: BaseException) -> str:
    """Why a trace could not be played, in one line."""
    if isinstance(error, Unplayable):
        return f"its trace {error}"
    cause = error.__cause__ or error
    return f"its trace ends with {type(cause).__name__}: {' '.join(str(cause).split())[:150]}"
