"""Suspected bugs: what each says, and the output that it would give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grader.core.arrays import Array
from grader.judge.diagnosis.failures import attempt


@dataclass(frozen=True)
class Suspect:
    """A mistake and the output that it would give. A prediction is NaN where nothing can be said (memory beside a
    tensor was read), None where the mistake does not apply.

    `names` tell it from every other mistake, also of the same code, and are the same for all inputs: one name, or one
    for each tile length that gives this output: `tiles` has the length's own name for each of those. What `predict`
    takes is its lab's choice.
    """

    code: str
    words: str
    predict: Callable[[Any], Array | None]
    names: tuple[str, ...]
    tiles: Mapping[str, str] = field(default_factory=dict)
    seen_in: str = ""
    """Regular expression for the text of a function that can have this mistake. Where it does not,
    other mistakes that explain the same are told first; "" says nothing."""

    def predicted(self, scene: Any) -> Any:
        """Return the prediction, or None. A mistake in `predict` itself gives None, too."""
        return attempt(lambda: self.predict(scene), None)


Predictor = Callable[[Any], "Array | None"]


def registering(suspects: list[Suspect]) -> Callable[[str, str], Callable[[Predictor], Predictor]]:
    """A decorator that adds a prediction to `suspects`, with a code and words: what is wrong and what to look at, for a
    student, in one or two sentences."""

    def suspect(code: str, words: str) -> Callable[[Predictor], Predictor]:
        def register(predict: Predictor) -> Predictor:
            suspects.append(Suspect(code, words, predict, (predict.__name__,)))
            return predict

        return register

    return suspect
