"""The stand-in for torch's tensors (inside/plain): headers and objects to compile a student's file without torch, and
messages for a file that needs more of torch.

Theory of operation. The headers in inside/plain hold the functions that loops may call, and are precompiled. The
sources there hold all other functions, and are compiled once. Both are made for one set of flags (`prepare`) and
cached, so that builds are short. A pragma such as `#pragma GCC target` above the first #include must also apply to the
headers: gcc does not inline a header's function that was compiled with other options. So a file with such a pragma is
compiled without the precompiled header (`Prepared.commands`). The stand-in has no functions for the assignment's own
work (products, sums, exponentials of tensors), on purpose: a file cannot call them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.backends.native.compilers import (
    HEADER_TIMEOUT_S,
    SHIM,
    common_flags,
    run_limited_compiler,
    use_header,
)
from grader.backends.native.toolchain import Toolchain, cache_root, toolchain
from grader.core import objectcache
from grader.core.errors import KitError
from grader.core.harmless import harmless, one_line
from grader.source.cpptext import SPLICE, without_layout

PLAIN = Path(__file__).resolve().parent / "inside" / "plain"
INCLUDES = (f"-I{PLAIN}", f"-I{SHIM}")
HEADER, PRECOMPILED = "plain_torch.h", "plain_torch.h.gch"
SOURCE, OBJECT = PLAIN / "plain.cpp", "plain.o"
"""Source and object of the stand-in. The object is linked with every student's object."""
#: Headers of torch that a student's file may include. Each of them only includes the stand-in's header.
HEADERS = (
    *(f"torch/{name}.h" for name in ("all", "extension", "python", "script", "torch", "types", "utils")),
    *(f"pybind11/{name}.h" for name in ("functional", "numpy", "operators", "pybind11", "stl")),
    *(f"ATen/{name}.h" for name in ("ATen", "Dispatch", "Functions", "Parallel", "ParallelOpenMP")),
    *(f"ATen/{name}.h" for name in ("Tensor", "TensorAccessor", "TensorIndexing", "TensorUtils")),
    *(f"ATen/core/{name}.h" for name in ("Tensor", "TensorAccessor", "TensorBody")),
    *(f"ATen/ops/{name}.h" for name in ("arange", "empty", "from_blob", "full", "ones", "zeros")),
    *(f"ATen/ops/{name}_like.h" for name in ("empty", "full", "ones", "zeros")),
    *(f"c10/{name}.h" for name in ("core/ScalarType", "util/ArrayRef", "util/Exception", "util/irange")),
)
FORWARD = f"#ifndef GPT149_PLAIN_TORCH_H\n#include <{HEADER}>\n#endif\n"
#: Pragmas that affect how functions below them are compiled. They are searched for in text without comments and
#: superfluous blanks (`without_layout`).
STEERING = re.compile(
    r"^ ?(?:#|%:) ?pragma (?:GCC (?:target|optimize|push_options)|clang (?:attribute|optimize|fp))\b|\b_Pragma\b",
    re.MULTILINE,
)
#: The names in a `#pragma GCC target`, of which each is also the end of a compile flag, as avx2 is of `-mavx2`. Options
#: with a value, such as abi=ms, do not count, except arch and tune.
TARGETS = re.compile(
    r"^[ \t]*#[ \t]*pragma[ \t]+GCC[ \t]+target[ \t]*\(?[ \t]*\"(?P<names>(?:[a-z0-9._, -]|(?:arch|tune)=)+)\"",
    re.MULTILINE,
)
INCLUDE = re.compile(r"^ ?(?:#|%:) ?(?:include|import) ?[<\"](?P<name>[^>\"\n]*)", re.MULTILINE)
#: Constants of this module on which the content of compiled objects depends. The keys of cached objects include them.
RULES = (HEADERS, FORWARD, STEERING.pattern, INCLUDE.pattern)

#: Flags that affect only speed and debug information. Objects that differ only in these flags can be linked together.
TUNING = re.compile(r"-O\w*|-g\d?|-m(?:avx\w*|fma|prefer-vector-width=\w+)")

