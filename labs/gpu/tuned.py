"""Attention tuned for a Hopper GPU: the kernel `tuned` of the ladder study. Students do not get this file.

Two things differ from the master, kernels.py. The GPU's copy engine (tensor memory accelerator) loads tiles, so that
addresses need no registers. And the backward pass computes each score once, not twice: each program adds its share
of dQ to one float32 workspace. With LATE, it adds the share one step later, so that it does not wait for the product.
`takes` returns True for the supported tensors: types of two bytes, d of 32, 64 or 128, contiguous, at least 16 rows.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# The formatter is off, so that long lists of arguments stay on few lines.
# fmt: off
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _softmax_tile(s, acc, total, m, rows, keys, M, scale, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Do one step of the online softmax for a tile of scores s, with the maximum m and the sum of weights total so far.

    Return the tile's weights, acc rescaled to the new maximum, and the new total and m."""
    if MASKED:
        seen = (keys < M)[None, :]
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        s = tl.where(seen, s, float("-inf"))
    now = tl.maximum(m, tl.max(s, 1) * scale)
    p = tl.exp2(s * scale - now[:, None])
    rescale = tl.exp2(m - now)
    return p, acc * rescale[:, None], total * rescale + tl.sum(p, 1), now


@triton.jit
def _forward_tiles(
    acc, total, m, q, k_tensor, v_tensor, begin, rows, first, last, M, scale,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):
    """Add the keys from `first` to before `last` to acc, total and m. Key 0 of this head is row `begin` of k and v."""
    for start in range(first, last, KEYS):
        s = tl.dot(q, k_tensor.load([begin + start, 0]).T)
        keys = start + tl.arange(0, KEYS)
        p, acc, total, m = _softmax_tile(s, acc, total, m, rows, keys, M, scale, CAUSAL, MASKED)
        v = v_tensor.load([begin + start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
    return acc, total, m


@triton.jit
def _forward(
    q_tensor, k_tensor, v_tensor, o_ptr, lse_ptr, N, M, scale,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
):
    """Compute O and L for ROWS queries of one head. `scale` is log2(e) / sqrt(d). WHOLE: KEYS divides M."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    rows = tile * ROWS + tl.arange(0, ROWS)
    # The last tile of a head may contain rows of the next head: they are masked, or not stored.
    q = q_tensor.load([head * N + tile * ROWS, 0])
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    last = M
    whole = M // KEYS * KEYS
    if CAUSAL:
        last = min(M, (tile + 1) * ROWS)
        whole = min(whole, tile * ROWS // KEYS * KEYS)
    begin = head * M
    acc, total, m = _forward_tiles(
        acc, total, m, q, k_tensor, v_tensor, begin, rows, 0, whole, M, scale, KEYS, CAUSAL, False
    )
    if CAUSAL or not WHOLE:
        acc, total, m = _forward_tiles(
            acc, total, m, q, k_tensor, v_tensor, begin, rows, whole, last, M, scale, KEYS, CAUSAL, True
        )
    where = (head.to(tl.int64) * N + rows)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(o_ptr + where, (acc / total[:, None]).to(o_ptr.dtype.element_ty), mask=(rows < N)[:, None])
    tl.store(lse_ptr + head.to(tl.int64) * N + rows, (m + tl.log2(total)) / LOG2_E, mask=rows < N)


@triton.jit
def _prepare(o_ptr, do_ptr, lse_ptr, delta_ptr, lse2_ptr, dq_ptr, count, D: tl.constexpr, ROWS: tl.constexpr):
    """Store delta = rowsum(dO * O), the log-sum-exp in units of log2, and dq = 0, for all `count` rows of all heads."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    where = rows.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(o_ptr + where, mask=inside[:, None], other=0.0).to(tl.float32)
    do = tl.load(do_ptr + where, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(o * do, 1), mask=inside)
    tl.store(dq_ptr + where, tl.zeros([ROWS, D], tl.float32), mask=inside[:, None])
    tl.store(lse2_ptr + rows, tl.load(lse_ptr + rows, mask=inside, other=0.0) * LOG2_E, mask=inside)


@triton.jit
def _add_share(
    share, dq_ptr, dq_tensor, begin, first, N, D: tl.constexpr, ROWS: tl.constexpr, BULK: tl.constexpr,
):
    """Add one program's `share` (ROWS, D) to the rows of dQ from `first` on. BULK: True to use the copy engine."""
    if BULK:
        dq_tensor.atomic_add([begin + first, 0], share)
    else:
        rows = first + tl.arange(0, ROWS)
        where = (begin + rows).to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
        tl.atomic_add(dq_ptr + where, share, mask=(rows < N)[:, None], sem="relaxed")


@triton.jit
def _of_rows(ptr, rows, N, other, WHOLE: tl.constexpr):
    """Load one number for each of `rows`; `other` for rows from N on. WHOLE: True to omit the mask, if no row is beyond
    N. The loads then overlap with the copies of tiles."""
    return tl.load(ptr + rows) if WHOLE else tl.load(ptr + rows, mask=rows < N, other=other)


@triton.jit
def _backward_tiles(
    dk, dv, share, k, v, q_tensor, do_tensor, lse2_ptr, delta_ptr, dq_ptr, dq_tensor, begin, keys, first, last, N, M,
    scale, D: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
    BULK: tl.constexpr, LATE: tl.constexpr,
):
    """Add the contribution of the queries from `first` to before `last` to dk and dv, and of these keys to dq.

    LATE: True to add each tile's share of dq in the next step. Then `share` is the share of the tile before `first`,
    and the caller must add the returned share."""
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = q_tensor.load([begin + start, 0])
        lse2 = _of_rows(lse2_ptr, rows, N, float("inf"), WHOLE)
        s = tl.dot(k, q.T)
        if LATE:
            _add_share(share, dq_ptr, dq_tensor, begin, max(start - ROWS, 0), N, D, ROWS, BULK)
        p = tl.exp2(s * scale - lse2[None, :])
        if MASKED:
            seen = (keys < M)[:, None]
            if CAUSAL:
                seen = seen & (keys[:, None] <= rows[None, :])
            p = tl.where(seen, p, 0.0)
        do = do_tensor.load([begin + start, 0])
        dp = tl.dot(v, do.T)
        dv = tl.dot(p.to(do.dtype), do, dv)
        delta = _of_rows(delta_ptr, rows, N, 0.0, WHOLE)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk)
        share = tl.dot(ds.T, k)
        if not LATE:
            _add_share(share, dq_ptr, dq_tensor, begin, start, N, D, ROWS, BULK)
    return dk, dv, share


@triton.jit
def _backward(
    q_tensor, k_tensor, v_tensor, do_tensor, lse2_ptr, delta_ptr, dq_ptr, dq_tensor, dk_ptr, dv_ptr, N, M, scale,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BULK: tl.constexpr, LATE: tl.constexpr,
):
    """Compute dk and dv of KEYS keys of one head, and their share of dq. WHOLE: tiles divide N and M.

    The last tile of a head may contain rows of the next head. Their p and their share of dq are 0, because lse2 is
    loaded as inf. `share` begins as 0, so adding it before the first tile changes nothing.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    keys = tile * KEYS + tl.arange(0, KEYS)
    k = k_tensor.load([head * M + tile * KEYS, 0])
    v = v_tensor.load([head * M + tile * KEYS, 0])
    begin = head * N
    lse2_ptr += begin
    delta_ptr += begin
    dk = tl.zeros([KEYS, D], tl.float32)
    dv = tl.zeros([KEYS, D], tl.float32)
    share = tl.zeros([ROWS, D], tl.float32)
    first = 0
    unmasked = 0
    if CAUSAL:
        first = tile * KEYS // ROWS * ROWS
        unmasked = min(tl.cdiv((tile + 1) * KEYS, ROWS) * ROWS, tl.cdiv(N, ROWS) * ROWS)
    if not WHOLE and (tile + 1) * KEYS > M:
        unmasked = tl.cdiv(N, ROWS) * ROWS
    if CAUSAL or not WHOLE:
        dk, dv, share = _backward_tiles(
            dk, dv, share, k, v, q_tensor, do_tensor, lse2_ptr, delta_ptr, dq_ptr, dq_tensor, begin, keys, first,
            unmasked, N, M, scale, D, ROWS, CAUSAL, True, WHOLE, BULK, LATE,
        )
    dk, dv, share = _backward_tiles(
        dk, dv, share, k, v, q_tensor, do_tensor, lse2_ptr, delta_ptr, dq_ptr, dq_tensor, begin, keys, unmasked, N,
        N, M, scale, D, ROWS, CAUSAL, False, WHOLE, BULK, LATE,
    )
    if LATE:
        _add_share(share, dq_ptr, dq_tensor, begin, (N - 1) // ROWS * ROWS, N, D, ROWS, BULK)
    where = (head.to(tl.int64) * M + keys)[:, None] * D + tl.arange(0, D)[None, :]
    inside = (keys < M)[:, None]
    tl.store(dk_ptr + where, (dk * (scale / LOG2_E)).to(dk_ptr.dtype.element_ty), mask=inside)
    tl.store(dv_ptr + where, dv.to(dv_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scaled(sum_ptr, out_ptr, count, factor, BLOCK: tl.constexpr):
    """Multiply a float32 tensor of `count` numbers by `factor`, and store it in out's type."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(
        out_ptr + at,
        (tl.load(sum_ptr + at, mask=at < count, other=0.0) * factor).to(out_ptr.dtype.element_ty),
        mask=at < count,
    )


