"""Texts for the placeholders in a release's templates: names of files to hand in, packages to install, advice."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePosixPath

from grader.assignment.records import Assignment
from grader.backends.gpu import devicebuild
from grader.backends.kinds import all_on_card, languages

CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
TORCH = "torch==2.13.0"
#: Line of a requirements.txt for judging GPU kernels. pip installs the package only on Linux.
DEVICE_PACKAGE = f'{devicebuild.TRITON_PACKAGE}; sys_platform == "linux"\n'

# ---- assignments in C++

_NEEDS = """\
You need Python 3.10 or newer with its venv, and a C++ compiler with OpenMP: g++ on Linux (`apt install g++
python3-venv`), on macOS Xcode's tools and `brew install libomp`."""
_COMPARED = """\
Your times are compared with a compiled reference, which is included for these platforms: {platforms}. On another
platform, ask the staff, or work on a machine of the course."""
_CHECKED = """, `--sanitize` (prints
the line that reads or writes out of bounds)"""
_MAKE_TORCH = """\
# The version of torch to install: a CPU build with C++ headers is enough. `make run TORCH=torch==2.8.0` installs
# another one. `make run TORCH=` installs no torch: results and times are judged, but you get no profiler table."""
_SETUP_TORCH = """\
#   TORCH        the version of torch to install (a CPU build is enough); empty: no torch. Grading needs torch for its
#                profiler table (profiler_table in the assignment), and for files that use more of torch than tensors.
#                Without torch, set torch_runner to "never" in the assignment
#   TORCH_INDEX  the package index to install torch from; empty: pip's default"""
_IMAGE_TORCH = """\
# `--build-arg TORCH=` installs no torch. Grading needs torch only for its profiler table, and for files that use more
# of torch than tensors. Without torch, set `torch_runner: never` in the assignment."""

# ---- write-ups

_MAKE_WRITEUP = (
    "    make writeup    # the first time: makes writeup.md; then lists the questions that are still open\n"
)
_ASKED = """\
 that measure what the write-up asks for. With `--writeup writeup.md` a study fills its table in"""
_WRITEUP_RULE = """\
.PHONY: writeup
writeup: setup
	@test -f writeup.md || cp writeup_template.md writeup.md
	@$(BIN)/python -m grader writeup writeup.md || test $$? -eq 1

"""

_EDITOR_TASK = """,
    {
      "label": "configure clangd for {source}",
      "type": "process",
      "command": "${workspaceFolder}/.venv/bin/python",
      "args": ["${workspaceFolder}/gpt149.py", "doctor", "--editor"],
      "options": { "cwd": "${workspaceFolder}" },
      "problemMatcher": []
    }"""

# ---- assignments with kernels for a GPU

_DEVICE_NEEDS = """\
You need Linux, and Python 3.10 or newer with its venv (`apt install python3-venv gcc`). A GPU is not needed: without
one, Triton's interpreter runs your kernels, and only results are judged."""
_CUDA_NEEDS = " CUDA files need nvcc to be compiled, and a GPU to be judged."
_NOT_COMPARED = """\
The handout has no reference to compare your times with, because a reference would show a solution. So only your results
are judged here, even on a GPU. The course measures times on its own machine."""
_DEVICE_MAKE_TORCH = f"""\
# Kernels are called with torch's tensors. Without a GPU a CPU build is enough:
# `PIP_EXTRA_INDEX_URL={CPU_BUILDS} make run`"""
_DEVICE_SETUP_TORCH = f"""\
#   TORCH        the version of torch to install: kernels are called with its tensors
#   TORCH_INDEX  the package index to install torch from; empty: pip's default, which has builds for GPUs.
#                In a container without a GPU a CPU build is enough ({CPU_BUILDS}): results are
#                judged there, and times stay open. CUDA files also need nvcc on the PATH"""
_DEVICE_IMAGE_TORCH = """\
# Kernels are called with torch's tensors. CUDA files need another base image, one with nvcc. Times need a machine with
# a GPU. Without these, some points stay open, and PrairieLearn shows the submission as not gradable."""


def named(assignment: Assignment, before: str = "", after: str = "") -> str:
    """Return the files to hand in as text, such as "a.py, b.cu and c.cu", each name between `before` and `after`."""
    *others, last = (f"{before}{name}{after}" for name in assignment.sources)
    return f"{', '.join(others)} and {last}" if others else last


