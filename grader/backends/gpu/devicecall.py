"""Requests for calls of a GPU part's function, and the check that a file has this function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grader.assignment.records import DeviceCall, Part
from grader.backends import binding
from grader.core import precision
from grader.core.results import Diagnosis
from grader.runner.calls import Request

#: Entry in a runner's list of functions if the file has a subclass of torch.autograd.Function (`gpu.kernelfiles`).
AUTOGRAD = "apply"


def properties(part: Part) -> DeviceCall:
    """Return the record of the properties that only GPU parts have."""
    assert part.device is not None
    return part.device


def mismatch(part: Part, functions: Mapping[str, str]) -> Diagnosis | None:
    """Return a diagnosis if the file lacks the part's function; else None. Parameters are not checked."""
    form = properties(part).autograd
    as_autograd = form is not None and AUTOGRAD in functions
    if part.function in functions or as_autograd:
        return None
    near = [name for name in functions if name.lower() == part.function.lower()]
    hint = f" There is {near[0]}: mind upper and lower case." if near else ""
    also = " (or a subclass of torch.autograd.Function)" if form else ""
    return Diagnosis(
        "not_bound",
        f"There is no function {part.function}{also} in the file.{hint} It is called as "
        f"{part.function}({', '.join(part.arguments)})",
    )


def as_autograd(part: Part, functions: Mapping[str, str]) -> bool:
    """Return True if a part is called through an autograd.Function, because `functions` lacks the part's function."""
    return properties(part).autograd is not None and part.function not in functions


def dtype_of(part: Part, name: str, shape: Mapping[str, int]) -> str:
    """Return the element type of a call's tensor, such as "float16"."""
    if name in part.outputs:
        return binding.output_dtype(part, name, shape)
    return binding.dtype_in(properties(part).dtypes.get(name, "like"), shape)


def device_call(part: Part, shape: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a request that describe a call of a GPU part.

    The fields are the names of all tensors, the arguments, the names of outputs and the indices of returned outputs.
    Another field describes the call of an autograd.Function.
    """
    device = properties(part)
    outputs, form = list(part.outputs), device.autograd
    names = binding.tensor_names(part, part.inputs)
    described: dict[str, Any] = {
        "names": names,
        "arguments": [binding.argument_of(argument, shape, names) for argument in part.arguments],
        "outputs": outputs,
        "returned": [outputs.index(name) for name in device.returned],
    }
    if form is not None:
        described["autograd"] = {
            "arguments": [part.arguments.index(name) for name in form.arguments],
            "gradient": None if form.gradient is None else part.arguments.index(form.gradient),
            "language": form.language,
            "class": form.name,
        }
    return described


def request(part: Part, shape: Mapping[str, int], inputs: Mapping[str, Any]) -> Request:
    called, layout = device_call(part, shape), shape.get("layout", 0)
    names = called["names"]
    dtypes = tuple(dtype_of(part, name, shape) for name in names)
    given = [
        binding.unwritten(part, name, shape)
        if name in part.outputs
        else precision.encoded(inputs[name], dtype)
        for name, dtype in zip(names, dtypes, strict=True)
    ]
    layouts = {name: layout for name in names if layout and name not in part.outputs}
    arguments = called.pop("arguments")
    return Request(
        part.function, arguments, given, echo=True, dtypes=dtypes, more={**called, "layouts": layouts}
    )
