"""Report of a run in GitHub's formats: annotations on the student's lines, a summary, and the outputs of the step.

`publish` writes them where the workflow's runner reads them:

- Annotations: lines of the step's output, `::error file=module.cpp,line=52,title=...::...`. %, CR and LF are escaped in
  a message and in properties such as `title`; ":" and "," only in properties. A runner shows at most MOST_ANNOTATIONS
  of each kind.
- The summary: Markdown, in the file that GITHUB_STEP_SUMMARY names. Untrusted text is in <pre>, with < and & escaped.
- The outputs `status` (fail; else error if parts are unjudged; else pass) and `summary` (one line), in the file that
  GITHUB_OUTPUT names.

All other output is printed between two lines with a random word. The runner ignores commands between these lines, so a
kernel cannot give commands by printing them. Hidden cases are treated as in feedback.txt.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core.errors import UsageError, explained
from grader.core.results import Score, SubmissionResult
from grader.explain.clues import HEADING
from grader.report import feedback, student, words
from grader.report.student import StudentView
from grader.source.cpptext import blanked, definition

MOST_ANNOTATIONS = 10
LARGEST_SUMMARY_BYTES = 1 << 20
MESSAGE_CHARACTERS = 1500
LEVELS = {"pass": "notice", "slow": "warning", "unjudged": "warning"}
STATUS = {"pass": "pass", "unjudged": "error"}


@dataclass(frozen=True)
class Sources:
    """Texts of the student's files, and their paths in the repository, both by the assignment's file names."""

    texts: Mapping[str, str]
    paths: Mapping[str, str] = field(default_factory=dict)

    def path(self, name: str) -> str:
        return self.paths.get(name, name)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Switch off GitHub's workflow commands inside the `with` block. The output is still shown in the log."""
    word = secrets.token_hex(16)
    print(f"::stop-commands::{word}", flush=True)
    try:
        yield
    finally:
        print(f"\n::{word}::", flush=True)


FILES = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")


def can_write() -> None:
    """Raise UsageError if one of the files that the variables in FILES name cannot be written. Writes nothing."""
    for variable in FILES:
        if not (named := os.environ.get(variable)):
            continue
        path = Path(named).absolute()
        place = path if path.exists() else path.parent
        if path.is_dir() or not path.parent.is_dir() or not os.access(place, os.W_OK):
            raise UsageError(f"{variable}: cannot write {named}: name a file in an existing, writable folder")


def publish(assignment: Assignment, result: SubmissionResult, score: Score, sources: Sources) -> None:
    """Print the annotations, and append summary and outputs to the files that environment variables name.

    Without a variable (outside of a workflow) a note is printed instead. Raises UsageError if a file cannot be written.
    """
    views = student.views(assignment, result)
    for line in annotations(assignment, views, sources):
        print(line, flush=True)
    written = (
        summary(assignment, views, score),
        "".join(f"{name}={value}\n" for name, value in outputs(views, score).items()),
    )
    for variable, text in zip(FILES, written, strict=True):
        if not (path := os.environ.get(variable)):
            print(f"note: {variable} names no file, so nothing was written there", flush=True)
            continue
        with explained(f"{variable}: cannot write {path}"), open(path, "a", encoding="utf-8") as file:
            file.write(text)


# ---- annotations


def annotations(assignment: Assignment, views: Sequence[StudentView], sources: Sources) -> list[str]:
    """Return one annotation for each part that did not pass.

    An annotation is placed at the line that the part's message names, else at the start of the part's function. Equal
    annotations of several parts are merged. At most MOST_ANNOTATIONS of each kind are returned.
    """
    functions = {part.id: part.function for part in assignment.parts}
    found: dict[tuple[str, str, int, str], list[str]] = {}
    for view in views:
        part = view.part
        if view.all_passed:
            continue
        texts = dict(feedback.paragraphs(view))
        text = "\n".join(texts[key] for key in ("results", "note", "time", "rejected") if key in texts)
        # Leave out the message's list of lines to look at. These lines need not contain the mistake.
        cause = part.diagnosis.message.partition(f"\n{HEADING}")[0] if part.diagnosis else ""
        name, line = place(cause, functions.get(part.id) or "", sources)
        key = (LEVELS.get(part.verdict, "error"), name, line, words.text(text, MESSAGE_CHARACTERS))
        found.setdefault(key, []).append(f"{part.id}: {words.verdict_words(part.verdict)}")
    lines, counts = [], dict.fromkeys(("error", "warning", "notice"), 0)
    for (level, name, line, text), titles in found.items():
        counts[level] += 1
        if counts[level] <= MOST_ANNOTATIONS:
            title = words.name(", ".join(titles))
            lines.append(command(level, text, file=sources.path(name), line=str(line), title=title))
    return lines


