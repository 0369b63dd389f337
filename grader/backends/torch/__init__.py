"""A shared object in a process with torch: the profiler's table, part 0 and the demo; and the process that forks them.

`loaded`, `delays` and `forkserver` run beside untrusted code and import nothing of the kit.
"""
