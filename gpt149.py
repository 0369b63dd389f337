#!/usr/bin/env python3
"""The student's command line: compile module.cpp, judge and time its kernels, and explain wrong results."""

from __future__ import annotations

import argparse
import contextlib
import os
from datetime import datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from grader import study
from grader.assignment import labs
from grader.assignment.options import chosen_lab, chosen_options, chosen_tests
from grader.core import commandline
from grader.core.commandline import Parser, macros, source_file, whole_number
from grader.core.errors import UsageError
from grader.core.places import INSTALLED, PUBLIC_CONFIG, ROOT, STUDENT_COMMAND, STUDENT_PROGRAM
from textgen import demo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from grader.assignment.records import Assignment
    from grader.core.results import Score, SubmissionResult
    from grader.judge.events import Listener

#: Limit in seconds on a timing that stays undecided. It is shorter than for a class, because a student is waiting.
TIME_BUDGET_S = 15.0
LAB, DOCTOR, INIT = "lab", "doctor", "init"
#: A result's flags with these codes are printed below the verdicts.
NOTED = ("torch_runner", "judged_class", "explanation_failed")
EPILOG = """init DIR writes a folder to work in: starter, assignment file, write-up.
doctor lists what this machine lacks; doctor --editor sets up your editor.
Studies (each has its own --help):
{studies}
Exit codes: 0 all passed, 1 a fault of the submission, 2 wrong usage, 3 a fault of the kit or machine."""


