"""The stand-in for torch (inside/plain/plain_torch.h) from outside: which headers it takes the place of, and what to
say of a file that needs more of torch than it has.

What would be the assignment's own work is absent on purpose: a study looks at kernels which do that work themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

from grader import diagnostics

#: Headers that a kernel file may include. They are empty: the stand-in is included in front of everything.
HEADERS = (
    *(f"torch/{name}.h" for name in ("all", "extension", "python", "script", "torch", "types", "utils")),
    *(f"pybind11/{name}.h" for name in ("functional", "numpy", "operators", "pybind11", "stl")),
    *(f"ATen/{name}.h" for name in ("ATen", "Context", "Device", "DeviceGuard", "Dispatch", "Functions")),
    *(f"ATen/{name}.h" for name in ("Parallel", "ParallelOpenMP", "Scalar", "ScalarType", "Tensor")),
    *(f"ATen/{name}.h" for name in ("TensorIndexing", "TensorOperators", "TensorUtils")),
    *(f"ATen/core/{name}.h" for name in ("Formatting", "Scalar", "Tensor", "TensorAccessor", "TensorBody")),
    *(
        f"ATen/ops/{name}.h"
        for name in ("arange", "empty", "empty_like", "empty_strided", "from_blob", "full")
    ),
    *(
        f"ATen/ops/{name}.h"
        for name in ("full_like", "ones", "ones_like", "rand", "randn", "zeros", "zeros_like")
    ),
    *(
        f"c10/core/{name}.h"
        for name in ("Device", "DeviceType", "Layout", "Scalar", "ScalarType", "TensorOptions")
    ),
    *(f"c10/util/{name}.h" for name in ("ArrayRef", "Exception")),
)
PLAIN = Path(__file__).resolve().parent / "inside" / "plain"
EMPTY = "// Empty on purpose: plain_torch.h has already been included in front of everything.\n"

#: What computes on whole tensors, so that nothing would be left to the kernel.
WORK = re.compile(
    r"operator.*|(?:"
    r"matmul|mm|bmm|mv|dot|vdot|inner|outer|einsum|tensordot|addmm|addmv|baddbmm|addbmm|chain_matmul|linear|conv[12]d"
    r"|softmax|log_softmax|sigmoid|tanh|relu|gelu|logsumexp|scaled_dot_product_attention|layer_norm"
    r"|exp2?|expm1|log2?|r?sqrt|reciprocal|pow|square|abs|neg|clamp"
    r"|sum|mean|prod|norm|std|var|cumsum|max|min|amax|amin|argmax|argmin|maximum|minimum|sort|topk"
    r"|add|sub|mul|div|multiply|divide|subtract|addcmul|addcdiv"
    r")_?"
)
#: A member, a name of torch's, an operator or a function of a tensor that is not there: gcc's words, then clang's.
ABSENT = re.compile(
    r"at::Tensor'(?: \{aka [^}]*\})? has no member named '(?P<gcc_member>\w+)'"
    r"|'(?P<gcc_name>\w+)' is not a member of '(?:at|torch|c10)\b"
    r"|'(?P<gcc_space>(?:at|torch|c10)::[\w:]+)' has not been declared"
    r"|no match for '(?P<gcc_operator>operator[^']+)' \(operand types? (?:are|is) [^\n]*\bat::Tensor"
    r"|no matching function for call to '(?P<gcc_function>\w+)\([^\n]*\bat::Tensor"
    r"|no member named '(?P<clang_member>\w+)' in (?:namespace )?'(?:at|torch|c10)\b"
    r"|invalid operands to binary expression \([^\n]*(?P<clang_operator>)\bat::Tensor"
)
UNDECLARED = re.compile(r"'(?P<gcc>\w+)' was not declared|undeclared identifier '(?P<clang>\w+)'")
TENSOR_INDEX = re.compile(r"deleted (?:function|constructor)[^\n]*TensorIndex")
HEADER = re.compile(r"fatal error: '?(?P<name>[\w./+-]+)'?(?:: No such file| file not found)")
ERROR = re.compile(
    r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?P<text>(?:fatal )?error: .*)$", re.MULTILINE
)
#: Of an error's first line: the rest is types.
MOST_TEXT = 2000
STUDENT_LINE = re.compile(r"\bmodule\.cpp:(?P<line>\d+)")


def write_headers(folder: Path) -> None:
    """Put the empty HEADERS below this folder."""
    for name in HEADERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(EMPTY)


def refusal(output: str, file_name: str) -> str | None:
    """Which line of a student's file uses what the stand-in does not have, as one line; None where the compiler's first
    error is of another kind. `output` is what it says of the file, which it knows as module.cpp."""
    error = ERROR.search(output)
    if error is None:
        return None
    line = error["line"]
    if error["file"].rpartition("/")[2] != "module.cpp":
        # An error inside of the stand-in's own templates: the student's line is the one that asked for them.
        asked = STUDENT_LINE.search(output)
        line = asked["line"] if asked else line
    reason = _reason(error["text"][:MOST_TEXT])
    return f"{diagnostics.harmless(file_name)}:{line} {reason}" if reason else None


def _reason(error: str) -> str | None:
    if header := HEADER.search(error):
        return f"includes {header['name']}, which the study's stand-in for torch does not have"
    if TENSOR_INDEX.search(error):
        return "indexes by a tensor or a bool, which the study's stand-in for torch does not do"
    absent, undeclared = ABSENT.search(error), UNDECLARED.search(error)
    if absent is not None:
        name = next(filter(None, absent.groupdict().values()), "operators")
    elif undeclared is not None:
        name = undeclared["gcc"] or undeclared["clang"]
        if WORK.fullmatch(name) is None:
            return None
    else:
        return None
    if WORK.fullmatch(name):
        return f"calls torch's {name}: a study cannot run it, as the kernel is to do this work itself"
    return f"uses torch's {name[:60]}, which the study's stand-in for torch does not have"
