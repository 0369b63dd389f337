"""Inputs of the cases: float32 arrays whose numbers the case's type can represent exactly.

The same distribution, sizes and seed give the same bits. `shape["precision"]` names the case's type by the bits of its
significand: 24 for float32, 11 for float16, 8 for bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.core.precision import rounded

Shape = Mapping[str, int]

LONG = "long_"
"""Prefix of distributions whose rows have the sizes `lines` and `width`."""
LARGEST = 1e4
"""Approximate largest absolute value of the logits of `large` and `huge`."""
BELOW = 9000.0
"""The logits of the distribution `below` are about -BELOW: their exp() is 0, and a padded key's score, 0, is larger."""
PEAK = 30.0
"""Logit of the dominant key of each query in the distribution `dominant`."""
CLIMB = 20.0
"""The logits of `increasing` go from -CLIMB to CLIMB."""


def make_inputs(distribution: str, shape: Shape, seed: int) -> dict[str, Array]:
    """Return the float32 arrays of a case by name.

    Distributions in ROWS give x (R, C); with the prefix `long_`, x (lines, width). Those in PRODUCTS give a (rows,
    inner) and b (inner, columns). Those in HEADS give q (B, N, d), k and v (B, M, d); with the suffix `_gradient` also
    dO and O (B, N, d), and L (B, N).
    """
    draws, precision = Draws(seed), shape.get("precision", 24)
    if distribution.startswith(LONG):
        made = ROWS[distribution.removeprefix(LONG)](draws, shape["lines"], shape["width"])
        return {"x": rounded(made, precision)}
    if distribution in ROWS:
        return {"x": rounded(ROWS[distribution](draws, shape["R"], shape["C"]), precision)}
    if distribution in PRODUCTS:
        a, b = PRODUCTS[distribution](draws, shape["rows"], shape["inner"], shape["columns"])
        return {"a": rounded(a, precision), "b": rounded(b, precision)}
    name = distribution.removesuffix("_gradient")
    found = {key: rounded(t, precision) for key, t in HEADS[name](draws, shape).items()}
    if name == distribution:
        return found
    from .arithmetic import attention

    o, lse = attention(found["q"], found["k"], found["v"], causal=bool(shape["causal"]))
    upstream = draws.uniform((shape["B"], shape["N"], shape["d"]), -1.0, 1.0)
    return {
        **found,
        "O": rounded(o.astype(np.float32), precision),
        "L": lse.astype(np.float32),
        "dO": rounded(upstream, precision),
    }


# ---- rows of numbers


def _random(draws: Draws, rows: int, columns: int) -> Array:
    """Return logits of usual size: each row has a centre within +-2, its logits are within +-6 of the centre."""
    return draws.uniform((rows, columns), -6.0, 6.0) + draws.uniform((rows, 1), -2.0, 2.0)


def _wide(draws: Draws, rows: int, columns: int) -> Array:
    """Return numbers of very different magnitudes, from 2^-12 to 2^6, positive and negative."""
    sizes = np.exp2(draws.uniform((rows, columns), -12.0, 6.0))
    return np.where(draws.uniform((rows, columns)) < 0.5, -sizes, sizes)


def _large(draws: Draws, rows: int, columns: int) -> Array:
    return draws.uniform((rows, columns), -LARGEST, LARGEST)


def _far(draws: Draws, rows: int, columns: int) -> Array:
    """Return rows around +9000 and -9000 in turn. After rounding to 16 bits, many numbers of a row are equal."""
    middle = np.where(np.arange(rows)[:, None] % 2, np.float32(-BELOW), np.float32(BELOW))
    return middle + draws.uniform((rows, columns), -8.0, 8.0)


