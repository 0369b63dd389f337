"""Print results of the wrong kernels and right variants: `PYTHONPATH=.:tests python tests/wrong/family.py`."""

import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from conftest import lightly
from right_variants import RIGHT
from wrong_kernels import WRONG

from grader.assignment import loading, records
from grader.assignment.mutations import Mutation, parts_of, side_by_side
from grader.backends import binding, selection
from grader.backends.native.nativehost import NativeHost
from grader.backends.torch.zygote import Zygote
from grader.core import places, results
from grader.core.arrays import Array
from grader.explain import case_run, comparison, diagnose
from grader.judge.bench import Bench, Options
from grader.judge.evaluate import evaluate
from grader.judge.marker import Marker
from labs.attention.kernels import FUNCTIONS
from labs.attention.oracle import ORACLES

PLACES = diagnose.unexplained(ORACLES["attention"].axes)
Judged = list[tuple[Mutation, results.PartResult]]
#: Default sizes, small enough to judge a hundred kernels in minutes. Cases with a shape keep their shape.
SHAPE = {"N": 256, "Br": 64, "Bc": 64}
#: Number of kernels in a source. Larger sources save compilations, but give parallel test workers too few sources.
IN_ONE_SOURCE = 14


def groups(mutations: Sequence[Mutation]) -> list[list[Mutation]]:
    """Return groups of mutations that share a source. Mutations that need a runner with torch are in the last group."""
    needing = [each for each in mutations if "c10::" in f"{each.body}{each.edits}"]
    kinds = [[each for each in mutations if each not in needing], needing]
    return [some[at : at + IN_ONE_SOURCE] for some in kinds for at in range(0, len(some), IN_ONE_SOURCE)]


def first_of_each_code(mutations: Sequence[Mutation]) -> list[Mutation]:
    """Return the first mutation of each expected diagnosis code, and one mutation without an expected code."""
    return list({mutation.codes[:1]: mutation for mutation in reversed(mutations)}.values())[::-1]


def write(group: Sequence[Mutation], folder: Path) -> Path:
    source = folder / "module.cpp"
    source.write_text(lightly(side_by_side((places.ROOT / "module.cpp").read_text(), FUNCTIONS, group)))
    return source


def judge(group: Sequence[Mutation], zygote: Zygote, folder: Path, *, profile: bool = False) -> Judged:
    """Judge the mutations of one source without times. Each returned part also has the flags of the whole file."""
    course = loading.load(places.PUBLIC_CONFIG)
    options = Options(shape=SHAPE, timing=False, profile=profile)
    result = evaluate(course, write(group, folder), parts_of(course, group), options, zygote=zygote)
    return list(zip(group, [replace(part, flags=result.flags) for part in result.parts], strict=True))


@dataclass(frozen=True)
class Answer:
    """Right or wrong output of a kernel on one public input."""

    inputs: Mapping[str, Array]
    shape: Mapping[str, int]
    expected: comparison.Expected
    output: Array

    @functools.cached_property
    def is_right(self) -> bool:
        return comparison.compare(self.expected, self.output).ok


Answers = list[tuple[Mutation, dict[str, Answer]]]


def answers(group: Sequence[Mutation], zygote: Zygote, folder: Path) -> Answers:
    """Return, for each attention kernel of a group, its outputs by case name, up to the first call that fails.

    Only public cases that set a shape are called: in those of the default shape, no tile is incomplete.
    """
    course, source = loading.load(places.PUBLIC_CONFIG), write(group, folder)
    options = Options(shape=SHAPE, timing=False)
    with ExitStack() as stack:
        made, host = selection.make(course, source, options), stack.enter_context(NativeHost())
        given = (course, source, options, lambda event: None, made, zygote, stack)
        bench = Bench(*given, host=host if made.native else None)
        pairs = zip(group, parts_of(course, group), strict=True)
        return [(each, _answers_of(bench, part)) for each, part in pairs if part.oracle == "attention"]


def _answers_of(bench: Bench, part: records.Part) -> dict[str, Answer]:
    marker, found = Marker(bench, part), {}
    with bench.student(part, threads=bench.shape["threads"]) as session:
        for case in (case for case in part.cases if case.shape):
            inputs = marker.inputs_of(case)
            call = session.call(binding.request(part, inputs.shape, inputs))
            expected = marker.expected(inputs)[case_run.RESULT]
            if call.status != "ok":
                break
            if call.dtype == "float32" and call.shape == tuple(expected.value.shape):
                found[case.name] = Answer(inputs, inputs.shape, expected, call.output.copy())
    return found


def how_well_named(mutation: Mutation, result: results.PartResult) -> str:
    """Return "exactly" if the diagnosis has the bug's code and words, "not" if it names no cause, else "half"."""
    if result.diagnosis is None or result.diagnosis.code in PLACES - set(mutation.codes):
        return "not"
    exact = result.diagnosis.code in mutation.codes and mutation.says in result.diagnosis.message
    return "exactly" if exact else "half"


def main() -> int:
    named = Counter[str]()
    with Zygote() as zygote, tempfile.TemporaryDirectory() as folder:
        wrong = (judged for group in groups(WRONG) for judged in judge(group, zygote, Path(folder)))
        for mutation, result in wrong:
            code, grade = result.diagnosis.code if result.diagnosis else "-", how_well_named(mutation, result)
            named.update((grade, f"wrong {result.verdict}"))
            promised = " or ".join(mutation.codes) or "nothing"
            wanted = "" if code in mutation.codes else f"  (wanted: {promised})"
            print(f"{mutation.name:45} {result.verdict:8} {grade:8} {code}{wanted}", flush=True)
        right = [judged for group in groups(RIGHT) for judged in judge(group, zygote, Path(folder))]
    refused = [f"{mutation.name}: {result.verdict}" for mutation, result in right if result.verdict != "pass"]
    rejected, accepted = len(WRONG) - named["wrong pass"], len(RIGHT) - len(refused)
    print("\n".join(refused))
    print(
        f"wrong kernels rejected {rejected} of {len(WRONG)}, bug named exactly {named['exactly']}, "
        f"half {named['half']}, not {named['not']}; right ones accepted {accepted} of {len(RIGHT)}"
    )
    return 0 if rejected == len(WRONG) and accepted == len(RIGHT) else 1


if __name__ == "__main__":
    sys.exit(main())