def parser(arguments: list[str], studies: Mapping[str, tuple[str, str]], *, has_demo: bool) -> Parser:
    """Return the parser of the student's command line. It offers the sizes and tests of the chosen assignment.

    `arguments` choose the assignment, for example by --config. `studies` maps each study's command to its module and
    description. `has_demo`: True if the lab has the text generation demo.
    """
    tests, source = chosen_tests(arguments)
    compare = "or compare (generate one text with each part); " if has_demo else ""
    parse = Parser(
        prog=STUDENT_PROGRAM,
        description=f"Compile {source} and judge its kernels: results, time and memory compared with the reference.",
        epilog=EPILOG.format(studies="".join(f"  {name:9} {what}\n" for name, (_, what) in studies.items())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commandline.add_version(parse)
    parse.value(
        "test",
        "TEST",
        f"one of {', '.join(tests)}; {compare}or a study, see below; or lab NAME TEST: a test of another lab",
    )
    commandline.add_sizes(parse, chosen_options(arguments))
    parse.path("--module", f"the file to judge, or its folder ({source})", "PATH")
    commandline.add_defines(parse, "TILE_SIZE=8")
    parse.flag("--sanitize", "find out-of-bounds accesses: a slow build with checks, without times")
    parse.add_argument(
        "--class",
        dest="of_class",
        metavar="NAME",
        help="class to judge, a subclass of autograd.Function (files for a GPU)",
    )
    parse.flag("--no-time", "judge results and memory only, which is faster")
    parse.add_argument(
        "--table",
        action=argparse.BooleanOptionalAction,
        help="print torch's profiler table for each right part; needs torch (default: only without --watch)",
    )
    parse.flag("--watch", "judge the file at each save, until Ctrl-C")
    parse.add_argument("--seed", metavar="n", help="make the inputs of timed calls repeatable")
    parse.add_argument("--json", metavar="FILE", type=Path, help="also write the result as JSON")
    parse.path("--html", "also write a page with the verdict, pictures of wrong elements, and times")
    parse.flag("--github", "in a GitHub workflow: write annotations, a summary and outputs")
    parse.path(
        "--classroom50",
        "in Classroom 50's workflow: write the result files that it reads into this folder",
        "DIR",
    )
    parse.path("--config", "another assignment", default=PUBLIC_CONFIG)
    if has_demo:
        demo.add_options(parse)
    return parse


def run_lab(arguments: list[str]) -> int:
    """Run `lab`, which lists the labs, or `lab NAME TEST ...`, which runs TEST with the assignment of that lab."""
    early = Parser(prog=f"{STUDENT_PROGRAM} lab", add_help=False)
    early.add_argument("--labs", type=Path)
    given, rest = early.parse_known_args(arguments)
    if not rest or rest[0] in ("-h", "--help"):
        print(f"{STUDENT_COMMAND} lab NAME TEST [options]     (--labs DIR: look for NAME in DIR)\n")
        for folder in labs.folders(given.labs):
            print(f"  {folder.name:12} {labs.title(folder)}")
        return 0
    if rest[1:2] == [INIT]:
        elsewhere = ["--labs", str(given.labs)] if given.labs else []
        return run([INIT, *rest[2:], "--lab", rest[0], *elsewhere])
    config = labs.assignment_file(labs.named(rest[0], given.labs))
    if len(rest) == 1:
        from grader.assignment.loading import load

        raise UsageError(
            f"lab {rest[0]} needs a test: {', '.join([*load(config).commands(), 'all'])}, or a study"
        )
    return run([rest[1], "--config", str(config), *rest[2:]])


def run(arguments: list[str]) -> int:
    if arguments[:1] == [LAB]:
        return run_lab(arguments[1:])
    if arguments[:1] == [DOCTOR]:
        from grader.doctor import students

        return students.main(arguments[1:])
    if arguments[:1] == [INIT]:
        from grader.assignment import starter

        return starter.main(arguments[1:])
    lab = chosen_lab(arguments)
    studies = study.commands(lab)
    if arguments and arguments[0] in studies:
        return study.main(lab, arguments[0], arguments[1:])
    if (
        arguments
        and "--config" not in arguments
        and (meant := get_close_matches(arguments[0], studies, 1, 0.8))
    ):
        raise UsageError(
            f"no command '{arguments[0]}': did you mean {meant[0]}? ({STUDENT_PROGRAM} --help lists all)"
        )
    given = parser(arguments, studies, has_demo=lab.has_demo).parse_args(arguments)
    if lab.has_demo and demo.wanted(given):
        if given.watch or given.html:
            raise UsageError(
                "--inference gives no verdict: leave it out, or leave out --watch and --html, which need one"
            )
        return demo.run(given, source_file, macros(given.defines))
    # The evaluator is imported only now, so that --help and mistyped options are answered at once.
    return judge(given)


def judge(given: argparse.Namespace) -> int:
    from grader.assignment.loading import load
    from grader.core import pythontree

    assignment = load(given.config)
    # The table of points names parts: each is judged by the test that it belongs to.
    given.test = {part.id: part.command for part in assignment.parts}.get(given.test, given.test)
    if given.test not in (*assignment.commands(), "all"):
        if given.test in chosen_lab([]).studies:
            raise UsageError(
                f"the lab {assignment.lab_folder.name} has no study '{given.test}': "
                f"choose {', '.join(study.commands(assignment.lab))}"
            )
        raise UsageError(f"no test '{given.test}': choose {', '.join([*assignment.commands(), 'all'])}")
    shape = commandline.sizes(given, assignment.size_options, assignment.minima, assignment.maxima)
    seed = None if given.seed is None else whole_number(given.seed, "--seed", 0, (1 << 60) - 1)
    module = given.module
    if module and module.is_dir():
        module = pythontree.main_in(module, assignment.source)
    # With --github, a missing file is not an error: the result that is published says that it is missing.
    nothing = missing_in(given.module, module, assignment) if given.github else ""
    must_exist = not given.watch and not nothing
    source = source_file(module, assignment.source, assignment.path.parent, must_exist=must_exist)
    refuse_outputs(given, source)

    from grader import score
    from grader.backends.native.toolchain import ABSENT, torch_version
    from grader.core.results import exit_code
    from grader.judge.bench import Options
    from grader.judge.evaluate import evaluate
    from grader.report.terminal import Terminal, graded_ids

    ladder = assignment.lab.ladder()
    terminal = Terminal(ladder=ladder, graded=graded_ids(assignment), is_checked=given.sanitize)
    has_torch = torch_version() != ABSENT
    if not has_torch:
        terminal.say(
            "This Python has no torch: results and times are judged, but no profiler table is printed.\n"
        )

    options = Options(
        shape,
        macros(given.defines),
        seed,
        timing=not given.no_time,
        time_budget_s=TIME_BUDGET_S,
        profile=has_torch and (not given.watch if given.table is None else given.table),
        sanitize=given.sanitize,
        second_look=True,
        watch_races=study.watch_races,
    )
    parts = [part.of_class(given.of_class) for part in assignment.select(given.test)]

    # Import a report's module only if the report is requested: each import delays the verdict on the screen.
    pictures = None
    if given.html:
        from grader.report import page

        pictures = page.Collector()

    def deliver(result: SubmissionResult, scored: Score) -> None:
        if given.json:
            from grader.report import result_json

            result_json.write(result, scored, given.json)
        if given.classroom50:
            from grader.report import classroom50

            classroom50.write(
                given.classroom50, assignment, result, scored, os.environ, datetime.now(timezone.utc)
            )
        if pictures is not None:
            page.write(given.html, assignment, result, scored, pictures, datetime.now(), source)

    if given.watch:
        from grader.study.watching import loop

        return loop.watch(loop.WatchTask(assignment, source, parts, options, deliver, pictures))
    listener: Listener = terminal
    if pictures is not None:
        pictures.listener = terminal
        listener = pictures
    muted: AbstractContextManager[None] = contextlib.nullcontext()
    if given.github:
        from grader.report import github

        muted = github.muted()
    with muted:
        result = (
            score.unreadable(assignment, source.stem, nothing)
            if nothing
            else evaluate(assignment, source, parts, options, listener)
        )
        scored = score.score(assignment, result)
        if len(result.parts) > 1 and not given.sanitize:
            terminal.scoreboard(result, scored)
    if given.github:
        from grader.backends.native import ispc

        files = {assignment.source: source}
        files |= {name: source.parent / name for name in (*assignment.beside(source.name), ispc.SOURCE)}
        files |= pythontree.members(source)
        github.publish(assignment, result, scored, github.sources(files, files))
    if INSTALLED and source.resolve().is_relative_to(ROOT):
        lab = f" --lab {assignment.lab_folder.name}" if assignment.lab_folder.name != labs.main() else ""
        terminal.say(
            f"Note: there is no {assignment.source} in this folder, so the kit's own solution was judged. "
            f"`{STUDENT_COMMAND} init DIR{lab}` writes a starter."
        )
    noted = [flag.message for flag in result.flags if flag.code in NOTED]
    terminal.say("\n".join(f"Note: {message}" for message in noted))
    if ladder:
        terminal.say(
            ladder.hint(assignment, result, commandline.size_options(shape, assignment.size_options))
        )
    deliver(result, scored)
    return exit_code(result.parts)


def missing_in(given: Path | None, module: Path | None, assignment: Assignment) -> str:
    """Return the reason why `module`, a file or a folder, gives no file to judge, or "".

    `given` is the value of the option --module, from which `module` was made. If it is None, return "".
    """
    if given is None or module is None:
        return ""
    source = module / assignment.source if module.is_dir() else module
    if source.is_symlink():
        return f"nothing was judged: {assignment.source} is a link; hand in the file itself"
    return "" if source.is_file() else f"nothing was handed in: there is no file {assignment.source} here"


def refuse_outputs(given: argparse.Namespace, source: Path) -> None:
    """Raise UsageError if an output file cannot be made or would overwrite `source`, or if options conflict."""
    if given.watch and given.github:
        raise UsageError(
            "--watch is for a person at a terminal, and --github for a workflow: leave out one of them"
        )
    if given.classroom50:
        from grader.report import classroom50

        classroom50.named(os.environ)
    if given.html:
        from grader.report import html

        if missing := html.missing_library():
            raise UsageError(f"--html needs the package {missing}: `pip install {missing}`")
    for flag, path in (("--json", given.json), ("--html", given.html)):
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{flag} takes a file, and {path} is a folder")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{flag}: no such folder: {path.absolute().parent}")
        if path.resolve() == source.resolve():
            raise UsageError(f"{flag} would overwrite {path}, the file to judge: name another file")


def main() -> NoReturn:
    """Run the command `gpt149`."""
    commandline.main(STUDENT_PROGRAM, run)


if __name__ == "__main__":
    main()
