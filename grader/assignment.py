"""One assignment, read from YAML: which functions exist, how they are called, judged and paid.

The engine knows no attention: all that is particular to an assignment stands in its file. Top-level keys:
`schema_version` (1), `id`, `title`, `source` (the file a student hands in), `defaults` and `maxima` (the names
that expressions may use), `inputs` (named input tensors and their dimensions), `limits` (`build_s` and `call_s`
seconds, `memory_gib`), `cases` (what results are judged on), `parts`; other keys may only hold YAML anchors and
end in `_cases`.

A case: `name`, `distribution` (a name in `grader.cases`), `seed`, and `shape` where it does not follow the
command line.

A part: `id`; `command` (what a student types; the id by default); `title`; `label` (its name in the profiler
table); `function` (as bound by the student) or `torch_function` (a public function of torch, with `keywords`);
`arguments`; `returns` (dimensions of a tensor, `number` or `nothing`); `prototype` (shown when the function is
missing; derived from the arguments by default); `table` (inputs whose columns feed `column(k)`: the function is
called once per row); `reference` (a symbol of the reference library); `oracle` (a name in `grader.oracle`); `cases`;
`workspace_in_scope` (whether the profiler's figure counts the `zeros(...)`); `stands_in` (the part that decides when
the function is not bound); `time` (`clock` cpu or wall, `threads` a number or `all`, `allowance_ratio`,
`allowance_ms`, `graded`); `points`; `points_if_slow`.

An argument is an input's name, `zeros(dims)`, `column(k)`, or an integer expression of names, + - * // and ( ).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from grader.errors import UsageError

Shape = dict[str, int]
Returns = Literal["tensor", "number", "nothing"]


@dataclass(frozen=True)
class Case:
    """One input: `shape` holds only what differs from the run's shape."""

    name: str
    distribution: str
    seed: int
    shape: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TimeRule:
    clock: Literal["cpu", "wall"]
    threads: int | None
    """Threads of a timed call; None means as many as the run's `threads`."""
    allowance_ratio: float = 1.10
    allowance_ms: float = 15.0
    graded: bool = True


@dataclass(frozen=True)
class Part:
    id: str
    command: str
    title: str
    label: str
    function: str
    arguments: tuple[str, ...]
    returns: Returns
    output_dims: tuple[str, ...]
    oracle: str
    points: float
    points_if_slow: float
    cases: tuple[Case, ...]
    prototype: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    is_torch: bool = False
    table: tuple[str, ...] = ()
    reference: str | None = None
    workspace_in_scope: bool = True
    stands_in: str | None = None
    time: TimeRule | None = None


@dataclass(frozen=True)
class RunLimits:
    build_s: float
    call_s: float
    memory_gib: float


@dataclass(frozen=True)
class Assignment:
    id: str
    title: str
    source: str
    defaults: Mapping[str, int]
    maxima: Mapping[str, int]
    inputs: Mapping[str, tuple[str, ...]]
    limits: RunLimits
    parts: tuple[Part, ...]
    path: Path

    def commands(self) -> list[str]:
        """What a student may type, in order, each once."""
        return list(dict.fromkeys(part.command for part in self.parts))

    def select(self, command: str) -> tuple[Part, ...]:
        """The parts of one command; `all` gives every part that earns points."""
        if command == "all":
            return tuple(part for part in self.parts if part.points > 0)
        return tuple(part for part in self.parts if part.command == command)

    def part(self, part_id: str) -> Part:
        return next(part for part in self.parts if part.id == part_id)


# ---- expressions


def evaluate_int(expression: str, shape: Mapping[str, int]) -> int:
    """An integer expression of names, + - * // and parentheses. Raises UsageError naming the expression."""
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, shape)
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError) as error:
        raise UsageError(
            f"cannot evaluate '{expression}' ({error}); known names: {', '.join(shape)}"
        ) from error


