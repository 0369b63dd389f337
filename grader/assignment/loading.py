"""One assignment, read from YAML: which functions exist, how they are called, judged and paid.

The engine knows no attention: all that is particular to an assignment stands in its file. `docs/assignment-format.md`
says what each key means; `SCHEMA` below is what is accepted, and a test holds the two together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from grader.assignment import layers, rubric
from grader.assignment.expressions import call_of, evaluate_int
from grader.assignment.names import DISTRIBUTIONS, DISTRIBUTIONS_OF
from grader.assignment.records import Assignment, Case, Part, Returns, RunLimits, Shape, TimeRule, TorchRunner
from grader.assignment.rubric import TimeBand
from grader.assignment.yamlnode import Keys, Node
from grader.base.errors import UsageError
from grader.base.quantities import whole
from grader.base.seeds import derive

LARGEST_SEED = (1 << 63) - 1
SIZES = ("B", "H", "N", "d", "threads")
"""Names that every assignment's defaults have to hold, because the evaluator itself uses them."""
LONGEST_LABEL = 48
"""The profiler cuts names at 60 characters, and "REFERENCE - " stands before the label."""
CALLED_AGAIN = ("timed call", "profiled call")
"""Names the judge gives to further calls, which no case may have."""

ASSIGNMENT_KEYS = Keys(
    "the assignment",
    ("schema_version", "id", "title", "source", "defaults", "inputs", "limits", "parts"),
    (
        "extends",
        "maxima",
        "cases",
        "manual",
        "late",
        "seed",
        "hidden_cases",
        "torch_runner",
        "profiler_table",
    ),
)
LIMITS_KEYS = Keys("limits", ("build_s", "call_s", "memory_gib"), ("object_mib",))
CASE_KEYS = Keys("a case", ("name", "distribution", "seed"), ("shape", "weight"))
PART_KEYS = Keys(
    "a part",
    ("id", "title", "label", "arguments", "returns", "oracle", "points"),
    (
        "command", "function", "torch_function", "keywords", "prototype", "table", "reference", "cases",
        "hidden_cases", "workspace_in_scope", "stands_in", "time", "time_bands", "points_if_slow", "case_credit",
    ),
)  # fmt: skip
TIME_KEYS = Keys("time", ("clock", "threads"), ("cores", "allowance_ratio", "allowance_ms", "graded"))
SCHEMA = (
    ASSIGNMENT_KEYS, LIMITS_KEYS, CASE_KEYS, PART_KEYS, TIME_KEYS, rubric.TIME_BAND_KEYS, rubric.MANUAL_KEYS,
    rubric.LATE_KEYS, rubric.PER_DAY_KEYS,
)  # fmt: skip


def load(path: Path, seed: int | None = None) -> Assignment:
    """Read and check an assignment file and what it extends; `seed` takes the place of the file's own.

    Raises UsageError with file, line and key for whatever is wrong with it.
    """
    document = layers.read(path)
    fingerprint = document.sha256
    if seed is not None:
        fingerprint = hashlib.sha256(f"{fingerprint} {seed}".encode()).hexdigest()
    return _Reader(document.root, seed).assignment(path, fingerprint)


