"""From a wrong output to words a student can act on: where it is wrong, how much of it, and most likely why.

Order of work, cheapest and surest first: no numbers at all (NaN, infinity); another answer on the second
call; simple relations between the output and the right one (`relations`); suspected bugs whose prediction
agrees with the output (`suspects`); the place of the wrong elements (`patterns`). A cause that
explains the values beats a place, and the place is told with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from grader.base.arrays import Array, first_of, np
from grader.base.results import Diagnosis
from grader.judge.diagnosis.fitting import fitting
from grader.judge.diagnosis.offsets import diagnose_read, diagnose_write
from grader.judge.diagnosis.patterns import EVERYWHERE, Place, find_place
from grader.judge.diagnosis.relations import find_relation, find_weak_relation
from grader.judge.diagnosis.scene import Suspect
from grader.judge.diagnosis.suspects import strides
from grader.judge.oracle import Comparison, Expected

#: Codes that say where but not why; `most_telling` prefers any other.
UNEXPLAINED = frozenset(
    {
        "wrong_values", "remainder_tile", "heads", "batches", "row_range", "column_range", "periodic_rows",
        "periodic_columns", "partly_not_written", "wrong_offset", "not_finite", "low_precision",
    }
)  # fmt: skip

#: Mistakes named in one message at most, and what stands between them.
_MOST_NAMED = 3
SAME_OUTPUT = "The same output comes of another mistake:"
#: Largest exponent of float32's exp.
_EXP_LIMIT = 88.0


@np.errstate(all="ignore")
def diagnose(
    oracle: str,
    inputs: Mapping[str, Array],
    shape: Mapping[str, int],
    expected: Expected,
    actual: Array,
    comparison: Comparison,
    second: Array | None = None,
    part_id: str = "part3",
    earlier: Sequence[Diagnosis] = (),
) -> Diagnosis:
    """Explain an output of the right shape that `comparison` found wrong.

    `part_id` is the name of its part on the command line. `earlier` are the diagnoses of other wrong outputs of the
    same kernel: a mistake that explains these, too, is looked for first.

    `oracle` is the name in `oracle.ORACLES`; an unknown one gets the place and the numbers. `second` is the
    output of a second call with the same inputs, where there was one.
    """
    actual = actual.astype(np.float64).reshape(expected.value.shape)
    wrong = comparison.wrong.reshape(expected.value.shape)
    if oracle == "read4d":
        return diagnose_read(inputs, shape, expected.value, actual, wrong)
    if oracle == "write4d":
        return diagnose_write(inputs, shape, expected.value, actual, wrong)
    tolerance = np.broadcast_to(expected.tolerance, expected.value.shape)
    place = find_place(wrong, shape) if wrong.ndim == 4 else EVERYWHERE
    if second is not None:
        found = _unsteady(
            expected.value, tolerance, actual, second.astype(np.float64).reshape(actual.shape), wrong
        )
        if found is not None:
            if wrong.ndim == 4 and oracle == "attention":
                # What lies beside a tensor changes from call to call: who reads it has no race.
                suspects = fitting(
                    inputs, shape, expected.value, tolerance, actual, wrong, _most_common(earlier)
                )
                outside = tuple(suspect for suspect in suspects if suspect.code == strides.CODE)
                if outside:
                    told = _report(strides.CODE, outside[0].words, place, expected.value, actual, wrong)
                    return Explained(**vars(told), suspects=outside)
            told = _report(*found, place, expected.value, actual, wrong)
            command = f"`python gpt149.py race {part_id}` names the variable and the line."
            return replace(told, message=f"{told.message} {command}")
    if not np.isfinite(actual).all():
        return _report(
            *_not_finite(inputs, actual),
            _place_of(~np.isfinite(actual), shape),
            expected.value,
            actual,
            wrong,
        )
    if wrong.ndim != 4:
        return _report("wrong_values", "", place, expected.value, actual, wrong)
    found = None
    # An error of a few tolerances fits many predictions about as well as the right answer does.
    if (abs(actual - expected.value) > 8 * tolerance).any():
        found = find_relation(expected.value, actual, tolerance, wrong)
        if found is None and oracle == "attention":
            likely = _most_common(earlier)
            suspects = fitting(inputs, shape, expected.value, tolerance, actual, wrong, likely)
            if suspects:
                first = suspects[0]
                told = _report(first.code, first.words, place, expected.value, actual, wrong)
                return Explained(**vars(told), suspects=tuple(suspects))
    found = found or find_weak_relation(expected.value, actual, tolerance, wrong)
    if found is not None and found[0] == "partly_not_written" and place.code:
        return _report(
            place.code, "", Place(place.code, f"{place.words}; they are all 0"), expected.value, actual, wrong
        )
    code, words = found or (place.code or "wrong_values", "")
    return _report(code, words, place, expected.value, actual, wrong)


@dataclass(frozen=True)
class Explained(Diagnosis):
    """A diagnosis by suspects while its part is being judged: all that explain the output. `message` begins with the
    words of the first."""

    suspects: tuple[Suspect, ...] = ()

    def left(self, counts: Mapping[str, int]) -> list[Suspect]:
        """Those that explain most outputs, where `counts` holds how many, by name."""
        outputs = [max(counts[name] for name in suspect.names) for suspect in self.suspects]
        most = max(outputs)
        return [suspect for suspect, count in zip(self.suspects, outputs, strict=True) if count == most]

    def told(self, suspects: Sequence[Suspect]) -> Diagnosis:
        """The same naming these suspects only, and no longer which there were."""
        words = list(dict.fromkeys(suspect.words for suspect in suspects))[:_MOST_NAMED]
        named = f" {SAME_OUTPUT} ".join(words)
        message = named + self.message.removeprefix(self.suspects[0].words)
        values = {item.name: getattr(self, item.name) for item in fields(Diagnosis)}
        return Diagnosis(**{**values, "code": suspects[0].code, "message": message})


def settled(diagnoses: Sequence[Diagnosis | None]) -> list[Diagnosis | None]:
    """The diagnoses of a kernel's outputs, each with the suspects that explain most of these outputs: on one input
    several mistakes give the same, and another input tells them apart. Where two or more are left, all are named."""
    counts = _counts(diagnoses)
    return [
        diagnosis.told(diagnosis.left(counts)) if isinstance(diagnosis, Explained) else diagnosis
        for diagnosis in diagnoses
    ]


def undecided(diagnoses: Sequence[Diagnosis | None]) -> bool:
    """Whether several mistakes explain all these outputs that are explained, so that one more may tell them apart."""
    counts = _counts(diagnoses)
    explained = [diagnosis for diagnosis in diagnoses if isinstance(diagnosis, Explained)]
    return bool(explained) and all(len(each.left(counts)) > 1 for each in explained)


def _counts(diagnoses: Iterable[Diagnosis | None]) -> Counter[str]:
    """How many of the outputs each suspect explains, by name."""
    explained = [diagnosis for diagnosis in diagnoses if isinstance(diagnosis, Explained)]
    return Counter(
        name for each in explained for name in {name for suspect in each.suspects for name in suspect.names}
    )


def _most_common(diagnoses: Iterable[Diagnosis | None]) -> frozenset[str]:
    counts = _counts(diagnoses)
    most = max(counts.values(), default=0)
    return frozenset(name for name, count in counts.items() if count == most)


def most_telling(diagnoses: Sequence[Diagnosis]) -> Diagnosis:
    """Of the diagnoses of several wrong cases, the one to show first. On small or special inputs several
    bugs look
    alike, so: an explained one before a mere place, then the code found most often, then the largest case."""
    # Zeros on a small case are a remainder that was dropped, unless every case is zeros.
    diagnoses = [diagnosis for diagnosis in diagnoses if diagnosis.code != "not_written"] or diagnoses
    counts: dict[str, int] = {}
    for diagnosis in diagnoses:
        counts[diagnosis.code] = counts.get(diagnosis.code, 0) + 1

    def rank(diagnosis: Diagnosis) -> tuple[bool, int, int]:
        explained = diagnosis.code not in UNEXPLAINED
        return explained, counts[diagnosis.code], diagnosis.wrong_count or 0

    return max(diagnoses, key=rank)


def wrong_type(kind: str, dtype: str | None, shape: Sequence[int] | None, wanted: Sequence[int]) -> Diagnosis:
    """The call returned something else than a float32 tensor of shape `wanted`."""
    if shape is not None and dtype == "float32" and tuple(shape) != tuple(wanted):
        code, what = "wrong_shape", f"a tensor of shape {tuple(shape)}"
        hint = "Return a tensor made with at::zeros({B, H, N, d}, at::kFloat)."
    elif shape is not None and dtype is not None:
        code, what = "wrong_dtype", f"a tensor of {dtype}"
        hint = "Make the output with at::zeros({B, H, N, d}, at::kFloat)."
    else:
        code, what, hint = "wrong_type", kind, "Is there a return statement with the output tensor?"
    return Diagnosis(
        code, f"It returned {what}; expected is a float32 tensor of shape {tuple(wanted)}. {hint}"
    )


def inputs_overwritten(names: Iterable[str]) -> Diagnosis:
    """The output is right, but these inputs are not what they were before the call."""
    listed = ", ".join(names)
    return Diagnosis(
        "inputs_overwritten",
        f"The call changed its input {listed}. Write to O and the workspace only: the caller still needs Q, K and V.",
    )


def _report(code: str, words: str, place: Place, expected: Array, actual: Array, wrong: Array) -> Diagnosis:
    first = first_of(wrong)
    at = ", ".join(f"{name}={i}" for name, i in zip("bhij", first, strict=False))
    count, total = int(wrong.sum()), wrong.size
    numbers = f"expected {expected[first]:.6g}, got {actual[first]:.6g} at ({at}); "
    where = place.words or ("all elements are wrong" if count == total else "")
    amount = f"{count} of {total} elements are wrong" + (f": {place.words}" if place.words else "")
    if where and not place.words:
        amount = f"all {total} elements are wrong"
    message = f"{words} {numbers[0].upper()}{numbers[1:]}{amount}.".strip()
    return Diagnosis(code, message, first, float(expected[first]), float(actual[first]), count, total)


def _place_of(mask: Array, shape: Mapping[str, int]) -> Place:
    return find_place(mask, shape) if mask.ndim == 4 else EVERYWHERE


def _unsteady(
    expected: Array, tolerance: Array, actual: Array, second: Array, wrong: Array
) -> tuple[str, str] | None:
    """Two calls with the same inputs that differ by more than rounding."""
    same = abs(actual - second) <= 2 * tolerance
    same |= ~np.isfinite(actual) & ~np.isfinite(second)
    if same.all():
        return None
    return "race", (
        "A second call with the same inputs gives another result. Do threads share a variable or a workspace row "
        "(declare it inside the parallel loop; use row omp_get_thread_num() of temp)? Is memory read before it is "
        "written, or does something stay behind from the call before (a static or global variable)?"
    )


def _not_finite(inputs: Mapping[str, Array], actual: Array) -> tuple[str, str]:
    bad = ~np.isfinite(actual)
    amount = "every element" if bad.all() else f"{int(bad.sum())} of {bad.size} elements"
    largest = _largest_score(inputs)
    if largest > _EXP_LIMIT:
        return "overflow", (
            f"NaN or infinity in {amount}. Scores go up to {largest:.0f} here, and exp() of more than {_EXP_LIMIT:.0f} "
            "is infinite in float32: subtract the row's maximum first."
        )
    return "not_finite", (
        f"NaN or infinity in {amount}. Scores are at most {largest:.0f} here, so exp() of a right score is finite. "
        "Is a row divided by a sum that is still 0, is a score added to something that was left behind, or is memory "
        "read that was never written?"
    )


def _largest_score(inputs: Mapping[str, Array]) -> float:
    if "Q" not in inputs or "K" not in inputs:
        return math.nan
    q, k = inputs["Q"], inputs["K"]
    step = max(1, (1 << 20) // k.shape[2])
    return max(
        float(abs(q[b, h, i : i + step] @ k[b, h].T).max())
        for b in range(q.shape[0])
        for h in range(q.shape[1])
        for i in range(0, q.shape[2], step)
    )