def place(message: str, function: str, sources: Sources) -> tuple[str, int]:
    """Return (file name, line number from 1): the place in a message, else the function's definition, else line 1.

    Files and lines that do not exist are ignored, because a message may contain untrusted text.
    """
    first = next(iter(sources.texts), "")
    for name in sources.texts:
        for found in re.finditer(rf"(?<![\w/.-]){re.escape(name)}:(\d{{1,7}})\b", message):
            if 1 <= int(found[1]) <= sources.texts[name].count("\n") + 1:
                return name, int(found[1])
    if function:
        text = sources.texts.get(first, "")
        defined = definition(blanked(text), function)
        named = re.search(rf"\b{re.escape(function)}\b", text)
        if defined or named:
            return first, text.count("\n", 0, defined.start if defined else named.start()) + 1
    return first, 1


IN_DATA = "%\r\n"
"""Characters to escape in the message of a workflow command. In its properties, colon and comma are escaped, too."""


def command(name: str, message: str, **properties: str) -> str:
    """Return a command to GitHub's runner as one line: `::NAME PROPERTY=VALUE::MESSAGE`."""
    listed = ",".join(f"{key}={_escaped(value, IN_DATA + ':,')}" for key, value in properties.items())
    return f"::{name} {listed}::{_escaped(message, IN_DATA)}"


def _escaped(text: str, characters: str) -> str:
    return "".join(f"%{ord(each):02X}" if each in characters else each for each in text)


# ---- the summary


def summary(assignment: Assignment, views: Sequence[StudentView], score: Score) -> str:
    """Return the summary as Markdown: a table of the parts, then a section on each part that did not pass."""
    for characters in words.TEXT_LIMITS:
        text = _summary(assignment, views, score, characters)
        if len(text.encode()) <= LARGEST_SUMMARY_BYTES:
            break
    return text


def _summary(assignment: Assignment, views: Sequence[StudentView], score: Score, characters: int) -> str:
    is_public = not any(case.hidden for part in assignment.parts for case in part.cases)
    lines = [
        f"## {_cell(assignment.title)}",
        "",
        feedback.passed_text(views)
        + (" These are the public tests; the result is not a grade." if is_public else ""),
        "",
        "| part | verdict | points |",
        "|---|---|---|",
    ]
    for view in views:
        part = view.part
        earned = words.number(feedback.score_line(score, part).points)
        points = f"{earned} of {words.number(part.max_points)}"
        points = points if part.max_points else ""
        lines.append(
            f"| {_cell(f'{part.id}: {part.title}')} | {words.verdict_words(part.verdict)} | {points} |"
        )
    for view in views:
        if not view.all_passed:
            block = escape(words.text(feedback.part_text(view), characters), quote=False)
            lines += ["", f"### {_cell(view.part.id)}", "", f"<pre>{block}</pre>"]
    return "\n".join([*lines, "", ""])


def _cell(text: str) -> str:
    """Return text as one line for Markdown. Characters with a meaning in Markdown or HTML are escaped."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~-])", r"\\\1", escape(words.name(text), quote=False))


# ---- outputs


def outputs(views: Sequence[StudentView], score: Score) -> dict[str, str]:
    """Return the outputs of the workflow's step by name. Each is one line."""
    states = {"pass" if view.all_passed else STATUS.get(view.part.verdict, "fail") for view in views}
    earned = words.number(sum(feedback.score_line(score, view.part).points for view in views))
    most = words.number(sum(words.finite(view.part.max_points) for view in views))
    return {
        "status": "fail" if "fail" in states else "error" if "error" in states or not views else "pass",
        "summary": f"{feedback.passed_text(views)[:-1]}, {earned} of {most} points",
    }


def sources(files: Mapping[str, Path], places: Mapping[str, Path]) -> Sources:
    """Return the student's files. `files` maps the assignment's file names to paths to read; the source is first.

    `places` maps the same names to the paths in the student's folder. Files outside of `repository()` get no path.
    """
    texts = {
        name: path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for k, (name, path) in enumerate(files.items())
        if k == 0 or path.is_file()
    }
    root = repository().resolve()
    inside = {name: path.resolve() for name, path in places.items() if path.resolve().is_relative_to(root)}
    return Sources(texts, {name: path.relative_to(root).as_posix() for name, path in inside.items()})


def repository() -> Path:
    """Return the folder that the variable GITHUB_WORKSPACE names, by default the working directory."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or ".")