def _value(node: ast.expr, shape: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return shape[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, shape), _value(node.right, shape)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv():
                return left // right
    raise TypeError("only names, whole numbers, + - * // and parentheses")


def call_of(expression: str, name: str) -> list[str] | None:
    """The arguments of `name(...)`, or None when the expression is something else: call_of("zeros(N, 2)", "zeros")."""
    text = expression.strip()
    if not (text.startswith(name + "(") and text.endswith(")")):
        return None
    return [item.strip() for item in text[len(name) + 1 : -1].split(",")]


# ---- reading, with the line of every key at hand


class _Node:
    """A YAML value that knows its file and line, so that a mistake is told where it stands."""

    def __init__(self, node: yaml.Node, path: Path) -> None:
        self._node, self._path = node, path

    def fail(self, message: str) -> UsageError:
        return UsageError(f"{self._path}:{self._node.start_mark.line + 1}: {message}")

    def mapping(
        self, what: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, _Node]:
        """The entries of a mapping, in order; unknown, missing and repeated keys are told by name and line."""
        items: dict[str, _Node] = {}
        if not isinstance(self._node, yaml.MappingNode):
            raise self.fail(f"{what} should be a mapping of keys to values")
        for key_node, value_node in self._node.value:
            key = str(key_node.value)
            at_key = _Node(key_node, self._path)
            if key in items:
                raise at_key.fail(f"'{key}' stands twice in {what}")
            if key not in required + optional and not (optional == ("*",)):
                raise at_key.fail(f"unknown key '{key}' in {what}; known: {', '.join(required + optional)}")
            items[key] = _Node(value_node, self._path)
        for key in required:
            if key not in items:
                raise self.fail(f"{what} lacks the key '{key}'")
        return items

    def key_names(self) -> list[str]:
        return (
            [str(key.value) for key, _ in self._node.value]
            if isinstance(self._node, yaml.MappingNode)
            else []
        )

    def items(self, what: str) -> list[_Node]:
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.fail(f"{what} should be a list")
        return [_Node(node, self._path) for node in self._node.value]

    def plain(self) -> Any:
        try:
            return _Plain.value(self._node)
        except yaml.YAMLError as error:
            raise self.fail(f"not a plain value: {getattr(error, 'problem', None) or error}") from error

    def text(self, what: str) -> str:
        value = self.plain()
        if not isinstance(value, str) or not value:
            raise self.fail(f"{what} should be text, not {value!r}")
        return value

    def number(self, what: str, at_least: float = 0.0) -> float:
        value = self.plain()
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not at_least <= value < float("inf")
        ):
            raise self.fail(f"{what} should be a number of at least {at_least:g}, not {value!r}")
        return value

    def whole(self, what: str, at_least: int = 0) -> int:
        value = self.plain()
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.fail(f"{what} should be a whole number of at least {at_least}, not {value!r}")
        return value

    def truth(self, what: str) -> bool:
        value = self.plain()
        if not isinstance(value, bool):
            raise self.fail(f"{what} should be true or false, not {value!r}")
        return value

    def choice(self, what: str, choices: tuple[str, ...]) -> str:
        value = self.plain()
        if value not in choices:
            raise self.fail(f"{what} should be one of {', '.join(choices)}, not {value!r}")
        return value


class _Plain(yaml.SafeLoader):
    """Turns a composed node into a plain Python value with YAML's own safe rules."""

    @classmethod
    def value(cls, node: yaml.Node) -> Any:
        return cls("").construct_object(node, deep=True)


