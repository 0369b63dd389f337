"""Write-ups of a class: a text with each question, its right answer (key) and all answers, and a table of points.

The table has a row for each write-up, into which people enter the points. `grader.study.writeup` parses a write-up and
lists its empty regions.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader import submission
from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.yamlnode import Keys, Node, compose
from grader.core import plainfile
from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS, UsageError, explained
from grader.core.harmless import harmless, one_line
from grader.core.places import PUBLIC_CONFIG, WRITEUP_KEY
from grader.core.quantities import shortened
from grader.report.grades_csv import csv_line, safe_text
from grader.report.words import plural
from grader.staff.classroom import byhand, gradebook, ledger
from grader.study import writeup
from grader.study.writeup import NAME, Region, State, exported, template_of


def main(arguments: Sequence[str]) -> int:
    """Run `python -m grader writeup`. For a single write-up and no staff option, do the same as a handout's command.

    Returns the exit code, which is always 0 for a class. Raises UsageError for mistakes in the options or files.
    """
    given = _parser().parse_args(arguments)
    writeup.refuse_absent(given.paths)
    staff_options = given.read or given.sheet or given.results or given.key
    if not (staff_options or len(given.paths) > 1 or given.paths[0].is_dir()):
        return writeup.check_all(given.paths, given.export, writeup.template_of(given.config))
    config = given.config or gradebook.config_in(given.results)
    template = writeup.wanted_regions(template_of(config))
    questions = _key(given.key, config)
    found = collect(given.paths, template, load(config or PUBLIC_CONFIG).source)
    width = max(len(each.id) for each in found)
    for each in found:
        print(f"{each.id:{width}}  {each.remark or 'complete'}")
    whole = sum(not each.remark for each in found)
    print(f"{plural(len(found), 'write-up')}, {whole} complete")
    if given.read:
        plainfile.write(given.read, [reading(found, questions, template)])
        print(f"wrote {given.read}: all answers, question by question")
        if given.export:
            print(exported(given.read, given.export))
    elif given.export:
        raise UsageError("--export of several write-ups also needs --read FILE, the file that it converts")
    table = given.sheet or (given.results / "manual.csv" if given.results else None)
    if table:
        remarks = {each.id: (each.name, each.remark) for each in found}
        print(update(table, remarks, given.item, given.results))
    return EXIT_PASS


def _parser() -> Parser:
    parse = writeup.parser("a write-up, several, or a folder or an archive of a class")
    parse.path("--read", "write all answers into this file, question by question")
    parse.path("--sheet", "make or update this table of points (manual.csv)")
    parse.path("--results", "results folder of a class: the table gets a row for each of its students", "DIR")
    parse.path("--key", "file with the right answers (default: configs/hidden/writeup_key.yaml)")
    parse.add_argument("--item", metavar="ID", default="writeup", help="column for points (default: writeup)")
    return parse


#: Prefix of the remarks that this module writes into the table's column `comment`. People's comments lack it.
MARK = "write-up: "


def update(path: Path, remarks: Mapping[str, tuple[str, str]], item: str, results: Path | None) -> str:
    """Make or update the table of points in `path`. Return a text of one or two lines on the changes.

    `remarks` maps ids to (name, remark), and `item` is the column for the points. A remark replaces only an empty
    comment or an earlier remark; all other cells stay. If `results`, a results folder, is given, each student on its
    roster gets a row. A write-up whose id is not on the roster gets no row; the returned text names it.

    Raises UsageError for mistakes in the table, with file and line, and if no write-up's id is on the roster.
    """
    rows = _read(path, item)
    by_id = {row["id"]: row for row in rows}
    before, note = len(rows), ""
    if results is not None:
        remarks, note = _with_roster(remarks, results)
    for name, (title, remark) in remarks.items():
        row = by_id.get(name)
        if row is None:
            row = {"id": name, "name": safe_text(title) if title != name else "", item: "", "comment": ""}
            rows.append(row)
        if not row.get("comment") or row["comment"].startswith(MARK):
            row["comment"] = safe_text(MARK + remark) if remark else ""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [csv_line(columns), *(csv_line(row.get(column, "") for column in columns) for row in rows)]
    plainfile.write(path, lines)
    pending = sum(not row.get(item) for row in rows)
    message = f"wrote {path}: {len(rows)} rows, {len(rows) - before} of them new, {pending} without points for {item}"
    return f"{message}\n{note}" if note else message


def _read(path: Path, item: str) -> list[dict[str, str]]:
    """Return the checked rows of the table of points, with the columns `item` and `comment`; [] without a table."""
    if not path.exists():
        return []
    byhand.read_manual(path)
    _, rows = byhand.table(path)
    return [{**row, item: row.get(item, ""), "comment": row.get("comment", "")} for _, row in rows]


def _with_roster(
    remarks: Mapping[str, tuple[str, str]], results: Path
) -> tuple[dict[str, tuple[str, str]], str]:
    """Match the remarks with the roster in `results`. Return ({id on the roster: (name, remark)}, note).

    A student without a write-up gets the remark "none". The note names remarks whose ids are not on the roster; it is
    "" if all are. Raises UsageError if no remark's id is on the roster.
    """
    roster = {entry.submission_id: entry.name for entry in ledger.read(results).roster}
    if not roster:
        raise UsageError(f"{results} holds no results of a class: name the --out folder of a run")
    strangers = [name for name in remarks if name not in roster]
    advice = (
        "take the write-ups from the same folder or export as the class's sources, so that their ids agree"
    )
    if strangers and len(strangers) == len(remarks):
        raise UsageError(
            f"no write-up belongs to a submission in {results}: the first write-up's id is '{strangers[0]}'; {advice}"
        )
    note = ""
    if strangers:
        count = f"{plural(len(strangers), 'write-up belongs', 'write-ups belong')} to no student in {results}"
        note = f"note: {count} and get no row: {shortened(strangers)}"
        note += f"; if one is a student's, {advice}"
    kept = {name: (title, remarks[name][1] if name in remarks else "none") for name, title in roster.items()}
    return kept, note


LONGEST_ANSWER = 20_000
"""Maximum characters of one answer in the file of --read: about ten pages."""
LONGEST_REMARK = 300
WIDTH = 100
"""Maximum width of an answer's lines in the file of --read. Viewers do not wrap code blocks, so this module does."""
_KEYS = Keys("the key", ("questions",), ("item",))
_QUESTION_KEYS = Keys("a question", ("title", "points", "expect"), ("numbers", "beware"))


