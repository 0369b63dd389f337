"""Self-test of this machine: it judges kernels with known verdicts like the submissions of a class.

Correct kernels must pass, wrong kernels must fail, and only the slow kernel must get the verdict slow. Attacks on the
judge must end as documented, in the sandbox that a run would choose now. Each group of kernels gets a conclusion of its
own, because a machine with unsteady times can still judge results.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader import sandbox, score
from grader.assignment import labs, mutations
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation
from grader.assignment.records import Assignment, Part
from grader.assignment.regions import strip_solution
from grader.backends.kinds import kind_of
from grader.backends.torch.zygote import Zygote
from grader.core.commandline import Parser, add_lab, assignment_file
from grader.core.errors import EXIT_KIT, EXIT_PASS, UsageError, explained
from grader.core.places import GRADER_COMMAND
from grader.core.results import PartResult, SubmissionResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.sandbox import Sandbox

#: {group of trials: what can be trusted if all trials of the group succeed}.
GROUPS = {
    "right kernels": "that right kernels pass",
    "wrong kernels": "that wrong kernels are found",
    "times": "verdicts on time",
    "threats": "that submissions do no harm, and cheating is found",
}


def main(arguments: list[str]) -> int:
    """Run `python -m grader selftest`. Return exit code 0 if every trial succeeded, else 3."""
    parse = Parser(prog=f"{GRADER_COMMAND} selftest", description=(__doc__ or "").splitlines()[0])
    parse.flag("--all", "try every attack, not one of each kind (takes minutes)")
    parse.path("--config", "the assignment (default: as in a run)")
    add_lab(parse)
    parse.add_argument(
        "--tier",
        choices=("A", "B", "C", "D"),
        help="use this sandbox tier (default: the strongest that works)",
    )
    parse.add_argument("--trust", action="store_true", help="allow a sandbox below tier C")
    given = parse.parse_args(arguments)

    assignment = load(assignment_file(given.config))
    box = sandbox.choose(given.tier, given.trust)
    print(f"sandbox tier {box.tier}: {', '.join(box.applied)}", flush=True)
    made: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="gpt149-selftest-", ignore_cleanup_errors=True) as folder:
        for trial in trials(assignment, box, Path(folder), every=given.all):
            made.append(trial)
            print(trial_text(trial), flush=True)
    print(*conclusion(made), sep="\n")
    return EXIT_KIT if any(trial.faults for trial in made) else EXIT_PASS


def trial_text(trial: Trial) -> str:
    """Describe a trial in lines for a terminal: "ok" or "FAIL", its group, its name, and its faults."""
    mark = "FAIL" if trial.faults else "ok  "
    first = f"{mark}  {trial.group:13}  {trial.name}" + (
        f"  ({trial.seconds:.1f} s)" if trial.seconds else ""
    )
    return "\n".join([first, *(f"        {fault[:400]}" for fault in trial.faults)])


def conclusion(made: Iterable[Trial]) -> list[str]:
    """Return one line for each group in GROUPS: "trusted", "NOT TRUSTED" or "NOT TRIED", with the number of trials."""
    by_group: dict[str, list[Trial]] = {group: [] for group in GROUPS}
    for trial in made:
        by_group[trial.group].append(trial)
    lines = []
    for group, meaning in GROUPS.items():
        count = len(by_group[group])
        failed = sum(bool(trial.faults) for trial in by_group[group])
        if not count:
            lines.append(f"NOT TRIED    {meaning}: there are no {group} to try")
        elif failed:
            lines.append(f"NOT TRUSTED  {meaning}: {failed} of {count} trials failed, see FAIL above")
        else:
            lines.append(f"trusted      {meaning}: {count} of {count} trials succeeded")
    return lines


TIME_BUDGET_S = 10.0
"""Time budget in seconds for the calls of one timed part."""
#: {flag of a timing that shows an unsteady machine: description}.
NOT_STEADY = {
    "machine_unfit": "the reference does not agree with itself",
    "undecided": "the machine is too unsteady to decide if the time is within the allowance",
}


@dataclass(frozen=True)
class Trial:
    """One finished trial. `faults` describe the differences from the expected result; () if the trial succeeded."""

    group: str
    name: str
    faults: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class TrialSetup:
    """Settings shared by all trials."""

    assignment: Assignment
    box: Sandbox
    zygote: Zygote
    folder: Path
    kernels: Any
    """The lab's module of kernels with known verdicts, or None. It defines WRONG, and optionally SLOW, RIGHT and
    SHAPE, the sizes of untimed calls. If it defines FUNCTIONS (see `mutations.applied`), one file holds all kernels,
    and the module may define `side_by_side(source, mutations)`, which returns that file."""

    def edited(self, master: str, mutation: Mutation) -> str:
        return mutations.edited(master, mutation, self.kernels)

    def judge(self, text: str, parts: Sequence[Part], *, timing: bool) -> tuple[SubmissionResult, float]:
        """Judge a source text. Return (result, seconds). Unless `timing`, use the sizes SHAPE and measure no time."""
        started, source = time.monotonic(), self.folder / self.assignment.source
        source.write_text(text, encoding="utf-8")
        options = Options(
            shape={} if timing else getattr(self.kernels, "SHAPE", {}),
            timing=timing,
            profile=False,
            time_budget_s=TIME_BUDGET_S,
        )
        result = evaluate(
            self.assignment, source, tuple(parts), options, zygote=self.zygote, sandbox=self.box
        )
        return result, time.monotonic() - started

    @property
    def graded(self) -> list[Part]:
        return [part for part in self.assignment.parts if kind_of(part).is_students]


def trials(assignment: Assignment, box: Sandbox, folder: Path, *, every: bool = False) -> Iterator[Trial]:
    """Judge right and wrong solutions and attacks, and yield each trial when it ends. `folder` holds the trials' files.

    `every`: try all attacks, else a few that together cover each row of the lab's table of attacks. Raises
    UsageError if the assignment's master source has no marked solution.
    """
    path = labs.master(assignment.lab_folder, assignment.source)
    with explained(f"cannot read {path}"):
        master = path.read_text(encoding="utf-8")
    if "BEGIN SOLUTION" not in master:
        raise UsageError(
            f"{path} is a starter: the self-test needs the master source, with the staff's solution"
        )
    with ExitStack() as stack:
        zygote = stack.enter_context(Zygote(sandbox=box, at_once=False))
        bench = TrialSetup(assignment, box, zygote, folder, assignment.lab.kernels())
        yield from controls(bench, master)
        yield from right_variants(bench, master)
        yield from wrong_kernels(bench, master)
        yield from threats(bench, every=every)


# ---- controls and times


def controls(bench: TrialSetup, master: str) -> Iterator[Trial]:
    """Check that the staff solution passes, the starter earns no points, and a slow kernel gets the verdict slow."""
    result, took = bench.judge(master, bench.graded, timing=True)
    yield Trial("right kernels", "the master passes", tuple(master_faults(result)), took)
    yield Trial("times", "the master is in time", tuple(time_faults(result)), 0.0)

    if (slow := getattr(bench.kernels, "SLOW", None)) is not None:
        edited = bench.edited(master, slow)
        result, took = bench.judge(edited, [bench.assignment.part(slow.part)], timing=True)
        yield Trial("times", slow.name, tuple(slow_faults(result)), took)

    result, took = bench.judge(strip_solution(master), bench.graded, timing=False)
    earned = score.score(bench.assignment, result).lines
    faults = [f"{line.id} earned {line.points:g} points" for line in earned if line.points]
    faults += [f"{part.id} passed" for part in result.parts if part.verdict == "pass"]
    yield Trial("wrong kernels", "the starter earns nothing", tuple(faults), took)


def master_faults(result: SubmissionResult) -> Iterator[str]:
    """Yield a fault for each part whose verdict is neither pass nor slow, and for each flag for review."""
    for part in result.parts:
        if part.verdict not in ("pass", "slow"):
            yield f"{part.id} is {part.verdict}: {part.diagnosis.message if part.diagnosis else 'without a message'}"
    yield from (f"flagged: {flag.message or flag.code}" for flag in result.flags if flag.level != "note")


def time_faults(result: SubmissionResult) -> Iterator[str]:
    """Yield a fault for each part with the verdict slow, and for each time that is undecided or unsteady.

    The judged kernels must be about as fast as the reference.
    """
    for part in result.parts:
        if part.verdict == "slow":
            yield f"{part.id} gets the verdict slow, but it is about as fast as the reference"
        if part.time is not None:
            yield from (f"{part.id}: {why}" for flag, why in NOT_STEADY.items() if flag in part.time.flags)


def slow_faults(result: SubmissionResult) -> Iterator[str]:
    (part,) = result.parts
    if part.verdict != "slow":
        ratio = f" at {part.time.ratio:.2f} times the reference" if part.time else ""
        yield f"the verdict is {part.verdict}{ratio}, and must be slow"


# ---- right variants and wrong kernels


def right_variants(bench: TrialSetup, master: str) -> Iterator[Trial]:
    """Check that the lab's other correct kernels, which differ from the staff solution, pass and are fast enough."""
    for right, result, took in judged_each(bench, master, getattr(bench.kernels, "RIGHT", ()), timing=True):
        yield Trial("right kernels", named(right), tuple(master_faults(result)), took)
        yield Trial("times", named(right), tuple(time_faults(result)), 0.0)


