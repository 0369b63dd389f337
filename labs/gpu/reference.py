"""Reference kernels: plain versions of the students' functions. Students' times are compared with these kernels' times.

The reference kernels have one loop for all tiles, a mask in every tile, and one size of blocks. A student can be faster
with a second loop without a mask, with better blocks or with the GPU's copy engine. Students do not get this file.
"""

import torch
import triton
import triton.language as tl

# The formatter is off, so that long lists of arguments need only a few lines.
# fmt: off


def _block(n):
    return max(16, triton.next_power_of_2(n))


@triton.jit
def _gelu(x_ptr, y_ptr, x_row, x_column, y_row, y_column, C, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=0.0).to(tl.float32)
    y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    tl.store(y_ptr + row * y_row + column * y_column, y.to(y_ptr.dtype.element_ty), mask=column < C)


def gelu(x, y):
    R, C = x.shape
    block = min(2048, _block(C))
    _gelu[(R, triton.cdiv(C, block))](x, y, *x.stride(), *y.stride(), C, BLOCK=block)


@triton.jit
def _softmax(x_ptr, y_ptr, x_row, x_column, y_row, y_column, C, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
    weights = tl.exp(x - tl.max(x, 0))
    y = weights / tl.sum(weights, 0)
    tl.store(y_ptr + row * y_row + column * y_column, y.to(y_ptr.dtype.element_ty), mask=column < C)


def softmax(x, y):
    R, C = x.shape
    block = _block(C)
    _softmax[(R,)](x, y, *x.stride(), *y.stride(), C, BLOCK=block, num_warps=4 if block <= 2048 else 8)


@triton.jit
def _softmax_long(x_ptr, y_ptr, x_row, x_column, y_row, y_column, C, BLOCK: tl.constexpr):
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    most, total = -1.0e30, 0.0
    for start in range(0, C, BLOCK):
        column = start + lanes
        x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
        now = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - now) + tl.sum(tl.exp(x - now), 0)
        most = now
    for start in range(0, C, BLOCK):
        column = start + lanes
        x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
        y = tl.exp(x - most) / total
        tl.store(y_ptr + row * y_row + column * y_column, y.to(y_ptr.dtype.element_ty), mask=column < C)


def softmax_long(x, y):
    R, C = x.shape
    _softmax_long[(R,)](x, y, *x.stride(), *y.stride(), C, BLOCK=min(4096, _block(C)), num_warps=8)


@triton.jit
def _matmul(
    a_ptr, b_ptr, c_ptr, a_row, a_column, b_row, b_column, c_row, c_column, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, INNER):
        inner = start + tl.arange(0, INNER)
        a = tl.load(
            a_ptr + rows[:, None] * a_row + inner[None, :] * a_column,
            mask=(rows < M)[:, None] & (inner < K)[None, :], other=0.0,
        )
        b = tl.load(
            b_ptr + inner[:, None] * b_row + columns[None, :] * b_column,
            mask=(inner < K)[:, None] & (columns < N)[None, :], other=0.0,
        )
        acc = tl.dot(a, b, acc)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(
        c_ptr + rows[:, None] * c_row + columns[None, :] * c_column, acc.to(c_ptr.dtype.element_ty), mask=inside
    )


def matmul(a, b, c):
    (M, K), N = a.shape, b.shape[1]
    rows, columns = min(128, _block(M)), min(128, _block(N))
    _matmul[(triton.cdiv(M, rows), triton.cdiv(N, columns))](
        a, b, c, *a.stride(), *b.stride(), *c.stride(), M, N, K,
        ROWS=rows, COLUMNS=columns, INNER=32, num_warps=8, num_stages=3,
    )


