"""The evaluator: it calls a submission on all cases, compares the outputs, measures times and reaches verdicts.

Offers `evaluate.evaluate`, which students, classes and platforms use alike. `timing` judges times. May import
`explain` and all packages before it.
"""
