"""Every reader of untrusted bytes raises only its documented errors, and its time grows linearly with the size."""

import os

import pytest
from conftest import one_of_each

from fuzz import readers
from fuzz.mutating import Reader, fuzz, growth

#: Mutated inputs for each reader; an expensive reader gets fewer.
INPUTS = int(os.environ.get("FUZZ_INPUTS", "400"))
QUICK = 80
READERS = [*readers.readers(), *readers.READERS]
PATTERNS = [(reader, name) for reader in READERS for name in reader.patterns]


@pytest.mark.parametrize("inputs", [QUICK, pytest.param(INPUTS, marks=pytest.mark.full)])
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutated_inputs_raise_only_documented_errors(reader: Reader, inputs: int) -> None:
    refused = fuzz(reader, inputs)
    # Not all inputs were refused, so the examples themselves can be read.
    assert len(refused) == inputs // reader.cost and not all(refused)
    assert not reader.allowed or any(refused)


@pytest.mark.parametrize(
    ("reader", "pattern"),
    one_of_each(PATTERNS, key=lambda each: each[0].name, name=lambda each: f"{each[0].name}: {each[1]}"),
)
def test_readers_take_linear_time(reader: Reader, pattern: str) -> None:
    growth(reader, pattern)
