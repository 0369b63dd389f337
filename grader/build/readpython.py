"""Reads an untrusted Python file in a process of its own: readpython.py FILE MOST ENTRY[=CLASS=REACHED] ...

Prints what is wrong with it ("error LINE:COLUMN:MESSAGE"), or for each entry (a function that is judged) lines
"calls ENTRY NAME LINE": computing functions and methods of torch that are called or named in the code that the entry
reaches. Lines "reaches ENTRY NAME LINE" name what no kernel needs: ctypes, torch's internals, other objects' frames.

The code that an entry reaches: its definition, module-level definitions whose names occur in there, and so on; and
module-level statements, without what stands below `if __name__ == "__main__"`. Where an entry has no definition, an
autograd.Function stands for it: CLASS is its name, or the language of its forward pass (triton, pytorch, any), REACHED
is forward or both. A name is followed through imports, assignments and getattr.
Imports nothing of the kit.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

_COMPUTING = """
matmul mm bmm addmm baddbmm einsum softmax log_softmax logsumexp exp exp2 tanh sigmoid relu gelu cumsum softmax_ exp_
"""
COMPUTING = frozenset(_COMPUTING.split())
"""Methods that only tensors have. Others (add, sum, mean) belong to sets, lists and tables as well."""
#: Modules that have functions of these names.
OTHERS = ("math", "triton", "tl", "np", "numpy", "cmath")
NO_WORK = ("torch.cuda.", "torch.autograd.", "torch.backends.")
#: Torch's functions that count when they are named without a call; a dtype or a class does not.
NAMED = COMPUTING | {
    "scaled_dot_product_attention",
    "linear",
    "compile",
    "dot",
    "mv",
    "inner",
    "tensordot",
    "bilinear",
}
#: With these a file could look for, end or forge the record of what it calls (`grader.run.provenance`).
REACHING = (
    *("ctypes.", "torch._C", "torch.utils._python_dispatch", "torch.overrides"),
    *("triton.runtime.interpreter", "triton._C"),
    *(
        "gc.",
        "sys._getframe",
        "sys._current_frames",
        "sys.modules",
        "sys.settrace",
        "sys.setprofile",
        "inspect.",
    ),
)
#: Attributes that lead from any object to what others hold.
LEADING = frozenset(
    (
        "tb_frame",
        "f_back",
        "f_globals",
        "f_locals",
        "gi_frame",
        "cr_frame",
        "__globals__",
        "__closure__",
        "__subclasses__",
    )
)
#: Of what is named there, what honest files use.
HARMLESS = frozenset(("gc.collect", "gc.disable", "gc.enable", "inspect.signature", "inspect.getsource"))
JIT = frozenset(("jit", "autotune", "heuristics", "constexpr_function"))
#: Settings of torch's that honest files change.
SETTINGS = frozenset(("backends", "config", "cuda", "knobs", "_dynamo", "_inductor"))
Found = dict[tuple[str, str], int]
"""("calls" or "reaches", name): line."""


class Reader:
    """One file: its module-level definitions, and what names stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self.meant: dict[str, str] = {}
        for node in ast.walk(tree):
            self.learn(node)
        self.modules = {name.split(".")[0] for name in self.meant.values()}
        self.statements: list[ast.stmt] = []
        """Module-level statements that are no definitions."""
        self.bound: dict[str, list[ast.stmt]] = {}
        self.classes: list[ast.ClassDef] = []
        self.python: set[str] = set()
        """Functions and values of Python's that a compiled kernel could not use."""
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef) and not self.is_kernel(statement):
                self.python.add(statement.name)
            if isinstance(statement, ast.Assign) and not isinstance(statement.value, (ast.Call, ast.Name)):
                self.python.update(names_bound(statement))
            names = names_bound(statement)
            for name in names:
                self.bound.setdefault(name, []).append(statement)
            if isinstance(statement, ast.ClassDef):
                self.classes.append(statement)
            if not names and not is_main_guard(statement):
                self.statements.append(statement)
            elif is_main_guard(statement) and isinstance(statement, ast.If):
                self.statements += statement.orelse

    def learn(self, node: ast.AST) -> None:
        """Follow imports, and assignments of modules and of torch's functions to names."""
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.split(".")[0]
                self.meant[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                self.meant[name.asname or name.name] = f"{node.module}.{name.name}"
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            value = self.dotted(node.value)
            if value.startswith("torch"):
                self.meant[node.targets[0].id] = value

    def dotted(self, node: ast.AST) -> str:
        """A name with what it stands for: "torch.nn.functional.gelu"; ".sum" of anything else."""
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
        """Return True for a function under a decorator of Triton's own."""
        decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
        names = [self.dotted(d) for d in decorators]
        return any(name.startswith("triton.") and name.rpartition(".")[2] in JIT for name in names)

    def found(self, entry: str, chosen: str = "any", reached: str = "both") -> Found:
        """What the code that an entry reaches calls and names, with the line of the first time."""
        found: Found = {}
        pending: list[ast.stmt] = [*self.statements, *self.start(entry, chosen, reached)]
        done: set[int] = set()
        while pending:
            statement = pending.pop()
            if id(statement) in done:
                continue
            done.add(id(statement))
            for node, own in nodes(statement, self):
                self.look(node, found, own)
                name = getattr(node, "id", "") or getattr(node, "value", "")
                if isinstance(node, (ast.Name, ast.Constant)) and isinstance(name, str):
                    pending += self.bound.get(name, ())
        return found

    def start(self, entry: str, chosen: str, reached: str) -> list[ast.stmt]:
        """An entry's definition; else its autograd.Function as a runner chooses it (`grader.run.kernelfiles`), without
        its backward pass where only `forward` is reached."""
        if entry in self.bound:
            return self.bound[entry]
        own = [c for c in self.classes if any(self.dotted(base).endswith("Function") for base in c.bases)]
        named = [c for c in own if c.name == chosen]
        in_triton = chosen != "pytorch"
        signs = {c: (self.launches(c) == in_triton, ("triton" in c.name.lower()) == in_triton) for c in own}
        fitting = [c for c in own if signs[c] == max(signs.values())]
        found = (named or fitting)[-1:]
        if not found or reached != "forward":
            return list(found)
        return [each for each in found[0].body if getattr(each, "name", "") != "backward"]

    def launches(self, cls: ast.ClassDef) -> bool:
        """Return True if a class's forward pass names a kernel, or a function that does."""
        pending: list[ast.stmt] = [each for each in cls.body if getattr(each, "name", "") == "forward"]
        done: set[int] = set()
        while pending:
            statement = pending.pop()
            if isinstance(statement, ast.FunctionDef) and self.is_kernel(statement):
                return True
            if id(statement) not in done:
                done.add(id(statement))
                names = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
                pending += [each for name in names for each in self.bound.get(name, ())]
        return False

    def look(self, node: ast.AST, found: Found, own: frozenset[str] | None) -> None:
        """Note one node. In a kernel, whose `own` names are given, methods are Triton's; torch, NumPy and functions of
        Python's have no place there."""
        is_kernel = own is not None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.setdefault(("calls", "matmul(@)"), node.lineno)
        if isinstance(node, ast.Call):
            self.note(self.dotted(node.func), node.lineno, found, is_called=True, is_kernel=is_kernel)
            first = self.dotted(node.args[0]) if node.args else ""
            if isinstance(node.func, ast.Name) and node.func.id == "vars" and first.startswith("torch"):
                found.setdefault(("calls", f"{first}.vars"), node.lineno)
            if self.dotted(node.func).rpartition(".")[2] in ("import_module", "__import__") and node.args:
                asked = getattr(node.args[0], "value", "torch")
                if str(asked).split(".")[0] in ("torch", "ctypes"):
                    found.setdefault(("calls", f"import.{asked}"), node.lineno)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            changed = self.dotted(node)
            if changed.startswith(("torch.", "triton.")) and not SETTINGS & set(changed.split(".")):
                found.setdefault(("reaches", f"{changed}="), node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in LEADING:
            found.setdefault(("reaches", f".{node.attr}"), node.lineno)
        if own is not None and isinstance(node, (ast.Call, ast.Subscript)):
            used = node.func if isinstance(node, ast.Call) else node.value
            if isinstance(used, ast.Name) and used.id in self.python - own:
                found.setdefault(("reaches", f"{used.id} in a kernel"), node.lineno)
        if isinstance(node, (ast.Attribute, ast.Name, ast.Call)):
            self.note(self.dotted(node), node.lineno, found, is_called=False, is_kernel=is_kernel)

    def note(self, name: str, line: int, found: Found, *, is_called: bool, is_kernel: bool) -> None:
        base, _, last = name.rpartition(".")
        if name.startswith(REACHING) and name.split(".")[0] in self.modules:
            if name not in HARMLESS:
                found.setdefault(("reaches", name), line)
        elif name.startswith("torch."):
            counts = is_called or last in NAMED or last in ("getattr", "__dict__")
            if counts and not name.startswith(NO_WORK):
                found.setdefault(("calls", name), line)
        elif is_kernel:
            if is_called and name.startswith("numpy."):
                found.setdefault(("reaches", name), line)
        elif "." in name and last in COMPUTING and base.split(".")[0] not in OTHERS:
            found.setdefault(("calls", "." + last), line)


def nodes(statement: ast.stmt, reader: Reader) -> Iterator[tuple[ast.AST, frozenset[str] | None]]:
    """All nodes of a statement, each with the names that its kernel binds; None outside of kernels."""
    pending: list[tuple[ast.AST, frozenset[str] | None]] = [(statement, None)]
    while pending:
        node, own = pending.pop()
        if isinstance(node, ast.FunctionDef) and own is None and reader.is_kernel(node):
            inner = list(ast.walk(node))
            stored = [n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            own = frozenset([*stored, *(n.arg for n in inner if isinstance(n, ast.arg))])
        yield node, own
        pending.extend((child, own) for child in ast.iter_child_nodes(node))


def names_bound(statement: ast.stmt) -> list[str]:
    """Names that a definition, an import or an assignment of plain names binds; [] for any other statement."""
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


def main() -> None:
    try:
        with open(sys.argv[1], "rb") as file:
            tree = ast.parse(file.read(), "kernels.py")
        compile(tree, "kernels.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        print(f"error {error.lineno or 0}:{error.offset or 0}:{error.msg}")
        return
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        print(f"error 0:0:{type(error).__name__}: {error}")
        return
    reader, most = Reader(tree), int(sys.argv[2])
    for asked in sys.argv[3:]:
        entry, *how = asked.split("=")
        found = sorted(reader.found(entry, *how).items(), key=lambda item: item[1])
        for (kind, name), line in found[:most]:
            print(f"{kind} {entry} {name[:60]} {line}")
        if len(found) > most:
            print(f"reaches {entry} more than {most} names {found[most][1]}")


if __name__ == "__main__":
    main()
