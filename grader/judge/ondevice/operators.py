"""Flags for work of libraries in place of a kernel of one's own, by four signs that do not depend on each other.

1. Whether the call's trace, its operators and launches, gives a right result on other inputs as well, in a process
   without the student's Python (`gpu.tracing`, `gpu.replay`).
2. Which operators of torch each call goes through (a dispatch mode).
3. Which kernels it launches on a GPU (torch's profiler).
4. What the source calls and names (read by a child process: `gpu.readpython`).

All right calls count, public and hidden. The second and third come out of the runner. A flag is for people, and
changes no points.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from grader.assignment.records import Case, Part
from grader.backends.gpu.devicebuild import PythonBuild
from grader.backends.records import Build
from grader.core.results import Flag, ProfileRow
from grader.integrity import symbols
from grader.integrity.inspection import listed
from grader.judge import binding
from grader.judge.marking import Marker

#: What makes, moves and describes tensors, besides what `symbols.is_plain_operator` knows.
_PLAIN = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros zeros zeros_like full full_like ones
ones_like fill_ zero_ copy_ clone contiguous view reshape _unsafe_view flatten unflatten transpose t permute expand
squeeze unsqueeze select slice as_strided detach alias stride size data_ptr element_size numel dim to _to_copy type
float half bfloat16 dtype device requires_grad_ is_contiguous shape cuda cpu set_ lift_fresh unbind split chunk
save_for_backward mark_non_differentiable apply item narrow sym_size sym_stride is_cuda current_device synchronize
get_device_properties arange tensor scalar_tensor no_grad view_as swapaxes constant_pad_nd pad repeat roll gather
masked_select slice_scatter select_scatter masked_fill masked_fill_ tril triu tril_ triu_
"""
PLAIN = frozenset(_PLAIN.split())
#: Kernels of torch's own that only write or copy, and those of libraries.
_MOVES = re.compile(
    r"FillFunctor|copy_kernel|CopyFunctor|Memcpy|Memset|copy_device_to_device|direct_copy", re.IGNORECASE
)
_LIBRARY = re.compile(
    r"at::native|at_cuda|cutlass|cublas|cudnn|nvjet|gemm|pytorch_flash|flash_fwd|flash_bwd|fmha|splitKreduce|cub::|thrust"
)


#: `library_operators` of a part in which torch may compute all but attention itself.
ANY = ("any",)
ATTENTION = re.compile(r"attention", re.IGNORECASE)
#: Operators that are plain one at a time; a call that makes as many of them computes with torch.
_ARITHMETIC_NAMES = "add add_ sub sub_ mul mul_ div div_ neg max min maximum minimum where abs"
#: Operators that look numbers up or choose among them, so that a table could stand for a function.
_CHOOSING_NAMES = """
index gather index_select take masked_fill masked_fill_ amax amin eq ne lt le gt ge logical_and logical_or logical_not
logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor clamp clamp_ isnan isinf
"""
_CHOOSING = frozenset(_CHOOSING_NAMES.split())
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())
MOST_ARITHMETIC = 64
MOST_COMPUTED = 1
"""Numbers that torch may compute in a call, as a multiple of the numbers in its inputs and outputs."""
LEAST_GIVEN = 64
"""Numbers that any call counts as holding, in whose multiples torch may compute."""
OTHER_SEED = 0x9E3779B9
"""Leads from a case's seed to that of the inputs that its trace is played on."""

Observed = tuple[Case, bool, tuple[ProfileRow, ...], str]
"""One call: case, right or not, what it called, and its trace."""


def flags(marker: Marker, calls: Sequence[Observed], *, play: bool = True) -> tuple[Flag, ...]:
    """Flags for right calls whose outputs no kernel made, and for work of libraries that is not allowed.

    Without `play` no trace is played again: only what the calls themselves went through counts."""
    bench, part = marker.bench, marker.part
    device, built = part.device, bench.build_of(part)
    assert device is not None and bench.device is not None
    right = {case.name: (case, rows, trace) for case, is_right, rows, trace in calls if is_right}
    if device.language != "triton" or not right:
        return ()
    allows_all = device.library_operators == ANY
    allowed = PLAIN | set(device.library_operators)
    found = []
    # Without a GPU every call is observed. With one the timed calls are not, and the source is the only sign there.
    named = _in_source(built, part.function, allowed, with_calls=not allows_all)
    if named and bench.device.card is not None:
        found.append(Flag("library_in_source", f"its source uses {listed(named)}", "review"))
    rows, said, much = [row for _, rows, _ in right.values() for row in rows], "", []
    needs_kernel = device.autograd is None or device.autograd.language != "pytorch"
    if play and needs_kernel and not bench.device.place.zygote.blind:
        played, said = play_again(marker, [(case, trace) for case, _, trace in right.values()])
        rows += [row for profile, _ in played for row in profile]
        much = [told for profile, given in played for told in _computed(profile, given)]
    names = _of("op ", rows)
    if allows_all:
        ran = [name for name in names if ATTENTION.search(name)]
    else:
        ran = [name for name in names if name not in allowed and not _is_plain(name)]
        often = _of("op ", [row for row in rows if row.calls >= MOST_ARITHMETIC])
        ran += [f"{name} (many times)" for name in often if name in _ARITHMETIC - allowed]
        if not _ARITHMETIC & set(device.library_operators):
            ran += much[:1]
    if ran:
        found.append(Flag("library_operators", f"torch computed during a call: {listed(ran)}", "review"))
    launched = [n for n in _of("kernel ", rows) if _LIBRARY.search(n) and not _MOVES.search(n)]
    if launched and (ran or not device.library_operators):
        found.append(
            Flag("library_kernels", f"a call launched kernels of libraries: {listed(launched)}", "review")
        )
    if chosen := next((row for row in rows if row.name.startswith("class ")), None):
        found.append(Flag("judged_class", _chosen(chosen, built)))
    if said:
        found.append(Flag("no_kernel", said, "review"))
    return tuple(found)


