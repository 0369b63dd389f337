"""Suspected bugs of a block length: remainders that are dropped, blocks that overwrite one another or stay alone.

A student's tile size is not known, so all usual ones are tried; different ones that cut at the same place
give one prediction, whose words name the likely lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from grader.scene import Scene, Suspect

#: Tile lengths that people use; the assignment's own Br and Bc are tried as well.
USUAL_TILES = (*range(2, 65), 80, 96, 100, 112, 120, 128, 192, 256, 512)


def suspects(s: Scene) -> Iterator[Suspect]:
    """Every suspect of this file that applies to the scene, simpler ones first."""
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
