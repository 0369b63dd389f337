"""Groups of submissions whose wrong outputs agree to the last bit on several inputs.

The same bug, in the same order of summation, on inputs that nobody could foresee. That can still be an honest
coincidence, if the bug is one that many make: so the diagnosis is told beside each group. Outputs that any number of
people produce without a common idea (nothing written, an input handed back) are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

LEAST_CASES = 2
"""On so many inputs of one part a group must agree. One alone may be an edge case that has only one wrong answer."""
#: Diagnoses whose outputs agree among people who share nothing.
SAYS_NOTHING = frozenset({"not_written", "copied_input", "wrong_shape", "wrong_dtype", "inputs_overwritten"})


@dataclass(frozen=True)
class WrongOutput:
    """The digest of one wrong output. `told` is the diagnosis of its part, for people."""

    part: str
    case: str
    hidden: bool
    digest: str
    code: str
    told: str


@dataclass(frozen=True)
class Group:
    """Submissions (ids, in order) that are wrong alike on these cases of a part. `hidden`: on no public case."""

    part: str
    members: tuple[str, ...]
    cases: tuple[str, ...]
    hidden: bool
    told: str


def wrong_outputs(result: Mapping[str, Any]) -> list[WrongOutput]:
    """The wrong outputs that a `result.json` names, as read by `json`; those that say nothing are left out."""
    found = []
    for part in result.get("parts") or ():
        about = part.get("diagnosis") or {}
        for case in part.get("cases") or ():
            digest, own = case.get("output_sha256"), case.get("diagnosis") or {}
            code = own.get("code") or about.get("code") or ""
            if case.get("ok") or not digest or {code, about.get("code")} & SAYS_NOTHING:
                continue
            hidden = bool(case.get("hidden"))
            found.append(
                WrongOutput(part["id"], case["name"], hidden, digest, code, about.get("message") or "")
            )
    return found


def read(folder: Path) -> dict[str, list[WrongOutput]]:
    """The wrong outputs of every `<id>/result.json` below the results of a class; unreadable ones have none."""
    return {path.parent.name: _read(path) for path in sorted(folder.glob("*/result.json"))}


def _read(path: Path) -> list[WrongOutput]:
    try:
        return wrong_outputs(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def groups(outputs: Mapping[str, Iterable[WrongOutput]]) -> tuple[Group, ...]:
    """Who agrees on at least LEAST_CASES inputs of a part; hidden inputs alone count where the part has any.

    A group that is part of another one on the same cases is not told. Small groups come first: what only two people
    do says more than what twenty do.
    """
    by_part: dict[str, list[tuple[str, WrongOutput]]] = defaultdict(list)
    for name, items in outputs.items():
        for item in items:
            by_part[item.part].append((name, item))
    found: list[Group] = []
    for part, items in by_part.items():
        hidden = any(item.hidden for _, item in items)
        found += _groups(part, hidden, [pair for pair in items if pair[1].hidden or not hidden])
    return tuple(sorted(found, key=lambda g: (len(g.members), -len(g.cases), g.part, g.members)))


def _groups(part: str, hidden: bool, items: list[tuple[str, WrongOutput]]) -> list[Group]:
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    told: dict[str, str] = {}
    for name, item in items:
        owners[item.case, item.digest].add(name)
        told[name] = item.told
    sharing = {frozenset(names) for names in owners.values() if len(names) > 1}
    # Two who agree on two cases may share each with other people.
    sharing |= {both for a, b in combinations(sharing, 2) if len(both := a & b) > 1}
    agreed = {
        members: tuple(sorted({case for (case, _), names in owners.items() if members <= names}))
        for members in sharing
    }
    agreed = {members: cases for members, cases in agreed.items() if len(cases) >= LEAST_CASES}
    return [
        Group(part, tuple(sorted(members)), cases, hidden, told[min(members)])
        for members, cases in agreed.items()
        if not any(members < other and cases == agreed[other] for other in agreed)
    ]
