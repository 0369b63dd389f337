"""Sizes for people, and whole numbers out of texts."""

from __future__ import annotations

import pytest

from grader.base.commandline import whole_number
from grader.base.errors import UsageError
from grader.base.quantities import MIB, size_text, whole


def test_sizes_for_people() -> None:
    sizes = (0, 10, 10240, MIB, 1536 * 1024, 1023.4 * MIB, 1 << 40)
    assert [size_text(size) for size in sizes] == [
        *("0 bytes", "10 bytes", "10 KiB", "1 MiB", "1.5 MiB", "1023 MiB", "1024 GiB")
    ]


def test_whole_numbers_are_few_plain_digits() -> None:
    """Python itself refuses to read more than 4300 of them."""
    assert (whole("0"), whole("0042"), whole("9" * 19)) == (0, 42, int("9" * 19))
    for text in ("", "-1", "+1", " 1", "1_000", "1.0", "\u0663", "\u00b2", "9" * 20, "9" * 10_000):
        assert whole(text) is None
    for text in ("9" * 5000, "65", "-1", "\u0663"):
        with pytest.raises(UsageError, match="from 0 to 64"):
            whole_number(text, "-N", 0, 64)
