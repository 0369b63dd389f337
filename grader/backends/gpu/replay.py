"""Replays the trace of a call (`gpu.tracing`) on other inputs, in a process that runs no Python code of the student.

Of the student's file, only the source text of kernels is used. A `Player` reads the file and compiles each kernel that
the trace launches. The trace gives the meanings of a kernel's names: only Triton's functions, other kernels of the file
and plain constants are allowed, and in the kernel only statements and attributes of Triton's language. So even for a
forged trace, all computation is done by kernels of the file and by torch's operators, which are reported by name.

This file imports nothing of the kit. It runs on a GPU, where kernels are compiled, or in Triton's interpreter.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import copy
import functools
import importlib
import json
import linecache
import symtable
import types
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

filebundle: Any = None
torchwork: Any = None
"""`grader.core.filebundle` and `grader.backends.gpu.torchwork`: the zygote loads both and sets these variables."""
MOST_TEXT, MOST_STEPS = 256 << 20, 50_000
LANGUAGE = "triton.language"
POISON = 0xFF
"""Value of each byte of a new tensor without content (`empty`). It gives NaN, so that missing writes are noticed."""
#: Names of `triton` that kernels may use. The other names are for code on the CPU.
OF_TRITON = frozenset(("language", "cdiv", "next_power_of_2"))
#: Options of a launch that are meant for the compiler.
OPTIONS = frozenset(("num_warps", "num_stages", "num_ctas", "maxnreg"))
#: Python's builtin functions that Triton's compiler accepts.
BUILTINS = (
    "abs bool enumerate float hasattr int isinstance len list max min pow print range reversed round str sum tuple zip "
    "AssertionError Exception ValueError"
)
_NODES = """
Add And AnnAssign Assert Assign Attribute AugAssign BinOp BitAnd BitOr BitXor BoolOp Break Call Compare Constant
Continue Div Eq Expr FloorDiv For FormattedValue FunctionDef Gt GtE If IfExp In Invert Is IsNot JoinedStr
LShift List ListComp Load Lt LtE MatMult Mod Mult Name Not NotEq NotIn Or Pass Pow RShift Raise Return Slice Starred
Store Sub Subscript Tuple UAdd USub UnaryOp While arg arguments comprehension keyword
"""
NODES = tuple(getattr(ast, name) for name in _NODES.split())
#: Public attributes of the interpreter's values that give access to objects outside of Triton's language.
HIDDEN = frozenset(("handle", "data", "base", "fn", "run"))
#: Prefixes that field names of named tuples must not have: attributes of frames, generators and code begin with them.
OF_FRAMES = ("f_", "gi_", "cr_", "ag_", "tb_", "co_")
#: Classes of Triton's language that kernels may call. Other classes may only occur in `isinstance`.
CLASSES = frozenset(("constexpr", "range", "static_range", "tuple", "dtype", "pointer_type", "block_type"))
_TEXTS = """
activation approximate driver equation indexing interpolation mode norm ord p pad_mode padding padding_side reduce
rounding_mode side UPLO
"""
TEXTS = frozenset(_TEXTS.split())
"""Arguments of torch's operators that may be strings. A string in another argument might name a file."""
SEMANTIC = "interpreter_semantic"
"""Name that code rewritten by the interpreter calls. Kernels must not use it."""
ATTRIBUTE = "attribute of"
"""Name of the function `attribute` in a kernel for the interpreter. With a space, no source text can contain it."""
#: Torch's operators that Triton's interpreter calls to prepare a kernel's arguments.
ARRANGING = frozenset(("copy_", "empty", "new_empty", "set_"))
HAND_IN = "hand-in"
"""Name of a module that replaces one of the student's modules. It has only the names that a kernel uses."""


class Unplayable(Exception):
    """Raised if a trace cannot be played. The message gives the reason, as a continuation of "the call's trace ..."."""


