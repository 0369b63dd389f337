"""Races by their effect: the same call again and again, on several numbers of threads, compared bit by bit.

A right kernel whose rows are shared out gives the same bits on any number of threads. One that sums over threads
(`reduction`) adds in another order each time and may differ in the last bits: so a difference within the error budget
of `grader.oracle` is told and not counted as a race. A race that did not happen is not seen; delays at random moments
make it likelier to (`grader.runner.Delays`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grader import binding, faults, oracle
from grader.assignment import Assignment, Part
from grader.bench import Bench, Options
from grader.build import build
from grader.cases import make_inputs
from grader.study.race import Finding
from grader.zygote import Zygote

#: More threads than cores make them interrupt each other.
THREADS = (1, 2, 3, 4, 8, 16)


def compare(
    assignment: Assignment, part: Part, source: Path, shape: Mapping[str, int], *, rounds: int, seed: int
) -> Finding:
    """Call the function `rounds` times on each number of THREADS, always on the same inputs."""
    started = time.monotonic()
    threads = tuple(count for count in THREADS if count <= max(shape["threads"], max(THREADS)))
    sizes = {**shape, "threads": max(threads)}
    inputs = make_inputs("random", sizes, seed)
    expected = oracle.ORACLES[part.oracle].expected(inputs, sizes)
    trouble = ""
    with ExitStack() as stack:
        zygote = stack.enter_context(Zygote())
        bench = Bench(
            assignment, source, Options(shape=sizes), lambda event: None, build(source), zygote, stack
        )
        if not bench.build.ok:
            trouble = f"does not compile: {bench.build.diagnostics.splitlines()[0]}"
        else:
            try:
                trouble = _differences(bench, part, sizes, inputs, expected, threads, rounds)
            except faults.Faulty as fault:
                trouble = f"gave no answer: {fault.diagnosis.message}"
    return Finding(
        part=part,
        source=source,
        shape=sizes,
        method=f"{rounds} runs on each of {', '.join(map(str, threads))} threads, compared bit by bit",
        trouble=trouble,
        wall_s=time.monotonic() - started,
    )


def _differences(
    bench: Bench,
    part: Part,
    shape: Mapping[str, int],
    inputs: Mapping[str, Any],
    expected: oracle.Expected,
    threads: tuple[int, ...],
    rounds: int,
) -> str:
    """What differs between the runs, in words that follow the function's name; "" if nothing that matters."""
    first, differing, wrong, example = None, 0, 0, ""
    for count in threads:
        with bench.student(part, threads=count) as session:
            if (misfit := binding.mismatch(part, session.functions, bench.assignment.inputs)) is not None:
                raise faults.Faulty("missing", misfit)
            for _ in range(rounds):
                call = session.call(binding.request(part, shape, inputs), delays=True)
                if call.status != "ok":
                    raise faults.call_fault(call, part, f"{count} threads")
                output, refused = faults.fitting_output(part, shape, inputs, call)
                if output is None:
                    raise faults.Faulty("wrong", refused or faults.Diagnosis("wrong", "no tensor came back"))
                first = output if first is None else first
                if not bool((output == first).all()):
                    differing += 1
                    comparison = oracle.compare(expected, output)
                    if not comparison.ok:
                        wrong += 1
                        where = tuple(comparison.wrong.nonzero()[0].tolist())
                        example = example or f"first at {where} on {count} threads"
    total = len(threads) * rounds
    if wrong:
        return f"is wrong in {wrong} of {total} runs and right on one thread, {example}: a data race"
    if not oracle.compare(expected, first).ok:
        return "is wrong on one thread already: get that right first"
    if differing:
        # Told, not judged.
        print(f"{differing} of {total} runs differ in their last bits, as a sum over threads does")
    return ""
