"""The trusted side of a GPU: the judge's device memory, shared with a runner by a file descriptor, and the clock.

The judge calls the driver itself (libcuda by ctypes): it needs neither torch nor CUDA's runtime for that. Nothing
here is loaded before a part is to be timed on a GPU.
"""
