"""A class on disk and its submissions as they are found, shared by several tests."""

import io
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from grader.submission import Submission, find

SOURCE = b"int main() { return 0; }\n"


def put(root: Path, files: Mapping[str, str | bytes], mode: int = 0o644) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        (root / name).chmod(mode)
    return root


def zipped(files: dict[str, bytes], method: int = ZIP_DEFLATED, target: io.BytesIO | None = None) -> bytes:
    """Return a zip of these files, always the same one."""
    target = target or io.BytesIO()
    with ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(ZipInfo(name), content, method)
    return target.getvalue()


def found(path: Path, scratch: Path) -> dict[str, Submission]:
    submissions = find(path, "module.cpp", scratch)
    for submission in submissions:
        assert (submission.source is None) == (submission.error is not None) == (submission.path is None)
        assert "\n" not in (submission.error or "")
    return {submission.id: submission for submission in submissions}


def sources(path: Path, scratch: Path) -> dict[str, bytes | str]:
    return {
        name: submission.source.read_bytes() if submission.source else str(submission.error)
        for name, submission in found(path, scratch).items()
    }
