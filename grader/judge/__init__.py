"""From the bytes of a reply to a verdict: cases, comparison and time.

Gives `evaluate.evaluate`, the one evaluator of students, classes and platforms. `timing` decides on time, `diagnosis`
finds the mistake that explains a wrong result. May import all rooms before it, and `score`.
"""
