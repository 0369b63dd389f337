"""Comparison of a write-up with its template, to find the answers and tables that are still empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.core.errors import UsageError
from grader.core.places import STUDENT_COMMAND
from grader.core.quantities import size_text
from grader.study.writeup.regions import Region, regions

MOST_BYTES = 4 << 20
#: Answers that are optional.
OPTIONAL = ("extra",)


@dataclass(frozen=True)
class Place:
    """A region of the template, and the number of `words` that the write-up has in it, or None if its markers are
    missing."""

    kind: str
    name: str
    words: int | None

    @property
    def filled(self) -> bool:
        return bool(self.words)

    @property
    def is_optional(self) -> bool:
        return self.kind == "answer" and self.name in OPTIONAL


@dataclass(frozen=True)
class State:
    """All regions of a write-up, in the template's order. `texts` are the answers by name."""

    places: tuple[Place, ...]
    texts: Mapping[str, str]

    @property
    def missing(self) -> list[Place]:
        return [place for place in self.places if not place.filled and not place.is_optional]

    def count(self, kind: str) -> int:
        return sum(place.kind == kind and not place.is_optional for place in self.places)


def text_of(path: Path) -> str:
    """Return a write-up's text. Raises UsageError unless it is readable UTF-8 text of at most MOST_BYTES."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name the write-up in it")
        if not path.is_file():
            raise UsageError(f"{path} is not a file: name a Markdown text")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path}: larger than {size_text(MOST_BYTES)}: put pictures into separate files")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): save it as Markdown") from error


def template(path: Path) -> tuple[Region, ...]:
    """Return the regions of the template at `path`, or () if this copy of the kit has no template."""
    return tuple(regions(text_of(path))) if path.is_file() else ()


def state_of(text: str, name: str, wanted: tuple[Region, ...]) -> State:
    """Return the state of a write-up's `text`. A region that still has the text of `wanted`, the template, is empty.

    Raises UsageError with the file `name` and the line if the markers are broken.
    """
    try:
        found = {(region.kind, region.name): region for region in regions(text)}
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    given = {(region.kind, region.name): region.text for region in wanted}
    keys = [*given, *(key for key in found if key not in given)]
    places = []
    for key in keys:
        region = found.get(key)
        empty = region is not None and (region.is_empty or region.text == given.get(key))
        words = None if region is None else 0 if empty else len(region.text.split())
        places.append(Place(*key, words))
    texts = {name: region.text for (kind, name), region in found.items() if kind == "answer"}
    return State(tuple(places), texts)


def state_lines(path: Path, state: State) -> list[str]:
    """Return the state as lines for a terminal: one for each region, then a summary."""
    lines = [str(path)]
    width = max((len(place.name) for place in state.places), default=0)
    for place in state.places:
        if place.words is None:
            what = f"MISSING: write the lines <!-- {place.kind}: {place.name} --> and <!-- end --> again"
        elif place.filled:
            what = "filled in" if place.kind == "table" else f"{place.words} words"
        else:
            what = "empty (optional)" if place.is_optional else "EMPTY"
        lines.append(f"  {place.kind:6}  {place.name:{width}}  {what}")
    return [*lines, *_summary(path, state)]


def _summary(path: Path, state: State) -> list[str]:
    if not state.places:
        return ["the file has no regions for answers: start from the template, and keep its marker lines"]
    if not state.missing:
        return ["no region is empty"]
    open_places = {kind: sum(place.kind == kind for place in state.missing) for kind in ("answer", "table")}
    counts = [
        f"{open_places[kind]} of {state.count(kind)} {kind}s"
        for kind in ("answer", "table")
        if open_places[kind]
    ]
    lines = [f"still empty: {', '.join(counts)}"]
    if open_places["table"]:
        lines.append(f"`{STUDENT_COMMAND} study --writeup {path}` fills in the tables")
    return lines
