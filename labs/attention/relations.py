"""Simple relations between a wrong output (B, H, N, d) and the expected one that only heads and softmax have."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.judge.diagnosis.deviation import Deviation
from grader.judge.diagnosis.relations import ROUNDING, Found


def another_layout(seen: Deviation) -> Found | None:
    b, h, n, d = seen.expected.shape
    actual, wrong = seen.actual, seen.wrong
    layouts: list[tuple[str, Callable[[Array], Array]]] = [
        ("(B, N, H, d)", lambda t: t.reshape(b, n, h, d).swapaxes(1, 2)),
        ("(B, H, d, N)", lambda t: t.reshape(b, h, d, n).swapaxes(2, 3)),
        ("(H, B, N, d)", lambda t: t.reshape(h, b, n, d).swapaxes(0, 1)),
        ("(B, N, d, H)", lambda t: t.reshape(b, n, d, h).transpose(0, 3, 1, 2)),
    ]
    for name, arranged in layouts:
        if not np.array_equal(arranged(actual), actual) and seen.agrees(
            seen.expected, arranged(actual), seen.slack, arranged(wrong)
        ):
            return "wrong_layout", (
                f"The values are right but stored as {name}; the output is (B, H, N, d), row-major. "
                "Check the order of the indices where O is written."
            )
    return None


def copied_heads(seen: Deviation) -> Found | None:
    """Each head of the output is the expected output of some head, but not all of its own."""
    b, h = seen.expected.shape[:2]
    heads, got, allowed, bad = (
        t.reshape(b * h, *t.shape[2:]) for t in (seen.expected, seen.actual, seen.slack, seen.wrong)
    )
    count = b * h
    if count == 1 or count > 32:
        return None
    source: list[int] = []
    for g in range(count):
        fits = (
            [s for s in range(count) if seen.agrees(heads[s], got[g], allowed[s], bad[g])]
            if bad[g].any()
            else [g]
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


def row_factors(seen: Deviation) -> Found | None:
    """Each row is a multiple of what it should be: its weights do not sum to one."""
    expected, actual, tolerance, wrong = seen.expected, seen.actual, seen.tolerance, seen.wrong
    if expected.shape[3] < 3:
        return None
    size = np.maximum(np.square(expected).sum(3, keepdims=True), 1e-30)
    factor = (actual * expected).sum(3, keepdims=True) / size
    slack = 8 * tolerance * np.maximum(abs(factor), 1) + 1e-5 * abs(actual)
    fits = abs(actual - factor * expected) <= slack
    if fits[wrong].mean() < 0.97:
        return None
    affected = factor.squeeze(3)[wrong.any(3)]
    if np.quantile(abs(affected - 1), 0.5, method="lower") < ROUNDING:
        return None
    low, high = affected.min(), affected.max()
    return "not_normalised", (
        f"The rows of the softmax do not sum to 1: rows of the output are {low:.4g} to {high:.4g} times what they "
        "should be. Look at the sum that each row is divided by, and at where it starts from zero."
    )
