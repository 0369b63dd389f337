"""Checks that a student's function has its part's signature, and makes the request by which a runner calls it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from grader.assignment.expressions import call_of, evaluate_float, evaluate_int
from grader.assignment.records import Part
from grader.core import precision
from grader.core.errors import UsageError
from grader.core.results import Diagnosis
from grader.runner.calls import Request

#: C++ type for each letter of the signatures that a runner reports. native/shim/gpt149_abi.h defines the letters.
CODE_NAMES = {
    "T": "torch::Tensor",
    "i": "int",
    "l": "int64_t",
    "f": "float",
    "d": "double",
    "b": "bool",
    "V": "std::vector<float>",
    "W": "std::vector<float> &",
    "v": "void",
    "?": "another type",
}
#: C++ types, as letters of CODE_NAMES, of an argument that gets its values from a column of the part's table. The keys
#: are the kinds of columns: "i" for whole numbers, "f" for floats.
CODES_OF_COLUMN = {"i": "il", "f": "fd"}
RETURN_CODES = {"tensor": "T", "number": "fd", "nothing": "v"}


def _accepted(argument: str, part: Part) -> str:
    """Return the C++ types that this argument may have, as letters of CODE_NAMES, the preferred type first."""
    if argument in part.inputs or argument in part.outputs or call_of(argument, "zeros") is not None:
        return "T"
    if argument == "tensor":
        # A function that returns nothing writes into its vector: it needs a reference, not a copy.
        return "W" if part.returns == "nothing" else "VW"
    if (column := call_of(argument, "column")) is not None:
        return CODES_OF_COLUMN[part.columns[int(column[0])]]
    return "fd" if call_of(argument, "float") is not None else "il"


def mismatch(part: Part, functions: Mapping[str, str]) -> Diagnosis | None:
    """Return a diagnosis if the part's function is not exported or has another signature; else None."""
    expected = prototype(part)
    signature = functions.get(part.function)
    if signature is None:
        near = [name for name in functions if name.lower() == part.function.lower()]
        hint = f" There is {near[0]}: mind upper and lower case." if near else ""
        return Diagnosis(
            "not_bound",
            f"{part.function} is not exported: PYBIND11_MODULE at the end of the file does not name it.{hint} "
            f'Add m.def("{part.function}", &{part.function}). The judge calls\n{expected}',
        )
    returned, _, codes = signature.rstrip(")").partition("(")
    wanted = [_accepted(argument, part) for argument in part.arguments]
    faults = []
    if returned not in RETURN_CODES[part.returns]:
        faults.append(f"it returns {CODE_NAMES.get(returned, returned)}")
    if len(codes) != len(wanted):
        faults.append(f"it takes {len(codes)} arguments, but {len(wanted)} are passed")
    else:
        faults += [
            f"argument {k + 1} is {CODE_NAMES.get(code, code)}, not {CODE_NAMES[accepted[0]]}"
            for k, (code, accepted) in enumerate(zip(codes, wanted, strict=True))
            if code not in accepted
        ]
    if not faults:
        return None
    return Diagnosis(
        "signature", f"{part.function} cannot be called: {'; '.join(faults)}. It should be\n{expected}"
    )


def prototype(part: Part) -> str:
    """Return the C++ declaration that the part's function should have."""
    if part.prototype:
        return part.prototype
    types = [CODE_NAMES[_accepted(argument, part)[0]] for argument in part.arguments]
    names = [name if name.isidentifier() else f"argument{k + 1}" for k, name in enumerate(part.arguments)]
    declared = ", ".join(f"{kind} {name}" for kind, name in zip(types, names, strict=True))
    return f"{CODE_NAMES[RETURN_CODES[part.returns][0]]} {part.function}({declared})"


def refuse_oversize(part: Part, shape: Mapping[str, int], memory_gib: float) -> None:
    """Raise UsageError if a tensor has 2^31 elements or more, or if two copies of all tensors exceed `memory_gib`.

    Kernels index elements by int, and may copy each tensor into a vector.
    """
    elements = [math.prod(sizes) for sizes in _tensors(part, shape)]
    need_gib = 2 * 4 * sum(elements) / (1 << 30)
    if max(elements) >= 1 << 31 or need_gib > memory_gib:
        sizes = " ".join(f"{name}={size}" for name, size in shape.items())
        raise UsageError(
            f"{part.id} with {sizes} needs about {need_gib:.1f} GiB of memory, and its process may take "
            f"{memory_gib:g} GiB; choose smaller sizes"
        )


def elements(part: Part, shape: Mapping[str, int]) -> int:
    """Return the total number of elements of a call's inputs, workspaces and outputs."""
    return sum(math.prod(sizes) for sizes in _tensors(part, shape))


