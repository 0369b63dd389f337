"""Build of the wheel, which installs the folder `gpt149_kit` and a .pth file that adds this folder to `sys.path`.

The folder is arranged like a checkout, because the kit finds its labs, configurations and sources by their paths in a
checkout. Without the folder, names such as `labs` and `configs` would lie beside other packages in site-packages.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

FOLDERS = ("configs", "grader", "labs", "module_ref_stub", "textgen")
PAGES = ("docs/demo.md", "docs/handout.md", "docs/judging.md")
FILES = ("gpt149.py", "module.cpp", "writeup_template.md", "LICENSE", *PAGES)
PLACE = "gpt149_kit"


def note_commit(folder: Path) -> None:
    """Write the kit's commit into a file in `folder`, a copy of the kit without a git repository."""
    sys.path.insert(0, str(Path(__file__).parent))
    from grader.core import version

    (folder / version.NOTE).write_text(f"{version.commit()}\n", encoding="utf-8")


class BuildKit(build_py):
    """Build command that copies whole folders, so that a new file of a lab needs no entry in a list."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        place = Path(self.build_lib, PLACE)
        shutil.rmtree(place, ignore_errors=True)
        for name in FOLDERS:
            shutil.copytree(name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        for name in FILES:
            (place / name).parent.mkdir(exist_ok=True)
            shutil.copy2(name, place / name)
        note_commit(place)
        Path(self.build_lib, "gpt149.pth").write_text(f"{PLACE}\n", encoding="utf-8")


class Sources(sdist):
    """Command that makes the source archive, with a file that holds the commit.

    A wheel may be built from this archive, where no git repository gives the commit.
    """

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        note_commit(Path(base_dir))


setup(cmdclass={"build_py": BuildKit, "sdist": Sources})
