"""What every room needs and no assignment: errors, result records, files written whole, facts of this machine.

Gives the words of verdicts (`results`), errors by exit code (`errors`), text of strangers made harmless, sizes and
whole numbers (`quantities`), readers of /proc and of plain files within limits, arrays, seeds and the
cache of objects. Imports no other room.
"""
