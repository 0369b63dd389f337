"""Tools for every room, independent of any assignment: errors, result records, atomic files, machine facts.

Gives the words of verdicts (`results`), errors by exit code (`errors`), text of strangers made harmless, sizes and
whole numbers (`quantities`), readers of /proc and of plain files within limits, arrays, seeds and the
cache of objects. Imports no other room.
"""