def wrong_kernels(bench: TrialSetup, master: str) -> Iterator[Trial]:
    """Check that each of the lab's wrong kernels fails, with the expected diagnosis."""
    for bug, result, took in judged_each(bench, master, getattr(bench.kernels, "WRONG", ()), timing=False):
        yield Trial("wrong kernels", named(bug), tuple(wrong_faults(bug, *result.parts)), took)


def judged_each(
    bench: TrialSetup, master: str, made: Sequence[Mutation], *, timing: bool
) -> Iterator[tuple[Mutation, SubmissionResult, float]]:
    """Judge the solution `master` with each of the mutations `made`, and with times if `timing`.

    Yields (mutation, result with only the mutated part, seconds that judging took). If the lab defines FUNCTIONS, one
    file contains all mutations. Each result then has the flags of the whole file.
    """
    files = [(bench.edited(master, one), (bench.assignment.part(one.part),), (one,)) for one in made]
    if made and hasattr(bench.kernels, "FUNCTIONS"):
        files = [(*mutations.in_one_file(bench.kernels, bench.assignment, master, made), tuple(made))]
    for source, parts, edits in files:
        result, took = bench.judge(source, parts, timing=timing)
        for mutation, part in zip(edits, result.parts, strict=True):
            yield mutation, replace(result, parts=(part,)), took / len(edits)


