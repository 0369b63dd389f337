"""Flags for GPU submissions in which a library does the work of a kernel. Four independent signs show this.

1. The call's trace (its operators and kernel launches) is replayed on other inputs, in a process without the student's
   Python code (`gpu.tracing`, `gpu.replay`). The result must be right there as well.
2. The replay shows how many numbers torch's operators compute, and which outputs stay right without the kernels
   (`gpu.torchwork`). For a call without a replay only the names of its operators are known.
3. Torch's profiler shows the kernels that a call launches on a GPU.
4. The source shows the functions that the code names (`gpu.readpython`).

The signs 1 to 3 are taken from all right calls, public and hidden. The student's runner reports sign 3, the traces and
the names of operators. Flags are for people and do not change points.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from grader.assignment.expressions import evaluate_int
from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Case, Part
from grader.backends import binding
from grader.backends.gpu import devicecall
from grader.backends.gpu.devicebuild import PythonBuild
from grader.backends.gpu.devicecall import properties
from grader.backends.gpu.host import NO_ROOM, PLAYER_TOTAL, DeviceHost, player_bytes
from grader.backends.protocol import Checks, Observed
from grader.backends.records import Build
from grader.core.errors import KitError
from grader.core.results import Flag, ProfileRow
from grader.integrity import symbols
from grader.integrity.inspection import listed
from grader.runner.calls import Call, Request
from grader.runner.session import Session

#: Operators that make, move, describe or compare tensors, in addition to `symbols.is_plain_operator`. They may be
#: called; in a replay the numbers that they compute are limited (`gpu.torchwork`).
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
#: Names of GPU kernels of torch that only write or copy, and names of kernels of libraries.
_MOVES = re.compile(
    r"FillFunctor|copy_kernel|CopyFunctor|Memcpy|Memset|copy_device_to_device|direct_copy", re.IGNORECASE
)
_LIBRARY = re.compile(
    r"at::native|at_cuda|cutlass|cublas|cudnn|nvjet|gemm|pytorch_flash|flash_fwd|flash_bwd|fmha|splitKreduce|cub::|thrust"
)


_UNITS = ("bytes", "KiB", "MiB", "GiB")
_SIZE = rf"(\d+(?:\.\d+)?) ({'|'.join(_UNITS)})"
ROOM = re.compile(rf"Tried to allocate {_SIZE}\b.{{1,200}}? of which {_SIZE} is free")
#: Value of a part's `library_operators` if torch may compute everything except attention as a whole.
ANY = ("any",)
ATTENTION = re.compile(r"attention", re.IGNORECASE)
#: Arithmetic operators that may be called, but fewer than MOST_ARITHMETIC times in a call.
_ARITHMETIC_NAMES = "add add_ sub sub_ mul mul_ div div_ neg max min maximum minimum where abs"
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())
MOST_ARITHMETIC = 64
WEIGHTS = {"sum": 4}
"""Further operators that torch may call in a replay, with a weight: the times that each computed number is counted."""
MOST_COMPUTED = 1
"""Limit on the numbers that plain operators compute, as a multiple of the numbers in the call's inputs and outputs."""
LEAST_GIVEN = 64
"""Torch may compute this many numbers in every call, for a scale factor or the offsets of a batch, say."""
LEAST_SHARE = 0.25
"""If torch computes less than this share of an output's numbers, it cannot have computed the output."""
MOST_WITHOUT = 0.5
"""If a larger share of an output's numbers is right without the kernels' results, torch has computed the output."""
OTHER_WAY = "the call obtained its numbers in another way"
PATIENCE = 2
"""Factor on the time limit of a replay without kernels' results, which launches each kernel twice."""
PLAYS = 2
"""Most replays of a trace. In the second one, an operator is not counted if its arguments did not change."""
OTHER_SEED = 0x9E3779B9
"""Number that is mixed into a case's seed to get the seed of the replay's inputs."""


