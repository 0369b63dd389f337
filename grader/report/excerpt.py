"""Lines of a source that a message names, with their neighbours, highlighted and numbered: HTML for a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from grader.core.harmless import harmless

AROUND = 2
"""Lines shown on either side of a named one."""
MOST_LINES = 60
MOST_CHARACTERS = 1 << 17
"""Longest source that is highlighted: pygments takes 0.1 s for so many characters."""
MOST_COLUMNS = 200
#: Classes of the page's style sheet, by the name of a pygments token.
CLASSES = (("Comment", "kc"), ("Keyword", "kw"), ("Literal.String", "ks"), ("Literal.Number", "kn"))


def rows(text: str, name: str, message: str) -> str:
    """Return a block `<span>` for each shown line, with a mark on named ones; "" if the message names none."""
    lines = text.splitlines()
    named = {int(found) for found in re.findall(rf"(?<![\w./-]){re.escape(name)}:(\d{{1,7}})\b", message)}
    named &= set(range(1, len(lines) + 1))
    shown = sorted(
        {k for line in named for k in range(line - AROUND, line + AROUND + 1)} & set(range(1, len(lines) + 1))
    )
    if not shown:
        return ""
    coloured = list(_coloured(text, name))
    parts, before = [], shown[0] - 1
    for k in shown[:MOST_LINES]:
        if k != before + 1:
            parts.append('<span class="gap">⋮</span>')
        kind = "row named" if k in named else "row"
        parts.append(f'<span class="{kind}"><i>{k}</i>{coloured[k - 1]}</span>')
        before = k
    return "".join(parts)


def _coloured(text: str, name: str) -> Iterator[str]:
    """Yield each line as escaped HTML."""
    lines = [harmless(line)[:MOST_COLUMNS] for line in text.splitlines()]
    if len(text) > MOST_CHARACTERS:
        yield from map(escape, lines)
        return
    # It comes with rich.
    from pygments.lexers import CppLexer, PythonLexer

    lexer = (PythonLexer if Path(name).suffix == ".py" else CppLexer)(stripnl=False, ensurenl=True)
    row: list[str] = []
    for token, value in lexer.get_tokens("\n".join(lines)):
        kind = next((kind for prefix, kind in CLASSES if str(token).startswith(f"Token.{prefix}")), "")
        for k, piece in enumerate(value.split("\n")):
            if k:
                yield "".join(row)
                row = []
            if piece:
                row.append(f'<span class="{kind}">{escape(piece)}</span>' if kind else escape(piece))
