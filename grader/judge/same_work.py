"""Signs that a part does the work of another part: equal outputs, unused arguments, memory that it should avoid.

An assignment says with `differs_from` that a part sums in another order than an earlier part, and with `avoids_tensor`
that it does without a tensor. All flags are for people and change no points.

Without -ffast-math each order of summation rounds in its own way. Two orders agree in some elements by chance; two
copies of one loop agree in all. Of 756 pairs of an honest flash kernel and an honest naive one, 736 agreed in at most
38 % of the elements. The other 20 sum in the same order, and some of these are honest: a loop over rows of tiles that
adds each key to Oi, beside a naive kernel that divides last. So equal outputs are suspicious only of a function that
leaves the arguments of its own algorithm unused. Where both parts have the same arguments, the assignment says with
`differs_from` that the parts' formulas differ, not only the order of their sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grader.assignment.expressions import evaluate_int
from grader.assignment.records import Assignment, Part
from grader.core.quantities import size_text
from grader.core.results import Flag, Memory
from grader.judge import binding
from grader.judge.marking import Marker

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.source.landmarks import Body

SAME_SHARE = 0.6
"""Outputs that agree in so many elements are taken for the same work. Other orders of summation reached 0.38, one that
multiplies by a reciprocal instead of dividing 0.74."""
LEAST_USED = 2
"""A function that uses fewer of its own arguments does not do what they are for."""
LEAST_TENSOR_BYTES = 2 << 20
HELD_SHARE = 0.6
"""Of the avoided tensor, by which a peak exceeds the reference's. Honest kernels of part 3 and 4 reached 0.26."""
FLOAT_BYTES = 4
TYPE_WORDS = frozenset({"int", "Tensor", "long", "float", "double", "bool", "size_t", "int64_t", "const"})


def is_compared(assignment: Assignment, part: Part) -> bool:
    """Return True if the public outputs of the part are to be kept for a comparison."""
    return bool(part.differs_from) or any(each.differs_from == part.id for each in assignment.parts)


def output_flags(marker: Marker) -> Iterator[Flag]:
    """Compare a part with the one that it `differs_from`, if both were judged. Raises KitError when a reference
    fails."""
    part, bench = marker.part, marker.bench
    mine, theirs = (bench.outputs.get(name) for name in (part.id, part.differs_from or ""))
    if not mine or not theirs:
        return
    other = bench.assignment.part(part.differs_from or "")
    own = own_arguments(part, other)
    used = None if marker.body is None else used_arguments(marker.body, part, own)
    is_idle = used is None or len(used) < min(LEAST_USED, len(own))
    if used is not None and is_idle:
        yield Flag("workspace_unused", f"{part.function} uses {_used_text(used, own)} and {other.id} lacks")
    common = [name for name in mine if name in theirs and mine[name].shape == theirs[name].shape]
    if not common or _share([mine[name] for name in common], [theirs[name] for name in common]) < SAME_SHARE:
        return
    telling = _telling(marker, other, common)
    if not telling:
        return
    share = _share([mine[name] for name in telling], [theirs[name] for name in telling])
    if share < SAME_SHARE:
        return
    elements = "every element" if share == 1.0 else f"{share:.0%} of the elements"
    message = (
        f"{elements} of its output equals that of {other.id} to the last bit on inputs on which the references "
        f"differ: {', '.join(telling)}"
    )
    yield Flag(f"same_as_{other.id}", message, "review" if is_idle or not own else "note")


def memory_flags(marker: Marker, memory: Memory) -> Iterator[Flag]:
    """Flag a peak that holds the tensor that the part should do without.

    Only where that tensor is larger than all tensors of the call together: copies of these are honest.
    """
    part, shape = marker.part, marker.shape
    if not part.avoids_tensor or memory.peak_bytes is None or memory.reference_peak_bytes is None:
        return
    sizes = [evaluate_int(dim, shape) for dim in part.avoids_tensor]
    avoided_bytes = FLOAT_BYTES * math.prod(sizes)
    if avoided_bytes < max(LEAST_TENSOR_BYTES, FLOAT_BYTES * binding.elements(part, part.inputs, shape)):
        return
    excess_bytes = memory.peak_bytes - memory.reference_peak_bytes
    if memory.peak_bytes >= avoided_bytes and excess_bytes >= HELD_SHARE * avoided_bytes:
        message = (
            f"a call needs {size_text(memory.peak_bytes)}, {size_text(excess_bytes)} more than the reference: a "
            f"tensor of {' x '.join(map(str, sizes))} is {size_text(avoided_bytes)}"
        )
        yield Flag("tensor_not_avoided", message, "review")


# ---- arguments


def own_arguments(part: Part, other: Part) -> list[int]:
    """Positions of the arguments that the other part is not given."""
    return [k for k, argument in enumerate(part.arguments) if argument not in other.arguments]


def used_arguments(body: Body, part: Part, positions: Sequence[int]) -> list[str] | None:
    """Names of the parameters at these positions that the function uses beyond a copy; None where its parameters are
    not those of the part."""
    names = body.parameters
    if len(names) != len(part.arguments):
        return None
    # Names of parameters are unique: a word that occurs twice is the type of parameters without a name.
    counts, body = Counter(names), body.by_statements()
    named = [names[k] for k in positions if counts[names[k]] == 1 and names[k] not in TYPE_WORDS]
    return [name for name in named if body.reads([name])]


def _used_text(used: Sequence[str], own: Sequence[int]) -> str:
    which = f"{', '.join(used)} alone" if used else "none"
    return f"{which} of the {len(own)} arguments that it has"


# ---- outputs


def _share(some: Sequence[Array], others: Sequence[Array]) -> float:
    """Share of equal elements of all pairs of outputs."""
    equal = sum(int((one == other).sum()) for one, other in zip(some, others, strict=True))
    return equal / max(1, sum(one.size for one in some))


def _telling(marker: Marker, other: Part, names: Sequence[str]) -> list[str]:
    """Names of the cases on which the references of both parts differ, and that of this part with other tiles: in a
    single tile of all keys flash attention may sum as a naive kernel does."""
    found = []
    with marker.bench.reference(threads=marker.shape["threads"]) as session:
        for case in marker.part.cases:
            if case.name not in names:
                continue
            shape, inputs = marker.inputs_of(case)
            own_sizes = (
                binding.used_sizes(shape, marker.part).keys() - binding.used_sizes(shape, other).keys()
            )
            outputs = []
            for part, sizes in (
                (marker.part, shape),
                (other, shape),
                (marker.part, {**shape, **{name: 2 * shape[name] for name in own_sizes}}),
            )[: 3 if own_sizes else 2]:
                call = session.call(binding.request(part, sizes, inputs, reference=True))
                marker.refuse_failed_reference(call)
                outputs.append(call.output.copy())
            if all(_share(outputs[:1], [each]) < SAME_SHARE for each in outputs[1:]):
                found.append(case.name)
    return found
