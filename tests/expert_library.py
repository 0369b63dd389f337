"""The expert library's C ABI (module_ref_stub/expert.cpp), called in this process on torch's tensors."""

import ctypes
import functools

import torch
from torch import Tensor

from module_ref_stub.library import expert_path

LEVELS = ("baseline", "avx2", "avx512")


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(expert_path()))


def level() -> str:
    return LEVELS[library().gpt149_expert_level()]


def set_level(wanted: str) -> str:
    """Return the level in force afterwards."""
    return LEVELS[library().gpt149_expert_set_level(LEVELS.index(wanted))]


def attention(Q: Tensor, K: Tensor, V: Tensor, *, threads: int = 1, kernel: str = "expert") -> Tensor:
    """Return softmax(Q K^T) V of contiguous float32 tensors (B, H, N, d)."""
    out = torch.empty_like(Q)
    library().gpt149_expert_set_threads(threads)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (Q, K, V, out)]
    getattr(library(), f"gpt149_{kernel}_attention")(*pointers[:3], *Q.shape, pointers[3])
    return out


plain_attention = functools.partial(attention, kernel="plain")
