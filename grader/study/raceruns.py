"""Search for races by their effect: the same call repeated on several numbers of threads, compared bit by bit.

A right kernel whose rows are shared out gives the same bits on any number of threads. A kernel that sums over threads
(`reduction`) adds in another order each time and may differ in the last bits. So a difference within the oracle's error
budget is reported, but does not count as a race. A race that did not happen is not seen; random delays make it more
likely (`torch.delays`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment, Part
from grader.backends import binding, faults
from grader.backends.native import crashes
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import first_of
from grader.judge.bench import Bench, Options
from grader.judge.case_run import expectations, outputs_of
from grader.judge.comparison import Expected
from grader.judge.comparison import compare as compare_arrays
from grader.sandbox import of_file
from grader.study.racereport import RaceResult

#: More threads than cores make them interrupt each other.
THREADS = (1, 2, 3, 4, 8, 16)


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
    """Call the function `rounds` times on each number of THREADS, always on the same inputs."""
    started = time.monotonic()
    threads = tuple(count for count in THREADS if count <= max(shape["threads"], max(THREADS)))
    sizes = {**shape, "threads": max(threads)}
    inputs = assignment.typical_inputs(part, sizes, seed)
    expected = expectations(part, assignment.lab.oracle(part.oracle).expected(inputs, sizes))
    trouble = ""
    with ExitStack() as stack:
        options = Options(shape=sizes, defines=defines or {})
        made = make(assignment, source, options)
        bench = Bench(
            *(assignment, source, options, lambda event: None, made.judged),
            *(stack.enter_context(Zygote(sandbox=of_file(source), at_once=False)), stack),
            host=stack.enter_context(NativeHost(of_file(source))) if made.native else None,
            with_torch=made.with_torch,
        )
        if not bench.build.ok:
            trouble = f"does not compile: {bench.build.diagnostics.splitlines()[0]}"
        else:
            try:
                trouble = _differences(bench, part, sizes, inputs, expected, threads, rounds)
            except faults.Faulty as fault:
                trouble = f"gave no answer: {fault.diagnosis.message}"
    return RaceResult(
        part=part,
        source=source,
        shape=binding.used_sizes(sizes, part),
        method=f"{rounds} runs on each of {', '.join(map(str, threads))} threads, compared bit by bit",
        trouble=trouble,
        wall_s=time.monotonic() - started,
    )


@dataclass(frozen=True)
class Run:
    """One call.

    `differs`: it gave other bits than the first call. `wrong_at`: its first element beyond the error budget, or None.
    """

    threads: int
    differs: bool
    wrong_at: tuple[int, ...] | None


def _differences(
    bench: Bench,
    part: Part,
    shape: Mapping[str, int],
    inputs: Mapping[str, Any],
    expected: Mapping[str, Expected],
    threads: tuple[int, ...],
    rounds: int,
) -> str:
    """Run the calls and describe their differences, in words that follow the function's name; "" if none matters."""
    first, first_wrong_at, runs = None, None, []
    for count in threads:
        with bench.student(part, threads=count) as session:
            if (misfit := binding.mismatch(part, session.functions, part.inputs)) is not None:
                raise faults.Faulty("missing", misfit)
            for _ in range(rounds):
                call = session.call(binding.request(part, shape, inputs), delays=True)
                if call.status != "ok":
                    raise crashes.call_fault(faults.Broken(part, call, f"{count} threads"))
                output, refused = outputs_of(part, shape, inputs, call)
                if output is None:
                    raise faults.Faulty("wrong", refused or faults.Diagnosis("wrong", "no tensor came back"))
                if first is None:
                    first, first_wrong_at = output, _wrong_at(expected, output)
                differs = not all(bool((output[name] == first[name]).all()) for name in output)
                wrong_at = _wrong_at(expected, output) if differs else first_wrong_at
                runs.append(Run(count, differs, wrong_at))
    return told(runs)


def _wrong_at(expected: Mapping[str, Expected], found: Mapping[str, Any]) -> tuple[int, ...] | None:
    for name, output in found.items():
        comparison = compare_arrays(expected[name], output)
        if not comparison.ok:
            return first_of(comparison.wrong)
    return None


def told(runs: Sequence[Run]) -> str:
    """Describe the differences between runs, in words that follow the function's name; "" if none matters."""
    wrong = [run for run in runs if run.wrong_at is not None]
    alone = [run for run in runs if run.threads == 1]
    wrong_alone = [run for run in wrong if run.threads == 1]
    if wrong_alone:
        often = "" if len(wrong_alone) == len(alone) else f" in {len(wrong_alone)} of {len(alone)} runs"
        return f"is wrong on one thread already{often}: get that right first"
    if wrong:
        example = f"first at {wrong[0].wrong_at} on {wrong[0].threads} threads"
        return f"is wrong in {len(wrong)} of {len(runs)} runs and right on one thread, {example}: a data race"
    differing = sum(run.differs for run in runs)
    if differing:
        # Reported, not judged.
        print(f"{differing} of {len(runs)} runs differ in their last bits, as a sum over threads does")
    return ""
