"""`python gpt149.py frontier PART`: the student's kernel timed against the reference, and all other kernels beside it.

How long the others take beside the reference is a fact of this machine, this shape and these threads. It is kept, and
later verdicts know their place from the student's time against the reference alone, at no cost to the run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grader.assignment.options import chosen_options
from grader.core import commandline
from grader.core.commandline import Parser, source_file, whole_number
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.core.places import PUBLIC_CONFIG

TIME_BUDGET_S = 15.0
MOST_ROUNDS = 1000


def parser(arguments: list[str]) -> Parser:
    parse = Parser(
        prog="gpt149.py frontier",
        description="Your kernel between the naive one, the reference, the best kernels known here, and the machine.",
        epilog="What it measures of the others is kept: later verdicts of this machine and shape show their place.",
    )
    parse.add_argument("part", metavar="PART", help="part1 to part4")
    commandline.add_sizes(parse, chosen_options(arguments))
    parse.add_argument(
        "--module", metavar="PATH", type=Path, help="the file to judge, or its folder (module.cpp)"
    )
    parse.add_argument("--rounds", metavar="n", default="7", help="how often each is measured (%(default)s)")
    parse.add_argument(
        "--config", metavar="FILE", type=Path, default=PUBLIC_CONFIG, help="another assignment"
    )
    return parse


def main(arguments: list[str]) -> int:
    """Measure and print; exit codes as everywhere. Raises UsageError and KitError."""
    from grader.assignment.loading import load

    from . import yardsticks

    given = parser(arguments).parse_args(arguments)
    assignment = load(given.config)
    parts = {part.id: part for part in assignment.parts if yardsticks.applies(part)}
    if given.part not in parts:
        raise UsageError(f"no part '{given.part}' with a frontier: choose {', '.join(parts)}")
    part = parts[given.part]
    rounds = whole_number(given.rounds, "--rounds", 1, MOST_ROUNDS)
    chosen = commandline.sizes(given, assignment.size_options, assignment.minima, assignment.maxima)
    source = source_file(given.module, assignment.source)

    from grader.backends.torch.zygote import Zygote
    from grader.judge.bench import Options
    from grader.judge.evaluate import evaluate
    from grader.sandbox import of_file

    from . import ladder

    shape = {**assignment.defaults, **chosen}
    options = Options(chosen, time_budget_s=TIME_BUDGET_S, profile=False)
    with Zygote(sandbox=of_file(source)) as zygote:
        result = evaluate(assignment, source, (part,), options, zygote=zygote).parts[0]
        if sys.stderr.isatty():
            print(f"timing {len(yardsticks.RUNGS)} other kernels, {rounds} rounds ...", file=sys.stderr)
        known = yardsticks.measure(assignment, part, shape, zygote, rounds)
    yardsticks.keep(part, shape, known)
    sizes = " ".join(f"{name}={shape[name]}" for name in ("B", "H", "N", "d"))
    print(f"{part.id}: {part.title}, {sizes}, {known.cores} core{'s' if known.cores > 1 else ''}\n")
    if result.time is None:
        why = f": {result.diagnosis.message}" if result.diagnosis else ""
        print(f"Your kernel is not on the ladder yet, its verdict is '{result.verdict}'{why}\n")
        print(ladder.table(ladder.stand(1.0, known), "(the reference stands in for yours)"))
        return EXIT_SUBMISSION
    standing = ladder.stand(result.time.ratio, known)
    print(ladder.table(standing, "yours"))
    print(f"\n{ladder.line(standing)}")
    return EXIT_PASS
