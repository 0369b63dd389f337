"""Readers of single keys of a part: names, time rule, GPU properties, and the part that can stand in for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from grader.assignment import rubric
from grader.assignment.records import SUFFIXES, AutogradForm, DeviceCall, Output, Part
from grader.assignment.rubric import Parallel, Races, TimeRule
from grader.assignment.yamlnode import Keys, Node

TIME_KEYS = Keys(
    "time", ("clock", "threads"), ("cores", "allowance_ratio", "allowance_ms", "graded", "parallel", "races")
)
INPUT_KEYS = Keys("an input", ("dims",), ("dtype", "timed"))
AUTOGRAD_KEYS = Keys("autograd", ("arguments",), ("gradient", "language", "class"))
INPUT_DTYPES = ("float32", "float16", "bfloat16", "int32", "int64")
#: Types of returned tensors, and of tensors that C++ writes; the first is the default.
DTYPES = ("float32", "float64", "int32", "int64")


def backend(keys: Mapping[str, Node]) -> str | None:
    """Return the language that the key `backend` of a part or an assignment sets; None if the key is missing."""
    return keys["backend"].choice("backend", ("cpp", *SUFFIXES)) if "backend" in keys else None


def _no_device(keys: Mapping[str, Node], language: str, inputs: Mapping[str, Node], *_: object) -> None:
    """Raise UsageError for GPU properties of a part in C++."""
    for key in ("autograd", "library_operators"):
        if key in keys:
            raise keys[key].fail(f"'{key}' is for parts whose backend is triton")
    for node in inputs.values():
        if node.is_mapping():
            raise node.fail(
                f"'dtype' and 'timed' of an input are for parts whose backend is {' or '.join(SUFFIXES)}"
            )


def _cuda_call(
    keys: Mapping[str, Node],
    language: str,
    inputs: Mapping[str, Node],
    arguments: tuple[str, ...],
    outputs: Mapping[str, Output],
    argument: Callable[[Node], str],
) -> DeviceCall:
    if not set(outputs) <= set(arguments):
        raise keys["returns"].fail(
            "a part whose backend is cuda returns nothing: `arguments` name its outputs"
        )
    return _device_call(keys, language, inputs, arguments, outputs, argument)


def _device_call(
    keys: Mapping[str, Node],
    language: str,
    inputs: Mapping[str, Node],
    arguments: tuple[str, ...],
    outputs: Mapping[str, Output],
    argument: Callable[[Node], str],
) -> DeviceCall:
    """Read the GPU properties of a part.

    `inputs` are the YAML nodes of its inputs by name. `argument` reads and checks one argument. Raises UsageError.
    """
    returned = tuple(name for name in outputs if name not in arguments)
    dtypes, ranges = {}, {}
    for name, node in inputs.items():
        if not node.is_mapping():
            continue
        given = node.mapping(INPUT_KEYS)
        if "dtype" in given:
            dtypes[name] = given["dtype"].choice("dtype", INPUT_DTYPES)
        if "timed" in given:
            bounds = [item.number("timed", -1e30, 1e30) for item in given["timed"].items("timed", 2)]
            if len(bounds) != 2 or not bounds[0] < bounds[1]:
                raise given["timed"].fail("timed takes two numbers, the smaller one first")
            ranges[name] = (bounds[0], bounds[1])
    operators = keys["library_operators"].items("library_operators") if "library_operators" in keys else ()
    return DeviceCall(
        language,
        dtypes,
        ranges,
        returned,
        _autograd(keys["autograd"], arguments, argument) if "autograd" in keys else None,
        tuple(
            item.text("library_operators", r"\w+", "the name of an operator of torch") for item in operators
        ),
    )


def _autograd(node: Node, arguments: tuple[str, ...], argument: Callable[[Node], str]) -> AutogradForm:
    given = node.mapping(AUTOGRAD_KEYS)
    named = {item: argument(item) for item in given["arguments"].items("arguments", 100)}
    gradient = given["gradient"].text("gradient") if "gradient" in given else None
    for item, name in (*named.items(), *([(given["gradient"], gradient)] if gradient else ())):
        if name not in arguments:
            raise item.fail(f"autograd: '{name}' is not among the part's arguments")
    language = given["language"].choice("language", ("triton", "pytorch")) if "language" in given else ""
    name = given["class"].text("class", r"[A-Za-z_]\w*", "the name of a class") if "class" in given else ""
    return AutogradForm(tuple(named.values()), gradient, language, name)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PartForm:
    """Properties that a part in one language may have. `device_call` reads its GPU properties.

    `returns` are the allowed values of the key `returns`. `needs_outputs`: True if the key `outputs` is required.
    """

    device_call: Callable[..., DeviceCall | None]
    returns: tuple[str, ...]
    needs_outputs: bool
    rule: str
    """Error message for a part whose `returns` or `outputs` are not allowed."""
    dtypes: tuple[str, ...]
    """Element types of outputs, the default first; "like" is the type that the case's size `precision` stands for."""


