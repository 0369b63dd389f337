"""Lists the kit's public names: options, YAML keys, verdicts, codes of flags, and fields of result.json.

`tools/public_names.txt` has the names of which users' files and scripts may depend. A test fails if one is missing.
`--write` adds new names to this file.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTED = Path(__file__).with_suffix(".txt")
#: Patterns by kind of name, searched for in the kit's Python files.
PATTERNS = {
    "command": re.compile(r"add_parser\(\s*\"([a-z0-9-]+)\""),
    "option": re.compile(r"[\"'](--?[A-Za-z][a-z0-9-]*)[\"']"),
    "flag": re.compile(r"\bFlag\(\s*\"(\w+)\""),
    "keys": re.compile(r"\bKeys\(([^()]*(?:\([^()]*\)[^()]*)*)\)"),
}
WORD = re.compile(r"\"([A-Za-z_]\w*)\"")


def names() -> Iterator[str]:
    """Yield each public name after its kind, such as "option --seed"."""
    from grader import __main__ as staff
    from grader import study
    from grader.core import results

    for path in (ROOT / "gpt149.py", *(ROOT / "grader").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for kind, pattern in PATTERNS.items():
            for found in pattern.findall(text):
                # The first text of `Keys` names the mapping.
                yield from (
                    (f"key {key}" for key in WORD.findall(found)) if kind == "keys" else [f"{kind} {found}"]
                )
    yield from (f"command {command}" for command in (*study.COMMANDS, *staff.FORWARDED))
    yield from (f"verdict {verdict}" for verdict in typing.get_args(results.Verdict))
    for record in vars(results).values():
        if is_dataclass(record) and isinstance(record, type):
            yield from (f"field {record.__name__}.{field.name}" for field in fields(record))


def missing() -> list[str]:
    """Return the listed names that the kit has no longer."""
    return sorted({*LISTED.read_text(encoding="utf-8").splitlines()} - {*names()})


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    if "--write" in sys.argv[1:]:
        LISTED.write_text("".join(f"{name}\n" for name in sorted({*names()})), encoding="utf-8")
    print("\n".join(missing()) or f"{len({*names()})} public names: none is missing")
