"""Flags for work of libraries in place of a kernel of one's own, by four signs that do not depend on each other.

1. Whether the call's trace, its operators and launches, gives a right result on other inputs as well, in a process
   without the student's Python (`gpu.tracing`, `gpu.replay`).
2. Which operators of torch work on the call's numbers in that replay, and on how many; which outputs come out right
   without the kernels that compute (`gpu.torchwork`). Of calls without a replay: their operators (a dispatch mode).
3. Which kernels it launches on a GPU (torch's profiler).
4. What the source calls and names (read by a child process: `gpu.readpython`).

All right calls count, public and hidden. The second and third come out of the runner. A flag is for people, and
changes no points.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grader.assignment.expressions import evaluate_int
from grader.assignment.records import Case, Part
from grader.backends import binding
from grader.backends.gpu import devicecall
from grader.backends.gpu.devicebuild import PythonBuild
from grader.backends.gpu.devicecall import properties
from grader.backends.gpu.host import DeviceHost
from grader.backends.protocol import Checks, Observed
from grader.backends.records import Build
from grader.core.errors import KitError
from grader.core.results import Flag, ProfileRow
from grader.integrity import symbols
from grader.integrity.inspection import listed
from grader.runner.calls import Call, Request

#: What makes, moves, describes and compares tensors, besides what `symbols.is_plain_operator` knows. In a replay those
#: of them that compute count (`gpu.torchwork`).
_PLAIN = """
empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros zeros zeros_like full full_like ones
ones_like fill_ zero_ copy_ clone contiguous view reshape _unsafe_view flatten unflatten transpose t permute expand
squeeze unsqueeze select slice as_strided detach alias stride size data_ptr element_size numel dim to _to_copy type
float half bfloat16 dtype device requires_grad_ is_contiguous shape cuda cpu set_ lift_fresh unbind split chunk
save_for_backward mark_non_differentiable apply item narrow sym_size sym_stride is_cuda current_device synchronize
get_device_properties arange tensor scalar_tensor no_grad view_as swapaxes constant_pad_nd pad repeat roll gather
masked_select slice_scatter select_scatter masked_fill masked_fill_ tril triu tril_ triu_ atleast_1d atleast_2d
atleast_3d broadcast_to cat movedim moveaxis narrow ravel stack swapdims unfold
"""
PLAIN = frozenset(_PLAIN.split())
#: Kernels of torch's own that only write or copy, and those of libraries.
_MOVES = re.compile(
    r"FillFunctor|copy_kernel|CopyFunctor|Memcpy|Memset|copy_device_to_device|direct_copy", re.IGNORECASE
)
_LIBRARY = re.compile(
    r"at::native|at_cuda|cutlass|cublas|cudnn|nvjet|gemm|pytorch_flash|flash_fwd|flash_bwd|fmha|splitKreduce|cub::|thrust"
)


#: Errors of CUDA where other processes hold the card's memory.
NO_ROOM = re.compile(r"out of memory|_ALLOC_FAILED", re.IGNORECASE)
#: `library_operators` of a part in which torch may compute all but attention itself.
ANY = ("any",)
ATTENTION = re.compile(r"attention", re.IGNORECASE)
#: Operators that are plain one at a time; a call that makes as many of them computes with torch.
_ARITHMETIC_NAMES = "add add_ sub sub_ mul mul_ div div_ neg max min maximum minimum where abs"
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())
MOST_ARITHMETIC = 64
WEIGHTS = {"sum": 4}
"""Operators that count as plain ones in a replay, with a factor on their numbers."""
MOST_COMPUTED = 1
"""Numbers that plain operators may compute in a call, as a multiple of the numbers in its inputs and outputs."""
LEAST_GIVEN = 64
"""Numbers that any call counts as holding. All other operators may work on so many: a factor, offsets of a batch."""
LEAST_SHARE = 0.25
"""Of an output's numbers: if torch computes fewer, the output cannot be torch's."""
MOST_WITHOUT = 0.5
"""Of an output's numbers in all calls: how many may come out right without the kernels that compute."""
PATIENCE = 4
"""Factor on a call's time limit in a replay without kernels: it makes each launch twice."""
OTHER_SEED = 0x9E3779B9
"""Leads from a case's seed to that of the inputs that its trace is played on."""


@dataclass
class Replay:
    """Result of playing one call's trace on other inputs."""

    case: str
    request: Request
    rows: tuple[ProfileRow, ...]
    outputs: dict[str, Any]
    """Outputs by name, in their own types."""
    avoided: int
    """Numbers in the part's `avoids_tensor`."""

    def given(self) -> int:
        """Return how many numbers the call's inputs and outputs hold."""
        return sum(each.size for each in self.request.inputs)

    def numbers(self, allowed: Collection[str]) -> dict[str, int]:
        """Return on how many numbers each operator worked that is not allowed."""
        counted = {
            row.name.removeprefix("numbers "): row for row in self.rows if row.name.startswith("numbers ")
        }
        return {name: row.calls for name, row in counted.items() if name not in allowed}