KERNEL = PartForm(
    _device_call,
    returns=("nothing", "outputs"),
    needs_outputs=True,
    rule="a kernel for a GPU needs 'outputs', and its 'returns' is nothing or outputs",
    dtypes=("float32", "like", *INPUT_DTYPES[1:]),
)
#: Forms of parts by language. For a language without a row, use KERNEL.
FORMS: Mapping[str, PartForm] = {
    "cpp": PartForm(
        _no_device,
        returns=("tensor", "number", "nothing"),
        needs_outputs=False,
        rule="'returns: outputs' is for kernels for a GPU",
        dtypes=DTYPES,
    ),
    "cuda": replace(KERNEL, device_call=_cuda_call),
}


def naming(keys: Mapping[str, Node], part_id: str) -> dict[str, Any]:
    """Return values of `Part`'s fields by name: is_torch, function, command, prototype and keywords."""
    is_torch = "torch_function" in keys
    if "keywords" in keys and not is_torch:
        raise keys["keywords"].fail(
            "'keywords' are for a torch_function: C++ functions take 'arguments' only"
        )
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


def check_stand_in(part: Part, parts: Mapping[str, Part], node: Node) -> None:
    if part.stands_in is None:
        return
    if part.stands_in not in parts:
        raise node.fail(f"part {part.id}: stands_in: no part is called '{part.stands_in}'")
    stand_in = parts[part.stands_in]
    if stand_in.stands_in is not None or stand_in.is_torch or stand_in.id == part.id:
        raise node.fail(
            f"part {part.id}: {stand_in.id} cannot stand in: name another part with a 'function' and no 'stands_in'"
        )


def differs_from(keys: Mapping[str, Node]) -> tuple[str, ...]:
    """Return the part ids under the key `differs_from`, whose value is one id or a list."""
    node = keys.get("differs_from")
    if node is None:
        return ()
    each = node.items("differs_from") if node.tag == "seq" else [node]
    return tuple(one.text("differs_from") for one in each)


def check_differs_from(part: Part, parts: Mapping[str, Part], node: Node) -> None:
    """Raise UsageError unless `differs_from` names earlier parts whose outputs can be compared."""
    earlier = list(parts)[: list(parts).index(part.id)]
    for name in part.differs_from:
        if name not in earlier:
            raise node.fail(f"part {part.id}: differs_from: no earlier part is called '{name}'")
        other = parts[name]
        if not part.reference or not other.reference:
            raise node.fail(f"part {part.id}: differs_from needs the key 'reference' in both parts")
        if part.returns != "tensor" or (part.output_dims, part.dtype) != (other.output_dims, other.dtype):
            raise node.fail(f"part {part.id}: differs_from needs two parts that return the same tensor")


def time(node: Node) -> TimeRule:
    keys = node.mapping(TIME_KEYS)
    all_threads = keys["threads"].tag == "str" and keys["threads"].choice("threads", ("all",)) == "all"
    threads = None if all_threads else keys["threads"].whole("threads (a number or all)", 1, 4096)
    parallel: Parallel = "review" if all_threads else "free"
    if "parallel" in keys:
        parallel = keys["parallel"].choice("parallel", get_args(Parallel))  # type: ignore[assignment]
        if parallel != "free" and not all_threads:
            raise keys["parallel"].fail("'parallel' is for a part with 'threads: all'")
    races: Races = "review"
    if "races" in keys:
        races = keys["races"].choice("races", get_args(Races))  # type: ignore[assignment]
    return TimeRule(
        parallel=parallel,
        races=races,
        clock=keys["clock"].choice("clock", ("cpu", "wall")),  # type: ignore[arg-type]
        threads=threads,
        cores=keys["cores"].whole("cores", 1, 4096) if "cores" in keys else None,
        allowance_ratio=keys["allowance_ratio"].number("allowance_ratio", 1.0, 1000.0)
        if "allowance_ratio" in keys
        else 1.10,
        allowance_ms=keys["allowance_ms"].number("allowance_ms") if "allowance_ms" in keys else 15.0,
        graded=keys["graded"].truth("graded") if "graded" in keys else True,
    )
