"""Suspected bugs of loops over blocks (dropped remainders, overwritten sums), and of numbers with too few bits.

The student's tile length is unknown, so all usual lengths are tried. Several lengths can leave the same remainder, and
so give the same prediction. Such lengths form one suspect, which has a name for each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial

from grader.core import precision
from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, row
from grader.explain.wrong_places import USUAL_TILES, likely_tiles

from ..scene import Scene, softmax

#: Advice for a kernel that leaves out a remainder. {0} stands for the size's name, N or d.
_REST = (
    "Neither tiles ({0} / tile rounds down) nor an unrolled loop may leave out the rest: let the last tile end at {0}, "
    "or add a loop over the rest."
)


def suspects(s: Scene) -> Iterator[Suspect]:
    """Yield the suspects of this file that depend on the scene's sizes. The others are in SUSPECTS."""
    yield from _remainders(s)
    yield from _single_blocks(s)
    yield from _each_tile(s)


def _tiles(s: Scene) -> tuple[int, ...]:
    return tuple(s.shape[key] for key in ("Bc", "Br") if key in s.shape)


@functools.lru_cache(maxsize=1024)
def _cuts(tiles: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the indices below `size` at which the last full tile can end, the most likely first; never 0."""
    # With a cut at 0 no full tile exists and nothing gets computed. Simpler suspects explain such an output.
    cuts = {size // t * t for t in (*tiles, *USUAL_TILES)} - {size, 0}
    found = [(cut, likely_tiles(cut, size, tiles)) for cut in cuts]
    order = [*tiles, 16, 32, 8, 64, 4]
    found.sort(key=lambda item: min((order.index(t) for t in item[1] if t in order), default=len(order)))
    return tuple(cut for cut, _ in found)


@functools.lru_cache(maxsize=4096)
def _named(
    what: str, own: tuple[tuple[str, int], ...], start: int, size: int, *, last: bool
) -> tuple[str, ...]:
    """Return names that begin with `what`, one for each tile length with which the last tile begins at `start`.

    `last`: False if this tile must be incomplete. `own` has the pairs ("Bc", Bc) and ("Br", Br). These lengths vary
    from case to case, so a name has "Bc" or "Br" in place of the number.
    """

    def fits(tile: int) -> bool:
        if last:
            return 0 < tile < size and (size - 1) // tile * tile == start
        return tile > 0 and size // tile * tile == start

    fitting = (*(key for key, tile in own if fits(tile)), *filter(fits, USUAL_TILES))
    return tuple(f"{what}, tiles of {tile}" for tile in fitting)


def _beyond(what: str, s: Scene, cut: int, size: int, *, last: bool = False) -> tuple[str, ...]:
    return _named(what, tuple((key, s.shape.get(key, 0)) for key in ("Bc", "Br")), cut, size, last=last)


def _remainders(s: Scene) -> Iterator[Suspect]:
    n, d = s.keys, s.d
    for cut in _cuts(_tiles(s), n):
        count = "key" if n - cut == 1 else f"{n - cut} keys"
        where = f"The last {count} of {n}, from {cut} on, beyond the last full tile,"
        hint = _REST.format("N")
        yield Suspect(
            "remainder_keys",
            f"{where} are left out of the product with V (they are in the row sum). {hint}",
            lambda s, c=cut: s.probabilities[:, :, :c] @ s.v[:, :c],
            _beyond("remainder of keys not in the product", s, cut, n),
        )
        yield Suspect(
            "remainder_keys",
            f"{where} are left out. {hint}",
            lambda s, c=cut: s.some_keys(slice(0, c)),
            _beyond("remainder of keys left out", s, cut, n),
        )
        yield Suspect(
            "remainder_keys",
            f"{where} are left out of the row sum (they are in the product with V). {hint}",
            lambda s, c=cut: s.weights @ s.v / s.weights[:, :, :c].sum(2, keepdims=True),
            _beyond("remainder of keys not in the sum", s, cut, n),
        )
        held = "the old values in QK_t (0, or weights of the previous head) count as their scores"
        no_scores = f"{where} get no score, because Q K^T is not computed for them: {held}. {hint}"
        yield Suspect(
            "remainder_keys",
            no_scores,
            lambda s, c=cut: s.attend(np.where(np.arange(s.keys) < c, s.scores, 0.0)),
            _beyond("remainder of keys without scores", s, cut, n),
        )
        yield Suspect(
            "remainder_keys",
            no_scores,
            lambda s, c=cut: _stale(s, np.arange(s.keys) < c, in_product=True),
            _beyond("remainder of keys stale", s, cut, n),
        )
        yield Suspect(
            "remainder_keys",
            f"{where} are left out of both products, yet the row sum counts them: {held}. {hint}",
            lambda s, c=cut: _stale(s, np.arange(s.keys) < c, in_product=False),
            _beyond("remainder of keys in the sum alone", s, cut, n),
        )
    for cut in _cuts(_tiles(s), d):
        count = "channel" if d - cut == 1 else f"{d - cut} channels"
        which = f"The last {count} of {d}, from {cut} on, beyond the last full tile,"
        hint = _REST.format("d")

        def scores(s: Scene, c: int = cut) -> Array:
            return s.q[:, s.rows, :c] @ s.k[:, :, :c].mT

        yield Suspect(
            "remainder_channels",
            f"{which} are left out of Q K^T. {hint}",
            lambda s, scores=scores: s.attend(scores(s)),
            _beyond("remainder of channels left out", s, cut, d),
        )
        yield Suspect(
            "remainder_channels",
            f"{which} are left out of Q K^T and of the output. {hint}",
            lambda s, c=cut, scores=scores: s.attend(scores(s)) * (np.arange(s.d) < c),
            _beyond("remainder of channels left out of both", s, cut, d),
        )


def _stale(s: Scene, scored: Array, in_product: bool) -> Array | None:
    """Predict the output of a kernel that computes no scores for some keys: `scored` (N,) is False for these.

    In the place of their scores are the previous head's weights (zeros in head 0). `in_product`: True if the product
    with V includes these keys. Return None if the scene does not begin with head 0.
    """
    if s.first:
        return None
    out, left = [], np.zeros_like(s.scores[0])
    for g, scores in enumerate(s.scores):
        left = softmax(np.where(scored, scores, left), 1)
        out.append((left if in_product else left * scored) @ s.v[g])
    return np.stack(out)


def _stale_places(s: Scene, tile: int) -> Array:
    """Predict the output if a shorter last tile (of keys and of channels) is used as if it were full.

    The end of such a tile still has values of the previous tile, which count again.
    """

    def again(size: int) -> slice:
        full = size // tile * tile
        return slice(full - tile + size % tile, full) if full and size % tile else slice(0)

    c, j = again(s.d), again(s.keys)
    weights = softmax(s.scores + s.q[:, s.rows, c] @ s.k[:, :, c].mT, 2)
    return weights @ s.v + weights[:, :, j] @ s.v[:, j]


def _all_but_the_last(s: Scene, tile: int) -> Array:
    """Return a mask (N,) that is False for the last key of each tile."""
    key = np.arange(s.keys)
    return np.asarray((key % tile != tile - 1) & (key != s.keys - 1))


def _in_tiles(values: Array, tile: int, reduce: Callable[..., Array]) -> Array:
    """Return for each key the reduction of `values` (G, R, N) over its tile. `reduce`: for example np.add.reduceat."""
    keys = values.shape[2]
    each = reduce(values, np.arange(0, keys, tile), axis=2)
    return np.repeat(each, tile, axis=2)[:, :, :keys]


def _carried_on(s: Scene, tile: int) -> Array:
    """Return scores (G, R, N) to which the scores of all earlier keys of the same tile are added."""
    sums = s.scores.cumsum(2)
    before = (sums - s.scores)[:, :, ::tile]
    return sums - np.repeat(before, tile, axis=2)[:, :, : s.keys]


def _each_tile(s: Scene) -> Iterator[Suspect]:
    """Yield mistakes that occur in each tile of keys separately."""
    own = {key: s.shape[key] for key in ("Bc", "Br") if key in s.shape}
    for which, t in (*own.items(), *((str(t), t) for t in USUAL_TILES)):
        if not 1 < t < s.keys:
            continue
        yield Suspect(
            "tile_normalised",
            f"Each tile of {t} keys is divided by its own sum, as if it were the whole row: add the weights of all "
            "tiles of the row, and divide after the last tile.",
            lambda s, t=t: s.weights / _in_tiles(s.weights, t, np.add.reduceat) @ s.v,
            (f"tiles of {which} normalised",),
        )
        yield Suspect(
            "stale_scores",
            f"The score is not set back to zero for the next key of its tile of {t}: it grows along the tile.",
            lambda s, t=t: s.attend(_carried_on(s, t)),
            (f"score kept in tiles of {which}",),
        )
        last = f"The last key of each tile of {t}"
        hint = "Check the end of each loop: for a test with <, it is the last index plus 1."
        yield Suspect(
            "tile_end",
            f"{last} gets no score, because a loop of Q K^T ends one too early: the old value in QK_t (0, or a weight "
            f"of the previous head) counts as its score. {hint}",
            lambda s, t=t: _stale(s, _all_but_the_last(s, t), in_product=True),
            (f"last of tiles of {which} stale",),
        )
        yield Suspect(
            "tile_end",
            f"{last} is left out of the product with V (it is in the row sum). {hint}",
            lambda s, t=t: s.probabilities * _all_but_the_last(s, t) @ s.v,
            (f"last of tiles of {which} not in the product",),
        )
        yield Suspect(
            "tile_end",
            f"{last} is left out. {hint}",
            lambda s, t=t: s.attend(np.where(_all_but_the_last(s, t), s.scores, -np.inf)),
            (f"last of tiles of {which} left out",),
        )


def _single_blocks(s: Scene) -> Iterator[Suspect]:
    n, d = s.keys, s.d
    lasts = {(n - 1) // t * t: t for t in (*USUAL_TILES, *reversed(_tiles(s))) if t < n}
    for start in lasts:
        yield Suspect(
            "block_overwritten",
            f"Only the last block of keys, from {start} on, is in the product with V: each block overwrites the sum "
            "of earlier blocks, or sets it to zero, in place of adding to it.",
            lambda s, c=start: s.probabilities[:, :, c:] @ s.v[:, c:],
            _beyond("last block in the product", s, start, n, last=True),
        )
        yield Suspect(
            "last_block_only",
            f"Only the last block of keys, from {start} on, is used: are the sums over blocks set to zero, or "
            "overwritten, inside the loop over blocks?",
            lambda s, c=start: s.some_keys(slice(c, None)),
            _beyond("last block alone", s, start, n, last=True),
        )
        yield Suspect(
            "last_block_sum",
            f"Each row is divided by the sum of its last block of keys alone, from {start} on: is the "
            "row sum set to zero, or overwritten, inside the loop over blocks?",
            lambda s, c=start: s.weights @ s.v / s.weights[:, :, c:].sum(2, keepdims=True),
            _beyond("last block in the sum", s, start, n, last=True),
        )
    # Bc and Br change from case to case. Leave their numbers out of the names, so that all cases give the same names.
    named = {f"{key} of the shape": s.shape[key] for key in ("Bc", "Br") if key in s.shape}
    for which, t in (*named.items(), *((str(t), t) for t in USUAL_TILES)):
        if t >= n:
            continue
        yield Suspect(
            "first_block_only",
            f"Only the first {t} keys are used.",
            lambda s, c=t: s.some_keys(slice(0, c)),
            (f"first {which} alone",),
        )
        yield Suspect(
            "first_block_only",
            f"Only the first {t} keys are in the product with V.",
            lambda s, c=t: s.probabilities[:, :, :c] @ s.v[:, :c],
            (f"first {which} in the product",),
        )
        yield Suspect(
            "first_block_missing",
            f"The first {t} keys are left out.",
            lambda s, c=t: s.some_keys(slice(c, None)),
            (f"first {which} left out",),
        )
    for start in {(d - 1) // t * t: t for t in USUAL_TILES if t < d}:
        yield Suspect(
            "score_overwritten",
            f"The scores hold the products of the last channels only, from {start} on: each tile of d overwrites the "
            "score, or sets it to zero again, in place of adding to it.",
            lambda s, c=start: s.attend(s.q[:, s.rows, c:] @ s.k[:, :, c:].mT),
            _beyond("last tile of channels", s, start, d, last=True),
        )
    for t in (4, 8, 16, 32, 64):
        yield Suspect(
            "tile_not_cleared",
            f"The last tile of {t} is not full, yet all its places are multiplied: old values from the previous tile "
            "count again. Set the tile to zero before it is filled, or end its loops at the last element.",
            lambda s, t=t: _stale_places(s, t),
            (f"stale places in tiles of {t}",),
        )
    for t in (t for t in USUAL_TILES if t < d):
        yield Suspect(
            "channels_missing",
            f"Only the first {t} channels are used in Q K^T.",
            lambda s, c=t: s.attend(s.q[:, s.rows, :c] @ s.k[:, :, :c].mT),
            (f"first {t} channels",),
        )


# ---- suspected losses of precision


def _cut_to_float16(values: Array) -> Array:
    """Round towards zero to float16; the result is float64."""
    near = values.astype(np.float16)
    beyond = abs(near.astype(np.float64)) > abs(values)
    return np.where(beyond, np.nextafter(near, np.float16(0)), near).astype(np.float64)


def _cut_to_bfloat16(values: Array) -> Array:
    """Keep the upper 16 bits of each float32 number; the result is float64."""
    bits = values.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32).astype(np.float64)


def _with_inputs(narrowed: Callable[[Array], Array], s: Scene) -> Array:
    q, k, v = (narrowed(t).astype(np.float64) for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


_WORDS = "The inputs have been {}. Keep float32 throughout."
_NARROWED: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
    ("float16_inputs", "rounded to half precision (float16)", partial(precision.rounded, precision=11)),
    ("bfloat16_inputs", "rounded to bfloat16", partial(precision.rounded, precision=8)),
    (
        "inputs_cut_to_bfloat16",
        "cut to bfloat16: the lower 16 bits of each float are dropped",
        _cut_to_bfloat16,
    ),
    ("inputs_cut_to_float16", "cut to half precision (float16), towards zero", _cut_to_float16),
)
SUSPECTS = [
    row(name, "low_precision", _WORDS.format(words), partial(_with_inputs, narrowed))
    for name, words, narrowed in _NARROWED
]
SUSPECTS += [
    row("whole_scores", "low_precision",
        "The scores or weights are stored as whole numbers somewhere: look for an int that should be a float.",
        lambda s: s.attend(np.trunc(s.scores))),
]  # fmt: skip
