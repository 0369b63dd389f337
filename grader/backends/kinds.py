"""Kinds of parts: the properties of each backend that other packages need to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from grader.assignment.records import Part


@dataclass(frozen=True)
class Kind:
    """Properties that all parts of one backend share."""

    is_students: bool = True
    """False for a part that calls torch's own function and runs no student code."""
    on_card: bool = False
    """True if the part's kernels run on a GPU, or in Triton's interpreter on a machine without a GPU.

    The part's function only launches kernels. The judge cannot delay its threads, measure the memory of a call from
    outside or build the file with sanitizers.
    """
    is_program: bool = True
    """True if the runners are native programs, without Python."""

    early_slow: tuple[float, float] = (3.0, 1.5)
    """Factors for an early "slow". Two or three rounds must all exceed the allowed time ratio by the first factor, four
    or more rounds by the second. On busy cores, single rounds of identical kernels had ratios up to 2.9."""


CPP = Kind()
CPP_IN_TORCH = replace(CPP, is_program=False)
TORCH = replace(CPP_IN_TORCH, is_students=False)
KERNELS = Kind(
    on_card=True,
    is_program=False,
    # In 67 rounds on an H100 while a class was judged, no time exceeded 1.07 times the median of the same kernel.
    early_slow=(2.0, 1.15),
)
OTHER = CPP_IN_TORCH
KINDS: Mapping[str, Kind] = {"triton": KERNELS, "cuda": KERNELS}
"""Kinds by language (YAML key `backend`); OTHER for a language without a row."""


def kind_of(part: Part) -> Kind:
    if part.device is not None:
        return KINDS.get(part.device.language, OTHER)
    return TORCH if part.is_torch else CPP


def languages(parts: Iterable[Part]) -> tuple[str, ...]:
    """Return the languages of all parts that are not in C++ ("triton", "cuda"), without repetitions."""
    return tuple(dict.fromkeys(part.device.language for part in parts if part.device is not None))


def all_on_card(parts: Iterable[Part]) -> bool:
    """Return True if all kernels of these parts are for a GPU."""
    return all(kind_of(part).on_card for part in parts)
