"""The judge's own use of the GPU: device memory that it shares with a runner by a file descriptor, and timing.

The judge calls CUDA's driver directly (libcuda by ctypes), so that it needs neither torch nor CUDA's runtime. These
modules are loaded only when a part is timed on a GPU.
"""
