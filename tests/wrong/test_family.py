"""Every wrong kernel is rejected, with its bug named where that is promised; every right variant is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from family import groups, judge
from right_variants import RIGHT
from wrong_kernels import WRONG

from grader.selftest.mutations import Mutation, apply
from grader.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


def group_name(group: tuple[Mutation, ...]) -> str:
    return f"{group[0].name} to {group[-1].name}"


@pytest.mark.parametrize("group", groups(WRONG), ids=group_name)
def test_wrong_kernels_are_rejected_and_explained(
    group: tuple[Mutation, ...], zygote: Zygote, tmp_path: Path
) -> None:
    for mutation, result in judge(group, zygote, tmp_path):
        assert result.verdict in ("wrong", "crash"), mutation.name
        assert result.diagnosis is not None and result.diagnosis.message
        assert not mutation.codes or result.diagnosis.code in mutation.codes, (
            f"{mutation.name}: {result.diagnosis}"
        )


@pytest.mark.parametrize("group", groups(RIGHT), ids=group_name)
def test_right_variants_are_accepted_without_suspicion(
    group: tuple[Mutation, ...], zygote: Zygote, tmp_path: Path
) -> None:
    for mutation, result in judge(group, zygote, tmp_path, profile=True):
        assert result.verdict == "pass", f"{mutation.name}: {result.diagnosis}"
        assert [flag for flag in result.flags if flag.level != "note"] == [], mutation.name


def test_the_family_is_as_large_as_promised() -> None:
    assert len(WRONG) >= 60 and len(RIGHT) >= 40
    assert len({mutation.name for mutation in [*WRONG, *RIGHT]}) == len(WRONG) + len(RIGHT)
    assert sum(bool(mutation.codes) for mutation in WRONG) >= 2 * len(WRONG) / 3


def test_an_edit_that_no_longer_fits_is_an_error(master: str) -> None:
    with pytest.raises(ValueError, match="found 0 times"):
        apply(master, [Mutation("gone", "part1", (("no such text", ""),))])
    assert all(apply(master, [mutation]) != master for mutation in [*WRONG, *RIGHT])
