"""What comes back from a submission is read without an error but the promised one, in time linear in its size."""

from __future__ import annotations

import pytest

from fuzz import inside
from fuzz.mutating import Reader, fuzz, growth

INPUTS = 400
"""For each reader; `make fuzz` reads 28,000 in all."""
READERS = inside.readers()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutated_inputs_end_in_nothing_but_the_promised_errors(reader: Reader) -> None:
    done = fuzz(reader, INPUTS)
    # The examples themselves are readable: what is refused was broken on the way.
    assert done.inputs == INPUTS and done.refused < INPUTS


@pytest.mark.parametrize(
    ("reader", "pattern"),
    [
        pytest.param(reader, name, id=f"{reader.name}: {name}")
        for reader in READERS
        for name in reader.patterns
    ],
)
def test_time_grows_as_the_size_does(reader: Reader, pattern: str) -> None:
    growth(reader, pattern)
