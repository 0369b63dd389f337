"""Suspected bugs: the words and the predicted output of each, and which predictions agree with a wrong output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grader.core.arrays import Array, np
from grader.explain.deviation import Deviation
from grader.explain.explanation_errors import attempt

#: Share of the elements that a prediction must agree with, and share that it must predict.
AGREEING, KNOWN = 0.97, 0.25
#: With fewer wrong elements a suspect must also agree with the right ones near them: some suspect always fits a few.
FEWEST_PARTIAL = 8


@dataclass(frozen=True)
class Suspect:
    """A mistake and the output that it would give. A prediction is NaN where the value is unknown (memory beside a
    tensor was read), None where the mistake does not apply. `names` identify the mistake among all others, also of the
    same code, and are the same for all inputs. There is one name, or one for each tile length that gives this output;
    `tiles` maps each of those to the length's own name. The lab chooses the argument of `predict`.
    """

    code: str
    words: str
    predict: Callable[[Any], Array | None]
    names: tuple[str, ...]
    tiles: Mapping[str, str] = field(default_factory=dict)
    seen_in: str = ""
    """Regular expression that matches the source of a function which can have this mistake. Without a match, other
    mistakes that explain the same output come first. "" matches any source.
    """

    def predicted(self, scene: Any) -> Any:
        """Return the prediction; None if `predict` returns None or raises."""
        return attempt(lambda: self.predict(scene), None)


Predictor = Callable[[Any], "Array | None"]


def row(name: str, code: str, words: str, predict: Predictor) -> Suspect:
    """Return a mistake as a row of a table: its name, code, words for a student, and the output that it would give."""
    return Suspect(code, words, predict, (name,))


def registering(suspects: list[Suspect]) -> Callable[[str, str], Callable[[Predictor], Predictor]]:
    """Return a decorator that adds a prediction to `suspects`, with a code and words.

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
    """Data that a prediction is computed from: the inputs as float64, the sizes, the right output and its name.

    The name is that of one output among several, or the oracle's `output` for the returned value.
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

    `scene` is what they predict from, by default a `Situation`; `agrees` compares as `agreement` does. A prediction
    may be a mapping of outputs by name.
    """
    if scene is None:
        inputs = {name: t.astype(np.float64) if t.dtype.kind == "f" else t for name, t in seen.inputs.items()}
        scene = Situation(inputs, seen.sizes, seen.expected, seen.output)
    agrees = agrees or agreement
    full: list[Suspect] = []
    partial: list[Suspect] = []
    # Suspects that fit other outputs come first; sorting is stable.
    for suspect in sorted(suspects, key=lambda suspect: likely.isdisjoint(suspect.names)):
        if full and likely.isdisjoint(suspect.names) and not likely.isdisjoint(full[0].names):
            break
        predicted = suspect.predicted(scene)
        if isinstance(predicted, Mapping):
            predicted = predicted.get(seen.output)
        if predicted is None:
            continue
        explains_wrong, explains_right = agrees(seen, np.broadcast_to(predicted, seen.expected.shape))
        if explains_wrong:
            (full if explains_right else partial).append(suspect)
    return full or (partial if int(seen.wrong.sum()) >= FEWEST_PARTIAL else [])


def agreement(seen: Deviation, predicted: Array) -> tuple[bool, bool]:
    """Return two booleans: a prediction agrees with nearly all wrong elements, and with nearly all right ones too."""
    known, wrong = ~np.isnan(predicted), seen.wrong
    if int((known & wrong).sum()) < KNOWN * int(wrong.sum()):
        return False, False
    miss = abs(seen.actual - predicted)
    close = miss <= seen.slack + 1e-4 * np.minimum(abs(predicted), abs(seen.actual))
    # A partial match must be far nearer to the output than the right answer is.
    close_to_wrong = (close & (miss <= 0.25 * abs(seen.actual - seen.expected)))[known & wrong]
    if close_to_wrong.mean() < AGREEING:
        return False, False
    others = known & ~wrong
    return True, not others.any() or bool(close[others].mean() > AGREEING)
