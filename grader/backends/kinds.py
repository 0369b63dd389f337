"""Kinds of parts, as far as rooms above the backends have to know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from grader.assignment.records import SUFFIXES, Language, Part


@dataclass(frozen=True)
class Kind:
    """Properties that all parts of one backend share."""

    is_students: bool = True
    """False for a function of torch itself, to which nothing of the student's belongs."""
    on_card: bool = False
    """True if a GPU runs its kernels, or an interpreter in the place of one."""
    delays: bool = True
    """True if the threads of its runners can be delayed at random moments."""
    shows_memory: bool = True
    """True if the memory of each call can be read from outside."""
    on_cores: bool = True
    """True if CPU cores bound the time of a call."""
    sanitizes: bool = True
    """True if a build with sanitizers can name accesses outside of an array."""
    holds_its_work: bool = True
    """True if the function of a part does the work itself, and not only launch it."""
    is_program: bool = True
    """True if its runners are programs of their own, without an interpreter."""


CPP = Kind()
CPP_IN_TORCH = replace(CPP, is_program=False)
TORCH = replace(CPP_IN_TORCH, is_students=False)
KERNELS = Kind(
    on_card=True,
    delays=False,
    shows_memory=False,
    on_cores=False,
    sanitizes=False,
    holds_its_work=False,
    is_program=False,
)


KINDS: Mapping[Language, Kind] = dict.fromkeys(SUFFIXES, KERNELS)
"""Kinds of the languages of the key `backend`, other than C++."""


def kind_of(part: Part) -> Kind:
    if part.device is not None:
        return KINDS[part.device.language]
    return TORCH if part.is_torch else CPP


def languages(parts: Iterable[Part]) -> tuple[str, ...]:
    """Return the languages of kernels for a GPU, each once."""
    return tuple(dict.fromkeys(part.device.language for part in parts if part.device is not None))


def all_on_card(parts: Iterable[Part]) -> bool:
    return all(kind_of(part).on_card for part in parts)