class _Reader:
    """Reads one merged document; what all parts share is read first and kept."""

    def __init__(self, root: Node, seed: int | None) -> None:
        anchors = [key for key in root.entries("the assignment") if key.endswith("_cases")]
        self.top = top = root.mapping(ASSIGNMENT_KEYS, anchors)
        if top["schema_version"].whole("schema_version") != 1:
            raise top["schema_version"].fail("this kit reads schema_version 1")
        self.seed = seed
        if seed is None and "seed" in top:
            self.seed = top["seed"].whole("seed", 0, LARGEST_SEED)
        self.defaults = _sizes(top["defaults"], "defaults")
        for name in SIZES:
            if name not in self.defaults:
                raise top["defaults"].fail(f"defaults lacks '{name}': the evaluator needs {', '.join(SIZES)}")
        self.maxima = self._maxima()
        self.inputs = {
            name: self.dims(node, f"input {name}")
            for name, (_, node) in top["inputs"].entries("inputs").items()
        }

    def assignment(self, path: Path, fingerprint: str) -> Assignment:
        top = self.top
        for key in ("cases", "hidden_cases"):
            for node in top[key].items(key) if key in top else ():
                self.case(node, DISTRIBUTIONS, key == "hidden_cases")
        parts: dict[str, Part] = {}
        nodes = top["parts"].items("parts")
        for node in nodes:
            part = self.part(node, set(parts))
            parts[part.id] = part
        if not parts:
            raise top["parts"].fail("an assignment needs at least one part")
        for part, node in zip(parts.values(), nodes, strict=True):
            _check_stand_in(part, parts, node)
        limits = top["limits"].mapping(LIMITS_KEYS)
        return Assignment(
            id=rubric.read_id(top["id"], "id"),
            title=top["title"].text("title"),
            source=top["source"].text("source", r"\w[\w.+-]*", "the name of one file, without a folder"),
            defaults=self.defaults,
            maxima=self.maxima,
            inputs=self.inputs,
            limits=RunLimits(**{key: node.number(key, 0.1, 86_400) for key, node in limits.items()}),
            parts=tuple(parts.values()),
            path=path,
            manual=rubric.read_manual_items(top["manual"], set(parts)) if "manual" in top else (),
            torch_runner=top["torch_runner"].choice("torch_runner", get_args(TorchRunner))  # type: ignore[arg-type]
            if "torch_runner" in top
            else "needed",
            profiler_table="profiler_table" in top and top["profiler_table"].truth("profiler_table"),
            late=rubric.read_late(top["late"]) if "late" in top else None,
            seed=self.seed,
            fingerprint=fingerprint,
        )

    def _maxima(self) -> Shape:
        if "maxima" not in self.top:
            return {}
        node = self.top["maxima"]
        maxima = _sizes(node, "maxima")
        for name, most in maxima.items():
            if name not in self.defaults:
                raise node.fail(f"maxima: '{name}' is not among the defaults ({', '.join(self.defaults)})")
            if most < self.defaults[name]:
                raise node.fail(f"maxima: {name} is {most}, below its default of {self.defaults[name]}")
        return maxima

    # ---- cases

    def case(self, node: Node, distributions: Sequence[str], hidden: bool) -> Case:
        keys = node.mapping(CASE_KEYS if not (hidden and self.seed is not None) else _SEEDED_CASE_KEYS)
        name = keys["name"].text("name")
        if name in CALLED_AGAIN:
            raise keys["name"].fail(f"a case cannot be called '{name}': the judge uses that name")
        distribution = keys["distribution"].choice("distribution", distributions)
        shape = _sizes(keys["shape"], "shape") if "shape" in keys else {}
        for size, value in shape.items():
            if size not in self.defaults:
                raise keys["shape"].fail(
                    f"shape: '{size}' is not among the defaults ({', '.join(self.defaults)})"
                )
            if value > self.maxima.get(size, value):
                raise keys["shape"].fail(
                    f"shape: {size} is {value}, above its maximum of {self.maxima[size]}"
                )
        return Case(
            name,
            distribution,
            keys["seed"].whole("seed", 0, LARGEST_SEED) if "seed" in keys else derive(self.seed or 0, name),
            shape,
            keys["weight"].number("weight", 0.0, 1e6) if "weight" in keys else 1.0,
            hidden,
        )

    def cases(self, keys: Mapping[str, Node], part: Node, distributions: Sequence[str]) -> tuple[Case, ...]:
        """A part's own cases or the common ones, then its own hidden cases or those that go with the common ones."""
        lists = [(keys.get("cases") or self.top.get("cases"), False)]
        common = None if "cases" in keys else self.top.get("hidden_cases")
        lists.append((keys.get("hidden_cases") or common, True))
        found: dict[str, Case] = {}
        for node, hidden in lists:
            for item in node.items("hidden_cases" if hidden else "cases") if node else ():
                case = self.case(item, distributions, hidden)
                if case.name in found:
                    raise item.fail(f"two cases are called '{case.name}'")
                found[case.name] = case
        if not any(not case.hidden for case in found.values()):
            raise part.fail("the part has no cases: nothing would be judged")
        return tuple(found.values())

    # ---- parts

    def part(self, node: Node, taken: set[str]) -> Part:
        keys = node.mapping(PART_KEYS)
        part_id = rubric.read_id(keys["id"], "id of a part")
        if part_id in taken:
            raise keys["id"].fail(f"two parts are called '{part_id}'")
        if ("function" in keys) == ("torch_function" in keys):
            raise node.fail(f"part {part_id} needs either 'function' or 'torch_function'")
        oracle = keys["oracle"].choice("oracle", tuple(DISTRIBUTIONS_OF))
        table = (
            tuple(item.text("table", r"\w+", "the name of an input") for item in keys["table"].items("table"))
            if "table" in keys
            else ()
        )
        returns, dims = self.returns(keys["returns"])
        if (returns == "tensor") == bool(table):
            raise keys["returns"].fail(
                f"part {part_id}: 'number' and 'nothing' are returned once for each row of a 'table', and only then"
            )
        time = _time(keys["time"]) if "time" in keys else None
        if time and "reference" not in keys:
            raise keys["time"].fail(f"part {part_id} has a time rule but no reference to be timed against")
        return Part(
            id=part_id,
            title=keys["title"].text("title"),
            label=keys["label"].text(
                "label", rf".{{1,{LONGEST_LABEL}}}", f"text of at most {LONGEST_LABEL} characters"
            ),
            arguments=self.arguments(keys["arguments"], table),
            returns=returns,
            output_dims=dims,
            oracle=oracle,
            cases=self.cases(keys, node, DISTRIBUTIONS_OF[oracle]),
            table=table,
            reference=keys["reference"].text(
                "reference", r"[A-Za-z_]\w*", "a symbol of the reference library"
            )
            if "reference" in keys
            else None,
            stands_in=keys["stands_in"].text("stands_in") if "stands_in" in keys else None,
            workspace_in_scope=keys["workspace_in_scope"].truth("workspace_in_scope")
            if "workspace_in_scope" in keys
            else True,
            time=time,
            **_naming(keys, part_id),
            **_payment(keys, part_id, time),
        )

    def returns(self, node: Node) -> tuple[Returns, tuple[str, ...]]:
        if node.tag == "str":
            return node.choice("returns (or a list of dimensions)", ("number", "nothing")), ()  # type: ignore[return-value]
        return "tensor", self.dims(node, "returns")

    def arguments(self, node: Node, table: Sequence[str]) -> tuple[str, ...]:
        names = {*self.inputs, "tensor"} if table else set(self.inputs)
        items = node.items("arguments", 100)
        if not items:
            raise node.fail("arguments should name at least one argument")
        return tuple(self.argument(item, names, bool(table)) for item in items)

    def argument(self, node: Node, inputs: set[str], has_table: bool) -> str:
        text = node.expression("an argument")
        if text in inputs:
            return text
        column = call_of(text, "column")
        if column is not None:
            if not has_table or len(column) != 1 or whole(column[0]) is None:
                raise node.fail(f"{node.shown()}: column(k) takes one whole number and needs the key 'table'")
            return text
        dims = call_of(text, "zeros")
        self.evaluate(node, f"argument {node.shown()}", [text] if dims is None else dims, 1 if dims else None)
        return text

    def dims(self, node: Node, what: str) -> tuple[str, ...]:
        """Dimensions of a tensor: expressions that are at least 1 in the default shape."""
        dims = tuple(item.expression(what) for item in node.items(what, 8))
        if not dims:
            raise node.fail(f"{what} should have at least one dimension")
        self.evaluate(node, what, dims, 1)
        return dims

    def evaluate(self, node: Node, what: str, expressions: Sequence[str], low: int | None) -> None:
        for expression in expressions:
            try:
                value = evaluate_int(expression, self.defaults)
            except UsageError as error:
                raise node.fail(f"{what}: {error}") from error
            if low is not None and value < low:
                raise node.fail(f"{what}: '{expression}' is {value} in the default shape, below {low}")


