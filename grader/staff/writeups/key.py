"""The staff's key to the write-up: what a right answer to each question says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grader.assignment.yamlnode import Keys, Node, compose
from grader.base.errors import UsageError

_KEYS = Keys("the key", ("questions",), ("item",))
_QUESTION_KEYS = Keys("a question", ("title", "points", "expect"), ("numbers", "beware"))


@dataclass(frozen=True)
class Question:
    """One question: `answer` names its region, `expect` is what an answer has to say, `beware` what sounds right and
    is not, `numbers` figures that an answer may hold."""

    answer: str
    title: str
    points: float
    expect: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    beware: tuple[str, ...] = ()


def read(path: Path) -> tuple[Question, ...]:
    """The questions, in order. Raises UsageError with file and line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from error
    keys = compose(data, path).mapping(_KEYS)
    return tuple(_question(name, node) for name, (_, node) in keys["questions"].entries("questions").items())


def _question(name: str, node: Node) -> Question:
    keys = node.mapping(_QUESTION_KEYS)

    def texts(key: str) -> tuple[str, ...]:
        return tuple(item.text(f"an entry of {key}") for item in keys[key].items(key)) if key in keys else ()

    return Question(
        name,
        keys["title"].text("title"),
        keys["points"].number("points"),
        texts("expect"),
        texts("numbers"),
        texts("beware"),
    )
