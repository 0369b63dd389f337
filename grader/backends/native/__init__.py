"""The native backend: it links a student's C++ with the kit's stand-in for torch's tensors into a program, and runs it.

The files in `inside/` and `shim/` are compiled with the student's file.
"""
