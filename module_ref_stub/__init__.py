"""The reference: the course's kernels with a C ABI, for float32 tensors, without torch.

kernels.h and dispatch.cpp describe the C ABI of the library (`library_path()`). The module `library` builds it from the
sources in this folder. A handout has a compiled object and no sources.
"""

from module_ref_stub.library import library_path

__all__ = ["library_path"]
