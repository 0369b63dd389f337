"""Simple relations between a wrong output and the expected one: moved, copied, multiplied, not written,
imprecise.

These need no inputs, only the two outputs (B, H, N, d), so they come before the suspects, which compute.
"""

from __future__ import annotations

from collections.abc import Callable

from grader.base.arrays import Array, np

#: (code, words) of what was found.
Relation = tuple[str, str]

#: Errors this small everywhere look like rounding, not like another formula. Half precision gives 1e-3 to
#: 1e-2.
_ROUNDING = 0.02


def find_relation(expected: Array, actual: Array, tolerance: Array, wrong: Array) -> Relation | None:
    """The first relation that explains the output. All float64 of one shape, finite; `wrong` bool."""
    slack = 8 * tolerance
    for relation in (
        _not_written,
        _partly_not_written,
        _another_layout,
        _moved,
        _copied_heads,
        _constant_factor,
    ):
        found = relation(expected, actual, slack, wrong)
        if found is not None:
            return found
    return None


def find_weak_relation(expected: Array, actual: Array, tolerance: Array, wrong: Array) -> Relation | None:
    """Relations so general that they are worth saying only when no suspect explains the output."""
    return _row_factors(expected, actual, tolerance, wrong) or _imprecise(expected, actual, tolerance, wrong)


def agrees(wanted: Array, got: Array, slack: Array, wrong: Array) -> bool:
    """Whether nearly all elements of `got` are the wanted ones, those that are wrong as the output stands too."""
    close = abs(got - wanted) <= slack
    if not wrong.any():
        return False
    return bool(close.mean() > 0.97) and bool(close[wrong].mean() > 0.97)


def _not_written(expected: Array, actual: Array, slack: Array, wrong: Array) -> Relation | None:
    if actual.any():
        return None
    return (
        "not_written",
        "The output is all zeros: the part is not written yet, or its result is never stored in O.",
    )


def _partly_not_written(expected: Array, actual: Array, slack: Array, wrong: Array) -> Relation | None:
    if actual[wrong].any():
        return None
    return (
        "partly_not_written",
        "All wrong elements are 0: these places of O are never written, or written as zeros.",
    )


def _another_layout(expected: Array, actual: Array, slack: Array, wrong: Array) -> Relation | None:
    b, h, n, d = expected.shape
    layouts: list[tuple[str, Callable[[Array], Array]]] = [
        ("(B, N, H, d)", lambda t: t.reshape(b, n, h, d).swapaxes(1, 2)),
        ("(B, H, d, N)", lambda t: t.reshape(b, h, d, n).swapaxes(2, 3)),
        ("(H, B, N, d)", lambda t: t.reshape(h, b, n, d).swapaxes(0, 1)),
        ("(B, N, d, H)", lambda t: t.reshape(b, n, d, h).transpose(0, 3, 1, 2)),
    ]
    for name, arranged in layouts:
        if not np.array_equal(arranged(actual), actual) and agrees(
            expected, arranged(actual), slack, arranged(wrong)
        ):
            return "wrong_layout", (
                f"The values are right but stored as {name}; the output is (B, H, N, d), row-major. "
                "Check the order of the indices where O is written."
            )
    return None


def _moved(expected: Array, actual: Array, slack: Array, wrong: Array) -> Relation | None:
    for axis, name in ((2, "row"), (3, "column")):
        size = expected.shape[axis]
        if size < 3:
            continue
        for step in (1, -1):
            source, target = (slice(0, -1), slice(1, None))[::step]
            before, after = ((slice(None),) * axis + (which,) for which in (source, target))
            if agrees(expected[before], actual[after], slack[before], wrong[after]):
                neighbour = "the one before" if step == 1 else "the next one"
                return "shifted", (
                    f"Each {name} of the output holds what belongs into {neighbour}: an index is off by one."
                )
        if agrees(np.flip(expected, axis), actual, np.flip(slack, axis), wrong):
            return "shifted", f"The {name}s of the output are in reverse order."
    return None