def play_again(
    marker: Marker, calls: Sequence[tuple[Case, str]]
) -> tuple[list[tuple[tuple[ProfileRow, ...], int]], str]:
    """Play the traces of right calls on other inputs of the same sizes. Returns what each called and how many numbers
    it was given, and why one of them is no work of the file's kernels, "" where all are."""
    bench, part = marker.bench, marker.part
    assert bench.device is not None
    profiles: list[tuple[tuple[ProfileRow, ...], int]] = []
    with bench.device.player(part, call_timeout_s=bench.call_timeout_s(bench.shape)) as session:
        for case, trace in calls:
            other = replace(case, seed=_other_seed(part, case))
            shape, inputs = marker.inputs_of(other)
            if all(bool((each == inputs[name]).all()) for name, each in marker.inputs_of(case)[1].items()):
                continue  # The distribution draws nothing.
            request = binding.request(part, shape, inputs)
            call = session.call(replace(request, echo=True, more={**request.more, "trace": trace}))
            profiles.append((call.profile, sum(each.size for each in request.inputs)))
            if call.status != "ok":
                why = call.message or call.signal_name or call.status
                return profiles, f"its kernels could not be called apart from the file: {why}"
            if part.outputs and not any(row.name.startswith("launch ") for row in call.profile):
                if all(output.value.size <= 1 for output in marker.expected(inputs, shape).values()):
                    continue  # The softmax of one number is 1, and needs no kernel.
                return profiles, "no kernel of the file was launched"
            if not marker.mark(case.name, shape, inputs, call, explain=False).ok:
                return profiles, (
                    "the operators and kernels that its call went through give a wrong result on other inputs: "
                    "numbers came in another way"
                )
    return profiles, ""


def _other_seed(part: Part, case: Case) -> int:
    """A seed that follows from those of the hidden cases, which a student cannot know."""
    known = repr([each.seed for each in part.cases] + [case.name]).encode()
    return (case.seed + OTHER_SEED + zlib.crc32(known)) % (1 << 31)


def _computed(rows: Sequence[ProfileRow], given: int) -> list[str]:
    """Name what torch computes in a call where that is far more than its inputs and outputs hold."""
    numbers = [row.calls for row in rows if row.name.removeprefix("numbers ") in _ARITHMETIC | _CHOOSING]
    if sum(numbers) <= MOST_COMPUTED * max(given, LEAST_GIVEN):
        return []
    return [f"{sum(numbers)} numbers elementwise, where the tensors of the call hold {given}"]


def _in_source(built: Build, function: str, allowed: Collection[str], *, with_calls: bool) -> list[str]:
    if not isinstance(built, PythonBuild):
        return []
    named = [name for entry, name in built.reaches if entry == function]
    calls = [name for entry, name in built.calls if entry == function and _last(name) not in allowed]
    return named + calls * with_calls


def _chosen(row: ProfileRow, built: Build) -> str:
    """Return in words which class was judged; the row counts the files before its own."""
    files = built.files if isinstance(built, PythonBuild) else ()
    file = f" in {files[row.calls - 1]}" if 0 < row.calls <= len(files) else ""
    name, _, several = row.name.removeprefix("class ").partition(" of ")
    fitting = f" of {several} classes that fit" if several else ""
    advice = ": --class NAME, or an adapter, chooses another" if several else ""
    return f"{name}{file}{fitting} was judged{advice}"


def _of(kind: str, rows: Iterable[ProfileRow]) -> list[str]:
    return list(dict.fromkeys(row.name.removeprefix(kind) for row in rows if row.name.startswith(kind)))


def _is_plain(name: str) -> bool:
    """Return True for a plain operator's own name. Unlike a symbol of a library it has no overload behind it."""
    return bool({name, name.lstrip("_")} & (symbols.PLAIN_OPERATORS | symbols.INNER_OPERATORS))


def _last(name: str) -> str:
    """The function's own name: "matmul" of "torch.matmul (line 7)"."""
    return name.partition(" ")[0].rpartition(".")[2]
