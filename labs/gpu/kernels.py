"""Kernels of the lab `gpu`, in Triton: write the bodies of the functions below.

gelu, softmax, softmax_long and matmul write into the output that they are given; flash_forward and flash_backward
return new tensors. Inputs need not be contiguous: use their strides. handout.md has the types, sizes and accuracy.

    TRITON_INTERPRET=1 python ...     runs this file without a GPU, slowly: use it for results, not for times
"""

import torch
import triton
import triton.language as tl

# BEGIN SOLUTION
# The formatter is off, so that long lists of arguments stay on few lines.
# fmt: off
LOG2_E = tl.constexpr(1.4426950408889634)
"""Factor for exp2: exp(x) = exp2(x LOG2_E). The kernels use exp2, because the hardware has an instruction for it."""


def _power_of_two(n: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least n and at least `least`; tl.dot requires 16."""
    return max(least, triton.next_power_of_2(n))


@triton.jit
def _gelu(x_ptr, out_ptr, x_row, x_column, out_row, out_column, C, blocks, BLOCK: tl.constexpr):
    """Compute BLOCK numbers of one row. Each program computes one of the `blocks` blocks of a row."""
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < C
    x = tl.load(x_ptr + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)). The second form has no cancellation if u is far below 0.
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    y = x / (1.0 + tl.exp2(u * (-2.0 * LOG2_E)))
    tl.store(out_ptr + row * out_row + column * out_column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_row(x_ptr, out_ptr, x_row, x_column, out_row, out_column, C, BLOCK: tl.constexpr):
    """Compute the softmax of one row in each program. The row stays in registers from the load to the store."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < C
    x = tl.load(x_ptr + row * x_row + column * x_column, mask=inside, other=float("-inf")).to(tl.float32)
    weights = tl.exp2((x - tl.max(x, 0)) * LOG2_E)
    y = weights / tl.sum(weights, 0)
    tl.store(out_ptr + row * out_row + column * out_column, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_blocks(x_ptr, out_ptr, x_row, x_column, out_row, out_column, C, BLOCK: tl.constexpr):
    """Compute the softmax of one row in each program, in two passes over its blocks. In the first pass each lane has
    its own maximum and sum. So a block needs no reduction, and a lane's sum has at most ceil(C / BLOCK) terms."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    # Start at a finite number, so that the difference of two maxima is 0, not NaN, while a lane has seen only -inf.
    most = tl.full([BLOCK], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        column = start + lane
        x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
        now = tl.maximum(most, x)
        total = total * tl.exp2((most - now) * LOG2_E) + tl.exp2((x - now) * LOG2_E)
        most = now
    m = tl.max(most, 0)
    whole = tl.sum(total * tl.exp2((most - m) * LOG2_E), 0)
    for start in range(0, C, BLOCK):
        column = start + lane
        x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
        y = tl.exp2((x - m) * LOG2_E) / whole
        tl.store(out_ptr + row * out_row + column * out_column, y.to(out_ptr.dtype.element_ty), mask=column < C)


@triton.jit
def _matmul(
    a_ptr, b_ptr, out_ptr, a_row, a_column, b_row, b_column, out_row, out_column, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):
    """Compute a tile of ROWS x COLUMNS numbers of the product in each program. GROUP rows of tiles are computed at
    about the same time. So columns of B that these rows share are still in the L2 cache."""
    row_tiles, column_tiles = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    tile = tl.program_id(0)
    first = tile // (GROUP * column_tiles) * GROUP
    height = min(row_tiles - first, GROUP)
    i = first + tile % (GROUP * column_tiles) % height
    j = tile % (GROUP * column_tiles) // height
    rows = (i * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = (j * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    inner = tl.arange(0, INNER)
    a_ptrs = a_ptr + rows[:, None] * a_row + inner[None, :] * a_column
    b_ptrs = b_ptr + inner[:, None] * b_row + columns[None, :] * b_column
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, INNER):
        left = inner < K - start
        a = tl.load(a_ptrs, mask=(rows < M)[:, None] & left[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=left[:, None] & (columns < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += INNER * a_column
        b_ptrs += INNER * b_row
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    out_ptrs = out_ptr + rows[:, None] * out_row + columns[None, :] * out_column
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=inside)


# ---- attention: `rows` are indices of queries, `keys` indices of keys. Strides are (head, row); a row is contiguous.


@triton.jit
def _load_tile(ptr, stride, first, count, ROWS: tl.constexpr, D: tl.constexpr, d: tl.constexpr):
    """Return a tile (ROWS, D): the rows from `first` on of a tensor of `count` rows of d numbers, padded with zeros."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, D)
    inside = (rows < count - first)[:, None]
    if d < D:
        inside = inside & (columns < d)[None, :]
    # Only the offset of the tile's first row may need 64 bits; offsets within the tile fit into 32.
    ptr += tl.cast(first, tl.int64) * stride
    return tl.load(ptr + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store_tile(ptr, stride, first, count, tile, ROWS: tl.constexpr, D: tl.constexpr, d: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, D)
    inside = (rows < count - first)[:, None]
    if d < D:
        inside = inside & (columns < d)[None, :]
    ptr += tl.cast(first, tl.int64) * stride
    tl.store(ptr + rows[:, None] * stride + columns[None, :], tile.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def _forward_tiles(
    acc, total, m, q, k_ptr, v_ptr, k_stride, v_stride, rows, first, last, M, scale,
    d: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):
    """Continue the online softmax over the keys from `first` to before `last`. Scores s are in units of log2. m is the
    maximum so far, total the sum of exp2(s - m), acc the sum of exp2(s - m) v. MASKED: the range has keys to mask."""
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _load_tile(k_ptr, k_stride, start, M, KEYS, D, d)
        s = tl.dot(q, tl.trans(k))
        if MASKED:
            seen = (keys < M)[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= rows[:, None])
            s = tl.where(seen, s, float("-inf"))
        now = tl.maximum(m, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - now[:, None])
        rescale = tl.exp2(m - now)
        total = total * rescale + tl.sum(p, 1)
        v = _load_tile(v_ptr, v_stride, start, M, KEYS, D, d)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        m = now
    return acc, total, m


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, o_strides, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):
    """Compute O and L for ROWS queries of one head; each program computes one tile. `scale` is log2(e) / sqrt(d)."""
    # With a causal mask the last rows see the most keys. Start their long programs first, so that short ones end last.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    k_ptr += head * k_strides[0]
    v_ptr += head * v_strides[0]
    q = _load_tile(q_ptr + head * q_strides[0], q_strides[1], tile * ROWS, N, ROWS, D, d)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    last = M
    whole = M // KEYS * KEYS
    if CAUSAL:
        last = min(M, (tile + 1) * ROWS)
        whole = min(whole, tile * ROWS // KEYS * KEYS)
    acc, total, m = _forward_tiles(
        acc, total, m, q, k_ptr, v_ptr, k_strides[1], v_strides[1], rows, 0, whole,
        M, scale, d, D, KEYS, CAUSAL, False,
    )
    acc, total, m = _forward_tiles(
        acc, total, m, q, k_ptr, v_ptr, k_strides[1], v_strides[1], rows, whole, last,
        M, scale, d, D, KEYS, CAUSAL, True,
    )
    _store_tile(o_ptr + head * o_strides[0], o_strides[1], tile * ROWS, N, acc / total[:, None], ROWS, D, d)
    tl.store(lse_ptr + head * N + rows, (m + tl.log2(total)) / LOG2_E, mask=rows < N)


@triton.jit
def _row_sums(o_ptr, do_ptr, delta_ptr, o_strides, do_strides, N, d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Store delta = rowsum(dO * O), which equals rowsum(P * dP), for ROWS queries of one head."""
    head, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    o = _load_tile(o_ptr + head * o_strides[0], o_strides[1], first, N, ROWS, D, d).to(tl.float32)
    do = _load_tile(do_ptr + head * do_strides[0], do_strides[1], first, N, ROWS, D, d).to(tl.float32)
    tl.store(delta_ptr + head * N + rows, tl.sum(o * do, 1), mask=rows < N)


@triton.jit
def _key_tiles(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, q_stride, do_stride, keys, first, last, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):
    """Add the contribution of the queries from `first` to before `last` to dk and dv of one tile of keys. Scores are
    transposed: a row for each key. Queries beyond N add 0, because their q, dO and delta are loaded as 0."""
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = _load_tile(q_ptr, q_stride, start, N, ROWS, D, d)
        lse = tl.load(lse_ptr + rows, mask=rows < N, other=0.0) * LOG2_E
        s = tl.dot(k, tl.trans(q))
        p = tl.exp2(s * scale - lse[None, :])
        if MASKED:
            seen = (keys < M)[:, None]
            if CAUSAL:
                seen = seen & (keys[:, None] <= rows[None, :])
            p = tl.where(seen, p, 0.0)
        do = _load_tile(do_ptr, do_stride, start, N, ROWS, D, d)
        dv = tl.dot(p.to(do.dtype), do, dv)
        delta = tl.load(delta_ptr + rows, mask=rows < N, other=0.0)
        dp = tl.dot(v, tl.trans(do))
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def _backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):
    """Compute dK and dV of KEYS keys of one head: sums over queries that see them. Each program computes one tile."""
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    keys = tile * KEYS + tl.arange(0, KEYS)
    q_ptr += head * q_strides[0]
    do_ptr += head * do_strides[0]
    lse_ptr += head * N
    delta_ptr += head * N
    k = _load_tile(k_ptr + head * k_strides[0], k_strides[1], tile * KEYS, M, KEYS, D, d)
    v = _load_tile(v_ptr + head * v_strides[0], v_strides[1], tile * KEYS, M, KEYS, D, d)
    dk = tl.zeros([KEYS, D], tl.float32)
    dv = tl.zeros([KEYS, D], tl.float32)
    first = 0
    unmasked = 0
    if CAUSAL:
        first = tile * KEYS // ROWS * ROWS
        unmasked = min(tl.cdiv((tile + 1) * KEYS, ROWS) * ROWS, tl.cdiv(N, ROWS) * ROWS)
    if (tile + 1) * KEYS > M:
        unmasked = tl.cdiv(N, ROWS) * ROWS
    dk, dv = _key_tiles(
        dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, q_strides[1], do_strides[1], keys, first, unmasked,
        N, M, scale, d, D, ROWS, CAUSAL, True,
    )
    dk, dv = _key_tiles(
        dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, q_strides[1], do_strides[1], keys, unmasked, N,
        N, M, scale, d, D, ROWS, CAUSAL, False,
    )
    _store_tile(dk_ptr + head * dk_strides[0], dk_strides[1], tile * KEYS, M, dk * (scale / LOG2_E), KEYS, D, d)
    _store_tile(dv_ptr + head * dv_strides[0], dv_strides[1], tile * KEYS, M, dv, KEYS, D, d)


@triton.jit
def _query_tiles(
    dq, q, do, lse, delta, k_ptr, v_ptr, k_stride, v_stride, rows, first, last, M, scale,
    d: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):
    """Add the contribution of the keys from `first` to before `last` to dq of one tile of queries."""
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = _load_tile(k_ptr, k_stride, start, M, KEYS, D, d)
        v = _load_tile(v_ptr, v_stride, start, M, KEYS, D, d)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        if MASKED:
            seen = (keys < M)[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= rows[:, None])
            p = tl.where(seen, p, 0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def _backward_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_strides, k_strides, v_strides, do_strides, dq_strides, N, M, scale,
    d: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):
    """Compute dQ of ROWS queries of one head: sums over the keys that they see. Each program computes one tile."""
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tile * ROWS + tl.arange(0, ROWS)
    k_ptr += head * k_strides[0]
    v_ptr += head * v_strides[0]
    q = _load_tile(q_ptr + head * q_strides[0], q_strides[1], tile * ROWS, N, ROWS, D, d)
    do = _load_tile(do_ptr + head * do_strides[0], do_strides[1], tile * ROWS, N, ROWS, D, d)
    lse = tl.load(lse_ptr + head * N + rows, mask=rows < N, other=0.0) * LOG2_E
    delta = tl.load(delta_ptr + head * N + rows, mask=rows < N, other=0.0)
    dq = tl.zeros([ROWS, D], tl.float32)
    last = M
    whole = M // KEYS * KEYS
    if CAUSAL:
        last = min(M, (tile + 1) * ROWS)
        whole = min(whole, tile * ROWS // KEYS * KEYS)
    dq = _query_tiles(
        dq, q, do, lse, delta, k_ptr, v_ptr, k_strides[1], v_strides[1], rows, 0, whole,
        M, scale, d, D, KEYS, CAUSAL, False,
    )
    dq = _query_tiles(
        dq, q, do, lse, delta, k_ptr, v_ptr, k_strides[1], v_strides[1], rows, whole, last,
        M, scale, d, D, KEYS, CAUSAL, True,
    )
    _store_tile(dq_ptr + head * dq_strides[0], dq_strides[1], tile * ROWS, N, dq * (scale / LOG2_E), ROWS, D, d)


# ---- sizes of blocks: (rows, keys, warps, stages). D is d rounded up to a power of two, `size` the bytes of a number


def _forward_blocks(D: int, size: int, causal: bool) -> tuple[int, int, int, int]:
    if size == 4:
        return 64, 32, 4, 2
    if D <= 32 and not causal:
        return 64, 128, 4, 3
    return (64, 64, 4, 3) if D <= 64 or causal else (128, 128, 8, 3)


def _key_blocks(D: int, size: int) -> tuple[int, int, int, int]:
    if size == 4:
        return 32, 64, 4, 2
    if D <= 32:
        return 64, 64, 4, 2
    return (128, 64, 4, 2) if D <= 64 else (64, 128, 8, 2)


def _query_blocks(D: int, size: int) -> tuple[int, int, int, int]:
    if size == 4:
        return 64, 32, 4, 2
    return (64, 64, 4, 3) if D <= 64 else (128, 64, 8, 3)


# END SOLUTION
def gelu(x, y):
    """y = x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2. x, y: (R, C)."""
    # BEGIN STARTER
    # raise NotImplementedError("gelu is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    R, C = x.shape
    # A program computes 4096 bytes: each of its 128 threads loads 16 bytes twice.
    block = min(4096 // x.element_size(), _power_of_two(C))
    blocks = triton.cdiv(C, block)
    _gelu[(R * blocks,)](x, y, *x.stride(), *y.stride(), C, blocks, BLOCK=block, num_warps=4)
    # END SOLUTION


def softmax(x, y):
    """y = the softmax of each row of x. x, y: (R, C), C at most 16384. Each program computes one row in one block."""
    # BEGIN STARTER
    # raise NotImplementedError("softmax is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    R, C = x.shape
    block = _power_of_two(C)
    warps = 4 if block <= 2048 else 8 if block <= 8192 else 16
    _softmax_row[(R,)](x, y, *x.stride(), *y.stride(), C, BLOCK=block, num_warps=warps)
    # END SOLUTION


def softmax_long(x, y):
    """y = the softmax of each row of x, for rows of any length. Each program computes one row, block by block."""
    # BEGIN STARTER
    # raise NotImplementedError("softmax_long is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    R, C = x.shape
    block = min(4096, _power_of_two(C))
    _softmax_blocks[(R,)](x, y, *x.stride(), *y.stride(), C, BLOCK=block, num_warps=8)
    # END SOLUTION


def matmul(a, b, c):
    """c = a b, with sums in float32. a: (M, K), b: (K, N), c: (M, N)."""
    # BEGIN STARTER
    # raise NotImplementedError("matmul is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    (M, K), N = a.shape, b.shape[1]
    rows, columns, inner, warps = (128, 256, 64, 8) if a.element_size() == 2 else (128, 128, 32, 8)
    if min(M, N) < 1024:
        rows, columns, inner, warps = 64, 64, 32, 4
    rows, columns = min(rows, _power_of_two(M)), min(columns, _power_of_two(N))
    tiles = triton.cdiv(M, rows) * triton.cdiv(N, columns)
    _matmul[(tiles,)](
        a, b, c, *a.stride(), *b.stride(), *c.stride(), M, N, K,
        ROWS=rows, COLUMNS=columns, INNER=inner, GROUP=8, num_warps=warps, num_stages=3,
    )
    # END SOLUTION


def flash_forward(q, k, v, causal):
    """o = softmax(q k^T / sqrt(d)) v and lse = log(sum(exp(q k^T / sqrt(d)))), for each head. Returns o, lse.

    q, o: (B, N, d), k, v: (B, M, d). B counts the heads of all batches. Each row of d numbers is contiguous. o has q's
    type, lse (B, N) is float32. With `causal`, query i uses only the keys 0 ... i.
    """
    # BEGIN STARTER
    # raise NotImplementedError("flash_forward is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    B, N, d = q.shape
    M, D = k.shape[1], _power_of_two(d)
    rows, keys, warps, stages = _forward_blocks(D, q.element_size(), causal)
    rows, keys = min(rows, _power_of_two(N)), min(keys, _power_of_two(M))
    o = torch.empty((B, N, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, N), dtype=torch.float32, device=q.device)
    _forward[(triton.cdiv(N, rows), B)](
        q, k, v, o, lse, q.stride()[:2], k.stride()[:2], v.stride()[:2], o.stride()[:2],
        N, M, d**-0.5 * LOG2_E.value,
        d=d, D=D, ROWS=rows, KEYS=keys, CAUSAL=causal, num_warps=warps, num_stages=stages,
    )
    return o, lse
    # END SOLUTION


def flash_backward(q, k, v, o, lse, do, causal):
    """Returns dq, dk, dv: the gradients of q, k and v. do is the gradient of o; o and lse are flash_forward's results.

    do and dq have the shape and type of q; dk and dv have k's. Nothing of size (N, M) is stored: the weights are
    computed again from lse.
    """
    # BEGIN STARTER
    # raise NotImplementedError("flash_backward is not written yet")
    # END STARTER
    # BEGIN SOLUTION
    B, N, d = q.shape
    M, D = k.shape[1], _power_of_two(d)
    scale = d**-0.5 * LOG2_E.value
    strides = q.stride()[:2], k.stride()[:2], v.stride()[:2], do.stride()[:2]
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    delta = torch.empty((B, N), dtype=torch.float32, device=q.device)
    lse = lse.contiguous()
    rows = min(64, _power_of_two(N))
    _row_sums[(triton.cdiv(N, rows), B)](o, do, delta, o.stride()[:2], do.stride()[:2], N, d=d, D=D, ROWS=rows)
    rows, keys, warps, stages = _key_blocks(D, q.element_size())
    rows, keys = min(rows, _power_of_two(N)), min(keys, _power_of_two(M))
    _backward_keys[(triton.cdiv(M, keys), B)](
        q, k, v, do, lse, delta, dk, dv, *strides, dk.stride()[:2], dv.stride()[:2], N, M, scale,
        d=d, D=D, ROWS=rows, KEYS=keys, CAUSAL=causal, num_warps=warps, num_stages=stages,
    )
    rows, keys, warps, stages = _query_blocks(D, q.element_size())
    rows, keys = min(rows, _power_of_two(N)), min(keys, _power_of_two(M))
    _backward_queries[(triton.cdiv(N, rows), B)](
        q, k, v, do, lse, delta, dq, *strides, dq.stride()[:2], N, M, scale,
        d=d, D=D, ROWS=rows, KEYS=keys, CAUSAL=causal, num_warps=warps, num_stages=stages,
    )
    return dq, dk, dv
    # END SOLUTION