def _tiles(t, length: int, d: int) -> TensorDescriptor:
    """Return a descriptor with which the copy engine loads tiles (length, d) of `t` (heads, rows, d), contiguous."""
    return TensorDescriptor(t, [t.numel() // d, d], [d, 1], [length, d])


def takes(q, k, v) -> bool:
    """Return True if these kernels support the tensors."""
    fits = q.element_size() == 2 and q.shape[2] in (32, 64, 128) and q.shape[1] >= 16 and k.shape[1] >= 16
    return fits and all(t.is_contiguous() for t in (q, k, v))


def backward_blocks(d: int) -> tuple[int, int, int, int, bool, bool]:
    """Return the fastest (rows, keys, warps, stages, late, bulk). `late` and `bulk` are LATE and BULK of the kernel."""
    if d <= 32:
        return 64, 128, 4, 3, False, True
    return (64, 64, 4, 3, False, True) if d <= 64 else (64, 128, 8, 3, True, True)


def flash_forward(q, k, v, causal):
    """Return (O, L) as the course's `flash_forward` does."""
    B, N, d = q.shape
    M = k.shape[1]
    # These sizes are the fastest on the GPU of docs/gpu.md.
    if d <= 64:
        rows, keys, warps, stages = 64, 128, 4, 3 if d <= 32 else 2
    else:
        rows, keys, warps, stages = (64, 64, 4, 3) if causal else (128, 64, 4, 2)
    o = torch.empty_like(q)
    lse = torch.empty((B, N), dtype=torch.float32, device=q.device)
    _forward[(triton.cdiv(N, rows), B)](
        _tiles(q, rows, d), _tiles(k, keys, d), _tiles(v, keys, d), o, lse, N, M, d**-0.5 * LOG2_E.value,
        D=d, ROWS=rows, KEYS=keys, CAUSAL=causal, WHOLE=M % keys == 0,
        num_warps=warps, num_stages=stages,
    )
    return o, lse


def flash_backward(q, k, v, o, lse, do, causal, blocks=None):
    """Return (dq, dk, dv) as the course's `flash_backward` does. `blocks`: sizes as `backward_blocks` returns them."""
    B, N, d = q.shape
    M = k.shape[1]
    rows, keys, warps, stages, late, bulk = blocks or backward_blocks(d)
    scale = d**-0.5 * LOG2_E.value
    delta, lse2 = (torch.empty((B, N), dtype=torch.float32, device=q.device) for _ in range(2))
    total = torch.empty((B, N, d), dtype=torch.float32, device=q.device)
    _prepare[(triton.cdiv(B * N, 64),)](o, do, lse, delta, lse2, total, B * N, D=d, ROWS=64, num_warps=4)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _backward[(triton.cdiv(M, keys), B)](
        _tiles(q, rows, d), _tiles(k, keys, d), _tiles(v, keys, d), _tiles(do, rows, d), lse2, delta,
        total, _tiles(total, rows, d) if bulk else total, dk, dv, N, M, scale,
        D=d, ROWS=rows, KEYS=keys, CAUSAL=causal, WHOLE=M % keys == 0 and N % rows == 0, BULK=bulk, LATE=late,
        num_warps=warps, num_stages=stages,
    )
    _scaled[(triton.cdiv(B * N * d, 4096),)](total, dq, B * N * d, d**-0.5, BLOCK=4096, num_warps=8)
    return dq, dk, dv