def flags(
    checks: Checks, host: DeviceHost, calls: Sequence[Observed], *, play: bool = True
) -> tuple[Flag, ...]:
    """Flags for right calls whose outputs no kernel made, and for work of libraries that is not allowed.

    Without `play` no trace is played again: only what the calls themselves went through counts."""
    part = checks.part
    device, built = properties(part), host.build_of(part)
    right = {case.name: (case, rows, trace) for case, is_right, rows, trace in calls if is_right}
    if device.language != "triton" or not right:
        return ()
    allows_all = device.library_operators == ANY
    allowed = PLAIN | set(device.library_operators)
    found = []
    # Without a GPU every call is observed. With one the timed calls are not, and the source is the only sign there.
    named = _in_source(built, part.function, allowed, with_calls=not allows_all)
    if named and host.card is not None:
        found.append(Flag("library_in_source", f"its source uses {listed(named)}", "review"))
    rows, said = [row for _, rows, _ in right.values() for row in rows], ""
    played: list[Replay] = []
    if play and not host.place.zygote.blind:
        played, said = play_again(checks, host, [(case, trace) for case, _, trace in right.values()])
        rows += [row for each in played for row in each.rows]
    if allows_all:
        ran = [name for name in _of("op ", rows) if ATTENTION.search(name)]
    else:
        replayed = {each.case for each in played}
        unplayed = [each for name, (_, each, _) in right.items() if name not in replayed]
        ran = _ran(checks, host, unplayed, played, allowed)
    if ran:
        found.append(Flag("library_operators", f"torch computed during a call: {listed(ran)}", "review"))
    launched = [n for n in _of("kernel ", rows) if _LIBRARY.search(n) and not _MOVES.search(n)]
    if launched and (ran or not device.library_operators):
        found.append(
            Flag("library_kernels", f"a call launched kernels of libraries: {listed(launched)}", "review")
        )
    if chosen := next((row for row in rows if row.name.startswith("class ")), None):
        found.append(Flag("judged_class", _chosen(chosen, built)))
    if part.avoids_tensor and _holds_avoided(played):
        message = f"PyTorch makes tensors of {' x '.join(part.avoids_tensor)} numbers during its calls, and no tiles"
        found.append(Flag("tensor_not_avoided", message, "review"))
    if said:
        found.append(Flag("unseen_work" if in_torch(part) else "no_kernel", said, "review"))
    return tuple(found)


def _ran(
    checks: Checks,
    host: DeviceHost,
    unplayed: Sequence[Sequence[ProfileRow]],
    played: Sequence[Replay],
    allowed: Collection[str],
) -> list[str]:
    """Name what torch computed in calls: of those without a replay, operators alone are known."""
    device = properties(checks.part)
    names = [name for each in unplayed for name in _of("op ", each)]
    ran = [name for name in names if name not in allowed and not _is_plain(name)]
    ran += [name for each in played for name in _computing(each, allowed)]
    every = [row for each in (*unplayed, *(one.rows for one in played)) for row in each]
    often = _of("op ", [row for row in every if row.calls >= MOST_ARITHMETIC])
    ran += [f"{name} (many times)" for name in often if name in _ARITHMETIC and name not in allowed]
    if not in_torch(checks.part) and not _ARITHMETIC & set(device.library_operators):
        ran += [much for each in played for much in _much(each, device.library_operators)][:1]
        ran += _without_kernels(checks, host, played) if not ran else []
    return [*dict.fromkeys(ran)]


def in_torch(part: Part) -> bool:
    """Return True for a part that is asked for in PyTorch, without kernels."""
    form = properties(part).autograd
    return form is not None and form.language == "pytorch"


