"""Options of a training, its networks and data: checked, and known before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from .digits import Digits


@dataclass(frozen=True)
class Data:
    """Training set and test set of a network; `source` names their origin in words."""

    training: Digits
    held_out: Digits
    source: str


@dataclass(frozen=True)
class Wishes:
    """Options of a training. `lockstep` is the number of watched steps; `goes_on` continues after a deviation."""

    epochs: int
    batch: int
    rate: float
    seed: int
    lockstep: int
    goes_on: bool = False
