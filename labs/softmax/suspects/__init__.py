"""Suspects of the lab: possible mistakes, each with a message to the student and a prediction of the wrong output.

A prediction of a softmax takes a `labs.softmax.scene.Scene`; a prediction of `merge` takes the inputs by name. To add a
suspect, write a row in a table of `formula` or `merging`. The lists below name the tables of each part. Suspects that
explain the same output are reported together, simpler ones first.
"""

from __future__ import annotations

from collections.abc import Iterable

from grader.explain.suspect import Suspect

from . import formula, merging

MERGE = tuple(merging.MISTAKES)
NAIVE = (*formula.MISTAKES, *formula.NAIVE, *formula.SUMS)
SAFE = (*formula.MISTAKES, *formula.MAXIMUM, *formula.SUMS, *formula.LANES)
ONLINE = (*formula.MISTAKES, *formula.RUNNING, *formula.MAXIMUM, *formula.SUMS, *formula.LANES)
LANES = tuple(formula.LANES)


def by_columns(count: int, mistakes: Iterable[Suspect]) -> list[Suspect]:
    """Return the suspects that depend on the number of columns, `count`.

    `mistakes` has the part's other suspects. If none of these is in the table MAXIMUM, the part subtracts no maximum.
    Then suspects about a wrong maximum are left out.
    """
    return formula.suspects(count, has_maximum=any(each in formula.MAXIMUM for each in mistakes))
