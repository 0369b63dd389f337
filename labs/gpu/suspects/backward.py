"""Suspects of attention's backward pass: mistakes, and the gradients that they would give."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, row

from .. import arithmetic
from .forward import diagonal_tiles, turned_diagonal
from .scene import LOG2_E, TILES, Heads, in_blocks, last_tile

Outputs = dict[str, Array]


def _only(found: Outputs, *names: str) -> Outputs:
    return {name: found[name] for name in names}


def _both_by(h: Heads, factor: float) -> Outputs:
    found = h.gradients()
    return {name: found[name] * factor for name in ("dQ", "dK")}


def _of_weights(p: Array, h: Heads) -> Outputs:
    return h.gradients(p, p * (h.dp - h.delta))


def _with_delta(h: Heads, delta: Array | float) -> Outputs:
    return _only(h.gradients(ds=h.p * (h.dp - delta)), "dQ", "dK")


MISTAKES: list[Suspect] = [
    # ---- scale
    row("query_scale_missing", "scale_missing",
        "dQ is not multiplied by 1/sqrt(d): the scores are q k^T / sqrt(d), so are their gradients.",
        lambda h: {"dQ": h.ds @ h.k}),
    row("key_scale_missing", "scale_missing",
        "dK is not multiplied by 1/sqrt(d): the scores are q k^T / sqrt(d), so are their gradients.",
        lambda h: {"dK": h.ds.swapaxes(1, 2) @ h.q}),
    row("scaled twice", "scale_wrong", "The gradient is multiplied by 1/sqrt(d) twice.",
        lambda h: _both_by(h, h.d**-0.5)),
    row("times log2(e)", "base_mixed",
        "The gradient is log2(e) = 1.4427 times what it should be: the factor that exp2() needs belongs to the scores, "
        "not to their gradients.",
        lambda h: _both_by(h, LOG2_E)),
    row("times log(2)", "base_mixed",
        "The gradient is log(2) = 0.6931 times what it should be: the derivative of exp2() is used, but the scores' "
        "factor log2(e) is missing.",
        lambda h: _both_by(h, 1 / LOG2_E)),
    row("value_scaled", "dv_scaled", "dV is multiplied by 1/sqrt(d): dV = P^T dO has no scale.",
        lambda h: {"dV": h.gradients()["dV"] * h.d**-0.5}),
    # ---- weights
    row("without_sum", "weights_not_normalised", "P is exp(s) and not exp(s - L): subtract the saved log-sum-exp.",
        lambda h: _of_weights(np.exp(h.s), h)),
    row("with_maximum", "weights_not_normalised",
        "P is exp(s - maximum): it has to be exp(s - L), because L also contains the row's sum.",
        lambda h: _of_weights(h.weights, h)),
    row("base_two", "base_mixed", "P is exp2() of natural scores and L: multiply both by log2(e), or take exp().",
        lambda h: _of_weights(np.exp2(h.s - h.lse[..., None]), h)),
    row("natural_sum", "base_mixed",
        "P is exp2() of scores in units of log2, but L is natural: multiply L by log2(e), too.",
        lambda h: _of_weights(np.exp2(h.s * LOG2_E - h.lse[..., None]), h)),
    row("natural_scores", "base_mixed",
        "P is exp2() of natural scores, but L is in units of log2: multiply the scores by log2(e), too.",
        lambda h: _of_weights(np.exp2(h.s - h.lse[..., None] * LOG2_E), h)),
    row("unscaled_scores", "score_scale_missing", "P is computed from scores that are not multiplied by 1/sqrt(d).",
        lambda h: _of_weights(np.exp(np.where(h.seen[None], h.plain, -np.inf) - h.lse[..., None]), h)),
    # ---- D, the row sum of dO * O (`delta`)
    row("no D", "delta_missing",
        "D = rowsum(dO * O) is missing: dS = P * (dP - D). A score also changes the sum that divides all weights.",
        lambda h: _with_delta(h, 0.0)),
    row("D added", "delta_sign", "D is added: dS = P * (dP - D).", lambda h: _with_delta(h, -h.delta)),
    row("D of dO", "delta_wrong", "D is rowsum(dO): it has to be rowsum(dO * O).",
        lambda h: _with_delta(h, h.do.sum(2, keepdims=True))),
    row("D of O", "delta_wrong", "D is rowsum(O): it has to be rowsum(dO * O).",
        lambda h: _with_delta(h, h.o.sum(2, keepdims=True))),
    row("D of squares", "delta_wrong", "D is rowsum(O * O): it has to be rowsum(dO * O).",
        lambda h: _with_delta(h, np.square(h.o).sum(2, keepdims=True))),
    row("mean of D", "delta_wrong", "D is the mean over d: it has to be the sum of dO * O.",
        lambda h: _with_delta(h, h.delta / h.d)),
    row("D scaled", "delta_wrong",
        "D is multiplied by 1/sqrt(d) before it is subtracted from dP, which is not scaled: scale dS as a whole.",
        lambda h: _with_delta(h, h.delta * h.d**-0.5)),
    row("delta_outside", "delta_outside",
        "D is subtracted after the product with P: dS = P * (dP - D), and not P * dP - D.",
        lambda h: _only(h.gradients(ds=np.where(h.seen[None], h.p * h.dp - h.delta, 0.0)), "dQ", "dK")),
    row("no_weights", "weights_missing", "dS is dP - D: it has to be multiplied by P.",
        lambda h: _only(h.gradients(ds=np.where(h.seen[None], h.dp - h.delta, 0.0)), "dQ", "dK")),
    # ---- a wrong matrix in a product, or a matrix that is not transposed
    row("dv_not_transposed", "not_transposed", "dV is P dO: it has to be P^T dO, a sum over queries.",
        lambda h: {"dV": h.p @ h.do} if h.queries == h.keys else None),
    row("dk_not_transposed", "not_transposed", "dK is dS q: it has to be dS^T q, a sum over queries.",
        lambda h: {"dK": h.ds @ h.q * h.d**-0.5} if h.queries == h.keys else None),
]  # fmt: skip


def _tiles_not_transposed(h: Heads, tile: int, name: str) -> Outputs:
    """Predict dV or dK (`name`) of a kernel that does not transpose tiles of P (for dV) or of dS (for dK).

    The kernel takes row i of a tile, which belongs to query i of the tile, for key i. Queries beyond the last one are
    loaded as zeros: their scores, L and dO are 0, so their weights are 1 and their dS is 0.
    """
    padded_queries, padded_keys = -(-h.queries // tile) * tile, -(-h.keys // tile) * tile
    left = np.zeros((len(h.q), padded_queries, padded_keys))
    left[:, : h.queries, : h.keys] = h.p if name == "dV" else h.ds
    if name == "dV":
        left[:, h.queries :, : h.keys] = 1.0
    right = np.zeros((len(h.q), padded_queries, h.d))
    right[:, : h.queries] = h.do if name == "dV" else h.q * h.d**-0.5
    tiles = left.reshape(len(h.q), -1, tile, padded_keys // tile, tile)
    found = np.einsum("zaibj,zajd->zbid", tiles, right.reshape(len(h.q), -1, tile, h.d), optimize=True)
    return {name: found.reshape(len(h.q), padded_keys, h.d)[:, : h.keys]}


for name, words in (
    ("dV", "dV is P dO: it has to be P^T dO, a sum over queries."),
    ("dK", "dK is dS q: it has to be dS^T q."),
):
    predict = partial(_tiles_not_transposed, name=name)
    MISTAKES += in_blocks(f"{name} in tiles of {{}}", "not_transposed", words, predict, TILES)


def _masked_by(h: Heads, seen: Array) -> Outputs:
    p = np.exp(np.where(seen[None], h.scaled, -np.inf) - h.lse[..., None])
    return _of_weights(p, h)


def _differentiated(h: Heads, seen: Array) -> Outputs:
    """Return the gradients if both passes have the mask `seen` in place of the right one."""
    s = np.where(seen[None], h.scaled, -np.inf)
    lse = arithmetic.log_sum_exp(s)[..., None]
    p = np.exp(s - np.where(np.isneginf(lse), np.nan, lse))
    delta = (h.do * (p @ h.v)).sum(2, keepdims=True)
    return h.gradients(p, p * (h.dp - delta))


def _unscaled_in_both(h: Heads) -> Outputs:
    found = _differentiated(replace(h, q=h.q * h.d**0.5), h.seen)
    return {**found, "dQ": found["dQ"] * h.d**0.5}


MISTAKES += [
    row("dq_transposed", "not_transposed", "dQ is dS^T k: it has to be dS k, a sum over keys.",
        lambda h: {"dQ": h.ds.swapaxes(1, 2) @ h.k * h.d**-0.5} if h.queries == h.keys else None),
    row("dp_of_keys", "operand_exchanged", "dP is dO k^T: it has to be dO v^T.",
        lambda h: _only(h.gradients(ds=h.p * (h.do @ h.k.swapaxes(1, 2) - h.delta)), "dQ", "dK")),
    row("dv_of_ds", "operand_exchanged", "dV is computed from dS: it has to be P^T dO.",
        lambda h: {"dV": h.ds.swapaxes(1, 2) @ h.do}),
    row("dk_of_weights", "operand_exchanged", "dK is computed from P: it has to be dS^T q.",
        lambda h: {"dK": h.p.swapaxes(1, 2) @ h.q * h.d**-0.5}),
    row("dq_of_weights", "operand_exchanged", "dQ is computed from P: it has to be dS k.",
        lambda h: {"dQ": h.p @ h.k * h.d**-0.5}),
    row("dv_of_output", "operand_exchanged", "dV is P^T O: it has to be P^T dO.",
        lambda h: {"dV": h.p.swapaxes(1, 2) @ h.o}),
    row("dq_of_values", "operand_exchanged", "dQ is dS v: it has to be dS k.",
        lambda h: {"dQ": h.ds @ h.v * h.d**-0.5}),
    row("exchanged", "outputs_exchanged", "dK and dV are exchanged.",
        lambda h: {"dK": h.gradients()["dV"], "dV": h.gradients()["dK"]}),
    # ---- the mask
    row("no_mask", "mask_missing",
        "The backward pass lacks the causal mask: P has to be 0 for keys beyond the query's number.",
        lambda h: _masked_by(h, np.ones_like(h.seen)) if h.causal else None),
    row("reversed_mask", "mask_reversed",
        "The backward pass has its causal mask on the wrong side of the diagonal: query i has to see the keys up to i.",
        lambda h: _masked_by(h, np.arange(h.keys)[None] >= np.arange(h.queries)[:, None]) if h.causal else None),
]  # fmt: skip
MISTAKES += in_blocks(
    "turned tiles of {}",
    "mask_reversed",
    "The backward pass has its causal mask on the wrong side of the diagonal within its tiles: query i has to see the "
    "keys up to i.",
    lambda h, tile: None if (seen := turned_diagonal(h, tile)) is None else _masked_by(h, seen),
    TILES,
)
MISTAKES += [
    row("strict", "mask_strict", "The backward pass leaves out the diagonal: the mask has to keep keys j <= i.",
        lambda h: _masked_by(h, np.arange(h.keys)[None] < np.arange(h.queries)[:, None]) if h.causal else None),
    row("reversed_in_both", "mask_reversed",
        "The causal mask is on the wrong side of the diagonal in both passes: query i has to see the keys up to i.",
        lambda h: _differentiated(h, np.arange(h.keys)[None] >= np.arange(h.queries)[:, None]) if h.causal else None),
    row("missing_in_both", "mask_missing", "Both passes lack the causal mask: every query sees every key.",
        lambda h: _differentiated(h, np.ones_like(h.seen)) if h.causal else None),
    row("strict_in_both", "mask_strict", "Both passes leave out the diagonal: the mask has to keep keys j <= i.",
        lambda h: _differentiated(h, np.arange(h.keys)[None] < np.arange(h.queries)[:, None]) if h.causal else None),
    row("unscaled_in_both", "scale_missing", "Both passes lack the factor 1/sqrt(d) of the scores.", _unscaled_in_both),
    row("mask_not_asked", "mask_always", "The causal mask is applied although `causal` is False.",
        lambda h: None if h.causal else _masked_by(h, replace(h, causal=True).seen)),
    row("masked_in_dv_alone", "mask_late",
        "The mask is applied for dV but not for dS: P has to be 0 at masked scores in both.",
        lambda h: _with_delta(replace(h, causal=False), h.delta) if h.causal else None),
]  # fmt: skip
MISTAKES += in_blocks(
    "diagonal tiles of {}",
    "mask_by_tiles",
    "Whole tiles are masked and single keys are not: within the tile on the diagonal each query sees all keys.",
    lambda h, tile: None if (seen := diagonal_tiles(h, tile)) is None else _masked_by(h, seen),
    TILES,
)


# ---- tiles that are left out


def _kept(h: Heads, kept: Array) -> Outputs:
    return h.gradients(h.p * kept[None], h.ds * kept[None])


def _tiles(h: Heads, tile: int, say: str) -> Outputs | None:
    """Return the gradients that change if a loop over tiles has the mistake called `say`; None if sizes or mask rule it
    out."""
    queries, keys = np.arange(h.queries)[:, None], np.arange(h.keys)[None]
    found: Outputs = {}
    if say == "dropped":
        full_queries, full_keys = h.queries // tile * tile, h.keys // tile * tile
        if h.queries % tile and full_queries:
            found |= _only(_kept(h, queries < full_queries), "dK", "dV")
        if h.keys % tile and full_keys:
            found |= _only(_kept(h, keys < full_keys), "dQ")
    elif say == "last":
        if h.queries > tile:
            found |= _only(_kept(h, queries >= last_tile(h.queries, tile)), "dK", "dV")
        if h.keys > tile:
            kept = keys // tile == queries // tile if h.causal else keys >= last_tile(h.keys, tile)
            found |= _only(_kept(h, kept), "dQ")
    elif h.causal and h.keys > tile:
        # "diagonal": the loop leaves out the tile on the diagonal.
        found |= _kept(h, keys // tile < queries // tile)
    return found or None


for say, code, words in (
    (
        "dropped",
        "dropped_block",
        "The terms beyond the last full tile of the sum are left out (queries for dK and dV, keys for dQ): count tiles "
        "by ceiling division.",
    ),
    (
        "last",
        "last_block_only",
        "Only the last tile of the sum counts: each step overwrites the accumulator, or the stored result.",
    ),
    ("diagonal", "diagonal_dropped", "The tile on the diagonal is left out, but its lower half counts."),
):
    MISTAKES += in_blocks(f"{say} tile of {{}}", code, words, partial(_tiles, say=say), TILES)


MISTAKES += [
    row("first_head", "first_head",
        "Every head has the gradients of the first head: add the head's number times its stride to the pointers.",
        lambda h:
            None if len(h.q) < 2 else {name: np.repeat(t[:1], len(h.q), 0) for name, t in h.gradients().items()}),
    row("negated", "negated", "The sign of the gradient is wrong.",
        lambda h: {name: -t for name, t in h.gradients().items()}),
]  # fmt: skip
