"""Ids of submissions: readable, unique, the same in each run, and a plain file name on any system."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.core.quantities import shortened

MAX_CHARS, MAX_BYTES = 48, 120
MOST_NAMED = 5
#: Least similarity (difflib's ratio, 0 to 1) at which a name counts as a misspelling of another.
NEAR = 0.75
#: Names that Windows reserves for devices, and `lock`, a file of each results folder.
RESERVED = {"con", "prn", "aux", "nul", "lock"} | {f"{port}{k}" for port in ("com", "lpt") for k in range(10)}


def identify(titled: Sequence[tuple[str, str]]) -> list[str]:
    """Return an id for each (title, key). Titles are for people and may be equal; keys are unique.

    An id is the title as a file name (`safe_name`). If several ids would be equal, or differ only in capitals, the
    first digits of the key's SHA-256 are appended to each of them. So an id never depends on the order of submissions.
    """
    plain = [safe_name(title) for title, _ in titled]
    ids = list(plain)
    digits = 6
    while clashes := _clashes(ids):
        for k in clashes:
            # Equal keys should not occur; if they do, their positions distinguish them.
            key = titled[k][1] if digits <= 64 else f"{titled[k][1]} {k}"
            ids[k] = f"{plain[k]}-{_digest(key, min(digits, 64))}"
        digits *= 2
    return ids


def safe_name(title: str) -> str:
    """Convert a title to a file name of letters and digits of any script, `-` and `_`.

    The name has at most MAX_CHARS characters and MAX_BYTES bytes; a reserved name gets a `_` in addition. It has no
    dots, so it never equals a report's name in a results folder, such as grades.csv.
    """
    text = unicodedata.normalize("NFKC", "".join(char for char in title if not 0xD800 <= ord(char) <= 0xDFFF))
    kept = "".join(char if char.isalnum() or char == "-" else "_" for char in text)
    name = "_".join(piece for piece in kept.split("_") if piece).strip("-_")[:MAX_CHARS]
    while len(name.encode()) > MAX_BYTES:
        name = name[:-1]
    name = name.rstrip("-_") or "submission"
    return name + "_" if name.casefold() in RESERVED else name


def is_id(text: str) -> bool:
    """Return True if a text can be an id of `identify`: letters, digits, `-` and `_`, at most 200 bytes in UTF-8."""
    return bool(text) and all(char.isalnum() or char in "-_" for char in text) and len(text.encode()) <= 200


def no_such_submission(wanted: str, known: Collection[str]) -> str:
    """Return the message "no submission is called ...", which suggests ids in `known` that are similar to `wanted`."""
    short = wanted[:MAX_CHARS]
    close = get_close_matches(short, known, 3, NEAR) if len(wanted) <= 2 * MAX_CHARS else []
    # `wanted` may be the name of a submission's folder. The id is this name with some characters replaced.
    if (plain := safe_name(wanted)) in known:
        close = [plain]
    hint = f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"no submission is called '{one_line(short)}'{hint}"


def closest(wanted: str, known: Mapping[str, str]) -> str:
    """Return the submission id that `wanted` names. `known` maps ids to the students' names.

    `wanted` is an id, or a text that occurs in the id or name of only one student; capitals are ignored. Raises
    UsageError if it fits no student or several.
    """
    text = wanted.casefold()
    found = [name for name, title in known.items() if text and text in f"{name}\n{title}".casefold()]
    if wanted in known or len(found) == 1:
        return wanted if wanted in known else found[0]
    if found:
        several = shortened(found, MOST_NAMED)
        raise UsageError(f"'{one_line(wanted[:MAX_CHARS])}' fits several submissions: {several}; give one id")
    raise UsageError(no_such_submission(wanted, known))


def _clashes(ids: Sequence[str]) -> list[int]:
    """Return the indices of ids that equal another id on a file system that ignores capitals."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for k, name in enumerate(ids):
        places[unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())].append(k)
    return [k for group in places.values() if len(group) > 1 for k in group]


def _digest(key: str, digits: int) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
