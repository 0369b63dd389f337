"""Suspected bugs of part 4: most repeat the published flash update, O = (li O + PV) / lnew, with one step changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect

from ..scene import Scene

#: One step of the flash loop: (O, li, lij, PV) of a block of keys -> (O, li) for the next block.
Update = Callable[[Array, Array, Array, Array], "tuple[Array, Array]"]


_MAXIMUM, _L = r"\b\w*max\w*\b", r"\bL\b"
"""Values of `Suspect.seen_in`: for sources with a maximum, and for sources with the published update, which uses L."""


def _replay(s: Scene, update: Update) -> Array:
    """Return the output (G, R, d) of a kernel that applies `update` to one block of Bc keys after the other."""
    out, li, block = np.zeros_like(s.truth), np.zeros_like(s.row_sum), s.shape["Bc"]
    for start in range(0, s.keys, block):
        weights = s.weights[:, :, start : start + block]
        out, li = update(out, li, weights.sum(2, keepdims=True), weights @ s.v[:, start : start + block])
    return out


#: Rows: name, code, words for students, and the update with the mistake.
_FLASH_BUGS: tuple[tuple[str, str, str, Update], ...] = (
    (
        "not_rescaled",
        "flash_not_rescaled",
        "the old O counts too little: is it read back, and multiplied by li before PV is added?",
        lambda o, li, lij, pv: ((o + pv) / (li + lij), li + lij),
    ),
    (
        "lnew_for_li",
        "flash_not_rescaled",
        "PV / lnew is added to an old O that is not multiplied by li / lnew",
        lambda o, li, lij, pv: (o + pv / (li + lij), li + lij),
    ),
    (
        "l_product",
        "flash_not_rescaled",
        "the old O is multiplied by lij, not by li",
        lambda o, li, lij, pv: ((lij * o + pv) / (li + lij), li + lij),
    ),
    (
        "l_forgotten",
        "flash_l_not_carried",
        "lnew is lij alone, the sum of one block: it should be li + lij",
        lambda o, li, lij, pv: ((li * o + pv) / lij, lij),
    ),
    (
        "added",
        "flash_o_twice",
        "the old O counts twice: the new value already contains it, so assign the new value to O, do not add it",
        lambda o, li, lij, pv: (o + (li * o + pv) / (li + lij), li + lij),
    ),
    (
        "not_carried",
        "flash_l_not_carried",
        "L is lost from one block of keys to the next: store lnew in L, and read it as li in the next block. L must be "
        "set to zero before the loop over blocks, not inside",
        lambda o, li, lij, pv: (pv / lij, li),
    ),
    (
        "only_last_lij",
        "flash_l_not_carried",
        "L holds the sum of the last block alone: store lnew = li + lij",
        lambda o, li, lij, pv: ((li * o + pv) / (li + lij), lij),
    ),
    (
        "o_not_loaded",
        "flash_not_rescaled",
        "the old O is lost: read Oi from O before each update",
        lambda o, li, lij, pv: (pv / (li + lij), li + lij),
    ),
    (
        "never_divided",
        "flash_not_divided",
        "the division by lnew is missing",
        lambda o, li, lij, pv: (li * o + pv, li + lij),
    ),
    (
        "divided_by_lij",
        "flash_not_divided",
        "the division is by lij, the sum of one block, not by lnew = li + lij",
        lambda o, li, lij, pv: ((li * o + pv) / lij, li + lij),
    ),
    (
        "pv_divided_by_lij",
        "flash_not_divided",
        "PV is divided by lij, the sum of its own block, before it is added to the old O: divide it by lnew = li + lij",
        lambda o, li, lij, pv: (li * o / (li + lij) + pv / lij, li + lij),
    ),
    (
        "divided_by_li",
        "flash_not_divided",
        "the division is by li, the old sum, not by lnew = li + lij",
        lambda o, li, lij, pv: ((li * o + pv) / np.where(li > 0, li, lij), li + lij),
    ),
)


#: Mistakes with a maximum that grows along the keys. Rows: name, the sums that are not rescaled ("l": row sum, "o": O),
#: words about the flash update, and the first words of the message about a kernel without blocks.
_MAXIMUM_BUGS: tuple[tuple[str, str, str, str], ...] = (
    ("old_l_kept", "l", "the old row sum is not multiplied by {} (O is right)", "In the row sum each"),
    (
        "old_o_kept",
        "o",
        "the old O is not multiplied by {} (the row sum is right)",
        "In the product with V each",
    ),
    (
        "nothing_rescaled",
        "lo",
        "neither the old O nor the old row sum is multiplied by {}, or that factor is always 1",
        "Each",
    ),
)
_SCALE = "exp(old maximum - new maximum) when the maximum grows"
_SO_FAR = (
    "{} score is reduced by the maximum of the keys so far, which grows from key to key, not by that of its whole row. "
    "Find the maximum in a loop of its own before; or, if there is one loop, multiply the old {} by "
    f"{_SCALE}."
)


def _with_maximum(s: Scene, kept: str, block: int) -> Array:
    """Return the output of an online softmax that takes the maximum after each block of keys.

    When the maximum grows, the sums in `kept` ("o" for the output, "l" for the row sum) are not rescaled.
    """
    last = np.minimum(np.arange(s.keys) // block * block + block, s.keys) - 1
    running = np.maximum.accumulate(s.scores, 2)[:, :, last]
    of_o, of_l = (np.exp(s.scores - (running if name in kept else running[:, :, -1:])) for name in "ol")
    return of_o @ s.v / of_l.sum(2, keepdims=True)


def _pv_kept(s: Scene, since: str) -> Array | None:
    """Return the output of a kernel that resets PV only once per head (`since`: "head") or never ("all").

    Return None without a tile size Br or `s.all_weights`, and for "all" if the scene does not begin with head 0.
    """
    every, columns, rows = s.all_weights, s.shape["Bc"], s.keys
    if every is None or s.shape.get("Br", 0) < 1 or (since == "all" and s.first):
        return None
    tile = s.shape["Br"]
    out, li = np.zeros_like(s.v), np.zeros((len(s.v), rows, 1))
    left = np.zeros((min(tile, rows), s.d))
    for g in range(len(s.v)):
        if since == "head":
            left[:] = 0
        for start in range(0, rows, columns):
            weights = every[g, :, start : start + columns]
            product, lij = weights @ s.v[g, start : start + columns], weights.sum(1, keepdims=True)
            for top in range(0, rows, tile):
                some = slice(top, min(top + tile, rows))
                left[: some.stop - top] += product[some]
                now = li[g, some] + lij[some]
                out[g, some] = (li[g, some] * out[g, some] + left[: some.stop - top]) / now
                li[g, some] = now
    return out[:, s.rows]


def suspects(s: Scene) -> Iterator[Suspect]:
    """Yield every suspect of this file that applies to the scene."""
    for name, kept, _, where in _MAXIMUM_BUGS:
        sums = " and ".join({"l": "row sum", "o": "O"}[each] for each in kept)
        yield Suspect(
            "maximum_so_far" if len(kept) > 1 else "maximum_not_rescaled",
            _SO_FAR.format(where, sums),
            lambda s, kept=kept: _with_maximum(s, kept, 1),
            (f"{name} key by key",),
            seen_in=_MAXIMUM,
        )
    block = s.shape.get("Bc", 0)
    if block < 1 or s.keys / block > 256:
        return
    for name, code, words, update in _FLASH_BUGS:
        yield Suspect(
            code,
            f"In the flash update, {words}{'' if words.endswith('?') else '.'}",
            lambda s, u=update: _replay(s, u),
            (name,),
            seen_in=_L,
        )
    if block < s.keys:
        for name, kept, words, _ in _MAXIMUM_BUGS:
            yield Suspect(
                "maximum_not_rescaled",
                f"In the flash update, {words.format(_SCALE)}.",
                lambda s, kept=kept: _with_maximum(s, kept, block),
                (name,),
                seen_in=_MAXIMUM,
            )
    if 0 < s.shape.get("Br", 0) < s.keys:
        yield from _rows_of_tile()
    if block < s.keys:
        yield from _keys_of_tile()
    if s.keys % block:
        yield from _padded(s, block)
    for since, reset in (("all", "and head"), ("head", "of a head")):
        yield Suspect(
            "flash_pv_kept",
            f"PV is not set to zero for each block {reset}: Pij Vj is added to the old values of earlier blocks.",
            lambda s, since=since: _pv_kept(s, since),
            (f"PV kept since {since}",),
            seen_in=r"\bPV\b",
        )
    if s.shape.get("Br", 0) > 0:
        yield from _rows_outside(s)


# ---- mistakes that use the row number within a tile in place of the row number in the matrix

#: Rows: code, words, and a letter for each access with the mistake.
#: "l" is a read of L, "L" a write to L, "o" a read of O, "O" a write to O.
_AT_TILE_ROW: tuple[tuple[str, str, str], ...] = (
    (
        "flash_l_tile_row",
        "L is read and written at the row within the tile: all blocks of rows share its first Br places and add to "
        "each other's sums. L has a place for each of the N rows: use the row of the matrix for both",
        "lL",
    ),
    (
        "flash_l_tile_row",
        "L is written at the row within the tile and read at the row of the matrix: blocks of rows overwrite each "
        "other's sums in the first Br places, the others stay empty. Write lnew to the row of the matrix",
        "L",
    ),
    (
        "flash_l_tile_row",
        "L is read at the row within the tile and written at the row of the matrix: every block of rows gets the sums "
        "of the first block as its li. Read li from the row of the matrix",
        "l",
    ),
    (
        "flash_o_tile_row",
        "O is read at the row within the tile: every block of rows gets the rows of the first block as its Oi. Read Oi "
        "from the row of the matrix",
        "o",
    ),
    (
        "flash_o_tile_row",
        "O is written at the row within the tile: blocks of rows overwrite each other's rows, and all rows but the "
        "first Br are never written. Write to the row of the matrix",
        "O",
    ),
    (
        "flash_o_tile_row",
        "O is written at the row within the tile, and read there if it is read at all: all blocks of rows share its "
        "first Br rows. Use the row of the matrix",
        "oO",
    ),
    (
        "flash_tile_row",
        "L and O are read and written at the row within the tile: all blocks of rows share their first Br rows. Use "
        "the row of the matrix for all four accesses",
        "lLoO",
    ),
)
_BEGINS = "Block number k begins at k * {0}, not at k."
#: Limit on the iterations of the two loops over blocks that `_shared_rows` repeats.
_MOST_TURNS = 512


def _rows_of_tile() -> Iterator[Suspect]:
    for rows_outside, order in ((False, "keys outside"), (True, "rows outside")):
        for code, words, at_tile in _AT_TILE_ROW:
            # With rows in the outer loop, "lL" has the same effect as not resetting Li, which `_rows_outside` yields.
            if not (rows_outside and at_tile == "lL"):
                yield Suspect(
                    code,
                    f"{words} (the first row of its block plus the row within the block).",
                    lambda s, at_tile=at_tile, rows_outside=rows_outside: _shared_rows(
                        s, at_tile, rows_outside
                    ),
                    (f"{at_tile} at the row within the tile, {order}",),
                    seen_in=_L,
                )
    yield Suspect(
        "q_tile_row",
        "Q is read at the row within the tile: every block of rows is computed from the queries of the first block. "
        "Read it at the row of the matrix (the first row of the block plus the row within the block).",
        lambda s: s.truth_all[:, s.rows % s.shape["Br"]],
        ("Q at the row within the tile",),
    )
    yield Suspect(
        "q_tile_row",
        f"Q is read at the block's number plus the row within the block. {_BEGINS.format('Br')}",
        lambda s: s.truth_all[:, s.rows // s.shape["Br"] + s.rows % s.shape["Br"]],
        ("Q read at the block's number",),
    )


def _shared_rows(s: Scene, at_tile: str, rows_outside: bool) -> Array | None:
    """Return the output if some accesses use the row within the tile in place of the row of the matrix.

    `at_tile` has a letter for each access: l and o for reads of L and O, L and O for writes. `rows_outside`: True if
    the outer loop is over blocks of rows. Return None if `s.blocks` is None, or with too many blocks.
    """
    tile, tops = s.shape["Br"], range(0, s.keys, s.shape["Br"])
    if s.blocks is None or len(tops) * len(s.blocks[0]) > _MOST_TURNS:
        return None
    sums, products = s.blocks
    blocks = range(len(sums))
    turns = (
        [(j, top) for top in tops for j in blocks]
        if rows_outside
        else [(j, top) for j in blocks for top in tops]
    )
    out, running = np.zeros_like(s.v), np.zeros((*s.v.shape[:2], 1))
    for j, top in turns:
        some = slice(top, min(top + tile, s.keys))
        first = slice(0, some.stop - top)
        li = running[:, first if "l" in at_tile else some]
        now = li + sums[j, :, some]
        value = (li * out[:, first if "o" in at_tile else some] + products[j, :, some]) / now
        out[:, first if "O" in at_tile else some] = value
        running[:, first if "L" in at_tile else some] = now
    return out[:, s.rows]


def _keys_of_tile() -> Iterator[Suspect]:
    for code, names, of_k, of_v in (
        ("k_v_tile_row", "K and V are", True, True),
        ("k_tile_row", "K is", True, False),
        ("v_tile_row", "V is", False, True),
    ):
        yield Suspect(
            code,
            f"{names} read at the row within the tile: every block of keys is the first block again. Read at the row "
            "of the matrix (the first row of the block plus the row within the block).",
            lambda s, of_k=of_k, of_v=of_v: _other_keys(s, of_k, of_v, 0),
            (f"{names} read at the row within the tile",),
        )
        yield Suspect(
            code,
            f"{names} read at the block's number plus the row within the block. {_BEGINS.format('Bc')}",
            lambda s, of_k=of_k, of_v=of_v: _other_keys(s, of_k, of_v, 1),
            (f"{names} read at the block's number",),
        )

    for used, meant, words in (
        ("k", "v", "K is used in place of V"),
        ("v", "k", "V is used in place of K"),
    ):
        yield Suspect(
            "later_operand",
            f"In all blocks of keys but the first, {words}.",
            lambda s, used=used, meant=meant: _from_second_block(s, used, meant),
            (f"{used} in place of {meant} from the second block on",),
        )


def _from_second_block(s: Scene, used: str, meant: str) -> Array:
    """Return the output if `used` ("k" or "v") replaces `meant` ("v" or "k") in all blocks of keys but the first."""
    later = (np.arange(s.keys) >= s.shape["Bc"])[:, None]
    other = np.where(later, getattr(s, used), getattr(s, meant))
    return s.attend(s.scores, other) if meant == "v" else s.attend(s.q[:, s.rows] @ other.mT)


def _other_keys(s: Scene, of_k: bool, of_v: bool, step: int) -> Array:
    """Return the output if block n of keys is read from row n * step on, not from row n * Bc.

    `of_k`, `of_v`: True if K, or V, is read in this way.
    """
    number, place = np.divmod(np.arange(s.keys), s.shape["Bc"])
    place = step * number + place
    return s.attend(s.scores[:, :, place] if of_k else s.scores, s.v[:, place] if of_v else s.v)


# ---- mistakes in a last block of fewer than Bc keys


def _padded(s: Scene, block: int) -> Iterator[Suspect]:
    places = f"The last block has only {s.keys % block} of Bc = {block} keys, yet"
    yield Suspect(
        "padded_keys",
        f"{places} the row sum counts all Bc places: a padded key has a score of 0 and adds exp(0) = 1. End the sum's "
        "loop at the last key, or leave padded keys out of the sum.",
        lambda s: s.weights @ s.v / (s.row_sum + block - s.keys % block),
        ("padded keys in the sum",),
    )
    yield Suspect(
        "flash_stale_tail",
        f"{places} all rows of Kj and Vj are used: rows of the previous block, which are still there, count again. "
        "End every loop over keys at the last key, or set the weights beyond it to 0.",
        _stale_tail,
        ("stale rows of Kj and Vj",),
    )
    yield Suspect(
        "flash_stale_tail",
        f"{places} the row sum adds up all of Pij's row: weights of the previous block, still there, count again.",
        lambda s: s.weights @ s.v / (s.row_sum + s.weights[:, :, _stale_keys(s)].sum(2, keepdims=True)),
        ("stale places of Pij",),
    )
    yield Suspect(
        "flash_stale_tail",
        f"{places} the row sum adds up all Bc weights of a row: those beyond the last key come from what earlier "
        "blocks left in Kj, Sij or Pij.",
        lambda s: s.weights @ s.v / (s.row_sum + np.exp(_stale_scores(s)).sum(2, keepdims=True)),
        ("stale places of Sij",),
    )


def _stale_keys(s: Scene) -> slice:
    """Return the keys of the last full block that are still in the tile after the shorter last block is loaded."""
    block, full = s.shape["Bc"], s.keys // s.shape["Bc"] * s.shape["Bc"]
    return slice(full - block + s.keys % block, full) if full else slice(0, 0)


def _untouched(s: Scene) -> int:
    """Return the number of keys by which a tile exceeds N. No block writes them, so they keep their initial zeros."""
    return max(0, s.shape["Bc"] - s.keys)


def _stale_tail(s: Scene) -> Array:
    """Return the output if the last block is shorter, but all Bc rows of Kj and Vj are used.

    Rows of the previous block then count again. Rows that no block has written count as keys and values of zeros.
    """
    again = _stale_keys(s)
    weights = s.weights[:, :, again]
    sums = s.row_sum + weights.sum(2, keepdims=True) + _untouched(s)
    return (s.weights @ s.v + weights @ s.v[:, again]) / sums


def _stale_scores(s: Scene) -> Array:
    """Return the old scores (G, R, n) that remain in Sij beyond the last block's keys.

    They are scores with keys of the last full block; without a full block they are zeros. For each row they belong to
    the last query that has the same place in its tile as the row.
    """
    tile = s.shape.get("Br", s.keys)
    rows = s.rows % tile + (s.keys - 1 - s.rows % tile) // tile * tile
    zeros = np.zeros((len(s.q), len(s.rows), _untouched(s)))
    return np.concatenate([s.q[:, rows] @ s.k[:, _stale_keys(s)].mT, zeros], 2)


# ---- kernels with blocks of rows in the outer loop, blocks of keys in the inner one, and one division at the end


def _rows_outside(s: Scene) -> Iterator[Suspect]:
    """Yield suspects: Oi, Li or both are not reset for each block of rows, and keep the sums of earlier blocks."""
    for names, o, li in (
        ("Oi and Li are", True, True),
        ("Oi is", True, False),
        ("The row sum (Li or Lij) is", False, True),
    ):
        for since, reset in (
            ("head", "block of rows"),
            ("batch", "head and block of rows of its batch"),
            ("all", "head and block of rows"),
        ):
            yield Suspect(
                "stale_sum",
                f"{names} not set to zero for each {reset}: each row also gets the sums of earlier rows at the same "
                "place of the tile.",
                lambda s, o=o, li=li, since=since: _kept_over_rows(s, o, li, since),
                (f"{names} kept since {since}",),
                seen_in=rf"\b(?:{names.partition(' ')[0] if o else '[lL](?:i|ij)?'})\b",
            )


def _kept_over_rows(s: Scene, o: bool, li: bool, since: str) -> Array | None:
    """Return the output if Oi (`o`) or Li (`li`) keeps the sums of earlier rows. `since`: see `_over_tiles`."""
    if s.all_sums is None:
        return None
    sums = s.all_sums[:, :, None]
    values = _over_tiles(s, s.truth_all * sums, since) if o else s.truth_all * sums
    divisors = _over_tiles(s, sums, since) if li else sums
    if values is None or divisors is None:
        return None
    return (values / divisors)[:, s.rows]


def _over_tiles(s: Scene, terms: Array, since: str) -> Array | None:
    """Return for each row the sum of `terms` (G, N, D) over this row and the rows at the same place in earlier blocks.

    Blocks have Br rows. `since`: blocks of the "head", the "batch" or "all" heads. None if an earlier head is missing.
    """
    tile, rows = s.shape["Br"], terms.shape[1]
    padded = np.pad(terms, ((0, 0), (0, -rows % tile), (0, 0)))
    by_tile = padded.reshape(len(terms), -1, tile, terms.shape[2])
    within = by_tile.cumsum(1)
    if since != "head":
        totals = within[:, -1]
        before = s.up_to_here(totals, of_batch=since == "batch")
        if before is None:
            return None
        within = within + (before - totals)[:, None]
    return within.reshape(padded.shape)[:, :rows]