_SEEDED_CASE_KEYS = Keys(CASE_KEYS.what, ("name", "distribution"), ("seed", "shape", "weight"))
"""Of a hidden case in a file with a seed."""


def _sizes(node: Node, what: str) -> Shape:
    return {
        key: value.whole(f"{what}: {key}", 1)
        for key, (at_key, value) in node.entries(what).items()
        if at_key.text(what, r"[A-Za-z_]\w*", "names of sizes")
    }


def _naming(keys: Mapping[str, Node], part_id: str) -> dict[str, Any]:
    """What the part is called on the command line, in C++ and in torch."""
    is_torch = "torch_function" in keys
    if "keywords" in keys and not is_torch:
        raise keys["keywords"].fail("'keywords' are for a torch_function: C++ functions take arguments")
    name = "torch_function" if is_torch else "function"
    pattern = r"torch(\.\w+)+" if is_torch else r"[A-Za-z_]\w*"
    keywords = keys["keywords"].entries("keywords") if "keywords" in keys else {}
    return {
        "is_torch": is_torch,
        "function": keys[name].text(
            name, pattern, "a function of torch" if is_torch else "the name of a function"
        ),
        "command": rubric.read_id(keys["command"], "command") if "command" in keys else part_id,
        "prototype": keys["prototype"].text("prototype", r"(?s).+") if "prototype" in keys else "",
        "keywords": {key: value.plain(f"keywords: {key}") for key, (_, value) in keywords.items()},
    }


