"""`python gpt149.py race part3`: a search for results that depend on the order of the threads.

Theory of operation. Two accesses to the same memory by different threads, at least one of them a write, are a race if
nothing orders them. They need not have collided in this run. ThreadSanitizer records the synchronisation between
accesses, so it finds a race in a run with a right result. It does not see the barriers of gcc's OpenMP library. The
program is therefore linked with a small OpenMP library of the kit's own (native/openmp_tsan.cpp). That one reports to
ThreadSanitizer exactly the orders that OpenMP promises.

This needs gcc, ThreadSanitizer, and a file that uses no more of torch or OpenMP than these programs have. Without them
the kernel is run again and again on several numbers of threads, and the results are compared bit by bit
(`grader.study.raceruns`). That shows races which happen, not those which may.
"""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from grader.assignment.records import Assignment, Part
from grader.backends.native.toolchain import Toolchain, toolchain
from grader.core.commandline import add_defines, macros
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.core.quantities import whole
from grader.judge import binding
from grader.study import options, outcome, racereport, raceruns
from grader.study.racereport import RaceResult
from grader.study.standalone import (
    Kit,
    Ran,
    Unsuitable,
    build_program,
    ran,
)

THREADS, MOST_TOLD = 4, 3
TIMEOUT_S = 60.0
#: Without optimisation every access happens in the line that contains it.
KIT = Kit(
    flags=("-O0", "-g1", "-fsanitize=thread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"),
    link_flags=("-fsanitize=thread", "-Wl,--wrap=_exit"),
    runtime="openmp_tsan.cpp",
)
TSAN_OPTIONS = "exitcode=0:color=never:report_signal_unsafe=0:report_thread_leaks=0:history_size=5"
REGIONS = "openmp: regions "


def main(arguments: list[str]) -> int:
    parse = options.parser(arguments, "race", "Find data races in a part that uses OpenMP.")
    parse.add_argument("part", nargs="?", help="which part (the first that is timed on several threads)")
    parse.add_argument(
        "--repeat",
        action="store_true",
        help="compare repeated runs instead of watching one with ThreadSanitizer",
    )
    add_defines(parse)
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    defines = macros(given.defines)
    part = options.openmp_part(settings, given.part)
    shape = {**watched_sizes(settings.assignment, part), **settings.shape}
    if shape["threads"] < 2:
        raise UsageError("--threads: a race takes two; choose 2 or more")
    outcome.prepare(settings, "race")
    finding = measure(
        settings.assignment, part, settings.source, shape, settings, repeat=given.repeat, defines=defines
    )
    tell(finding)
    outcome.deliver(finding, settings)
    return EXIT_PASS if finding.is_clean else EXIT_SUBMISSION


def watched_sizes(assignment: Assignment, part: Part) -> dict[str, int]:
    """Return small sizes, as a watched access costs about fifty: the lab's, else those of the part's largest case."""
    fixed = [case.shape for case in part.cases if case.shape and not case.hidden]
    largest = max(fixed, key=lambda shape: math.prod(shape.values()), default={})
    return {**assignment.defaults, **(assignment.lab.watched_sizes or largest), "threads": THREADS}


def tell(finding: RaceResult) -> None:
    for race in finding.races[: racereport.MOST_RACES]:
        print()
        print("\n".join(racereport.words(race, finding.source.name)))


def measure(
    assignment: Assignment,
    part: Part,
    source: Path,
    shape: Mapping[str, int],
    settings: options.Settings,
    *,
    repeat: bool = False,
    defines: Mapping[str, str] | None = None,
) -> RaceResult:
    """Watch one call of the part's function; if it cannot be watched, compare many calls."""
    if not repeat:
        try:
            return watch(assignment, part, source, shape, seed=settings.seed or 0, defines=defines)
        except Unsuitable as why:
            print(
                f"ThreadSanitizer cannot watch it ({why}); comparing repeated runs instead", file=sys.stderr
            )
    return raceruns.compare(
        *(assignment, part, source, shape), rounds=settings.rounds, seed=settings.seed or 0, defines=defines
    )


def words_of(assignment: Assignment, part: Part, source: Path, defines: Mapping[str, str]) -> str | None:
    """Return the races of a watched call with their lines, for a verdict; "" if it saw none, None without a call."""
    try:
        found = watch(assignment, part, source, watched_sizes(assignment, part), defines=defines)
    except (Unsuitable, KitError):
        return None
    if found.trouble:
        return None
    shown = found.races[:MOST_TOLD]
    return "\n".join(line for race in shown for line in racereport.words(race, source.name))


def watch(
    assignment: Assignment,
    part: Part,
    source: Path,
    shape: Mapping[str, int],
    *,
    seed: int = 0,
    defines: Mapping[str, str] | None = None,
) -> RaceResult:
    """Run one call under ThreadSanitizer. Raises Unsuitable if the file cannot be made into such a program."""
    tools = toolchain()
    if not has_thread_sanitizer(tools):
        raise Unsuitable(
            f"{tools.compiler_version} has no ThreadSanitizer that fits the kit's OpenMP library"
        )
    started = time.monotonic()
    program = build_program(source, KIT, defines)
    request = binding.request(part, shape, assignment.typical_inputs(part, shape, seed))
    for prefix in ((), _without_randomised_addresses()):
        with ran(
            program,
            request,
            prefix=prefix,
            tool_files=tuple(map(Path, prefix[:1])),
            environment={"TSAN_OPTIONS": TSAN_OPTIONS},
            threads=shape["threads"],
            timeout_s=TIMEOUT_S,
            memory_bytes=None,  # It reserves terabytes of addresses.
        ) as run:
            pass
        # Its shadow memory has fixed addresses, which a randomised mapping may occupy.
        if "unexpected memory mapping" not in run.output:
            break
    else:
        raise Unsuitable("its memory does not fit beside this kernel's random addresses")
    text = source.read_text(errors="replace")
    found = racereport.races(run.output, text)
    return RaceResult(
        part=part,
        source=source,
        shape=binding.used_sizes(shape, part),
        method="ThreadSanitizer",
        races=found,
        trouble="" if found else _trouble(run),
        regions=_regions(run.output),
        wall_s=time.monotonic() - started,
    )


@functools.cache
def has_thread_sanitizer(tools: Toolchain) -> bool:
    """Return True for gcc on Linux with its libtsan. Other compilers call another OpenMP library than the kit's."""
    if tools.system != "Linux" or tools.family != "gcc":
        return False
    command = [str(tools.compiler), "-print-file-name=libtsan.so"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    return Path(answer).is_absolute()


def _without_randomised_addresses() -> tuple[str, ...]:
    program = shutil.which("setarch")
    return (program, "-R") if program else ()


def _regions(output: str) -> int | None:
    _, found, rest = output.rpartition(REGIONS)
    number = rest.split("\n", 1)[0]
    return whole(number) if found else None


def _trouble(run: Ran) -> str:
    """Describe the program's end, in words that follow the function's name; "" if it ended well."""
    finished = run.finished
    if finished.timed_out:
        return f"did not end within {TIMEOUT_S:.0f} s, and no race was seen until then"
    if run.call is not None and run.call.status == "exception":
        return f"cannot be called, or threw an exception: {run.call.message[:200]}"
    if finished.returncode != 0 or run.call is None:
        return "crashed before a race could be seen: look for the fault with --sanitize first"
    return ""
