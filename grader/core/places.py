"""Paths of this copy of the kit that commands use by default, and the names of the commands."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_CONFIG = ROOT / "configs" / "gpt149.yaml"
#: HIDDEN_CONFIG and WRITEUP_KEY are for the staff only: a handout lacks both files.
HIDDEN_CONFIG = ROOT / "configs" / "hidden" / "gpt149.yaml"
WRITEUP_KEY = ROOT / "configs" / "hidden" / "writeup_key.yaml"
WRITEUP_TEMPLATE = ROOT / "writeup_template.md"
MASTER = ROOT / "module.cpp"
"""The source with starter and solution in one file; in a handout, the starter."""
INSTALLED = ROOT.name == "gpt149_kit"
"""True for a kit that was installed as a package by `setup.py`. Nothing is written into its folder."""
HANDOUT_COMMAND = "python gpt149.py"
"""Command in messages for students, who have a handout even if their course grades with an installed kit."""
STUDENT_COMMAND = "gpt149" if INSTALLED else HANDOUT_COMMAND
"""Command in messages for the person who runs this copy of the kit."""
STUDENT_PROGRAM = STUDENT_COMMAND.removeprefix("python ")
GRADER_COMMAND = "gpt149-grader" if INSTALLED else "python -m grader"
SHARED_TRIALS = "GPT149_TRIALS"
"""Environment variable with the folder in which the workers of a class share trial times of a GPU reference."""
