"""A file judged anew at each save (`--watch`): one warm process, the same evaluator, and a line of history for each.

Theory of operation. One thread looks at the file (`files`), the main thread judges it (`loop`), and a listener prints
each finding as it is made (`history.Screen`). A save while the file is being judged ends that run: the looking thread
sends the process a signal, whose handler raises in the main thread what unwinds the run as Ctrl-C would. Student code
runs where it always does. What stays warm between saves is the judge's own: NumPy, inputs, expected values, the
reference's program and its memory.
"""