#: Names of functions, and of namespaces of functions, that compute on whole tensors and so would do the kernel's work.
WORK = re.compile(
    r"operator.*|(?:(?:at|torch|c10)::)+(?:nn|linalg|special|_ops|native|cpu|redispatch|compositeexplicitautograd)\b.*"
    r"|(?:(?:at|torch|c10|Tensor)::)*_{0,2}(?:(?:native|special|linalg|foreach|fused)_)?(?:"
    r"matmul|mm|bmm|mv|dot|vdot|inner|outer|ger|addr|einsum|tensordot|kron|addmm|addmv|baddbmm|addbmm|chain_matmul"
    r"|multi_dot|linear|bilinear|conv[123]d|convolution|softmax|log_softmax|softmin|sigmoid|logsigmoid|tanh|relu|gelu|silu"
    r"|leaky_relu|logsumexp|logaddexp|scaled_dot_product\w*|flash_attention\w*|efficient_attention\w*"
    r"|multi_head_attention\w*|layer_norm|batch_norm|group_norm|rms_norm|normalize|dropout|embedding"
    r"|exp2?|expm1|log|log2|log10|log1p|r?sqrt|reciprocal|pow|square|abs|neg|negative|sign|floor|ceil|round|trunc|clamp"
    r"|clamp_min|clamp_max|sin|cos|tan|erf|lerp|fmod|remainder"
    r"|sum|nansum|mean|prod|norm|std|var|std_mean|var_mean|cumsum|cumprod|max|min|amax|amin|aminmax|argmax|argmin"
    r"|maximum|minimum|fmax|fmin|median|sort|argsort|topk|all|any|equal|allclose|isclose|count_nonzero|nonzero"
    r"|add|sub|mul|div|multiply|divide|true_divide|subtract|addcmul|addcdiv|cat|concat|stack|hstack|vstack|where"
    r"|masked_fill|masked_select|gather|scatter|scatter_add|index_select|index_add|take|tril|triu|cdist|cross"
    r")(?:_?|_out|_outf|_backward)"
)
_SPACE = r"(?P<space>(?:at|torch|c10|pybind11|py)(?:::\w+)*)"
_ABSENT = (
    r"\b(?P<space>at::Tensor|TensorOptions|gpt149::Module)'(?: \{aka [^}]*\})? has no member named '(?P<name>\w+)'",
    rf"'(?P<name>\w+)' is not a member of '{_SPACE}'",
    rf"'(?P<name>\w+)' has not been declared in '{_SPACE}'",
    rf"'(?P<name>\w+)' in namespace '{_SPACE}' does not name",
    r"'(?P<name>(?:at|torch|c10|pybind11|py)::[\w:]+)' has not been declared",
    r"'(?P<name>\w+)' is not a namespace-name",
    r"no match for '(?P<name>operator[^']+)' \(operand types? (?:are|is) [^\n]*\bat::Tensor",
    r"no matching function for call to '(?P<name>\w+)\([^\n]*\bat::Tensor",
    # clang
    r"no member named '(?P<name>\w+)' in (?:namespace )?'"
    r"(?P<space>at::Tensor|at|torch|c10|pybind11|py|gpt149::Module)\b",
    r"invalid operands to binary expression \([^\n]*\bat::Tensor(?P<name>)",
)
#: Errors of gcc and clang for a missing member, torch name, tensor operator or tensor function. The searched text has
#: at most MOST_TEXT characters.
ABSENT = tuple(map(re.compile, _ABSENT))
#: Names of classes in messages, where they differ from the compiler's names.
SHORT = {"at::Tensor": "Tensor", "gpt149::Module": "Module"}
UNDECLARED = re.compile(
    r"'(?P<gcc>\w+)' (?:was not declared|does not name a type|has not been declared)"
    r"|(?:undeclared identifier|unknown type name) '(?P<clang>\w+)'"
)
#: Undeclared names that belong to Python or pybind11.
PYTHON = re.compile(r"_?Py[A-Z_]\w*|PYBIND11_\w+|pybind11|npy_\w+|THP\w+|THPVariable_\w+")
PYTHON_HEADER = re.compile(r"Python\.h|(?:pybind11|numpy)/.*|torch/csrc/.*[Pp]y.*")
USING = re.compile(r"\busing\s+namespace\s+(?:at|torch)\b")
TENSOR_INDEX = re.compile(r"deleted (?:function|constructor)[^\n]*TensorIndex")
OTHER_ELEMENTS = "kernels cannot use tensors of this type"
MISSING_HEADER = re.compile(r"fatal error: '?(?P<name>[\w./+-]+)'?(?:: No such file| file not found)")
#: An error with its place.
ERROR = re.compile(
    r"^(?P<file>[^\s:]+):(?P<line>\d{1,9}):(?:\d+:)? (?P<text>(?:fatal )?error: .*)$", re.MULTILINE
)
#: Limits on the characters that are read of the compiler's output, and of one error line.
MOST_OUTPUT, MOST_TEXT = 1 << 18, 2000
STUDENT_LINE = re.compile(r"\bmodule\.cpp:(?P<line>\d{1,9})\b")
MOST_NAME = 60

Kind = Literal["work", "absent", "python"]


@dataclass(frozen=True)
class Refusal:
    """A name of torch that a student's file uses and the stand-in lacks.

    `kind` is "work" for functions that compute on whole tensors, "python" for pybind11 and Python, "absent" for the
    rest of torch. `line` counts from 1. `text` is the message, one line that begins with the file's name.
    """

    line: int
    name: str
    kind: Kind
    text: str