def _payment(keys: Mapping[str, Node], part_id: str, time: TimeRule | None) -> dict[str, Any]:
    """Points and partial credit. A right kernel, however slow, may not earn less than a wrong one could."""
    points = keys["points"].number("points", 0.0, 10_000)
    for key in ("time_bands", "points_if_slow"):
        if key in keys and not (time and time.graded):
            raise keys[key].fail(f"part {part_id} has {key} but no time that is graded")
    if "time_bands" in keys and "points_if_slow" in keys:
        raise keys["points_if_slow"].fail(
            f"part {part_id} has time_bands and points_if_slow: a last band without 'up_to' says the same"
        )
    if_slow = (
        keys["points_if_slow"].number("points_if_slow", 0.0, 10_000) if "points_if_slow" in keys else 0.0
    )
    if if_slow > points:
        raise keys["points_if_slow"].fail(f"points_if_slow ({if_slow:g}) is more than points ({points:g})")
    bands: tuple[TimeBand, ...] = ()
    if "time_bands" in keys and time:
        bands = rubric.read_time_bands(keys["time_bands"], time.allowance_ratio)
    credit = keys["case_credit"].number("case_credit", 0.0, 1.0) if "case_credit" in keys else 0.0
    slowest = bands[-1].share if bands and bands[-1].up_to is None else 0.0
    slowest = slowest if bands else if_slow / points if points else 0.0
    if time and time.graded and credit > slowest:
        raise keys["case_credit"].fail(
            f"part {part_id}: a right kernel, however slow, would earn {slowest:g} of the points and a wrong one up "
            f"to {credit:g}; end time_bands with a band without 'up_to' that has at least that share"
        )
    return {"points": points, "points_if_slow": if_slow, "time_bands": bands, "case_credit": credit}


def _check_stand_in(part: Part, parts: Mapping[str, Part], node: Node) -> None:
    if part.stands_in is None:
        return
    if part.stands_in not in parts:
        raise node.fail(f"part {part.id}: stands_in names no part: '{part.stands_in}'")
    stand_in = parts[part.stands_in]
    if stand_in.stands_in is not None or stand_in.is_torch or stand_in.id == part.id:
        raise node.fail(f"part {part.id}: {stand_in.id} cannot stand in: it should be judged by itself")


def _time(node: Node) -> TimeRule:
    keys = node.mapping(TIME_KEYS)
    all_threads = keys["threads"].tag == "str" and keys["threads"].choice("threads", ("all",)) == "all"
    return TimeRule(
        clock=keys["clock"].choice("clock", ("cpu", "wall")),  # type: ignore[arg-type]
        threads=None if all_threads else keys["threads"].whole("threads (a number or all)", 1, 4096),
        cores=keys["cores"].whole("cores", 1, 4096) if "cores" in keys else None,
        allowance_ratio=keys["allowance_ratio"].number("allowance_ratio", 1.0, 1000.0)
        if "allowance_ratio" in keys
        else 1.10,
        allowance_ms=keys["allowance_ms"].number("allowance_ms") if "allowance_ms" in keys else 15.0,
        graded=keys["graded"].truth("graded") if "graded" in keys else True,
    )
