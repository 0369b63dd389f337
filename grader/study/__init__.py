"""Studies: the measurements that a write-up asks for, made by the kit (`python gpt149.py threads part3`).

A command is a module with `main(arguments) -> exit code`, imported when it is called. It is one of COMMANDS, which work
for any lab, or one of a lab's own (`grader.assignment.labs.Lab.studies`). It parses `arguments` and calls its
`measure(...)`, which returns a frozen record. It passes the record's table and figure to `grader.study.outcome`. That
module shows them on the screen, writes CSV and PNG to DIR, and fills the write-up's tables.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from grader.assignment.labs import Lab
    from grader.judge.bench import Watched

#: Module and description of each command.
COMMANDS = {
    "threads": ("grader.study.threads", "speed-up over the number of OpenMP threads, and with OpenMP off"),
    "memory": ("grader.study.memory", "profiler bytes, true peak and formula, side by side"),
    "race": ("grader.study.race", "data races in the OpenMP part"),
    "machine": ("grader.study.machine", "what this machine is: caches, SIMD, measured peak and bandwidth"),
    "study": ("grader.study.together", "all of these, filled into the write-up's tables"),
}


def commands(lab: Lab) -> dict[str, tuple[str, str]]:
    """Return all studies of a lab: the general ones and its own."""
    return {**COMMANDS, **lab.studies}


def watch_races(*call: Any) -> Watched:
    """`race.words_of`, imported once a part needs it: most files have no threads."""
    return cast("Watched", importlib.import_module("grader.study.race").words_of(*call))


def main(lab: Lab, command: str, arguments: list[str]) -> int:
    """Run one of a lab's `commands` with its own arguments.

    Return the exit code. Raises UsageError for wrong arguments.
    """
    module = commands(lab)[command][0]
    return importlib.import_module(module, type(lab).__module__).main(arguments)
