"""Search for the wrong step of an attention kernel: with the unit matrix as V, its output is the softmax weights.

The weights show the sum by which each row was divided. They also show the row's scores, up to a constant that is added
to all scores of the row.

A wrong 4-D accessor is explained by the offsets that it used, and by the formula that gives them. In the tensors of
these cases all values differ. So a value shows the offset from which it was read, or to which it was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from grader.core.arrays import Array, first_of, np
from grader.core.draws import Draws
from grader.core.results import Diagnosis
from grader.explain.oracle import Ask, Dissected

#: KEYS: number N of keys in three of the four experiments of `dissect`. The third experiment has the N of the case, at
#: most MOST_KEYS. In all experiments d is N + 2.
KEYS, MOST_KEYS = 7, 45
#: Largest difference at which two weights count as equal.
CLOSE = 2e-4
#: Largest difference at which two scores, computed from weights, count as equal.
SAME = 2e-3
#: TINY_SCORES: factor for Q that makes all scores nearly 0. MOST_BLOCKS: limit on the ranges of channels that a message
#: lists; with more ranges, `_channels` finds nothing.
TINY_SCORES, MOST_BLOCKS = 3e-3, 6
#: Mean of the scores in the last experiment. It makes sums of exp(score) so small that the weights change visibly if a
#: small number is added to a sum.
LOW_SCORES = -14.0
PRODUCT, PRODUCT_CLUES = "In the output", ("bytes", "input:V", "store")
SUMS = "The weights of a row"
PROPORTIONS = "Each row of weights sums to 1, but the weights are wrong"
SOME_HEADS = (
    "Some heads (b, h) have the right weights, and others have not: is the index of the head right, or do values of "
    "the head before remain?",
    ("quotients", "pointer:Q", "pointer:K", "pointer:V", "?input:Q", "?input:K"),
)
SOME_ROWS = (
    "Some rows of the output are all 0, and all others are right: does a thread or a loop leave rows out?",
    ("shares", "loops"),
)
#: A quotient (the kernel's weight / right weight) below this counts as 0, so it is not used as a divisor.
TINY = 1e-12
#: Powers of a size, such as 1/sqrt(d), by which students multiply scores. Maps the exponent to the text of the power;
#: {} stands for the size's name.
POWERS = {1.0: "{}", -1.0: "1/{}", 0.5: "sqrt({})", -0.5: "1/sqrt({})"}


def dissect(ask: Ask, sizes: Mapping[str, int]) -> Dissected | None:
    """Find the wrong step of a kernel by experiments: calls with small inputs. Return a finding, or None.

    `ask(sizes, inputs)` calls the kernel and returns its output, or None. `sizes` has B, H and N of the case, and Br
    and Bc in part 4.
    """
    largest, few = min(sizes["N"], MOST_KEYS), {"Br": 3, "Bc": 2}
    for keys, tiles, mean in ((KEYS, {}, 0), (KEYS, few, 0), (largest, {}, 0), (KEYS, {}, LOW_SCORES)):
        if keys < 2:
            continue  # With one key, each row has one weight, which shows nothing about the scores.
        own = {**sizes, "N": keys, "d": keys + 2, **{name: tiles[name] for name in tiles if name in sizes}}
        shape = (own["B"], own["H"], keys, keys + 2)
        draws = Draws(17)
        spread = 3.0 / math.sqrt(keys)
        q, k, v = (draws.uniform(shape, -bound, bound) for bound in (spread, 1.2, 1.0))
        if mean:
            q[..., -1], k[..., -1] = mean, 1.0
        scores = q.astype(np.float64) @ k.astype(np.float64).mT
        right = _softmax(scores)
        usual = ask(own, {"Q": q, "K": k, "V": v})
        if usual is None or not _shows(usual, right @ v, keys):
            continue
        unit = np.ascontiguousarray(np.broadcast_to(np.eye(keys, keys + 2, dtype=np.float32), shape))
        weights = ask(own, {"Q": q, "K": k, "V": unit})
        found = None if weights is None else _mistake(scores, weights[..., :keys], own)
        if mean:
            # The call with low scores serves only to find a number added to the row's sum. Ignore other findings.
            return found if found is not None and found.words.startswith(SUMS) else None
        is_open = found is None or found.words.startswith(PROPORTIONS)
        if weights is not None and is_open and _are_rows_missing(weights[..., :keys], right):
            return Dissected(*SOME_ROWS)
        if weights is not None and is_open and _some_heads(weights[..., :keys], right):
            return Dissected(*SOME_HEADS)
        if weights is not None and is_open:
            # For scores near 0, exp() is nearly linear, and stays finite even if a kernel applies it twice.
            tiny = {"Q": q * np.float32(TINY_SCORES), "K": k, "V": unit}
            # If V is not weighted with these weights, they say nothing about the scores.
            off = abs(weights[..., :keys] @ v - usual)
            if not (off > CLOSE * (1 + abs(usual))).any():
                found = _channels(ask(own, tiny), q, k) or found
        if found is not None and found.words.startswith(PRODUCT):
            # Reverse V's columns. If all columns of the output use the same weights, this only reverses the columns.
            other = ask(own, {"Q": q, "K": k, "V": np.ascontiguousarray(unit[..., ::-1])})
            if (
                other is not None
                and not (abs(other[..., ::-1][..., :keys] - weights[..., :keys]) < CLOSE).all()
            ):
                return Dissected("The columns of the output do not all take the same weights", PRODUCT_CLUES)
        if found is not None:
            return found
    return None


def _channels(output: Array | None, q: Array, k: Array) -> Dissected | None:
    """Return a finding if some channels are added more often than others in Q K^T, else None.

    `output` is the kernel's output for Q = TINY_SCORES * q, K = k and the unit matrix as V, or None. For such small
    scores, log(weight) is a sum over channels. Least squares give the factor of each channel in this sum.
    """
    keys, d = k.shape[2:]
    if output is None or not (output[..., :keys] > 0).all() or not np.isfinite(output).all():
        return None
    made = np.log(output[..., :keys])
    made -= made.mean(3, keepdims=True)
    apart = (k - k.mean(2, keepdims=True)).astype(np.float64)
    shares = (q * np.float32(TINY_SCORES)).astype(np.float64)[:, :, :, None] * apart[:, :, None]
    counts, *_ = np.linalg.lstsq(shares.reshape(-1, d), made.reshape(-1), rcond=None)
    left = made.reshape(-1) - shares.reshape(-1, d) @ counts
    if abs(left).max() > 0.03 * abs(made).max() or abs(counts - 1).max() < 0.1:
        return None
    begins = [0, *(np.flatnonzero(abs(np.diff(counts)) > 0.1) + 1).tolist()]
    if not 1 < len(begins) <= MOST_BLOCKS:
        return None
    means = [float(some.mean()) for some in np.split(counts, begins[1:])]
    ends = [*begins[1:], d]
    listed = ", ".join(
        f"{'' if at == 0 else 'channels '}{begin} to {end - 1} "
        + ("not at all" if abs(mean) < 0.01 else "once" if abs(mean - 1) < 0.1 else f"{mean:.2g} times")
        for at, (begin, end, mean) in enumerate(zip(begins, ends, means, strict=True))
    )
    if (abs(np.array(means) - range(len(means), 0, -1)) < 0.05).all():
        words = (
            f"Channels of Q K^T are added several times (with d={d}, channels {listed}): does the loop over the "
            "channels of a tile, or over the rest, start at 0?"
        )
        return Dissected(words, ("input:Q", "input:K", "steps"))
    is_plain_sum = all(abs(mean - round(mean)) < 0.05 for mean in means)
    if abs(means[-1] - 1) < 0.1 and min(means[:-1]) > 1.5 and not is_plain_sum:
        words = (
            "exp() is applied before the sum over all d channels is complete, and again after each further block of "
            f"channels (with d={d}, channels {listed} count): apply it once, after the last block"
        )
        return Dissected(words, ("call:exp", "steps"))
    return Dissected(
        f"Some channels of Q K^T count more often than others: with d={d}, channels {listed}",
        ("lanes", "steps", "input:Q"),
    )


def _are_rows_missing(weights: Array, right: Array) -> bool:
    """Return True if each row of weights is right or all 0, and both occur."""
    is_right, is_zero = (abs(weights - right) < CLOSE).all(3), ~weights.any(3)
    return bool(is_right.any() and is_zero.any() and (is_right | is_zero).all())


def _some_heads(weights: Array, right: Array) -> bool:
    """Return True if some heads have only right weights, and other heads have weights that are not all 0."""
    heads = (abs(weights - right) < CLOSE).all((2, 3))
    return bool(heads.any() and weights[~heads].any())


def _shows(output: Array, expected: Array, keys: int) -> bool:
    """Return True if the weights, which a call with the unit matrix as V returns, can show the kernel's mistake.

    Such a call has the weights in the first `keys` columns, so one of these must be wrong in `output`. If all wrong
    columns are 0 and others are right, the kernel only fails to store columns, which the weights do not show.
    """
    wrong = (~(abs(output - expected) < CLOSE)).any((0, 1, 2))
    return bool(wrong[:keys].any()) and bool(wrong.all() or output[..., wrong].any())


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def _mistake(scores: Array, weights: Array, sizes: Mapping[str, int]) -> Dissected | None:
    """Return a finding about the mistake that explains the kernel's `weights`; None if no known mistake does.

    `scores` are the right scores. Both are (B, H, N, N).
    """
    exact = np.exp(scores)
    sums = exact.sum(3, keepdims=True)
    right = exact / sums
    if (last := _last_of_each(weights)) is not None:
        return last
    if (by_value := _by_value(scores, weights, right)) is not None:
        return by_value
    if not np.isfinite(weights).all():
        return None
    if (abs(weights - right) < CLOSE).all():
        return Dissected(
            "With the unit matrix as V the output is right. So scores, exp() and sums are right: look at the product "
            "with V",
            PRODUCT_CLUES,
        )
    rows = weights.any(3)
    if not rows.any():
        return None
    if not rows.any(2).all():
        b, h = np.argwhere(~rows.any(2))[0].tolist()
        if (abs(weights - right)[rows.any(2)] < CLOSE).all():
            return Dissected(
                f"All of head (b={b}, h={h}) of the output is 0, and the heads that are written are right: is "
                "the offset of each head right, or does a loop over heads or batches end too early?",
                ("unlooped:B", "unlooped:H", "index", "loops"),
            )
        return Dissected(
            f"All of head (b={b}, h={h}) of the output is 0, and other heads are wrong, too: is the offset of a head "
            "in O computed for each (b, h), after b and h are set?",
            ("store", "stored", "index"),
        )
    left = "" if rows.all() else f"; row {np.argwhere(~rows)[0][2]} of a head of the output is all 0"
    scores, weights, exact, sums, right = (each[rows] for each in (scores, weights, exact, sums, right))
    factor = (weights / right).mean(1, keepdims=True)
    if (abs(factor) > TINY).all() and (abs(weights / right - factor) < CLOSE * abs(factor)).all():
        found = _divisors((sums / factor)[:, 0], sums[:, 0], exact.max(1), 1 if left else sizes["N"])
        return replace(found, words=found.words + left) if abs(factor - 1).max() > CLOSE else None
    if not left and (before := _of_row_before(weights, right, sizes["N"])) is not None:
        return before
    at = "with " + " ".join(f"{name}={sizes[name]}" for name in ("N", "Br", "Bc") if name in sizes)
    unused = ~weights.any(0)
    if unused.any() and (abs(weights - _softmax(np.where(unused, -np.inf, scores))) < CLOSE).all():
        return Dissected(
            f"The softmax is right but leaves out {_listed(unused)} ({at}): neither the row's sum nor the product "
            f"with V has it{left}",
            ("loops", "steps", "input:K"),
        )
    keys = (abs(weights - right) < CLOSE).all(0)
    if keys.any():
        off = (weights - right)[:, ~keys]
        amount = "no" if not weights[:, ~keys].any() else "too much" if (off > -CLOSE).all() else "another"
        tile = sizes.get("Bc", 1)
        tile = tile if tile < len(keys) else 1
        if len(keys) > 2 and (~keys).sum() == (last := (len(keys) - 1) // tile * tile) and keys[last:].all():
            form = ", and is all of (li * Oi + PV) divided by lnew" if tile > 1 else ""
            return Dissected(
                f"The last {'key' if tile == 1 else 'tile of keys'} has the right weight, and each earlier one has "
                f"{amount} weight ({at}){left}: look at the update of O. Is its old value multiplied by the right "
                f"factor, once{form}?",
                ("updates", "stored", "store", "input:V"),
            )
        return Dissected(
            f"{PRODUCT} {_listed(~keys)} has {amount} weight ({at}), and every other key the right one{left}",
            ("loops", "text:\\bPij\\b", "input:V", "call:exp", "steps"),
        )
    if (abs(np.sort(weights, 1) - np.sort(right, 1)) < CLOSE).all():
        return Dissected(
            f"The weights are right, but they multiply the values of other keys{left}", ("input:V", "input:K")
        )
    if (weights <= 0).any():
        return None
    made, wanted = (each - each.mean(1, keepdims=True) for each in (np.log(weights), scores))
    normalised = bool((abs(weights.sum(1) - 1) < CLOSE).all())
    if (between := _between_blocks(np.log(weights) - scores, sizes)) is not None:
        return replace(between, words=between.words + left)
    cause = _scores(made, wanted, sizes, float(abs(weights.sum(1) - 1).max()))
    if cause is None and normalised:
        words = f"{PROPORTIONS}: look at Q K^T and exp(), not at the sum"
        return Dissected(words + left, ("input:Q", "input:K", "lanes"))
    if cause is None:
        return None
    sum_words = (
        "each row of weights sums to 1" if normalised else "the rows of weights do not sum to 1 either"
    )
    return Dissected(
        f"{cause.words}; {sum_words}{left}", cause.clues if normalised else (*cause.clues, "divide")
    )


def _last_of_each(weights: Array) -> Dissected | None:
    """Return a finding if only the last key of each block has no weight, for some block length; else None."""
    keys = np.flatnonzero(~weights.any((0, 1, 2)))
    if not len(keys) or not (block := int(keys[0]) + 1) > 1:
        return None
    if len(keys) < 2 or not np.array_equal(keys, np.arange(block - 1, weights.shape[3], block)):
        return None
    return Dissected(
        f"The last of each {block} is left out of a loop (indices {keys[0]}, {keys[1]}, ...): a loop that runs while "
        "index < end needs an end one past the last index",
        ("minus_one", "loops", "steps"),
    )


def _of_row_before(weights: Array, right: Array, rows: int) -> Dissected | None:
    """Return a finding if wrong rows are the right row plus a multiple of an earlier output row, else None.

    The earlier row is the row before, or the same row of the head before. A head has `rows` rows.
    """
    added = weights - right
    for step, which in ((1, "row before it"), (rows, "same row of the head before")):
        before, more = weights[:-step], added[step:]
        hit = (abs(more) > CLOSE).any(1)
        if hit.sum() < 2 or (abs(added[:step]) > CLOSE).any():
            continue
        factor = (more * before).sum(1) / np.maximum(np.square(before).sum(1), TINY)
        if (factor[hit] > 0).all() and (abs(more - factor[:, None] * before) < CLOSE).all():
            row = int(hit.argmax()) + step
            return Dissected(
                f"Rows of the output also contain the {which}, row {row} for example {factor[row - step]:.3g} times: "
                "set the memory in which a row is summed up to zero for each row",
                ("fills", "fresh", "bare", "cleared", "updates", "store"),
            )
    return None


def _by_value(scores: Array, weights: Array, right: Array) -> Dissected | None:
    """Return a finding if only the keys with the lowest scores are wrong, as if a condition skips them; else None."""
    finite = np.isfinite(weights).all(3)
    scores, weights, right = (each[finite] for each in (scores, weights, right))
    if not len(weights):
        return None
    best = right.argmax(1)[:, None]
    ratio = weights / right
    of_best = np.take_along_axis(ratio, best, 1)
    kept = abs(ratio - of_best) < CLOSE * abs(of_best)
    if kept.all() or (~kept).sum() < 2 or not (abs(of_best) > TINY).all():
        return None
    if not (abs(ratio - of_best) > 0.2 * abs(of_best))[~kept].all():
        return None
    for measure, what in ((scores, "score"), (right, "weight")):
        low, high = measure[~kept].max(), measure[kept].min()
        if low < high:
            amount = "no weight" if not weights[~kept].any() else "another weight"
            return Dissected(
                f"Keys whose {what} is {low:.3g} or less have {amount}, and those from {high:.3g} on are in the right "
                "proportions: look for a condition (if, continue, break) that skips keys by their value",
                ("skips", "guards", "call:exp"),
            )
    return None


def _between_blocks(off: Array, sizes: Mapping[str, int]) -> Dissected | None:
    """Return a finding if the errors `off` (rows, keys) of log(weight) are equal in each block of Bc keys, but differ
    between blocks; else None."""
    block, keys = sizes.get("Bc", 0), off.shape[1]
    if not 1 < block < keys:
        return None
    first = off[:, np.arange(keys) // block * block]
    if abs(off - first).max() > SAME or abs(off - off[:, :1]).max() < 10 * SAME:
        return None
    return Dissected(
        f"Within a block of Bc = {block} keys the weights are in the right proportions, between blocks they are not: "
        "look at how O and L are updated from block to block. If a maximum is subtracted, multiply both by exp(old "
        "maximum - new maximum)",
        ("call:max", "text:\\b[Ll]i\\b", "text:\\bL\\b"),
    )


def _listed(which: Array) -> str:
    """Return text that names the chosen keys, such as "each of the keys 2 to 4 of 7". A verb after it is singular.

    `which` (keys,) is True for each chosen key.
    """
    keys = np.flatnonzero(which).tolist()
    if len(keys) == 1:
        return f"key {keys[0]} of {len(which)}"
    if keys[-1] - keys[0] == len(keys) - 1:
        return f"each of the keys {keys[0]} to {keys[-1]} of {len(which)}"
    return f"each of {len(keys)} keys of {len(which)}, the first is {keys[0]},"


def _divisors(used: Array, sums: Array, largest: Array, rows: int) -> Dissected:
    """Return a finding about rows divided by `used` in place of `sums`, the right sums. A head has `rows` rows.

    `largest` has the largest exp(score) of each row.
    """
    worst = int(abs(used - sums).argmax())
    first = worst // rows * rows
    same = np.flatnonzero(abs(sums[first : first + rows] / used[worst] - 1) < CLOSE)
    shown = f"is divided by {used[worst]:.4g} where the sum of its exp(score) is {sums[worst]:.4g}"
    whole = abs(used - np.round(used)).max() < 1e-3 and abs(sums - np.round(sums)).max() > 0.05
    if (more := _more(used, sums, largest, rows)) is not None:
        return more
    shown = (
        f"row {worst - first} {shown}; {used[worst]:.4g} is the sum of row {same[0]}"
        if len(same) == 1
        else f"a row {shown}, always a whole number"
        if whole
        else f"the weights of a row add up to {sums[worst] / used[worst]:.4g}, not to 1"
    )
    if (abs(used - 1) < CLOSE).all():
        return Dissected(
            f"The weights of a row are its exp(score), without division by their sum, {sums[worst]:.4g}",
            ("sums", "divide", "call:exp"),
        )
    is_constant = np.ptp(sums) > CLOSE and np.ptp(sums / used) < CLOSE
    wrong = "all weights have the same wrong factor" if is_constant else "the row's sum is not"
    return Dissected(
        f"{SUMS} have the right proportions: scores and exp() are right, but {wrong} ({shown})",
        (*(("line:^\\s*int\\b[^()=]*;",) if whole else ()), "bare", "sums", "divide", "call:exp"),
    )


def _more(used: Array, sums: Array, largest: Array, rows: int) -> Dissected | None:
    """Return a finding if rows are divided by `sums` plus a number, plus the divisor of the head before, or both.

    The number may also be added to a sum of exp(score - maximum). `largest` has the largest exp(score) of each row.
    """
    for scale, of in ((np.ones_like(largest), "exp(score)"), (largest, "exp(score - maximum)")):
        added, near = (used - sums) / scale, CLOSE * abs(used) / scale
        constant = float(np.median(added[:rows]))
        of_before = np.concatenate([np.full(len(used[:rows]), constant), (used / scale)[:-rows]])
        goes_on = 1 < rows < len(used) and (abs(added - of_before) < near).all()
        is_more = abs(constant) > near.min()
        if not goes_on and not (is_more and (abs(added - constant) < near).all()):
            continue
        begins = f"plus {constant:.4g}" if is_more else ""
        if abs(constant - 1) < 100 * CLOSE:
            begins = (
                "plus 1, as if the sum began at 1 (or its logarithm, if that is kept, at 0 and not -infinity)"
            )
        kept = "in later heads plus the divisor of the same row in the head before: it is not set back for each head"
        words = "; ".join(filter(None, (begins, kept if goes_on else "")))
        return Dissected(
            f"The weights of a row have the right proportions, but they are divided by the sum of {of} {words}",
            ("logarithms", "bare", "sums", "divide"),
        )
    return None


def _scores(made: Array, wanted: Array, sizes: Mapping[str, int], sum_error: float) -> Dissected | None:
    """Return a finding about the kernel's scores `made`, or None. `wanted` has the right scores.

    Both are (rows, keys) with row means of 0, because weights show a row's scores only up to a constant. `sum_error` is
    the largest difference of a row's sum of weights from 1.
    """
    slope = float((made * wanted).sum() / np.square(wanted).sum())
    if abs(slope - 1) > 5e-3 and abs(slope) > 1e-3 and (abs(made - slope * wanted) < 2e-3).all():
        return Dissected(
            f"The scores are {_factor(slope, sizes)} times Q K^T", ("call:sqrt", "call:exp", "input:K")
        )
    steps = made - made[:, :1]
    of = "tile" if "Bc" in sizes else "row"
    for first, which in ((0, ""), (1, " but the first")):
        if abs(made[:, first:] - made[:, first : first + 1]).max() < SAME:
            return Dissected(
                f"All keys of a {of}{which} have the same weight: give exp() the score of each key, not always the "
                "same score",
                ("call:exp", "divide"),
            )
    if abs(steps - np.round(steps)).max() < SAME:
        return Dissected(
            "All scores are whole numbers: look for a variable of type int that holds a score",
            ("whole_sums", "casts", "?text:^\\s*int\\s+\\w+\\s*=\\s*0\\s*;", "input:K"),
        )
    # If only exp() is inexact, the sums of the weights are nearly 1. Larger errors of the sums have another cause.
    off = abs(made - wanted).max()
    if off < 0.1 and sum_error < max(3 * off, CLOSE):
        return Dissected(
            f"The weights are wrong as if scores were off by up to {off:.2g}: exp() or its argument is inexact",
            ("own_exp", "casts", "call:exp", "added"),
        )
    return None


def _factor(slope: float, sizes: Mapping[str, int]) -> str:
    for name, size in sizes.items():
        for power, words in POWERS.items():
            if size > 1 and abs(slope / float(size) ** power - 1) < 5e-3:
                return f"{slope:.4g} ({words.format(name)})"
    return f"{slope:.4g}"


RIGHT = "((x * sizeX + y) * sizeY + z) * sizeZ + b"


def formulas(shape: Mapping[str, int]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield wrong offset formulas that students write, each as (diagnosis code, words, strides).

    `strides` has the factors of x, y, z and b in the formula, then its constant term.
    """
    W, X, Y, Z = (shape[name] for name in "BHNd")  # W is the length of the first dimension
    right = (X * Y * Z, Y * Z, Z, 1)
    for i, j in combinations(range(4), 2):
        swapped = [*right, 0]
        swapped[i], swapped[j] = right[j], right[i]
        yield "swapped_indices", f"{'xyzb'[i]} and {'xyzb'[j]} are swapped", tuple(swapped)
    for strides in ((1, X, X * Y, X * Y * Z, 0), (1, W, W * X, W * X * Y, 0)):
        yield "wrong_strides", "The order of the indices is reversed", strides
    yield "wrong_strides", "sizeX and sizeY are swapped", (X * Y * Z, X * Z, Z, 1, 0)
    yield "wrong_strides", "sizeX and sizeZ are swapped", (X * Y * Z, X * Y, X, 1, 0)
    yield "wrong_strides", "sizeY and sizeZ are swapped", (X * Y * Z, Y * Z, Y, 1, 0)
    yield "wrong_strides", "sizeY is used for sizeZ, and sizeX for sizeY", (W * X * Y, X * Y, Y, 1, 0)
    yield "missing_factor", "The stride of x lacks the factor sizeX", (Y * Z, Y * Z, Z, 1, 0)
    yield "missing_factor", "The stride of x lacks the factor sizeY", (X * Z, Y * Z, Z, 1, 0)
    yield "missing_factor", "The stride of x lacks the factor sizeZ", (X * Y, Y * Z, Z, 1, 0)
    yield "missing_factor", "The stride of y lacks the factor sizeY", (X * Y * Z, Z, Z, 1, 0)
    yield "missing_factor", "The stride of y lacks the factor sizeZ", (X * Y * Z, Y, Z, 1, 0)
    yield "missing_factor", "The stride of z lacks the factor sizeZ", (X * Y * Z, Y * Z, 1, 1, 0)
    yield "missing_factor", "Each stride has one size in place of the product", (X, Y, Z, 1, 0)
    for k, letter in enumerate("xyzb"):
        yield "missing_term", f"{letter} is not used", (*right[:k], 0, *right[k + 1 :], 0)
    yield "missing_term", "The indices are not used", (0, 0, 0, 0, 0)
    yield "off_by_one", "The offset is one too large", (*right, 1)
    yield "off_by_one", "The offset is one too small", (*right, -1)


