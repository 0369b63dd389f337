"""A file in the form of CS336's second assignment: flash attention in PyTorch, as an autograd.Function."""

import math

import torch

TILE = 32


class FlashAttentionPytorch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        batch, queries, d = q.shape
        keys = k.shape[1]
        scale = 1 / math.sqrt(d)
        o = torch.empty_like(q)
        sums = torch.empty(batch, queries, device=q.device, dtype=torch.float32)
        for i in range(0, queries, TILE):
            qi = q[:, i : i + TILE].float()
            rows = torch.arange(i, i + qi.shape[1], device=q.device)
            m = torch.full((batch, qi.shape[1]), float("-inf"), device=q.device)
            total = torch.zeros_like(m)
            oi = torch.zeros(batch, qi.shape[1], d, device=q.device)
            for j in range(0, keys, TILE):
                kj, vj = k[:, j : j + TILE].float(), v[:, j : j + TILE].float()
                s = qi @ kj.transpose(1, 2) * scale
                if is_causal:
                    columns = torch.arange(j, j + kj.shape[1], device=q.device)
                    s = torch.where(rows[:, None] >= columns[None, :], s, -1e6)
                now = torch.maximum(m, s.amax(-1))
                p = torch.exp(s - now[..., None])
                rescale = torch.exp(m - now)
                total = rescale * total + p.sum(-1)
                oi = rescale[..., None] * oi + p @ vj
                m = now
            o[:, i : i + TILE] = (oi / total[..., None]).to(q.dtype)
            sums[:, i : i + TILE] = m + torch.log(total)
        ctx.save_for_backward(sums, q, k, v, o)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx, do):
        sums, q, k, v, o = ctx.saved_tensors
        qf, kf, vf, of, dof = (t.float() for t in (q, k, v, o, do))
        scale = 1 / math.sqrt(q.shape[-1])
        s = qf @ kf.transpose(1, 2) * scale
        if ctx.is_causal:
            rows, columns = (torch.arange(n, device=q.device) for n in s.shape[1:])
            s = torch.where(rows[:, None] >= columns[None, :], s, float("-inf"))
        p = torch.exp(s - sums[..., None])
        dv = p.transpose(1, 2) @ dof
        dp = dof @ vf.transpose(1, 2)
        ds = p * (dp - (of * dof).sum(-1, keepdim=True))
        dq, dk = ds @ kf * scale, ds.transpose(1, 2) @ qf * scale
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None
