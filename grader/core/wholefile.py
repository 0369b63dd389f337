"""A file that is there whole or not at all, whoever may read or interrupt meanwhile."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, pieces: Iterable[str], *, encoding: str = "utf-8") -> None:
    """Write the pieces of a text; as `write_bytes`."""
    # One encoder for all of them: a byte order mark stands at the beginning alone.
    encoder = codecs.getincrementalencoder(encoding)()
    write_bytes(path, map(encoder.encode, pieces))


def write_bytes(path: Path, pieces: Iterable[bytes], *, mode: int | None = None) -> None:
    """Write the pieces beside `path`, flush them to the disk, then take its place in one step: a link of that name is
    replaced, not followed. `mode` are its permissions, by default those of any new file. Raises OSError."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        if mode is None:
            # mkstemp makes files for their owner alone; a report is as readable as any other file of this person.
            mask = os.umask(0)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(partial, mode)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