def _copied_heads(expected: Array, actual: Array, slack: Array, wrong: Array) -> Relation | None:
    """Each head of the output is the expected output of some head, but not all of its own."""
    b, h = expected.shape[:2]
    heads, got, allowed, bad = (t.reshape(b * h, *t.shape[2:]) for t in (expected, actual, slack, wrong))
    count = b * h
    if count == 1 or count > 32:
        return None
    source: list[int] = []
    for g in range(count):
        fits = (
            [s for s in range(count) if agrees(heads[s], got[g], allowed[s], bad[g])] if bad[g].any() else [g]
        )
        if not fits:
            return None
        source.append(fits[0])
    if source == list(range(count)):
        return None
    if len(set(source)) == 1:
        return "heads_copied", (
            f"Every head holds the result of batch {source[0] // h}, head {source[0] % h}. "
            "Each (b, h) has inputs of its own; check that b and h are used wherever Q, K, V and O are indexed."
        )
    if source == [g // h * h for g in range(count)]:
        return "heads_copied", "Every head holds the result of head 0 of its batch: the index h is not used."
    if b > 1 and source == [g % h for g in range(count)]:
        return "batches_copied", "Every batch holds the result of batch 0: the index b is not used."
    if sorted(source) == list(range(count)):
        return (
            "heads_permuted",
            "The heads are right but in the wrong order: check how b and h enter the indices.",
        )
    pairs = [f"({g // h}, {g % h}) holds ({s // h}, {s % h})" for g, s in enumerate(source) if g != s]
    return "heads_copied", f"Heads (b, h) hold the results of others: {', '.join(pairs[:3])}."


def _constant_factor(expected: Array, actual: Array, slack: Array, wrong: Array) -> Relation | None:
    factor = float((actual * expected).sum() / np.square(expected).sum())
    if abs(factor - 1) < 1e-3 or abs(factor) < 1e-6:
        return None
    if not agrees(expected * factor, actual, slack * abs(factor), wrong):
        return None
    n, d = expected.shape[2:]
    names = {n: "N", 1 / n: "1/N", d: "d", 1 / d: "1/d", d**0.5: "sqrt(d)", d**-0.5: "1/sqrt(d)"}
    near = [name for value, name in names.items() if abs(factor / value - 1) < 1e-3]
    if abs(factor + 1) < 1e-3:
        return "negated", "The output has the wrong sign."
    words = f"Every value is {factor:.6g}" + (f" (that is {near[0]})" if near else "")
    return "constant_factor", f"{words} times what it should be."


def _row_factors(expected: Array, actual: Array, tolerance: Array, wrong: Array) -> Relation | None:
    """Each row is a multiple of what it should be: its weights do not sum to one."""
    if expected.shape[3] < 3:
        return None
    size = np.maximum(np.square(expected).sum(3, keepdims=True), 1e-30)
    factor = (actual * expected).sum(3, keepdims=True) / size
    slack = 8 * tolerance * np.maximum(abs(factor), 1) + 1e-5 * abs(actual)
    fits = abs(actual - factor * expected) <= slack
    if fits[wrong].mean() < 0.97:
        return None
    affected = factor.squeeze(3)[wrong.any(3)]
    if np.quantile(abs(affected - 1), 0.5, method="lower") < _ROUNDING:
        return None
    low, high = affected.min(), affected.max()
    return "not_normalised", (
        f"The rows of the softmax do not sum to 1: rows of the output are {low:.4g} to {high:.4g} times what they "
        "should be. Look at the sum that each row is divided by, and at where it starts from zero."
    )


def _imprecise(expected: Array, actual: Array, tolerance: Array, wrong: Array) -> Relation | None:
    error = abs(actual - expected)
    if error.max() > _ROUNDING * abs(expected).max():
        return None
    return "low_precision", (
        f"The values are close, with errors up to {error.max():.1e}, but float32 arithmetic gets within "
        f"{tolerance.max():.1e}. Look for half precision, an approximate exp(), or terms that are left out."
    )
