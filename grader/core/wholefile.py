"""Writer of files that never appear half-written, neither to concurrent readers nor after an interruption."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, pieces: Iterable[str], *, encoding: str = "utf-8") -> None:
    """Encode the pieces of a text and write them with `write_bytes`. Raises OSError if that fails."""
    # One encoder for all pieces: only the beginning of the file gets a byte order mark.
    encoder = codecs.getincrementalencoder(encoding)()
    write_bytes(path, map(encoder.encode, pieces))


def write_bytes(path: Path, pieces: Iterable[bytes], *, mode: int | None = None) -> None:
    """Write the pieces to a file beside `path`, flush it to the disk, and rename it to `path`.

    A link at `path` is replaced, not followed. `mode` gives the permissions, by default those of any new file. Raises
    OSError.
    """
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        if mode is None:
            # mkstemp makes files for their owner alone; a report should have the usual permissions.
            mask = os.umask(0)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(partial, mode)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
