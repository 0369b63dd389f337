"""The study: what a write-up asks students to measure, measured by the kit (`python gpt149.py sweep part2`).

A command is a module here with `main(arguments) -> exit code`, imported when it is called. It parses `arguments`,
calls its `measure(...)`, which gives a frozen record, and hands the record's table and figure to
`grader.study.outcome`: onto the screen, into DIR as CSV and PNG, and into the write-up's tables.
"""

from __future__ import annotations

import importlib

#: Command: (its module in this package, what it shows).
COMMANDS = {
    "sweep": ("sweep", "time over the tile of part 2, the tiles of part 4, or N"),
    "threads": ("threads", "speed-up over the number of OpenMP threads, and with OpenMP off"),
    "cache": ("cache", "cache-line traffic of the parts' loops, simulated"),
    "roofline": ("roofline", "the parts and PyTorch on this machine's measured roofline"),
    "memory": ("memory", "profiler bytes, true peak and formula, side by side"),
    "race": ("race", "data races in the OpenMP part"),
    "machine": ("machine", "what this machine is: caches, SIMD, measured peak and bandwidth"),
    "study": ("together", "all of these, filled into the write-up's tables"),
}


def main(command: str, arguments: list[str]) -> int:
    """Run one of COMMANDS with its own arguments; returns the exit code. Raises UsageError for wrong arguments."""
    return importlib.import_module(f"{__name__}.{COMMANDS[command][0]}").main(arguments)
