"""gpt149's evaluator. A student's own run, a class, Gradescope and a cluster use the same judge.

Data goes one way: submission -> build -> run -> judge -> score -> report. Importing this package imports nothing
heavy; NumPy is imported only by the packages that compute with it, and `torch` by runners and the demo.
"""

__version__ = "0.1.0"