# ---- building with the stand-in


@dataclass(frozen=True)
class Prepared:
    """The compiled stand-in for one set of flags. `folder` in the cache holds its object and precompiled header.

    A compiler in a sandbox needs this folder and the headers in PLAIN and SHIM. `cpu_s` is the CPU time of the
    compilation, 0.0 if it was cached.
    """

    tools: Toolchain
    flags: tuple[str, ...]
    folder: Path
    cpu_s: float

    @property
    def object(self) -> Path:
        """The stand-in's object, to be linked with the student's object."""
        return self.folder / OBJECT

    def command(self) -> tuple[str, ...]:
        """Return the command that compiles a student's file, without the source and the output mode (such as `-c`).

        Any macros may be added to gcc's command. For clang, the macros that `prepare` got must be added, and no others.
        """
        return self._command(use_header(self.tools, self.folder, HEADER))

    def commands(self, text: bytes) -> tuple[tuple[str, ...], ...]:
        """Return the commands to try in this order, until one succeeds, for a student's file with this text.

        If a pragma above the headers affects them, the first command does not use the precompiled header. The second
        one also has the targets of such a pragma as flags: gcc 13 compiles no std::vector below it otherwise
        ("target specific option mismatch"). Builds with sanitizers always use the precompiled header: it includes
        `plain_checked.h`, which must precede all headers.
        """
        if any(flag.startswith("-fsanitize") for flag in self.flags) or not steers_headers(text):
            return (self.command(),)
        own_order, targets = self._command(()), targets_of_headers(text)
        return (own_order, *([(*own_order, *targets)] if targets else []), self.command())

    def _command(self, forced: Sequence[str]) -> tuple[str, ...]:
        return (str(self.tools.compiler), *forced, *self.flags, f"-I{self.folder / 'include'}")


def steers_headers(text: bytes) -> bool:
    """Return True if a pragma that affects how functions are compiled precedes the first of HEADERS."""
    code = without_layout(SPLICE.sub("", text.decode("utf-8-sig", "replace")))
    return STEERING.search(_above_headers(code)) is not None


def targets_of_headers(text: bytes) -> tuple[str, ...]:
    """Return flags such as -mavx2 for each `#pragma GCC target` above the first of HEADERS."""
    found = TARGETS.finditer(_above_headers(text.decode("utf-8-sig", "replace")))
    return tuple(
        f"-m{name.strip()}" for pragma in found for name in pragma["names"].split(",") if name.strip()
    )


def _above_headers(code: str) -> str:
    return code[: next((found.start() for found in INCLUDE.finditer(code) if found["name"] in HEADERS), 0)]


def write_headers(folder: Path) -> None:
    """Write the files of HEADERS below this folder, with an #include of the stand-in's header as their content."""
    for name in HEADERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(FORWARD)


