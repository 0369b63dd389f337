"""Plan of a run: for each submission, keep its result, compute its points again, or judge some or all of it again.

A verdict is out of date if its fingerprints have changed (`grader.staff.classroom.fingerprints`). If only the
assignment has changed, the digests of its parts (`grader.assignment.prints`) show which parts are out of date. If only
points have changed, the plan computes them from the recorded results, and judges nothing.

A resumed run keeps the earlier run's assignment, seed and timing, on which all verdicts depend. Another value on the
command line needs --regrade. The sandbox tier is kept if it still works on this machine. --trust is not kept.

If the machine lacks a program that a part of a submission needs, the part gets the verdict `unjudged` and its points
stay open. To judge it, resume the run on a machine that has the program.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader import sandbox, score
from grader.assignment.loading import load
from grader.assignment.records import Assignment, Part
from grader.backends.gpu import devicebuild
from grader.backends.gpu.card import finding
from grader.backends.kinds import kind_of
from grader.backends.native import ispc
from grader.backends.native.toolchain import ABSENT, TORCH, python_include_dir, torch_version
from grader.backends.torch.torchbuild import PYTHON_HEADERS
from grader.core import machine
from grader.core.commandline import assignment_file
from grader.core.errors import UsageError
from grader.core.quantities import shortened
from grader.judge import regrade
from grader.judge.regrade import Rest
from grader.report import result_json
from grader.report.words import plural
from grader.sandbox import Sandbox
from grader.staff.classroom import fingerprints, gradebook, ledger
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.grading import Planned, light
from grader.staff.classroom.ledger import History, Record, Run
from grader.submission import Submission

#: {tool: function that returns True if this machine has the tool}. Tools that are not listed here are programs on the
#: PATH or Python packages.
CHECKS: Mapping[str, Callable[[], bool]] = {
    ispc.TOOL: lambda: ispc.compiler() is not None,
    TORCH: lambda: torch_version() != ABSENT,
    finding.GPU: finding.is_here,
    devicebuild.NVCC: lambda: bool(devicebuild.nvcc()),
    devicebuild.TRITON: devicebuild.has_triton,
    finding.STEADY_CLOCK: finding.is_here,
    PYTHON_HEADERS: lambda: python_include_dir() is not None,
}
REMEDIES = {
    ispc.TOOL: f"put ispc on the PATH ({ispc.WHERE_FROM})",
    TORCH: "install torch beside the kit",
    finding.STEADY_CLOCK: "fix the GPU's clock rate (nvidia-smi --lock-gpu-clocks)",
    PYTHON_HEADERS: "install Python's headers (apt install python3-dev)",
    finding.GPU: "use a machine with a GPU",
    devicebuild.NVCC: "install NVIDIA's CUDA toolkit and put nvcc on the PATH",
    devicebuild.TRITON: f'install Triton (pip install "{devicebuild.TRITON_PACKAGE}")',
}


def is_over(waits_for: str) -> str:
    """Return "PROGRAM is here now" if this machine has all programs in `waits_for` (separated by blanks), else ""."""
    tools = waits_for.split()
    return f"{' and '.join(tools)} is here now" if tools and all(map(is_here, tools)) else ""


def is_here(tool: str) -> bool:
    """Return True if this machine has `tool`: an entry of CHECKS, a program or a Python package."""
    return CHECKS.get(tool, lambda: bool(shutil.which(tool) or importlib.util.find_spec(tool)))()


def expected(submissions: Iterable[Submission]) -> dict[str, str]:
    """Return {id: "ispc"} for submissions that need ispc, if it is missing here. Other needs show only at grading."""
    found = {item.id: ispc.waits_for(item.source) for item in submissions if item.source is not None}
    return {name: tool for name, tool in found.items() if tool}


def missing_tools(waits: Mapping[str, str], remedy: str) -> list[str]:
    """Return one line for each missing program in `waits` ({submission id: program}). Each line ends with `remedy`."""
    by_tool: dict[str, list[str]] = {}
    for name, tool in sorted(waits.items()):
        by_tool.setdefault(tool, []).append(name)
    return [
        f"{plural(len(names), 'submission')} cannot be judged without {tool} (points stay open): {shortened(names)}; "
        f"{REMEDIES.get(tool, f'pip install {tool}')}, then {remedy}"
        for tool, names in by_tool.items()
    ]


WORKER_BYTES = 2 << 30
"""Memory in bytes that a worker, its runners and a compiler need together. It limits the number of workers."""
CARD = Path("/dev/nvidia0")
ASSIGNMENT_CHANGED = "assignment changed"
WORTH_CHANGED = "rules for points changed"


@dataclass(frozen=True)
class RunOptions:
    """Options of `grader run`, named like its flags. `to_resume` is the command line that continues the run.

    `resume`: continue the earlier run. `again`: grade finished submissions, too. `regrade`: accept other options than
    the earlier run's. `timing`: measure times. `timings_alone`: no two timings run at once. `trust`: allow a sandbox
    below tier C. `file_times`, `commit_times`: take submission times from the files or from git. If `config`, `seed`,
    `tier`, `manual` or `submitted` is None, a resumed run takes the earlier run's value. `manual` may be byhand.NONE.
    """

    submissions: Path
    out: Path
    workers: int | None
    config: Path | None = None
    resume: bool = False
    again: bool = False
    regrade: bool = False
    only: tuple[str, ...] = ()
    seed: int | None = None
    timing: bool = True
    timings_alone: bool = False
    trust: bool = False
    tier: str | None = None
    manual: Path | None = None
    submitted: Path | None = None
    file_times: bool = False
    commit_times: bool = False
    cluster: str | None = None
    calibration: Path | None = None
    to_resume: str = "the same command and --resume"


@dataclass(frozen=True)
class Plan:
    """Work of a run. `todo` are the submissions to judge, in order.

    `scored` has a pair (new record, new text of result.json) for each submission that gets new points without being
    judged again.
    """

    todo: list[Planned] = field(default_factory=list)
    scored: list[tuple[Record, str]] = field(default_factory=list)


def workers(parts: Sequence[Part]) -> int:
    """Return the default number of workers: one per core, fewer if parts use a local GPU or if memory is short."""
    facts = machine.describe()
    fitting = int(str(facts.get("memory_bytes", WORKER_BYTES << 10))) // WORKER_BYTES
    cores = int(str(facts["cores"] or 1))
    shares_card = CARD.exists() and any(kind_of(part).on_card for part in parts)
    return max(1, min(cores // 2 if shares_card else cores, fitting))


def plan(
    wanted: RunOptions,
    start: Run,
    assignment: Assignment,
    submissions: Sequence[Submission],
    history: History,
) -> Plan:
    """Return the work left to do, by comparing the submissions' fingerprints with the ledger's `history`."""
    settings = fingerprints.of_text(f"timing {start.timing}")
    found = Plan()
    for item in submissions:
        if wanted.only and item.id not in wanted.only:
            continue
        source = item.sha256 or fingerprints.of_text(item.error or "")
        prints = Fingerprints(source, start.assignment_fingerprint, start.kit, settings)
        record = history.records.get(item.id)
        reason = out_of_date(wanted, record, prints)
        if record is not None and not reason:
            continue
        before = None
        if reason == ASSIGNMENT_CHANGED and item.source is not None and not wanted.again:
            before = ledger.result(wanted.out, item.id)
        known = history.judging(record.fingerprints.assignment) if record and before else {}
        left = regrade.rest(known, start.judging, before) if before and known else None
        if record is None or before is None or left is None:
            found.todo.append(Planned(item, prints, reason))
        elif left:
            place = wanted.out / item.id / ledger.RESULT
            found.todo.append(Planned(item, prints, f"{reason}: {_cases_text(left)}", left, place))
        else:
            now = regrade.joined(assignment, before, None, left)
            values, text = result_json.dumped(now, score.score(assignment, now))
            scored = {"fingerprints": prints, "at": ledger.now(), "reason": WORTH_CHANGED, **light(values)}
            found.scored.append((replace(record, **scored), text))
    return found


def _cases_text(left: Rest) -> str:
    """Describe the parts and cases to judge again, such as "part2 as a whole; only the cases a, b"."""
    named = dict.fromkeys(name for names in left.parts.values() for name in names)
    whole = [part_id for part_id, names in left.parts.items() if not names]
    texts = [f"{', '.join(whole)} as a whole"] if whole else []
    return "; ".join([*texts, *([f"only the cases {', '.join(named)}"] if named else [])])


def out_of_date(wanted: RunOptions, record: Record | None, prints: Fingerprints) -> str:
    """Return the reason why a submission with the record `record` must be graded again.

    Return "" if the recorded result is up to date, or if `record` is None. `prints` are the fingerprints of now.
    """
    if record is None:
        return ""
    if record.fault == "kit":
        return "the kit failed last time"
    if changes := record.fingerprints.changes(prints):
        return ", ".join(changes)
    if is_here := is_over(record.waits_for):
        return is_here
    if ledger.result(wanted.out, record.submission_id) is None:
        return f"its {ledger.RESULT} cannot be read"
    return "asked for" if wanted.again else ""


def lines(wanted: RunOptions, submissions: Sequence[Submission], plan: Plan, history: History) -> list[str]:
    """Return the lines to print before a run: which results are kept, scored again or graded again, and why."""
    todo = plan.todo
    finished = sum(item.id in history.records for item in submissions)
    again = [item for item in todo if item.reason]
    stay = finished - len(again) - len(plan.scored)
    is_known = finished and (stay or not plan.scored)
    kept = plural(stay, "was finished before and stays as it is", "were finished before and stay as they are")
    lines = [kept] if is_known else []
    if plan.scored:
        names = [record.submission_id for record, _ in plan.scored]
        lines.append(
            f"{plural(len(names), 'gets', 'get')} new points without being judged again ({WORTH_CHANGED}): "
            f"{shortened(names)}"
        )
    for reason in dict.fromkeys(item.reason for item in again):
        names = [item.submission.id for item in again if item.reason == reason]
        lines.append(f"{plural(len(names), 'is', 'are')} graded again ({reason}): {shortened(names)}")
    gone = sorted(history.records.keys() - {item.id for item in submissions})
    if gone:
        lines.append(
            f"{plural(len(gone), 'earlier result belongs', 'earlier results belong')} to no student in "
            f"{wanted.submissions} (kept, but not in the reports): {shortened(gone)}"
        )
    planned = [item.submission for item in todo]
    left = {item.id for item in submissions} - {item.id for item in planned}
    waits = {name: known.waits_for for name, known in history.records.items() if name in left}
    waits = {name: tool for name, tool in waits.items() if tool} | expected(planned)
    lines += missing_tools(waits, "--resume judges them")
    late = [item.id for item in submissions if item.marked_late and item.submitted_at is None]
    if late:
        lines.append(
            f"{plural(len(late), 'is', 'are')} marked late, but without a time of submission, so there is no penalty: "
            f"{shortened(late)}"
        )
    return lines


FILE_TIMES = "file times"
"""Value in place of a table's path: submission times are the modification times of the files."""
COMMIT_TIMES = "commit times"
"""Value in place of a table's path: submission times are the times of the last commits in the clones."""


