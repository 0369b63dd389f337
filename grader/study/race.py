"""`python gpt149.py race part3`: a search for results that depend on the order of the threads.

Theory of operation. Two accesses to the same memory by different threads, at least one of them a write, are a race if
no synchronisation orders them. ThreadSanitizer records the synchronisation between accesses, so it finds a race even
in a run with a right result. But it does not see the barriers of gcc's OpenMP library. The program is therefore linked
with the kit's small OpenMP library (native/openmp_tsan.cpp), which reports to ThreadSanitizer exactly the
synchronisation that OpenMP promises.

This needs gcc, ThreadSanitizer, and a file that uses only those parts of torch and OpenMP that the kit replaces.
Otherwise the function `compare` repeats the call on several numbers of threads, and compares the results with ==.
This finds only races that change a result in these runs. Random delays make that more likely
(`Session.call(delays=True)`).

A correct kernel that divides its rows among threads gives the same bits on any number of threads. A kernel that sums
over threads (`reduction`) adds in another order each time, so the last bits may differ. A difference within the
oracle's error budget is therefore only printed as a note, and is not a race.
"""

from __future__ import annotations

import functools
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Assignment, Part
from grader.backends import binding, faults
from grader.backends.native import crashes
from grader.backends.native.nativehost import NativeHost
from grader.backends.native.toolchain import Toolchain, toolchain
from grader.backends.selection import make
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import first_of
from grader.core.commandline import add_defines, macros
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.core.quantities import whole
from grader.explain.case_run import expectations, outputs_of
from grader.explain.comparison import Expected
from grader.explain.comparison import compare as compare_arrays
from grader.judge.bench import Bench, Options, Watched
from grader.sandbox import Sandbox, of_file
from grader.study import options, outcome, racereport
from grader.study.racereport import RaceResult
from grader.study.standalone import Kit, Ran, Unsuitable, build_program, ran

#: Numbers of threads for `compare`. Some exceed the number of cores, because the system then interrupts threads at
#: random moments.
COMPARED_THREADS = (1, 2, 3, 4, 8, 16)


def compare(
    assignment: Assignment,
    part: Part,
    source: Path,
    shape: Mapping[str, int],
    *,
    rounds: int,
    seed: int,
    defines: Mapping[str, str] | None = None,
) -> RaceResult:
    """Search for races by comparing results: make `rounds` equal calls on each number of threads in COMPARED_THREADS.

    `shape` has the sizes of the calls, `seed` determines the inputs, and `defines` are macros for the compiler.
    """
    started = time.monotonic()
    sizes = {**shape, "threads": max(COMPARED_THREADS)}
    inputs = assignment.typical_inputs(part, sizes, seed)
    expected = expectations(part, inputs.expected(assignment.lab.oracle(part.oracle)))
    trouble = ""
    with ExitStack() as stack:
        options = Options(shape=sizes, defines=defines or {})
        made = make(assignment, source, options)
        bench = Bench(
            *(assignment, source, options, lambda event: None, made),
            *(stack.enter_context(Zygote(sandbox=of_file(source), at_once=False)), stack),
            host=stack.enter_context(NativeHost(of_file(source))) if made.native else None,
        )
        if not bench.build.ok:
            trouble = f"does not compile: {bench.build.diagnostics.splitlines()[0]}"
        else:
            try:
                trouble = _differences(bench, part, inputs, expected, COMPARED_THREADS, rounds)
            except faults.Faulty as fault:
                trouble = f"gave no answer: {fault.diagnosis.message}"
    return RaceResult(
        part=part,
        source=source,
        shape=binding.used_sizes(sizes, part),
        method=f"{rounds} runs on each of {', '.join(map(str, COMPARED_THREADS))} threads, compared with ==",
        trouble=trouble,
        wall_s=time.monotonic() - started,
    )


@dataclass(frozen=True)
class Run:
    """Comparison of one call's output.

    `differs`: True if the output differs (by `==`) from the first call's output. `wrong_at` is the index of the first
    element whose error exceeds the oracle's error budget, or None.
    """

    threads: int
    differs: bool
    wrong_at: tuple[int, ...] | None


