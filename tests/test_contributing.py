"""Recipes of CONTRIBUTING.md: a recipe's commands succeed after all its changes, and fail without the first change."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, some

#: Text of each recipe, by the second word of its heading: changed lines of files, and lines "$ ..." with commands.
RECIPES = {
    section.split()[1].strip(":"): section.partition("```diff\n")[2].partition("```")[0]
    for section in (ROOT / "CONTRIBUTING.md").read_text().split("\n## ")
    if "```diff" in section
}
SHELL = """set -e
python() { "$PYTHON" "$@"; }
pytest() { python -m pytest -q -n 0 -p no:cacheprovider "$@"; }
"""


def change(kit: Path, path: str, lines: str) -> None:
    """Apply a diff to the file `path`: add lines with "+" after the lines without. If all have a "+", make the file."""
    old, new = ("".join(re.findall(rf"^[{signs}](.*\n)", lines, re.M)) for signs in (" ", " +"))
    text = (kit / path).read_text() if old else ""
    assert not old or text.count(old) == 1, f"{path} does not have this line once: {old}"
    (kit / path).write_text(text.replace(old, new) if old else new)


@pytest.mark.parametrize("name", some(sorted(RECIPES, key="sandbox".__ne__), len(RECIPES)))
def test_a_recipe_works_and_its_commands_notice_a_missing_part(name: str, tmp_path: Path) -> None:
    omitted = shutil.ignore_patterns(".*", "__pycache__", "build", "benchmarks")
    kit = shutil.copytree(ROOT, tmp_path / "kit", ignore=omitted)
    commands = SHELL + "".join(re.findall(r"^\$ (.*\n)", RECIPES[name], re.M)).replace("/tmp", str(tmp_path))
    unset = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    env = {key: value for key, value in os.environ.items() if key not in unset} | {"PYTHON": sys.executable}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", commands], cwd=kit, env=env, capture_output=True, text=True)

    first, *others = re.findall(r"^# (\S+)\n((?:[ +].*\n)+)", RECIPES[name], re.M)
    for part in others:
        change(kit, *part)
    assert run().returncode != 0
    change(kit, *first)
    ended = run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
