"""Mutated write-ups, tables of points, sources and results: no error but the promised one, in linear time."""

from __future__ import annotations

import pytest

from fuzz import mutating, papers
from fuzz.mutating import Reader

#: Of each reader.
INPUTS = {reader.name: 400 for reader in papers.READERS} | {papers.COMPARING.name: 30}
#: Bytes of the smaller pattern. Sources have to stay below `tokens.MOST_TOKENS` at four times the size as well.
PATTERN_BYTES = {papers.COMPARING.name: 12_000}


@pytest.mark.parametrize("reader", papers.READERS, ids=lambda reader: reader.name)
def test_mutated_papers_raise_nothing_but_what_is_promised(reader: Reader) -> None:
    done = mutating.fuzz(reader, INPUTS[reader.name])
    assert done.inputs == INPUTS[reader.name]
    assert done.refused < done.inputs, "some of the inputs are still read"


@pytest.mark.parametrize(
    ("reader", "pattern"),
    [
        pytest.param(reader, pattern, id=f"{reader.name}: {pattern}")
        for reader in papers.READERS
        for pattern in reader.patterns
    ],
)
def test_hostile_papers_take_time_in_proportion(reader: Reader, pattern: str) -> None:
    mutating.growth(reader, pattern, PATTERN_BYTES.get(reader.name, mutating.PATTERN_BYTES))
