"""Pseudonyms for a board, the same for a student in every run. Without the secret, none can be computed from a name.

They are derived from that secret, which is stored beside them in the staff's results folder.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import secrets
from collections.abc import Iterable
from pathlib import Path

from grader.core import plainfile
from grader.core.errors import UsageError

SECRET, TABLE = "board.key", "pseudonyms.csv"
_QUALITIES = (
    "amber azure brisk calm clever coral crimson dapper eager early fleet gentle golden happy hazel honest indigo "
    "ivory jolly keen lively lucky mellow merry misty nimble opal patient plucky proud quick quiet rapid ruby rustic "
    "sage scarlet serene silver sleek smart snowy solar spry steady sunny swift teal tidy vivid warm witty young zesty"
)
_ANIMALS = (
    "badger beaver bison bittern camel caribou cheetah condor cormorant crane curlew dolphin dormouse eagle egret "
    "eider falcon ferret finch gannet gecko gibbon hare heron ibex jackdaw jaguar kestrel kiwi lapwing lemur lynx "
    "marmot marten merlin mole moose narwhal newt ocelot okapi osprey otter panda pelican penguin petrel plover "
    "puffin quail raven robin salmon seal shrew siskin stoat stork swallow swan tapir tern toad vole walrus weasel "
    "wombat wren yak"
)
QUALITIES, ANIMALS = tuple(_QUALITIES.split()), tuple(_ANIMALS.split())


def pseudonyms(folder: Path, students: Iterable[str]) -> dict[str, str]:
    """Return a pseudonym for each student, and keep it in the folder. Raises UsageError if the folder cannot be
    written."""
    names = sorted(students)
    try:
        with plainfile.folder(folder.resolve()) as place:
            key = _secret(place)
            known = _known(place)
            for name in names:
                known.setdefault(name, _drawn(key, name, set(known.values())))
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(("id", "pseudonym"))
            table.writerows(sorted(known.items()))
            plainfile.replace(place, TABLE, [text.getvalue().encode()])
    except OSError as error:
        raise UsageError(f"cannot keep pseudonyms in {folder}: {error.strerror}") from error
    return {name: known[name] for name in names}


def _secret(place: int) -> bytes:
    try:
        return plainfile.read(SECRET, 64, inside=place)
    except FileNotFoundError:
        key = secrets.token_hex(16).encode()
        plainfile.replace(place, SECRET, [key])
        return key


def _known(place: int) -> dict[str, str]:
    """Return the pseudonyms on record. A name outside of our word lists is dropped, and drawn anew."""
    try:
        text = plainfile.read(TABLE, 16 << 20, inside=place).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    words = {*QUALITIES, *ANIMALS}
    rows = [row for row in csv.reader(io.StringIO(text)) if len(row) == 2]
    return {name: told for name, told in rows if set(told.split()[:2]) <= words and len(told) < 40}


def _drawn(key: bytes, name: str, taken: set[str]) -> str:
    digest = hmac.new(key, name.encode(errors="surrogateescape"), hashlib.sha256).digest()
    first, second = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")
    drawn = told = f"{QUALITIES[first % len(QUALITIES)]} {ANIMALS[second % len(ANIMALS)]}"
    count = 1
    while told in taken:
        count += 1
        told = f"{drawn} {count}"
    return told
