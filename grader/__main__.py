"""The command line of those who grade: `python -m grader COMMAND`. Rooms are imported when their command is called."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from grader.errors import KitError, UsageError
from grader.results import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION, EXIT_USAGE

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PUBLIC_CONFIG, HIDDEN_CONFIG = CONFIGS / "gpt149.yaml", CONFIGS / "hidden" / "gpt149.yaml"
#: A worker with its runners and a compiler needs this much; more workers than fit would push each other into swap.
WORKER_BYTES = 2 << 30

#: Commands of other rooms, which read their own arguments: `main(arguments) -> exit code` of this module.
FORWARDED = {
    "similar": ("grader.similar", "pairs of submissions that are alike"),
    "doctor": ("grader.doctor", "what weakens containment or timings on this machine, and what to do"),
    "selftest": ("grader.selftest", "whether this machine's verdicts can be trusted today"),
    "gradescope": ("grader.gradescope", "grade in Gradescope's container"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line in place of argparse's usage dump."""
        raise UsageError(f"{message} ({self.prog} --help lists what there is)")


def parser() -> Parser:
    parse = Parser(
        prog="python -m grader",
        description="Grade a class: one evaluator, in a sandbox, on record.",
        epilog="Exit codes: 0 done (of `one`: all passed), 1 a fault of the submission, 2 wrong usage, "
        "3 a fault of the kit or machine (of `run`: somebody got no verdict), 130 interrupted.",
    )
    commands = parse.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    run = commands.add_parser("run", help="grade a class into a folder")
    run.add_argument(
        "submissions", metavar="SUBMISSIONS", type=Path, help="a folder or zip, one entry per student"
    )
    run.add_argument("--out", metavar="DIR", type=Path, required=True, help="where results and reports go")
    run.add_argument("--resume", action="store_true", help="go on in DIR: repeat nothing that is finished")
    run.add_argument(
        "--again", action="store_true", help="with --resume: grade also what is finished and unchanged"
    )
    run.add_argument("--only", metavar="ID", nargs="+", default=[], help="grade only these submissions")
    run.add_argument(
        "--jobs", metavar="n", help="submissions at a time (default: as many as there are cores)"
    )
    _judging_options(run)
    _manual_option(run)

    one = commands.add_parser("one", help="grade one submission, and show its result")
    one.add_argument("path", metavar="PATH", type=Path, help="a source file, a folder or a zip of one")
    one.add_argument("--json", metavar="FILE", type=Path, help="also write the result for other programs")
    _judging_options(one)

    show = commands.add_parser("show", help="one student's result, from the results of a class")
    show.add_argument("out", metavar="DIR", type=Path, help="the folder that was --out of a run")
    show.add_argument("submission_id", metavar="ID", help="the submission, as grades.csv names it")
    _manual_option(show)

    report = commands.add_parser("report", help="write grades.csv and report.html anew, without grading")
    report.add_argument("out", metavar="DIR", type=Path, help="the folder that was --out of a run")
    _manual_option(report)

    for name, (_, what) in FORWARDED.items():
        commands.add_parser(name, help=what, add_help=False)
    return parse


def _judging_options(parse: argparse.ArgumentParser) -> None:
    parse.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the assignment (default: configs/hidden/gpt149.yaml, else configs/gpt149.yaml)",
    )
    parse.add_argument("--seed", metavar="n", help="make hidden and timed inputs repeatable")
    parse.add_argument("--no-time", action="store_true", help="results and memory only")
    parse.add_argument(
        "--tier", choices=("A", "B", "C", "D"), help="this sandbox, not the strongest there is"
    )
    parse.add_argument(
        "--trust", action="store_true", help="allow a sandbox below tier C: you trust the submissions"
    )


def _manual_option(parse: argparse.ArgumentParser) -> None:
    parse.add_argument(
        "--manual",
        metavar="FILE",
        type=Path,
        help="points that people give (default: DIR/manual.csv, if it is there)",
    )


# ---- commands


def run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in FORWARDED:
        return importlib.import_module(FORWARDED[arguments[0]][0]).main(list(arguments[1:]))
    given = parser().parse_args(arguments)
    return {"run": run_class, "one": run_one, "show": show, "report": report}[given.command](given, arguments)


def run_class(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    if given.again and not given.resume:
        raise UsageError("--again repeats what is finished: use it with --resume")
    from grader import classroom

    return classroom.run(
        classroom.Wanted(
            submissions=given.submissions,
            out=given.out,
            config=config(given.config),
            workers=whole_number(given.jobs, "--jobs", 1, 1024) or default_workers(),
            resume=given.resume,
            again=given.again,
            only=tuple(given.only),
            seed=seed(given.seed),
            timing=not given.no_time,
            trust=given.trust,
            tier=given.tier,
            manual=given.manual,
            to_resume=to_resume(arguments),
        )
    )


def to_resume(arguments: Sequence[str]) -> str:
    """The command line that goes on with what is left, with all that this one asked for."""
    kept = [item for item in arguments if item not in ("--resume", "--again")]
    return shlex.join(["python", "-m", "grader", *kept, "--resume"])


def run_one(given: argparse.Namespace, _: Sequence[str]) -> int:
    from grader import solo

    passed = solo.run(
        given.path,
        config(given.config),
        seed=seed(given.seed),
        timing=not given.no_time,
        tier=given.tier,
        trust=given.trust,
        json_file=given.json,
    )
    return EXIT_PASS if passed else EXIT_SUBMISSION


def show(given: argparse.Namespace, _: Sequence[str]) -> int:
    from grader import gradebook

    return gradebook.show(given.out, given.submission_id, given.manual)


def report(given: argparse.Namespace, _: Sequence[str]) -> int:
    from grader import gradebook

    return gradebook.report(given.out, given.manual)


def config(given: Path | None) -> Path:
    """The assignment's file: as given, else with the hidden cases where they are, else the public one."""
    return given or (HIDDEN_CONFIG if HIDDEN_CONFIG.is_file() else PUBLIC_CONFIG)


def seed(text: str | None) -> int | None:
    from grader.assignment import LARGEST_SEED

    return whole_number(text, "--seed", 0, LARGEST_SEED)


def whole_number(text: str | None, flag: str, low: int, high: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
        raise UsageError(f"{flag} takes a whole number from {low} to {high}, not '{text}'")
    return int(text)


def default_workers() -> int:
    """One for each core, as far as they fit into memory."""
    from grader import machine

    facts = machine.describe()
    fitting = int(str(facts.get("memory_bytes", WORKER_BYTES << 10))) // WORKER_BYTES
    return max(1, min(int(str(facts["cores"] or 1)), fitting))


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            os._exit(EXIT_USAGE)  # closed by the caller: there is nobody to tell
        # Names and messages may hold what the terminal's encoding does not.
        stream.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
    except UsageError as error:
        print(f"grader: {error}", file=sys.stderr)
        code = EXIT_USAGE
    except KitError as error:
        print(f"grader: {error}", file=sys.stderr)
        code = EXIT_KIT
    except KeyboardInterrupt:
        print("\ngrader: interrupted", file=sys.stderr)
        code = 130
    except OSError as error:
        # The reader left (| head), or the disk is full.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            print(f"grader: {error}", file=sys.stderr)
        code = 141 if isinstance(error, BrokenPipeError) else EXIT_KIT
    except Exception:
        traceback.print_exc()
        print("grader: this is a fault of the kit: please report it with the lines above", file=sys.stderr)
        code = EXIT_KIT
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Where torch is loaded, tearing it down takes long and changes nothing.
    os._exit(code)


if __name__ == "__main__":
    main()
