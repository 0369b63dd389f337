"""Files and folders of this copy of the kit: the defaults of the commands."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_CONFIG = ROOT / "configs" / "gpt149.yaml"
#: For the staff only; a handout has neither file.
HIDDEN_CONFIG = ROOT / "configs" / "hidden" / "gpt149.yaml"
WRITEUP_KEY = ROOT / "configs" / "hidden" / "writeup_key.yaml"
WRITEUP_TEMPLATE = ROOT / "writeup_template.md"
MASTER = ROOT / "module.cpp"
"""The master source; in a handout, the starter."""
INSTALLED = ROOT.name == "gpt149_kit"
"""True for a kit that `setup.py` put among installed packages: nothing is written into its folder."""
HANDOUT_COMMAND = "python gpt149.py"
"""Command of a handout, which the students of a class have, also if their course grades with an installed kit."""
STUDENT_COMMAND = "gpt149" if INSTALLED else HANDOUT_COMMAND
"""Command of this copy of the kit, for the person who runs it."""
STUDENT_PROGRAM = STUDENT_COMMAND.removeprefix("python ")
GRADER_COMMAND = "gpt149-grader" if INSTALLED else "python -m grader"
