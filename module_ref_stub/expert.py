"""The expert kernels in Python: how fast attention can be on this processor (expert_kernel.cpp says how).

All functions take contiguous float32 CPU tensors and write their result into a new one. `threads` is the number of
OpenMP threads, None for as many as torch uses; the result is the same to the last bit for any number. They raise
KitError when the library cannot be built and ValueError when a tensor has the wrong type or shape.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import TYPE_CHECKING

from module_ref_stub.library import expert_path

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = ("baseline", "avx2", "avx512")


@functools.cache
def library() -> ctypes.CDLL:
    """The expert library; expert.cpp describes its C ABI."""
    return ctypes.CDLL(str(expert_path()))


def level() -> str:
    """The instruction set level in force, one of LEVELS: at first the best that this machine can run."""
    return LEVELS[library().gpt149_expert_level()]


def set_level(wanted: str) -> str:
    """Make `wanted` the level of the calls to come where this machine can run it; the level in force afterwards."""
    return LEVELS[library().gpt149_expert_set_level(LEVELS.index(wanted))]


def attention(
    Q: Tensor, K: Tensor, V: Tensor, *, scale: float = 1.0, causal: bool = False, threads: int | None = None
) -> Tensor:
    """softmax(scale * Q K^T) V; Q, K, V and the result are (B, H, N, d). Causal: query i sees keys 0..i."""
    B, H, N, d = _shape(Q)
    out = _new(Q, (Q, K, V), (B, H, N, d))
    library().gpt149_expert_forward(
        *_pointers(Q, K, V),
        B,
        H,
        N,
        d,
        ctypes.c_float(scale),
        int(causal),
        _threads(threads),
        *_pointers(out),
    )
    return out


def decode(q: Tensor, K: Tensor, V: Tensor, *, scale: float = 1.0, threads: int | None = None) -> Tensor:
    """softmax(scale * q K^T) V for one query row: q and the result are (B, H, 1, d), K and V (B, H, N, d)."""
    B, H, N, d = _shape(K)
    out = _new(q, (K, V), (B, H, N, d), query=(B, H, 1, d))
    library().gpt149_expert_decode(
        *_pointers(q, K, V), B, H, N, d, ctypes.c_float(scale), _threads(threads), *_pointers(out)
    )
    return out


def plain_attention(Q: Tensor, K: Tensor, V: Tensor, *, threads: int | None = None) -> Tensor:
    """softmax(Q K^T) V by plain_best.cpp: what a student could have written."""
    B, H, N, d = _shape(Q)
    out = _new(Q, (Q, K, V), (B, H, N, d))
    library().gpt149_expert_set_threads(_threads(threads))
    library().gpt149_plain_attention(*_pointers(Q, K, V), B, H, N, d, *_pointers(out))
    return out


def peak_flops(*, threads: int = 1, thousands: int = 100) -> float:
    """Floating-point operations a second when `threads` threads do nothing but multiply-adds at the level in force."""
    operations = ctypes.c_float()
    library().gpt149_expert_set_threads(threads)
    started = time.perf_counter()
    library().gpt149_expert_peak(thousands, ctypes.byref(operations))
    return operations.value / (time.perf_counter() - started)


def _threads(threads: int | None) -> int:
    import torch

    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    return torch.get_num_threads() if threads is None else threads


def _shape(tensor: Tensor) -> tuple[int, ...]:
    if tensor.dim() != 4 or tensor.numel() == 0:
        raise ValueError(f"expected (B, H, N, d), each at least 1, not {tuple(tensor.shape)}")
    return tuple(tensor.shape)


def _new(
    like: Tensor, tensors: tuple[Tensor, ...], shape: tuple[int, ...], query: tuple[int, ...] | None = None
) -> Tensor:
    """The output, after a check of what C cannot check."""
    import torch

    for tensor, wanted in (*((tensor, shape) for tensor in tensors), (like, query or shape)):
        usable = tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.device.type == "cpu"
        if not usable or tuple(tensor.shape) != wanted:
            raise ValueError(
                f"expected a contiguous float32 CPU tensor of shape {wanted}, "
                f"not {tensor.dtype} on {tensor.device} of shape {tuple(tensor.shape)}"
            )
    return torch.empty_like(like)


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