def _tensors(part: Part, shape: Mapping[str, int]) -> list[list[int]]:
    """Return the shapes of a call's inputs, workspaces and outputs."""
    zeros = [dims_of for argument in part.arguments if (dims_of := call_of(argument, "zeros")) is not None]
    written = [output.dims for name, output in part.outputs.items() if name not in part.inputs]
    every = (*part.inputs.values(), *zeros, *written, part.output_dims)
    return [[evaluate_int(dim, shape) for dim in names] for names in every]


def used_sizes(shape: Mapping[str, int], *parts: Part) -> dict[str, int]:
    """Return the entries of `shape` that these parts' arguments and tensors use, and the entry "threads"."""
    named = {"threads"}
    for part in parts:
        written = [dim for output in part.outputs.values() for dim in output.dims]
        given = [dim for dims in part.inputs.values() for dim in dims]
        texts = " ".join((*part.arguments, *part.output_dims, *written, *given))
        named.update(re.findall(r"[A-Za-z_]\w*", texts))
    return {name: size for name, size in shape.items() if name in named}


def output_shape(part: Part, shape: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_int(dim, shape) for dim in part.output_dims)


def request(
    part: Part, shape: Mapping[str, int], inputs: Mapping[str, Any], *, reference: bool = False
) -> Request:
    """Return the request to call a part's function with the arrays `inputs`, given by name.

    `reference`: True to call the reference's function.
    """
    if part.table:
        return _table_request(part, shape, inputs)
    names = tensor_names(part, inputs)
    given = {**inputs, **{name: unwritten(part, name, shape) for name in names if name not in inputs}}
    arguments = [argument_of(argument, shape, names) for argument in part.arguments]
    return Request(
        function=part.reference if reference and part.reference else part.function,
        arguments=arguments,
        inputs=[given[name] for name in names],
        output_shape=output_shape(part, shape),
        keywords=part.keywords,
        echo=bool(part.outputs),
    )


def tensor_names(part: Part, inputs: Collection[str]) -> list[str]:
    """Return the names of the tensors in a call's request: first the arguments, then outputs that are not arguments."""
    return [
        name
        for name in dict.fromkeys((*part.arguments, *part.outputs))
        if name in inputs or name in part.outputs
    ]


def output_dtype(part: Part, name: str, shape: Mapping[str, int]) -> str:
    """Return the element type of an output, such as "float32"."""
    return dtype_in(part.outputs[name].dtype, shape)


def dtype_in(named: str, shape: Mapping[str, int]) -> str:
    """Return the element type for a type name in an assignment: the name itself, unless it is "like".

    "like" is the floating type with `shape["precision"]` significand bits, by default float32 (24 bits).
    """
    return precision.DTYPES[shape.get("precision", 24)] if named == "like" else named


def unwritten(part: Part, name: str, shape: Mapping[str, int]) -> Any:
    """Return an output's initial content: an array in which every element has the mark for "not written"."""
    sizes = tuple(evaluate_int(dim, shape) for dim in part.outputs[name].dims)
    return precision.unwritten(sizes, output_dtype(part, name, shape))


def dims_of(part: Part, name: str) -> tuple[str, ...]:
    """Return the dimensions of an input or output as expressions of the assignment, such as ("N", "d")."""
    return part.outputs[name].dims if name in part.outputs else part.inputs[name]


def _table_request(part: Part, shape: Mapping[str, int], inputs: Mapping[str, Any]) -> Request:
    """Return a request that calls the function once for each row of the part's table."""
    from grader.core.arrays import np

    columns = [inputs[name].reshape(len(inputs[name]), -1) for name in part.table]
    rows = np.concatenate(columns, 1, dtype=np.float64)
    arguments = [argument_of(argument, shape, ["tensor"]) for argument in part.arguments]
    return Request(part.function, arguments, [inputs["tensor"], rows], (rows.shape[0],), op="table")


def argument_of(argument: str, shape: Mapping[str, int], names: list[str]) -> dict[str, Any]:
    """Convert an argument of the assignment to the form that `Request` describes.

    The result is {"input": index in `names`}, {"column": index}, {"zeros": sizes} or {"value": number or bool}.
    """
    if argument in names:
        return {"input": names.index(argument)}
    if (column := call_of(argument, "column")) is not None:
        return {"column": int(column[0])}
    if (dims := call_of(argument, "zeros")) is not None:
        return {"zeros": [evaluate_int(dim, shape) for dim in dims]}
    if (number := call_of(argument, "float")) is not None:
        return {"value": evaluate_float(number[0], shape)}
    if (truth := call_of(argument, "bool")) is not None:
        return {"value": bool(evaluate_int(truth[0], shape))}
    return {"value": evaluate_int(argument, shape)}
