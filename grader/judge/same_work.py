"""Signs that a part does the work of another part: equal outputs, unused arguments, memory that it should avoid.

In an assignment, the key `differs_from` says that a part sums in another order than earlier parts. The key
`avoids_tensor` names a tensor that a part must not allocate. All flags are for people and do not change points.

Without -ffast-math each order of summation rounds differently. Two orders agree in some elements by chance; two copies
of one loop agree in all. 756 pairs of an honest flash kernel and an honest naive kernel were compared. 736 of them
agreed in at most 38 % of the elements. The other 20 pairs sum in the same order. For example, a flash kernel that adds
key by key to Oi agrees with a naive kernel that divides last. So equal outputs are suspicious only if the function also
leaves the arguments of its own algorithm unused. If both parts have the same arguments,
`differs_from` says that their formulas differ, and not only the order of the sums.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from grader.assignment.expressions import evaluate_int, names_in
from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Assignment, Part
from grader.backends import binding
from grader.backends.kinds import kind_of
from grader.core.quantities import size_text
from grader.core.results import Flag
from grader.judge.marker import Marker
from grader.source import callgraph, delegation

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.judge.memory import Held
    from grader.runner.session import Session
    from grader.source.landmarks import Body

SAME_SHARE = 0.6
"""Outputs that agree in this share of their elements count as the same work. Outputs of different orders of summation
agreed in up to 0.38. A copy that multiplies by a reciprocal in place of a division agreed in 0.74."""
NEAR_ULPS = 2
"""If all elements of two outputs differ by at most this many units in the last place, the sums count as the same."""
LEAST_USED = 2
"""A part's own arguments are those that the other part lacks. A function must use this many of them, or all."""
LEAST_TENSOR_BYTES = 2 << 20
SUSPICIOUS_SHARE = 0.3
"""A kernel that holds this share of the avoided tensor (see HELD_SHARE) is also called at other sizes, which decide."""
HELD_SHARE = 0.6
"""The avoided tensor counts as held if a kernel's memory exceeds the reference's by this share of the tensor's bytes.
Honest kernels of parts 3 and 4 reached 0.26. With copies in double they reached 0.8, but only at the judged size. At
twice N such copies are twice as large, and the avoided tensor (N x N) is four times as large.
"""
FLOAT_BYTES = 4
LIBRARIES = ("at::", "torch::", "std::")
_CONSTANT = re.compile(r"\b(?:\d[\w.]*|true|false|[A-Za-z_]\w*::\w+)\b")
TYPE_WORDS = frozenset({"int", "Tensor", "long", "float", "double", "bool", "size_t", "int64_t", "const"})


def is_compared(assignment: Assignment, part: Part) -> bool:
    """Return True if the part's outputs must be stored, because they are compared with another part's outputs."""
    return bool(part.differs_from) or any(part.id in each.differs_from for each in assignment.parts)


def flags(marker: Marker, fresh: Callable[..., Session]) -> Iterator[Flag]:
    """Yield flags from the source, then from the outputs. `fresh` starts runners of the part.

    Of two flags with the same code, the second is left out if it is a note. Raises KitError if a reference fails.
    """
    known = set[str]()
    for flag in itertools.chain(source_flags(marker), output_flags(marker, fresh)):
        if flag.code not in known or flag.level == "review":
            known.add(flag.code)
            yield flag


def output_flags(marker: Marker, fresh: Callable[..., Session]) -> Iterator[Flag]:
    """Compare a part's outputs with those of parts in `differs_from`, and with its own outputs for larger tiles."""
    part, bench = marker.part, marker.bench
    judged = [name for name in (part.id, *part.differs_from) if bench.outputs.get(name)]
    if judged[:1] != [part.id]:
        return
    for name in judged[1:]:
        yield from _flags_beside(marker, bench.assignment.part(name), fresh, is_first=name == judged[1])