@dataclass(frozen=True)
class Question:
    """One question in the key, the staff's file with right answers."""

    answer: str
    """Name of the write-up's region for the answer."""
    title: str
    points: float
    expect: tuple[str, ...]
    """Statements that a right answer contains."""
    numbers: tuple[str, ...] = ()
    """Numbers that a right answer may contain."""
    beware: tuple[str, ...] = ()
    """Statements that sound right and are wrong."""


@dataclass(frozen=True)
class Writeup:
    """One student's write-up. `state` is None if the write-up cannot be read; `trouble` is then the reason."""

    id: str
    name: str
    state: State | None
    trouble: str = ""

    @property
    def remark(self) -> str:
        """Remark for the table of points: the write-up's empty regions, or why it cannot be read; "" if complete."""
        if self.state is None:
            return self.trouble
        empty = [place.name for place in self.state.missing]
        return one_line(f"empty: {', '.join(empty)}", LONGEST_REMARK) if empty else ""


def collect(paths: Sequence[Path], template: tuple[Region, ...], source: str) -> list[Writeup]:
    """Return the write-ups at `paths`: files, or one folder or archive of a class. Ids are those of grades.csv.

    `template` are the regions of the write-up's template. A folder with a file called `source` belongs to one student.
    """
    if len(paths) == 1 and (paths[0].is_dir() or paths[0].suffix != ".md"):
        with tempfile.TemporaryDirectory(prefix="gpt149-writeups-") as scratch:
            handed_in = submission.find(paths[0], NAME, Path(scratch), (), of_class=source)
            return [
                _opened(each.id, each.name, each.source, each.error or f"no {NAME}", template)
                for each in handed_in
            ]
    titles = [_titled(path, source) for path in paths]
    ids = submission.ids.identify(titles)
    return [
        _opened(name, title, path, "", template)
        for name, (title, _), path in zip(ids, titles, paths, strict=True)
    ]


