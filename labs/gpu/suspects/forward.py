"""Suspects of attention's forward pass: mistakes, and the outputs that they would give."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, row

from .scene import LOG2_E, TILES, Heads, in_blocks, last_tile, running_maxima, softmax_of

Outputs = dict[str, Array]
MASKED_AS_ZERO = "Masked scores are 0, and count exp(0): they have to be -inf."


def _hidden(h: Heads, seen: Array) -> Outputs:
    return softmax_of(np.where(seen[None], h.scaled, -np.inf), h.v)


# ---- the mask


def _masked_late(h: Heads) -> Outputs | None:
    if not h.causal:
        return None
    whole = softmax_of(h.scaled, h.v)
    weights = np.exp(h.scaled - whole["L"][..., None]) * h.seen[None]
    return {"O": weights @ h.v, "L": whole["L"]}


def diagonal_tiles(h: Heads, tile: int) -> Array | None:
    """Return the mask (N, M) of a kernel that only masks whole tiles; None without a causal mask or with one tile."""
    if not h.causal or h.keys <= tile:
        return None
    return np.arange(h.keys)[None] // tile <= np.arange(h.queries)[:, None] // tile


def turned_diagonal(h: Heads, tile: int) -> Array | None:
    """Return the mask (N, M) of a kernel that skips tiles beyond the diagonal and reverses the tiles on the diagonal.

    Returns None without a causal mask, or with a single tile.
    """
    if not h.causal or h.keys <= tile:
        return None
    queries, keys = np.arange(h.queries)[:, None], np.arange(h.keys)[None]
    return (keys // tile < queries // tile) | ((keys // tile == queries // tile) & (keys >= queries))


def _padded(h: Heads, tile: int) -> Outputs | None:
    pad = -h.keys % tile
    if not pad or (h.causal and h.queries <= h.keys):
        return None
    most = np.maximum(h.most, 0.0)
    extra = pad * np.exp(-most)
    if h.causal:
        extra = extra * np.clip(np.arange(h.queries) + 1 - h.keys, 0, pad)[None, :, None] / pad
    total = h.total * np.exp(h.most - most) + extra
    return {"O": h.weights * np.exp(h.most - most) @ h.v / total, "L": (most + np.log(total))[..., 0]}


MISTAKES: list[Suspect] = [
    row("no_mask", "mask_missing", "Every query sees every key: the causal mask is missing.",
        lambda h: softmax_of(h.scaled, h.v) if h.causal else None),
    row("reversed_mask", "mask_reversed",
        "The causal mask is on the wrong side of the diagonal: query i sees the keys from i on, and has to see the "
        "keys up to i.",
        lambda h: _hidden(h, h.seen.T if h.queries == h.keys else ~h.seen) if h.causal else None),
    row("complement", "mask_reversed",
        "The causal mask is reversed: query i sees the keys beyond i, and has to see the keys up to i.",
        lambda h: _hidden(h, ~h.seen) if h.causal else None),
    row("strict", "mask_strict", "Query i does not see key i: the mask has to keep keys j <= i, not j < i.",
        lambda h: _hidden(h, np.arange(h.keys)[None] < np.arange(h.queries)[:, None]) if h.causal else None),
    row("one_more", "mask_strict", "Query i also sees key i + 1: the mask has to keep keys j <= i.",
        lambda h: _hidden(h, np.arange(h.keys)[None] <= np.arange(h.queries)[:, None] + 1) if h.causal else None),
    row("from_the_end", "mask_from_end",
        "The mask is aligned with the last key: query i has to see the keys 0 ... i, also if there are more keys than "
        "queries.",
        lambda h:
            None if not h.causal or h.queries == h.keys else
            _hidden(h, np.arange(h.keys)[None] <= np.arange(h.queries)[:, None] + h.keys - h.queries)),
    row("masked_as_zero", "mask_as_zero", MASKED_AS_ZERO,
        lambda h: softmax_of(np.where(h.seen[None], h.scaled, 0.0), h.v) if h.causal else None),
    *in_blocks("masked as zero in tiles of {}", "mask_as_zero", MASKED_AS_ZERO,
        lambda h, tile: None if (seen := diagonal_tiles(h, tile)) is None else
            softmax_of(np.where(seen[None], np.where(h.seen[None], h.scaled, 0.0), -np.inf), h.v), TILES),
    row("masked_late", "mask_after_exp",
        "The mask hides values, not weights: the row's sum still contains the masked keys.", _masked_late),
    row("mask_not_asked", "mask_always", "The causal mask is applied although `causal` is False.",
        lambda h: None if h.causal else softmax_of(replace(h, causal=True).s, h.v)),
    *in_blocks("diagonal tiles of {}", "mask_by_tiles",
        "Whole tiles are masked and single keys are not: within the tile on the diagonal each query sees all keys.",
        lambda h, tile: None if (seen := diagonal_tiles(h, tile)) is None else _hidden(h, seen), TILES),
    *in_blocks("turned tiles of {}", "mask_reversed",
        "The causal mask is on the wrong side of the diagonal within its tiles: query i has to see the keys up to i.",
        lambda h, tile: None if (seen := turned_diagonal(h, tile)) is None else _hidden(h, seen), TILES),
    *in_blocks("padded to {}", "tail_unmasked",
        "The sum counts keys beyond the last one: they are loaded as 0, so their scores are 0 and each adds exp(0 - "
        "maximum). Set the scores of keys j >= M to -inf.", _padded, TILES),
]  # fmt: skip


# ---- the online softmax


def _online(h: Heads, tile: int, say: str) -> Outputs | None:
    """Return O and L if the accumulator, the sum ("l") or both are not rescaled; None with a single tile.

    `say`: "acc" or "l" if only this one is not rescaled, "neither" if both are not.
    """
    if h.keys <= tile:
        return None
    now = running_maxima(h.s, tile)
    taken = np.exp(np.where(h.seen[None], h.s - np.where(np.isneginf(now), 0.0, now), -np.inf))
    l_old = taken.sum(2, keepdims=True)
    if say == "acc":
        return {"O": taken @ h.v / h.total, "L": h.right[1]}
    o = taken @ h.v if say == "neither" else h.weights @ h.v
    return {"O": o / l_old, "L": (h.most + np.log(l_old))[..., 0]}


for say, words in (
    (
        "acc",
        "The accumulator is not rescaled when the maximum grows: multiply it by exp(old maximum - new maximum) in each "
        "tile.",
    ),
    (
        "l",
        "The sum l is not rescaled when the maximum grows: multiply it by exp(old maximum - new maximum) in each tile.",
    ),
    (
        "neither",
        "Neither accumulator nor sum is rescaled when the maximum grows: multiply both by exp(old maximum - new "
        "maximum).",
    ),
):
    predict = partial(_online, say=say)
    MISTAKES += in_blocks(f"{say} not rescaled, tiles of {{}}", "no_rescale", words, predict, TILES)


def _tiles_of_keys(h: Heads, tile: int, say: str) -> Outputs | None:
    """Return the outputs if the loop over tiles of keys has the mistake called `say`; None if sizes or mask rule it
    out."""
    keys, own_tile = np.arange(h.keys)[None], np.arange(h.queries)[:, None] // tile
    if say == "dropped":
        kept = keys < h.keys // tile * tile
        return _hidden(h, h.seen & kept) if h.keys % tile and h.keys > tile else None
    if h.keys <= tile or (say == "diagonal" and not h.causal):
        return None
    if say == "last":
        kept = keys // tile == own_tile if h.causal else keys >= last_tile(h.keys, tile)
    else:
        # "first": only the first tile counts. "diagonal": the loop ends before the tile on the diagonal.
        kept = keys < tile if say == "first" else keys < own_tile * tile
    return _hidden(h, h.seen & kept)


for say, code, words in (
    (
        "dropped",
        "dropped_block",
        "The keys beyond the last full tile are left out: count tiles by ceiling division.",
    ),
    (
        "last",
        "last_block_only",
        "Only the last tile of keys counts: the sums of earlier tiles are overwritten.",
    ),
    (
        "first",
        "first_block_only",
        "Only the first tile of keys counts: is there a loop over keys, and do its pointers move?",
    ),
    (
        "diagonal",
        "diagonal_dropped",
        "The tile of keys on the diagonal is left out, but queries must see its lower half.",
    ),
):
    MISTAKES += in_blocks(f"{say} tile of {{}}", code, words, partial(_tiles_of_keys, say=say), TILES)


def _without_maximum(h: Heads) -> Outputs:
    weights = np.exp(h.s.astype(np.float32))
    total = weights.sum(2, keepdims=True)
    return {"O": weights @ h.v / total, "L": np.log(total)[..., 0]}


def _begun_at_zero(h: Heads) -> Outputs:
    most = np.maximum(h.most, 0.0)
    weights = np.exp((h.s - most).astype(np.float32)).astype(np.float64)
    total = weights.sum(2, keepdims=True)
    return {"O": weights @ h.v / total, "L": (most + np.log(total))[..., 0]}


# ---- scale and base


def _scaled_by(h: Heads, factor: float) -> Outputs:
    return softmax_of(np.where(h.seen[None], h.plain * factor, -np.inf), h.v)


def _rescaled_by_base(h: Heads, tile: int, of_old: float) -> Outputs | None:
    """Predict outputs if weights have one base and are rescaled in another, such as 2^(m_old - m) in place of
    e^(m_old - m). The rescaling used is exp(of_old (m_old - m)). None with a single tile."""
    if h.keys <= tile:
        return None
    now = running_maxima(h.s, tile)
    finite = np.where(np.isneginf(now), 0.0, now)
    factor = np.exp(np.where(np.isneginf(now), -np.inf, (finite - h.most) * of_old))
    taken = np.exp(np.where(h.seen[None], h.s - finite, -np.inf)) * factor
    total = taken.sum(2, keepdims=True)
    return {"O": taken @ h.v / total, "L": (h.most + np.log(total))[..., 0]}


MISTAKES += [
    row("not_divided", "not_normalised", "The rows of O are not divided by the sums of their weights.",
        lambda h: {"O": h.weights @ h.v, "L": h.right[1]}),
    row("by_count", "divided_by_keys",
        "The rows of O are divided by the number of keys, not by the sum of their weights.",
        lambda h: {"O": h.weights @ h.v / h.keys, "L": h.right[1]}),
    row("twice", "divided_twice", "The rows of O are divided by the sums of their weights twice.",
        lambda h: {"O": h.right[0] / h.total, "L": h.right[1]}),
    row("no_maximum", "no_maximum",
        "The maximum is not subtracted: exp(s) overflows above 88.7, and is 0 below -104.", _without_maximum),
    row("begun_at_zero", "maximum_start",
        "The maximum begins at 0: in rows whose scores are all far below 0, all weights are 0. Begin at -inf.",
        _begun_at_zero),
    row("unscaled", "scale_missing", "The scores are not multiplied by 1/sqrt(d).", lambda h: _scaled_by(h, 1.0)),
    row("by d", "scale_wrong", "The scores are divided by d, not by sqrt(d).", lambda h: _scaled_by(h, 1.0 / h.d)),
    row("by root again", "scale_wrong", "The scores are multiplied by sqrt(d), not divided by it.",
        lambda h: _scaled_by(h, h.d**0.5)),
    row("base 2", "base_mixed",
        "The weights are powers of 2: exp2() needs scores that are multiplied by log2(e) = 1.4427.",
        lambda h: _scaled_by(h, h.d**-0.5 / LOG2_E)),
    row("log2(e) and exp", "base_mixed",
        "The scores are multiplied by log2(e), but then exp() is used in place of exp2().",
        lambda h: _scaled_by(h, h.d**-0.5 * LOG2_E)),
]  # fmt: skip
for factor in (1 / LOG2_E, LOG2_E):
    MISTAKES += in_blocks(
        f"rescaled to {factor:.3g}, tiles of {{}}",
        "base_mixed",
        "The weights are computed with exp(), but rescaled with exp2() (or the other way round): both need the same "
        "base.",
        partial(_rescaled_by_base, of_old=factor),
        TILES,
    )


MISTAKES += [
    row("base_two_sum", "sum_base",
        "L is a logarithm to base 2: divide it by log2(e), or take log() and the maximum of the natural scores.",
        lambda h: {"O": h.right[0], "L": h.right[1] * LOG2_E}),
    row("mixed_sum", "sum_base", "L adds a maximum in units of log2 to a natural logarithm: both need the same base.",
        lambda h: {"O": h.right[0], "L": (h.most * LOG2_E + np.log(h.total))[..., 0]}),
    row("mixed_logarithm", "sum_base", "L adds a logarithm to base 2 to a natural maximum: both need the same base.",
        lambda h: {"O": h.right[0], "L": (h.most + np.log2(h.total))[..., 0]}),
    row("without_maximum", "sum_without_maximum", "L is log(l) alone: the maximum has to be added.",
        lambda h: {"O": h.right[0], "L": np.log(h.total)[..., 0]}),
    row("without_logarithm", "sum_without_logarithm", "L is maximum + l: it has to be maximum + log(l).",
        lambda h: {"O": h.right[0], "L": (h.most + h.total)[..., 0]}),
    row("sum_alone", "sum_alone", "L is the sum of the weights: it has to be maximum + log(sum).",
        lambda h: {"O": h.right[0], "L": h.total[..., 0]}),
    row("maximum_alone", "maximum_alone", "L is the maximum of the scores: log(l) has to be added.",
        lambda h: {"O": h.right[0], "L": h.most[..., 0]}),
    row("keys_for_values", "operand_exchanged",
        "Keys are used as values: the weights multiply k, and have to multiply v.",
        lambda h: {"O": h.weights @ h.k / h.total, "L": h.right[1]}),
    row("values_for_keys", "operand_exchanged",
        "Values are used as keys: the scores are q v^T, and have to be q k^T.",
        lambda h: softmax_of(np.where(h.seen[None], (h.q @ h.v.swapaxes(1, 2) * h.d**-0.5), -np.inf), h.v)),
    row("first_head", "first_head",
        "Every head has the result of the first head: add the head's number times its stride to the pointers.",
        lambda h:
            None if len(h.q) < 2 else
            {name: np.repeat(t[:1], len(h.q), 0) for name, t in zip("OL", h.right, strict=True)}),
]  # fmt: skip


def _read_as_rows(t: Array) -> Array:
    """Return the tensor (B, N, d) that a kernel sees if it ignores strides, while `t` is stored as (N, B, d)."""
    return t.swapaxes(0, 1).reshape(t.shape)


def _misread(h: Heads, names: str) -> Outputs | None:
    if len(h.q) < 2:
        return None
    other = replace(h, **{name: _read_as_rows(getattr(h, name)) for name in names})
    return softmax_of(other.s, other.v)


for names in ("qkv", "q", "k", "v", "kv"):
    words = (
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} read as if the heads were contiguous in memory: "
        "use the tensor's strides."
    )
    predict = partial(_misread, names=names)
    MISTAKES.append(row(f"{names} not contiguous", "operand_not_contiguous", words, predict))
