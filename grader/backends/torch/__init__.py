"""A shared object in a process with torch: the profiler's table, part 0 and the demo; and the process to fork from.

`loaded`, `delays` and `forkserver` stand beside a stranger's code and import nothing of the kit.
"""
