"""Reads an untrusted Python file in a process of its own: readpython.py BUNDLES FILE MOST ENTRY[=CLASS=REACHED] ...

For a file with an error it prints "error PATH:LINE:COLUMN:MESSAGE" (PATH is empty for a single file). Otherwise it
prints lines for each entry (a judged function), about the code that the entry reaches. "calls ENTRY NAME LINE" reports
a computing function or method of torch that this code calls or names. "reaches ENTRY NAME LINE" reports something that
no kernel needs: ctypes, torch's internals, other objects' frames, other threads; or an operation in a kernel's body
that a compiled kernel could not do (`Reader.read_kernel`). MOST limits the lines of an entry.

An entry reaches its own definition, the module-level definitions that it names, the definitions that these name, and so
on; and all other module-level statements except those below `if __name__ == "__main__"`. If an entry has no definition,
an autograd.Function takes its place: CLASS is its name, or the language of its forward pass (triton, pytorch, any), and
REACHED is forward or both. Names are followed through imports, assignments and getattr.

FILE may be a bundle of several files. Then names are followed from file to file, and LINE is printed as PATH:LINE.
BUNDLES is the path of filebundle.py, which splits a bundle. This file imports nothing of the kit.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator

TYPE_CHECKING = False  # importing `typing` would take longer than reading most files
if TYPE_CHECKING:
    from typing import Any

_COMPUTING = """
matmul mm bmm addmm baddbmm einsum softmax log_softmax logsumexp exp exp2 tanh sigmoid relu gelu cumsum softmax_ exp_
"""
COMPUTING = frozenset(_COMPUTING.split())
"""Methods that only tensors have. `add`, `sum` and `mean` are left out, because sets and tables have them, too."""
#: Modules other than torch that have functions with names in COMPUTING. Calls of these functions are not reported.
OTHERS = ("math", "triton", "tl", "np", "numpy", "cmath")
_NO_WORK = """
torch.cuda. torch.autograd. torch.backends. torch.amp. torch.autocast torch.inference_mode
torch.library.custom_op torch.library.triton_op torch.library.wrap_triton torch.set_float32_matmul_precision
"""
NO_WORK = tuple(_NO_WORK.split())
"""Functions of torch that compute nothing, and modules of such functions."""
#: Functions that turn a Python function into an operator "NAMESPACE::NAME".
REGISTERING = ("torch.library.custom_op", "torch.library.triton_op")
#: Namespaces of torch's own operators.
TORCHS = frozenset(("aten", "prim", "prims", "mkl", "mkldnn", "onednn", "quantized", "inductor"))
_NAMED = "scaled_dot_product_attention linear compile dot mv inner tensordot bilinear"
NAMED = COMPUTING.union(_NAMED.split())
"""Torch's functions that are reported even if they are only named. Others must be called: a name may be a dtype."""
# Line 2 of this text gives access to other objects and modules. Lines 3 to 5 give access to the runner's pipes and
# memory, and to other threads and processes (__main__ is the runner's program). Lines 6 to 8 run code that is not in
# the file's text.
_REACHING = """
ctypes. torch._C torch.utils._python_dispatch torch.overrides triton.runtime.interpreter triton._C
gc. inspect. sys._ sys.modules sys.settrace sys.setprofile sys.meta_path sys.path_hooks
posix. _posixsubprocess. fcntl. socket. _socket. select. selectors. mmap. signal.
threading. _thread. concurrent. multiprocessing. torch.multiprocessing subprocess. asyncio.
io.FileIO io.open _io. pty. cffi. _ctypes. numpy.ctypeslib __main__.
importlib. _imp. pkgutil. runpy. zipimport. code. codeop. timeit. builtins.
marshal. pickle. _pickle. shelve. torch.load numpy.load torch.utils.cpp_extension
types.CodeType types.FunctionType types.MethodType
"""
REACHING = tuple(_REACHING.split())
"""Names by which a file could act differently in timed calls. Their use is neither recorded in a trace (`gpu.tracing`)
nor printed as a "calls" line."""
_LEADING = """
tb_frame f_back f_globals f_locals gi_frame cr_frame __globals__ __closure__ __subclasses__ __code__ __defaults__
__kwdefaults__ __builtins__
"""
LEADING = frozenset(_LEADING.split())
"""Attributes through which code can reach the internals of other functions, frames and classes."""
_RUNNING = "exec eval compile __import__ __builtins__ __loader__ __spec__"
RUNNING = frozenset(_RUNNING.split())
"""Builtin functions and names that run a string as code, or give access to modules without an import."""
CHANGING = frozenset(("setattr", "delattr"))
#: Variables on which `getattr` with a computed name is harmless: objects of the file's own classes.
OWN_OBJECTS = ("self", "cls", "ctx")
LOOKING = frozenset(("getattr", "hasattr", "isinstance", "vars", "dir"))
_HELD = "os sys ctypes builtins threading subprocess importlib inspect gc pickle mmap"
HELD = frozenset(_HELD.split())
"""Modules that can be reached as attributes of other modules, such as torch.os."""
_OS = "path environ getenv makedirs mkdir listdir getcwd cpu_count getpid sep linesep name PathLike fspath"
OS = frozenset(_OS.split())
"""Names of `os` that honest files use. The other names work on descriptors, processes and files."""
DESCRIPTORS = ("/proc/", "/dev/fd")
_HARMLESS = """
gc.collect gc.disable gc.enable inspect.signature inspect.getsource importlib.util importlib.util.find_spec
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Names that honest files use, in modules listed in REACHING."""
JIT = frozenset(("jit", "autotune", "heuristics", "constexpr_function"))
#: Functions that turn a Python function into a kernel.
MAKING = frozenset(("jit", "JITFunction", "constexpr_function"))
#: Modules whose functions and numbers a kernel may name. A file has no reason to change or pass on such a module.
KEPT = frozenset(("triton", "math", "numpy", "torch"))
_BUILTINS = """
range min max abs len float int bool str tuple list print isinstance hasattr zip enumerate sum round pow divmod slice
reversed sorted any all
"""
#: Builtin functions that a kernel may call.
BUILTINS = frozenset(_BUILTINS.split())
_METHODS = """
T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather
histogram item log log2 logical_and logical_or max min permute ravel reduce reduce_or reshape rsqrt sigmoid sin softmax
sort split sqrt sqrt_rn store sum to trans view xor_sum load scatter get_int_max_value get_int_min_value
get_block_shapes with_element_ty mangle to_ir index count
"""
#: Methods of Triton's tensors, types, descriptors and tuples (triton.language.core of 3.7), besides those named `is_…`.
METHODS = frozenset(_METHODS.split())
#: Parts of torch and Triton with settings that honest files change.
SETTINGS = frozenset(("backends", "config", "cuda", "knobs", "_dynamo", "_inductor"))
MOST_PARTS = 20
"""Limit on the parts of a dotted name, and on the files through which it is followed."""
Found = dict[tuple[str, str], int]
"""Maps ("calls" or "reaches", name) to a line."""
Places = dict[tuple[str, str], tuple[int, int]]
"""Maps ("calls" or "reaches", name) to (number of the file, line)."""
Names = dict[str, list[ast.AST | None]]
"""Maps each name of a scope to its values: expressions, definitions and imports; None for anything else."""
MODULE = "kernels"
"""Name under which a runner imports a single file, or a main file that has no name of its own."""
NAMESPACES = frozenset(("globals", "vars", "locals"))
"""Builtin functions that return the dict of a module's names. Code could set names in this dict."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Reader:
    """Reader of one file: its module-level definitions, and the full names that its names stand for."""

    def __init__(self, tree: ast.Module, file: str, files: Files) -> None:
        self.tree, self.file, self.files = tree, file, files
        self.package = files.package_of(file)
        self.meant: dict[str, str] = {}
        self.expected: set[int] = set()
        """Ids of nodes where honest files use a module, or a function that makes kernels."""
        self.stars: set[str] = set()
        """Modules outside the hand-in from which all names are imported."""
        self.rebound: set[str] = set()
        """Module-level names that a function, or another file, rebinds."""
        self.wrapped: set[str] = set()
        """Functions that a call turns into kernels: triton.jit(f)."""
        self.numbered: set[str] = set()
        """Names that may hold whole numbers, which open() takes for descriptors."""
        self.known: dict[tuple[str, tuple[int, ...]], tuple[bool, list[Names]]] = {}
        """Results of `is_known` by name and ids of scopes. Kept with the scopes, so that their ids are not reused."""
        self.at_top = {id(node) for node in module_level(tree)}
        self.scope = bindings(tree)
        self.methods: frozenset[str] = METHODS
        self.modules: set[str] = set()
        self.statements: list[ast.stmt] = []
        """Module-level statements that do not define anything."""
        self.bound: dict[str, list[ast.stmt]] = {}
        self.classes: list[ast.ClassDef] = []
        self.at_import: list[ast.AST] = []
        """Nodes that run code when the file is imported, and imports of all names of a module."""
        for statement in tree.body:
            self.at_import += [
                each for each in evaluated(statement) if isinstance(each, ast.Name) or calls_anything(each)
            ]
            names = names_bound(statement)
            for name in names:
                self.bound.setdefault(name, []).append(statement)
            if isinstance(statement, ast.ClassDef):
                self.classes.append(statement)
            if not names and not is_main_guard(statement):
                self.statements.append(statement)
            elif is_main_guard(statement) and isinstance(statement, ast.If):
                self.statements += statement.orelse

    def kernels(self) -> Iterator[str]:
        for each in ast.walk(self.tree):
            if isinstance(each, ast.FunctionDef) and self.is_trusted(each, []):
                yield each.name

    def origin(self, node: ast.ImportFrom) -> str:
        """Return the module that names are imported from; "" for a relative import beyond the top package."""
        if not node.level:
            return node.module or ""
        around = self.package.split(".") if self.package else []
        if node.level > len(around):
            return ""
        return ".".join([*around[: len(around) - node.level + 1], *([node.module] if node.module else [])])

    def learn(self, node: ast.AST) -> None:
        """Record the full names of names that a node binds by an import, or by assigning a module or its function.

        Also record names that `global` and `nonlocal` statements rebind.
        """
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.split(".")[0]
                self.meant[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and (module := self.origin(node)):
            for name in node.names:
                self.meant[name.asname or name.name] = f"{module}.{name.name}"
            owner, rest = self.files.owner(module)
            if node.names[0].name == "*" and owner is None:
                self.stars.add(module)
            if node.names[0].name == "*" and owner is not None and not rest:
                self.meant |= {name: f"{module}.{name}" for name in owner.scope}
                for bound in owner.scope:
                    self.scope.setdefault(bound, []).append(ast.alias(bound))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for bound, value in assigned(node):
                made = value.func if isinstance(value, ast.Call) and self.is_decorating(value) else value
                root = root_of(made) if made is not None else None
                if made is not None and (
                    is_getattr(made) or (isinstance(root, ast.Name) and root.id in self.meant)
                ):
                    meant = self.spelt(made)
                    if not meant.startswith("."):
                        self.meant[bound] = shortened(meant)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self.rebound.update(node.names)

    def learn_changes(self, node: ast.AST) -> None:
        """Record assignments to attributes of the hand-in's modules, and torch operators that this file registers."""
        if isinstance(node, ast.Module):
            made = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            for function, call in ((each, call) for each in made for call in each.decorator_list):
                if isinstance(call, ast.Call) and self.dotted(call.func) in REGISTERING and call.args:
                    space, _, name = str(getattr(call.args[0], "value", "")).partition("::")
                    if space not in TORCHS:
                        self.files.operators[f"torch.ops.{space}.{name}"] = self, function
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            owner, rest = self.files.owner(self.dotted(node))
            if owner is not None and rest:
                owner.rebound.add(rest.split(".")[0])

    def expect(self, node: ast.AST) -> None:
        """Extend the sets `expected`, `wrapped` and `numbered` by this node. `__init__` describes the sets."""
        if isinstance(node, ast.Attribute):
            if not self.is_namespace(node.value) or node.attr in ("get", "keys", "values", "items"):
                self.expected.add(id(node.value))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            self.expected.update([id(node.value)] * self.is_namespace(node.value))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for name, value in assigned(node):
                if value is not None and not self.is_namespace(value) and not is_named(value, NAMESPACES):
                    self.expected.add(
                        id(value.func if isinstance(value, ast.Call) and self.is_decorating(value) else value)
                    )
                if isinstance(value, ast.Constant) and isinstance(value.value, int):
                    self.numbered.add(name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self.expected.update(id(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list)
        elif isinstance(node, ast.Call):
            if is_named(node.func, CHANGING | NAMESPACES):
                self.expected.add(id(node.func))
            if isinstance(node.func, ast.Name) and node.func.id in LOOKING:
                self.expected.update(map(id, node.args))
            made = [a.id for a in node.args if isinstance(a, ast.Name)]
            if self.makes_kernels(node.func) and made and made[0] not in self.meant:
                self.expected.add(id(node.func))
                self.wrapped.update(made[:1])
        elif isinstance(node, (ast.For, ast.comprehension)):
            self.numbered.update(n.id for n in ast.walk(node.target) if isinstance(n, ast.Name))

    def makes_kernels(self, node: ast.AST) -> bool:
        name = self.dotted(node)
        return name.startswith("triton.") and name.rpartition(".")[2] in MAKING

    def dotted(self, node: ast.AST) -> str:
        """Return a node's full name ("torch.nn.Linear"), resolved by all files; ".sum" for a method of a value."""
        return self.files.followed(self.spelt(node))[-1]

    def spelt(self, node: ast.AST) -> str:
        """Return a node's full name like `dotted`, but resolved by the imports and assignments of this file only."""
        parts: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif is_getattr(node) and isinstance(node, ast.Call):
                asked = node.args[1]
                name = asked.value if isinstance(asked, ast.Constant) else None
                parts.append(name if isinstance(name, str) and name.isidentifier() else "getattr")
                node = node.args[0]
            else:
                break
        if isinstance(node, ast.Name):
            return ".".join([self.meant.get(node.id, node.id), *reversed(parts)])
        return f".{parts[0]}" if parts else ""

    def is_kernel(self, node: ast.FunctionDef) -> bool:
        """Return True for a function that Triton's jit (or a similar function) decorates or gets as argument."""
        names = [self.dotted(d) for d in decorators_of(node)]
        jits = (name.startswith("triton.") and name.rpartition(".")[2] in JIT for name in names)
        return node.name in self.wrapped or any(jits)

    def is_trusted(self, node: ast.AST, around: list[Names]) -> bool:
        """Return True for a kernel that only staticmethod and Triton's decorators, with constant arguments, decorate.

        Other decorators could replace it.
        """
        if not isinstance(node, ast.FunctionDef) or not self.is_kernel(node):
            return False
        decorators = decorators_of(node)
        own = [d for d in decorators if not (isinstance(d, ast.Name) and d.id == "staticmethod")]
        return all(self.dotted(d).startswith("triton.") and self.is_constant(d, around) for d in own)

    def is_namespace(self, node: ast.AST) -> bool:
        """Return True for a call such as globals(), whose result is the dict of this module's names."""
        if not isinstance(node, ast.Call) or not is_named(node.func, NAMESPACES):
            return False
        # vars(*()) has no arguments, so it is vars().
        is_plain = all(isinstance(each, ast.Starred) for each in node.args)
        return is_named(node.func, frozenset(("globals",))) or (is_plain and id(node) in self.at_top)

    def is_decorating(self, node: ast.Call) -> bool:
        """Return True for a call that returns a decorator: triton.jit(noinline=True)."""
        return not node.args and bool(node.keywords) and self.makes_kernels(node.func)

    # ---- the body of a kernel

    def read_kernel(self, kernel: ast.FunctionDef, around: list[Names], found: Found) -> None:
        """Record in `found` the operations that a compiled kernel could not do.

        The interpreter runs a kernel as Python, so a kernel that called other Python code could get its numbers from
        there. A kernel may call Triton's functions and methods, other kernels and plain builtin functions, and read
        constants. It must not change objects. `around` are the scopes of its enclosing functions.
        """

        def note(name: str, node: ast.AST) -> None:
            found.setdefault(("reaches", f"{name} in a kernel"), getattr(node, "lineno", kernel.lineno))

        given = [each for each in ast.walk(kernel.args) if isinstance(each, ast.arg)]
        arguments = {each.arg for each in given}
        inner = list(body_nodes(kernel))
        bound = {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        # A kernel may call a constexpr argument: the compiler accepts only another kernel as its value.
        passed = {each.arg for each in given if self.is_constexpr(each.annotation)} - bound
        own = arguments | bound | {n.arg for n in inner if isinstance(n, ast.arg)}
        for name in own:
            if self.meant.get(name) in (*KEPT, "triton.language"):
                note(f"{name}=", kernel)
        for node in inner:
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef)):
                note(type(node).__name__.lower(), node)
            elif isinstance(node, ast.Name) and node.id not in own:
                meant = self.meant.get(node.id, "")
                is_part = id(node) in self.expected and (meant in KEPT or self.files.is_module(meant))
                if not (self.is_module if is_part else self.is_known)(node.id, around):
                    note(node.id, node)
            elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                note(f"{ast.unparse(node)}=", node)
            elif isinstance(node, ast.Attribute) and (node.attr in ("handle", "data") or node.attr[0] == "_"):
                note(f".{node.attr}", node)
            elif isinstance(node, ast.Attribute) and self.files.owner(self.dotted(node))[0] is not None:
                if not self.is_constant(node, around) and id(node) not in self.expected:
                    note(self.dotted(node), node)
            elif isinstance(node, ast.Subscript) and self.names_module(node.value, own):
                note(self.dotted(node.value), node)
            if isinstance(node, ast.Call):
                self.read_call(node, own, passed, note)

    def is_constexpr(self, node: ast.AST | None) -> bool:
        return node is not None and self.dotted(node) == "triton.language.constexpr"

    def read_call(
        self, node: ast.Call, own: set[str], passed: set[str], note: Callable[[str, ast.AST], None]
    ) -> None:
        """Call `note` with the name of the called function and the node, unless a kernel may make this call.

        `own` are the kernel's local names, and `passed` those that are its constexpr arguments.
        """
        used = node.func
        if isinstance(used, ast.Name):
            if used.id in own - passed:
                note(used.id, node)
        elif not isinstance(used, ast.Attribute):
            note("a computed function", node)
        elif self.names_module(used, own):
            name = self.dotted(used)
            is_plain = name.startswith(("triton.language.", "triton.cdiv", "triton.next_power_of_2", "math."))
            is_plain |= self.files.owner(name)[0] is not None and self.is_constant(used, [])
            if not is_plain or name.endswith(".tensor"):
                note(name, node)
        elif used.attr not in self.methods and not used.attr.startswith("is_"):
            note(f".{used.attr}", node)

    def names_module(self, node: ast.AST, own: set[str]) -> bool:
        """Return True for a dotted name such as `tl.load` whose first part is imported, not a local name (`own`)."""
        root = root_of(node)
        return isinstance(root, ast.Name) and root.id not in own and root.id in self.meant

    def is_known(self, name: str, around: list[Names]) -> bool:
        """Return True if a kernel may use this global name: a kernel, a part of Triton, a builtin or a constant."""
        if name in self.rebound:
            return False
        while around and name not in around[-1]:
            around = around[:-1]
        scope = around[-1] if around else self.scope
        if name not in scope:
            return name in BUILTINS or self.stars == {"triton.language"}
        key = name, tuple(map(id, around))
        if key not in self.known:
            # A name that depends on itself is not a constant: the look-up inside this look-up returns False.
            self.known[key] = False, around
            try:
                is_known = all(self.is_constant(each, around) for each in scope[name])
            except RecursionError:
                is_known = False
            self.known[key] = is_known, around
        return self.known[key][0]

    def is_module(self, name: str, around: list[Names]) -> bool:
        """Return True if the name always stands for a module: it is not rebound, and each of its values is a module."""
        scopes = [scope for scope in (self.scope, *around) if name in scope]
        return name not in self.rebound and all(
            isinstance(each, ast.alias)
            or (each is not None and (self.dotted(each) in KEPT or self.files.is_module(self.dotted(each))))
            for scope in scopes
            for each in scope[name]
        )

    def is_constant(self, node: ast.AST | None, around: list[Names]) -> bool:
        """Return True for a value that a kernel may use: a kernel, an import from Triton, or a constant expression.

        At module level (`around` is empty), int(…) or len(…) of any value counts as constant, because a call's inputs
        do not exist yet.
        """

        def all_constant(nodes: Iterable[ast.AST | None]) -> bool:
            return all(self.is_constant(each, around) for each in nodes)

        if isinstance(node, ast.alias):
            meant = self.meant.get((node.asname or node.name).split(".")[0], "")
            owner, rest = self.files.owner(meant)
            if owner is not None:
                return rest.isidentifier() and owner.is_known(rest, [])
            return meant.startswith(("triton", "math"))
        if isinstance(node, ast.FunctionDef):
            return self.is_trusted(node, around)
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return self.is_known(node.id, around)
        if isinstance(node, ast.Attribute):
            root, name = root_of(node), self.dotted(node)
            if isinstance(root, ast.Call):
                return self.is_constant(root, around)
            owner, rest = self.files.owner(name)
            if owner is not None:
                is_part = isinstance(root, ast.Name) and self.is_module(root.id, around)
                return is_part and rest.isidentifier() and owner.is_known(rest, [])
            return (
                isinstance(root, ast.Name) and name.split(".")[0] in KEPT and self.is_module(root.id, around)
            )
        if isinstance(node, (ast.Tuple, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp)):
            return all_constant(each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr))
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            held = [] if around else self.scope.get(node.value.id, [])
            return bool(held) and all(
                isinstance(each, (ast.Dict, ast.List, ast.Tuple))
                and all_constant(c for c in ast.iter_child_nodes(each) if isinstance(c, ast.expr))
                for each in held
            )
        if isinstance(node, ast.Call):
            name = self.dotted(node.func)
            if name in ("int", "float", "bool", "str", "len") and name not in self.scope:
                return not around or all_constant(node.args)
            if self.makes_kernels(node.func):
                return all(isinstance(a, ast.Name) and a.id in self.wrapped for a in node.args)
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            return name.startswith(("triton.", "math.", "numpy.float", "torch.finfo")) and all_constant(
                arguments
            )
        return False

    def look(self, node: ast.AST, around: list[Names], found: Found, *, is_kernel: bool) -> None:
        """Record in `found` the "calls" and "reaches" of one node. `around` are the scopes of its enclosing functions.

        `is_kernel`: True in a kernel, where a method such as .softmax is Triton's and not reported.
        """
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.setdefault(("calls", "matmul(@)"), node.lineno)
        if isinstance(node, ast.Call):
            self.note(self.dotted(node.func), node.lineno, found, is_called=True, is_kernel=is_kernel)
            first = self.dotted(node.args[0]) if node.args else ""
            is_kept = first.split(".")[0] in KEPT or self.files.is_module(first)
            if isinstance(node.func, ast.Name) and node.func.id == "vars" and is_kept:
                kind = "calls" if first.startswith("torch") else "reaches"
                found.setdefault((kind, f"{first}.vars"), node.lineno)
            if self.dotted(node.func).rpartition(".")[2] in ("import_module", "__import__") and node.args:
                asked = str(getattr(node.args[0], "value", "torch"))
                if asked.split(".")[0] in ("torch", "ctypes"):
                    found.setdefault(("calls", f"import.{asked}".replace(" ", "\\x20")), node.lineno)
            if said := self.forbidden_call(node):
                found.setdefault(("reaches", said), node.lineno)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            module = f"{self.origin(node)}."
            if module == "os." or any(
                each.startswith(module) or module.startswith(each) for each in REACHING
            ):
                found.setdefault(("reaches", f"{module}*"), node.lineno)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            changed = self.dotted(node)
            if changed.split(".")[0] in KEPT and not SETTINGS & set(changed.split(".")):
                found.setdefault(("reaches", f"{changed}="), node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in LEADING:
            found.setdefault(("reaches", f".{node.attr}"), node.lineno)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text in LEADING or (text in RUNNING and text[0] == "_") or text.startswith(DESCRIPTORS):
                found.setdefault(("reaches", text.replace(" ", "\\x20")), node.lineno)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            is_value = node.id in CHANGING and id(node) not in self.expected
            if node.id in NAMESPACES and id(node) not in self.expected:
                is_value = node.id in self.rebound or not any(node.id in scope for scope in around)
            own = (ast.FunctionDef, ast.ClassDef)
            if (node.id in RUNNING or is_value) and not all(
                isinstance(each, own) for each in self.scope.get(node.id, [None])
            ):
                found.setdefault(("reaches", node.id), node.lineno)
        if self.is_namespace(node) and id(node) not in self.expected:
            found.setdefault(("reaches", "globals() as a value"), getattr(node, "lineno", 0))
        is_load = isinstance(getattr(node, "ctx", None), ast.Load)
        if isinstance(node, (ast.Name, ast.Attribute)) and is_load and id(node) not in self.expected:
            name = self.dotted(node)
            is_module = name in ("triton", "torch", "math", "triton.language", "torch.nn.functional")
            is_module |= self.files.is_module(name)
            if is_module or self.makes_kernels(node):
                found.setdefault(("reaches", f"{name} as a value"), node.lineno)
        if isinstance(node, (ast.Attribute, ast.Name, ast.Call)):
            self.note(self.dotted(node), node.lineno, found, is_called=False, is_kernel=is_kernel)

    def forbidden_call(self, node: ast.Call) -> str:
        """Return a text about a call that changes a module, opens a descriptor or uses a computed attribute name.

        Return "" for any other call.
        """
        name = self.dotted(node.func)
        first = node.args[0] if node.args else None
        root = self.dotted(first).split(".")[0] if first is not None else ""
        last = name.rpartition(".")[2]
        if name in ("setattr", "delattr"):
            is_self = isinstance(first, ast.Name) and first.id in ("self", "ctx", "cls")
            return "" if is_self else f"{name}"
        if last in ("__setattr__", "__delattr__") and {root, name.split(".")[0]} & {*self.modules, *KEPT}:
            return f".{last}"
        if name == "open":
            is_number = (
                isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add) and not names_text(first)
            )
            is_number |= isinstance(first, ast.Constant) and isinstance(first.value, int)
            is_number |= isinstance(first, ast.Name) and first.id in self.numbered
            return "open of a number" if is_number else ""
        if last in ("getattr", "attrgetter", "methodcaller") and not root.startswith("torch"):
            asked = node.args[1:2] if name == "getattr" else node.args
            # If a variable holds the attribute's name, getattr may read any attribute. Only objects of the file's own
            # classes have none that matter.
            names = [ast.Name] if name == "getattr" and root not in OWN_OBJECTS else []
            if any(isinstance(each, (ast.BinOp, ast.JoinedStr, ast.Call, *names)) for each in asked):
                return f"{last} of a computed name"
        return ""

    def note(self, name: str, line: int, found: Found, *, is_called: bool, is_kernel: bool) -> None:
        base, _, last = name.rpartition(".")
        first, _, more = name.partition(".")
        parts, is_module = more.split("."), first in self.modules
        held = [k for k, part in enumerate(parts[:-1]) if part in HELD]
        if is_module and held:
            name = ".".join(parts[held[-1] :])
            first, _, more = name.partition(".")
        if last == "__dict__" and is_module and first != "torch":
            found.setdefault(("reaches", name), line)
        elif is_module and (name.startswith(REACHING) or (first == "os" and more)):
            if name not in HARMLESS and not (first == "os" and more.split(".")[0] in OS):
                found.setdefault(("reaches", name), line)
        elif name.startswith("torch."):
            counts = is_called or last in NAMED or last in ("getattr", "__dict__")
            if counts and not name.startswith(NO_WORK) and name not in self.files.operators:
                found.setdefault(("calls", name), line)
        elif not is_kernel and "." in name and last in COMPUTING and base.split(".")[0] not in OTHERS:
            found.setdefault(("calls", "." + last), line)


