"""Two kernels of no lab, for the tests of a GPU's clock and lock; right on a card and in Triton's interpreter."""

import torch  # noqa: F401  # for what is put behind this file (attacks.py)
import triton
import triton.language as tl


@triton.jit
def _scale(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, (x.to(tl.float32) * factor + 1.0).to(x.dtype), mask=at < n)


def scale(x, y, factor):
    """y = factor x + 1."""
    n = x.numel()
    _scale[(triton.cdiv(n, 1024),)](x, y, n, factor, BLOCK=1024)


@triton.jit
def _product(a_ptr, b_ptr, c_ptr, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, STEP)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        a = tl.load(
            a_ptr + i[:, None] * K + (start + k)[None, :],
            mask=(i < M)[:, None] & (start + k < K)[None, :],
            other=0.0,
        )
        b = tl.load(
            b_ptr + (start + k)[:, None] * N + j[None, :],
            mask=(start + k < K)[:, None] & (j < N)[None, :],
            other=0.0,
        )
        total += tl.dot(a, b)
    tl.store(
        c_ptr + i[:, None] * N + j[None, :],
        total.to(c_ptr.dtype.element_ty),
        mask=(i < M)[:, None] & (j < N)[None, :],
    )


def product(a, b, c):
    """c = a b; (M, K), (K, N), (M, N), contiguous."""
    (M, K), N = a.shape, b.shape[1]
    side = 128 if min(M, N) >= 128 else 16
    grid = (triton.cdiv(M, side), triton.cdiv(N, side))
    _product[grid](a, b, c, M, N, K, ROWS=side, COLUMNS=side, STEP=32, num_warps=8 if side == 128 else 4)
