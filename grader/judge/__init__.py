"""From the bytes of a reply to a verdict: cases, comparison, time, and the signs of a cheat.

Gives `evaluate.evaluate`, the one evaluator of students, classes and platforms. `timing` decides on time, `diagnosis`
finds the mistake that explains a wrong result, `integrity` reads what an object and a process give away. May import
all rooms before it, and `score`.
"""