Definition = tuple[Reader, ast.AST]


class Files:
    """All files of a hand-in, the main one first, and the meanings of names across them."""

    def __init__(self, trees: dict[str, ast.Module], bundle: Any = None) -> None:
        self.bundle = bundle
        self.first = next(iter(trees))
        self.readers: dict[str, Reader] = {}
        self.operators: dict[str, Definition] = {}
        """Operators that the hand-in registers, by their names in torch.ops."""
        for file, tree in trees.items():
            self.readers[file] = Reader(tree, file, self)
        every = list(self.readers.values())
        self.main = every[0]
        for learn in (Reader.learn, Reader.learn_changes, Reader.expect):
            for reader in every:
                for node in ast.walk(reader.tree):
                    learn(reader, node)
        methods = METHODS | {name for reader in every for name in reader.kernels()}
        modules = {self.followed(name)[-1].split(".")[0] for each in every for name in each.meant.values()}
        for reader in every:
            reader.methods, reader.modules = methods, modules

    def package_of(self, file: str) -> str:
        module = self.bundle.module_of(file) if self.bundle is not None else ""
        return module if file.endswith("__init__.py") else module.rpartition(".")[0]

    def place(self, module: str) -> str | None:
        """Return the file of a module of the hand-in, or the folder of a package without `__init__.py`.

        Return None for a module outside of the hand-in.
        """
        found = self.bundle.place(module) if self.bundle is not None else ""
        if module == MODULE and not (found and self.bundle.module_of(self.first)):
            return self.first
        return found or None

    def owner(self, name: str) -> tuple[Reader | None, str]:
        """Split a dotted name after the module of the hand-in with which it begins.

        Return (reader of this module, rest of the name), or (None, name) for names of other modules.
        """
        parts = name.split(".", MOST_PARTS) if name[:1] != "." else []
        for count in range(min(len(parts), MOST_PARTS), 0, -1):
            place = self.place(".".join(parts[:count]))
            if place is not None and place in self.readers:
                return self.readers[place], ".".join(parts[count:])
        return None, name

    def is_module(self, name: str) -> bool:
        """Return True if `name` is a module of the hand-in, or a package of the hand-in without `__init__.py`."""
        return bool(name) and self.place(name) is not None

    def followed(self, name: str) -> list[str]:
        """Return `name` and the names to which imports of the hand-in's files resolve it, step by step.

        The last name is the full name of the definition.
        """
        names = [name]
        while len(names) < MOST_PARTS:
            owner, rest = self.owner(names[-1])
            first, _, more = rest.partition(".")
            if owner is None or first not in owner.meant:
                break
            names.append(f"{owner.meant[first]}.{more}" if more else owner.meant[first])
        return names

    def defined(self, reader: Reader, node: ast.AST) -> Iterator[Definition]:
        """Yield the module-level statements, of any file, that define a name or attribute. A string may be a name."""
        name = getattr(node, "id", "") or getattr(node, "value", "")
        if isinstance(node, (ast.Name, ast.Constant)) and isinstance(name, str):
            yield from ((reader, each) for each in reader.bound.get(name, ()))
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            for each in self.followed(reader.spelt(node)):
                if each in self.operators:
                    yield self.operators[each]
                owner, rest = self.owner(each)
                if owner is not None:
                    yield from ((owner, found) for found in owner.bound.get(rest.split(".")[0], ()))

    def newly(self, reader: Reader, node: ast.AST, led: set[tuple[str, str, str]]) -> Iterator[Definition]:
        """Yield the results of `defined` for a name that is not in the set `led`, and add the name to `led`.

        A file may use a name very often, and looking it up each time would take too long.
        """
        name = getattr(node, "id", "") or getattr(node, "value", "")
        key = reader.file, name if isinstance(name, str) else "", reader.spelt(node)
        if key not in led:
            led.add(key)
            yield from self.defined(reader, node)

    def found(self, entry: str, chosen: str = "any", reached: str = "both") -> Places:
        """Return the names to report for an entry, sorted by file and line.

        `chosen` and `reached` are the command line's CLASS and REACHED.
        """
        statements = [(reader, each) for reader in self.readers.values() for each in reader.statements]
        found = self.walk([*statements, *self.start(entry, chosen, reached)], reached)
        # Import-time code computes no results, but could detect the recording of calls: add its "reaches".
        at_import = self.walk([(r, each) for r in self.readers.values() for each in r.at_import])
        found.update(
            {key: place for key, place in at_import.items() if key[0] == "reaches" and key not in found}
        )
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def walk(self, pending: list[Definition], reached: str = "both") -> Places:
        """Return the names to report in these nodes, and in all definitions that they refer to.

        If `reached` is "forward", methods `backward` are read only if a node names "backward": a forward pass alone
        does not run them.
        """
        found: dict[str, Found] = {file: {} for file in self.readers}
        done: set[int] = set()
        led: set[tuple[str, str, str]] = set()
        later: list[Definition] = []
        while pending:
            reader, statement = pending.pop()
            if id(statement) in done:
                continue
            done.add(id(statement))
            if isinstance(statement, ast.ClassDef) and reached == "forward":
                parts = [(reader, each) for each in ast.iter_child_nodes(statement)]
                later += [each for each in parts if is_backward(each[1])]
                pending += [each for each in parts if not is_backward(each[1])]
                continue
            own = found[reader.file]
            for node, around, is_kernel in nodes(statement, reader):
                if "backward" in (getattr(node, "attr", ""), getattr(node, "value", "")):
                    pending, later = pending + later, []
                    reached = "both"
                reader.look(node, around, own, is_kernel=is_kernel)
                if isinstance(node, ast.FunctionDef) and reader.is_kernel(node) and not is_kernel:
                    reader.read_kernel(node, around, own)
                pending += self.newly(reader, node, led)
        places: Places = {}
        for number, own in enumerate(found.values()):
            for key, line in own.items():
                places.setdefault(key, (number, line))
        return places

    def start(self, entry: str, chosen: str, reached: str) -> list[Definition]:
        """Return the definition of the function `entry`.

        For a file without this function, return the subclass of autograd.Function that a runner would choose
        (`gpu.kernelfiles`), without its backward pass if `reached` is "forward".
        """
        if entry in self.main.bound:
            return list(self.defined(self.main, ast.Name(entry)))
        own = [(r, c) for r in self.readers.values() for c in r.classes if is_function(r, c)]
        named = [(r, c) for r, c in own if c.name == chosen] or self.adapted(chosen)
        in_triton = chosen != "pytorch"
        signs = [(self.launches(*c) == in_triton, ("triton" in c[1].name.lower()) == in_triton) for c in own]
        fitting = [c for c, sign in zip(own, signs, strict=True) if sign == max(signs)]
        # A runner takes the last class. With several files the order of imports decides which is the last: return all.
        found = named[-1:] or (fitting if self.bundle is not None else fitting[-1:])
        if reached != "forward":
            return list(found)
        return [(r, each) for r, c in found for each in c.body if not is_backward(each)]

    def adapted(self, language: str) -> list[tuple[Reader, ast.ClassDef]]:
        """Return the autograd.Function classes named in CS336's adapter function, which returns the class to judge."""
        name = f"get_flashattention_autograd_function_{language}"
        adapters = self.readers.get(self.bundle.adapters()) if self.bundle is not None else None
        for reader in dict.fromkeys(r for r in (adapters, self.main) if r is not None and name in r.bound):
            inner = [node for each in reader.bound[name] for node in ast.walk(each)]
            led = [pair for node in inner for pair in self.defined(reader, node)]
            return [(r, each) for r, each in led if isinstance(each, ast.ClassDef) and is_function(r, each)]
        return []

    def launches(self, reader: Reader, cls: ast.ClassDef) -> bool:
        """Return True if a class's forward pass names a kernel, directly or through other functions."""
        pending: list[Definition] = [
            (reader, each) for each in cls.body if getattr(each, "name", "") == "forward"
        ]
        done: set[int] = set()
        led: set[tuple[str, str, str]] = set()
        while pending:
            own, statement = pending.pop()
            if isinstance(statement, ast.FunctionDef) and own.is_kernel(statement):
                return True
            if id(statement) not in done:
                done.add(id(statement))
                names = [n for n in ast.walk(statement) if isinstance(n, (ast.Name, ast.Attribute))]
                pending += [each for name in names for each in self.newly(own, name, led)]
        return False


