"""Suspects: possible bugs, each with words for the student and a prediction of the output that the bug would give.

A suspect explains a wrong output if its prediction agrees with the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from grader.core.arrays import Array, np
from grader.explain.deviation import Deviation
from grader.explain.explanation_errors import attempt

#: AGREEING: the least share of the elements in which a prediction agrees with the output.
#: KNOWN: the least share of the wrong elements for which the prediction is known (not NaN).
AGREEING, KNOWN = 0.97, 0.25
#: With fewer wrong elements a suspect must agree with the whole output: a few elements always fit some suspect.
FEWEST_PARTIAL = 8
#: Precedes the words of a suspect that explains the wrong elements, but would make right ones wrong, too.
PARTIAL = "Only in the wrong elements:"


@dataclass(frozen=True)
class Suspect:
    """A mistake and the output that it would give.

    `predict` gets an argument that the lab chooses. It returns the output, with NaN for unknown values (read outside of
    a tensor), or None if the mistake does not apply. Several mistakes may share a `code`. `names` identify the mistake:
    usually there is one name, the same on all inputs. A mistake that depends on an unknown tile length has one name
    for each length that gives this output.
    """

    code: str
    words: str
    predict: Callable[[Any], Array | None]
    names: tuple[str, ...]
    seen_in: str = ""
    """Regular expression for the source of functions that can have this mistake; "" for any source. If it does not
    match, other mistakes that explain the same output are named."""

    def predicted(self, scene: Any) -> Any:
        """Return the prediction; None if `predict` returns None or raises."""
        return attempt(lambda: self.predict(scene), None)


Predictor = Callable[[Any], "Array | None"]


def row(name: str, code: str, words: str, predict: Predictor) -> Suspect:
    """Return a Suspect with one name. With this function a lab can write its mistakes as rows of a table."""
    return Suspect(code, words, predict, (name,))


def registering(suspects: list[Suspect]) -> Callable[[str, str], Callable[[Predictor], Predictor]]:
    """Return a decorator, with a code and words as arguments, that adds the decorated prediction to `suspects`.

    The words name the mistake and the place to look at, for a student, in one or two sentences.
    """

    def suspect(code: str, words: str) -> Callable[[Predictor], Predictor]:
        def register(predict: Predictor) -> Predictor:
            suspects.append(Suspect(code, words, predict, (predict.__name__,)))
            return predict

        return register

    return suspect


@dataclass(frozen=True)
class Situation:
    """Data for a prediction: the inputs by name (float64), the sizes, and the expected output with its name.

    `output` is the output's name. For a value that the function returns, it is the oracle's attribute `output`.
    """

    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    expected: Array
    output: str = ""


def matching_suspects(
    suspects: Iterable[Suspect],
    seen: Deviation,
    likely: frozenset[str],
    scene: object = None,
    agrees: Callable[[Deviation, Array], tuple[bool, bool]] | None = None,
) -> list[Suspect]:
    """Return the suspects that explain an output, as `Oracle.suspects` does.

    `scene` is the argument of each `predict`, by default a `Situation`. `agrees` replaces `agreement`. A prediction
    may also be a mapping of outputs by name. If the output is right, return the `likely` suspects that it refutes.
    """
    is_right = not seen.wrong.any()
    if scene is None:
        inputs = {name: t.astype(np.float64) if t.dtype.kind == "f" else t for name, t in seen.inputs.items()}
        scene = Situation(inputs, seen.sizes, seen.expected, seen.output)
    agrees = agrees or agreement
    full: list[Suspect] = []
    partial: list[Suspect] = []
    # Try the likely suspects first; the others keep their order.
    for suspect in sorted(suspects, key=lambda suspect: likely.isdisjoint(suspect.names)):
        if is_right and likely.isdisjoint(suspect.names):
            break
        if full and likely.isdisjoint(suspect.names) and not likely.isdisjoint(full[0].names):
            break
        predicted = suspect.predicted(scene)
        if isinstance(predicted, Mapping):
            predicted = predicted.get(seen.output)
        if predicted is None:
            continue
        explains_wrong, explains_right = agrees(seen, np.broadcast_to(predicted, seen.expected.shape))
        if explains_wrong:
            if explains_right:
                full.append(suspect)
            else:
                partial.append(replace(suspect, words=f"{PARTIAL} {suspect.words}"))
    if is_right:
        return partial
    return full or (partial if int(seen.wrong.sum()) >= FEWEST_PARTIAL and not _is_left_out(seen) else [])


def _is_left_out(seen: Deviation) -> bool:
    """Return True if all wrong elements are as they were before the call: many predictions fit such elements."""
    held = seen.inputs.get(seen.output)
    before = np.zeros_like(seen.actual) if held is None or held.shape != seen.actual.shape else held
    return bool((seen.actual == before)[seen.wrong].all())


def agreement(seen: Deviation, predicted: Array) -> tuple[bool, bool]:
    """Return (True if the prediction fits nearly all wrong elements, True if it also fits nearly all right ones).

    NaN in a prediction means unknown and is ignored. Returns (False, False) if too few wrong elements are known.
    """
    known, wrong = ~np.isnan(predicted), seen.wrong
    if int((known & wrong).sum()) < KNOWN * int(wrong.sum()):
        return False, False
    miss = abs(seen.actual - predicted)
    close = miss <= seen.slack + 1e-4 * np.minimum(abs(predicted), abs(seen.actual))
    # On wrong elements the prediction must also be far nearer to the output than the expected value is.
    close_to_wrong = (close & (miss <= 0.25 * abs(seen.actual - seen.expected)))[known & wrong]
    if wrong.any() and close_to_wrong.mean() < AGREEING:
        return False, False
    others = known & ~wrong
    return True, not others.any() or bool(close[others].mean() > AGREEING)
