"""Reader of a text file that a user named: within a limit of size, with one-line errors."""

from __future__ import annotations

from pathlib import Path

from grader.core.errors import UsageError
from grader.core.quantities import size_text


def read(path: Path, most_bytes: int, *, no: str, advice: str) -> str:
    """Read a UTF-8 text file. A byte order mark stays in the text.

    Raises UsageError if the path is not a file, the file is larger than `most_bytes`, or it is not UTF-8. `no` names
    the expected kind of file, for the message "this is not a NO". The message about the encoding ends with `advice`.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot read {path}: not a file")
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most_bytes:
        raise UsageError(f"{path}: larger than {size_text(most_bytes)}: this is not a {no}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text; {advice}") from error
