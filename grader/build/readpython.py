"""Reads a stranger's Python file in a process of its own, as a script: readpython.py FILE MOST.

Prints what is wrong with it ("error LINE:COLUMN:MESSAGE"), or what of torch's its plain functions call and which
methods and operators of theirs compute ("calls NAME LINE", at most MOST). Functions decorated with ...jit are kernels,
whose calls are Triton's. Imports nothing of the kit.
"""

from __future__ import annotations

import ast
import sys

_METHODS = """
matmul mm bmm addmm baddbmm einsum softmax log_softmax logsumexp exp exp2 tanh sigmoid relu gelu sum mean max amax
cumsum
masked_fill masked_fill_ softmax_ dot mul mul_ add add_ div div_ sub sub_ where
"""
METHODS = frozenset(_METHODS.split())
#: Modules, and functions of Python's own, that have functions of these names.
OTHERS = ("math", "triton", "tl", "np", "min", "max")
NO_WORK = ("torch.cuda.", "torch.autograd.")


class Reader:
    """What one file calls, by name, with the line of the first call."""

    def __init__(self) -> None:
        self.meant: dict[str, str] = {}
        self.found: dict[str, int] = {}

    def read(self, tree: ast.AST) -> None:
        pending = [tree]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.dump(d) for d in node.decorator_list):
                continue
            self.look(node)
            pending.extend(ast.iter_child_nodes(node))

    def look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.split(".")[0]
                self.meant[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                self.meant[name.asname or name.name] = f"{node.module}.{name.name}"
        elif isinstance(node, ast.Call):
            called = self.dotted(node.func)
            if called.startswith(("torch.", "ctypes.")) and not called.startswith(NO_WORK):
                self.found.setdefault(called, node.lineno)
            elif getattr(node.func, "attr", "") in METHODS and called.split(".")[0] not in OTHERS:
                self.found.setdefault("." + called.rpartition(".")[2], node.lineno)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            self.found.setdefault("matmul(@)", node.lineno)

    def dotted(self, node: ast.expr) -> str:
        """A name with what it stands for after the imports: "torch.nn.functional.gelu"; ".sum" of anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            return ".".join([self.meant.get(node.id, node.id), *reversed(parts)])
        return f".{parts[0]}" if parts else ""


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
    reader = Reader()
    reader.read(tree)
    for name, line in sorted(reader.found.items(), key=lambda item: item[1])[: int(sys.argv[2])]:
        print(f"calls {name[:60]} {line}")


if __name__ == "__main__":
    main()
