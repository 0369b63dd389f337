"""A static program of the student's C++, the kit's stand-in for torch's tensors, and the process that runs it.

`inside/` and `shim/` are compiled with the student's file.
"""
