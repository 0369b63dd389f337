"""Threats: attempts of student code to cheat or to escape its sandbox, each with the verdict that it must get.

`THREATS` has a row for each attempt. `CONTROLS` has right and wrong kernels that must never be flagged. `submissions`
turns rows into source files; similar rows share a file, because a compile takes seconds. `judge` judges a file, and
`faults` lists differences from the required verdict and flags. The tests and the kit's selftest use these.

Kinds of attempts by letter. A: results not computed as required. B: wrong times. C: forged replies, and reading of the
judge's files. D: harm to others. E: files that are hard to read. F: work taken from a library or from another part.
"""

from .rows import CONTROLS, THREATS
from .sources import End, Submission, Threat, faults, flag_codes, judge, places, submissions

__all__ = [
    "CONTROLS",
    "THREATS",
    "End",
    "Submission",
    "Threat",
    "faults",
    "flag_codes",
    "judge",
    "places",
    "submissions",
]
