"""Loading of one assignment from YAML: its functions, and how they are called, judged and graded.

Everything particular to an assignment is in its file and in its lab (`grader.assignment.labs`). `SCHEMA` below lists
the accepted keys, and `docs/assignment-format.md` documents them; a test compares the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from grader.assignment import labs, layers, partkeys, rubric
from grader.assignment.expressions import call_of, evaluate_int, is_number
from grader.assignment.records import Assignment, Case, Output, Part, Returns, RunLimits, Shape, TorchRunner
from grader.assignment.yamlnode import Keys, Node
from grader.core.draws import derive
from grader.core.errors import UsageError

LARGEST_SEED = (1 << 63) - 1
THREADS = "threads"
"""A size that every assignment must have, because the evaluator itself uses it."""
LONGEST_LABEL = 48
"""Limit in characters: the profiler cuts names at 60 characters, and "REFERENCE - " precedes the label."""
CALLED_AGAIN = ("timed call", "profiled call")
"""Names of calls that the judge makes besides the cases; a case cannot have such a name."""

ASSIGNMENT_KEYS = Keys(
    "the assignment",
    ("schema_version", "id", "title", "source", "defaults", "inputs", "limits", "parts"),
    (
        "extends", "lab", "minima", "maxima", "cases", "manual", "late", "seed",
        "hidden_cases", "torch_runner", "profiler_table", "backend", "packages",
    ),
)  # fmt: skip
LIMITS_KEYS = Keys("limits", ("build_s", "call_s", "memory_gib"), ("object_mib",))
CASE_KEYS = Keys("a case", ("name", "distribution", "seed"), ("shape", "weight"))
PART_KEYS = Keys(
    "a part",
    ("id", "title", "label", "arguments", "returns", "oracle", "points"),
    (
        "command", "function", "torch_function", "keywords", "prototype", "table", "reference", "cases",
        "hidden_cases", "workspace_in_scope", "stands_in", "time", "time_bands", "points_if_slow", "case_credit",
        "outputs", "dtype", "inputs", "backend", "autograd", "library_operators", "differs_from", "avoids_tensor",
    ),
)  # fmt: skip
OUTPUT_KEYS = Keys("an output", ("dims",), ("dtype",))
SCHEMA = (
    ASSIGNMENT_KEYS, LIMITS_KEYS, CASE_KEYS, PART_KEYS, OUTPUT_KEYS,
    partkeys.TIME_KEYS, partkeys.INPUT_KEYS, partkeys.AUTOGRAD_KEYS,
    rubric.TIME_BAND_KEYS, rubric.MANUAL_KEYS, rubric.LATE_KEYS, rubric.PER_DAY_KEYS,
)  # fmt: skip


def load(path: Path, seed: int | None = None) -> Assignment:
    """Read and check an assignment file and the files that it extends. `seed` replaces the seed in the file.

    Raises UsageError for any mistake, with file, line and key if a key is wrong.
    """
    document = layers.read(path)
    reader = _Reader(document.root, seed, document.files)
    fingerprint = document.sha256
    if reader.lab_folder.parent != labs.LABS:
        # The kit's own labs are part of the kit's fingerprint.
        parts = [path.read_bytes() for path in labs.deciding(reader.lab_folder)]
        fingerprint = hashlib.sha256(fingerprint.encode() + b"\0".join(parts)).hexdigest()
    if seed is not None:
        fingerprint = hashlib.sha256(f"{fingerprint} {seed}".encode()).hexdigest()
    return reader.assignment(path, fingerprint)


class _Reader:
    """Reader of one merged document. `__init__` reads the keys that all parts share."""

    def __init__(self, root: Node, seed: int | None, files: Sequence[Path]) -> None:
        anchors = [key for key in root.entries("the assignment") if key.endswith("_cases")]
        self.top = top = root.mapping(ASSIGNMENT_KEYS, anchors)
        if top["schema_version"].whole("schema_version") != 1:
            raise top["schema_version"].fail("this kit reads schema_version 1")
        self.seed = seed
        if seed is None and "seed" in top:
            self.seed = top["seed"].whole("seed", 0, LARGEST_SEED)
        self.minima = _sizes(top["minima"], "minima", lambda name: 0) if "minima" in top else {}
        self.defaults = self.sizes(top["defaults"], "defaults")
        for name in self.minima.keys() - self.defaults.keys():
            raise top["minima"].fail(
                f"minima: '{name}' is not among the defaults ({', '.join(self.defaults)})"
            )
        if THREADS not in self.defaults:
            raise top["defaults"].fail(
                f"defaults: the size '{THREADS}' is missing; every assignment needs it"
            )
        self.files = tuple(files)
        self.lab_folder = self._lab_folder(files)
        lab = labs.load(self.lab_folder)
        self.oracles, self.commands = lab.oracles, (*rubric.COMMANDS, *lab.studies)
        self.maxima = self._maxima()
        self.inputs = self.tensors(top["inputs"])
        self.backend = partkeys.backend(top) or "cpp"

    def assignment(self, path: Path, fingerprint: str) -> Assignment:
        top = self.top
        known = tuple(dict.fromkeys(name for facts in self.oracles.values() for name in facts.distributions))
        for key in ("cases", "hidden_cases"):
            for node in top[key].items(key) if key in top else ():
                self.case(node, known, key == "hidden_cases")
        parts: dict[str, Part] = {}
        nodes = top["parts"].items("parts")
        for node in nodes:
            part = self.part(node, set(parts))
            parts[part.id] = part
        if not parts:
            raise top["parts"].fail("an assignment needs at least one part")
        for part, node in zip(parts.values(), nodes, strict=True):
            partkeys.check_stand_in(part, parts, node)
            partkeys.check_differs_from(part, parts, node)
        limits = top["limits"].mapping(LIMITS_KEYS)
        return Assignment(
            id=rubric.read_id(top["id"], "id"),
            title=top["title"].text("title"),
            source=top["source"].text("source", r"\w[\w.+-]*", "the name of one file, without a folder"),
            defaults=self.defaults,
            minima=self.minima,
            maxima=self.maxima,
            inputs=self.inputs,
            limits=RunLimits(**{key: node.number(key, 0.1, 86_400) for key, node in limits.items()}),
            parts=tuple(parts.values()),
            path=path,
            lab_folder=self.lab_folder,
            files=self.files,
            manual=rubric.read_manual_items(top["manual"], set(parts)) if "manual" in top else (),
            torch_runner=top["torch_runner"].choice("torch_runner", get_args(TorchRunner))  # type: ignore[arg-type]
            if "torch_runner" in top
            else "needed",
            profiler_table="profiler_table" in top and top["profiler_table"].truth("profiler_table"),
            packages=tuple(
                item.text("packages", r"[A-Za-z_]\w*", "the name of a Python package")
                for item in (top["packages"].items("packages", 100) if "packages" in top else ())
            ),
            late=rubric.read_late(top["late"]) if "late" in top else None,
            seed=self.seed,
            fingerprint=fingerprint,
        )

    def _lab_folder(self, files: Sequence[Path]) -> Path:
        if "lab" not in self.top:
            return labs.find(labs.main())
        node = self.top["lab"]
        try:
            return labs.find(node.text("lab", r"[A-Za-z_]\w*", "the name of a lab's folder"), files)
        except UsageError as error:
            raise node.fail(str(error)) from error

    def sizes(self, node: Node, what: str) -> Shape:
        """Read sizes by name. Each must be at least its minimum: the value under the file's key `minima`, else 1."""
        return _sizes(node, what, lambda name: self.minima.get(name, 1))

    def _maxima(self) -> Shape:
        if "maxima" not in self.top:
            return {}
        node = self.top["maxima"]
        maxima = self.sizes(node, "maxima")
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
        shape = self.sizes(keys["shape"], "shape") if "shape" in keys else {}
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
        """Read a part's public cases, then its hidden cases. A list in the part replaces the assignment's list.

        A part with its own public cases does not get the assignment's hidden cases.
        """
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
            raise part.fail("the part has no public cases: give it `cases`")
        return tuple(found.values())

    def part(self, node: Node, taken: set[str]) -> Part:
        keys = node.mapping(PART_KEYS)
        part_id = rubric.read_id(keys["id"], "id of a part")
        if part_id in taken:
            raise keys["id"].fail(f"two parts are called '{part_id}'")
        if (at := keys.get("command", keys["id"])).text("command") in self.commands:
            raise at.fail(
                f"part {part_id} has the name of a command of gpt149.py: choose another 'command' or id"
            )
        if ("function" in keys) == ("torch_function" in keys):
            raise node.fail(f"part {part_id} needs either 'function' or 'torch_function'")
        oracle = keys["oracle"].choice("oracle", tuple(self.oracles))
        table = tuple(
            item.text("table", r"\w+", "the name of an input")
            for item in (keys["table"].items("table") if "table" in keys else ())
        )
        columns = self.oracles[oracle].columns if table else ""
        if table and not columns:
            raise keys["table"].fail(
                f"'table' needs an oracle with columns, but the lab's oracle '{oracle}' has none: name another oracle"
            )
        language = "cpp" if "torch_function" in keys else partkeys.backend(keys) or self.backend
        returns, dims = self.returns(keys["returns"])
        form = partkeys.FORMS.get(language, partkeys.KERNEL)
        outputs = self.outputs(keys["outputs"], form.dtypes) if "outputs" in keys else {}
        nodes = keys["inputs"] if "inputs" in keys else self.top["inputs"]
        inputs = self.tensors(keys["inputs"]) if "inputs" in keys else self.inputs
        if table and (returns == "tensor" or outputs):
            raise keys["returns"].fail(
                f"part {part_id}: beside 'table' write 'returns: number' or 'returns: nothing', and no 'outputs'"
            )
        if returns not in form.returns or (form.needs_outputs and not outputs):
            raise keys["returns"].fail(f"part {part_id}: {form.rule}")
        if returns not in ("tensor", "outputs") and not table and not (returns == "nothing" and outputs):
            raise keys["returns"].fail(
                f"part {part_id}: 'returns: {returns}' needs the key 'table'"
                + (" or the key 'outputs'" if returns == "nothing" else "")
            )
        time = partkeys.time(keys["time"]) if "time" in keys else None
        if time and "reference" not in keys:
            raise keys["time"].fail(f"part {part_id} has a time rule but no reference to be timed against")
        arguments = self.arguments(
            keys["arguments"], columns, inputs, outputs, may_return=returns == "outputs"
        )
        device = form.device_call(
            keys,
            language,
            {name: node for name, (_, node) in nodes.entries("inputs").items()},
            arguments,
            outputs,
            lambda item: self.argument(item, {*inputs, *outputs}, ""),
        )
        return Part(
            id=part_id,
            title=keys["title"].text("title"),
            label=keys["label"].text(
                "label", rf".{{1,{LONGEST_LABEL}}}", f"text of at most {LONGEST_LABEL} characters"
            ),
            arguments=arguments,
            returns=returns,
            output_dims=dims,
            oracle=oracle,
            cases=self.cases(keys, node, self.oracles[oracle].distributions),
            table=table,
            columns=columns,
            inputs=inputs,
            outputs=outputs,
            dtype=keys["dtype"].choice("dtype", partkeys.DTYPES) if "dtype" in keys else partkeys.DTYPES[0],
            reference=keys["reference"].text(
                "reference", r"[A-Za-z_]\w*", "a symbol of the reference library"
            )
            if "reference" in keys
            else None,
            stands_in=keys["stands_in"].text("stands_in") if "stands_in" in keys else None,
            differs_from=partkeys.differs_from(keys),
            avoids_tensor=self.dims(keys["avoids_tensor"], "avoids_tensor")
            if "avoids_tensor" in keys
            else (),
            workspace_in_scope=keys["workspace_in_scope"].truth("workspace_in_scope")
            if "workspace_in_scope" in keys
            else True,
            time=time,
            device=device,
            **partkeys.naming(keys, part_id),
            **rubric.read_payment(keys, part_id, time),
        )

    def returns(self, node: Node) -> tuple[Returns, tuple[str, ...]]:
        if node.tag == "str":
            return node.choice("returns (or a list of dimensions)", ("number", "nothing", "outputs")), ()  # type: ignore[return-value]
        return "tensor", self.dims(node, "returns")

    def tensors(self, node: Node) -> dict[str, tuple[str, ...]]:
        found = {}
        for name, (_, value) in node.entries("inputs").items():
            dims = value.mapping(partkeys.INPUT_KEYS)["dims"] if value.is_mapping() else value
            found[name] = self.dims(dims, f"input {name}")
        return found

    def arguments(
        self,
        node: Node,
        columns: str,
        inputs: Iterable[str],
        outputs: Mapping[str, Output],
        may_return: bool = False,
    ) -> tuple[str, ...]:
        names = {*inputs, "tensor"} if columns else {*inputs, *outputs}
        items = node.items("arguments", 100)
        if not items:
            raise node.fail("arguments should name at least one argument")
        found = tuple(self.argument(item, names, columns) for item in items)
        if not may_return and (lacking := outputs.keys() - set(found)):
            raise node.fail(f"arguments should also name the output '{min(lacking)}'")
        return found

    def outputs(self, node: Node, known: Sequence[str]) -> dict[str, Output]:
        """Return the tensors that the function writes, by name. `known` are the allowed types, the default first. In
        the file, each tensor is a list of dimensions, or a mapping of `dims` and `dtype`."""
        found = {}
        for name, (at_name, value) in node.entries("outputs").items():
            at_name.text("outputs", r"[A-Za-z_]\w*", "names of outputs")
            if value.is_mapping():
                keys = value.mapping(OUTPUT_KEYS)
                dtype = keys["dtype"].choice("dtype", known) if "dtype" in keys else known[0]
                found[name] = Output(self.dims(keys["dims"], f"output {name}"), dtype)
            else:
                found[name] = Output(self.dims(value, f"output {name}"))
        return found

    def argument(self, node: Node, inputs: set[str], columns: str) -> str:
        text = node.expression("an argument")
        if text in inputs:
            return text
        column = call_of(text, "column")
        if column is not None:
            known = [str(k) for k in range(len(columns))]
            if len(column) != 1 or column[0] not in known:
                raise node.fail(
                    f"{node.shown()}: column(k) takes one whole number below {len(columns)} and needs the key 'table'"
                )
            return text
        if (truth := call_of(text, "bool")) is not None:
            self.evaluate(node, f"argument {node.shown()}", truth[:1], None)
            return text
        if (number := call_of(text, "float")) is not None:
            if len(number) != 1 or not is_number(number[0]):
                self.evaluate(node, f"argument {node.shown()}", number[:1] or [""], None)
            return text
        dims = call_of(text, "zeros")
        self.evaluate(node, f"argument {node.shown()}", [text] if dims is None else dims, 1 if dims else None)
        return text

    def dims(self, node: Node, what: str) -> tuple[str, ...]:
        """Read a tensor's dimensions: expressions whose value is at least 1 for the default sizes."""
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
                raise node.fail(
                    f"{what}: '{expression}' is {value} for the default sizes; it has to be at least {low}"
                )


_SEEDED_CASE_KEYS = Keys(CASE_KEYS.what, ("name", "distribution"), ("seed", "shape", "weight"))
"""Keys of a hidden case in an assignment with a seed: the case's own seed is then optional."""


def _sizes(node: Node, what: str, low: Callable[[str], int]) -> Shape:
    return {
        key: value.whole(f"{what}: {key}", low(key))
        for key, (at_key, value) in node.entries(what).items()
        if at_key.text(what, r"[A-Za-z_]\w*", "names of sizes")
    }
