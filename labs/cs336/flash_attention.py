"""Flash attention as two classes of torch.autograd.Function: one in PyTorch, one with a Triton kernel.

q is (batch, queries, d); k and v are (batch, keys, d), with as many keys as queries: a multiple of 128. With
`is_causal`, query i uses only the keys 0 to i. forward returns O and saves q, k, v, O and L. L is the log-sum-exp of
each query's scaled scores, float32 (batch, queries). handout.md describes how the file is judged.
"""

import math

import torch
import triton
import triton.language as tl

# BEGIN SOLUTION
ROWS, KEYS = 64, 64
NEVER = float("-inf")


def _backward(q, k, v, out, L, dO, is_causal):
    """Return dQ, dK and dV. For each tile of queries, recompute the weights, store rows of dQ, add to dK and dV."""
    scale = 1.0 / math.sqrt(q.shape[-1])
    dQ, dK, dV = (torch.zeros_like(t, dtype=torch.float32) for t in (q, k, v))
    delta = (out.float() * dO.float()).sum(-1)
    for first in range(0, q.shape[-2], ROWS):
        rows = slice(first, first + ROWS)
        q_tile, dO_tile = q[:, rows].float(), dO[:, rows].float()
        s = q_tile @ k.float().transpose(-1, -2) * scale
        if is_causal:
            place = torch.arange(first, first + s.shape[-2], device=q.device)[:, None]
            s = s.masked_fill(torch.arange(k.shape[-2], device=q.device)[None] > place, NEVER)
        p = torch.exp(s - L[:, rows, None])
        dV += p.transpose(-1, -2) @ dO_tile
        dP = dO_tile @ v.float().transpose(-1, -2)
        dS = p * (dP - delta[:, rows, None]) * scale
        dQ[:, rows] = dS @ k.float()
        dK += dS.transpose(-1, -2) @ q_tile
    return dQ.to(q.dtype), dK.to(k.dtype), dV.to(v.dtype)


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, o_ptr, l_ptr,
    q_batch, q_row, q_column, k_batch, k_row, k_column, v_batch, v_row, v_column, o_batch, o_row, o_column,
    l_batch, l_row, N, M, scale, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute O and L of one tile of ROWS queries of one batch. Each Triton program computes one tile."""
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, lanes, columns = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, D)
    q = tl.load(q_ptr + batch * q_batch + rows[:, None] * q_row + columns[None, :] * q_column)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    end = M
    if CAUSAL:
        end = tl.minimum(M, (tile + 1) * ROWS)
    for first in range(0, end, KEYS):
        keys = first + lanes
        k = tl.load(k_ptr + batch * k_batch + keys[None, :] * k_row + columns[:, None] * k_column)
        v = tl.load(v_ptr + batch * v_batch + keys[:, None] * v_row + columns[None, :] * v_column)
        s = tl.dot(q, k) * scale
        if CAUSAL:
            s = tl.where(keys[None, :] <= rows[:, None], s, float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        rescale = tl.exp(most - now)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)
        most = now
    o = acc / total[:, None]
    o_at = o_ptr + batch * o_batch + rows[:, None] * o_row + columns[None, :] * o_column
    tl.store(o_at, o.to(o_ptr.dtype.element_ty))
    tl.store(l_ptr + batch * l_batch + rows * l_row, most + tl.log(total))


# END SOLUTION


class FlashAttentionPyTorch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        # BEGIN STARTER
        # raise NotImplementedError
        # END STARTER
        # BEGIN SOLUTION
        scale = 1.0 / math.sqrt(q.shape[-1])
        out = torch.empty_like(q)
        L = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        for first in range(0, q.shape[-2], ROWS):
            rows = slice(first, first + ROWS)
            q_tile = q[:, rows].float()
            most = torch.full(q_tile.shape[:-1], NEVER, device=q.device)
            total, acc = torch.zeros_like(most), torch.zeros_like(q_tile)
            for start in range(0, k.shape[-2], KEYS):
                s = q_tile @ k[:, start : start + KEYS].float().transpose(-1, -2) * scale
                if is_causal:
                    place = torch.arange(first, first + s.shape[-2], device=q.device)[:, None]
                    hidden = torch.arange(start, start + s.shape[-1], device=q.device)[None] > place
                    s = s.masked_fill(hidden, NEVER)
                now = torch.maximum(most, s.amax(-1))
                p, rescale = torch.exp(s - now[..., None]), torch.exp(most - now)
                total = total * rescale + p.sum(-1)
                acc = acc * rescale[..., None] + p @ v[:, start : start + KEYS].float()
                most = now
            out[:, rows] = (acc / total[..., None]).to(out.dtype)
            L[:, rows] = most + torch.log(total)
        ctx.save_for_backward(q, k, v, out, L)
        ctx.is_causal = is_causal
        return out
        # END SOLUTION

    @staticmethod
    def backward(ctx, dO):
        # BEGIN STARTER
        # raise NotImplementedError
        # END STARTER
        # BEGIN SOLUTION
        return *_backward(*ctx.saved_tensors, dO, ctx.is_causal), None
        # END SOLUTION


class FlashAttentionTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        # BEGIN STARTER
        # raise NotImplementedError
        # END STARTER
        # BEGIN SOLUTION
        batch, queries, d = q.shape
        out = torch.empty_like(q)
        L = torch.empty((batch, queries), dtype=torch.float32, device=q.device)
        _forward[(triton.cdiv(queries, ROWS), batch)](
            q, k, v, out, L, *q.stride(), *k.stride(), *v.stride(), *out.stride(), *L.stride(),
            queries, k.shape[1], 1.0 / math.sqrt(d), D=d, ROWS=ROWS, KEYS=KEYS, CAUSAL=is_causal,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, L)
        ctx.is_causal = is_causal
        return out
        # END SOLUTION

    @staticmethod
    def backward(ctx, dO):
        # BEGIN STARTER
        # raise NotImplementedError
        # END STARTER
        # BEGIN SOLUTION
        return *_backward(*ctx.saved_tensors, dO, ctx.is_causal), None
        # END SOLUTION
