"""Studies: measurements for a student's write-up, such as `python gpt149.py threads part3`.

Each command is a module with a function `main(arguments)`, which returns the exit code. COMMANDS work for any lab; a
lab may add commands (`grader.assignment.labs.Lab.studies`). `main` parses the arguments and calls `measure(...)`, which
returns a frozen dataclass. `grader.study.outcome` then prints its table, writes CSV and PNG files, and fills the table
into the student's write-up.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from grader.assignment.labs import Lab
    from grader.judge.bench import Watched

#: {command: (module, description)}.
COMMANDS = {
    "threads": ("grader.study.threads", "speed-up for each number of OpenMP threads, and without OpenMP"),
    "memory": ("grader.study.memory", "memory of a call: profiler, true peak and formula"),
    "race": ("grader.study.race", "search for data races in the OpenMP part"),
    "machine": ("grader.study.machine", "this machine's caches, SIMD, measured peak and bandwidth"),
    "study": ("grader.study.together", "all studies, written into the write-up's tables"),
}


def commands(lab: Lab) -> dict[str, tuple[str, str]]:
    """Return {command: (module, description)} for a lab: the general studies and the lab's studies."""
    return {**COMMANDS, **lab.studies}


def watch_races(*call: Any) -> Watched:
    """Call `grader.study.race.words_of`, which searches for data races, and return its result.

    The module is imported only here, because most submissions use one thread and need no search.
    """
    return cast("Watched", importlib.import_module("grader.study.race").words_of(*call))


def main(lab: Lab, command: str, arguments: list[str]) -> int:
    """Run the study `command` of a lab with the `arguments` after the command's name.

    Returns the exit code. Raises UsageError for wrong arguments.
    """
    module = commands(lab)[command][0]
    return importlib.import_module(module, type(lab).__module__).main(arguments)
