"""The reference: the course's kernels behind a C ABI, for float32 tensors, without torch.

The library (`library_path()`) holds no torch symbol; kernels.h and dispatch.cpp describe its C ABI. It is built from
the sources in this folder (`library`); a handout holds it compiled.
"""

from module_ref_stub.library import library_path

__all__ = ["library_path"]