@triton.jit
def _tile(ptr, stride, rows, count, D: tl.constexpr, d: tl.constexpr):
    columns = tl.arange(0, D)
    inside = (rows < count)[:, None] & (columns < d)[None, :]
    return tl.load(ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store(ptr, rows, count, tile, D: tl.constexpr, d: tl.constexpr):
    """Store a tile in a contiguous tensor of rows of d numbers."""
    columns = tl.arange(0, D)
    inside = (rows < count)[:, None] & (columns < d)[None, :]
    tl.store(ptr + rows.to(tl.int64)[:, None] * d + columns[None, :], tile.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _seen(rows, keys, M, CAUSAL: tl.constexpr):
    seen = (keys < M)[None, :] & (rows >= 0)[:, None]
    if CAUSAL:
        seen = seen & (keys[None, :] <= rows[:, None])
    return seen


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_head, q_row, k_head, k_row, v_head, v_row, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    q = _tile(q_ptr + head * q_head, q_row, rows, N, D, d)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    last = M
    if CAUSAL:
        last = min(M, (tile + 1) * ROWS)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _tile(k_ptr + head * k_head, k_row, keys, M, D, d)
        v = _tile(v_ptr + head * v_head, v_row, keys, M, D, d)
        s = tl.where(_seen(rows, keys, M, CAUSAL), tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        rescale = tl.exp(most - now)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)
        most = now
    _store(o_ptr + head * N * d, rows, N, acc / total[:, None], D, d)
    tl.store(lse_ptr + head * N + rows, most + tl.log(total), mask=rows < N)


def flash_forward(q, k, v, causal):
    (B, N, d), M = q.shape, k.shape[1]
    rows, keys = min(64, _block(N)), min(64 if q.element_size() == 2 else 32, _block(M))
    o = torch.empty((B, N, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, N), dtype=torch.float32, device=q.device)
    _forward[(triton.cdiv(N, rows), B)](
        q, k, v, o, lse, *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], N, M, d**-0.5,
        d=d, D=_block(d), ROWS=rows, KEYS=keys, CAUSAL=causal, num_warps=4, num_stages=2,
    )
    return o, lse


@triton.jit
def _backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_head, q_row, k_head, k_row, v_head, v_row, do_head, do_row, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    keys = tile * KEYS + tl.arange(0, KEYS)
    k = _tile(k_ptr + head * k_head, k_row, keys, M, D, d)
    v = _tile(v_ptr + head * v_head, v_row, keys, M, D, d)
    dk = tl.zeros([KEYS, D], tl.float32)
    dv = tl.zeros([KEYS, D], tl.float32)
    first = 0
    if CAUSAL:
        first = tile * KEYS // ROWS * ROWS
    for start in range(first, N, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = _tile(q_ptr + head * q_head, q_row, rows, N, D, d)
        do = _tile(do_ptr + head * do_head, do_row, rows, N, D, d)
        lse = tl.load(lse_ptr + head * N + rows, mask=rows < N, other=0.0)
        delta = tl.load(delta_ptr + head * N + rows, mask=rows < N, other=0.0)
        seen = _seen(rows, keys, M, CAUSAL)
        p = tl.where(seen, tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q)
    _store(dk_ptr + head * M * d, keys, M, dk * scale, D, d)
    _store(dv_ptr + head * M * d, keys, M, dv, D, d)


@triton.jit
def _backward_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_head, q_row, k_head, k_row, v_head, v_row, do_head, do_row, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    q = _tile(q_ptr + head * q_head, q_row, rows, N, D, d)
    do = _tile(do_ptr + head * do_head, do_row, rows, N, D, d)
    lse = tl.load(lse_ptr + head * N + rows, mask=rows < N, other=0.0)
    delta = tl.load(delta_ptr + head * N + rows, mask=rows < N, other=0.0)
    dq = tl.zeros([ROWS, D], tl.float32)
    last = M
    if CAUSAL:
        last = min(M, (tile + 1) * ROWS)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _tile(k_ptr + head * k_head, k_row, keys, M, D, d)
        v = _tile(v_ptr + head * v_head, v_row, keys, M, D, d)
        seen = _seen(rows, keys, M, CAUSAL)
        p = tl.where(seen, tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    _store(dq_ptr + head * N * d, rows, N, dq * scale, D, d)


@triton.jit
def _row_sums(
    o_ptr, do_ptr, delta_ptr, o_head, o_row, do_head, do_row, N,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):
    head, rows = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o = _tile(o_ptr + head * o_head, o_row, rows, N, D, d).to(tl.float32)
    do = _tile(do_ptr + head * do_head, do_row, rows, N, D, d).to(tl.float32)
    tl.store(delta_ptr + head * N + rows, tl.sum(o * do, 1), mask=rows < N)


def flash_backward(q, k, v, o, lse, do, causal):
    (B, N, d), M = q.shape, k.shape[1]
    rows, keys = min(64, _block(N)), min(64 if q.element_size() == 2 else 32, _block(M))
    lse = lse.contiguous()
    delta = torch.empty((B, N), dtype=torch.float32, device=q.device)
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    _row_sums[(triton.cdiv(N, rows), B)](
        o, do, delta, *o.stride()[:2], *do.stride()[:2], N, d=d, D=_block(d), ROWS=rows
    )
    given = q, k, v, do, lse, delta
    strides = [step for t in (q, k, v, do) for step in t.stride()[:2]]
    blocks = {"d": d, "D": _block(d), "ROWS": rows, "KEYS": keys, "CAUSAL": causal, "num_warps": 4, "num_stages": 2}
    _backward_keys[(triton.cdiv(M, keys), B)](*given, dk, dv, *strides, N, M, d**-0.5, **blocks)
    _backward_queries[(triton.cdiv(N, rows), B)](*given, dq, *strides, N, M, d**-0.5, **blocks)
    return dq, dk, dv


class Attention(torch.autograd.Function):
    """Reference for the times of student files that define an autograd.Function."""

    @staticmethod
    def forward(ctx, q, k, v, causal=False):
        o, lse = flash_forward(q, k, v, causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal = causal
        return o

    @staticmethod
    def backward(ctx, do):
        return *flash_backward(*ctx.saved_tensors, do, ctx.causal), None