def is_backward(node: ast.AST) -> bool:
    return getattr(node, "name", "") == "backward"


def is_function(reader: Reader, cls: ast.ClassDef) -> bool:
    return any(reader.dotted(base).endswith("Function") for base in cls.bases)


def nodes(statement: ast.AST, reader: Reader) -> Iterator[tuple[ast.AST, list[Names], bool]]:
    """Yield (node, scopes of its enclosing functions, True if it is in a kernel's body) for each node of a statement.

    Decorators, defaults and annotations of a kernel run as Python, so they do not belong to its body.
    """
    pending: list[tuple[ast.AST, list[Names], bool]] = [(statement, [], False)]
    while pending:
        node, around, is_kernel = pending.pop()
        yield node, around, is_kernel
        inside = around
        if isinstance(node, FUNCTIONS):
            inside = [*around, bindings(node)]
        body = is_kernel or (isinstance(node, ast.FunctionDef) and reader.is_kernel(node))
        within = set(map(id, node.body)) if isinstance(node, ast.FunctionDef) else set()
        children = ast.iter_child_nodes(node)
        pending.extend((each, inside, is_kernel or (body and id(each) in within)) for each in children)


def body_nodes(kernel: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield all nodes of a kernel's body except the annotations of variables, parameters and results."""
    pending: list[ast.AST] = list(kernel.body)
    while pending:
        node = pending.pop()
        yield node
        left_out = getattr(node, "annotation", None), getattr(node, "returns", None)
        pending.extend(child for child in ast.iter_child_nodes(node) if child not in left_out)


def bindings(scope: ast.AST) -> Names:
    """Return the values of each name that a module or function binds, but not in its inner functions and classes."""
    found: Names = {}
    pending: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.setdefault(node.name, []).append(node)
            continue
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            for name, value in assigned(node):
                found.setdefault(name, []).append(value)
            pending += [node.value] if node.value is not None else []
            continue
        if isinstance(node, ast.alias):
            found.setdefault((node.asname or node.name).split(".")[0], []).append(node)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, []).append(None)
        elif isinstance(bound := getattr(node, "arg", None) or getattr(node, "name", None), str):
            # An argument, a caught exception or a name in a pattern: no expression gives its value.
            found.setdefault(bound, []).append(None)
        pending += ast.iter_child_nodes(node)
    return found