def wrong_faults(bug: Mutation, part: PartResult) -> Iterator[str]:
    """Yield a fault if a wrong kernel is neither wrong nor crashes, or if its diagnosis has an unexpected code."""
    code = part.diagnosis.code if part.diagnosis else "nothing"
    if part.verdict not in ("wrong", "crash"):
        yield f"the verdict is {part.verdict}, and must be wrong or crash"
    elif bug.codes and code not in bug.codes:
        yield f"the diagnosis is {code}, and must be {' or '.join(bug.codes)}"


def named(bug: Mutation) -> str:
    return f"{bug.part}: {bug.name}"


# ---- threats


def threats(bench: TrialSetup, *, every: bool) -> Iterator[Trial]:
    """Judge the lab's attacks, and harmless kernels as controls. Yield a trial for each.

    `every`: judge all. Otherwise judge a few submissions that cover each row of the lab's table of attacks.
    """
    table = bench.assignment.lab.threats()
    if table is None:
        return
    places = table.places(bench.folder)
    wanted = table.submissions([*table.CONTROLS, *table.THREATS])
    for number, submission in enumerate(wanted if every else one_for_each_row(wanted)):
        started = time.monotonic()
        result = table.judge(
            submission, bench.folder / f"threat{number}", places, bench.zygote, sandbox=bench.box
        )
        took = (time.monotonic() - started) / len(result.parts)
        for part in result.parts:
            threat = submission.threats[part.id]
            faults = tuple(table.faults(threat, bench.box.tier, result, part))
            yield Trial("threats", f"{threat.row or 'control'} {threat.name}", faults, took)


def one_for_each_row(submissions: Sequence[Any]) -> list[Any]:
    """Return a few of the submissions, chosen greedily, that together cover all rows of the table of attacks."""
    missing = {threat.row for submission in submissions for threat in submission.threats.values()}
    chosen: list[int] = []
    while missing:
        gains = [len(missing & {threat.row for threat in each.threats.values()}) for each in submissions]
        chosen.append(gains.index(max(gains)))
        missing -= {threat.row for threat in submissions[chosen[-1]].threats.values()}
    return [submissions[at] for at in sorted(chosen)]
