"""Options of a training, its networks and data: checked, and known before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from .digits import Digits


@dataclass(frozen=True)
class Data:
    """What a network learns from, and what it is tested with; `source` says in words where both come from."""

    training: Digits
    held_out: Digits
    source: str


@dataclass(frozen=True)
class Wishes:
    """Options of a training. `lockstep` is how many steps are watched; `goes_on` trains on behind a deviation."""

    epochs: int
    batch: int
    rate: float
    seed: int
    lockstep: int
    goes_on: bool = False