@dataclass
class Replay:
    """Result of replaying one call's trace on other inputs."""

    case: str
    inputs: CaseInputs
    request: Request
    rows: tuple[ProfileRow, ...]
    outputs: dict[str, Any]
    """Outputs by name, in their stored types."""
    avoided: tuple[int, int]
    """Sizes of the tensor that the part must not make (`avoids_tensor`): for one matrix, for the whole batch."""

    def given(self) -> int:
        """Return the total number of elements in the call's inputs and outputs."""
        return sum(each.size for each in self.request.inputs)

    def holds_avoided(self) -> bool:
        """Return True if torch makes a matrix, or a batch of matrices, with over half of the elements in `avoided`."""
        rows = {row.name: row.calls for row in self.rows}
        sizes = (rows.get("largest", 0), rows.get("most", 0))
        return any(2 * size > avoided for size, avoided in zip(sizes, self.avoided, strict=True))

    def numbers(self, allowed: Collection[str]) -> dict[str, int]:
        """Return {operator: count of numbers that it computed} for the operators of torch that are not in `allowed`."""
        counted = {
            row.name.removeprefix("numbers "): row for row in self.rows if row.name.startswith("numbers ")
        }
        return {name: row.calls for name, row in counted.items() if name not in allowed}


def flags(
    checks: Checks, host: DeviceHost, calls: Sequence[Observed], *, play: bool = True
) -> tuple[Flag, ...]:
    """Return flags for forbidden work of libraries, and for right calls whose outputs no kernel computed.

    `play`: True to replay traces. If it is False, only observations of the judged calls and the source are used.
    """
    part = checks.part
    device, built = properties(part), host.build_of(part)
    right = {case.name: (case, rows, trace) for case, is_right, rows, trace in calls if is_right}
    if device.language != "triton" or not right:
        return ()
    allows_all = device.library_operators == ANY
    allowed = PLAIN | set(device.library_operators)
    found = []
    # On a GPU, timed calls are not observed: only the source shows their work. Without a GPU all calls are observed.
    named = _in_source(built, part.function, allowed, with_calls=not allows_all)
    if named and host.card is not None:
        found.append(
            Flag("library_in_source", f"the source of {part.function} uses {listed(named)}", "review")
        )
    rows = [row for _, rows, _ in right.values() for row in rows]
    played: list[Replay] = []
    of_replay: list[Flag] = []
    if play and not host.place.zygote.blind:
        played, of_replay = play_again(checks, host, [(case, trace) for case, _, trace in right.values()])
        if not all(is_right for _, is_right, _, _ in calls):
            # Some case is wrong, so the kernel has an error and may be right in other cases by chance. Then a wrong
            # replay does not prove that the call obtained its numbers in another way.
            of_replay = [
                replace(each, level="note") if OTHER_WAY in each.message else each for each in of_replay
            ]
        rows += [row for each in played for row in each.rows]
    if allows_all:
        # `rows` includes the operators of replays, whose names a student's code cannot falsify.
        ran = [name for name in _of("op ", rows) if ATTENTION.search(name)]
    else:
        replayed = {each.case for each in played}
        unplayed = [each for name, (_, each, _) in right.items() if name not in replayed]
        ran, open_ = _ran(checks, host, unplayed, played, allowed)
        of_replay += open_
    if ran:
        found.append(Flag("library_operators", f"torch operators ran in a call: {listed(ran)}", "review"))
    launched = [n for n in _of("kernel ", rows) if _LIBRARY.search(n) and not _MOVES.search(n)]
    if launched and (ran or not device.library_operators):
        found.append(
            Flag("library_kernels", f"a call launched library kernels: {listed(launched)}", "review")
        )
    if chosen := next((row for row in rows if row.name.startswith("class ")), None):
        found.append(Flag("judged_class", _chosen(chosen, built)))
    if part.avoids_tensor and _holds_avoided(played):
        size = " x ".join(part.avoids_tensor)
        message = f"PyTorch makes tensors of {size} numbers during the part's calls, in place of tiles"
        found.append(Flag("tensor_not_avoided", message, "review"))
    return (*found, *of_replay)


