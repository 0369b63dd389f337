"""Runners with torch: processes that load a student's C++ as a shared object, forked by a process that has torch.

The profiler's table, part 0 and the demo need such runners. `forkserver` runs beside untrusted code and imports nothing
of the kit.
"""