def settle(wanted: RunOptions, history: History) -> tuple[RunOptions, Assignment, int | None]:
    """Complete the options by those of the resumed run. Return (options, assignment, seed for the record of the run).

    The seed, which replaces the assignment's seed, comes from the command line, else from the resumed run. It is None
    if neither has one and the assignment's seed is used, or random if the assignment has none either. Raises UsageError
    for a change that would put verdicts out of date, unless `wanted.regrade` is set.
    """
    before = history.runs[-1] if history.runs and wanted.resume else None
    config, is_recorded = wanted.config, False
    if config is None:
        config = gradebook.config_of(wanted.out, before) if before else assignment_file(None)
        is_recorded = before is not None
    seed = wanted.seed if wanted.seed is not None or before is None else before.seed
    timing = wanted.timing
    if before is not None and not wanted.regrade:
        timing = timing and before.timing
    assignment = gradebook.load_recorded(wanted.out, config, seed) if is_recorded else load(config, seed)
    if before is not None and history.records and not wanted.regrade:
        _refuse_changes(wanted, before, config, timing)
    if assignment.seed is None:
        seed = secrets.randbits(31)
        assignment = load(config, seed)
    return replace(wanted, config=config, timing=timing), assignment, seed


def _refuse_changes(wanted: RunOptions, before: Run, config: Path, timing: bool) -> None:
    """Raise UsageError if the options differ from the run `before` in the assignment, the seed or `timing`."""
    changes = []
    # If only the path of the assignment's file has changed, the fingerprints are equal, and nothing is refused.
    if (
        str(config.resolve()) != before.config
        and load(config, before.seed).fingerprint != before.assignment_fingerprint
    ):
        changes.append(f"--config {config} in place of {before.config}")
    if wanted.seed is not None and wanted.seed != before.seed:
        changes.append(
            f"--seed {wanted.seed} in place of {'the seed in the file' if before.seed is None else before.seed}"
        )
    if timing != before.timing:
        changes.append("--no-time, although the earlier run measured times")
    if changes:
        raise UsageError(
            f"{wanted.out} was graded with other options: {' and '.join(changes)} would put its verdicts out of date; "
            "leave these options out to continue as before, or add --regrade to grade every submission again"
        )


