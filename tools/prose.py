"""Prints hard-to-read sentences of comments, docstrings and Markdown pages, found by simple rules.

Exit codes: 0 without a finding, else 1. With `--messages` it prints a catalogue in place of findings: all texts of the
kit of at least six words that are neither docstrings nor comments, with {names} for inserted values.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Folders of the checkout with generated files, which are not searched.
OTHERS = ("build", "dist", "out", "study")
MOST_WORDS, MOST_COLUMNS, LEAST_WORDS = 25, 125, 6
#: Two words of prose: a text without them is code, a pattern or a format.
PLAIN_WORDS = re.compile(r"[a-z]{3} [a-z]{2}")
OPENINGS = ("What", "Whether", "Which", "How", "Why", "Where", "That")
#: Patterns by the name of their rule, searched for in comments and docstrings.
WORDS = {
    "negated noun": re.compile(r"\b(?:is|are|was|were|be) (?:no|none|nobody|nothing)\b(?! longer)"),
    "held against": re.compile(r"\bheld (?:against|beside|to)\b"),
    "whoever": re.compile(r"\bwh(?:o|at|ich)ever\b", re.IGNORECASE),
}
VAGUE = re.compile(r"(?<!def )\bt(?:ells?|elling|old)\b")
COMMENT = re.compile(r"(?:^[ \t]*#.*(?:\n|\Z))+", re.MULTILINE)
#: End of a paragraph: an empty line, or the end of a line before a table's row. Columns of a table are two or more
#: spaces apart.
BREAK = re.compile(r"\n\s*\n|\n(?=.*\S {2,}\S)")
SENTENCE_END = re.compile(r"(?<=[.:;!?])\s+")


@dataclass(frozen=True)
class Place:
    """One finding: the name of the broken rule, file and line, and the text."""

    rule: str
    file: str
    line: int
    text: str


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each docstring, including the strings that document attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            is_text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            if is_text and isinstance(each.value.value, str):
                yield each.lineno, each.value.value


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each block of comment lines. Comments after code on the same line are left out."""
    for found in COMMENT.finditer(text):
        lines = [line.strip().lstrip("#: ") for line in found[0].strip().splitlines()]
        yield text.count("\n", 0, found.start()) + 1, " ".join(lines)


def of_python(file: str, text: str) -> Iterator[Place]:
    """Yield the findings in a Python file: vague verbs in any line, other findings in docstrings and comments."""
    documented = [*docstrings(ast.parse(text))]
    for line, said in documented:
        if said.split(maxsplit=1)[:1] and said.split(maxsplit=1)[0] in OPENINGS:
            yield Place("opening", file, line, said.splitlines()[0])
    for line, said in (*documented, *comments(text)):
        for paragraph in BREAK.split(said):
            for sentence in SENTENCE_END.split(paragraph):
                if len(sentence.split()) > MOST_WORDS:
                    yield Place("long sentence", file, line, " ".join(sentence.split()))
        for rule, pattern in WORDS.items():
            for found in pattern.finditer(said):
                yield Place(rule, file, line, said[max(0, found.start() - 30) : found.end() + 30])
    for number, line_text in enumerate(text.splitlines(), 1):
        for _ in VAGUE.finditer(line_text):
            yield Place("vague verb", file, number, line_text.strip())


def of_markdown(file: str, text: str) -> Iterator[Place]:
    """Yield the vague verbs and long lines of a Markdown page. Lines of tables and of code may be long."""
    is_fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        for _ in VAGUE.finditer(line):
            yield Place("vague verb", file, number, line.strip())
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif (
            len(line) > MOST_COLUMNS
            and not is_fenced
            and not line.startswith("    ")
            and line.lstrip()[:1] != "|"
        ):
            yield Place("long line", file, number, line)


def places() -> list[Place]:
    """Return all findings in the Python files and Markdown pages of the checkout."""
    found: list[Place] = []
    for folder, folders, names in os.walk(ROOT):
        made = OTHERS if Path(folder) == ROOT else ()
        folders[:] = sorted(each for each in folders if each not in made and not each.startswith("."))
        for path in (Path(folder, name) for name in sorted(names) if name.endswith((".py", ".md"))):
            file, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
            found += of_markdown(file, text) if path.suffix == ".md" else of_python(file, text)
    return found


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each string of at least LEAST_WORDS words, without docstrings and inner strings."""
    left_out = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
                if isinstance(part, (ast.Constant, ast.FormattedValue))
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            text = node.value
        if len(text.split()) >= LEAST_WORDS and PLAIN_WORDS.search(text):
            yield node.lineno, " ".join(text.split())


def print_messages() -> None:
    for folder in ("grader", "labs", "textgen"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, text in messages(ast.parse(path.read_text(encoding="utf-8"))):
                print(f"{path.relative_to(ROOT)}:{line}: {text}")


def main() -> int:
    if "--messages" in sys.argv[1:]:
        print_messages()
        return 0
    found = places()
    for place in found:
        print(f"{place.file}:{place.line}: {place.rule}: {place.text[:110]}")
    print(f"prose: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
