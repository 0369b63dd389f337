"""The trusted side of a GPU: device memory of the judge's, shared with a runner by a file descriptor, and the clock.

The judge talks to the driver itself (libcuda by ctypes): it needs neither torch nor CUDA's runtime for that. Nothing
here is loaded before a part is to be timed on a GPU.
"""
