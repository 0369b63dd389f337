"""A file in the form of CS336's second assignment: flash attention in Triton, without its backward pass."""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def flash_fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, sums_ptr,
    stride_qb, stride_qq, stride_qd, stride_kb, stride_kk, stride_kd, stride_vb, stride_vk, stride_vd,
    stride_ob, stride_oq, stride_od, stride_sb, stride_sq, n_queries, n_keys, scale,
    D: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, is_causal: tl.constexpr,
):  # fmt: skip
    tile, batch = tl.program_id(0), tl.program_id(1)
    rows = tile * Q_TILE + tl.arange(0, Q_TILE)
    columns = tl.arange(0, D)
    q_ptrs = q_ptr + batch * stride_qb + rows[:, None] * stride_qq + columns[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=rows[:, None] < n_queries, other=0.0)
    m = tl.full((Q_TILE,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((Q_TILE,), dtype=tl.float32)
    acc = tl.zeros((Q_TILE, D), dtype=tl.float32)
    for start in range(0, n_keys, K_TILE):
        keys = start + tl.arange(0, K_TILE)
        k_ptrs = k_ptr + batch * stride_kb + keys[:, None] * stride_kk + columns[None, :] * stride_kd
        v_ptrs = v_ptr + batch * stride_vb + keys[:, None] * stride_vk + columns[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=keys[:, None] < n_keys, other=0.0)
        v = tl.load(v_ptrs, mask=keys[:, None] < n_keys, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where((keys < n_keys)[None, :], s, -1.0e6)
        if is_causal:
            s = tl.where(rows[:, None] >= keys[None, :], s, -1.0e6)
        now = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - now[:, None])
        rescale = tl.exp(m - now)
        total = rescale * total + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc=acc * rescale[:, None])
        m = now
    o_ptrs = o_ptr + batch * stride_ob + rows[:, None] * stride_oq + columns[None, :] * stride_od
    tl.store(o_ptrs, (acc / total[:, None]).to(o_ptr.dtype.element_ty), mask=rows[:, None] < n_queries)
    tl.store(sums_ptr + batch * stride_sb + rows * stride_sq, m + tl.log(total), mask=rows < n_queries)


class FlashAttentionTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        batch, n_queries, d = q.shape
        n_keys = k.shape[1]
        o = torch.empty_like(q)
        sums = torch.empty(batch, n_queries, device=q.device, dtype=torch.float32)
        flash_fwd_kernel[(triton.cdiv(n_queries, 32), batch)](
            q, k, v, o, sums, *q.stride(), *k.stride(), *v.stride(), *o.stride(), *sums.stride(),
            n_queries, n_keys, 1 / math.sqrt(d), D=d, Q_TILE=32, K_TILE=32, is_causal=is_causal,
        )  # fmt: skip
        ctx.save_for_backward(sums, q, k, v, o)
        ctx.is_causal = is_causal
        return o
