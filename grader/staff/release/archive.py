"""An archive whose bytes depend on its files alone: not on time, umask, locale or the order of a folder's listing."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grader.core.errors import KitError

#: The earliest moment that a zip can name.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_REGULAR_FILE = 0o100000


@dataclass(frozen=True)
class File:
    """One file of an archive. `origin` says where it came from, for messages."""

    content: bytes
    executable: bool = False
    origin: str = ""


#: Files by their path in the archive, with forward slashes.
Files = Mapping[str, File]


def packed(files: Files) -> bytes:
    """The files as a zip, sorted by path. Raises KitError for a path that leads out of the archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files):
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise KitError(f"a release holds no file outside of itself: {path}")
            entry = zipfile.ZipInfo(path, _MOMENT)
            entry.create_system = _UNIX
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (_REGULAR_FILE | _mode(files[path])) << 16
            archive.writestr(entry, files[path].content)
    return buffer.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Write what a zip of `packed` holds into an empty folder, with its modes, as unzip would."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            path = folder / entry.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(entry))
            path.chmod(entry.external_attr >> 16 & 0o777)


def _mode(file: File) -> int:
    return 0o755 if file.executable else 0o644
