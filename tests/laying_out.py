"""Files as tests lay them out, and the set-up of a release's proofs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from grader.staff.release import contents, proofs


def write_files(folder: Path, files: Mapping[str, str], mode: int = 0o644) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(mode)
    return folder


def proof_setup(kit: contents.Kit, folder: Path) -> tuple[proofs.ProofSetup, list[str]]:
    """Return the set-up of a kit's proofs, and the list that their lines are added to."""
    said: list[str] = []
    return proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, folder, said.append), said