def _flags_beside(
    marker: Marker, other: Part, fresh: Callable[..., Session], *, is_first: bool
) -> Iterator[Flag]:
    """Yield a flag if the outputs of the part and of `other` agree although those of their references differ.

    If `is_first`, also flag unused arguments that `other` lacks, and an output that stays the same if tiles are larger.
    """
    part, outputs = marker.part, marker.bench.outputs
    mine, theirs = outputs[part.id], outputs[other.id]
    own = own_arguments(part, other)
    used = None if marker.body is None else used_arguments(marker.body, part, own)
    is_idle = used is None or len(used) < min(LEAST_USED, len(own))
    if is_first and used is not None and is_idle:
        yield Flag("workspace_unused", f"{part.function} uses {_used_text(used, own)} that {other.id} lacks")
    if is_first:
        yield from _tile_flags(marker, other, fresh, is_idle=used is not None and is_idle)
    common = [name for name in mine if name in theirs and mine[name].shape == theirs[name].shape]
    for share_of, least, words in (
        (_share, SAME_SHARE, "equals that of {} to the last bit"),
        (_near_share, 1.0, f"is within {NEAR_ULPS} units in the last place of that of {{}}"),
    ):
        if not common or share_of([mine[name] for name in common], [theirs[name] for name in common]) < least:
            continue
        distinguishing = _distinguishing(marker, other, common, share_of)
        if not distinguishing:
            continue
        share = share_of([mine[name] for name in distinguishing], [theirs[name] for name in distinguishing])
        if share < least:
            continue
        elements = "every element" if share == 1.0 else f"{share:.0%} of the elements"
        message = (
            f"{elements} of the output {words.format(other.id)}, on inputs on which the references of both parts have "
            f"different outputs: "
            f"{', '.join(distinguishing)}"
        )
        # Near equality is only a note: sums in double agree almost to the last bit in any order.
        is_strong = share_of is _share and (is_idle or not own)
        yield Flag(f"same_as_{other.id}", message, "review" if is_strong else "note")
        return


def _tile_flags(
    marker: Marker, other: Part, fresh: Callable[..., Session], *, is_idle: bool
) -> Iterator[Flag]:
    """Flag a part whose output stays the same to the last bit when its tiles are twice as large.

    The check uses cases with their own shape on which larger tiles change the reference's output. Some honest kernels
    add key by key in all tiles, so the flag is a note. `is_idle`: True if the part does not use the arguments that
    `other` lacks. Then the flag is for review.
    """
    part, changed = marker.part, list[str]()
    if not _own_sizes_doubled(part, other, marker.shape):
        return
    with contextlib.ExitStack() as stack:
        student = stack.enter_context(fresh(threads=marker.shape["threads"]))
        reference = stack.enter_context(marker.bench.reference(threads=marker.shape["threads"]))
        for case in part.cases:
            inputs = marker.inputs_of(case)
            doubled = _own_sizes_doubled(part, other, inputs.shape)
            if case.hidden or not case.shape:
                continue
            theirs, mine = [], []
            for given in (inputs, CaseInputs({**inputs.shape, **doubled}, inputs)):
                run = marker.call(reference, case.name, given, reference=True)
                marker.refuse_failed_reference(run.call)
                theirs.append(run.call.output.copy())
                run = marker.call(student, case.name, given)
                if not run.is_right:
                    return
                mine.append(run.call.output.copy())
            if _share(theirs[:1], theirs[1:]) < SAME_SHARE:
                if _share(mine[:1], mine[1:]) < 1.0:
                    return
                changed.append(case.name)
    if changed:
        message = (
            "with tiles twice as large, the reference's output changes, but this part's output stays the same to the "
            "last bit"
        )
        level: Literal["note", "review"] = "review" if is_idle else "note"
        yield Flag("same_in_all_tiles", f"{message}: {', '.join(changed)}", level)


def _own_sizes_doubled(part: Part, other: Part, shape: Mapping[str, int]) -> dict[str, int]:
    own = binding.used_sizes(shape, part).keys() - binding.used_sizes(shape, other).keys()
    return {name: 2 * shape[name] for name in own}


def memory_flags(part: Part, judged: Held, others: Iterable[Held] | None = None) -> Iterator[Flag]:
    """Flag a part whose memory could hold the tensor that the part should avoid (`Part.avoids_tensor`).

    `judged` is the memory of the judged call. At its sizes, honest copies of the inputs may be as large as the tensor.
    So calls at other sizes decide (`others`, see `sizes_beside`), which are made only if the judged call is suspicious.
    If `others` is None, the judged call alone decides.
    """
    if not part.avoids_tensor:
        return
    if judged.student_bytes is None:
        if judged.reference_bytes is not None:
            yield Flag("hides_from_view", "the memory of the kernel's process could not be read", "review")
        return
    if not _holds_tensor(part, judged, HELD_SHARE if others is None else SUSPICIOUS_SHARE):
        return
    seen = [judged]
    for held in others or ():
        if held.student_bytes is not None and not _holds_tensor(part, held):
            return
        seen.append(held)
    # Memory that is the same at every size is a fixed buffer: no flag, unless the judged call reused freed memory.
    is_constant = all(_excess_bytes(held) is not None for held in seen) and not _grows(part, seen[1:])
    if not is_constant or _gave_back(part, judged):
        yield Flag("tensor_not_avoided", "; ".join(_held_text(part, held) for held in seen), "review")


