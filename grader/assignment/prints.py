"""Digests of everything in an assignment that decides a part's verdict: its call, its timing, its cases.

Points, time bands, credit, weights, lateness and titles change no verdict, so no digest covers them. If only these
differ, a class is scored anew and nothing runs. If a case was added, only that case is called (`grader.judge.regrade`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grader.assignment import labs
from grader.assignment.records import Assignment, Part

#: Fields of a part that affect points only, not verdicts.
PAID = ("title", "points", "points_if_slow", "time_bands", "case_credit")
#: Fields with a digest of their own, and `command`: the name that a student types changes no verdict.
APART = ("cases", "time", "command")


@dataclass(frozen=True)
class PartPrints:
    """Digests of one part.

    `calling` covers all that every call depends on: the part, the assignment's sizes and other common keys, and the
    lab's files if the lab is not the kit's. `timing` is "" if the part is not timed. `cases` maps names of cases to
    digests. `through` is for a part with `stands_in`: the digest of the part that may be judged in its place; else "".
    """

    calling: str
    timing: str = ""
    cases: Mapping[str, str] = field(default_factory=dict)
    through: str = ""


def of_parts(assignment: Assignment) -> dict[str, PartPrints]:
    """Return the digests of each part that earns points, by its id."""
    common = _common(assignment)
    return {part.id: _of_part(assignment, part, common) for part in assignment.select("all")}


def _of_part(assignment: Assignment, part: Part, common: str) -> PartPrints:
    fields = {name: value for name, value in asdict(part).items() if name not in (*PAID, *APART)}
    through = ""
    if part.stands_in is not None:
        other = _of_part(assignment, assignment.part(part.stands_in), common)
        through = _digest(asdict(other))
    return PartPrints(
        calling=_digest([common, fields]),
        timing=_digest([asdict(part.time), assignment.seed]) if part.time is not None else "",
        cases={
            case.name: _digest([case.distribution, case.seed, dict(case.shape), case.hidden])
            for case in part.cases
        },
        through=through,
    )


def _common(assignment: Assignment) -> str:
    """Return the digest of everything that all parts share, without the kit's labs: the kit has its own digest."""
    lab = assignment.lab_folder
    outside = [] if lab.parent == labs.LABS else [path.read_bytes().hex() for path in labs.deciding(lab)]
    return _digest(
        [
            assignment.source,
            dict(assignment.defaults),
            asdict(assignment.limits),
            assignment.torch_runner,
            assignment.profiler_table,
            assignment.packages,
            lab.name,
            outside,
        ]
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