def handout(assignment: Assignment, compiled: Iterable[str], has_writeup: bool) -> dict[str, str]:
    """Return {placeholder: text} for the handout's templates.

    `compiled` are the paths of compiled objects and programs in the handout. `has_writeup`: the handout contains a
    write-up's template.
    """
    titles: dict[str, list[str]] = {}
    for part in assignment.parts:
        titles.setdefault(part.command, []).append(part.title)
    width = max(map(len, titles)) + 2
    listed = [f"    python gpt149.py {name:{width}}{', '.join(parts)}" for name, parts in titles.items()]
    names = [PurePosixPath(path).name for path in compiled if path.endswith(".o")]
    platforms = sorted({name.removesuffix(".o").partition("-")[2].replace("-", " on ", 1) for name in names})
    on_device = all_on_card(assignment.parts)
    has_cuda = "cuda" in languages(assignment.parts)
    return {
        "title": assignment.title,
        "sources": named(assignment, "`", "`"),
        "source": named(assignment),
        "commands": "\n".join(listed),
        "choices": json.dumps([*titles, "all"]),
        "needs": _DEVICE_NEEDS + _CUDA_NEEDS * has_cuda if on_device else _NEEDS,
        "editor": "" if on_device else _EDITOR_TASK.replace("{source}", assignment.source),
        "checked": "" if on_device else _CHECKED,
        "compared": _NOT_COMPARED if on_device else _COMPARED.format(platforms=", ".join(platforms)),
        "make_writeup": _MAKE_WRITEUP * has_writeup,
        "asked": _ASKED * has_writeup,
        "writeup_rule": _WRITEUP_RULE * has_writeup,
        "packages": DEVICE_PACKAGE if on_device else "",
        "torch": _DEVICE_MAKE_TORCH if on_device else _MAKE_TORCH,
        # Without a GPU, gpt149.py ends with exit code 3, because it cannot judge a part. `make run` accepts this code.
        "accepted": "case $$? in 1|3) ;; *) exit 1 ;; esac" if on_device else "test $$? -eq 1",
    }


def autograder(assignment: Assignment, private: Sequence[str]) -> dict[str, str]:
    """Return {placeholder: text} for the autograder's templates. Only the grading user may enter `private` folders."""
    on_device = all_on_card(assignment.parts)
    return {
        "source": " ".join(map(shlex.quote, assignment.sources)),
        "private": " ".join(private),
        "torch": _DEVICE_SETUP_TORCH if on_device else _SETUP_TORCH,
        "index": "" if on_device else CPU_BUILDS,
        "packages": DEVICE_PACKAGE if on_device else "",
    }


def workflow(assignment: Assignment) -> dict[str, str]:
    usual = "numpy pyyaml"
    device = f'{usual} {TORCH} "{devicebuild.TRITON_PACKAGE}" --extra-index-url {CPU_BUILDS}'
    return {"source": named(assignment), "packages": device if all_on_card(assignment.parts) else usual}


def packages(assignment: Assignment) -> str:
    """Return the text of a requirements.txt with the packages for judging and for the HTML page with the verdict."""
    usual = "numpy>=2\npyyaml\njinja2\n"
    device = f"--extra-index-url {CPU_BUILDS}\n{usual}{TORCH}\n{devicebuild.TRITON_PACKAGE}\n"
    return device if all_on_card(assignment.parts) else usual


def runtime(assignment: Assignment) -> dict[str, object]:
    """Return the settings of Classroom 50's `runtime`: the GitHub machine, Python, and packages to install."""
    return {
        "runs-on": "ubuntu-24.04",
        "python": "3.12",
        "apt": ["gcc" if all_on_card(assignment.parts) else "g++"],
    }


def question(assignment: Assignment, image: str) -> dict[str, str]:
    """Return {placeholder: text} for the templates of PrairieLearn's question. `image` is the name of its image.

    PrairieLearn requires only the first file to hand in. If another file is missing, its parts count as not handed in.
    """
    first, *further = map(escape, assignment.sources)
    return {
        "title": escape(assignment.title),
        "sources": named(assignment, "<code>", "</code>"),
        "files": f'file-names="{first}"' + (f' optional-file-names="{",".join(further)}"' if further else ""),
        "image": image,
        "torch": _DEVICE_IMAGE_TORCH if all_on_card(assignment.parts) else _IMAGE_TORCH,
    }
