"""Totals of a class report. To save memory, they keep numbers, links and short names of students, but no results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment
from grader.core.results import Flag, PartResult, SubmissionResult
from grader.report import student, words
from grader.report.charts import Dot
from grader.report.machines import load_of, load_warning

if TYPE_CHECKING:
    from grader.report.machines import Row

#: Maximum number of links shown for one group of students. The others are only counted.
MOST_LINKS = 80


@dataclass(frozen=True)
class Link:
    """Link to a student's section in the report: the id of the section, and the student's name."""

    anchor: str
    name: str


@dataclass
class Links:
    """Links to the students of a group, without duplicates, in the order of `add`. At most MOST_LINKS are shown."""

    shown: list[Link] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def add(self, link: Link) -> None:
        if link.anchor not in self.anchors and len(self.shown) < MOST_LINKS:
            self.shown.append(link)
        self.anchors.add(link.anchor)

    @property
    def count(self) -> int:
        return len(self.anchors)

    @property
    def unshown(self) -> int:
        return self.count - len(self.shown)


@dataclass
class PartTally:
    id: str
    title: str
    verdicts: Counter[str] = field(default_factory=Counter)
    dots: list[Dot] = field(default_factory=list)
    allowances: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    places: list[Dot] = field(default_factory=list)
    """Shares of the machine's peak speed that correct kernels reach, in per cent."""
    rungs: dict[str, list[float]] = field(default_factory=dict)
    """Shares of peak speed in per cent, by comparison kernel's name. Each student's kernel adds one to each list."""


@dataclass
class Group:
    """Students with the same diagnosis code. `example` is a message of one of them, without numbers."""

    code: str
    example: str
    parts: Counter[str] = field(default_factory=Counter)
    links: Links = field(default_factory=Links)


@dataclass(frozen=True)
class Raised:
    """A flag that a person must review, with a link to the student and the ids of the parts."""

    link: Link
    part_ids: tuple[str, ...]
    flag: Flag


class Tally:
    def __init__(self, assignment: Assignment) -> None:
        self.ladder = assignment.lab.ladder()
        self.parts = {part.id: PartTally(part.id, part.title) for part in assignment.parts if part.points > 0}
        self.submissions = self.perfect = self.flagged = 0
        self.totals: list[float] = []
        self.loads: list[float] = []
        """1-minute load averages, one for each submission that has one."""
        self.max_points = 0.0
        self.groups: dict[str, Group] = {}
        self.raised: list[Raised] = []
        self.notes: Counter[str] = Counter()
        self.troubles: list[tuple[Link, str]] = []
        self.disturbed = Links()
        """Links to students whose times were disturbed by other programs."""
        self.waiting: dict[str, Links] = {}
        """Links to students with parts that the machine could not judge, by the name of the missing tool."""
        names = ("kit", "sandbox", "machine", "toolchain")
        self.settings: dict[str, Counter[str]] = {name: Counter() for name in names}

    def add(self, row: Row, link: Link) -> None:
        self.submissions += 1
        if row.total is not None and math.isfinite(row.total):
            self.totals.append(row.total)
            self.max_points = max(self.max_points, row.max_points or 0.0)
        if row.trouble or row.result is None:
            self.troubles.append((link, words.reason(row.trouble or "no verdict")))
        if row.result is None:
            return
        self.perfect += all(part.verdict == "pass" for part in row.result.parts)
        load = load_of(row.result)
        self.loads += [load] if load is not None else []
        if load_warning(row.result):
            self.disturbed.add(link)
        # `sandbox` is empty if the submission could not be read.
        if row.result.sandbox:
            self._settings(row.result)
        for part in row.result.parts:
            self._part(part, link)
        raised = list(flags_of(row.result))
        for flag in dict.fromkeys(flag for _, flag in raised):
            part_ids = tuple(part_id for part_id, other in raised if other == flag and part_id)
            self.raised.append(Raised(link, part_ids, flag))
        self.flagged += bool(raised)

    def _part(self, part: PartResult, link: Link) -> None:
        tally = self.parts.setdefault(part.id, PartTally(part.id, part.title))
        tally.verdicts[part.verdict] += 1
        if part.verdict == "unjudged":
            self.waiting.setdefault(part.waits_for or "something", Links()).add(link)
        time = part.time
        if time is not None and math.isfinite(time.ratio) and time.ratio > 0:
            tally.rounds.append(time.rounds)
            tally.dots.append(Dot(time.ratio, time.verdict == "slow", link.anchor, link.name))
            if "not_graded" not in time.flags and math.isfinite(time.allowance):
                tally.allowances.append(time.allowance)
        if part.frontier is not None and part.frontier.peak_percent > 0:
            tally.places.append(Dot(part.frontier.peak_percent, False, link.anchor, link.name))
            rungs = self.ladder.shares(part.frontier) if self.ladder else {}
            for word, share_percent in rungs.items():
                tally.rungs.setdefault(word, []).append(share_percent)
        self.notes.update({flag.code for flag in part.flags if flag.level == "note"})
        if part.diagnosis is not None and part.verdict != "unjudged":
            self._diagnosis(part, link)

    def _diagnosis(self, part: PartResult, link: Link) -> None:
        found = part.diagnosis
        assert found is not None
        group = self.groups.setdefault(found.code, Group(found.code, ""))
        # A compiler's message is about one student's code, so it is not an example for a group.
        if not group.example and found.code != "compile_error":
            group.example = student.numberless(found.message)
        group.parts[part.id] += 1
        group.links.add(link)

    def _settings(self, result: SubmissionResult) -> None:
        """Count the sandbox, the kit, the machine and the toolchain of this submission."""
        self.settings["sandbox"][sandbox_words(result)] += 1
        self.settings["kit"][words.kit(result.kit)] += 1
        self.settings["machine"][words.machine(result.machine)] += 1
        tools = [result.toolchain.get("compiler")]
        tools += [
            f"{key} {result.toolchain[key]}" for key in ("torch", "python") if result.toolchain.get(key)
        ]
        self.settings["toolchain"][", ".join(words.line(str(fact), 80) for fact in tools if fact)] += 1

    @property
    def waiting_anchors(self) -> set[str]:
        """Anchors of all students with a part that could not be judged."""
        return {anchor for links in self.waiting.values() for anchor in links.anchors}

    def common(self) -> list[Group]:
        """Return the groups of students with the same diagnosis, largest first."""
        return sorted(self.groups.values(), key=lambda group: (-group.links.count, group.code))

    def in_order(self) -> list[Raised]:
        """Return the flags for review: first the flags that reject a part, then the others, each sorted by code."""
        return sorted(self.raised, key=lambda raised: (raised.flag.level != "rejected", raised.flag.code))


def flags_of(result: SubmissionResult) -> list[tuple[str, Flag]]:
    """Return (part id, flag) for each flag that a person must review; ("", flag) for flags of the whole submission."""
    found = [(part.id, flag) for part in result.parts for flag in part.flags if flag.level != "note"]
    of_parts = {flag for _, flag in found}
    return found + [("", flag) for flag in result.flags if flag.level != "note" and flag not in of_parts]


def sandbox_words(result: SubmissionResult) -> str:
    tier, applied = result.sandbox.get("tier", "unknown"), result.sandbox.get("applied", [])
    names = ", ".join(map(str, applied)) if isinstance(applied, (list, tuple)) else str(applied)
    return words.line(f"tier {tier}" + (f" ({names})" if names else ""), 200)
