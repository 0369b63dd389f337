"""Files and Python programs as tests of releases lay them out and run them, and the set-up of a release's proofs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from grader.staff.release import contents, proofs


def write_files(folder: Path, files: Mapping[str, str], mode: int = 0o644) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(mode)
    return folder


def run_python(
    folder: Path, *command: object, check: bool = False, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run this Python in a folder to its end, with these variables added to the environment."""
    given = {**os.environ, **{name: str(text) for name, text in environment.items()}}
    options = {"env": given, "check": check, "input": "", "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *map(str, command)], cwd=folder, timeout=300, **options)


def proof_setup(kit: contents.Kit, folder: Path) -> tuple[proofs.ProofSetup, list[str]]:
    """Return the set-up of a kit's proofs, and the list that their lines are added to."""
    said: list[str] = []
    return proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, folder, said.append), said
