"""Comparison of a cluster's machines: submissions judged by each, and agreement on one calibration submission."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

APART = 0.05
"""A machine is apart if its whole interval is further than this from the median of all: a relative difference."""

Ratios = Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True)
class MachineRow:
    """One machine.

    `ratios` are those of the calibration submission, by part: the ratio and its interval's ends. `apart` are the parts
    in which it differs from the other machines.
    """

    name: str
    host: str = ""
    processor: str = ""
    cores: int = 0
    refused: str = ""
    notes: tuple[str, ...] = ()
    ratios: Ratios = field(default_factory=dict)
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spread:
    """One part of the calibration submission over all machines that may judge."""

    part_id: str
    machines: int
    lowest: float
    middle: float
    highest: float


def compared(rows: Sequence[MachineRow]) -> tuple[list[MachineRow], list[Spread]]:
    """Return the rows with their `apart` filled in, and the spread of each part."""
    fit = [row for row in rows if not row.refused]
    spreads = []
    for part_id in dict.fromkeys(part_id for row in fit for part_id in row.ratios):
        ratios = [row.ratios[part_id][0] for row in fit if part_id in row.ratios]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        if ratios:
            spreads.append(Spread(part_id, len(ratios), min(ratios), median(ratios), max(ratios)))
    middle = {spread.part_id: spread.middle for spread in spreads}
    return [replace(row, apart=() if row.refused else _apart(row, middle)) for row in rows], spreads


def _apart(row: MachineRow, middle: Mapping[str, float]) -> tuple[str, ...]:
    """Return the parts in which this machine's whole interval is further than APART from the median of all."""
    return tuple(
        part_id
        for part_id, (_, low, high) in row.ratios.items()
        if part_id in middle and (low > middle[part_id] * (1 + APART) or high < middle[part_id] / (1 + APART))
    )
