"""The evaluator: it calls a submission on all cases, compares the outputs, measures times and reaches verdicts.

Offers `evaluate.evaluate`, which a student's run, a class's run and platforms (Gradescope) call. `timing` judges times.
May import `explain` and all packages before it.
"""
