"""Calls of one build with edits, and their cost. See `grader.explain.repair`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from grader.assignment.records import Case, Part
from grader.core.arrays import Array, np
from grader.explain.case_run import CaseRun
from grader.explain.judged_part import EditBuilder, EditedBuild
from grader.source.edited_source import Edit

#: Limit on the work of one build, counted in calls. A new runner counts as START calls, or as OWN calls if each edit
#: gets its own. Each CPU second of an endless call counts as ENDLESS calls, a call that waits without end as WAITING.
MOST_WORK, START, OWN, ENDLESS, WAITING = 4000, 4, 12, 500, 800
#: Limits on a call in CPU seconds: TINY_S for at most TINY output elements, SMALL_S for more, LIKELY_S for an edit that
#: is likely right. They are long, because the build is not optimised.
TINY_S, SMALL_S, LIKELY_S, TINY = 0.1, 0.4, 2.0, 1 << 10
#: Number of edits called in one runner before it is checked for damage.
IN_ONE_RUNNER = 24


@dataclass
class EditedCalls:
    """Calls of one build with edits. `work` is the cost of the calls so far (see MOST_WORK)."""

    built: EditedBuild
    work: int = 0
    _starts: bool = field(default=True, init=False)
    """True if the next call needs a new runner."""
    _start: int = field(default=START, init=False)
    """Work of starting a runner: START or OWN."""

    def is_right(self, case: Case, number: int, *, fresh: bool = False, cpu_s: float = SMALL_S) -> bool:
        """Return True if the function with edit `number` is right on a case. `fresh`: use a new runner."""
        run = self.built.call(case, number, fresh=fresh, cpu_s=cpu_s)
        status = "" if run is None else run.call.status
        waited, is_new = run is not None and run.call.has_waited, fresh or self._starts
        self.work += 1 + self._start * is_new + WAITING * waited
        self.work += int(ENDLESS * cpu_s) if status == "timeout" and not waited else 0
        self._starts = status != "ok"
        # An earlier edit may have damaged this runner's memory.
        if not is_new and status not in ("ok", "timeout", "exception"):
            return self.is_right(case, number, fresh=True, cpu_s=cpu_s)
        return run is not None and status == "ok" and run.is_right

    def passing(
        self, tried: Sequence[Edit], numbers: Mapping[Edit, int], tries: Sequence[tuple[Case, float]]
    ) -> Iterator[Edit]:
        """Yield the edits that are right on the first inputs, until MOST_WORK is done. Limits are in CPU seconds.

        An edit that writes outside of an array may damage its runner, so that later edits seem wrong. After each group
        of edits, the function without an edit is called once more. If its output has changed, each edit of the group is
        called again in its own runner. If that function gives another output with each call (it may read outside of an
        array), each edit gets its own runner at once.
        """
        case = tries[0][0]
        first, second = (self._output(case, fresh=not k) for k in range(2))
        is_steady = _is_same(first, second)
        self._start = START if is_steady else OWN
        for begin in range(0, len(tried), IN_ONE_RUNNER):
            group = tried[begin : begin + IN_ONE_RUNNER]
            passed = self._passed(group, numbers, tries, fresh=not is_steady)
            if is_steady and not _is_same(first, self._output(case)):
                passed = self._passed(group, numbers, tries, fresh=True)
            yield from passed
            if self.work > MOST_WORK:
                break

    def _passed(
        self,
        group: Sequence[Edit],
        numbers: Mapping[Edit, int],
        tries: Sequence[tuple[Case, float]],
        *,
        fresh: bool = False,
    ) -> list[Edit]:
        """Return the edits that are right on all of the first inputs, at most until MOST_WORK is done."""
        return [
            edit
            for edit in group
            if self.work <= MOST_WORK
            and all(
                self.is_right(case, numbers[edit], fresh=fresh and not k, cpu_s=s)
                for k, (case, s) in enumerate(tries)
            )
        ]

    def _output(self, case: Case, *, fresh: bool = False) -> Array | None:
        """Return all outputs of the function without an edit, in one row; None without an output."""
        run = self.built.call(case, 0, fresh=fresh, cpu_s=SMALL_S)
        self._starts = run is None or run.call.status != "ok"
        outputs = run.outputs if run is not None else None
        return np.concatenate([each.reshape(-1) for each in outputs.values()]) if outputs else None

    def is_finite(self, case: Case, number: int) -> bool:
        """Return True if the outputs with edit `number` are finite on a case, except where the right ones are not."""
        run = self.built.call(case, number, fresh=True, cpu_s=LIKELY_S)
        if run is None or run.outputs is None:
            return False
        values = [
            (np.asarray(each).reshape(-1), run.expected[name].value) for name, each in run.outputs.items()
        ]
        return all(np.isfinite(each[np.isfinite(right.reshape(-1))]).all() for each, right in values)

    def all_right(self, cases: Sequence[Case], number: int) -> bool:
        return all(self.is_right(case, number, fresh=not k, cpu_s=LIKELY_S) for k, case in enumerate(cases))

    def is_wrong(self, cases: Iterable[Case], number: int) -> bool:
        """Return True if edit `number` is wrong on one of these cases. A call that ends at its limit proves nothing."""
        runs = (self.built.call(case, number, fresh=True, cpu_s=LIKELY_S) for case in cases)
        return any(run is not None and run.call.status == "ok" and not run.is_right for run in runs)

    def by_rightness(self, cases: Iterable[Case]) -> list[Case]:
        """Return the cases: first those that the function gets wrong without an edit, then those that it gets right."""
        return sorted(cases, key=partial(self.is_right, number=0))


@dataclass(frozen=True)
class OneThread:
    """Builds with edits that are called with one thread: with several, a data race may make a right edit wrong."""

    builds: EditBuilder

    def edited(self, part: Part, text: str, *, checked: bool = False) -> EditedBuild | None:
        built = self.builds.edited(part, text, checked=checked)
        return None if built is None else _CalledAlone(built)


@dataclass
class _CalledAlone:
    """A build with edits, called with one thread."""

    built: EditedBuild
    bad: Collection[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.bad = self.built.bad

    def can_choose(self, case: Case) -> bool:
        return self.built.can_choose(case)

    def call(self, case: Case, number: int, **how: Any) -> CaseRun | None:
        return self.built.call(_alone(case), number, **how)

    def is_clean(self, cases: Sequence[Case], number: int) -> bool:
        return self.built.is_clean([*map(_alone, cases)], number)


def _alone(case: Case) -> Case:
    return replace(case, shape={**case.shape, "threads": 1})


def _is_same(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other, equal_nan=True)