class Player:
    """Plays traces with the kernels of one file, and counts what torch's operators compute (`gpu.torchwork`).

    `seen` has figures of the last trace by name. "launch NAME" counts launches. "op NAME" counts the calls of an
    operator that works on numbers of the call, and "numbers NAME" the numbers that these calls compute. For the tensors
    that operators write, "largest" is the largest `area`, and "most" the largest number of elements.
    """

    judged_class, judged_file, functions = "", 0, ()

    def __init__(self, path: str, device: str) -> None:
        self.device = device
        with open(path, "rb") as file:
            content = file.read()
        texts = filebundle.split(content)
        self.trees = {name: ast.parse(text) for name, text in texts.items()}
        #: Syntax tree of a single file. It has no fixed name, because its path differs from runner to runner.
        self.other = ast.Module([], []) if texts else ast.parse(content)
        self.seen: Counter[str] = Counter()
        self.kernels: list[Any] = []
        self.made: dict[int, Any] = {}
        self.storages: dict[int, Any] = {}
        self.fields: set[str] = set()
        """Field names of all named tuples in the trace."""
        self.packed, self.ablate = "", False
        self.now: list[list[bytes]] = []
        """Digests of the arguments of each operator so far."""
        self.digests: list[list[bytes]] = []
        self.earlier: list[list[bytes]] = []
        """`digests` is like `now`, for the previous play. `earlier` is equal to `digests` if the previous play was of
        the same trace (on other inputs), else []."""
        self.made_as: dict[int, tuple[int, int]] = {}
        """Maps a storage to (area, number of elements) of the tensor with which it was allocated."""
        self.largest = self.most = 0

    def play(self, packed: str, tensors: list[Any], *, ablate: bool = False) -> None:
        """Do the steps of the trace `packed` (by `Trace.packed`) on `tensors`, the call's inputs and outputs in order.

        Operators are counted in `seen` unless they are free (`gpu.torchwork`). Operators with unchanged arguments are
        also free if the previous play was of this trace, too. `ablate`: True to overwrite numbers that kernels compute
        (`torchwork.ablated`) and to count no operators. Raise Unplayable, or any exception of an operator or a kernel.
        """
        import torch

        torch.manual_seed(0)
        self.earlier = self.digests if packed == self.packed else []
        self.packed, self.ablate, self.digests, self.now, self.made_as = packed, ablate, [], [], {}
        self.largest = self.most = 0
        trace = unpacked(packed)
        self.kernels, self.made, self.seen = trace["kernels"], {}, Counter()
        self.fields = set(fields_in([trace["kernels"], trace["steps"]]))
        self.storages = {number: tensor.untyped_storage() for number, tensor in enumerate(tensors)}
        do: dict[str, Any] = {"constant": self.constant, "operator": self.operator, "launch": self.launch}
        for kind, *step in trace["steps"][:MOST_STEPS]:
            do[kind](*step)
        self.digests = self.now
        self.seen |= {"largest": self.largest, "most": self.most}

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
        """Do one step of a trace: call an operator of torch, keep the storages that it makes, and count its work.

        `made` are pairs (index among the resulting tensors, number of the new storage).
        """
        import torch

        function = operator_named(name, overload)
        names = [argument.name for argument in function._schema.arguments]
        values, keywords = [*map(self.value, given)], {key: self.value(each) for key, each in named.items()}
        arguments = {**dict(zip(names, values, strict=False)), **keywords}
        if not self.ablate:
            tensors = torchwork.tensors_in([*arguments.values()])
            self.now.append([*map(torchwork.digest, tensors)])
        results = torchwork.tensors_in(function(*values, **keywords))
        for place, number in made:
            self.storages[number] = storage = results[place].untyped_storage()
            if name.startswith(("empty", "new_empty")):
                torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage).fill_(POISON)
        if not self.ablate:
            self.count(name, function._schema, arguments, results)

    def count(self, name: str, schema: Any, arguments: dict[str, Any], results: list[Any]) -> None:
        """Count an operator in `seen`. It was called with `arguments` (by name) and returned the tensors `results`."""
        if torchwork.ATTENTION in name:
            # Count torch's attention as library work even if its arguments are constants.
            self.seen[f"op {name}"] += 1
        for each in results:
            self.made_as.setdefault(torchwork.storage_of(each), (torchwork.area(each), each.numel()))
        given = self.now[-1]
        is_first = len(self.earlier) < len(self.now)
        earlier = [] if is_first else self.earlier[len(self.now) - 1]
        if not given or given == earlier:
            return
        tensors = torchwork.tensors_in([*arguments.values()])
        free = torchwork.is_free(
            name, schema, tensors, results, lambda: given == [*map(torchwork.digest, tensors)]
        )
        if not name.startswith(("new_", "empty")) and not name.endswith("_like"):
            # The operators excluded here only allocate a tensor: they read no numbers of their arguments.
            changed = [each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write]
            written = torchwork.tensors_in([arguments.get(each) for each in changed])
            held = [self.made_as.get(torchwork.storage_of(each), (0, 0)) for each in (*results, *written)]
            self.largest = max([self.largest, *map(torchwork.area, results), *(wide for wide, _ in held)])
            # An operator that only moves numbers may return a tensor of any size, such as the joined inputs of `cat`.
            held = [] if free and not changed else held
            self.most = max([self.most, *(count for _, count in held)])
        if free:
            return
        is_lookup = name in torchwork.INDEXED and not schema.is_mutable
        is_table = is_lookup and (is_first or given[:1] == earlier[:1])
        sums = arguments.get("accumulate") or arguments.get("reduce")
        counted = f"accumulating {name}" if sums else name
        numbers = torchwork.numbers(name, schema, arguments, results)
        self.seen[f"op {counted}"] += torchwork.ATTENTION not in name
        self.seen[f"numbers {counted}"] += numbers * torchwork.TABLE**is_table

    def launch(self, number: int, grid: list[int], given: dict[str, Any], options: dict[str, Any]) -> None:
        run = functools.partial(self.launch_once, number, grid, given, options)
        if self.ablate:
            views = [torchwork.flat(self.storages[k], kind) for k, kind in torchwork.tensors_of(given)]
            torchwork.ablated(run, views)
        else:
            run()

    def launch_once(
        self, number: int, grid: list[int], given: dict[str, Any], options: dict[str, Any]
    ) -> None:
        kernel = self.kernel(number)
        constants = self.kernels[number][4]
        for name, recorded in given.items():
            refuse_tensors(recorded, is_constant=name in constants)
        self.seen[f"launch {kernel.__name__}"] += 1
        arguments = {key: self.value(each) for key, each in given.items()}
        with watched() as used:
            kernel[tuple(map(int, grid))](
                **arguments, **{k: options[k] for k in OPTIONS.intersection(options)}
            )
        if self.device == "cpu" and used - ARRANGING:
            raise Unplayable(f"launches {kernel.__name__}, in which torch's {min(used - ARRANGING)} computes")

    # ---- values

    def value(self, recorded: Any) -> Any:
        """Convert a recorded value (`Trace.value`) back: records of tensors, types and functions become objects."""
        import torch

        if isinstance(recorded, list):
            return [*map(self.value, recorded)]
        if not isinstance(recorded, dict):
            return recorded
        (kind, inner), *more = recorded.items()
        if kind == "tensor":
            return self.tensor(*inner)
        if kind == "tuple":
            return tuple(map(self.value, inner))
        if kind == "fields":
            return _named(tuple(inner))(*map(self.value, recorded["tuple"]))
        if kind == "torch":
            found = public(torch, inner)
            if not isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
                raise Unplayable(f"holds torch.{inner}")
            return found
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
            return self.kernel(inner, recorded.get("kind", ""))
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
        """Return the kernel with this number in the trace, made from the text of the file at the first call."""
        if number not in self.made:
            self.made[number] = None
            file, name, line, names, constants = self.kernels[number]
            node = bare(self.found(file, name, line), constants)
            space = {known: self.named(recorded) for known, recorded in names.items()}
            triton: Any = importlib.import_module("triton")
            make = triton.constexpr_function if kind == "ConstexprFunction" else triton.jit
            self.made[number] = self.compiled(node, space, f"<kernel {number}>", make)
        if self.made[number] is None:
            raise Unplayable("holds a kernel that refers to itself")
        return self.made[number]

    def compiled(
        self, node: ast.FunctionDef, space: dict[str, Any], place: str, make: Callable[[Any], Any]
    ) -> Any:
        """Turn a function into a kernel by `make` (`triton.jit`, say). `space` are its global names.

        Raise Unplayable if the function uses anything outside of Triton's language.
        """
        text = ast.unparse(node) + "\n"
        # Check the tree of this text and not `node`, because the text is what is compiled.
        tree: Any = ast.parse(text)
        own = check(tree.body[0], space, methods() | self.fields)
        linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
        # The interpreter expects Triton's language among a kernel's global names.
        added = {LANGUAGE: importlib.import_module(LANGUAGE), "__name__": "replayed"}
        added["__builtins__"] = {each: getattr(builtins, each) for each in BUILTINS.split()}
        if self.device == "cpu":
            # Rewrite the function here: the interpreter would do so itself, but with other global names.
            interpreter: Any = importlib.import_module("triton.runtime.interpreter")
            tree = Attributes(own, space).visit(tree)
            if make is not importlib.import_module("triton").constexpr_function:
                tree = interpreter.FunctionRewriter.ast_transformer.visit(tree)
            added |= {SEMANTIC: interpreter.interpreter_semantic, ATTRIBUTE: attribute}
        space |= added
        exec(compile(ast.fix_missing_locations(tree), place, "exec", dont_inherit=True), space)
        function = space[node.name]
        made = make(function)
        if self.device == "cpu":
            interpreter.InterpretedFunction.rewritten_fn[function] = function
            made.rewriter = None
        return made

    def named(self, recorded: Any) -> Any:
        """Return the value of a kernel's global name: a module, a function, a kernel or a constant."""
        if isinstance(recorded, dict) and "module" in recorded:
            return from_module(recorded["module"])
        if isinstance(recorded, dict) and "namespace" in recorded:
            module = types.ModuleType(HAND_IN)
            vars(module).update({name: self.named(each) for name, each in recorded["namespace"].items()})
            return module
        refuse_tensors(recorded, is_constant=True)
        return self.value(recorded)

    def found(self, file: str, name: str, line: int) -> ast.FunctionDef:
        """Return the function `name` whose decorators or `def` are at `line`. Raise Unplayable without one."""
        for node in ast.walk(self.trees.get(file, self.other)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first <= line <= node.lineno:
                    return node
        raise Unplayable(f"launches a kernel {name} that is not in the file's text")


def operator_named(name: str, overload: str) -> Any:
    """Return the operator of torch with this name and overload.

    Raise Unplayable for an operator that might do more than compute on tensors, such as read a file: torch has no
    kernel for it, or it has a string argument that is not in TEXTS.
    """
    import torch

    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    free = {each.name for each in function._schema.arguments if "str" in str(each.type)} - TEXTS
    if free or not torch._C._dispatch_has_kernel(function.name()):
        raise Unplayable(f"calls torch's {name}, which does more than compute on tensors")
    return function


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """Yield a set that collects the names of the torch operators that are called in the `with` block."""
    from torch.utils._python_dispatch import TorchDispatchMode

    used: set[str] = set()

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            used.add(function._schema.name.removeprefix("aten::"))
            return function(*args, **(kwargs or {}))

    with Names():
        yield used


def unpacked(packed: str) -> dict[str, Any]:
    """Return the trace that was packed by `Trace.packed`. Raise Unplayable if it was lost or is damaged."""
    if packed.startswith("lost: "):
        raise Unplayable(f"was lost ({packed.removeprefix('lost: ')})")
    try:
        content = zlib.decompressobj().decompress(base64.b64decode(packed), MOST_TEXT)
        trace: dict[str, Any] = json.loads(content)
    except (ValueError, zlib.error, RecursionError) as error:
        raise Unplayable(f"cannot be read: {error}") from error
    return trace


def fields_in(recorded: Any) -> Iterator[str]:
    """Yield the field names of all named tuples in a trace. Raise Unplayable for a forbidden name."""
    if isinstance(recorded, dict):
        for name in recorded.get("fields", ()):
            if not name.isidentifier() or name.startswith(("_", *OF_FRAMES)) or name in HIDDEN:
                raise Unplayable(f"holds a tuple with a field {name}")
            yield name
    for each in (
        recorded.values() if isinstance(recorded, dict) else recorded if isinstance(recorded, list) else ()
    ):
        yield from fields_in(each)


def refuse_tensors(recorded: Any, *, is_constant: bool) -> None:
    """Raise Unplayable if a kernel's recorded argument holds a tensor in a list, or, if `is_constant`, anywhere.

    A compiled kernel cannot get a tensor in these places. The interpreter would pass a torch.Tensor with all methods.
    """
    if isinstance(recorded, list):
        for each in recorded:
            refuse_tensors(each, is_constant=True)
    elif isinstance(recorded, dict):
        if is_constant and set(recorded) & {"tensor", "descriptor", "wrapper"}:
            raise Unplayable("gives a kernel a tensor as a constant")
        for each in recorded.get("tuple", ()):
            refuse_tensors(each, is_constant=is_constant)
        refuse_tensors(recorded.get("constexpr"), is_constant=True)


@functools.cache
def methods() -> frozenset[str]:
    """Return the names of the public attributes of Triton's values that a kernel may use."""
    core: Any = importlib.import_module(f"{LANGUAGE}.core")
    kinds = (
        core.tensor,
        core.dtype,
        core.block_type,
        core.pointer_type,
        core.constexpr,
        core.tensor_descriptor,
    )
    number = core.float32
    made = (number, core.pointer_type(number), core.block_type(number, [1]))
    names = {name for kind in kinds for name in dir(kind)} | {name for one in made for name in vars(one)}
    names |= {"T", "value", "dtype", "type", "shape", "numel", "strides", "block_shape"}
    return frozenset(name for name in names if not name.startswith("_")) - HIDDEN


def check(node: ast.AST, space: Mapping[str, Any], methods: Collection[str]) -> set[str]:
    """Raise Unplayable, with the line, if a kernel uses anything outside of Triton's language.

    Return the kernel's local names. `space` are its global names, and `methods` the attributes that it may use.
    """
    assert isinstance(node, ast.FunctionDef)
    inner = list(ast.walk(node))
    own = {each.id for each in inner if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    own |= {each.arg for each in inner if isinstance(each, ast.arg)}
    own |= {node.name} - space.keys()
    bound = {
        name.id for each in inner if isinstance(each, ast.comprehension) for name in names_in(each.target)
    }
    known = {*own, *space, *BUILTINS.split()}
    parts = {id(each.value) for each in inner if isinstance(each, ast.Attribute)}
    kinds = {
        id(each)
        for call in inner
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "isinstance"
        for asked in call.args[1:]
        for each in ast.walk(asked)
    }
    for each in inner:
        place = f"launches {node.name} (line {getattr(each, 'lineno', node.lineno)}), which uses"
        if not isinstance(each, NODES) or (isinstance(each, ast.FunctionDef) and each is not node):
            raise Unplayable(f"{place} forbidden syntax: {type(each).__name__}")
        name = getattr(each, "id", getattr(each, "arg", None))
        if name and (name.startswith("__") or name == SEMANTIC):
            raise Unplayable(f"{place} {name}: not a name of Triton, a kernel or a constant")
        if isinstance(each, ast.Name):
            if each.id not in known:
                raise Unplayable(f"{place} {each.id}: not a name of Triton, a kernel or a constant")
            found = None if each.id in own else space.get(each.id)
            if isinstance(found, types.ModuleType) and id(each) not in parts:
                raise Unplayable(f"{place} the module {each.id} as a value")
            is_named = id(each) in (parts if enumerated(found) else kinds)
            if isinstance(found, type) and not is_named and found.__name__ not in CLASSES:
                raise Unplayable(f"{place} the class {each.id} as a value")
        if isinstance(each, (ast.Attribute, ast.Subscript)) and not isinstance(each.ctx, ast.Load):
            raise Unplayable(f"{place} an assignment into a value")
        if (
            isinstance(each, ast.Attribute)
            and not resolve(each, own, space, place, asks=id(each) in kinds)
            and each.attr not in methods
        ):
            raise Unplayable(f"{place} .{each.attr}")
    # Use Python's symbol table here. `own` also has the variables of comprehensions, and outside of the comprehension
    # such a name may be global.
    outside = globals_of(node)
    for name in sorted((outside - {*space, *BUILTINS.split(), node.name}) | (bound & space.keys())):
        raise Unplayable(f"launches {node.name}, which uses {name} from outside of itself")
    return own


def names_in(target: ast.AST) -> list[ast.Name]:
    return [each for each in ast.walk(target) if isinstance(each, ast.Name)]


def globals_of(node: ast.FunctionDef) -> set[str]:
    """Return the names that a function looks up outside of itself."""
    pending = [symtable.symtable(ast.unparse(node), "<kernel>", "exec").get_children()[0]]
    found = set()
    while pending:
        table = pending.pop()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        pending += table.get_children()
    return found


class Attributes(ast.NodeTransformer):
    """Rewrites `value.name` to a call of `attribute`, except in chains that begin at a module."""

    def __init__(self, own: set[str], space: Mapping[str, Any]) -> None:
        self.own, self.space = own, space

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if resolve(node, self.own, self.space, "", asks=True):
            return node
        value: Any = self.visit(node.value)
        called = ast.Call(ast.Name(ATTRIBUTE, ast.Load()), [value, ast.Constant(node.attr)], [])
        return ast.copy_location(called, node)


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of a value of Triton's language, or a field of a tuple. Raise Unplayable for other values."""
    core: Any = importlib.import_module(f"{LANGUAGE}.core")
    is_field = isinstance(value, tuple) and name in getattr(type(value), "_fields", ())
    is_value = isinstance(value, (core.base_value, core.base_type)) and name in methods()
    if not is_field and not is_value:
        raise Unplayable(f"launches a kernel that uses .{name} of a {type(value).__name__}")
    return getattr(value, name)


def resolve(
    node: ast.Attribute, own: set[str], space: Mapping[str, Any], place: str, *, asks: bool = False
) -> list[Any]:
    """Return [value] of a chain of attributes that begins at a module, such as tl.float32; [] for any other chain.

    Raise Unplayable if the value is outside of Triton's language. `asks`: True if all its classes are allowed, as in
    `isinstance`.
    """
    base: Any = None
    if isinstance(node.value, ast.Name) and node.value.id not in own:
        base = space.get(node.value.id)
    elif isinstance(node.value, ast.Attribute):
        base = next(iter(resolve(node.value, own, space, place)), None)
    if node.attr in enumerated(base):
        return [enumerated(base)[node.attr]]
    if not isinstance(base, types.ModuleType):
        return []
    if node.attr.startswith("_") or not hasattr(base, node.attr):
        raise Unplayable(f"{place} {base.__name__}.{node.attr}")
    found = getattr(base, node.attr)
    if isinstance(found, types.ModuleType) and found.__name__ != HAND_IN:
        found = from_module(found.__name__)
    elif base.__name__ != HAND_IN and not is_language(found, base.__name__, node.attr, asks=asks):
        raise Unplayable(f"{place} {base.__name__}.{node.attr}")
    return [found]


def is_language(found: Any, module: str, name: str, *, asks: bool = False) -> bool:
    """Return True for a public function, type or constant of Triton's language, and for the classes in CLASSES.

    `asks`: True to accept all its classes.
    """
    core: Any = importlib.import_module(f"{LANGUAGE}.core")
    if module == "triton":
        return name in OF_TRITON
    if enumerated(found):
        return True
    if type(found) in (bool, int, float, str) or isinstance(found, (core.dtype, core.constexpr)):
        return True
    function = getattr(found, "fn", found)
    home = str(getattr(function, "__module__", ""))
    if isinstance(found, type):
        return home.startswith(LANGUAGE) and (asks or name in CLASSES)
    # Modules in `triton.language.extra` are included: the kit supplies libdevice's functions for the interpreter.
    is_known = home.startswith(LANGUAGE) or module == "math" or module.startswith(f"{LANGUAGE}.extra.")
    return is_known and isinstance(function, (types.FunctionType, types.BuiltinFunctionType))


def enumerated(found: Any) -> Mapping[str, Any]:
    """Return the members, by name, of `found` if it is an enumeration of Triton; else {}."""
    is_tritons = isinstance(found, type) and found.__module__.startswith((LANGUAGE, "triton._C."))
    return dict(getattr(found, "__members__", {})) if is_tritons else {}


def from_module(name: str) -> Any:
    """Return the module of this name. Raise Unplayable if kernels may not name it."""
    if name not in ("triton", "math") and name != LANGUAGE and not name.startswith(f"{LANGUAGE}."):
        raise Unplayable(f"launches a kernel that uses the module {name}")
    return importlib.import_module(name)


def from_triton(module: str, name: str, member: str = "") -> Any:
    found = public(from_module(module), name)
    if member in enumerated(found):
        return enumerated(found)[member]
    # Accept any class (`asks`) here: `check` allows kernels only the classes in CLASSES, and others in `isinstance`.
    if isinstance(found, types.ModuleType) or not is_language(found, module, name, asks=True):
        raise Unplayable(f"uses {module}.{name}")
    return found


def public(place: Any, name: str) -> Any:
    if name.startswith("_") or not name.isidentifier():
        raise Unplayable(f"uses a name that is not public ({name})")
    return getattr(place, name)


@functools.cache
def _named(fields: tuple[str, ...]) -> Any:
    from collections import namedtuple

    return namedtuple("Fields", fields)


class Getattr(ast.NodeTransformer):
    """Rewrites `getattr(value, "name")` to `value.name`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("getattr"), [value, ast.Constant(str(name))], []) if name.isidentifier():
                return ast.copy_location(ast.Attribute(value, name, ast.Load()), node)
        return node


def bare(node: ast.FunctionDef, constants: Collection[str]) -> ast.FunctionDef:
    """Return a copy of a function without decorators, defaults and docstrings.

    Only the arguments named in `constants` are annotated, as constexpr. `getattr` with a fixed name becomes an
    attribute.
    """
    copied: ast.FunctionDef = copy.deepcopy(node)
    copied.decorator_list, copied.returns = [], None
    given = copied.args
    given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
    if given.vararg is None:
        # The interpreter ignores keyword-only arguments: make them ordinary arguments.
        given.args, given.kwonlyargs, given.kw_defaults = [*given.args, *given.kwonlyargs], [], []
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None:
            each.annotation = ast.Constant("constexpr") if each.arg in constants else None
    for part in ast.walk(Getattr().visit(copied)):
        for name in ("body", "orelse"):
            if isinstance(lines := getattr(part, name, None), list):
                kept = [
                    each
                    for each in lines
                    if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
                ]
                setattr(part, name, kept if kept or name == "orelse" else [ast.Pass()])
        if isinstance(part, ast.AnnAssign):
            part.annotation = ast.Constant("")
    return ast.fix_missing_locations(copied)


def described(error: BaseException) -> str:
    """Return one line with the reason why a trace could not be played."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, Unplayable):
        return f"the call's trace {cause}"
    return f"the call's trace ends with {type(cause).__name__}: {' '.join(str(cause).split())[:150]}"
