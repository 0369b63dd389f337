"""Fingerprints of an earlier year, kept in its folder so that each of its texts becomes tokens only once."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.core import wholefile
from grader.staff.similarity.passages import Prints
from grader.staff.similarity.tokens import Source

NAME = "similar_index.json"


def of(
    folder: Path, sources: Mapping[str, Source], key: str, make: Callable[[Source], Prints]
) -> dict[str, Prints]:
    """Return the fingerprints of each source by id, from the folder's index where it has the text. `key` stands for all
    else that they depend on. A folder that cannot be written is indexed anew each time."""
    path, stored = folder / NAME, dict[str, Prints]()
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        for digest, (whole, named, functions, own) in json.loads(path.read_bytes()).items():
            each = tuple((str(name), frozenset(map(int, values))) for name, values in functions)
            stored[digest] = Prints(frozenset(map(int, whole)), frozenset(map(int, named)), each, int(own))
    digests = {
        name: hashlib.sha256(f"{key} {one.python} {one.text}".encode(errors="surrogatepass")).hexdigest()
        for name, one in sources.items()
    }
    made = {digest: stored.get(digest) or make(sources[name]) for name, digest in digests.items()}
    if made.keys() - stored.keys():
        kept = {
            digest: (
                sorted(one.whole),
                sorted(one.named),
                [(n, sorted(own)) for n, own in one.functions],
                one.own,
            )
            for digest, one in made.items()
        }
        with contextlib.suppress(OSError):
            wholefile.write(path, [json.dumps(kept)])
    return {name: made[digest] for name, digest in digests.items()}
