"""Suspected bugs of part 4: the published flash update, O = (li O + PV) / lnew, replayed with one step changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from grader.scene import Scene, Suspect

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


def suspects(s: Scene) -> Iterator[Suspect]:
    """Every suspect of this file that applies to the scene."""
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
