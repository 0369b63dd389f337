"""What a verdict depends on, as digests: when one of them is another than last time, the verdict is out of date."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from grader.build import toolchain

KIT = Path(__file__).resolve().parents[2]
REFERENCE = KIT.parent / "module_ref_stub"
KIT_SUFFIXES = {".py", ".h", ".cpp", ".map"}
#: Rooms that show, store or compare verdicts but cannot change one; all other sources of the kit count.
TELLING_ROOMS = {
    "report", "archive", "doctor", "submission", "__main__.py", "agreement.py", "classroom.py", "executor.py",
    "byhand.py", "fingerprints.py", "gradebook.py", "grading.py", "gradescope.py", "ledger.py", "manual.py",
    "orphans.py", "plainfile.py", "removal.py", "resuming.py", "selftest.py", "similar.py", "slot.py", "solo.py",
    "times.py", "tokens.py", "typedjson.py", "waiting.py",
}  # fmt: skip


@dataclass(frozen=True)
class Fingerprints:
    """Digests of all that decides a submission's verdict: its files, the assignment's, the kit's sources (with
    Python's and torch's versions), and the settings of the run."""

    source: str
    assignment: str
    kit: str
    settings: str

    def changes(self, now: Fingerprints) -> tuple[str, ...]:
        """Why a verdict with these fingerprints is out of date: 'source changed' and so on; empty if it is not."""
        then, new = asdict(self), asdict(now)
        return tuple(f"{what} changed" for what in then if then[what] != new[what])


def of_text(text: str) -> str:
    """Any text: what is wrong with an archive, the settings of a run."""
    return _digest([text.encode(errors="surrogateescape")])


@cache
def of_kit() -> str:
    """The sources that reach verdicts, the reference's and the versions of what they run on."""
    paths = [path for root in (KIT, REFERENCE) for path in root.rglob("*") if path.suffix in KIT_SUFFIXES]
    deciding = [path for path in paths if not (TELLING_ROOMS & set(path.relative_to(KIT.parent).parts[1:]))]
    versions = f"python {platform.python_version()} torch {toolchain.torch_version()}"
    return _digest(
        [
            versions.encode(),
            *(
                item
                for path in sorted(deciding)
                for item in (str(path.relative_to(KIT.parent)).encode(), path.read_bytes())
            ),
        ]
    )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]
