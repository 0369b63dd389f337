"""Diagnosis of a wrong output for the student: the place and number of the wrong elements, and the likely cause.

Causes are tried in this order: a second call gives a different output; elements were never written; NaN or infinity;
a simple relation between the output and the right one (`relations`); a suspect whose prediction agrees with the output
(`suspect`). The message names the cause first, if one was found, and then the place of the wrong elements
(`wrong_places`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from grader.assignment.inputs import CaseInputs
from grader.core.arrays import Array, first_of, np
from grader.core.precision import FLOATING, unwritten, widened
from grader.core.results import CaseResult, Diagnosis
from grader.explain import explanation_errors
from grader.explain.comparison import Comparison, Expected
from grader.explain.deviation import Axis, Deviation, usual_axes
from grader.explain.explanation_errors import attempt
from grader.explain.oracle import Oracle
from grader.explain.relations import CLOSE, NOT_STORED, ROUNDING, first_found
from grader.explain.suspect import FEWEST_PARTIAL, Suspect
from grader.explain.wrong_places import EVERYWHERE, Place, find_place

#: Codes of diagnoses without a cause. `unexplained` adds the codes of places, which depend on the output's axes.
UNEXPLAINED = frozenset(
    {"wrong_values", "remainder_tile", "partly_not_written", "wrong_offset", "not_finite", "low_precision"}
)

#: A mistake that explains at most half of the informative outputs is not named (see `settled`). Other mistakes are
#: named: without the words PARTLY if they explain at least the share _EXPLAINING of these outputs, or if fewer than
#: _FEWEST_AGAINST of these outputs contradict them.
_EXPLAINING, _FEWEST_AGAINST = 0.6, 2
#: Codes of outputs that do not refute a mistake: on small inputs many mistakes can give such outputs.
_SAYS_LITTLE = frozenset({"not_written", "not_finite", "partly_not_written", "overflow"})
#: Beginning of the message for a mistake that explains more than half of the outputs, but fewer than _EXPLAINING.
PARTLY = "Likely cause of only"
#: Limit on the mistakes named in one message, and the text between them.
_MOST_NAMED = 3
#: An output of zeros is reported in place of other wrong outputs only if it is far larger: its number of wrong elements
#: must be over this many times the largest number of wrong elements in any other output.
_FAR_SMALLER = 100
#: C++ names of the types that an assignment may ask for.
SCALAR_TYPES = {"float32": "at::kFloat", "float64": "at::kDouble", "int32": "at::kInt", "int64": "at::kLong"}
OTHER_RESULT = "A second call with the same inputs gives another result."
SAME_OUTPUT = "Another mistake gives the same output:"


@np.errstate(all="ignore")
def diagnose(
    oracle: Oracle,
    inputs: Mapping[str, Array],
    shape: Mapping[str, int],
    expected: Expected,
    actual: Array,
    comparison: Comparison,
    again: Sequence[Array] = (),
    race: str = "python gpt149.py race part3",
    earlier: Sequence[Diagnosis] = (),
    name: str = "",
    shared: bool = True,
) -> Diagnosis:
    """Return the diagnosis of an output of the right shape that `comparison` found wrong.

    Args:
        again: outputs of further calls with the same inputs.
        race: command that looks for data races in the part, for the message.
        earlier: diagnoses of other wrong outputs of the kernel. Mistakes that explain these are tried first.
        name: name of the output, if the part has several.
        shared: True if several threads worked. With one thread a data race is impossible.
    """
    own = attempt(lambda: oracle.diagnose(inputs, shape, expected, actual, comparison), None)
    if own is not None:
        return own
    value = expected.value
    axes = oracle.axes if len(oracle.axes) == value.ndim else usual_axes(value.ndim)
    seen = Deviation(
        value,
        actual.astype(np.float64).reshape(value.shape),
        np.broadcast_to(expected.tolerance, value.shape),
        comparison.wrong.reshape(value.shape),
        shape,
        inputs,
        axes,
        oracle.tiles,
        name or oracle.output,
    )
    place = _place_of(seen.wrong, seen)
    if any(_differs(seen, output.astype(np.float64).reshape(value.shape)) for output in again):
        return _unsteady(oracle, seen, place, race if shared else "", earlier)
    never = seen.wrong & _never_written(actual).reshape(value.shape)
    if never.any() and np.array_equal(never, seen.wrong):
        if (of_inputs := attempt(partial(oracle.never_written, seen), None)) is not None:
            return _report(*of_inputs, EVERYWHERE, seen)
        words = "they were never written" if never.ndim else "it was never written"
        return _report(
            place.code or "partly_not_written",
            "",
            Place(place.code, f"{place.words}; {words}".lstrip("; ")),
            seen,
        )
    if not seen.finite():
        if oracle.explains_not_finite:
            explained = _explained(oracle, seen, place, earlier)
            if explained is not None:
                return explained
        bad = ~np.isfinite(seen.actual) & seen.wrong
        amount = "every element" if bad.all() else f"{int(bad.sum())} of {bad.size} elements"
        # If finite elements are also wrong, do not name the place of the NaN: the message counts all wrong elements.
        bad_place = _place_of(bad, seen) if np.array_equal(bad, seen.wrong) else EVERYWHERE
        return _report(*oracle.not_finite(seen, amount), bad_place, seen)
    found = None
    # Try suspects only if an error is large. If all errors are small, many predictions would fit.
    if (abs(seen.actual - value) > 8 * seen.tolerance).any():
        found = first_found(oracle.relations, seen)
        if found is None:
            explained = _explained(oracle, seen, place, earlier)
            if explained is not None:
                return explained
    found = found or first_found(oracle.weak_relations, seen)
    if found is not None and found[0] == "partly_not_written" and place.code:
        is_rest, why = place.code == "remainder_tile", "size / tile rounds down, or no loop handles the rest"
        left = f": the remainder is left out ({why})" if is_rest else ""
        return _report(place.code, "", Place(place.code, f"{place.words}; they are all 0{left}"), seen)
    code, words = found or (place.code or "wrong_values", "")
    if code.endswith("_copied") and words:
        place = EVERYWHERE
    return _report(code, words, place, seen)


def _explained(
    oracle: Oracle, seen: Deviation, place: Place, earlier: Sequence[Diagnosis]
) -> Explained | None:
    """Return the diagnosis with the suspects that explain an output; None if no suspect does."""
    suspects = attempt(lambda: oracle.suspects(seen, _most_common(earlier)), ())
    if not suspects:
        return None
    report = _report(suspects[0].code, suspects[0].words, place, seen)
    return Explained(**vars(report), suspects=tuple(suspects), place_code=place.code or "wrong_values")


def _unsteady(
    oracle: Oracle, seen: Deviation, place: Place, race: str, earlier: Sequence[Diagnosis]
) -> Diagnosis:
    """Return the diagnosis of a kernel whose calls with the same inputs differ by more than rounding.

    `race` is the command that looks for data races, "" if only one thread works.
    """
    if oracle.outside_codes:
        # Reads outside of a tensor also give different outputs: if such a suspect fits, do not report a race.
        outside = [
            suspect
            for suspect in attempt(lambda: oracle.suspects(seen, _most_common(earlier)), ())
            if suspect.code in oracle.outside_codes
        ]
        if outside:
            report = _report(outside[0].code, outside[0].words, place, seen)
            return Explained(**vars(report), suspects=tuple(outside))
    if not race:
        return _report("unsteady", f"{OTHER_RESULT} {oracle.unsteady_advice}", place, seen)
    words = f"{OTHER_RESULT} {oracle.race_advice}"
    report = _report("race", words, place, seen)
    return replace(report, message=f"{report.message} `{race}` names the variable and the line.")


@dataclass(frozen=True)
class Explained(Diagnosis):
    """A preliminary diagnosis with all suspects that explain the output. Other outputs may still refute some of them.

    `message` begins with the words of the first suspect.
    """

    suspects: tuple[Suspect, ...] = ()
    place_code: str = "wrong_values"
    """Code of the diagnosis if all suspects are refuted."""

    def left(self, counts: Mapping[str, int]) -> list[Suspect]:
        """Return the suspects that explain the most outputs. `counts` has the number of outputs that each explains."""
        outputs = [max(counts[name] for name in suspect.names) for suspect in self.suspects]
        most = max(outputs)
        return [suspect for suspect, count in zip(self.suspects, outputs, strict=True) if count == most]

    def fitting(self, is_in_text: Callable[[str], bool]) -> Explained:
        """Return a copy with only the suspects that fit the function's source, or with all if none fits.

        `is_in_text` returns True if a pattern occurs in the source.
        """
        kept = (
            tuple(each for each in self.suspects if not each.seen_in or is_in_text(each.seen_in))
            or self.suspects
        )
        message = kept[0].words + self.message.removeprefix(self.suspects[0].words)
        return replace(self, code=kept[0].code, message=message, suspects=kept)

    def narrowed_to(self, suspects: Sequence[Suspect]) -> Diagnosis:
        """Return a Diagnosis (not Explained) that names only these suspects."""
        words = list(dict.fromkeys(suspect.words for suspect in suspects))[:_MOST_NAMED]
        named = f" {SAME_OUTPUT} ".join(words)
        return self._plain(suspects[0].code, named + self.message.removeprefix(self.suspects[0].words))

    def unexplained(self) -> Diagnosis:
        """Return a Diagnosis (not Explained) without a cause, for suspects that other outputs refute."""
        return self._plain(self.place_code, self.message.removeprefix(self.suspects[0].words).strip())

    def _plain(self, code: str, message: str) -> Diagnosis:
        values = {item.name: getattr(self, item.name) for item in fields(Diagnosis)}
        return Diagnosis(**{**values, "code": code, "message": message})


def refuted(
    oracle: Oracle,
    diagnoses: Sequence[Diagnosis | None],
    right: Iterable[tuple[CaseInputs, Mapping[str, Expected]]],
) -> frozenset[str]:
    """Return the names of the suspects in `diagnoses` whose predictions differ from the output of a right call.

    `right` has (inputs, expected outputs) for each right call.
    """
    names, found = frozenset(_counts(diagnoses)), set[str]()
    for inputs, expected in right if names and oracle.refutes else ():
        for name, known in expected.items():
            value = known.value
            tolerance, wrong = np.broadcast_to(known.tolerance, value.shape), np.zeros(value.shape, bool)
            axes, output = oracle.axes, name or oracle.output
            seen = Deviation(value, value, tolerance, wrong, inputs.shape, inputs, axes, oracle.tiles, output)
            against = attempt(partial(oracle.suspects, seen, names), ())
            found.update(each for suspect in against for each in suspect.names)
    return frozenset(found)


def settled(
    diagnoses: Sequence[Diagnosis | None], refuted: frozenset[str] = frozenset()
) -> list[Diagnosis | None]:
    """Return the final diagnoses of a kernel's outputs: each names the suspects that explain the most outputs.

    Several mistakes may give the same output on one input and different outputs on another. If several suspects are
    left, up to three are named. A suspect that most outputs refute is not named. Suspects in `refuted` are named only
    if no other suspect is left. None, and diagnoses that are not Explained, stay as they are.
    """
    counts = _counts(diagnoses)
    saying = sum(
        diagnosis is not None
        and diagnosis.code not in _SAYS_LITTLE
        # An output without a known cause is informative only with many wrong elements: a few do not refute a suspect.
        and (isinstance(diagnosis, Explained) or (diagnosis.wrong_count or math.inf) >= FEWEST_PARTIAL)
        for diagnosis in diagnoses
    )
    return [
        _settled(diagnosis, counts, saying, refuted) if isinstance(diagnosis, Explained) else diagnosis
        for diagnosis in diagnoses
    ]


def _settled(
    diagnosis: Explained, counts: Mapping[str, int], saying: int, refuted: frozenset[str]
) -> Diagnosis:
    """Return the final diagnosis of one output. `counts`: number of outputs that each suspect explains, by its name.
    `saying`: number of informative diagnoses. `refuted`: names of suspects that right outputs refute."""
    left = diagnosis.left(counts)
    left = [suspect for suspect in left if not refuted.issuperset(suspect.names)] or left
    most = max(counts[name] for suspect in left for name in suspect.names)
    narrowed = diagnosis.narrowed_to(left)
    if diagnosis.code in _SAYS_LITTLE or saying - most < _FEWEST_AGAINST or most >= _EXPLAINING * saying:
        return narrowed
    if 2 * most <= saying:
        return diagnosis.unexplained()
    return replace(narrowed, message=f"{PARTLY} {most} of {saying} wrong outputs: {narrowed.message}")


def undecided(diagnoses: Sequence[Diagnosis | None]) -> bool:
    """Return True if each explained output still has several suspects, so that one more input may separate them."""
    counts = _counts(diagnoses)
    explained = [diagnosis for diagnosis in diagnoses if isinstance(diagnosis, Explained)]
    return bool(explained) and all(len(each.left(counts)) > 1 for each in explained)


def _counts(diagnoses: Iterable[Diagnosis | None]) -> Counter[str]:
    """Return the number of outputs that each suspect explains, by name."""
    explained = [diagnosis for diagnosis in diagnoses if isinstance(diagnosis, Explained)]
    return Counter(
        name for each in explained for name in {name for suspect in each.suspects for name in suspect.names}
    )


def _most_common(diagnoses: Iterable[Diagnosis | None]) -> frozenset[str]:
    counts = _counts(diagnoses)
    most = max(counts.values(), default=0)
    return frozenset(name for name, count in counts.items() if count == most)


def unexplained(axes: Sequence[Axis]) -> frozenset[str]:
    """Return the codes of diagnoses without a cause, for an output with these axes."""
    named = [*axes, *usual_axes(1), *usual_axes(8)]
    return UNEXPLAINED | {code for axis in named for code in axis.codes}


def most_informative(diagnoses: Sequence[Diagnosis], axes: Sequence[Axis] = ()) -> Diagnosis:
    """Return the most informative one of the diagnoses of several wrong cases.

    On small or special inputs different bugs look alike. So the diagnoses are preferred in this order:

    1. a result that differs from call to call ("unsteady");
    2. a cause that explains at least half of the informative outputs;
    3. a diagnosis without a cause;
    4. any other cause.

    Of several diagnoses of one kind, the one with the most frequent code is preferred. If these are several, too, the
    number of wrong elements decides.
    """
    # At sizes below a tile's length, an output may be all zeros by chance: prefer other outputs, unless these have far
    # fewer wrong elements.
    zeros = [diagnosis for diagnosis in diagnoses if diagnosis.code == "not_written"]
    others = [diagnosis for diagnosis in diagnoses if diagnosis.code != "not_written"]
    largest_zeros, largest = (
        max((each.wrong_count or 0 for each in some), default=0) for some in (zeros, others)
    )
    diagnoses = zeros if not others or largest_zeros > _FAR_SMALLER * largest else others
    # Values that are close on one input but not on another differ for another reason than precision.
    far = [
        each
        for each in diagnoses
        if each.expected is not None and each.actual is not None
        if each.code not in _SAYS_LITTLE | {"low_precision"}
        if abs(each.actual - each.expected) > 10 * ROUNDING * abs(each.expected)
    ]
    diagnoses = [each for each in diagnoses if not far or not each.message.startswith(CLOSE)]
    counts: dict[str, int] = {}
    for diagnosis in diagnoses:
        counts[diagnosis.code] = counts.get(diagnosis.code, 0) + 1

    places = unexplained(axes)
    saying = sum(diagnosis.code not in _SAYS_LITTLE for diagnosis in diagnoses)

    def rank(diagnosis: Diagnosis) -> tuple[bool, bool, bool, int, int]:
        explained = diagnosis.code not in places
        if explained and diagnosis.code not in _SAYS_LITTLE:
            explained = 2 * counts[diagnosis.code] >= saying
        unsteady = diagnosis.code == "unsteady"
        is_place = diagnosis.code in places
        return unsteady, explained, is_place, counts[diagnosis.code], diagnosis.wrong_count or 0

    return max(diagnoses, key=rank)


def concluded(cases: Sequence[CaseResult], axes: Sequence[Axis]) -> Diagnosis | None:
    """Return the diagnosis of a part from its cases; None if all are right.

    If a public case has a diagnosis, only public cases are considered, because the student may see only these.
    """
    diagnoses = [(case.hidden, case.diagnosis) for case in cases if case.diagnosis]
    public = [diagnosis for hidden, diagnosis in diagnoses if not hidden]
    if not diagnoses and not all(case.ok for case in cases):
        return explanation_errors.UNEXPLAINED
    return most_informative(public or [diagnosis for _, diagnosis in diagnoses], axes) if diagnoses else None


def settled_together(cases: Sequence[CaseResult], refuted: frozenset[str] = frozenset()) -> list[CaseResult]:
    """Return the cases with their final diagnoses (`settled`).

    The diagnosis of a public case depends on public cases only, because the student may see only these.
    """
    public = settled([None if case.hidden else case.diagnosis for case in cases], refuted)
    every = settled([case.diagnosis for case in cases], refuted)
    return [
        replace(case, diagnosis=alone or together)
        for case, alone, together in zip(cases, public, every, strict=True)
    ]


def wrong_type(
    kind: str,
    dtype: str | None,
    shape: Sequence[int] | None,
    wanted: Sequence[int],
    dims: Sequence[str],
    wanted_dtype: str = "float32",
) -> Diagnosis:
    """Return the diagnosis of a call that did not return a tensor of type `wanted_dtype` and shape `wanted`.

    `kind`, `dtype` and `shape` describe the returned value. `dims` are the dimensions as the assignment writes them.
    """
    made = f"at::zeros({{{', '.join(dims)}}}, {SCALAR_TYPES[wanted_dtype]})"
    if shape is not None and dtype == wanted_dtype and tuple(shape) != tuple(wanted):
        code, what = "wrong_shape", f"a tensor of shape {tuple(shape)}"
        hint = f"Return a tensor made with {made}."
    elif shape is not None and dtype is not None:
        code, what = "wrong_dtype", f"a tensor of {dtype}"
        hint = f"Make the output with {made}."
    else:
        code, what, hint = "wrong_type", kind, "Is there a return statement with the output tensor?"
    article = "an" if wanted_dtype.startswith("int") else "a"
    return Diagnosis(
        code,
        f"It returned {what}; expected is {article} {wanted_dtype} tensor of shape {tuple(wanted)}. {hint}",
    )


def not_written(name: str) -> Diagnosis:
    return Diagnosis(
        "not_written", f"{name} has the same values as before the call: {NOT_STORED.format(name)}."
    )


def inputs_overwritten(changed: Iterable[str], inputs: Sequence[str], output: str) -> Diagnosis:
    """Return the diagnosis of a call that changed the inputs `changed`. `inputs` are all that must not change."""
    needed = " and ".join(filter(None, [", ".join(inputs[:-1]), inputs[-1]]))
    return Diagnosis(
        "inputs_overwritten",
        f"The call changed its input {', '.join(changed)}. Write to {output} and the workspace only: the caller still "
        f"needs {needed}.",
    )


def _report(code: str, words: str, place: Place, seen: Deviation) -> Diagnosis:
    first = first_of(seen.wrong)
    expected, actual = float(seen.expected[first]), float(seen.actual[first])
    at = ", ".join(f"{axis.letter}={i}" for axis, i in zip(seen.axes, first, strict=True))
    count, total = int(seen.wrong.sum()), seen.wrong.size
    shown = ".0f" if expected.is_integer() and actual.is_integer() else ".6g"
    numbers = f"Expected {expected:{shown}}, got {actual:{shown}} at ({at}); "
    amount = f"{count} of {total} elements are wrong" + (f": {place.words}" if place.words else "")
    if place.words.startswith(amount.partition(":")[0]):
        amount = place.words
    if count == total and not place.words:
        amount = f"all {total} elements are wrong"
    message = f"{words} {numbers}{amount}.".strip()
    return Diagnosis(code, message, first, expected, actual, count, total)


def _never_written(actual: Array) -> Array:
    """Return a mask of the elements that still hold the mark "not written" (`core.precision.unwritten`)."""
    # A float32 array may be widened from float16 or bfloat16: then its marks have other bits.
    name = actual.dtype.name
    types = FLOATING if name == "float32" else (name,)
    bits = f"u{actual.dtype.itemsize}"
    signs = [widened(unwritten((1,), each), each).view(bits)[0] for each in types]
    return np.isin(np.ascontiguousarray(actual).view(bits), signs)


def _place_of(mask: Array, seen: Deviation) -> Place:
    return find_place(mask, seen.axes, seen.sizes, seen.tile_lengths) if mask.ndim else EVERYWHERE


def _differs(seen: Deviation, again: Array) -> bool:
    same = abs(seen.actual - again) <= 2 * seen.tolerance
    same |= ~np.isfinite(seen.actual) & ~np.isfinite(again)
    return not bool(same.all())
