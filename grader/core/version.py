"""Version and commit of this copy of the kit, which every result names."""

from __future__ import annotations

import functools
import shutil

import grader
from grader.core import machine
from grader.core.places import ROOT

NOTE = "COMMIT"
"""File with the commit, beside `gpt149.py` in a wheel, a handout and an autograder."""
GIT_TIMEOUT_S = 10.0


@functools.cache
def commit() -> str:
    """Return the commit, with "+changes" for a changed checkout; "" if the commit is unknown.

    The file NOTE is read first: a handout may lie in a student's own git repository, whose commit would be wrong.
    """
    try:
        return (ROOT / NOTE).read_text(encoding="utf-8").strip()
    except OSError:
        pass
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return ""
    describe = ("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes")
    return machine.answer([git, "-C", str(ROOT), *describe], GIT_TIMEOUT_S, GIT_OPTIONAL_LOCKS="0").strip()


def describe() -> dict[str, object]:
    """Return version and commit, for a result's field `kit`."""
    return {"version": grader.__version__, "commit": commit()}


def line() -> str:
    """Return the line that `--version` prints."""
    return f"gpt149 {grader.__version__}" + (f" (commit {commit()})" if commit() else "")
