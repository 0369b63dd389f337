"""What comes from outside a run never raises anything but the promised errors, and is read in linear time.

`make fuzz` does more of it, and says how long a megabyte takes.
"""

from __future__ import annotations

import pytest

from fuzz.mutating import Reader, fuzz, growth
from fuzz.outside import READERS

COUNT = 400
"""Inputs of each reader."""


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutated_inputs_end_in_no_error_but_the_promised_ones(reader: Reader) -> None:
    read = fuzz(reader, COUNT // (3 if reader.name in SLOW else 1))
    assert read.inputs > 0
    assert not reader.allowed or 0 < read.refused < read.inputs, "every input was nonsense, or none was"


#: Those that write files for each input.
SLOW = {"a class's archive", "results, in a class's reports"}
PATTERNS = [(reader, pattern) for reader in READERS for pattern in reader.patterns]


@pytest.mark.parametrize(("reader", "pattern"), PATTERNS, ids=[f"{r.name}: {p}" for r, p in PATTERNS])
def test_hostile_patterns_take_time_in_proportion(reader: Reader, pattern: str) -> None:
    growth(reader, pattern)