def _ran(
    checks: Checks,
    host: DeviceHost,
    unplayed: Sequence[Sequence[ProfileRow]],
    played: Sequence[Replay],
    allowed: Collection[str],
) -> tuple[list[str], list[Flag]]:
    """Return (texts about forbidden work of torch, notes about replays that the machine could not finish).

    `unplayed` are the profiles of calls without a replay: only the names of their operators are known.
    """
    device = properties(checks.part)
    names = [name for each in unplayed for name in _of("op ", each)]
    ran = [name for name in names if name not in allowed and not _is_plain(name)]
    ran += [name for each in played for name in _computing(each, allowed)]
    every = [row for each in (*unplayed, *(one.rows for one in played)) for row in each]
    ran += _often(every, allowed)
    if not _counts_numbers(checks.part):
        return [*dict.fromkeys(ran)], []
    ran += [much for each in played for much in _much(each, device.library_operators)][:1]
    if ran:
        return [*dict.fromkeys(ran)], []
    return _without_kernels(checks, host, played)


def _often(rows: Iterable[ProfileRow], allowed: Collection[str]) -> list[str]:
    """Return texts about arithmetic operators outside of `allowed` that are called MOST_ARITHMETIC times or more."""
    often = _of("op ", [row for row in rows if row.calls >= MOST_ARITHMETIC])
    return [f"{name} (many times)" for name in often if name in _ARITHMETIC and name not in allowed]


def _counts_numbers(part: Part) -> bool:
    """Return True if the part limits how many numbers torch may compute."""
    return not in_torch(part) and not _ARITHMETIC & set(properties(part).library_operators)


def in_torch(part: Part) -> bool:
    """Return True for a part that must be written in PyTorch, without kernels."""
    form = properties(part).autograd
    return form is not None and form.language == "pytorch"


def play_again(
    checks: Checks, host: DeviceHost, calls: Sequence[tuple[Case, str]]
) -> tuple[list[Replay], list[Flag]]:
    """Replay the traces of right calls on other inputs of the same sizes.

    Return (replays, flags). Stop with one flag if a replay shows that the file did not do the work, or did not finish.
    """
    part = checks.part
    played: list[Replay] = []
    most_s, used_s = PLAYER_TOTAL * checks.call_timeout_s(checks.shape), 0.0
    with _player(checks, host) as session:
        for case, trace in calls:
            replay, call = _played(checks, session, case, trace)
            used_s += call.wall_s if call.cpu_s is None else call.cpu_s
            if replay is None:
                continue
            if open_ := left_open(call):
                return played, [open_]
            played.append(replay)
            said = fault(checks, host, replay, call)
            if used_s > most_s:
                said = said or f"replaying its calls takes more than {most_s:.0f} s of processor time in all"
            if said:
                return played, [Flag("unseen_work" if in_torch(part) else "no_kernel", said, "review")]
    return played, []


def _player(checks: Checks, host: DeviceHost, patience: int = 1) -> AbstractContextManager[Session]:
    return host.player(checks.part, call_s=patience * checks.call_timeout_s(checks.shape))


def _played(checks: Checks, session: Session, case: Case, trace: str) -> tuple[Replay | None, Call]:
    """Replay a case's trace on other inputs and count torch's work. Return (the replay, its call).

    If torch does more work than allowed, replay the trace once more on new inputs. The replay is None if the case's
    distribution always gives the same inputs.
    """
    part = checks.part
    first, replay, call = checks.inputs_of(case), None, Call("ok")
    for turn in range(PLAYS):
        inputs = checks.inputs_of(replace(case, seed=_other_seed(part, case, turn)))
        if all(inputs.holds(name, each) for name, each in first.items()):
            break
        request = devicecall.request(part, inputs.shape, inputs)
        more = {"trace": trace, "ablate": False, "most_bytes": player_bytes(checks.assignment)}
        request = replace(request, echo=True, more={**request.more, **more})
        call = session.call(request)
        outputs = _written(part, inputs, call)
        replay = Replay(case.name, inputs, request, call.profile, outputs, _avoided(part, inputs.shape))
        if call.status != "ok" or not _is_suspect(part, replay):
            break
    return replay, call


def _is_suspect(part: Part, replay: Replay) -> bool:
    """Return True if torch does more work in a replay than a call may."""
    device = properties(part)
    if device.library_operators == ANY:
        return bool(part.avoids_tensor) and replay.holds_avoided()
    allowed = PLAIN | set(device.library_operators)
    much = _counts_numbers(part) and _much(replay, device.library_operators)
    return bool(_computing(replay, allowed) or _often(replay.rows, allowed) or much)