def _masked(draws: Draws, rows: int, columns: int) -> Array:
    """Return logits of which about 40 % are -inf, drawn at random. In every second row the first half is -inf, too, but
    no row has only -inf.
    """
    x = _random(draws, rows, columns)
    hidden = draws.uniform((rows, columns)) < 0.4
    hidden[::2, : columns // 2] = True
    hidden[np.arange(rows), columns - 1 - draws.below(max(1, columns // 3), (rows,))] = False
    x[hidden] = -np.inf
    return x


def _increasing(draws: Draws, rows: int, columns: int) -> Array:
    """Return rows sorted in ascending order, so that each block of a row has a new maximum."""
    return np.sort(draws.uniform((rows, columns), -CLIMB, CLIMB), 1)


ROWS: dict[str, Callable[[Draws, int, int], Array]] = {
    "random": _random,
    "wide": _wide,
    "large": _large,
    "far": _far,
    "masked": _masked,
    "increasing": _increasing,
}


# ---- products


def _matrices(draws: Draws, rows: int, inner: int, columns: int) -> tuple[Array, Array]:
    return draws.uniform((rows, inner), -1.0, 1.0), draws.uniform((inner, columns), -1.0, 1.0)


def _positive(draws: Draws, rows: int, inner: int, columns: int) -> tuple[Array, Array]:
    """Return a and b with numbers from 0.5 to 1.5. Sums keep growing, so the last terms are relatively small."""
    return draws.uniform((rows, inner), 0.5, 1.5), draws.uniform((inner, columns), 0.5, 1.5)


PRODUCTS: dict[str, Callable[[Draws, int, int, int], tuple[Array, Array]]] = {
    "matrices": _matrices,
    "positive": _positive,
}


# ---- queries, keys and values


def _sizes(shape: Shape) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (shape["B"], shape["N"], shape["d"]), (shape["B"], shape["M"], shape["d"])


def _heads(draws: Draws, shape: Shape) -> dict[str, Array]:
    """Return v within +-1, and q and k whose logits have a standard deviation of 3 for any d."""
    queries, keys = _sizes(shape)
    q, k = draws.uniform(queries, -3.0, 3.0), draws.uniform(keys, -3.0, 3.0)
    return {"q": q, "k": k, "v": draws.uniform(keys, -1.0, 1.0)}


def _heads_dominant(draws: Draws, shape: Shape) -> dict[str, Array]:
    """Return inputs in which each query has a logit of about PEAK with one key, and smaller logits with the others."""
    _, keys = _sizes(shape)
    k = draws.uniform(keys, -1.0, 1.0)
    rows, visible = np.arange(shape["N"]), shape["M"]
    chosen = draws.below(1 << 20, (shape["B"], shape["N"]))
    chosen %= np.minimum(rows + 1, visible) if shape["causal"] else visible
    q = np.take_along_axis(k, chosen[:, :, None], 1)
    q = q * (np.float32(PEAK * shape["d"] ** 0.5) / np.square(q).sum(2, keepdims=True))
    return {"q": q, "k": k, "v": draws.uniform(keys, -1.0, 1.0)}


def _heads_increasing(draws: Draws, shape: Shape) -> dict[str, Array]:
    """Return inputs whose logits climb from the first key to the last, so that every block has a new maximum."""
    queries, keys = _sizes(shape)
    climb = (
        np.linspace(-CLIMB, CLIMB, shape["M"], dtype=np.float32)
        if shape["M"] > 1
        else np.zeros(1, np.float32)
    )
    q = 1 + draws.uniform(queries, -0.5, 0.5)
    k = climb[None, :, None] * np.float32(shape["d"] ** -0.5) + draws.uniform(keys, -0.5, 0.5)
    return {"q": q, "k": k, "v": draws.uniform(keys, -1.0, 1.0)}


def _heads_decreasing(draws: Draws, shape: Shape) -> dict[str, Array]:
    found = _heads_increasing(draws, shape)
    return {**found, "k": found["k"][:, ::-1]}


def _heads_equal(draws: Draws, shape: Shape) -> dict[str, Array]:
    """Return inputs with logits of 0 and values from 1 to 2: the output is a mean, and its sum grows with every key."""
    queries, keys = _sizes(shape)
    return {
        "q": np.zeros(queries, np.float32),
        "k": draws.uniform(keys, -1.0, 1.0),
        "v": draws.uniform(keys, 1.0, 2.0),
    }


def _heads_large(draws: Draws, shape: Shape) -> dict[str, Array]:
    """Return inputs with logits up to about +-LARGEST. All numbers of q and k are whole and below 96, so all types and
    TF32 represent them exactly, and scores are exact in float32. So the case tests the steps after the scores."""
    queries, keys = _sizes(shape)
    q, k = (np.round(draws.uniform(size, -95.0, 95.0)) for size in (queries, keys))
    return {"q": q, "k": k, "v": draws.uniform(keys, -1.0, 1.0)}


def _heads_below(draws: Draws, shape: Shape) -> dict[str, Array]:
    """Return inputs with logits of about -BELOW; within a row they differ by tens.

    All numbers of q and k are multiples of 1/4 with a magnitude below 64, so that their products are exact.
    """
    queries, keys = _sizes(shape)
    far = np.round((BELOW / shape["d"] ** 0.5) ** 0.5)
    q, k = (np.round(draws.uniform(size, -2.0, 2.0)) / 4 for size in (queries, keys))
    return {"q": q - far, "k": k + far, "v": draws.uniform(keys, -1.0, 1.0)}


HEADS: dict[str, Callable[[Draws, Shape], dict[str, Array]]] = {
    "heads": _heads,
    "dominant": _heads_dominant,
    "climbing": _heads_increasing,
    "falling": _heads_decreasing,
    "equal": _heads_equal,
    "huge": _heads_large,
    "below": _heads_below,
}
