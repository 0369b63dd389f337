"""Tools for every room, independent of any assignment: errors, result records, atomic files, machine facts.

Gives the words of verdicts (`results`), errors by exit code (`errors`) and the cleaning of untrusted text. Also sizes
and whole numbers (`quantities`), bounded readers of /proc and of plain files, arrays, seeds and the object cache.
Imports no other room.
"""