def _titled(path: Path, source: str) -> tuple[str, str]:
    """Return (title, key) for a write-up, from which `grader.submission.ids.identify` makes the student's id.

    A file `writeup.md` lies in a folder named after the student. A file with another name is named after the student.
    `source` is the name of the assignment's source file.
    """
    if path.name == NAME:
        return (path.absolute().parent.name,) * 2
    return path.stem, path.stem + Path(source).suffix


def _opened(name: str, title: str, path: Path | None, trouble: str, template: tuple[Region, ...]) -> Writeup:
    if path is None:
        return Writeup(name, title, None, trouble)
    try:
        return Writeup(name, title, writeup.state_of(writeup.text_of(path), path.name, template))
    except UsageError as error:
        return Writeup(name, title, None, one_line(str(error), LONGEST_REMARK))


def reading(found: Sequence[Writeup], questions: Sequence[Question], template: tuple[Region, ...]) -> str:
    """Return a Markdown text with each question, its right answer (from the key), and every student's answer."""
    by_name = {question.answer: question for question in questions}
    names = [region.name for region in template if region.kind == "answer"]
    names += [question.answer for question in questions if question.answer not in names]
    lines = ["# Write-ups, question by question", ""]
    lines += [f"- {_plain(each.id)}: {_plain(each.remark)}" for each in found if each.remark]
    for name in names:
        lines += ["", *_asked(name, by_name.get(name))]
        for each in found:
            text = each.state.texts.get(name, "") if each.state else ""
            if text:
                lines += ["", f"**{_plain(each.id)}**", "", *_quoted(text)]
    return "\n".join(lines) + "\n"


def _asked(name: str, question: Question | None) -> Iterator[str]:
    """Yield the lines with a question's heading and its right answer. `question` is None if the key lacks it."""
    if question is None:
        yield f"## {name}"
        return
    yield f"## {question.title} ({question.points:g} points)"
    for heading, items in (("Right", question.expect), ("Beware", question.beware)):
        if items:
            yield ""
            yield from (f"- {heading}: {item}" for item in items)
    if question.numbers:
        yield f"- Figures: {', '.join(question.numbers)}"


def _quoted(text: str) -> Iterator[str]:
    """Yield the lines of a student's text as a code block, with a fence that is longer than any in the text."""
    wrap = textwrap.TextWrapper(WIDTH, replace_whitespace=False, break_on_hyphens=False).wrap
    lines = [row for line in harmless(text[:LONGEST_ANSWER]).splitlines() for row in wrap(line) or [""]]
    fence = "~" * max(3, *(1 + len(run) for line in lines for run in re.findall("~+", line)), 0)
    yield from (f"> {line}".rstrip() for line in (fence, *lines, fence))
    if len(text) > LONGEST_ANSWER:
        yield "> ... (cut here: the rest is in the write-up)"


def _plain(text: str) -> str:
    """Return a name or remark as one line, with the characters escaped that Markdown would interpret."""
    line = " ".join(harmless(text).split())
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!&~" else c for c in line)


def _key(given: Path | None, config: Path | None) -> tuple[Question, ...]:
    usual = WRITEUP_KEY
    if config is not None:
        usual = labs.beside(load(config).lab_folder, f"hidden/{WRITEUP_KEY.name}", WRITEUP_KEY)
    if given is None and not usual.is_file():
        return ()
    return read_key(given or usual)


def read_key(path: Path) -> tuple[Question, ...]:
    """Read the questions and right answers from a key, a YAML file. Raises UsageError with file and line."""
    with explained(f"cannot read the key {path}"):
        data = path.read_bytes()
    keys = compose(data, path).mapping(_KEYS)
    return tuple(_question(name, node) for name, (_, node) in keys["questions"].entries("questions").items())


def _question(name: str, node: Node) -> Question:
    keys = node.mapping(_QUESTION_KEYS)

    def texts(key: str) -> tuple[str, ...]:
        return tuple(item.text(f"an entry of {key}") for item in keys[key].items(key)) if key in keys else ()

    title, points = keys["title"].text("title"), keys["points"].number("points")
    return Question(name, title, points, texts("expect"), texts("numbers"), texts("beware"))
