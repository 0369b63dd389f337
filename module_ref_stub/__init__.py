"""The reference: the course's kernels behind a C ABI, and the four calls of the old `module_ref` in Python.

The library (`library_path()`) holds no torch symbol; kernels.h and dispatch.cpp describe its C ABI. The calls below
take float32 CPU tensors with the arguments of the student's functions in the same order and return O (B, H, N, d).
They allocate O once, with torch.zeros, so that torch.profiler counts the same bytes for them as for a student. Unlike
a student's function they do not promise anything about the contents of the workspace afterwards.

All four raise KitError when the library cannot be built and ValueError when a tensor has the wrong type or size.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

from module_ref_stub.library import library_path

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "library_path",
    "myFlashAttention",
    "myFusedAttention",
    "myNaiveAttention",
    "myUnfusedAttentionBlocked",
]


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path()))


def myNaiveAttention(Q: Tensor, K: Tensor, V: Tensor, QK_t: Tensor, B: int, H: int, N: int, d: int) -> Tensor:
    """Part 1. QK_t is workspace (N, N)."""
    return _attention("gpt149_ref_naive", (Q, K, V), ((QK_t, N * N),), (), (B, H, N, d))


def myUnfusedAttentionBlocked(
    Q: Tensor, K: Tensor, V: Tensor, QK_t: Tensor, B: int, H: int, N: int, d: int
) -> Tensor:
    """Part 2. QK_t is workspace (N, N)."""
    return _attention("gpt149_ref_blocked", (Q, K, V), ((QK_t, N * N),), (), (B, H, N, d))


def myFusedAttention(Q: Tensor, K: Tensor, V: Tensor, temp: Tensor, B: int, H: int, N: int, d: int) -> Tensor:
    """Part 3. temp is workspace (threads, N): its rows say how many OpenMP threads the call uses."""
    threads = temp.numel() // N
    if threads < 1:
        raise ValueError(f"temp needs a row of {N} elements for each thread, but holds {temp.numel()}")
    _library().gpt149_ref_set_threads(threads)
    return _attention("gpt149_ref_fused", (Q, K, V), ((temp, threads * N),), (), (B, H, N, d))


def myFlashAttention(
    Q: Tensor, K: Tensor, V: Tensor, Qi: Tensor, Kj: Tensor, Vj: Tensor, Sij: Tensor, Pij: Tensor, PV: Tensor,
    Oi: Tensor, L: Tensor, Li: Tensor, Lij: Tensor, Lnew: Tensor, Bc: int, Br: int, B: int, H: int, N: int, d: int,
) -> Tensor:  # fmt: skip
    """Part 4. Workspace: Qi, PV, Oi (Br, d); Kj, Vj (Bc, d); Sij, Pij (Br, Bc); L (N); Li, Lij, Lnew (Br)."""
    if Bc < 1 or Br < 1:
        raise ValueError(f"block sizes must be at least 1, not Bc = {Bc}, Br = {Br}")
    counts = (Br * d, Bc * d, Bc * d, Br * Bc, Br * Bc, Br * d, Br * d, N, Br, Br, Br)
    workspace = tuple(zip((Qi, Kj, Vj, Sij, Pij, PV, Oi, L, Li, Lij, Lnew), counts, strict=True))
    return _attention("gpt149_ref_flash", (Q, K, V), workspace, (Bc, Br), (B, H, N, d))


def _attention(
    symbol: str,
    inputs: tuple[Tensor, ...],
    workspace: tuple[tuple[Tensor, int], ...],
    blocks: tuple[int, ...],
    shape: tuple[int, int, int, int],
) -> Tensor:
    """Check what C cannot check, then call. `workspace` pairs each tensor with the elements the kernel will touch."""
    import torch

    B, H, N, d = shape
    for tensor, count in (*((tensor, B * H * N * d) for tensor in inputs), *workspace):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous() or tensor.numel() < count:
            raise ValueError(
                f"{symbol} needs contiguous float32 tensors and here at least {count} elements, "
                f"not {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    out = torch.zeros(shape)
    tensors = (*inputs, *(tensor for tensor, _ in workspace))
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    numbers = [ctypes.c_int(number) for number in (*blocks, *shape)]
    getattr(_library(), symbol)(*pointers, *numbers, ctypes.c_void_p(out.data_ptr()))
    return out
