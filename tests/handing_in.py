"""What the tests of submissions share: a class on disk, and what became of it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from grader.submission import Submission, find

SOURCE = b"int main() { return 0; }\n"


def put(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def found(path: Path, scratch: Path) -> dict[str, Submission]:
    submissions = find(path, "module.cpp", scratch)
    for submission in submissions:
        assert (submission.source is None) == (submission.error is not None) == (submission.path is None)
        assert "\n" not in (submission.error or "")
    return {submission.id: submission for submission in submissions}


def sources(path: Path, scratch: Path) -> dict[str, bytes | str]:
    """What each id ended with: its source or its error."""
    return {
        name: submission.source.read_bytes() if submission.source else str(submission.error)
        for name, submission in found(path, scratch).items()
    }
