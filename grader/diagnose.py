"""From a wrong output to words a student can act on: where it is wrong, how much of it, and most likely why.

Order of work, cheapest and surest first: no numbers at all (NaN, infinity); another answer on the second
call; simple relations between the output and the right one (`relations`); suspected bugs whose prediction
agrees with the output (`suspects`); the place of the wrong elements (`patterns`). A cause that
explains the values beats a place, and the place is told with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grader.offsets import diagnose_read, diagnose_write
from grader.oracle import Comparison, Expected
from grader.patterns import EVERYWHERE, Place, find_place
from grader.relations import find_relation, find_weak_relation
from grader.results import Diagnosis
from grader.scene import Scene, Suspect
from grader.suspects import all_suspects

#: Codes that say where but not why; `most_telling` prefers any other.
_FEWEST_PARTIAL = 8
UNEXPLAINED = frozenset(
    {
        "wrong_values", "remainder_tile", "heads", "batches", "row_range", "column_range", "periodic_rows",
        "periodic_columns", "partly_not_written", "wrong_offset", "not_finite", "low_precision",
    }
)  # fmt: skip

#: Elements of the scores (G, R, N) that suspects are tried on, and the rows of the first look.
_SCENE_SCORES = 1 << 17
_PROBE_ROWS, _SCENE_ROWS = 3, 40
#: Largest exponent of float32's exp.
_EXP_LIMIT = 88.0


def diagnose(
    oracle: str,
    inputs: Mapping[str, Tensor],
    shape: Mapping[str, int],
    expected: Expected,
    actual: Tensor,
    comparison: Comparison,
    second: Tensor | None = None,
    part_id: str = "part3",
) -> Diagnosis:
    """Explain an output of the right shape that `comparison` found wrong. `part_id` is the name of its part on the
    command line.

    `oracle` is the name in `oracle.ORACLES`; an unknown one gets the place and the numbers. `second` is the
    output of a second call with the same inputs, where there was one.
    """
    actual = actual.double().reshape(expected.value.shape)
    wrong = comparison.wrong.reshape(expected.value.shape)
    if oracle == "read4d":
        return diagnose_read(inputs, shape, expected.value, actual, wrong)
    if oracle == "write4d":
        return diagnose_write(inputs, shape, expected.value, actual, wrong)
    tolerance = torch.as_tensor(expected.tolerance, dtype=torch.float64).expand_as(expected.value)
    place = find_place(wrong, shape) if wrong.dim() == 4 else EVERYWHERE
    if second is not None:
        found = _unsteady(expected.value, tolerance, actual, second.double().reshape(actual.shape), wrong)
        if found is not None:
            told = _report(*found, place, expected.value, actual, wrong)
            command = f"`python gpt149.py race {part_id}` names the variable and the line."
            return replace(told, message=f"{told.message} {command}")
    if not torch.isfinite(actual).all():
        return _report(
            *_not_finite(inputs, actual),
            _place_of(~torch.isfinite(actual), shape),
            expected.value,
            actual,
            wrong,
        )
    if wrong.dim() != 4:
        return _report("wrong_values", "", place, expected.value, actual, wrong)
    found = None
    # An error of a few tolerances fits many predictions about as well as the right answer does.
    if ((actual - expected.value).abs() > 8 * tolerance).any():
        found = find_relation(expected.value, actual, tolerance, wrong)
        if found is None and oracle == "attention":
            found = _find_suspect(inputs, shape, expected.value, tolerance, actual, wrong)
    found = found or find_weak_relation(expected.value, actual, tolerance, wrong)
    if found is not None and found[0] == "partly_not_written" and place.code:
        return _report(
            place.code, "", Place(place.code, f"{place.words}; they are all 0"), expected.value, actual, wrong
        )
    code, words = found or (place.code or "wrong_values", "")
    return _report(code, words, place, expected.value, actual, wrong)


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


def _report(
    code: str, words: str, place: Place, expected: Tensor, actual: Tensor, wrong: Tensor
) -> Diagnosis:
    first = tuple(wrong.nonzero()[0].tolist())
    at = ", ".join(f"{name}={i}" for name, i in zip("bhij", first, strict=False))
    count, total = int(wrong.sum()), wrong.numel()
    numbers = f"expected {expected[first]:.6g}, got {actual[first]:.6g} at ({at}); "
    where = place.words or ("all elements are wrong" if count == total else "")
    amount = f"{count} of {total} elements are wrong" + (f": {place.words}" if place.words else "")
    if where and not place.words:
        amount = f"all {total} elements are wrong"
    message = f"{words} {numbers[0].upper()}{numbers[1:]}{amount}.".strip()
    return Diagnosis(code, message, first, expected[first].item(), actual[first].item(), count, total)


def _place_of(mask: Tensor, shape: Mapping[str, int]) -> Place:
    return find_place(mask, shape) if mask.dim() == 4 else EVERYWHERE


def _unsteady(
    expected: Tensor, tolerance: Tensor, actual: Tensor, second: Tensor, wrong: Tensor
) -> tuple[str, str] | None:
    """Two calls with the same inputs that differ by more than rounding."""
    same = (actual - second).abs() <= 2 * tolerance
    same |= ~torch.isfinite(actual) & ~torch.isfinite(second)
    if same.all():
        return None
    return "race", (
        "A second call with the same inputs gives another result. Do threads share a variable or a workspace row "
        "(declare it inside the parallel loop; use row omp_get_thread_num() of temp)? Is memory read before it is "
        "written, or does something stay behind from the call before (a static or global variable)?"
    )


def _not_finite(inputs: Mapping[str, Tensor], actual: Tensor) -> tuple[str, str]:
    bad = ~torch.isfinite(actual)
    amount = "every element" if bad.all() else f"{int(bad.sum())} of {bad.numel()} elements"
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


def _largest_score(inputs: Mapping[str, Tensor]) -> float:
    if "Q" not in inputs or "K" not in inputs:
        return math.nan
    q, k = inputs["Q"], inputs["K"]
    step = max(1, (1 << 20) // k.shape[2])
    return max(
        (q[b, h, i : i + step] @ k[b, h].T).abs().max().item()
        for b in range(q.shape[0])
        for h in range(q.shape[1])
        for i in range(0, q.shape[2], step)
    )


# ---- suspects


def _find_suspect(
    inputs: Mapping[str, Tensor],
    shape: Mapping[str, int],
    expected: Tensor,
    tolerance: Tensor,
    actual: Tensor,
    wrong: Tensor,
) -> tuple[str, str] | None:
    """The first suspect that explains the whole output, else the first that explains its wrong elements."""
    heads = _window(wrong, expected.shape[2])
    wrong, tolerance, actual = (t.flatten(0, 1)[heads] for t in (wrong, tolerance, actual))
    few, many = (_sample_rows(wrong, count) for count in (_PROBE_ROWS, _SCENE_ROWS))

    def scene(rows: Tensor) -> Scene:
        q, k, v = (inputs[name].flatten(0, 1)[heads].double() for name in "QKV")
        return Scene(q, k, v, expected.flatten(0, 1)[heads], rows, heads.start, shape, inputs)

    probe, whole = scene(few), scene(many)
    partial: tuple[str, str] | None = None
    for suspect in all_suspects(probe):
        if not _explains(suspect, probe, actual, tolerance, wrong):
            continue
        if not _explains(suspect, whole, actual, tolerance, wrong):
            continue
        if _explains(suspect, whole, actual, tolerance, wrong, right_too=True):
            return suspect.code, suspect.words
        partial = partial or (suspect.code, suspect.words)
    # A few elements agree with some suspect by chance; only the right ones beside them would tell.
    return partial if int(wrong.sum()) >= _FEWEST_PARTIAL else None


def _window(wrong: Tensor, keys: int) -> slice:
    """Consecutive heads for the suspects: from the first on where the first wrong one is among them, for a
    bug may
    depend on the heads before; else from the one before the first wrong one."""
    heads = wrong.flatten(0, 1).flatten(1).any(1)
    count = max(2, min(8, _SCENE_SCORES // (keys * 8)))
    first_wrong = int(heads.nonzero()[0])
    start = 0 if first_wrong < count else first_wrong - 1
    return slice(start, min(start + count, len(heads)))


def _sample_rows(wrong: Tensor, count: int) -> Tensor:
    """Rows to look at: the first wrong ones, then wrong and right ones spread over N. `wrong`: (G, N, d)."""
    hit = wrong.any(2).any(0)
    bad, good = hit.nonzero().flatten(), (~hit).nonzero().flatten()
    spread = bad[torch.linspace(0, len(bad) - 1, min(count, len(bad))).long()]
    others = good[torch.linspace(0, len(good) - 1, min(count // 4, len(good))).long()] if len(good) else good
    return torch.cat([bad[:1], spread, others]).unique()


def _explains(
    suspect: Suspect, scene: Scene, actual: Tensor, tolerance: Tensor, wrong: Tensor, right_too: bool = False
) -> bool:
    """Whether the prediction agrees with the output at nearly all wrong elements of the scene's rows (with
    `right_too`, at the right ones as well), and is far nearer to it than the expected output is."""
    predicted = suspect.predict(scene)
    if predicted is None:
        return False
    got, allowed, bad = (t[:, scene.rows] for t in (actual, tolerance, wrong))
    miss, error = (got - predicted).abs(), (got - scene.truth).abs()
    # A prediction far smaller than the right output must be met as closely in proportion, or zero would meet it.
    scale = (
        predicted.square().mean(2, keepdim=True).sqrt() / scene.truth.square().mean(2, keepdim=True).sqrt()
    )
    close = miss <= 8 * allowed * scale.clamp(max=1.0) + 1e-4 * torch.minimum(predicted.abs(), got.abs())
    if not bad.any():
        return False
    if (close & (miss <= 0.25 * error))[bad].double().mean() < 0.97:
        return False
    return not right_too or bad.all() or bool(close[~bad].double().mean() > 0.97)
