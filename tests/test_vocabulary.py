"""The engine says nothing that only one lab knows: its sources, down to strings and comments, lack that lab's words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from grader.base import imports

ROOT = Path(__file__).resolve().parent.parent
#: Parts of a name or words of a text: of attention, of its inputs, and of the functions of its starter.
WORDS = re.compile(
    r"attention|softmax|(?<![a-z])(?:heads?|tiles?|(?:q|k|v)_?tensor)(?![a-z])|qk_?t"
    r"|(?:read|write)4d|(?:two|four)dim|tile_size",
    re.IGNORECASE,
)
INPUTS = re.compile(r"\bQ, K\b|\bK and V\b|\bQ tile\b|\bQK\b")
#: Sizes of the main lab, as a key or the name of a size.
SIZES = {"B", "H", "N", "d", "Br", "Bc"}
#: By file, what is meant otherwise there.
ALLOWED: dict[str, str] = {
    # Operators of torch that do a kernel's work: a list of torch's own names.
    "build/standin.py": r"softmax|attention|head",
    "build/readpython.py": r"softmax",
    # Beginnings: of a line, of a file, of a loop, of a document in HTML.
    "report/terminal.py": r"head",
    "run/frames.py": r"head",
    "study/figure.py": r"head",
    "report/feedback.py": r"head",
    "study/plaintext.py": r"head",
    "submission/archive/opening.py": r"head",
    # A file of git's.
    "staff/platforms/github.py": r"HEAD",
    "submission/archive/zip.py": r"head",
    "base/commandline.py": r"head",
    "build/hints.py": r"heads",
    "staff/release/stripping.py": r"head",
    "staff/similarity/similar_html.py": r"head",
    "staff/board/page.py": r"head",
    # Any blocked loop has tiles; `remainder_tile` is a published code of a diagnosis.
    "judge/oracle.py": r"tiles",
    "judge/diagnosis/diagnose.py": r"tiles?",
    "judge/diagnosis/deviation.py": r"tiles?",
    "judge/diagnosis/patterns.py": r"tiles?",
    "judge/diagnosis/suspect.py": r"tiles?",
    "judge/diagnosis/facts.py": r"tiles?",
    "judge/closer/clues.py": r"tile",
    "judge/closer/explaining.py": r"tiles?",
    "judge/closer/probing.py": r"tiles",
    # Letters of types, of SVG's lines, of buffers' formats; tiers of a sandbox.
    "judge/binding.py": r"d",
    "report/charts.py": r"H",
    "run/loaded.py": r"B",
    "sandbox/tiers.py": r"B",
    "staff/selftest/__init__.py": r"B",
    "__main__.py": r"B",
    "doctor/containment.py": r"B",
}


def texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Names, strings and comments with their lines, and whether it is a string that stands alone."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield line, node.value, True
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield line, value, False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, False


def told(source: str, allowed: str = "") -> list[str]:
    """Each word of the lab's in a source, with its line."""
    found = []
    for line, text, is_string in texts(source):
        words = [match[0] for pattern in (WORDS, INPUTS) for match in pattern.finditer(text)]
        if is_string and text in SIZES:
            words.append(text)
        found += [f"{line}: {word}" for word in words if not re.fullmatch(allowed, word, re.IGNORECASE)]
    return found


def test_the_engine_lacks_the_words_of_a_lab() -> None:
    sources = {
        path.relative_to(ROOT / "grader").as_posix(): path.read_text(encoding="utf-8")
        for name, path in imports.modules(ROOT).items()
        if name.partition(".")[0] == "grader"
    }
    assert len(sources) > 100
    found = {name: told(source, ALLOWED.get(name, "")) for name, source in sources.items()}
    assert not {name: words for name, words in found.items() if words}
    assert not [name for name in ALLOWED if name not in sources or not told(sources[name])], (
        "no longer needed"
    )


def test_such_words_are_found_wherever_they_stand() -> None:
    assert told("softmax = 1") == ["1: softmax"]
    assert told("import x.flash_attention as y") == ["1: attention"]
    assert told("def f(heads): ...") == ["1: heads"]
    assert told("x.fourDimRead()") == ["1: fourDim"]
    assert told("x = 1  # rows of K and V") == ["1: K and V"]
    assert told('"""Of each head."""') == ["1: head"]
    assert told("shape['N'], shape['d']") == ["1: N", "1: d"]
    assert not told("header = ahead + shape['R']  # N is what the header says")
    assert not told("head = 1", "head")