def _differences(
    bench: Bench,
    part: Part,
    inputs: CaseInputs,
    expected: Mapping[str, Expected],
    threads: tuple[int, ...],
    rounds: int,
) -> str:
    """Make `rounds` calls on each of the numbers `threads`. Return `differences_text` of their results.

    `expected` are the right outputs by name. Raises Faulty if a call fails.
    """
    first, first_wrong_at, runs = None, None, []
    for count in threads:
        with bench.student(part, threads=count) as session:
            if (misfit := binding.mismatch(part, session.functions)) is not None:
                raise faults.Faulty("missing", misfit)
            for _ in range(rounds):
                call = session.call(binding.request(part, inputs.shape, inputs), delays=True)
                if call.status != "ok":
                    raise crashes.call_fault(faults.Broken(part, call, f"{count} threads"))
                output, refused = outputs_of(part, inputs.shape, inputs, call)
                if output is None:
                    raise faults.Faulty("wrong", refused or faults.Diagnosis("wrong", "returned no tensor"))
                if first is None:
                    first, first_wrong_at = output, _wrong_at(expected, output)
                differs = not all(bool((output[name] == first[name]).all()) for name in output)
                wrong_at = _wrong_at(expected, output) if differs else first_wrong_at
                runs.append(Run(count, differs, wrong_at))
    return differences_text(runs)


def _wrong_at(expected: Mapping[str, Expected], found: Mapping[str, Any]) -> tuple[int, ...] | None:
    for name, output in found.items():
        comparison = compare_arrays(expected[name], output)
        if not comparison.ok:
            return first_of(comparison.wrong)
    return None


def differences_text(runs: Sequence[Run]) -> str:
    """Return the end of a sentence on wrong results that begins with the function's name, or "" if all are right.

    If right results differ from call to call, print a note.
    """
    wrong = [run for run in runs if run.wrong_at is not None]
    alone = [run for run in runs if run.threads == 1]
    wrong_alone = [run for run in wrong if run.threads == 1]
    if wrong_alone:
        often = "" if len(wrong_alone) == len(alone) else f" in {len(wrong_alone)} of {len(alone)} runs"
        return f"is wrong even on one thread{often}: correct this first"
    if wrong:
        example = f"first at {wrong[0].wrong_at} on {wrong[0].threads} threads"
        return f"is wrong in {len(wrong)} of {len(runs)} runs and right on one thread, {example}: a data race"
    differing = sum(run.differs for run in runs)
    if differing:
        print(f"{differing} of {len(runs)} runs differ in their last bits, as expected of a sum over threads")
    return ""


THREADS, MOST_SHOWN = 4, 3
TIMEOUT_S = 60.0
START_THREAD = "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"
"""Function of libstdc++ that `std::thread` calls to start a thread."""
WRAPPED = ("_exit", "pthread_create", START_THREAD, "__tsan_func_entry", "__tsan_func_exit")
#: Options of a build with ThreadSanitizer. Optimised code (-O1 and more) could make reports name a wrong source line.
KIT = Kit(
    flags=("-O0", "-g1", "-fsanitize=thread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"),
    link_flags=("-fsanitize=thread", *(f"-Wl,--wrap={name}" for name in WRAPPED)),
    runtime="openmp_tsan.cpp",
)
TSAN_OPTIONS = (
    "exitcode=0:color=never:report_signal_unsafe=0:report_thread_leaks=0:"
    "history_size=5:hard_rss_limit_mb=4096"
)
REGIONS, ALONE = "openmp: regions ", "openmp: alone "


def main(arguments: list[str]) -> int:
    parse = options.parser(arguments, "race", "Find data races in a part that uses OpenMP.")
    parse.add_argument("part", nargs="?", help="part to search (default: the first OpenMP part)")
    parse.flag("--repeat", "compare repeated runs, without ThreadSanitizer")
    add_defines(parse)
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    defines = macros(given.defines)
    part = options.openmp_part(settings, given.part)
    shape = {**watched_sizes(settings.assignment, part), **settings.shape}
    if shape["threads"] < 2:
        raise UsageError("--threads: a race needs two threads; choose 2 or more")
    outcome.prepare(settings, "race")
    finding = measure(
        settings.assignment, part, settings.source, shape, settings, repeat=given.repeat, defines=defines
    )
    for race in finding.races[: racereport.MOST_RACES]:
        print("", *racereport.words(race, finding.source.name), sep="\n")
    outcome.deliver(finding, settings)
    return EXIT_PASS if finding.is_clean else EXIT_SUBMISSION


