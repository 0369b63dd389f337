"""The backend for processes with torch, which load a student's C++ as a shared object, and the zygote that forks them.

The profiler's table, part 0 and the demo need such processes. `loaded`, `delays` and `forkserver` run beside untrusted
code and import nothing of the kit.
"""
