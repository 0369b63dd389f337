"""Check of a student's write-up: it lists the regions that are still empty, and exports the text as HTML or PDF.

A write-up is a Markdown text, made from writeup_template.md, with marked regions for answers and measured tables:

    <!-- answer: part3-threads -->
    Text of the student.
    <!-- end -->

    <!-- table: threads-part3 -->
    Table that a study command has written.
    <!-- end -->

A marker must be alone on its line. It is invisible in the rendered text. Regions must not nest or overlap, and two
regions of a kind must not have the same name. A region with only white space and comments is empty, so the template can
give hints in comments. `grader.staff.writeups` collects the answers of a class.

The text is untrusted, so all functions take time linear in its length.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grader.core.commandline import Parser, add_lab, read_text
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.core.harmless import one_line
from grader.core.places import GRADER_COMMAND, STUDENT_COMMAND, WRITEUP_TEMPLATE

NAME = "writeup.md"
FORMATS = ("html", "pdf")
TIMEOUT_S = 120.0
#: GitHub's Markdown without raw HTML, so that untrusted text cannot run code in a browser.
FROM = "gfm-raw_html"


def main(arguments: Sequence[str]) -> int:
    """Run `python -m grader writeup`. Return exit code 0 if no region is empty, else 1."""
    given = parser("a write-up").parse_args(arguments)
    return check_all(given.paths, given.export, template_of(given.config))


def template_of(config: Path | None) -> Path:
    """Return the path of the assignment's write-up template (None: the main assignment's), which may be missing."""
    if config is None:
        return WRITEUP_TEMPLATE
    from grader.assignment import labs
    from grader.assignment.loading import load

    return labs.beside(load(config).lab_folder, WRITEUP_TEMPLATE.name, WRITEUP_TEMPLATE)


def check_all(paths: Sequence[Path], export: str | None, template: Path = WRITEUP_TEMPLATE) -> int:
    """Print each write-up's state. Return 0 if no region is empty, else 1. Raises UsageError if one is unreadable."""
    refuse_absent(paths)
    complete = [check(path, export, template) for path in paths]
    return EXIT_PASS if all(complete) else EXIT_SUBMISSION


def check(path: Path, export: str | None, template: Path) -> bool:
    """Print the state of each region of one write-up. Convert the write-up to the format `export` if given.

    Returns True if no region is empty. Raises UsageError if the file cannot be read, or its markers are broken.
    """
    state = state_of(text_of(path), str(path), wanted_regions(template))
    print("\n".join(state_lines(path, state)))
    if export:
        print(exported(path, export))
    return not state.missing


