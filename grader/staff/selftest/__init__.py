"""Test of this machine's verdicts today: kernels of which the end is known, judged as a class is.

Right ones must pass, wrong ones must be found, a slow one must be slow and a fast one not. Attacks on the judge must
end as promised, in the sandbox that a run would choose now. Each group that cannot be trusted is reported separately,
since a machine with random times may well judge results.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grader.core.commandline import Parser, add_lab
from grader.core.errors import EXIT_KIT, EXIT_PASS
from grader.core.places import GRADER_COMMAND
from grader.staff.selftest.trials import Trial

#: Each group, and what depends on it.
GROUPS = {
    "right kernels": "that right work passes",
    "wrong kernels": "that wrong work is found",
    "times": "verdicts on time",
    "threats": "that submissions can be run without harm, and cheats come out",
}


def main(arguments: list[str]) -> int:
    """`python -m grader selftest`: exit code 0 when every verdict can be trusted, else 3."""
    import tempfile

    parse = Parser(prog=f"{GRADER_COMMAND} selftest", description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--all", action="store_true", help="every threat, not one for each row: some minutes")
    parse.add_argument("--config", metavar="FILE", type=Path, help="the assignment (default: as in a run)")
    add_lab(parse)
    parse.add_argument(
        "--tier", choices=("A", "B", "C", "D"), help="this sandbox, not the strongest there is"
    )
    parse.add_argument("--trust", action="store_true", help="allow a sandbox below tier C")
    given = parse.parse_args(arguments)

    from grader import sandbox
    from grader.assignment.loading import load
    from grader.core import commandline
    from grader.staff.selftest import trials

    assignment = load(commandline.assignment_file(given.config))
    box = sandbox.choose(given.tier, given.trust)
    print(f"sandbox tier {box.tier}: {', '.join(box.applied)}", flush=True)
    made: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="gpt149-selftest-", ignore_cleanup_errors=True) as folder:
        for trial in trials.trials(assignment, box, Path(folder), every=given.all):
            made.append(trial)
            print(told(trial), flush=True)
    print(*conclusion(made), sep="\n")
    return EXIT_KIT if any(trial.faults for trial in made) else EXIT_PASS


def told(trial: Trial) -> str:
    """Return a trial as lines for a terminal."""
    mark = "FAIL" if trial.faults else "ok  "
    first = f"{mark}  {trial.group:13}  {trial.name}" + (
        f"  ({trial.seconds:.1f} s)" if trial.seconds else ""
    )
    return "\n".join([first, *(f"        {fault[:400]}" for fault in trial.faults)])


def conclusion(made: Iterable[Trial]) -> list[str]:
    """Return one line for each group: can its verdicts be trusted today?"""
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
            lines.append(f"NOT TRUSTED  {meaning}: {failed} of {count} did not end as they must")
        else:
            lines.append(f"trusted      {meaning}: {count} of {count}")
    return lines