def compile_flags(tools: Toolchain, flags: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the compile flags for all code of one program. `flags` follow the published flags and override them."""
    return (*common_flags(tools), *flags, *INCLUDES)


def prepare(flags: Sequence[str] = (), macros: Sequence[str] = (), cache: Path | None = None) -> Prepared:
    """Return the stand-in compiled with these flags, from the cache if it is there.

    Without sanitizers, sets of flags that differ only in TUNING share the object file. `macros` are the student's, as
    `-DNAME=VALUE`: only clang's precompiled header depends on them. Raises KitError without a compiler, if a new entry
    cannot be written to the cache, and if the kit's own sources do not compile.
    """
    tools, root = toolchain(), cache or cache_root()
    wanted = (*compile_flags(tools, flags), *(macros if tools.family == "clang" else ()))
    # The key has the contents of the kit's folders, not their paths, so that several copies of the kit share entries.
    counting = [flag for flag in wanted if flag not in INCLUDES]
    digest = hashlib.sha256(repr((tools, counting, RULES)).encode())
    for path in (Path(__file__), *sorted(PLAIN.iterdir()), *sorted(SHIM.glob("*.h"))):
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    entry, cpu_s = root / "headers" / f"{digest.hexdigest()[:32]}.plain", 0.0
    if not objectcache.touch(entry):
        untuned = _untuned(flags)
        lent = None if untuned == tuple(flags) else prepare(untuned, macros, root)
        with objectcache.workplace(root) as place:
            made = place / "plain"
            write_headers(made / "include")
            compiler = (str(tools.compiler), *wanted)
            commands = [(*compiler, "-x", "c++-header", str(PLAIN / HEADER), "-o", str(made / PRECOMPILED))]
            # Compile the object without `-include HEADER`, which also defines the student's side of the C interface.
            if lent is None:
                commands.append((*compiler, "-c", str(SOURCE), "-o", str(made / OBJECT)))
            else:
                objectcache.second_name(str(lent.object), str(made / OBJECT))
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                cpu_s = sum(pool.map(lambda command: _compile(command, place), commands))
            cpu_s += lent.cpu_s if lent else 0.0
            objectcache.publish(made, entry)
            objectcache.prune(root)
    return Prepared(tools, wanted, entry, cpu_s)


def _untuned(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags for the stand-in's objects. Without sanitizers, TUNING is left out to share objects."""
    if any(flag.startswith("-fsanitize") for flag in flags):
        return tuple(flags)
    return tuple(flag for flag in flags if not TUNING.fullmatch(flag))


def _compile(command: Sequence[str], place: Path) -> float:
    """Compile a source of the kit. Return the CPU seconds. Raises KitError if it fails."""
    finished = run_limited_compiler(command, place, HEADER_TIMEOUT_S)
    if finished.returncode != 0 or finished.timed_out:
        said = one_line(finished.output.decode(errors="replace"), 300)
        raise KitError(f"{command[0]} cannot compile the kit's stand-in for torch's tensors: {said}")
    return finished.cpu_s


# ---- missing parts of torch


def refusal(output: str, file_name: str, source: str = "") -> Refusal | None:
    """Return a Refusal if the compiler's first error is a name of torch that the stand-in lacks; else None.

    `output` is the compiler's output, in which the file is called module.cpp. `source` is the file's text. Without it,
    an unqualified name such as `exp` is not recognized as torch's. Takes linear time: both texts are untrusted.
    """
    output = output[:MOST_OUTPUT]
    error = ERROR.search(output)
    if error is None:
        return None
    line = error["line"]
    if error["file"].rpartition("/")[2] != "module.cpp":
        # An error in the stand-in's templates: report the student's line that uses them.
        asked = STUDENT_LINE.search(output)
        line = asked["line"] if asked else line
    found = _refused(error["text"][:MOST_TEXT], int(line), source)
    if found is None:
        return None
    name, kind, reason = found
    return Refusal(int(line), name, kind, f"{harmless(file_name)}:{int(line)} {reason}")


def _refused(error: str, line: int, source: str) -> tuple[str, Kind, str] | None:
    """Return (name, kind, message) for an error about a missing name of torch; None for other errors."""
    if header := MISSING_HEADER.search(error):
        name = header["name"][:MOST_NAME]
        if PYTHON_HEADER.fullmatch(name):
            return name, "python", f"includes {name}: there is no Python where kernels run"
        operator = name.removeprefix("ATen/ops/").removesuffix(".h")
        if operator != name and WORK.fullmatch(operator):
            return (
                name,
                "work",
                f"includes {name}: that is torch's own work; write it yourself, with loops over elements",
            )
        is_torchs = name.startswith(("torch/", "ATen/", "c10/", "caffe2/"))
        return (name, "absent", f"includes {name}, which kernels cannot use") if is_torchs else None
    if TENSOR_INDEX.search(error):
        return "index", "absent", "uses a tensor or a bool as an index, which kernels cannot use"
    if OTHER_ELEMENTS in error:
        return "tensors of this type", "absent", "uses tensors of a type that kernels cannot use"
    name = _absent(error) or _undeclared(error, line, source)
    if name is None:
        return None
    name = name[:MOST_NAME]
    if PYTHON.fullmatch(name) or name.startswith(("pybind11::", "py::", "Module::")):
        return name, "python", f"uses {name}: there is no Python where kernels run"
    if WORK.fullmatch(name):
        reason = "that is torch's own work; write it yourself, with loops over elements"
        return name, "work", f"calls {'torch operators' if name == 'operators' else name}: {reason}"
    return name, "absent", f"uses torch's {name}, which kernels cannot use"


def _absent(error: str) -> str | None:
    """Return the qualified name that is missing in one of torch's namespaces or classes; None for other errors."""
    for pattern in ABSENT:
        if found := pattern.search(error):
            space = found.groupdict().get("space", "")
            return "::".join(filter(None, (SHORT.get(space, space), found["name"]))) or "operators"
    return None


def _undeclared(error: str, line: int, source: str) -> str | None:
    """Return the name in an error about an undeclared name without namespace, if Python or torch has it; else None.

    A function of WORK is taken to be torch's if it is called in a file with `using namespace at` or `torch`.
    """
    found = UNDECLARED.search(error)
    if found is None:
        return None
    name = found["gcc"] or found["clang"]
    if PYTHON.fullmatch(name):
        return name
    if WORK.fullmatch(name) is None or USING.search(source) is None:
        return None
    lines = source.split("\n")
    is_called = line <= len(lines) and re.search(rf"\b{name}\s*\(", lines[line - 1]) is not None
    return name if is_called else None
