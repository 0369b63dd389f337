"""Watch mode (`--watch`): a file is judged at each save as in a single run, with a history of the verdicts.

Theory of operation. One thread watches the file (`files`), the main thread judges it (`loop`), and a listener prints
each event when it arrives (`loop.Screen`). A save during judging ends the run: the watching thread sends the process a
signal, whose handler raises an exception in the main thread, as Ctrl-C does. Student code runs in sandboxed processes
as usual. Between saves the judge keeps NumPy, inputs, expected values, the reference's program and the reference's
measured memory.
"""