def diagnose_read(
    inputs: Mapping[str, Array], shape: Mapping[str, int], expected: Array, actual: Array, wrong: Array
) -> Diagnosis:
    """Explain wrong reads. `expected`, `actual` and the mask `wrong` have an element for each row of `index`."""
    (first,) = first_of(wrong)
    flat = inputs["tensor"].reshape(-1).astype(np.float64)

    def explains(offsets: Array, inside: Array) -> bool:
        """Return True if these offsets explain the values read. Only offsets `inside` the tensor are compared: at least
        a quarter of all must be inside, and the value read for one of these must be wrong."""
        enough = inside.sum() >= max(1, len(offsets) // 4) and wrong[inside].any()
        return bool(enough and (flat[offsets[inside]] == actual[inside]).all())

    if not actual.any():
        code, why = "not_written", "Every read returns 0: fourDimRead is not written yet."
    else:
        code, why = _formula(inputs, shape, explains)
        where = np.flatnonzero(flat == actual[first])
        if len(where) == 1 and code == "wrong_offset":
            right = flat_offsets(inputs["index"], shape)[first]
            why = f"It read offset {where[0]} where {right} is right. {why}"
        elif code == "wrong_offset":
            why = f"The value is not in the tensor, so fourDimRead read outside of it. {why}"
    return _report(code, why, inputs["index"][first], expected[first], actual[first], wrong, shape)


def diagnose_write(
    inputs: Mapping[str, Array], shape: Mapping[str, int], expected: Array, actual: Array, wrong: Array
) -> Diagnosis:
    """Explain wrong writes. `expected` and `actual` are the tensor after all writes. `wrong` is a mask of its wrong
    elements."""
    before, after = inputs["tensor"].reshape(-1).astype(np.float64), actual.reshape(-1)
    flat_wrong, wanted = wrong.reshape(-1), expected.reshape(-1)
    (at,) = first_of(flat_wrong)
    named = np.zeros(len(before), bool)
    named[flat_offsets(inputs["index"], shape)] = True
    both = flat_wrong & named

    def explains(offsets: Array, inside: Array) -> bool:
        """Return True if writing the values at these offsets, in this order, gives the student's tensor."""
        replayed = before.copy()
        for offset, value in zip(offsets[inside].tolist(), inputs["values"][inside].tolist(), strict=True):
            replayed[offset] = value
        return np.array_equal(replayed, after)

    if np.array_equal(before, after):
        code, why = (
            "not_written",
            "Nothing was written: fourDimWrite is not written yet, or it changes a copy of the tensor.",
        )
    elif not (flat_wrong & ~named).any() and np.array_equal(before[flat_wrong], after[flat_wrong]):
        which = "The last element keeps" if flat_wrong.sum() == flat_wrong[-1] else "These elements keep"
        code = "element_skipped"
        why = f"{which} the old value, because it is never overwritten: look for a condition on the offset."
    elif both.any() and np.array_equal((before + wanted)[both], after[both]):
        code, why = "wrong_value", "`val` is added to the old value: write it with = and not +=."
    elif not both.any():
        code, why = "extra_write", "The right elements are written, but other elements are changed, too."
    elif flat_wrong.sum() <= len(inputs["index"]) // 4:
        code = "extra_write"
        why = "Most elements are written correctly, but other writes change a few of them again."
    else:
        code, why = _formula(inputs, shape, explains)
        if code == "wrong_offset" and not np.isin(after, np.concatenate([before, inputs["values"]])).all():
            code, why = "wrong_value", "The stored values are not those of `val`."
    index = np.array(np.unravel_index(at, inputs["tensor"].shape))
    return _report(code, why, index, wanted[at], after[at], flat_wrong, shape)


def _formula(
    inputs: Mapping[str, Array], shape: Mapping[str, int], explains: Callable[[Array, Array], bool]
) -> tuple[str, str]:
    """Return code and words of the first wrong formula that explains the result, else the code "wrong_offset".

    `explains(offsets, inside)` gets the formula's offset for each row of the indices, and the mask of the offsets that
    lie in the tensor.
    """
    for code, words, (*factors, constant) in formulas(shape):
        offsets = inputs["index"] @ np.array(factors) + constant
        if explains(offsets, (offsets >= 0) & (offsets < inputs["tensor"].size)):
            return code, f"{words}. The offset is {RIGHT}."
    return "wrong_offset", f"The offset is {RIGHT}: the last index is contiguous."


def _report(
    code: str, why: str, at: Array, expected: Array, actual: Array, wrong: Array, shape: Mapping[str, int]
) -> Diagnosis:
    index = tuple(at.tolist())
    place = ", ".join(f"{letter}={i}" for letter, i in zip("xyzb", index, strict=True))
    sizes = tuple(shape[key] for key in "BHNd")
    count, total = int(wrong.sum()), wrong.size
    message = (
        f"{why} Element ({place}) of a tensor of shape {sizes}: expected {expected:g}, got {actual:g}; "
        f"{count} of {total} elements are wrong."
    )
    return Diagnosis(code, message, index, float(expected), float(actual), count, total)


def flat_offsets(index: Array, shape: Mapping[str, int]) -> Array:
    """Return the row-major offsets, int64 (M,), of the rows (x, y, z, b) of `index` in a tensor of (B, H, N, d).

    The published convention: x * sizeX sizeY sizeZ + y * sizeY sizeZ + z * sizeZ + b, with sizes H, N and d.
    """
    x, y, z, b = index.T
    return ((x * shape["H"] + y) * shape["N"] + z) * shape["d"] + b
