"""Which step of an attention kernel is wrong: with the unit matrix as V its output is the weights themselves.

From the weights of a row follow what it was divided by and, up to one number a row, its scores.
"""

from __future__ import annotations

from collections.abc import Mapping

from grader.base.arrays import Array, np
from grader.judge.draws import Draws
from grader.judge.oracle import Ask, Dissected

#: Keys and columns of the calls: as many as that no two sizes are alike.
KEYS, COLUMNS = 7, 9
CLOSE = 2e-4
#: What a factor may be called: powers of a size.
POWERS = {1.0: "{}", -1.0: "1/{}", 0.5: "sqrt({})", -0.5: "1/sqrt({})"}


def dissect(ask: Ask, sizes: Mapping[str, int]) -> Dissected | None:
    """As `Oracle.dissect`: sizes have B, H and, for tiles, Br and Bc, of which the kernel needs what it needs."""
    for tiles in ({}, {"Br": 3, "Bc": 2}):
        own = {**sizes, "N": KEYS, "d": COLUMNS, **{name: tiles[name] for name in tiles if name in sizes}}
        found = _weights(ask, own)
        if found is not None:
            scores, weights = found
            told = _told(scores, weights, own)
            if told is not None:
                return told
    return None


def _weights(ask: Ask, sizes: Mapping[str, int]) -> tuple[Array, Array] | None:
    """The scores of a call and the weights that the kernel made of them, (B, H, N, N)."""
    shape = (sizes["B"], sizes["H"], KEYS, COLUMNS)
    draws = Draws(17)
    q, k = (draws.uniform(shape, -1.2, 1.2) for _ in "QK")
    v = np.broadcast_to(np.eye(KEYS, COLUMNS, dtype=np.float32), shape)
    scores = q.astype(np.float64) @ k.astype(np.float64).mT
    output = ask(sizes, {"Q": q, "K": k, "V": np.ascontiguousarray(v)})
    return None if output is None else (scores, output[..., :KEYS])


def _told(scores: Array, weights: Array, sizes: Mapping[str, int]) -> Dissected | None:
    exact = np.exp(scores)
    sums = exact.sum(3, keepdims=True)
    right = exact / sums
    if not np.isfinite(weights).all():
        return None
    if (abs(weights - right) < CLOSE).all():
        return Dissected(
            "With the unit matrix as V the output is right: scores, exp() and sums are right, and the product with V is "
            "where to look",
            ("input:V", "store"),
        )
    rows = weights.any(3)
    if not rows.any():
        return None
    scores, weights, exact, sums, right = (each[rows] for each in (scores, weights, exact, sums, right))
    factor = (weights / right).mean(1, keepdims=True)
    if (abs(weights / right - factor) < CLOSE * abs(factor)).all():
        return _divisors((sums / factor)[:, 0], sums[:, 0])
    if (weights <= 0).any():
        return None
    total = weights.sum(1)
    made = np.log(weights)
    made -= made.mean(1, keepdims=True)
    wanted = scores - scores.mean(1, keepdims=True)
    normalised = bool((abs(total - 1) < CLOSE).all())
    told = _scores(made, wanted, scores, sizes)
    if told is None:
        return None
    sum_words = "each row of weights sums to 1" if normalised else "the rows of weights do not sum to 1 either"
    return Dissected(f"{told.words}; {sum_words}", told.clues if normalised else (*told.clues, "divide"))


def _divisors(used: Array, sums: Array) -> Dissected:
    worst = int(abs(used - sums).argmax())
    shown = f"{used[worst]:.4g} where the sum of its exp(score) is {sums[worst]:.4g}"
    whole = abs(used - np.round(used)).max() < 1e-3 and abs(sums - np.round(sums)).max() > 0.05
    kind = ", always a whole number" if whole else ""
    return Dissected(
        "The weights of a row are right but for what they are divided by: scores and exp() are right, the row's sum is "
        f"not (a row is divided by {shown}{kind})",
        ("sums", "divide", "call:exp"),
    )


def _scores(made: Array, wanted: Array, scores: Array, sizes: Mapping[str, int]) -> Dissected | None:
    """What the scores are, from their differences within a row."""
    slope = float((made * wanted).sum() / np.square(wanted).sum())
    if abs(slope) > 1e-3 and (abs(made - slope * wanted) < 2e-3).all():
        return Dissected(f"The scores are {_factor(slope, sizes)} times Q K^T; the rest is right", ("call:sqrt", "call:exp", "input:K"))
    steps = made - made[:, :1]
    if abs(steps - np.round(steps)).max() < 2e-3:
        return Dissected("All scores are whole numbers: an int holds them somewhere", ("casts", "text:\\bint\\s+\\w+\\s*=\\s*0\\s*;", "input:K"))
    off = abs(made - wanted).max()
    if off < 0.1:
        return Dissected(
            f"The scores are right within {off:.2g} and no closer: exp() or what it is given is inexact", ("casts", "call:exp")
        )
    return Dissected("The scores are wrong already, before the softmax", ("input:Q", "input:K"))


def _factor(slope: float, sizes: Mapping[str, int]) -> str:
    for name, size in sizes.items():
        for power, words in POWERS.items():
            if size > 1 and abs(slope / float(size) ** power - 1) < 5e-3:
                return f"{slope:.4g} ({words.format(name)})"
    return f"{slope:.4g}"
