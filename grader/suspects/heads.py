"""Suspected bugs of the head indices b and h."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from grader.scene import Scene, Suspect, registering

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


def _first_head(b: int, h: int) -> tuple[int, int]:
    return b, 0


def _first_batch(b: int, h: int) -> tuple[int, int]:
    return 0, h


def _very_first(b: int, h: int) -> tuple[int, int]:
    return 0, 0


def _register_ignored_heads() -> None:
    """One suspect for each input whose head or batch index is left out where it is read."""
    for name in "QKV":
        for head, words in (
            (_first_head, f"{name} is read from head 0 for every head: its index h is not used."),
            (_first_batch, f"{name} is read from batch 0 for every batch: its index b is not used."),
            (
                _very_first,
                f"{name} is read from batch 0 and head 0 for all: its indices b and h are not used.",
            ),
        ):

            def predict(
                s: Scene, name: str = name, head: Callable[[int, int], tuple[int, int]] = head
            ) -> Tensor:
                read = {"Q": s.q, "K": s.k, "V": s.v, name: s.head_of(name, head)}
                return s.attend(read["Q"][:, s.rows] @ read["K"].mT, read["V"])

            SUSPECTS.append(Suspect("head_ignored", words, predict))


_register_ignored_heads()
