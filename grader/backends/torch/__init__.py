"""Runners with torch: processes that load a student's C++ as a shared object, forked by a process that has torch.

The profiler's table, part 0 and the demo need such runners. `loaded`, `delays` and `forkserver` run beside untrusted
code and import nothing of the kit.
"""
