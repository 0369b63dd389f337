"""Ids of submissions: readable, unique, the same in each run, and a plain file name on any system."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Sequence
from difflib import get_close_matches

from grader.core.harmless import one_line

MAX_CHARS, MAX_BYTES = 48, 120
#: How much alike (difflib's ratio) two names have to be for one to be a slip of the other.
NEAR = 0.75
#: Names that Windows keeps for devices, whatever comes after a dot; and the one that a results folder keeps for itself
#: and that has none.
RESERVED = {"con", "prn", "aux", "nul", "lock"} | {f"{port}{k}" for port in ("com", "lpt") for k in range(10)}


def identify(titled: Sequence[tuple[str, str]]) -> list[str]:
    """An id for each (title, key). The title is for people; the key tells equal titles apart and has to be unique.

    A title that nobody else has is kept as far as a file name allows, whoever else is in the class. Titles that
    are the same but for capitals, accents' encoding or odd characters all get a piece of their key's digest, so that
    no one slips into another's place when a student is added.
    """
    plain = [safe_name(title) for title, _ in titled]
    ids = list(plain)
    digits = 6
    while clashes := _clashes(ids):
        for k in clashes:
            # Equal keys, which nobody should make, still come apart: by their place.
            key = titled[k][1] if digits <= 64 else f"{titled[k][1]} {k}"
            ids[k] = f"{plain[k]}-{_digest(key, min(digits, 64))}"
        digits *= 2
    return ids


def safe_name(title: str) -> str:
    """A title as a file name: letters and digits of any script, `-` and `_`, at most 48 characters and 120 bytes.

    No dots, so that it is never taken for one of the files that a results folder holds.
    """
    text = unicodedata.normalize("NFKC", "".join(char for char in title if not 0xD800 <= ord(char) <= 0xDFFF))
    kept = "".join(char if char.isalnum() or char == "-" else "_" for char in text)
    name = "_".join(piece for piece in kept.split("_") if piece).strip("-_")[:MAX_CHARS]
    while len(name.encode()) > MAX_BYTES:
        name = name[:-1]
    name = name.rstrip("-_") or "submission"
    return name + "_" if name.casefold() in RESERVED else name


def is_id(text: str) -> bool:
    """Whether a text can be an id of `identify`: letters, digits, `-` and `_`, no longer than a file name may be."""
    return bool(text) and all(char.isalnum() or char in "-_" for char in text) and len(text.encode()) <= 200


def no_such_submission(wanted: str, known: Collection[str]) -> str:
    """That nobody is called `wanted`, and who may have been meant: names that are much alike, and no others."""
    short = wanted[:MAX_CHARS]
    close = get_close_matches(short, known, 3, NEAR) if len(wanted) <= 2 * MAX_CHARS else []
    hint = f"; did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"no submission is called '{one_line(short)}'{hint}"


def _clashes(ids: Sequence[str]) -> list[int]:
    """Positions of ids that a file system which ignores capitals could not keep apart."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for k, name in enumerate(ids):
        places[unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())].append(k)
    return [k for group in places.values() if len(group) > 1 for k in group]


def _digest(key: str, digits: int) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
