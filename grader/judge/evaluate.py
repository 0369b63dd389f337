"""The evaluator: it judges one source file and returns the result. A student's own run, a class and Gradescope use it.

Order of work for each part (`grader.judge.part`): check that the file exports its function; call it on every public
case and compare the outputs with float64 values; time it in paired rounds, and check their outputs; compare its peak
memory with the reference's. If requested, one call is also made under torch's profiler. A listener receives each
finding at once, so that a terminal can show correctness long before the timing is done. This module does not print.

Hidden cases are called last, after the public calls of all parts. The reason: a kernel could end a hidden call at a
time that encodes a hidden size. A runner that starts afterwards could read the clock, and return that size as a wrong
public output, which the student sees. So no runner for public calls starts after a hidden call, except for parts that
are judged again (`_undisturbed`). Parts without hidden cases are complete before the first hidden call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from grader.assignment.records import Assignment, Part
from grader.backends import binding, selection
from grader.backends.kinds import kind_of
from grader.backends.native import ispc, sanitize
from grader.backends.native.nativehost import NativeHost
from grader.backends.native.toolchain import cache_root
from grader.backends.native.toolchain import describe as describe_toolchain
from grader.backends.torch.zygote import Zygote
from grader.core import machine, pythontree, version
from grader.core.results import Flag, PartResult, SubmissionResult
from grader.integrity import flags as integrity
from grader.judge.bench import Bench, Exclusive, Options, unshared
from grader.judge.events import (
    BuildStarted,
    Built,
    HiddenStarted,
    Listener,
    PartDone,
    PartStarted,
    StepStarted,
)
from grader.judge.part import PartJudge
from grader.sandbox import Sandbox, of_file, view


def evaluate(
    assignment: Assignment,
    source: Path,
    parts: tuple[Part, ...],
    options: Options,
    listener: Listener = lambda event: None,
    zygote: Zygote | None = None,
    exclusive: Exclusive = unshared,
    give_way: Callable[[], None] = lambda: None,
    sandbox: Sandbox | None = None,
) -> SubmissionResult:
    """Build one source file and judge these parts of it in order.

    Args:
        zygote: process from which runners with torch are forked; by default this evaluation starts its own.
        exclusive: context manager around each timing. It lets evaluations on one machine take turns, and may yield the
            cores to use.
        give_way: function that is called between runners, so that timings of other evaluations can have their turn.
        sandbox: confinement of compiler and runners; by default the zygote's, or `sandbox.of_file`.

    Raises KitError if the machine or the kit cannot judge. Raises UsageError for a source that cannot be read or sizes
    that are too large. Faults of the submission become verdicts.
    """
    sandbox = sandbox or (zygote.sandbox if zygote else of_file(source))
    shape = {**assignment.defaults, **options.shape}
    for part in parts:
        binding.refuse_oversize(part, shape, assignment.limits.memory_gib)
    sandbox.protect(*view.secrets(), *assignment.files, assignment.lab_folder, cache_root())
    with ExitStack() as stack:
        listener(BuildStarted(source))
        # Hash before compiling: the file may change meanwhile.
        sha256 = hashlib.sha256(pythontree.whole(source)).hexdigest()
        # Raises KitError if the compiler has no sanitizers, before anything is judged.
        checked = sanitize.environment() if options.sanitize else None
        made = selection.make_all(
            assignment,
            source,
            parts,
            options,
            shape=shape,
            sandbox=sandbox,
            on_step=lambda step: listener(StepStarted(step)),
            stack=stack,
        )
        listener(Built(made.judged))
        # A child process reads the object while the first calls are made (`integrity.inspection`).
        listener(StepStarted("inspection"))
        reader = stack.enter_context(ThreadPoolExecutor(1))
        inspected = reader.submit(lambda: () if options.sanitize else integrity.inspect_object(made.judged))
        if checked is not None:
            # AddressSanitizer must be loaded before torch, so these runners are forked from another process (zygote).
            zygote = stack.enter_context(Zygote(checked, sandbox, at_once=False))
        elif zygote is None:
            zygote = stack.enter_context(Zygote(sandbox=sandbox, at_once=False))
        checks = None if checked is None else sanitize.options()
        host = stack.enter_context(NativeHost(sandbox, checks=checks)) if made.native else None
        # Import NumPy now, not during the first part. If the file was not built, no function is called, and judging
        # does not need NumPy.
        if made.judged.ok or not all(kind_of(part).is_students for part in parts):
            import_numpy(assignment)

        bench = Bench(
            assignment,
            source,
            options,
            listener,
            made,
            zygote,
            stack,
            exclusive,
            give_way,
            host,
            inspected.result,
        )
        results = _judge(bench, parts)
        of_object = (*made.flags, *inspected.result())
        confined = made.confinement(sandbox, zygote, host)
    return SubmissionResult(
        submission_id=source.stem,
        sha256=sha256,
        assignment=assignment.id,
        machine=machine.describe(),
        toolchain={**describe_toolchain(), **ispc.describe(source)},
        sandbox=confined,
        parts=results,
        flags=_flags(of_object, results),
        max_points=sum(result.max_points for result in results),
        inputs_version=assignment.lab.inputs_version,
        kit=version.describe(),
    )


def import_numpy(assignment: Assignment) -> None:
    """Import NumPy, the modules that compute with it, and the lab's oracles."""
    from grader.explain import (
        comparison,  # noqa: F401
        diagnose,  # noqa: F401
    )

    for part in assignment.parts:
        assignment.lab.oracle(part.oracle)


def _flags(of_object: Iterable[Flag], results: Iterable[PartResult]) -> tuple[Flag, ...]:
    """Return the flags on the built file as a whole, then those on its parts, without duplicates."""
    return tuple(dict.fromkeys([*of_object, *(flag for result in results for flag in result.flags)]))


def _judge(bench: Bench, parts: Sequence[Part]) -> tuple[PartResult, ...]:
    """Judge the parts in order: all public calls of all parts first, then the hidden cases."""
    judges: list[PartJudge] = []
    results: dict[str, PartResult] = {}
    for part in parts:
        bench.emit(PartStarted(part, bench.shape))
        judges.append(_undisturbed(bench, part, PartJudge(bench, part), PartJudge.judge_public))
        if not judges[-1].has_hidden_cases():
            results[part.id] = _done(bench, judges[-1])
    for judge in judges:
        if judge.part.id not in results:
            bench.emit(HiddenStarted(judge.part))
            judged = _undisturbed(bench, judge.part, judge, PartJudge.judge_hidden)
            results[judge.part.id] = _done(bench, judged)
    return tuple(results[part.id] for part in parts)


def _undisturbed(bench: Bench, part: Part, judge: PartJudge, step: Callable[[PartJudge], None]) -> PartJudge:
    """Run one step of a part's judge. Return the judge, or a new judge if the part had to be judged again.

    A part is judged again, alone on the machine, if other submissions may have caused its failure. For example, they
    may use up the memory of a shared GPU.
    """
    step(judge)
    if bench.exclusive is unshared or not judge.is_disturbed():
        return judge
    with bench.exclusive(part):
        again = PartJudge(replace(bench, exclusive=unshared), part)
        again.judge_public()
        if step is not PartJudge.judge_public and again.has_hidden_cases():
            step(again)
    return again


def _done(bench: Bench, judge: PartJudge) -> PartResult:
    result = judge.result()
    bench.emit(PartDone(judge.part, result))
    return result