def left_open(call: Call) -> Flag | None:
    """Return a note if the machine ended a replay (it waited too long, or memory ran out); else None."""
    if not call.has_waited and call.signal_name != "SIGKILL":
        return None
    why = f"it waited for most of {call.wall_s:.0f} s" if call.has_waited else "the system ended it"
    return Flag(
        "replay_open",
        f"the machine was too busy to replay a call ({why}), so it is unknown if a kernel did the work. Grade this "
        "file again, with fewer files at a time (--jobs)",
    )


def fault(checks: Checks, host: DeviceHost, replay: Replay, call: Call) -> str:
    """Return a text with the evidence from a replay that the file did not do the work; "" without evidence.

    Raises KitError if the GPU lacks memory for the replay.
    """
    part = checks.part
    if call.status == "timeout":
        return f"a replay takes more than {call.cpu_s or call.wall_s:.0f} s of CPU time; the call itself took less"
    if call.status != "ok":
        why = call.message or call.signal_name or call.status
        if NO_ROOM.search(why) and host.card is not None and not _exceeds_its_limit(why):
            raise KitError(f"the GPU lacks memory for a replay ({why}); grade fewer files at a time (--jobs)")
        what = "operators" if in_torch(part) else "kernels"
        return f"the recorded {what} could not be replayed without the file's Python code: {why}"
    launches = any(row.name.startswith("launch ") for row in call.profile)
    if launches and in_torch(part):
        return "a kernel was launched, but this part must use PyTorch alone"
    if part.outputs and not launches and not in_torch(part):
        dims = (output.dims for output in part.outputs.values())
        if all(math.prod(evaluate_int(dim, replay.inputs.shape) for dim in each) <= 1 for each in dims):
            return ""  # outputs of one number may need no kernel: the softmax of one number is 1
        return "no kernel of the file was launched"
    if not checks.holds(replay.case, replay.inputs, call):
        return (
            f"the operators and kernels recorded in a call give a wrong result on other inputs: {OTHER_WAY}"
        )
    return ""


def _exceeds_its_limit(said: str) -> bool:
    """Return True if, by torch's message, an allocation exceeded the replay's limit while the GPU had enough memory."""
    found = ROOM.search(said)
    return found is not None and _bytes(*found.groups()[:2]) <= _bytes(*found.groups()[2:])


def _bytes(count: str, unit: str) -> float:
    return float(count) * 1024.0 ** _UNITS.index(unit)


def _avoided(part: Part, shape: Mapping[str, int]) -> tuple[int, int]:
    """Return the elements of the tensor that the part must not make (`avoids_tensor`): (in one matrix, in a batch).

    The batch has as many matrices as the largest output.
    """
    one = math.prod(evaluate_int(dim, shape) for dim in part.avoids_tensor)
    outputs = [[evaluate_int(dim, shape) for dim in binding.dims_of(part, name)] for name in part.outputs]
    return one, one * max((math.prod(dims[:-2]) for dims in outputs), default=1)


def _written(part: Part, inputs: Mapping[str, Any], call: Call) -> dict[str, Any]:
    """Return the part's outputs after the call, by name."""
    echoes = dict(zip(binding.tensor_names(part, inputs), call.echoes, strict=False))
    return {name: echoes[name] for name in part.outputs if name in echoes}


def _without_kernels(
    checks: Checks, host: DeviceHost, played: Sequence[Replay]
) -> tuple[list[str], list[Flag]]:
    """Return (texts about outputs that torch computed and kernels only moved, notes about unfinished replays).

    Such an output stays right if NaN replaces every number that a kernel computes. Calls are replayed in this way only
    if torch did enough work in them.
    """
    part = checks.part
    work = [sum(each.numbers(properties(part).library_operators).values()) for each in played]
    least = [min((out.size for out in each.outputs.values()), default=0) * LEAST_SHARE for each in played]
    if not any(done > max(LEAST_GIVEN, few) for done, few in zip(work, least, strict=True)):
        return [], []
    right, every = Counter[str](), Counter[str]()
    with _player(checks, host, PATIENCE) as session:
        for each, done, few in zip(played, work, least, strict=True):
            every.update({name: int(_counts(out).sum()) for name, out in each.outputs.items()})
            if done <= max(LEAST_GIVEN, few):
                continue
            call = session.call(replace(each.request, more={**each.request.more, "ablate": True}))
            if open_ := left_open(call):
                return [], [open_]
            if call.status != "ok":
                return ["an output (the call's trace cannot be replayed without the kernels' results)"], []
            for name, found in _written(part, part.inputs, call).items():
                out = each.outputs[name]
                right[name] += int((_counts(out) & (out == found)).sum())
    found = [
        f"{name} (it stays right without the kernels' results)"
        for name in every
        if right[name] > MOST_WITHOUT * every[name]
    ]
    return found, []


