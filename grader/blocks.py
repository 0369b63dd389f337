"""Suspected bugs that depend on a block length: remainders dropped, blocks overwritten, the flash update
done wrong.

A student's tile size is not known, so all usual ones are tried; different ones that cut at the same place
give one prediction, whose words name the likely lengths. The flash suspects replay the published update
with one step changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from grader.scene import Scene, Suspect

#: Tile lengths that people use; the assignment's own Br and Bc are tried as well.
USUAL_TILES = (*range(2, 65), 80, 96, 100, 112, 120, 128, 192, 256, 512)


def block_suspects(s: Scene) -> Iterator[Suspect]:
    """Every suspect of this file that applies to the scene, simpler ones first."""
    yield from _flash(s)
    yield from _remainders(s)
    yield from _single_blocks(s)


def likely_tiles(cut: int, size: int, shape_tiles: Iterable[int] = (), limit: int = 4) -> list[int]:
    """Tile lengths whose last full tile of `size` ends at `cut`, likeliest first: the assignment's own block
    lengths, then powers of two from 16 up and down, then the others."""
    fits = [t for t in dict.fromkeys((*shape_tiles, *USUAL_TILES)) if t > 1 and size // t * t == cut]
    usual = [*shape_tiles, 16, 32, 8, 64, 4, 128, 256, 512, 2]
    return sorted(fits, key=lambda t: (usual.index(t) if t in usual else len(usual), t))[:limit]


def in_words(tiles: list[int]) -> str:
    return " or ".join(str(tile) for tile in tiles)


def _tiles(s: Scene) -> tuple[int, ...]:
    return tuple(s.shape[key] for key in ("Bc", "Br") if key in s.shape)


def _cuts(s: Scene, size: int) -> list[tuple[int, list[int]]]:
    """Where full tiles may end, with a remainder behind: (cut, likely tiles), likeliest first."""
    cuts = {size // t * t for t in (*_tiles(s), *USUAL_TILES)} - {size}
    found = [(cut, likely_tiles(cut, size, _tiles(s))) for cut in cuts]
    order = [*_tiles(s), 16, 32, 8, 64, 4]
    return sorted(
        found, key=lambda item: min((order.index(t) for t in item[1] if t in order), default=len(order))
    )


def _remainders(s: Scene) -> Iterator[Suspect]:
    n, d = s.keys, s.d
    for cut, tiles in _cuts(s, n):
        where = f"The {n - cut} keys from {cut} on, those beyond the last full tile of {in_words(tiles)},"
        hint = "Let the loop bounds of the last tile end at N."
        yield Suspect(
            "remainder_keys",
            f"{where} are left out of the product with V (they are in the row sum). {hint}",
            lambda s, c=cut: s.probabilities[:, :, :c] @ s.v[:, :c],
        )
        if cut:
            yield Suspect(
                "remainder_keys", f"{where} are left out. {hint}", lambda s, c=cut: s.some_keys(slice(0, c))
            )
            yield Suspect(
                "remainder_keys",
                f"{where} are left out of the row sum (they are in the product with V). {hint}",
                lambda s, c=cut: s.weights @ s.v / s.weights[:, :, :c].sum(2, keepdim=True),
            )
        yield Suspect(
            "remainder_keys",
            f"{where} get a score of 0: Q K^T is not computed for them. {hint}",
            lambda s, c=cut: s.attend(s.scores.masked_fill(torch.arange(s.keys) >= c, 0.0)),
        )
    for cut, tiles in _cuts(s, d):
        yield Suspect(
            "remainder_channels",
            f"The {d - cut} channels from {cut} on, those beyond the last full tile of {in_words(tiles)}, are left out "
            "of Q K^T. Let the loop bounds of the last tile end at d.",
            lambda s, c=cut: s.attend(s.q[:, s.rows, :c] @ s.k[:, :, :c].mT),
        )


def _single_blocks(s: Scene) -> Iterator[Suspect]:
    n, d = s.keys, s.d
    lasts = {(n - 1) // t * t: t for t in (*USUAL_TILES, *reversed(_tiles(s))) if t < n}
    for start, t in lasts.items():
        yield Suspect(
            "block_overwritten",
            f"Only the last block of keys, from {start} on (blocks of {t}), is in the product with V: each block "
            "overwrites the sum of those before in place of adding to it.",
            lambda s, c=start: s.probabilities[:, :, c:] @ s.v[:, c:],
        )
        yield Suspect(
            "last_block_only",
            f"Only the last block of keys, from {start} on (blocks of {t}), is used.",
            lambda s, c=start: s.some_keys(slice(c, None)),
        )
    for t in [*_tiles(s), *USUAL_TILES]:
        if t >= n:
            continue
        yield Suspect(
            "first_block_only", f"Only the first {t} keys are used.", lambda s, c=t: s.some_keys(slice(0, c))
        )
        yield Suspect(
            "first_block_only",
            f"Only the first {t} keys are in the product with V.",
            lambda s, c=t: s.probabilities[:, :, :c] @ s.v[:, :c],
        )
        yield Suspect(
            "first_block_missing",
            f"The first {t} keys are left out.",
            lambda s, c=t: s.some_keys(slice(c, None)),
        )
    for start, t in {(d - 1) // t * t: t for t in USUAL_TILES if t < d}.items():
        yield Suspect(
            "block_overwritten",
            f"The scores hold the products of the last channels only, from {start} on (tiles of {t}): each tile of d "
            "overwrites the score in place of adding to it.",
            lambda s, c=start: s.attend(s.q[:, s.rows, c:] @ s.k[:, :, c:].mT),
        )
    for t in (t for t in USUAL_TILES if t < d):
        yield Suspect(
            "channels_missing",
            f"Only the first {t} channels are used in Q K^T.",
            lambda s, c=t: s.attend(s.q[:, s.rows, :c] @ s.k[:, :, :c].mT),
        )


# ---- the published flash update, O = (li O + PV) / lnew, with one step changed

#: (O, li, lij, PV) of a block -> (O, li of the next block)
Update = Callable[[Tensor, Tensor, Tensor, Tensor], "tuple[Tensor, Tensor]"]


def _replay(s: Scene, update: Update) -> Tensor:
    """The output after all blocks of Bc keys, each worked in by `update`."""
    out, li, block = torch.zeros_like(s.truth), torch.zeros_like(s.row_sum), s.shape["Bc"]
    for start in range(0, s.keys, block):
        weights = s.weights[:, :, start : start + block]
        out, li = update(out, li, weights.sum(2, keepdim=True), weights @ s.v[:, start : start + block])
    return out


def _not_rescaled(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return (o + pv) / (li + lij), li + lij


def _added(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return o + (li * o + pv) / (li + lij), li + lij


def _not_carried(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return pv / lij, li


def _o_not_loaded(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return pv / (li + lij), li + lij


def _never_divided(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return li * o + pv, li + lij


def _divided_by_lij(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return (li * o + pv) / lij, li + lij


def _divided_by_li(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return (li * o + pv) / torch.where(li > 0, li, lij), li + lij


def _lnew_for_li(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return o + pv / (li + lij), li + lij


def _only_last_lij(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return (li * o + pv) / (li + lij), lij


def _l_forgotten(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return (li * o + pv) / lij, lij


def _l_product(o: Tensor, li: Tensor, lij: Tensor, pv: Tensor) -> tuple[Tensor, Tensor]:
    return (lij * o + pv) / (li + lij), li + lij


_FLASH_BUGS: tuple[tuple[str, str, Update], ...] = (
    (
        "flash_not_rescaled",
        "the old O counts too little: is it read back, and multiplied by li before PV is added?",
        _not_rescaled,
    ),
    ("flash_not_rescaled", "PV / lnew is added to the old O without rescaling it by li / lnew", _lnew_for_li),
    ("flash_not_rescaled", "the old O is multiplied by lij, not by li", _l_product),
    ("flash_l_not_carried", "lnew is lij alone, the sum of one block: it is li + lij", _l_forgotten),
    ("flash_o_twice", "the new value is added to O, which is already in it: assign it", _added),
    (
        "flash_l_not_carried",
        "L is not carried on: store lnew in L, and read it as li in the next block",
        _not_carried,
    ),
    ("flash_l_not_carried", "L holds the sum of the last block alone: store lnew = li + lij", _only_last_lij),
    ("flash_not_rescaled", "the old O is not carried on: read Oi from O before each update", _o_not_loaded),
    ("flash_not_divided", "the division by lnew is missing", _never_divided),
    (
        "flash_not_divided",
        "the division is by lij, the sum of one block, not by lnew = li + lij",
        _divided_by_lij,
    ),
    ("flash_not_divided", "the division is by li, the old sum, not by lnew = li + lij", _divided_by_li),
)


def _flash(s: Scene) -> Iterator[Suspect]:
    block = s.shape.get("Bc", s.keys)
    if not 0 < block < s.keys or s.keys / block > 256:
        return
    for code, words, update in _FLASH_BUGS:
        yield Suspect(
            code,
            f"In the flash update, {words}{'' if words.endswith('?') else '.'}",
            lambda s, u=update: _replay(s, u),
        )
    if s.keys % block:
        yield Suspect(
            "flash_stale_tail",
            f"The last block has only {s.keys % block} of Bc = {block} keys, yet all rows of Kj and Vj are used: "
            "what the block before left there is counted again.",
            _stale_tail,
        )
        yield Suspect(
            "flash_stale_tail",
            f"The last block has only {s.keys % block} of Bc = {block} keys, yet the row sum adds up all of Pij's row: "
            "what the block before left there is counted again.",
            lambda s: s.weights @ s.v / _sum_with_stale_tail(s),
        )


def _stale_keys(s: Scene) -> slice:
    """The keys of the last full block whose places in the tile the remainder does not overwrite."""
    block, full = s.shape["Bc"], s.keys // s.shape["Bc"] * s.shape["Bc"]
    return slice(full - block + s.keys % block, full)


def _sum_with_stale_tail(s: Scene) -> Tensor:
    return s.row_sum + s.weights[:, :, _stale_keys(s)].sum(2, keepdim=True)


def _stale_tail(s: Scene) -> Tensor:
    again = _stale_keys(s)
    return (s.weights @ s.v + s.weights[:, :, again] @ s.v[:, again]) / _sum_with_stale_tail(s)
