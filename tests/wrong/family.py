"""Judges the family of wrong kernels and right variants, and prints what became of each.

As a program, from the project's folder: `PYTHONPATH=. python tests/wrong/family.py`.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from right_variants import RIGHT
from wrong_kernels import WRONG

from grader.assignment import loading
from grader.assignment.mutations import Mutation
from grader.assignment.records import Part
from grader.base.arrays import Array
from grader.base.places import PUBLIC_CONFIG
from grader.base.results import PartResult
from grader.judge import binding
from grader.judge.answers import RESULT
from grader.judge.bench import Bench, Options
from grader.judge.comparison import Expected, compare
from grader.judge.diagnosis.diagnose import unexplained
from grader.judge.evaluate import evaluate
from grader.judge.making import make
from grader.judge.marking import Marker
from grader.run.nativehost import NativeHost
from grader.run.zygote import Zygote
from labs.attention.mutations import parts_of, side_by_side
from labs.attention.oracle import ORACLES

ROOT = Path(__file__).resolve().parents[2]
PLACES = unexplained(ORACLES["attention"].axes)
#: Small enough for a hundred kernels in minutes; the assignment's other cases keep their own shapes.
SHAPE = {"N": 256, "Br": 64, "Bc": 64}
#: Few compiles, and still enough sources to keep parallel workers busy to the end.
IN_ONE_SOURCE = 14


def groups(mutations: Sequence[Mutation]) -> list[list[Mutation]]:
    """Mutations that share a source; those that only torch's runner can judge share theirs with each other alone, as a
    file is judged there as a whole."""
    found = []
    for only_torch in (False, True):
        some = [mutation for mutation in mutations if needs_torch(mutation) is only_torch]
        found += [some[at : at + IN_ONE_SOURCE] for at in range(0, len(some), IN_ONE_SOURCE)]
    return found


def first_of_each_code(mutations: Sequence[Mutation]) -> list[Mutation]:
    """One mutation for each diagnosis code, the first that has it, and one for which no code is promised."""
    return list({mutation.codes[:1]: mutation for mutation in reversed(mutations)}.values())[::-1]


def needs_torch(mutation: Mutation) -> bool:
    """Return True if it rounds to a type that the stand-in for torch lacks."""
    return any("c10::" in text for text in (mutation.body or "", *(edit[1] for edit in mutation.edits)))


def write(group: Sequence[Mutation], folder: Path) -> Path:
    """Write the master's functions with these mutations made, side by side."""
    source = folder / "module.cpp"
    source.write_text(side_by_side((ROOT / "module.cpp").read_text(), group))
    return source


def judge(
    group: Sequence[Mutation], zygote: Zygote, folder: Path, *, profile: bool = False
) -> list[tuple[Mutation, PartResult]]:
    """Judge the mutations of one source, without timing. Flags of the whole file are given to each of its parts."""
    course = loading.load(PUBLIC_CONFIG)
    options = Options(shape=SHAPE, timing=False, profile=profile)
    result = evaluate(course, write(group, folder), parts_of(course, group), options, zygote=zygote)
    parts = [replace(part, flags=result.flags) for part in result.parts]
    return list(zip(group, parts, strict=True))


@dataclass(frozen=True)
class Answer:
    """Output of a kernel on one public input, right or wrong."""

    inputs: Mapping[str, Array]
    shape: Mapping[str, int]
    expected: Expected
    output: Array

    @functools.cached_property
    def is_right(self) -> bool:
        return compare(self.expected, self.output).ok


def answers(
    group: Sequence[Mutation], zygote: Zygote, folder: Path
) -> list[tuple[Mutation, dict[str, Answer]]]:
    """Outputs of a group's attention kernels on each public input of a shape of its own, by its name, up to a crash.
    (The others have no remainders and tell fewer mistakes apart.)"""
    course, source = loading.load(PUBLIC_CONFIG), write(group, folder)
    with ExitStack() as stack:
        options = Options(shape=SHAPE, timing=False)
        made, host = make(course, source, options), stack.enter_context(NativeHost())
        bench = Bench(
            *(course, source, options, lambda event: None, made.judged, zygote, stack),
            host=host if made.native else None,
        )
        return [
            (mutation, _answers_of(bench, part))
            for mutation, part in zip(group, parts_of(course, group), strict=True)
            if part.oracle == "attention"
        ]


def _answers_of(bench: Bench, part: Part) -> dict[str, Answer]:
    marker, found = Marker(bench, part), {}
    with bench.student(part, threads=bench.shape["threads"]) as session:
        for case in (case for case in part.cases if case.shape):
            shape, inputs = marker.inputs_of(case)
            call = session.call(binding.request(part, shape, inputs))
            expected = marker.expected(inputs, shape)[RESULT]
            if call.status != "ok":
                break
            if call.dtype == "float32" and call.shape == tuple(expected.value.shape):
                found[case.name] = Answer(inputs, shape, expected, call.output.copy())
    return found


def standing(mutation: Mutation, result: PartResult) -> str:
    """Grade of the diagnosis: "exactly", "half" (another code, or words that do not tell it from other bugs with this
    code) or "not" (a place or numbers alone)."""
    if result.diagnosis is None or result.diagnosis.code in PLACES - set(mutation.codes):
        return "not"
    exact = result.diagnosis.code in mutation.codes and mutation.says in result.diagnosis.message
    return "exactly" if exact else "half"


def main() -> int:
    named = Counter[str]()
    with Zygote() as zygote, tempfile.TemporaryDirectory() as folder:
        wrong = (judged for group in groups(WRONG) for judged in judge(group, zygote, Path(folder)))
        for mutation, result in wrong:
            code, grade = result.diagnosis.code if result.diagnosis else "-", standing(mutation, result)
            named.update((grade, f"wrong {result.verdict}"))
            wanted = (
                "" if code in mutation.codes else f"  (wanted: {' or '.join(mutation.codes) or 'nothing'})"
            )
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