def _counts(output: Any) -> Any:
    """Return a bool mask of an output's elements that count as evidence: all except 0 and NaN."""
    return (output != 0) & (output == output)


def _holds_avoided(played: Sequence[Replay]) -> bool:
    """Return True if torch makes a tensor over half as large as the avoided tensor in every call, with several sizes.

    If all calls had the same size, a tile of fixed size could be as large as the avoided tensor.
    """
    return len({each.avoided for each in played}) > 1 and all(each.holds_avoided() for each in played)


def _other_seed(part: Part, case: Case, turn: int) -> int:
    """Return a seed for other inputs of a case, different for each `turn`.

    Students cannot know this seed, because it depends on the seeds of hidden cases.
    """
    known = repr([each.seed for each in part.cases] + [case.name] + [turn] * turn).encode()
    return (case.seed + OTHER_SEED + zlib.crc32(known)) % (1 << 31)


def _computing(played: Replay, allowed: Collection[str]) -> list[str]:
    """Return the operators that are neither plain nor allowed; [] if they compute at most LEAST_GIVEN numbers."""
    numbers = played.numbers(allowed)
    found = {name: count for name, count in numbers.items() if name not in WEIGHTS and not _is_plain(name)}
    return list(found) if sum(found.values()) > LEAST_GIVEN else []


def _much(played: Replay, allowed: Collection[str]) -> list[str]:
    """Return [text] if plain operators compute too many numbers; else [].

    The limit is MOST_COMPUTED times the number of elements in the call's tensors.
    """
    numbers, given = played.numbers(allowed), played.given()
    total = sum(
        count * WEIGHTS.get(name, 1)
        for name, count in numbers.items()
        if name in {*WEIGHTS, *PLAIN} or _is_plain(name)
    )
    if total <= MOST_COMPUTED * max(given, LEAST_GIVEN):
        return []
    return [f"elementwise operators on {total} numbers, although the tensors of the call hold only {given}"]


def _in_source(built: Build, function: str, allowed: Collection[str], *, with_calls: bool) -> list[str]:
    """Return names in the source of the judged function `function` that no kernel needs, each with its line.

    `with_calls`: True to also return functions of torch that compute and are not in `allowed`.
    """
    if not isinstance(built, PythonBuild):
        return []
    named = [name for entry, name in built.reaches if entry == function]
    calls = [name for entry, name in built.calls if entry == function and _last(name) not in allowed]
    return named + calls * with_calls


def _chosen(row: ProfileRow, built: Build) -> str:
    """Return the message that names the judged class, from the profile's row "class NAME".

    `row.calls` is 1 + the index of the class's file in `built.files`.
    """
    files = built.files if isinstance(built, PythonBuild) else ()
    file = f" in {files[row.calls - 1]}" if 0 < row.calls <= len(files) else ""
    name, _, several = row.name.removeprefix("class ").partition(" of ")
    fitting = f" of {several} classes that fit" if several else ""
    advice = "; to choose another, use --class NAME or CS336's adapter function" if several else ""
    return f"{name}{file}{fitting} was judged{advice}"


def _of(kind: str, rows: Iterable[ProfileRow]) -> list[str]:
    """Return the names of the rows that begin with the prefix `kind`, without this prefix and without repetitions."""
    return list(dict.fromkeys(row.name.removeprefix(kind) for row in rows if row.name.startswith(kind)))


def _is_plain(name: str) -> bool:
    """Return True for an operator that every part may call. `name` has no overload: "add", not "add.Tensor"."""
    return bool({name, name.lstrip("_")} & (symbols.PLAIN_OPERATORS | symbols.INNER_OPERATORS))


def _last(name: str) -> str:
    """Return the last part of a function's name: "matmul" for "torch.matmul (line 7)"."""
    return name.partition(" ")[0].rpartition(".")[2]
