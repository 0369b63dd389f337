"""A file that is there whole or not at all, whoever may read or interrupt meanwhile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, pieces: Iterable[str], *, encoding: str = "utf-8") -> None:
    """Write the pieces beside `path`, flush them to the disk, then take its place in one step. Raises OSError."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding=encoding, newline="") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for their owner alone; a report is as readable as any other file of this person.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, 0o666 & ~mask)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
