"""gpt149's evaluator. A student's own run, a class, Gradescope and a cluster use the same judge.

Data flows in one direction: submission -> build -> run -> judge -> score -> report. Importing this package loads
neither NumPy nor torch. Only packages that compute import NumPy, and only runners and the demo import torch.
"""

__version__ = "0.1.0"
