"""The study: what a write-up asks students to measure, measured by the kit (`python gpt149.py threads part3`).

A command is a module with `main(arguments) -> exit code`, imported when it is called: one of these, which do for any
lab, or one of a lab's own (`grader.assignment.labs.Lab.studies`). It parses `arguments`,
calls its `measure(...)`, which gives a frozen record, and hands the record's table and figure to
`grader.study.outcome`: onto the screen, into DIR as CSV and PNG, and into the write-up's tables.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.assignment.labs import Lab

#: Command: (its module, what it shows).
COMMANDS = {
    "threads": ("grader.study.threads", "speed-up over the number of OpenMP threads, and with OpenMP off"),
    "memory": ("grader.study.memory", "profiler bytes, true peak and formula, side by side"),
    "race": ("grader.study.race", "data races in the OpenMP part"),
    "machine": ("grader.study.machine", "what this machine is: caches, SIMD, measured peak and bandwidth"),
    "study": ("grader.study.together", "all of these, filled into the write-up's tables"),
}


def commands(lab: Lab) -> dict[str, tuple[str, str]]:
    """All studies that a lab has: the general ones and its own."""
    return {**COMMANDS, **lab.studies}


def main(lab: Lab, command: str, arguments: list[str]) -> int:
    """Run one of a lab's `commands` with its own arguments; returns the exit code. Raises UsageError for wrong
    arguments."""
    module = commands(lab)[command][0]
    return importlib.import_module(module, type(lab).__module__).main(arguments)