def sizes_beside(marker: Marker) -> list[dict[str, int]]:
    """Return the sizes of two further calls, to see if memory grows with the tensor of `avoids_tensor`.

    Both calls have the least batch size and number of heads (leading dimensions of the inputs that the tensor lacks).
    The first call also doubles the tensor's dimensions, or halves them if doubling exceeds the assignment's limits.
    """
    part, assignment, shape = marker.part, marker.bench.assignment, marker.shape
    named = {name for dim in part.avoids_tensor for name in names_in(dim)}
    leading = {name for dims in part.inputs.values() for dim in dims[:-1] for name in names_in(dim)}
    few = {name: assignment.minima.get(name, 1) for name in leading - named}
    may_grow = all(2 * shape[name] <= assignment.maxima.get(name, 2 * shape[name]) for name in named)
    other = {name: 2 * shape[name] if may_grow else max(1, shape[name] // 2) for name in named}
    return [{**few, **other}, few]


def _holds_tensor(part: Part, held: Held, share: float = HELD_SHARE) -> bool:
    """Return True if the student's memory in a call could hold the avoided tensor.

    It could if the call held at least the tensor's bytes, and exceeded the reference's memory by `share` of them.
    Returns False for a tensor below LEAST_TENSOR_BYTES or smaller than the call's tensors: copies would look the same.
    """
    excess_bytes, avoided_bytes = _excess_bytes(held), _avoided_bytes(part, held)
    if held.student_bytes is None or excess_bytes is None:
        return False
    if avoided_bytes < max(LEAST_TENSOR_BYTES, FLOAT_BYTES * binding.elements(part, held.shape)):
        return False
    return held.student_bytes >= avoided_bytes and excess_bytes >= share * avoided_bytes


def _held_text(part: Part, held: Held) -> str:
    sizes = " x ".join(str(evaluate_int(dim, held.shape)) for dim in part.avoids_tensor)
    if held.student_bytes is None or (excess_bytes := _excess_bytes(held)) is None:
        return f"a call in which the tensor of `avoids_tensor` is {sizes} returned no right result"
    return (
        f"a call holds {size_text(held.student_bytes)}, {size_text(excess_bytes)} more than the reference: the "
        f"tensor of `avoids_tensor`, {sizes}, takes {size_text(_avoided_bytes(part, held))}"
    )


def _grows(part: Part, seen: Sequence[Held]) -> bool:
    """Return True if the excess memory grows between these calls about as much as the avoided tensor does."""
    excesses = [_excess_bytes(held) or 0 for held in seen]
    avoided = [_avoided_bytes(part, held) for held in seen]
    return not seen or max(excesses) - min(excesses) >= HELD_SHARE * (max(avoided) - min(avoided))


def _gave_back(part: Part, held: Held) -> bool:
    """Return True if the process grew by less than its output's size: it reused memory that it had freed before."""
    output_bytes = FLOAT_BYTES * math.prod(binding.output_shape(part, held.shape)) if part.output_dims else 0
    return held.grown_bytes is not None and held.grown_bytes < output_bytes


def _excess_bytes(held: Held) -> int | None:
    """Return how much more memory the student's call used than the reference's; None if that is unknown."""
    if held.student_bytes is None or held.reference_bytes is None:
        return None
    return held.student_bytes - held.reference_bytes


def _avoided_bytes(part: Part, held: Held) -> int:
    return FLOAT_BYTES * math.prod(evaluate_int(dim, held.shape) for dim in part.avoids_tensor)


# ---- the source


def source_flags(marker: Marker) -> Iterator[Flag]:
    """Flag a part whose function leaves its work to functions that an earlier part's function calls as well.

    Such a part has no working loops of its own. Honest parts also share functions (reads and writes, the softmax of a
    row, the product of two tiles), but call them in their own loops. A shared function that gets different constants
    from the two parts may do different work for each: then the flag is a note. A copied function counts as shared.
    """
    part, source = marker.part, marker.source
    kind = kind_of(part)
    if kind.on_card or not kind.is_students or marker.bench.source.suffix == ".py":
        return
    graph = callgraph.of_source(source)
    mine = graph.reached(part.function)
    for other in _earlier_alike(marker.bench.assignment, part):
        theirs = graph.reached(other.function)
        if part.function not in mine or other.function not in theirs:
            continue
        own, others_own = (
            [a[name] for name in a if name not in b] for a, b in ((mine, theirs), (theirs, mine))
        )
        copies = {each.shape for each in theirs.values() if each.has_loop}
        shared = [each.name for each in mine.values() if each.name in theirs and each.has_loop]
        shared += [each.name for each in own if each.shape in copies]
        working = {each.name: each for each in own if each.shape not in copies}
        # Functions that have no loop and call shared functions count as shared, too.
        leading = [
            name
            for name in mine
            if name != part.function
            and not (name in working and working[name].has_loop)
            and not graph.reached(name).keys().isdisjoint(shared)
        ]
        if not shared or (
            any(each.has_loop for each in working.values())
            and (
                part.function not in working
                or delegation.works_itself(part.function, working, leading, _input_names(marker))
            )
        ):
            continue
        may_differ = _constants(own, shared) != _constants(others_own, shared) and other.function not in mine
        message = (
            f"only loops of {other.function}, or copies of them, do the work of {part.function}. They are in: "
            f"{', '.join(shared[:3])}"
        )
        yield Flag(f"same_as_{other.id}", message, "note" if may_differ else "review")
        return


def _input_names(marker: Marker) -> list[str]:
    """Return the student's names of the parameters that are inputs; [] if they are not known."""
    body, part = marker.body, marker.part
    if body is None or len(body.parameters) != len(part.arguments):
        return []
    return [name for name, given in zip(body.parameters, part.arguments, strict=True) if given in part.inputs]


def _earlier_alike(assignment: Assignment, part: Part) -> Iterator[Part]:
    """Yield the earlier parts that compute the same output, or that the part's `differs_from` names."""
    for other in assignment.parts:
        if other.command == part.command:
            return
        is_alike = (other.oracle, other.returns, other.output_dims) == (
            part.oracle,
            part.returns,
            part.output_dims,
        )
        if other.id in part.differs_from or (is_alike and not part.table and kind_of(other).is_students):
            yield other


def _constants(definitions: Iterable[callgraph.Definition], called: Iterable[str]) -> set[str]:
    """Return the numbers, true/false and qualified names in statements that name one of the `called` functions.

    Such constants may select different work in a function.
    """
    statements = (text for each in definitions for text in re.split("[;{}]", each.text))
    calls = (text for text in statements if not set(called).isdisjoint(re.findall(r"\w+", text)))
    found = {name for text in calls for name in _CONSTANT.findall(text)}
    return {name for name in found if not name.startswith(LIBRARIES)}


# ---- arguments


def own_arguments(part: Part, other: Part) -> list[int]:
    """Return the positions of the part's arguments that the other part does not have."""
    return [k for k, argument in enumerate(part.arguments) if argument not in other.arguments]


def used_arguments(body: Body, part: Part, positions: Sequence[int]) -> list[str] | None:
    """Return the names of the parameters at these positions that the function uses; a copy is not a use.

    Returns None if the function has another number of parameters than the part.
    """
    names = body.parameters
    if len(names) != len(part.arguments):
        return None
    # For a parameter without a name, `names` holds its type. So a name that occurs twice is a type.
    counts, body = Counter(names), body.by_statements()
    named = [names[k] for k in positions if counts[names[k]] == 1 and names[k] not in TYPE_WORDS]
    return [name for name in named if body.reads([name])]


def _used_text(used: Sequence[str], own: Sequence[int]) -> str:
    which = f"only {', '.join(used)}" if used else "none"
    return f"{which} of the {len(own)} arguments"


# ---- outputs


def _share(some: Sequence[Array], others: Sequence[Array]) -> float:
    """Return the share of equal elements in pairs of outputs."""
    equal = sum(int((one == other).sum()) for one, other in zip(some, others, strict=True))
    return equal / max(1, sum(one.size for one in some))


def _near_share(some: Sequence[Array], others: Sequence[Array]) -> float:
    """Return the share of elements in pairs of outputs that differ by at most NEAR_ULPS units in the last place."""
    from grader.core.arrays import np

    near = sum(
        int((abs(one - other) <= NEAR_ULPS * np.spacing(np.maximum(abs(one), abs(other)))).sum())
        for one, other in zip(some, others, strict=True)
    )
    return near / max(1, sum(one.size for one in some))


def _distinguishing(
    marker: Marker,
    other: Part,
    names: Sequence[str],
    share_of: Callable[[Sequence[Array], Sequence[Array]], float],
) -> list[str]:
    """Return the cases on which different algorithms give different outputs.

    There the two parts' references differ, and this part's reference differs with larger tiles. On other cases (all
    keys in one tile, say) even honest kernels of the two parts may agree.
    """
    found = []
    with marker.bench.reference(threads=marker.shape["threads"]) as session:
        for case in marker.part.cases:
            if case.name not in names:
                continue
            inputs = marker.inputs_of(case)
            doubled = _own_sizes_doubled(marker.part, other, inputs.shape)
            outputs = []
            calls = [(marker.part, inputs), (other, inputs)]
            if doubled:
                calls.append((marker.part, CaseInputs({**inputs.shape, **doubled}, inputs)))
            for part, given in calls:
                call = session.call(binding.request(part, given.shape, given, reference=True))
                marker.refuse_failed_reference(call)
                outputs.append(call.output.copy())
            if all(share_of(outputs[:1], [each]) < SAME_SHARE for each in outputs[1:]):
                found.append(case.name)
    return found
