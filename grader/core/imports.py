"""Imports between the kit's modules, read from the sources without running them.

These imports decide which modules a handout must hold and which files can change a verdict.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("grader", "labs", "module_ref_stub", "textgen")
SCRIPT = "gpt149"


@dataclass(frozen=True)
class Import:
    """One import of a module of the kit.

    `late` is True for an import inside a function. `typing` is True for an import that only type checkers read, below
    `if TYPE_CHECKING`.
    """

    importer: str
    imported: str
    line: int
    late: bool
    typing: bool


def modules(root: Path) -> dict[str, Path]:
    """Return the path of every module of the kit under `root`, by dotted name."""
    found = {SCRIPT: root / f"{SCRIPT}.py"} if (root / f"{SCRIPT}.py").is_file() else {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Collection[str]) -> Iterator[Import]:
    """Yield the imports of kit modules in the module `name`, whose file is `path`.

    `known` has the dotted names of all kit modules. An imported kit module that does not exist is yielded, too.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node, late, typing in _statements(path.read_text(encoding="utf-8"), str(path)):
        for imported in _named(node, package, known):
            yield Import(name, imported, node.lineno, late, typing)


def closure(root: Path, wanted: Iterable[str], stop: Collection[str] = ()) -> set[str]:
    """Return the wanted modules, all that they import directly or indirectly, and the packages that contain these.

    Imports for type checkers only are left out. Imports in the modules and packages named in `stop` are not followed.
    """
    known = modules(root)
    reached: set[str] = set()
    pending = list(wanted)
    while pending:
        name = pending.pop()
        if name in reached or name not in known:
            continue
        reached.add(name)
        if any(name == room or name.startswith(f"{room}.") for room in stop):
            continue
        pending += [found.imported for found in imports(name, known[name], known) if not found.typing]
        pending.append(name.rpartition(".")[0])
    return reached


def missing(root: Path, within: Iterable[str]) -> list[Import]:
    """Return the imports of missing kit modules in the modules `within`, except imports for type checkers."""
    known = modules(root)
    return [
        found
        for name in sorted(within)
        for found in imports(name, known[name], known)
        if found.imported not in known and not found.typing
    ]


@functools.lru_cache(maxsize=1024)
def _statements(text: str, path: str) -> tuple[tuple[ast.Import | ast.ImportFrom, bool, bool], ...]:
    """Return what `_walk` yields for a file. One release reads each file several times, and parsing is slow."""
    return tuple(_walk(ast.parse(text, path), False, False))


def _walk(
    node: ast.AST, late: bool, typing: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Yield (statement, `late`, `typing`) for each import below a node, in order. `Import` describes both flags.

    Only statements are visited, for speed: most nodes of a tree are expressions.
    """
    for child in (child for name in _BLOCKS for child in getattr(node, name, ())):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late, typing
            continue
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        yield from _walk(child, late or in_function, typing or for_types)


_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""Fields of a syntax node that hold statements."""


def _named(node: ast.Import | ast.ImportFrom, package: str, known: Collection[str]) -> Iterator[str]:
    """Yield the names of the kit's modules that an `import` or `from … import` statement imports.

    `package` is the package of the importing module, `known` has the names of all kit modules. For `from parent import
    name`, `parent` is yielded, and `parent.name` if it is in `known`.
    """
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _ours(alias.name))
        return
    module = node.module or ""
    if node.level:
        module = ".".join(
            [*package.split(".")[: package.count(".") + 2 - node.level], *module.split(".")]
        ).strip(".")
    if _ours(module):
        yield module
        for alias in node.names:
            if f"{module}.{alias.name}" in known:
                yield f"{module}.{alias.name}"


def _ours(name: str) -> bool:
    return name.partition(".")[0] in (*PACKAGES, SCRIPT)