def play_again(
    checks: Checks, host: DeviceHost, calls: Sequence[tuple[Case, str]]
) -> tuple[list[Replay], str]:
    """Play the traces of right calls on other inputs of the same sizes.

    Returns the replays, and why one of them is not the work of the file, "" where all are.
    """
    part = checks.part
    played: list[Replay] = []
    with host.player(part, call_timeout_s=checks.call_timeout_s(checks.shape)) as session:
        for case, trace in calls:
            other = replace(case, seed=_other_seed(part, case))
            shape, inputs = checks.inputs_of(other)
            if all(bool((each == inputs[name]).all()) for name, each in checks.inputs_of(case)[1].items()):
                continue  # The distribution draws nothing.
            request = devicecall.request(part, shape, inputs)
            request = replace(request, echo=True, more={**request.more, "trace": trace, "ablate": False})
            call = session.call(request)
            avoided = math.prod(evaluate_int(dim, shape) for dim in part.avoids_tensor)
            played.append(Replay(case.name, request, call.profile, _written(part, inputs, call), avoided))
            if call.status != "ok":
                why = call.message or call.signal_name or call.status
                if NO_ROOM.search(why):
                    raise KitError(
                        f"the card has no memory left for a replay ({why}); grade fewer at a time (--jobs)"
                    )
                what = "operators" if in_torch(part) else "kernels"
                return played, f"its {what} could not be called apart from the file: {why}"
            launches = any(row.name.startswith("launch ") for row in call.profile)
            if launches and in_torch(part):
                return played, "a kernel was launched, where PyTorch alone is asked for"
            if part.outputs and not launches and not in_torch(part):
                if all(
                    math.prod(evaluate_int(dim, shape) for dim in output.dims) <= 1
                    for output in part.outputs.values()
                ):
                    continue  # The softmax of one number is 1, and needs no kernel.
                return played, "no kernel of the file was launched"
            if not checks.holds(case.name, shape, inputs, call):
                return played, (
                    "the operators and kernels that its call went through give a wrong result on other inputs: "
                    "numbers came in another way"
                )
    return played, ""


def _written(part: Part, inputs: Mapping[str, Any], call: Call) -> dict[str, Any]:
    """Return the part's outputs as the call left them."""
    echoes = dict(zip(binding.tensor_names(part, inputs), call.echoes, strict=False))
    return {name: echoes[name] for name in part.outputs if name in echoes}


def _without_kernels(checks: Checks, host: DeviceHost, played: Sequence[Replay]) -> list[str]:
    """Name an output that torch computed and kernels only moved: it comes out right where each number that a kernel
    computes is lost. Calls in which torch works on few numbers are not played again."""
    part = checks.part
    work = [sum(each.numbers(properties(part).library_operators).values()) for each in played]
    least = [min((out.size for out in each.outputs.values()), default=0) * LEAST_SHARE for each in played]
    if not any(done > max(LEAST_GIVEN, few) for done, few in zip(work, least, strict=True)):
        return []
    right, every = Counter[str](), Counter[str]()
    with host.player(part, call_timeout_s=PATIENCE * checks.call_timeout_s(checks.shape)) as session:
        for each, done, few in zip(played, work, least, strict=True):
            every.update({name: int(_counts(out).sum()) for name, out in each.outputs.items()})
            if done <= max(LEAST_GIVEN, few):
                continue
            call = session.call(replace(each.request, more={**each.request.more, "ablate": True}))
            if call.status != "ok":
                return ["an output, whose trace cannot be played without what kernels compute"]
            for name, found in _written(part, part.inputs, call).items():
                out = each.outputs[name]
                right[name] += int((_counts(out) & (out == found)).sum())
    return [
        f"{name}, which comes out the same without what kernels compute"
        for name in every
        if right[name] > MOST_WITHOUT * every[name]
    ]


def _counts(output: Any) -> Any:
    """Return which numbers of an output say something: 0 and NaN do not."""
    return (output != 0) & (output == output)


def _holds_avoided(played: Sequence[Replay]) -> bool:
    """Return True if every call, of two sizes at least, makes more than half of the tensor that it should do without.

    A tile of a fixed size is as large on small inputs, but not on larger ones.
    """
    largest = [next((row.calls for row in each.rows if row.name == "largest"), 0) for each in played]
    avoided = [each.avoided for each in played]
    return len({*avoided}) > 1 and all(2 * a > b for a, b in zip(largest, avoided, strict=True))


def _other_seed(part: Part, case: Case) -> int:
    """A seed that follows from those of the hidden cases, which a student cannot know."""
    known = repr([each.seed for each in part.cases] + [case.name]).encode()
    return (case.seed + OTHER_SEED + zlib.crc32(known)) % (1 << 31)


def _computing(played: Replay, allowed: Collection[str]) -> list[str]:
    """Name operators that do more than plain ones, on more numbers than any call may."""
    numbers = played.numbers(allowed)
    found = {name: count for name, count in numbers.items() if name not in WEIGHTS and not _is_plain(name)}
    return list(found) if sum(found.values()) > LEAST_GIVEN else []


def _much(played: Replay, allowed: Collection[str]) -> list[str]:
    """Name what plain operators compute in a call where that is more than its inputs and outputs hold."""
    numbers, given = played.numbers(allowed), played.given()
    total = sum(
        count * WEIGHTS.get(name, 1)
        for name, count in numbers.items()
        if name in {*WEIGHTS, *PLAIN} or _is_plain(name)
    )
    if total <= MOST_COMPUTED * max(given, LEAST_GIVEN):
        return []
    return [f"{total} numbers elementwise, where the tensors of the call hold {given}"]


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
