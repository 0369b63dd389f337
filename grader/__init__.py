"""gpt149's evaluator: one judge for the student's run, the class, Gradescope and the cluster.

Data goes one way: submission -> build -> run -> judge -> score -> report. Importing this package imports nothing
heavy; NumPy is imported only by the rooms that compute with it, and `torch` by runners and the demo.
"""

__version__ = "0.1.0"
