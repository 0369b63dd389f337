"""The command line of the staff: `python -m grader COMMAND`. Each command imports its modules when it runs."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Sequence
from dataclasses import fields
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

from grader.assignment.options import lab_as_config
from grader.core import commandline
from grader.core.commandline import Parser, add_lab, assignment_file, whole_number
from grader.core.errors import UsageError
from grader.core.places import GRADER_COMMAND


def has_room(module: str) -> bool:
    """Return True if this copy of the kit has the module; a handout lacks the staff's modules.

    Only this copy of the kit is searched, because another copy may be installed.
    """
    folder = Path(__file__).resolve().parent.joinpath(*module.split(".")[1:-1])
    return PathFinder.find_spec(module, [str(folder)]) is not None


CLASSROOM = "grader.staff.running"
#: Commands that parse their own arguments: {name: (module with `main(arguments) -> exit code`, description)}.
FORWARDED = {
    "board": ("grader.staff.board", "leaderboard of the right submissions, by part"),
    "similar": ("grader.staff.similarity.likeness", "pairs of submissions that are alike"),
    "doctor": (
        "grader.doctor",
        "find weaknesses of the sandbox and of timings on this machine, with remedies",
    ),
    "selftest": ("grader.staff.selftest", "check with known kernels that this machine's verdicts are right"),
    "gradescope": ("grader.staff.platforms.gradescope", "grade in Gradescope's container"),
    "prairielearn": ("grader.staff.platforms.prairielearn", "grade in PrairieLearn's container"),
    "platforms": (
        "grader.staff.platforms",
        "list the supported course platforms, and the command and the result files for each",
    ),
    "writeup": (
        "grader.staff.writeups" if has_room("grader.staff.writeups") else "grader.study.writeup",
        "list a write-up's empty regions; for the staff, collect all answers of a class",
    ),
    "new": ("grader.staff.newlab", "make a lab of your own, whose tests pass from the start"),
    "release": (
        "grader.staff.release",
        "make and test the students' handout and the autograder for a platform",
    ),
}
#: Gradebook exports that `report` fills: (option, platform, the platform's name for this export).
EXPORTS = (("canvas", "Canvas", "gradebook export"), ("moodle", "Moodle", "offline grading worksheet"))


def parser() -> Parser:
    parse = Parser(
        prog=GRADER_COMMAND,
        description="Grade a class in a sandbox, with a record of all results.",
        epilog="Exit codes: 0 done (for `one`: all passed), 1 a fault of the submission, 2 wrong usage, "
        "3 a fault of the kit or machine (for `run`: a submission has no verdict), 130 interrupted. "
        "In place of --config FILE each command takes --lab NAME, and --labs DIR to look for NAME in DIR.",
    )
    commandline.add_version(parse)
    commands = parse.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    if has_room(CLASSROOM):
        _class_commands(commands)
    else:
        _one_command(commands)
    for name, (module, what) in FORWARDED.items():
        if has_room(module):
            commands.add_parser(name, help=what, add_help=False)
    return parse


def _class_commands(commands: Any) -> None:
    out = ("out", "the folder that a run wrote (its --out)", "DIR")
    student = ("submission_id", "ID", "the submission, as grades.csv names it")

    run = commands.add_parser("run", help="grade a class into a folder")
    run.path("submissions", "a folder or zip, one entry per student", "SUBMISSIONS")
    run.path("--out", "where results and reports go", "DIR", required=True)
    run.flag("--resume", "continue in DIR, without repeating finished work")
    run.flag("--again", "with --resume: grade finished submissions again, even if nothing has changed")
    run.flag(
        "--regrade",
        "with --resume: allow another --config, --seed or --no-time than before, which grades everybody again",
    )
    run.value("--only", "ID", "grade only these submissions", nargs="+", default=[])
    run.value(
        "--jobs", "n", "submissions at a time (default: as many as there are cores, half as many on a GPU)"
    )
    run.flag(
        "--timings-alone",
        "give every timing the machine to itself: slower, for machines whose cores disturb one another",
    )
    run.value(
        "--cluster",
        "ADDRESS",
        "grade on a dask scheduler's workers: tcp://HOST:PORT, tls://HOST:PORT, or local:N to simulate N machines",
    )
    run.path(
        "--calibration",
        "correct solution that each machine of a cluster judges first (default: the course's own)",
    )
    times = run.add_mutually_exclusive_group()
    what = "times of submission, for lateness: a CSV file with the columns id,time"
    times.add_argument("--submitted", metavar="FILE", type=Path, help=what)
    what = "if no other time is known, use a submission's file time"
    times.add_argument("--file-times", action="store_true", help=what)
    what = "for a folder of git clones: use the time of each clone's last commit"
    times.add_argument("--commit-times", action="store_true", help=what)
    _judging_options(run)
    _tier_options(run)
    _manual_option(run)

    _tier_options(_one_command(commands))

    show = commands.add_parser("show", help="print one student's result of a class")
    show.path(*out)
    show.value(*student)
    _manual_option(show)

    appeal = commands.add_parser(
        "appeal", help="judge and time one student again, with a record and a page for the student"
    )
    appeal.path(*out)
    appeal.value(*student)
    appeal.add_argument("-n", "--rounds", metavar="n", default="3", help="number of rounds (default: 3)")
    appeal.path(
        "--calibration", "correct solution that is judged in each round, too (default: the course's own)"
    )
    appeal.flag("--no-time", "judge results and memory only")
    appeal.flag("--accept", "let the round with the median points replace the recorded result")
    _tier_options(appeal)

    extend = commands.add_parser(
        "extend", help="give a student an extension or slip days; without ID, list those of all students"
    )
    extend.path(*out)
    extend.value(*student, nargs="?")
    extend.value("--days", "n", "days of extension: the student's due date moves")
    extend.value("--slip", "n", "slip days that the student may spend on this assignment")
    extend.value("--reason", "TEXT", "a note for the staff")

    feedback = commands.add_parser(
        "feedback", help="write a file for each student and a table for a mail merge; no mail is sent"
    )
    feedback.path(*out)
    feedback.path("--to", "where the files go", "FOLDER", required=True)
    feedback.flag("--html", "write HTML pages (default: text files)")

    diff = commands.add_parser("diff", help="list the points that differ between two runs, with the reasons")
    diff.path("before", "the folder that a run wrote (its --out)", "RUN1")
    diff.path("after", "the folder of a later run", "RUN2")
    diff.path("--csv", "also write the table for a spreadsheet")

    report = commands.add_parser("report", help="write grades.csv and report.html again, without grading")
    report.path(*out)
    _manual_option(report)
    for name, title, what in EXPORTS:
        report.path(f"--{name}", f"{title}'s {what}: write a copy with the totals to DIR/{name}.csv")
    report.value(
        "--column",
        "NAME",
        "name or id of the assignment's column in the export (default: the assignment's title)",
    )


def _one_command(commands: Any) -> Parser:
    """Add the command `one` to `commands` and return its parser. In a handout, `one` judges like `gpt149.py all`."""
    one: Parser = commands.add_parser("one", help="judge one submission, and show its result")
    one.path("path", "a source file, a folder or a zip of one", "PATH")
    one.path("--json", "also write the result as JSON")
    one.flag("--github", "in a GitHub workflow: write annotations, a summary and outputs")
    _judging_options(one)
    return one


def _judging_options(parse: Parser) -> None:
    parse.path(
        "--config",
        "the assignment (default: configs/hidden/gpt149.yaml, else configs/gpt149.yaml; run --resume: as before)",
    )
    add_lab(parse)
    parse.value("--seed", "n", "make hidden and timed inputs repeatable")
    parse.flag("--no-time", "judge results and memory only")


def _tier_options(parse: Parser) -> None:
    parse.add_argument(
        "--tier",
        choices=("A", "B", "C", "D"),
        help="use this sandbox tier (default: the strongest that works)",
    )
    parse.flag("--trust", "allow a sandbox below tier C: you trust the submissions")


def _manual_option(parse: Parser) -> None:
    table = parse.add_mutually_exclusive_group()
    what = "table of points given by hand (default: the one used last, else DIR/manual.csv)"
    table.add_argument("--manual", metavar="FILE", type=Path, help=what)
    table.add_argument("--no-manual", action="store_true", help="leave out points given by hand")


# ---- commands


def run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] != "new":
        arguments = lab_as_config(arguments)
    if arguments and arguments[0] in FORWARDED and has_room(FORWARDED[arguments[0]][0]):
        return importlib.import_module(FORWARDED[arguments[0]][0]).main(list(arguments[1:]))
    given = parser().parse_args(arguments)
    if given.command == "run":
        return run_class(given, arguments)
    if given.command == "one":
        return run_one(given)
    from grader.staff.classroom import byhand, changes, gradebook

    match given.command:
        case "show":
            return gradebook.show(given.out, given.submission_id, manual_table(given))
        case "appeal":
            from grader.staff.classroom import appeals

            return appeals.run(
                given.out,
                given.submission_id,
                rounds=whole_number(given.rounds, "--rounds", 1, appeals.MOST_ROUNDS),
                calibration=given.calibration,
                timing=not given.no_time,
                tier=given.tier,
                trust=given.trust,
                accept=given.accept,
            )
        case "extend":
            days, slip = (
                None if text is None else whole_number(text, flag, 0, byhand.MOST_DAYS)
                for text, flag in ((given.days, "--days"), (given.slip, "--slip"))
            )
            return gradebook.extend(given.out, given.submission_id, days, slip, given.reason)
        case "feedback":
            return gradebook.give_feedback(given.out, given.to, as_html=given.html)
        case "diff":
            return changes.diff(given.before, given.after, given.csv)
    exports = {name: getattr(given, name) for name, _, _ in EXPORTS if getattr(given, name) is not None}
    if given.column is not None and not exports:
        raise UsageError("--column needs an export: name it with --canvas FILE")
    return gradebook.report(given.out, manual_table(given), exports=exports, column=given.column)


def run_class(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    if given.again and not given.resume:
        raise UsageError("--again repeats finished work: use it with --resume")
    if given.regrade and not given.resume:
        raise UsageError("--regrade replaces finished work: use it with --resume")
    from grader.staff import running
    from grader.staff.classroom.planning import RunOptions

    named = {field.name: vars(given)[field.name] for field in fields(RunOptions) if field.name in given}
    return running.run(
        RunOptions(
            **{
                **named,
                "workers": None if given.jobs is None else whole_number(given.jobs, "--jobs", 1, 1024),
                "only": tuple(given.only),
                "seed": seed(given.seed),
                "timing": not given.no_time,
                "manual": manual_table(given),
                "to_resume": to_resume(arguments),
            }
        )
    )


def to_resume(arguments: Sequence[str]) -> str:
    """Return the command line that continues this run: with --resume, but without --again and --regrade."""
    kept = [item for item in arguments if item not in ("--resume", "--again", "--regrade")]
    return shlex.join([*GRADER_COMMAND.split(), *kept, "--resume"])


def run_one(given: argparse.Namespace) -> int:
    if not has_room(CLASSROOM):
        rest = [word for word in ("--github", "--no-time") if getattr(given, word[2:].replace("-", "_"))]
        for name in ("json", "config", "seed"):
            rest += [f"--{name}", str(value)] if (value := getattr(given, name)) is not None else []
        # `core.imports` follows import statements to list a release's modules. It must not find gpt149 here.
        students = importlib.import_module("gpt149")
        return int(students.run(["all", "--no-table", "--module", str(given.path), *rest]))
    from grader.staff.classroom import solo

    return solo.run(
        given.path,
        assignment_file(given.config),
        seed=seed(given.seed),
        timing=not given.no_time,
        tier=given.tier,
        trust=given.trust,
        json_file=given.json,
        for_github=given.github,
    )


def manual_table(given: argparse.Namespace) -> Path | None:
    """Return the table of points: the file of --manual, NO_TABLE for --no-manual, or None for the default table."""
    from grader.staff.classroom import gradebook

    return gradebook.NO_TABLE if given.no_manual else given.manual


def seed(text: str | None) -> int | None:
    from grader.assignment.loading import LARGEST_SEED

    return None if text is None else whole_number(text, "--seed", 0, LARGEST_SEED)


def main() -> NoReturn:
    """Run the command `gpt149-grader`."""
    commandline.main("grader", run)


if __name__ == "__main__":
    main()