def sandbox_for(wanted: RunOptions, history: History) -> Sandbox:
    """Return the sandbox of the requested tier, else of the resumed run's tier, else of the strongest that works."""
    before = history.runs[-1].sandbox if history.runs and wanted.resume else None
    if wanted.tier is not None or before is None:
        return sandbox.choose(wanted.tier, wanted.trust)
    try:
        return sandbox.choose(before, wanted.trust)
    except UsageError as error:
        box = sandbox.choose(None, wanted.trust)
        print(f"note: sandbox tier {box.tier} in place of {before} in the earlier run: {error}", flush=True)
        return box


def source_of_times(wanted: RunOptions, history: History) -> str | None:
    """Return the source of submission times: the path of a table, FILE_TIMES or COMMIT_TIMES.

    Return None if no source is named: then only times in the platform's export are used. Raises UsageError if the
    table of the resumed run no longer exists.
    """
    if wanted.submitted is not None:
        return str(wanted.submitted.resolve())
    if wanted.file_times:
        return FILE_TIMES
    if wanted.commit_times:
        return COMMIT_TIMES
    before = history.runs[-1].submitted if history.runs and wanted.resume else None
    if before not in (None, FILE_TIMES, COMMIT_TIMES) and not Path(before).is_file():
        raise UsageError(
            f"{before}, the table of submission times, no longer exists: name a table with --submitted FILE, "
            "or use --file-times"
        )
    return before
