"""Attempts of student code to cheat or escape: one small submission for each, with its required end.

`THREATS` are the rows, `CONTROLS` a right and a wrong kernel that must never be flagged. `submissions` turns rows into
source files; up to four share one, since a compile costs seconds. `judging.judge` judges a file, and `ends.faults`
lists deviations from the required end. The tests and the kit's selftest use the same four.
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
