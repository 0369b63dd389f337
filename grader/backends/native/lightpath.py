"""Decides if a failure of the light path can be shown as it is, or the real headers have to be tried first.

Compiling a faulty file against all of torch takes ten times as long as against the light header, and a student waits
for it at every forgotten semicolon. The light header declares a subset of what the real ones declare, with the same
meaning. So its verdict is final when nothing that it lacks can be what the file lacks:

- each name of torch, ATen, c10 or pybind11 that the file spells out, and each header of theirs, is in the light path;
- the first error is not about a word which the real headers contain: a function found through its arguments, a macro,
  a type of the standard library that torch happens to include.

In all other cases the full path decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from grader.source.cpptext import without_comments
from grader.source.diagnostics import LONGEST_LINE, undefined_name

#: Names after `torch::`, `at::` or `c10::` that gpt149_light.h declares completely. Only speed depends on this list.
TORCH_NAMES = frozenset(
    {
        "Tensor",
        "TensorOptions",
        "IntArrayRef",
        "ArrayRef",
        "Scalar",
        "ScalarType",
        "Device",
        "indexing",
        "zeros",
        "ones",
        "empty",
        "full",
        "arange",
        "rand",
        "randn",
        "zeros_like",
        "ones_like",
        "empty_like",
        "from_blob",
        "parallel_for",
        "get_num_threads",
        "get_thread_num",
        "kFloat",
        "kFloat32",
        "kFloat64",
        "kDouble",
        "kInt",
        "kInt32",
        "kInt64",
        "kLong",
        "kCPU",
        "kBool",
        "dtype",
        "Error",
    }
)
PYBIND_NAMES = frozenset(
    {
        "module",
        "module_",
        "arg",
        "doc",
        "call_guard",
        "gil_scoped_release",
        "gil_scoped_acquire",
        "return_value_policy",
        "literals",
        "kw_only",
        "pos_only",
    }
)
MACROS = frozenset({"TORCH_EXTENSION_NAME", "TORCH_CHECK", "PYBIND11_MODULE"})
HEADERS = frozenset(
    {
        "torch/extension.h",
        "torch/torch.h",
        "torch/all.h",
        "torch/types.h",
        "torch/python.h",
        "ATen/ATen.h",
        "ATen/Functions.h",
        "pybind11/pybind11.h",
        "pybind11/stl.h",
        "pybind11/numpy.h",
        "pybind11/operators.h",
        "pybind11/functional.h",
    }
)

QUALIFIED = re.compile(r"\b(torch|at|c10|caffe2|py|pybind11)\s*::\s*(\w+)")
FOREIGN_MACRO = re.compile(r"\b(?:TORCH|AT|C10|PYBIND11|CAFFE2|PY)_\w+")
INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"]((?:torch|ATen|c10|caffe2|pybind11)/[^>\"\n]+|Python\.h)[>\"]",
    re.MULTILINE,
)
#: What pybind11's module has besides bindings: `import`, say.
PYTHON_MODULE = re.compile(r"\b(?:py|pybind11)\s*::\s*module_?\s*::")
#: What a compiler says of a word that it does not know, or not in this place.
UNKNOWN = re.compile(
    r"not declared|undeclared|not a member|no member|does not name a type|unknown type|has not been declared|"
    r"no matching|not a class|not a template|incomplete type|no match for|no type named"
)
MISSING_FILE = re.compile(r"No such file|file not found")
ERROR = re.compile(r"^\S+?:\d+:(?:\d+:)?[ \t]+(?:fatal )?error: (.*)$", re.MULTILINE)
ASSEMBLER = re.compile(r"\S+?\.s:", re.IGNORECASE)
#: In a demangled name of torch's.
TORCH_SYMBOL = re.compile(r"\b(?:at|c10|torch|caffe2|pybind11)::|\bPy[A-Z_]")


def is_final(
    source: str, output: str, full_names: Callable[[], frozenset[str]], *, all_of_aten: bool = False
) -> bool:
    """Return True if the real headers would fail on `source` as the light ones did, with compiler output `output`.

    `all_of_aten` says that the file was compiled against torch/types.h: then names of tensor functions were all there.
    `full_names` gives every word of the real headers; it is costly and called only when all else is settled.
    """
    code = without_comments(source)
    if not all_of_aten and not _spells_only_light_names(code):
        return False
    if not set(FOREIGN_MACRO.findall(code)) <= MACROS or not set(INCLUDE.findall(source)) <= HEADERS:
        return False
    lines = [line[:LONGEST_LINE] for line in output.split("\n")]
    first = next(filter(None, map(ERROR.match, lines)), None)
    if first is None:
        if any(map(_is_of_assembler, lines)):
            return True
        undefined = [
            name for line in lines if "undefined reference" in line and (name := undefined_name(line))
        ]
        return bool(undefined) and not any(TORCH_SYMBOL.search(name) for name in undefined)
    message = first[1]
    if not UNKNOWN.search(message) or MISSING_FILE.search(message):
        return True
    spelt = set(re.findall(r"\w+", code))
    blamed = set(re.findall(r"'(?:\w+::)*(\w+)", message.partition("; did you mean")[0])) & spelt
    return bool(blamed) and not blamed & full_names()


def needs_python(source: str) -> bool:
    """Return True if the file names Python objects or pybind11's, which only torch/extension.h declares."""
    code = without_comments(source)
    spelt = {name for space, name in QUALIFIED.findall(code) if space in ("py", "pybind11")}
    if not spelt <= PYBIND_NAMES or PYTHON_MODULE.search(code):
        return True
    return re.search(r"\bPy(?:Object|[A-Z][A-Za-z]*_)\w*", code) is not None


def _is_of_assembler(line: str) -> bool:
    """Return True if it is an error of the assembler's, in a file that the compiler made."""
    place = ASSEMBLER.match(line)
    return place is not None and re.search(r"(?i)\berror:", line[place.end() :]) is not None


def _spells_only_light_names(code: str) -> bool:
    return all(
        name in (PYBIND_NAMES if space in ("py", "pybind11") else TORCH_NAMES)
        for space, name in QUALIFIED.findall(code)
    )