def load(path: Path) -> Assignment:
    """Read and check one assignment file. Raises UsageError with file, line and key for whatever is wrong with it."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the assignment {path}: {reason}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise UsageError(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    if root is None:
        raise UsageError(f"{path}: the file is empty")
    return _assignment(_Node(root, path), path)


_TOP_KEYS = ("schema_version", "id", "title", "source", "defaults", "inputs", "limits", "cases", "parts")
_PART_KEYS = ("id", "title", "label", "arguments", "returns", "oracle", "points")
_PART_OPTIONS = (
    "command", "function", "torch_function", "keywords", "prototype", "table", "reference", "cases",
    "workspace_in_scope", "stands_in", "time", "points_if_slow",
)  # fmt: skip


def _assignment(root: _Node, path: Path) -> Assignment:
    anchors = tuple(key for key in root.key_names() if key.endswith("_cases"))
    top = root.mapping("the assignment", _TOP_KEYS, ("maxima", *anchors))
    if top["schema_version"].whole("schema_version") != 1:
        raise top["schema_version"].fail("this kit reads schema_version 1")
    defaults = _sizes(top["defaults"], "defaults")
    maxima = _sizes(top["maxima"], "maxima") if "maxima" in top else {}
    inputs = {
        name: tuple(str(item.plain()) for item in node.items(f"input {name}"))
        for name, node in top["inputs"].mapping("inputs", (), ("*",)).items()
    }
    limits = top["limits"].mapping("limits", ("build_s", "call_s", "memory_gib"))
    common = tuple(_case(node, defaults) for node in top["cases"].items("cases"))
    parts: list[Part] = []
    for node in top["parts"].items("parts"):
        parts.append(_part(node, common, defaults, inputs, [part.id for part in parts]))
    for part, node in zip(parts, top["parts"].items("parts"), strict=True):
        if part.stands_in is not None and part.stands_in not in {other.id for other in parts}:
            raise node.fail(f"part {part.id}: stands_in names no part: '{part.stands_in}'")
    if not parts:
        raise top["parts"].fail("an assignment needs at least one part")
    return Assignment(
        id=top["id"].text("id"),
        title=top["title"].text("title"),
        source=top["source"].text("source"),
        defaults=defaults,
        maxima=maxima,
        inputs=inputs,
        limits=RunLimits(**{key: node.number(key, 0.1) for key, node in limits.items()}),
        parts=tuple(parts),
        path=path,
    )


def _sizes(node: _Node, what: str) -> Shape:
    return {key: value.whole(f"{what}: {key}", 1) for key, value in node.mapping(what, (), ("*",)).items()}


def _case(node: _Node, defaults: Shape) -> Case:
    keys = node.mapping("a case", ("name", "distribution", "seed"), ("shape",))
    shape = _sizes(keys["shape"], "shape") if "shape" in keys else {}
    for name in shape:
        if name not in defaults:
            raise keys["shape"].fail(f"shape: '{name}' is not among the defaults ({', '.join(defaults)})")
    return Case(
        keys["name"].text("name"),
        keys["distribution"].text("distribution"),
        keys["seed"].whole("seed"),
        shape,
    )


def _part(
    node: _Node,
    common: tuple[Case, ...],
    defaults: Shape,
    inputs: Mapping[str, tuple[str, ...]],
    taken: list[str],
) -> Part:
    keys = node.mapping("a part", _PART_KEYS, _PART_OPTIONS)
    part_id = keys["id"].text("id")
    if part_id in taken:
        raise keys["id"].fail(f"two parts are called '{part_id}'")
    if ("function" in keys) == ("torch_function" in keys):
        raise node.fail(f"part {part_id} needs either 'function' or 'torch_function'")
    is_torch = "torch_function" in keys
    returns, dims = _returns(keys["returns"], defaults)
    table = tuple(item.text("table") for item in keys["table"].items("table")) if "table" in keys else ()
    names = set(inputs) | ({"tensor"} if table else set())
    arguments = tuple(
        _argument(item, names, defaults, bool(table)) for item in keys["arguments"].items("arguments")
    )
    points = float(keys["points"].number("points"))
    if_slow = float(keys["points_if_slow"].number("points_if_slow")) if "points_if_slow" in keys else 0.0
    if if_slow > points:
        raise keys["points_if_slow"].fail(f"points_if_slow ({if_slow:g}) is more than points ({points:g})")
    function = keys["torch_function" if is_torch else "function"].text("function")
    cases = (
        tuple(_case(item, defaults) for item in keys["cases"].items("cases")) if "cases" in keys else common
    )
    if not cases:
        raise node.fail(f"part {part_id} has no cases: nothing would be judged")
    part = Part(
        id=part_id,
        command=keys["command"].text("command") if "command" in keys else part_id,
        title=keys["title"].text("title"),
        label=keys["label"].text("label"),
        function=function,
        arguments=arguments,
        returns=returns,
        output_dims=dims,
        oracle=keys["oracle"].text("oracle"),
        points=points,
        points_if_slow=if_slow,
        cases=cases,
        prototype=keys["prototype"].text("prototype") if "prototype" in keys else "",
        keywords=keys["keywords"].plain() if "keywords" in keys else {},
        is_torch=is_torch,
        table=table,
        reference=keys["reference"].text("reference") if "reference" in keys else None,
        workspace_in_scope=keys["workspace_in_scope"].truth("workspace_in_scope")
        if "workspace_in_scope" in keys
        else True,
        stands_in=keys["stands_in"].text("stands_in") if "stands_in" in keys else None,
        time=_time(keys["time"]) if "time" in keys else None,
    )
    if part.time and not part.reference:
        raise keys["time"].fail(f"part {part_id} has a time rule but no reference to be timed against")
    return part


def _returns(node: _Node, defaults: Shape) -> tuple[Returns, tuple[str, ...]]:
    value = node.plain()
    if value in ("number", "nothing"):
        return value, ()
    dims = tuple(str(item.plain()) for item in node.items("returns"))
    _check_expressions(node, "returns", dims, defaults)
    return "tensor", dims


def _argument(node: _Node, inputs: set[str], defaults: Shape, has_table: bool) -> str:
    text = str(node.plain())
    if text in inputs:
        return text
    column = call_of(text, "column")
    if column is not None:
        if not has_table or len(column) != 1 or not column[0].isdigit():
            raise node.fail(f"'{text}': column(k) takes one whole number and needs the key 'table'")
        return text
    dims = call_of(text, "zeros")
    _check_expressions(node, f"argument '{text}'", [text] if dims is None else dims, defaults)
    return text


def _check_expressions(node: _Node, what: str, expressions: Sequence[str], defaults: Shape) -> None:
    try:
        for expression in expressions:
            evaluate_int(expression, defaults)
    except UsageError as error:
        raise node.fail(f"{what}: {error}") from error


def _time(node: _Node) -> TimeRule:
    keys = node.mapping("time", ("clock", "threads"), ("allowance_ratio", "allowance_ms", "graded"))
    threads = keys["threads"].plain()
    return TimeRule(
        clock=keys["clock"].choice("clock", ("cpu", "wall")),  # type: ignore[arg-type]
        threads=None if threads == "all" else keys["threads"].whole("threads (a number or all)", 1),
        allowance_ratio=float(keys["allowance_ratio"].number("allowance_ratio", 1.0))
        if "allowance_ratio" in keys
        else 1.10,
        allowance_ms=float(keys["allowance_ms"].number("allowance_ms")) if "allowance_ms" in keys else 15.0,
        graded=keys["graded"].truth("graded") if "graded" in keys else True,
    )
