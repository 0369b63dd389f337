"""Watch mode (`--watch`): a file is judged anew at each save, by the same evaluator, with a history of the verdicts.

Theory of operation. One thread watches the file (`files`), the main thread judges it (`loop`), and a listener prints
each event as it arrives (`history.Screen`). A save while the file is being judged ends that run: the watching thread
sends the process a signal. Its handler raises an exception in the main thread, which unwinds the run as Ctrl-C would.
Student code runs where it always does. Kept between saves is only the judge's own: NumPy, inputs, expected values, the
reference's program and its memory.
"""