def assigned(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[tuple[str, ast.AST | None]]:
    """Return (name, assigned expression, or None if unknown) for each name that an assignment binds."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [pair for target in targets for pair in pairs(target, node.value)]


def pairs(target: ast.AST, value: ast.AST | None) -> list[tuple[str, ast.AST | None]]:
    """Return (name, assigned expression or None) for each name in an assignment's `target`, such as `a, b`."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, (ast.Tuple, ast.List)):
        values: list[ast.AST | None] = [None] * len(target.elts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            values = list(value.elts)
        return [pair for each, own in zip(target.elts, values, strict=True) for pair in pairs(each, own)]
    return pairs(target.value, None) if isinstance(target, ast.Starred) else []


def decorators_of(node: ast.FunctionDef) -> list[ast.expr]:
    return [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]


def root_of(node: ast.AST) -> ast.AST:
    """Return the node that a chain of attributes begins with, such as `a` of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def shortened(name: str) -> str:
    """Return a dotted name cut to MOST_PARTS parts: repeated assignments `a = a.b` would make it ever longer."""
    *first, last = name.split(".")
    return ".".join([*first[: MOST_PARTS - 1], last])


def is_named(node: ast.AST, names: frozenset[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def module_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes outside of function bodies."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        within = node.body if isinstance(node, FUNCTIONS) else []
        left_out = set(map(id, within if isinstance(within, list) else [within]))
        pending += [each for each in ast.iter_child_nodes(node) if id(each) not in left_out]


def names_text(node: ast.AST) -> bool:
    """Return True for an expression that contains a string."""
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in ast.walk(node)
    )


def printable(text: str) -> str:
    """Return a text as one line of ASCII."""
    escaped = text.encode("ascii", "backslashreplace").decode()
    return "".join(c if " " <= c <= "~" else f"\\x{ord(c):02x}" for c in escaped)


def evaluated(statement: ast.AST) -> list[ast.AST]:
    """Return the parts of a module-level statement that run at import.

    Function bodies are left out, and so are whole `if` statements.
    """
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [*statement.decorator_list, statement.args]
    if isinstance(statement, ast.ClassDef):
        inner = [part for each in statement.body for part in evaluated(each)]
        return [*statement.decorator_list, *statement.bases, *statement.keywords, *inner]
    return [] if isinstance(statement, ast.If) else [statement]


def calls_anything(node: ast.AST) -> bool:
    """Return True for code with a call in it, and for an import of all names of a module."""
    return any(
        isinstance(each, ast.Call) or (isinstance(each, ast.ImportFrom) and each.names[0].name == "*")
        for each in ast.walk(node)
    )


def names_bound(statement: ast.stmt) -> list[str]:
    """Return the names that a definition, an import or an assignment of plain names binds; [] for other statements."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(name.asname or name.name).split(".")[0] for name in statement.names]
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return []
    names = [node for target in targets for node in ast.walk(target)]
    if any(isinstance(node, (ast.Attribute, ast.Subscript)) for node in names):
        return []
    return [node.id for node in names if isinstance(node, ast.Name)]


def is_main_guard(statement: ast.stmt) -> bool:
    """Return True for `if __name__ == "__main__":`."""
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
        return False
    test = statement.test
    sides = [test.left, *test.comparators]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    return isinstance(test.ops[0], ast.Eq) and names == ["__name__"] and texts == ["__main__"]


def is_getattr(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) >= 2
    )


def trees_of(data: bytes, files: dict[str, bytes]) -> dict[str, ast.Module]:
    """Return the syntax tree of each file. If a file is not valid Python, print its error and return {}."""
    trees = {}
    for name, content in (files or {"": data}).items():
        shown = name or "kernels.py"
        try:
            trees[name] = ast.parse(content, shown)
            compile(trees[name], shown, "exec", dont_inherit=True)
        except SyntaxError as error:
            print(printable(f"error {name}:{error.lineno or 0}:{error.offset or 0}:{error.msg}"))
            return {}
        except (ValueError, RecursionError, MemoryError, OverflowError) as error:
            print(printable(f"error {name}:0:0:{type(error).__name__}: {error}"))
            return {}
    return trees


def main() -> None:
    bundles, path, most, *entries = sys.argv[1:]
    with open(path, "rb") as file:
        data = file.read()
    files, bundle = {}, None
    if data.startswith(b"# ---- "):
        import importlib.util

        spec = importlib.util.spec_from_file_location("filebundle", bundles)
        assert spec is not None and spec.loader is not None
        filebundle = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(filebundle)
        if files := filebundle.split(data):
            bundle = filebundle.Bundle(files)
    if not (trees := trees_of(data, files)):
        return
    read = Files(trees, bundle)
    for asked in entries:
        entry, *how = asked.split("=")
        found = [
            (key, f"{[*files][number]}:{line}" if files else str(line))
            for key, (number, line) in read.found(entry, *how).items()
        ]
        for (kind, name), place in found[: int(most)]:
            print(f"{kind} {entry} {printable(name)[:60]} {place}")
        if len(found) > int(most):
            print(f"reaches {entry} more than {most} names {found[int(most)][1]}")


if __name__ == "__main__":
    main()
