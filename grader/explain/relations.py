"""Simple relations between a wrong output and the expected one: moved, multiplied, not written, imprecise.

A relation needs only these two outputs. It is tried before the suspects, which compute an output from the inputs.
A relation returns (diagnosis code, words for the student), or None if it does not hold. An oracle may add relations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from grader.core.arrays import Array, np
from grader.explain.deviation import Deviation
from grader.explain.explanation_errors import attempt

#: Beginning of the message for an imprecise output whose cause is unknown.
CLOSE = "The values are close"
#: Message for an output of zeros, and the reason to name if the source text does not show a more precise reason.
ALL_ZEROS = "The output is all zeros"
NOT_STORED = "the part is not written yet, or its result is never stored in {}"
#: Diagnosis code and message of a relation that holds.
Found = tuple[str, str]
Relation = Callable[[Deviation], "Found | None"]

#: A wrong output is called imprecise up to this error, relative to the largest expected value. Half precision gives
#: errors of 1e-3 to 1e-2.
ROUNDING = 0.02


def first_found(relations: tuple[Relation, ...], seen: Deviation) -> Found | None:
    """Return the code and words of the first relation that holds for the output; None if none holds."""
    for relation in relations:
        found = attempt(partial(relation, seen), None)
        if found is not None:
            return found
    return None


def not_written(seen: Deviation) -> Found | None:
    """Return code and message if all elements of the output are 0, else None."""
    if seen.actual.any():
        return None
    return "not_written", f"{ALL_ZEROS}: {NOT_STORED.format(seen.output)}."


def partly_not_written(seen: Deviation) -> Found | None:
    """Return code and message if all wrong elements are 0, else None."""
    if seen.actual[seen.wrong].any():
        return None
    return (
        "partly_not_written",
        f"All wrong elements are 0: these places of {seen.output} are never written, or written as zeros.",
    )


def moved(seen: Deviation) -> Found | None:
    """Return code and message if the output is shifted by one index or reversed along an ordered axis; else None."""
    expected, actual, slack, wrong = seen.expected, seen.actual, seen.slack, seen.wrong
    for axis, of_axis in enumerate(seen.axes):
        name, size = of_axis.name, expected.shape[axis]
        if size < 3 or of_axis.listed:
            continue
        for step in (1, -1):
            source, target = (slice(0, -1), slice(1, None))[::step]
            before, after = ((slice(None),) * axis + (which,) for which in (source, target))
            if seen.agrees(expected[before], actual[after], slack[before], wrong[after]):
                neighbour = "before" if step == 1 else "after"
                return "shifted", (
                    f"Each {name} of the output has the values of the {name} {neighbour} it: an index is off by one."
                )
        if seen.agrees(np.flip(expected, axis), actual, np.flip(slack, axis), wrong):
            return "shifted", f"The {name}s of the output are in reverse order."
    return None


#: `copied` skips an axis with over _MOST_LOOKED_UP wrong indices, and first compares _SAMPLED elements of each index.
_MOST_LOOKED_UP, _SAMPLED = 256, 16


def copied(seen: Deviation) -> Found | None:
    """Return code and message if each wrong row i holds the right values of row i - k, with one k for all; else None.

    "Row" stands for the elements with one index along any axis. k may be negative. The code ends in "_copied", and the
    message names k. An axis is skipped if one, more than _MOST_LOOKED_UP or all of its indices are wrong.
    """
    for at, axis in enumerate(seen.axes):
        expected, actual, slack, wrong = (
            np.moveaxis(t, at, 0).reshape(t.shape[at], -1)
            for t in (seen.expected, seen.actual, seen.slack, seen.wrong)
        )
        hit = np.flatnonzero(wrong.any(1))
        if axis.listed or len(hit) == len(expected) or not 1 < len(hit) <= _MOST_LOOKED_UP:
            continue
        some = np.linspace(0, expected.shape[1] - 1, min(_SAMPLED, expected.shape[1])).astype(int)
        same = (abs(actual[hit][:, None, some] - expected[:, some]) <= slack[:, some]).all(2)
        source = same.argmax(1)
        steps = np.unique(hit - source)
        # Step 0: rows that are wrong by little, because `slack` is wider than the tolerance.
        if (same.sum(1) != 1).any() or len(steps) != 1 or not steps[0]:
            continue
        if not seen.agrees(expected[source], actual[hit], slack[source], wrong[hit]):
            continue
        step = int(steps[0])
        other = f"{axis.letter} {'-' if step > 0 else '+'} {abs(step)}"
        return f"{axis.plural}_copied", (
            f"Each wrong {axis.name} {axis.letter}, from {hit[0]} to {hit[-1]}, holds the right values of {axis.name} "
            f"{other}: an index lacks the beginning of its tile, or another offset of {abs(step)}."
        )
    return None


def transposed(seen: Deviation) -> Found | None:
    """Return code and message if the output is stored with its last two axes exchanged; else None."""
    if seen.expected.ndim < 2 or min(seen.expected.shape[-2:]) < 2:
        return None
    rows, columns = seen.expected.shape[-2:]

    def arranged(t: np.ndarray) -> np.ndarray:
        return t.reshape(*t.shape[:-2], columns, rows).swapaxes(-1, -2)

    if not seen.agrees(seen.expected, arranged(seen.actual), seen.slack, arranged(seen.wrong)):
        return None
    return "wrong_layout", (
        "The values are right but stored with rows and columns exchanged. Check the order of the indices where "
        f"{seen.output} is written."
    )


def constant_factor(seen: Deviation) -> Found | None:
    """Return code and message if all elements are the right values times one factor, not 0 or 1; else None."""
    expected, actual = seen.expected, seen.actual
    if np.count_nonzero(expected) < 2:
        return None  # a single number is a multiple of any other number
    square = np.square(expected).sum()
    factor = float((actual * expected).sum() / square) if square else 1.0
    if abs(factor - 1) < 1e-3 or abs(factor) < 1e-6:
        return None
    if not seen.agrees(expected * factor, actual, seen.slack * abs(factor)):
        return None
    names: dict[float, str] = {}
    own = [axis.size for axis in seen.axes if axis.size and not axis.listed]
    # If no axis of the output has the length of a size, try all sizes as the factor.
    for size in dict.fromkeys(
        own or [name for name in seen.sizes if name != "threads" and seen.sizes[name] > 2]
    ):
        n = seen.sizes[size]
        names |= {n: size, 1 / n: f"1/{size}", n**0.5: f"sqrt({size})", n**-0.5: f"1/sqrt({size})"}
    near = [name for value, name in names.items() if abs(factor / value - 1) < 1e-3]
    if abs(factor + 1) < 1e-3:
        return "negated", "The output has the wrong sign."
    words = f"Every value is {factor:.6g}" + (f" (that is {near[0]})" if near else "")
    return "constant_factor", f"{words} times the right value."


def row_factors(seen: Deviation) -> Found | None:
    """Return code and message if each wrong row is a multiple of the right row, as after a division by a wrong sum.

    Returns None otherwise.
    """
    expected, actual = seen.expected, seen.actual
    if expected.ndim < 2 or expected.shape[-1] < 3:
        return None
    squares = np.maximum(np.square(expected).sum(-1, keepdims=True), 1e-300)
    factor = (actual * expected).sum(-1, keepdims=True) / squares
    fits = abs(actual - factor * expected) <= seen.slack * np.maximum(abs(factor), 1) + 1e-5 * abs(actual)
    if not fits[seen.wrong].mean() > 0.97:
        return None
    wrong = factor[..., 0][seen.wrong.any(-1)]
    if np.quantile(abs(wrong - 1), 0.5, method="lower") < ROUNDING:
        return None
    # A division by a sum never gives a row of zeros.
    cause = ", as if each was divided by a wrong sum" if wrong.min() > 0 else ""
    return (
        "not_normalised",
        f"The wrong rows are {wrong.min():.4g} to {wrong.max():.4g} times the right ones{cause}.",
    )


def _is_half(values: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16).astype(np.float64) == values).all())


def _is_bfloat16(values: Array) -> bool:
    return not (values.astype(np.float32).view(np.uint32) & 0xFFFF).any()


_NARROW = ((_is_half, "half precision (float16)"), (_is_bfloat16, "bfloat16"))


def imprecise(seen: Deviation) -> Found | None:
    """Return code and message if all errors are small, else None. The message names the rounding, if it is known."""
    error = abs(seen.actual - seen.expected)
    # Without a tolerance, the right result is exact (a count or a copy): an error is never rounding.
    if error.max() > ROUNDING * abs(seen.expected).max() or not seen.tolerance.any():
        return None
    for kind, precision in _NARROW:
        if kind(seen.actual):
            return "low_precision", (
                f"Every value of {seen.output} is a number of {precision}: somewhere results are stored in this type. "
                f"Errors are up to {error.max():.1e}; float32 gets within {seen.tolerance.max():.1e}."
            )
    for digits in range(1, 6):
        steps = seen.actual * 10.0**digits
        if abs(steps - np.round(steps)).max() < 1e-3 and error.max() <= 10.0**-digits:
            return "low_precision", (
                f"Every value of {seen.output} is a multiple of {10.0**-digits:g}: results are rounded to {digits} "
                "decimals."
            )
    worst = np.unravel_index(int((error / np.maximum(seen.tolerance, 1e-300)).argmax()), error.shape)
    return "low_precision", (
        f"{CLOSE}, with errors up to {error[worst]:.1e}; float32 arithmetic gets within "
        f"{seen.tolerance[worst]:.1e}."
    )
