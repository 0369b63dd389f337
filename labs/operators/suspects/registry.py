"""Registration of mistakes by the output that they concern, as that output or as the addend of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.core.arrays import Array
from grader.judge.diagnosis.fitting import Situation
from grader.judge.diagnosis.suspect import Suspect

Predictor = Callable[[Situation], "Array | None"]


class Mistakes:
    """Suspects of one function, in the order in which they are tried."""

    def __init__(self) -> None:
        self._known: list[Suspect] = []

    @property
    def all(self) -> tuple[Suspect, ...]:
        return tuple(self._known)

    def gives(self, code: str, words: str, output: str = "") -> Callable[[Predictor], Predictor]:
        """Return a decorator for a function that predicts an output: the named one, or the returned one."""

        def register(predict: Predictor) -> Predictor:
            def of_output(s: Situation) -> Array | None:
                return predict(s) if not output or s.output == output else None

            self._known.append(Suspect(code, words, of_output, (f"{predict.__name__} {output}",)))
            return predict

        return register

    def gives_each(self, *rows: tuple[str, str, str, Predictor], output: str = "") -> None:
        """Add rows of name, code, words and prediction, as `gives` does for functions of these names."""
        for name, code, words, predict in rows:
            self.gives(code, words, output)(named(name, predict))

    def adds_each(self, output: str, *rows: tuple[str, str, str, Predictor]) -> None:
        """Add rows of name, code, words and prediction, as `adds` does for functions of these names."""
        for name, code, words, predict in rows:
            self.adds(output, code, words)(named(name, predict))

    def adds(self, output: str, code: str, words: str) -> Callable[[Predictor], Predictor]:
        """Return a decorator for a function that predicts the gradient added to the input of this name."""

        def register(predict: Predictor) -> Predictor:
            def held_and_more(s: Situation) -> Array | None:
                if s.output != output:
                    return None
                added = predict(s)
                return None if added is None else s.inputs[output] + added

            self._known.append(Suspect(code, words, held_and_more, (f"{predict.__name__} {output}",)))
            return predict

        return register


def named(name: str, predict: Callable[..., Any]) -> Callable[..., Any]:
    """Set the name of a prediction, which is the name of its mistake."""
    predict.__name__ = name
    return predict


def added(s: Situation) -> Array:
    """Return the right addend of the gradient in question."""
    return s.expected - s.inputs[s.output]