def exported(path: Path, kind: str) -> str:
    """Convert the write-up at `path` to `kind`, "html" or "pdf", in the same folder. Return a message on the new file.

    If pandoc is missing, the message says so. Raises KitError if pandoc fails.
    """
    program = shutil.which("pandoc")
    if program is None:
        return f"no {kind.upper()} was written: pandoc is not installed (apt install pandoc); you can hand in the text"
    target = path.with_suffix(f".{kind}")
    title = path.stem.replace("_", " ")
    command = [program, f"--from={FROM}", "--standalone", f"--metadata=pagetitle:{title}", "--output"]
    try:
        ended = subprocess.run(
            [*command, str(target.absolute()), str(path.absolute())],
            cwd=path.absolute().parent,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise KitError(f"pandoc did not end within {TIMEOUT_S:.0f} s on {path}") from error
    if ended.returncode != 0:
        first = one_line((ended.stderr.strip().splitlines() or ["it printed no reason"])[0], 300)
        hint = "; a PDF needs LaTeX as well: try --export html" if kind == "pdf" else ""
        raise KitError(f"pandoc cannot export {path}: {first}{hint}")
    return f"wrote {target}"


def parser(what: str) -> Parser:
    """Return the parser of the command line. `what` describes the argument FILE in the help text."""
    parse = Parser(
        prog=f"{GRADER_COMMAND} writeup", description="List the regions of a write-up that are empty."
    )
    parse.add_argument("paths", metavar="FILE", type=Path, nargs="+", help=what)
    parse.add_argument("--config", metavar="FILE", type=Path, help="the write-up's assignment")
    add_lab(parse)
    parse.add_argument(
        "--export", choices=FORMATS, help="also convert the file to this format (needs pandoc)"
    )
    return parse


def refuse_absent(paths: Sequence[Path]) -> None:
    """Raise UsageError for a path that does not exist."""
    for path in paths:
        if not path.exists():
            hint = f"; begin with `cp {WRITEUP_TEMPLATE.name} {path}`" if path.name == NAME else ""
            raise UsageError(f"no such file: {path}{hint}")


MOST_REGIONS = 200
"""Maximum number of regions in a write-up. The course's template has about thirty."""
LONGEST_NAME = 60
_MARKER = re.compile(
    rf"\s*<!--\s*(?:(answer|table)\s*:\s*([a-z0-9][a-z0-9_-]{{0,{LONGEST_NAME - 1}}})|(end))\s*-->\s*"
)
_MARKER_LIKE = re.compile(r"^[^\S\n]*<!--\s*((answer|table)\s*:|end\s*-->)", re.IGNORECASE | re.MULTILINE)
_COMMENT_START, _COMMENT_END = "<!--", "-->"


@dataclass(frozen=True)
class Region:
    """Region of a write-up; `kind` is "answer" or "table". `body` is the text [start, end) between its markers."""

    kind: str
    name: str
    body: str
    start: int
    end: int

    @cached_property
    def text(self) -> str:
        """The body without comments and without surrounding white space."""
        return without_comments(self.body).strip()

    @property
    def is_empty(self) -> bool:
        return not self.text


def without_comments(text: str) -> str:
    """Return the text without its comments. A `<!--` without a `-->` counts as text."""
    kept: list[str] = []
    place = 0
    # A regular expression would take quadratic time for many comments without an end.
    while (start := text.find(_COMMENT_START, place)) >= 0:
        end = text.find(_COMMENT_END, start + len(_COMMENT_START))
        if end < 0:
            break
        kept.append(text[place:start])
        place = end + len(_COMMENT_END)
    return "".join([*kept, text[place:]])


def regions(text: str) -> list[Region]:
    """Return all regions of a write-up, in order.

    Raises UsageError with the line for a marker without a partner, inside another region or beside other text. Also
    raises it for a name that occurs twice, and for more than MOST_REGIONS regions.
    """
    found: list[Region] = []
    names: set[tuple[str, str]] = set()
    opened: re.Match[str] | None = None
    opened_line = start = place = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            if _MARKER_LIKE.match(line):
                raise UsageError(f"line {number}: {_fault(line)}")
        elif marker[3] is None:
            if opened is not None:
                raise UsageError(
                    f"line {number}: {_shown(marker)} is inside the region of line {opened_line}"
                )
            if (marker[1], marker[2]) in names:
                raise UsageError(
                    f"line {number}: {_shown(marker)} occurs for the second time: delete one of the two"
                )
            if len(names) == MOST_REGIONS:
                raise UsageError(f"line {number}: more than {MOST_REGIONS} regions: this is not a write-up")
            names.add((marker[1], marker[2]))
            opened, opened_line, start = marker, number, place + len(line)
        elif opened is None:
            raise UsageError(f"line {number}: <!-- end -->, but no region is open")
        else:
            found.append(Region(opened[1], opened[2], text[start:place], start, place))
            opened = None
        place += len(line)
    if opened is not None:
        raise UsageError(f"line {opened_line}: {_shown(opened)} has no <!-- end -->")
    return found


def tables(text: str) -> dict[str, str]:
    """Return {name: text without comments} for the table regions of a write-up, in order; "" for an empty region."""
    return {region.name: region.text for region in regions(text) if region.kind == "table"}


def fill(text: str, name: str, table_markdown: str) -> str:
    """Return the text with `table_markdown` in place of the content of the table region `name`.

    The table gets the line endings of the text. Raises UsageError if the region is missing, if the table contains a
    marker, and for the errors of `regions`.
    """
    if _MARKER_LIKE.search(table_markdown):
        raise UsageError(
            f"the table '{name}' contains a marker such as '<!-- end -->': remove it from the table"
        )
    region = next((each for each in regions(text) if (each.kind, each.name) == ("table", name)), None)
    if region is None:
        raise UsageError(
            f"there is no region for the table '{name}': write the lines '<!-- table: {name} -->' and "
            "'<!-- end -->' where it should go"
        )
    newline = "\r\n" if text[: region.start].endswith("\r\n") else "\n"
    body = newline.join(table_markdown.strip().splitlines())
    # Markdown recognises a table only after an empty line.
    return f"{text[: region.start]}{newline}{body}{newline}{newline}{text[region.end :]}"


def _fault(line: str) -> str:
    """Return a message on the error in a line that begins like a marker."""
    named = re.match(r"\s*<!--\s*(?:answer|table)\s*:\s*([a-z0-9-]+)", line)
    if named and len(named[1]) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} letters: {one_line(named[1])}"
    return f"write a marker alone on its line: {one_line(line)}"


def _shown(marker: re.Match[str]) -> str:
    return f"<!-- {marker[1]}: {marker[2]} -->"


MOST_BYTES = 4 << 20
#: Names of optional answers.
OPTIONAL = ("extra",)


@dataclass(frozen=True)
class Place:
    """State of one region. `words` is the number of words in it, 0 if it counts as empty; None if it is missing."""

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
    """State of a write-up: its regions in the template's order, then others. `texts` are the answers by name."""

    places: tuple[Place, ...]
    texts: Mapping[str, str]

    @property
    def missing(self) -> list[Place]:
        return [place for place in self.places if not place.filled and not place.is_optional]

    def count(self, kind: str) -> int:
        return sum(place.kind == kind and not place.is_optional for place in self.places)


def text_of(path: Path) -> str:
    """Return a write-up's text. Raises UsageError unless it is readable UTF-8 text of at most MOST_BYTES."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the write-up in it")
    if not path.is_file():
        raise UsageError(f"{path} is not a file: name a Markdown text")
    return read_text(path, MOST_BYTES, no="write-up", advice="save it as Markdown").removeprefix("\ufeff")


def wanted_regions(path: Path) -> tuple[Region, ...]:
    """Return the regions of the template at `path`, or () if this copy of the kit has no template."""
    return tuple(regions(text_of(path))) if path.is_file() else ()


def state_of(text: str, name: str, wanted: tuple[Region, ...]) -> State:
    """Return the state of a write-up's `text`. `wanted` are the template's regions.

    A region whose text is the same as in the template counts as empty. Raises UsageError with the file `name` and the
    line if the markers are broken.
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
