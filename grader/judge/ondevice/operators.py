"""Flags for work of libraries in place of a kernel of one's own, by four signs that do not depend on each other.

1. What wrote the outputs: every number has to come from a store of a launched kernel (`grader.run.provenance`).
2. Which operators of torch each call goes through (a dispatch mode).
3. Which kernels it launches on a GPU (torch's profiler).
4. What the source calls and names (read by a child process: `grader.build.readpython`).

All right calls count, public and hidden. The first three come out of the runner. A flag is for people, and changes no
points.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from grader.assignment.records import Part
from grader.base.results import Flag, ProfileRow
from grader.build.devicebuild import PythonBuild
from grader.build.records import Build
from grader.judge.bench import Bench
from grader.judge.integrity import symbols
from grader.judge.integrity.inspection import listed
from grader.run.calls import Origins

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
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())
MOST_ARITHMETIC = 64
MOST_COMPUTED = 8
"""Numbers that torch may compute in a call, as a multiple of the numbers in its inputs and outputs."""
FOREIGN_SHARE = 0.25
"""Of an output's numbers, counted as 16 bits each: a call into which as many of unknown origin enter may copy a result
that others made. Within the tolerances of attention a number says 7 bits and more."""
SMALL_TABLE = 64
"""Numbers that may enter any call: sizes and strides in a tensor, of which a small output may have fewer."""
COPIED = "as many numbers as an output has enter its kernels that neither inputs, torch nor kernels made"

Observed = tuple[str, bool, tuple[ProfileRow, ...], Origins | None]
"""One call: case, right or not, what it called, and where its outputs come from."""


def flags(bench: Bench, part: Part, calls: Sequence[Observed]) -> tuple[Flag, ...]:
    """Flags for right calls whose outputs no kernel wrote, and for work of libraries that is not allowed."""
    device, built = part.device, bench.build_of(part)
    assert device is not None
    observed = [(rows, origins) for _, is_right, rows, origins in calls if is_right]
    if device.language != "triton" or not observed:
        return ()
    allows_all = device.library_operators == ANY
    allowed = PLAIN | set(device.library_operators)
    found = []
    assert bench.device is not None
    # Without a GPU every call is observed. With one the timed calls are not, and the source is the only sign there.
    with_calls = bench.device.card is not None and not allows_all
    named = _in_source(built, part.function, allowed, with_calls=with_calls)
    if named:
        found.append(Flag("library_in_source", f"its source uses {listed(named)}", "review"))
    rows = [row for profile, _ in observed for row in profile]
    names = _of("op ", rows)
    if allows_all:
        ran = [name for name in names if ATTENTION.search(name)]
    else:
        ran = [name for name in names if name not in allowed and not _is_plain(name)]
        often = _of("op ", [row for row in rows if row.calls >= MOST_ARITHMETIC])
        ran += [f"{name} (many times)" for name in often if name in _ARITHMETIC - allowed]
        if not _ARITHMETIC & set(device.library_operators):
            ran += _computed([profile for profile, _ in observed])
    if ran:
        found.append(Flag("library_operators", f"torch computed during a call: {listed(ran)}", "review"))
    launched = [n for n in _of("kernel ", rows) if _LIBRARY.search(n) and not _MOVES.search(n)]
    if launched and (ran or not device.library_operators):
        found.append(
            Flag("library_kernels", f"a call launched kernels of libraries: {listed(launched)}", "review")
        )
    if chosen := next((row for row in rows if row.name.startswith("class ")), None):
        found.append(Flag("judged_class", _chosen(chosen, built)))
    needs_kernel = device.autograd is None or device.autograd.language != "pytorch"
    if needs_kernel and (said := without_kernel(part, calls, blind=bench.device.place.zygote.blind)):
        found.append(Flag("no_kernel", said, "review"))
    return tuple(found)


def without_kernel(part: Part, calls: Sequence[Observed], *, blind: bool) -> str:
    """Why right outputs may be no kernel's work, "" where launched kernels wrote them. `blind`: runners cannot see
    what kernels store, whatever file they run."""
    assert part.device is not None
    allows_torch = bool(part.device.library_operators)
    seen_in: dict[str, set[str]] = {}
    for case, _, _, origins in calls:
        for _, digest in origins.foreign if origins is not None else ():
            seen_in.setdefault(digest, set()).add(case)
    entered, every = 0, 0
    for _, is_right, _, origins in calls:
        if not is_right:
            continue
        if origins is None or len(origins.outputs) != len(part.outputs):
            if blind:
                continue
            return "a call was not observed: its file ended the observation"
        for name, (unknown, computed, numbers) in zip(part.outputs, origins.outputs, strict=True):
            # The softmax of one number is 1, and needs no kernel.
            if numbers == 1:
                continue
            if unknown or (computed and not allows_torch):
                source = "by code outside of torch and Triton" if unknown else "by torch"
                return f"{name} holds numbers that no launched kernel wrote: they were written {source}"
        # Content that is equal in calls on different inputs is a constant of the file.
        foreign = sum(count for count, digest in origins.foreign if not digest or len(seen_in[digest]) == 1)
        largest = max(count for _, _, count in origins.outputs)
        entered, every = entered + foreign, every + largest
        if foreign > SMALL_TABLE and foreign >= FOREIGN_SHARE * largest:
            return COPIED
    return COPIED if entered > SMALL_TABLE and entered >= FOREIGN_SHARE * every else ""


def _computed(calls: Iterable[Sequence[ProfileRow]]) -> list[str]:
    """Name what torch computes in a call where that is far more than its inputs and outputs hold."""
    for rows in calls:
        numbers = {row.name: row.calls for row in rows if row.name.startswith("numbers ")}
        computed, given = numbers.get("numbers computed", 0), numbers.get("numbers given", 0)
        if computed > MOST_COMPUTED * max(given, SMALL_TABLE):
            return [f"{computed} numbers elementwise, where the tensors of the call hold {given}"]
    return []


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
