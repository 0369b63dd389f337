"""From the bytes of a reply to a verdict: cases, comparison and time.

Gives `evaluate.evaluate`, the one evaluator of students, classes and platforms. `timing` decides on time. May import
`explain` and all rooms before it.
"""