def watched_sizes(assignment: Assignment, part: Part) -> dict[str, int]:
    """Return the sizes for a call under ThreadSanitizer: the lab's `watched_sizes`, else the largest public case's."""
    fixed = [case.shape for case in part.cases if case.shape and not case.hidden]
    largest = max(fixed, key=lambda shape: math.prod(shape.values()), default={})
    return {**assignment.defaults, **(assignment.lab.watched_sizes or largest), "threads": THREADS}


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
    """Search for races with ThreadSanitizer. If that is impossible, or if `repeat`, use `compare` instead."""
    if not repeat:
        try:
            return watch(assignment, part, source, shape, seed=settings.seed or 0, defines=defines)
        except Unsuitable as why:
            print(f"ThreadSanitizer cannot be used ({why}); comparing repeated runs instead", file=sys.stderr)
    return compare(
        *(assignment, part, source, shape), rounds=settings.rounds, seed=settings.seed or 0, defines=defines
    )


def words_of(
    assignment: Assignment,
    part: Part,
    source: Path,
    defines: Mapping[str, str],
    shape: Mapping[str, int],
    sandbox: Sandbox,
) -> Watched:
    """Call a part under ThreadSanitizer. Return a text on its data races, or the reason why the search failed.

    The first call has small sizes (`watched_sizes`). It may find no race only because it ran no parallel region, or ran
    a region on a single thread. In this case there is a second call with the sizes `shape`.
    """
    small = watched_sizes(assignment, part)
    try:
        found = watch(assignment, part, source, small, defines=defines, sandbox=sandbox)
        if (found.regions == 0 or found.alone) and found.is_clean:
            large = {**shape, "threads": THREADS}
            found = watch(assignment, part, source, large, defines=defines, sandbox=sandbox)
    except Unsuitable as why:
        return Watched(unseen=str(why))
    except KitError as error:
        return Watched(unseen=f"ThreadSanitizer cannot be used: {error}")
    if not found.races:
        unfinished = "ThreadSanitizer's report is missing" if found.regions is None else ""
        return Watched(unseen=found.trouble or unfinished)
    shown = found.races[:MOST_SHOWN]
    return Watched("\n".join(line for race in shown for line in racereport.words(race, source.name)))


def watch(
    assignment: Assignment,
    part: Part,
    source: Path,
    shape: Mapping[str, int],
    *,
    seed: int = 0,
    defines: Mapping[str, str] | None = None,
    sandbox: Sandbox | None = None,
) -> RaceResult:
    """Return the data races of one call under ThreadSanitizer. Raises Unsuitable if that is impossible here."""
    tools, sandbox = toolchain(), sandbox or of_file(source)
    if not has_thread_sanitizer(tools):
        raise Unsuitable(
            f"{tools.compiler_version} has no ThreadSanitizer that fits the kit's OpenMP library"
        )
    started = time.monotonic()
    program = build_program(source, KIT, defines, sandbox)
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
            # ThreadSanitizer reserves terabytes of addresses. TSAN_OPTIONS limits the memory that it uses.
            memory_bytes=None,
            sandbox=sandbox,
        ) as run:
            pass
        # ThreadSanitizer needs certain addresses. If address randomisation put a mapping there, run without it.
        if "unexpected memory mapping" not in run.output:
            break
    else:
        raise Unsuitable("this Linux places the program at addresses that ThreadSanitizer needs")
    text = source.read_text(errors="replace")
    found = racereport.races(run.output, text)
    return RaceResult(
        part=part,
        source=source,
        shape=binding.used_sizes(shape, part),
        method="ThreadSanitizer",
        races=found,
        trouble="" if found else _trouble(run),
        regions=_count(run.output, REGIONS),
        alone=_count(run.output, ALONE) or 0,
        wall_s=time.monotonic() - started,
    )


@functools.cache
def has_thread_sanitizer(tools: Toolchain) -> bool:
    """Return True if the compiler is gcc with libtsan on Linux: the kit's OpenMP library supports only gcc's calls."""
    if tools.system != "Linux" or tools.family != "gcc":
        return False
    return tools.file("libtsan.so") is not None


def _without_randomised_addresses() -> tuple[str, ...]:
    program = shutil.which("setarch")
    return (program, "-R") if program else ()


def _count(output: str, of: str) -> int | None:
    """Return the number that follows the last occurrence of the text `of` in `output`; None if it is missing."""
    _, found, rest = output.rpartition(of)
    number = rest.split("\n", 1)[0]
    return whole(number) if found else None


def _trouble(run: Ran) -> str:
    """Return the end of a sentence on a run's failure that begins with the function's name; "" if it did not fail."""
    finished = run.finished
    if finished.timed_out:
        return f"did not end within {TIMEOUT_S:.0f} s; no race was found until then"
    if run.call is not None and run.call.status == "exception":
        return f"could not be called, or threw an exception: {run.call.message[:200]}"
    if finished.returncode != 0 or run.call is None:
        return "crashed before a race could be found: look for the crash with --sanitize first"
    return ""
