"""Forty hand-ins of a flash-attention assignment (PyTorch and Triton), composed of templates and edits ("traits").

`python benchmarks/flash_family.py FOLDER` writes all files into FOLDER.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

HALVES = ("forward_pytorch", "backward_pytorch", "forward_triton", "backward_triton")


@dataclass(frozen=True)
class File:
    """One hand-in."""

    text: str  # a whole Python file
    halves: dict[str, str]  # half -> "right", "wrong" or "missing"
    traits: frozenset[str]


# A line `#NAME#` is an anchor, before which a trait may insert code. All anchors are removed in the end.
HEADER = """\
import math
#IMPORT#
import torch
import triton
import triton.language as tl
#MODULE#
"""
FORWARD_PYTORCH = {
    "whole": """\
scale = 1.0 / math.sqrt(Q.shape[-1])
scores = torch.matmul(Q, K.transpose(-2, -1)) * scale
if is_causal:
    future = torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.bool, device=Q.device).triu(diagonal=1)
    scores = scores.masked_fill(future, float("-inf"))
L = torch.logsumexp(scores, dim=-1)
O = torch.matmul(torch.exp(scores - L.unsqueeze(-1)), V)
""",
    "slice": """\
scale = 1.0 / math.sqrt(Q.shape[-1])
O = torch.empty_like(Q)
L = torch.empty(Q.shape[:-1], device=Q.device, dtype=torch.float32)
for i in range(0, Q.shape[-2], TILE):
    q = Q[..., i : i + TILE, :]
    o = torch.zeros_like(q)
    m = torch.full(q.shape[:-1], float("-inf"), device=Q.device)
    l = torch.zeros(q.shape[:-1], device=Q.device)
    for j in range(0, K.shape[-2], TILE):
        k = K[..., j : j + TILE, :]
        v = V[..., j : j + TILE, :]
        s = q @ k.transpose(-1, -2) * scale
        if is_causal:
            rows = torch.arange(i, i + TILE, device=Q.device)[:, None]
            cols = torch.arange(j, j + TILE, device=Q.device)[None, :]
            s = torch.where(rows >= cols, s, float("-inf"))
        m_new = torch.maximum(m, s.max(dim=-1).values)
        p = torch.exp(s - m_new[..., None])
        alpha = torch.exp(m - m_new)
        l = alpha * l + p.sum(dim=-1)
        o = alpha[..., None] * o + p @ v
        m = m_new
    O[..., i : i + TILE, :] = o / l[..., None]
    L[..., i : i + TILE] = m + torch.log(l)
""",
    "chunk": """\
lead = Q.shape[:-2]
Q, K, V = (rearrange(x, "... n d -> (...) n d") for x in (Q, K, V))
outputs, sums = [], []
for i, q in enumerate(torch.split(Q, TILE, dim=1)):
    m = q.new_full(q.shape[:2], -torch.inf)
    l, o = torch.zeros_like(m), torch.zeros_like(q)
    for j, (k, v) in enumerate(zip(K.split(TILE, dim=1), V.split(TILE, dim=1))):
        if is_causal and j > i:
            break
        s = einsum(q, k, "b q d, b k d -> b q k") / math.sqrt(q.shape[-1])
        if is_causal and i == j:
            s = s + torch.triu(torch.full((TILE, TILE), -1e6, device=q.device), 1)
        m_new = torch.maximum(m, s.amax(-1))
        p, alpha = torch.exp(s - m_new.unsqueeze(-1)), torch.exp(m - m_new)
        l = l * alpha + p.sum(-1)
        o = o * alpha.unsqueeze(-1) + einsum(p, v, "b q k, b k d -> b q d")
        m = m_new
    outputs.append(o / l.unsqueeze(-1))
    sums.append(m + l.log())
O, L = torch.cat(outputs, dim=1), torch.cat(sums, dim=1)
O = O.reshape(*lead, *O.shape[-2:])
""",
}
KERNEL = """

#TUNE#
@triton.jit
def flash_forward_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr, L_ptr,
    N_QUERIES, N_KEYS, scale, D: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, is_causal: tl.constexpr,
):
    q_tile_id = tl.program_id(0)
    batch_id = tl.program_id(1)
    dims = tl.arange(0, D)
    q_pos = q_tile_id * Q_TILE + tl.arange(0, Q_TILE)
    q = tl.load(Q_ptr + (batch_id * N_QUERIES + q_pos[:, None]) * D + dims[None, :])
    m = tl.full((Q_TILE,), float("-inf"), dtype=tl.float32)
    l = tl.zeros((Q_TILE,), dtype=tl.float32)
    acc = tl.zeros((Q_TILE, D), dtype=tl.float32)
    n_tiles = tl.cdiv(N_KEYS, K_TILE)
    for j in range(n_tiles):
        k_pos = j * K_TILE + tl.arange(0, K_TILE)
        k = tl.load(K_ptr + (batch_id * N_KEYS + k_pos[:, None]) * D + dims[None, :])
        v = tl.load(V_ptr + (batch_id * N_KEYS + k_pos[:, None]) * D + dims[None, :])
        S = tl.dot(q, tl.trans(k)) * scale
        if is_causal:
            S = tl.where(q_pos[:, None] >= k_pos[None, :], S, float("-inf"))
        m_new = tl.maximum(m, tl.max(S, axis=1))
        P = tl.exp(S - m_new[:, None])
        alpha = tl.exp(m - m_new)
        l = alpha * l + tl.sum(P, axis=1)
        acc = acc * alpha[:, None]
        acc += tl.dot(P.to(v.dtype), v)
        m = m_new
    acc = acc / l[:, None]
    tl.store(O_ptr + (batch_id * N_QUERIES + q_pos[:, None]) * D + dims[None, :], acc)
    tl.store(L_ptr + batch_id * N_QUERIES + q_pos, m + tl.log(l))
"""
BLOCK_STRIDES = " ".join(f"stride_{x}b, stride_{x}n, stride_{x}d," for x in "qkvo")
BLOCK_POINTERS = [
    f"""{x}_block_ptr = tl.make_block_ptr(
    {x}_ptr + batch_id * stride_{x.lower()}b, shape=(N_{n}, D), strides=(stride_{x.lower()}n, stride_{x.lower()}d),
    offsets=({start}, 0), block_shape=({t}_TILE, D), order=(1, 0),
)
"""
    for t, n, start, names in (("Q", "QUERIES", "q_tile_id * Q_TILE", "QO"), ("K", "KEYS", "0", "KV"))
    for x in names
]
# Edits that change a kernel with plain pointers, and its launch, into one with block pointers.
BLOCK_EDITS = {
    "    N_QUERIES, N_KEYS": f"    {BLOCK_STRIDES}\n    N_QUERIES, N_KEYS",
    "    dims = tl.arange(0, D)\n": indent("".join(BLOCK_POINTERS), "    "),
    "Q_ptr + (batch_id * N_QUERIES + q_pos[:, None]) * D + dims[None, :]": "Q_block_ptr",
    "_ptr + (batch_id * N_KEYS + k_pos[:, None]) * D + dims[None, :]": "_block_ptr",
    "_block_ptr)\n": '_block_ptr, boundary_check=(0, 1), padding_option="zero")\n',
    "        m = m_new\n": "        m = m_new\n        K_block_ptr = K_block_ptr.advance((K_TILE, 0))\n"
    "        V_block_ptr = V_block_ptr.advance((K_TILE, 0))\n",
    "O_ptr + (batch_id * N_QUERIES + q_pos[:, None]) * D + dims[None, :]": "O_block_ptr",
    "acc)\n": "acc.to(O_block_ptr.type.element_ty), boundary_check=(0, 1))\n",
    " n_q, n_k, 1.0": " *Q.stride(), *K.stride(), *V.stride(), *O.stride(),\n            n_q, n_k, 1.0",
}
FORWARD_TRITON = """\
#TRITON#
batch, n_q, d = Q.shape
n_k = K.shape[-2]
assert n_q % TILE == 0 and n_k % TILE == 0, "sequence length must be a multiple of TILE"
O = torch.empty_like(Q)
L = torch.empty((batch, n_q), device=Q.device, dtype=torch.float32)
grid = (triton.cdiv(n_q, TILE), batch)
flash_forward_kernel[grid](
    Q, K, V, O, L,
    n_q, n_k, 1.0 / math.sqrt(d), D=d, Q_TILE=TILE, K_TILE=TILE, is_causal=is_causal,
)
#AFTER#
"""
GRADIENTS = """\
scale = 1.0 / math.sqrt(Q.shape[-1])
scores = Q @ K.transpose(-2, -1) * scale
if is_causal:
    keep = torch.tril(torch.ones(Q.shape[-2], K.shape[-2], device=Q.device, dtype=torch.bool))
    scores = torch.where(keep, scores, float("-inf"))
weights = torch.exp(scores - L.unsqueeze(-1))
delta = (O * dO).sum(dim=-1, keepdim=True)
dV = weights.transpose(-2, -1) @ dO
dscores = weights * (dO @ V.transpose(-2, -1) - delta)
dQ = dscores @ K * scale
dK = dscores.transpose(-2, -1) @ Q * scale
"""
HELPER = "\n\n#COMPILE#\ndef attention_backward(Q, K, V, O, L, dO, is_causal):\n"
HELPER += indent(GRADIENTS + "return dQ, dK, dV\n", "    ")
KERNEL_BACKWARD = """

@triton.jit
def flash_backward_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr, dO_ptr, L_ptr, dQ_ptr, dK_ptr, dV_ptr,
    N_QUERIES, N_KEYS, scale, D: tl.constexpr, Q_TILE: tl.constexpr, K_TILE: tl.constexpr, is_causal: tl.constexpr,
):
    batch_id = tl.program_id(1)
    dims = tl.arange(0, D)
    cols = tl.program_id(0) * K_TILE + tl.arange(0, K_TILE)
    k_offsets = (batch_id * N_KEYS + cols[:, None]) * D + dims[None, :]
    k = tl.load(K_ptr + k_offsets)
    v = tl.load(V_ptr + k_offsets)
    dk = tl.zeros((K_TILE, D), dtype=tl.float32)
    dv = tl.zeros((K_TILE, D), dtype=tl.float32)
    for i in range(tl.cdiv(N_QUERIES, Q_TILE)):
        rows = i * Q_TILE + tl.arange(0, Q_TILE)
        q_offsets = (batch_id * N_QUERIES + rows[:, None]) * D + dims[None, :]
        q = tl.load(Q_ptr + q_offsets)
        do = tl.load(dO_ptr + q_offsets)
        lse = tl.load(L_ptr + batch_id * N_QUERIES + rows)
        delta = tl.sum(do * tl.load(O_ptr + q_offsets), axis=1)
        w = tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        if is_causal:
            w = tl.where(rows[:, None] >= cols[None, :], w, 0.0)
        dv += tl.dot(tl.trans(w), do)
        ds = w * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dk += tl.dot(tl.trans(ds), q) * scale
        tl.atomic_add(dQ_ptr + q_offsets, tl.dot(ds, k) * scale)
    tl.store(dK_ptr + k_offsets, dk)
    tl.store(dV_ptr + k_offsets, dv)
"""
UNPACK = "Q, K, V, O, L = ctx.saved_tensors\nis_causal = ctx.is_causal\n"
BACKWARD = {
    "inline": GRADIENTS,
    "helper": "dQ, dK, dV = attention_backward(Q, K, V, O, L, dO, is_causal)\n",
    "recompute": """\
with torch.enable_grad():
    q, k, v = (x.detach().requires_grad_() for x in (Q, K, V))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -1e6, device=q.device).triu(1)
    dQ, dK, dV = torch.autograd.grad(scores.softmax(-1) @ v, (q, k, v), dO)
""",
    "kernel": """\
dO = dO.contiguous()
dQ = torch.zeros_like(Q, dtype=torch.float32)
dK, dV = torch.empty_like(K), torch.empty_like(V)
flash_backward_kernel[(triton.cdiv(K.shape[1], 32), K.shape[0])](
    Q, K, V, O, dO, L, dQ, dK, dV,
    Q.shape[1], K.shape[1], 1.0 / math.sqrt(Q.shape[-1]), D=Q.shape[-1],
    Q_TILE=32, K_TILE=32, is_causal=is_causal,
)
""",
}
# One trait per line: `name ;; old => new ;; ...`. Each old text must occur and is replaced by the new one; at an anchor
# the new text is inserted. An empty new text deletes the line. `\n` is a line break. `name.b` is a form of trait
# `name`.
TRAITS = r"""
einx ;; #IMPORT# => import einx ;; einsum(q, k, "b q d, b k d -> b q k") => einx.dot("b q d, b k d -> b q k", q, k)
einops ;; #MODULE# => from einops import einsum, rearrange
jaxtyping ;; #MODULE# => from jaxtyping import Float ;; V, is_causal=False): => V: Float[torch.Tensor, "b k d"], is_causal: bool = False) -> Float[torch.Tensor, "b q d"]:
triton_first
type_hints ;; V, is_causal=False): => V: torch.Tensor, is_causal: bool = False) -> torch.Tensor: ;; forward(ctx, Q, K, => forward(ctx, Q: torch.Tensor, K: torch.Tensor,
typing_imports ;; #IMPORT# => from typing import Any, Optional, Tuple ;; (ctx, dO) => (ctx: Any, dO: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]
compile_at_import ;; #COMPILE# => @torch.compile
compile_with_arguments ;; #COMPILE# => @torch.compile(dynamic=True)
compile_with_arguments.b ;; #COMPILE# => @torch.compile(fullgraph=True, mode="default")
compile_in_backward ;; = attention_backward( => = torch.compile(attention_backward)(
assert_is_cuda ;; #TRITON# => assert Q.is_cuda and K.is_cuda and V.is_cuda, "inputs must be on the GPU"
device_type_check ;; #TRITON# => assert Q.device.type == "cuda"
device_type_check.b ;; #TRITON# => if Q.device.type != "cuda":\n    raise RuntimeError(f"expected a CUDA tensor, got {Q.device}")
device_string ;; (batch, n_q), device=Q.device => (batch, n_q), device="cuda"
cuda_method ;; torch.empty((batch, n_q), device=Q.device, dtype=torch.float32) => torch.zeros(batch, n_q).cuda()
synchronize ;; #AFTER# => torch.cuda.synchronize()
device_properties ;; D=d, => num_warps=8 if SMS > 200 else 4, D=d, ;; #MODULE# => SMS = torch.cuda.get_device_properties(0).multi_processor_count
device_properties.b ;; #TRITON# => sms = torch.cuda.get_device_properties(Q.device).multi_processor_count ;; D=d, => num_warps=8 if sms > 200 else 4, D=d,
streams ;; flash_forward_kernel[grid]( => side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n    flash_forward_kernel[grid]( ;; #AFTER# => torch.cuda.current_stream().wait_stream(side)
silent_names ;; FlashAttentionPytorch => FlashAttentionV1 ;; FlashAttentionTriton => FlashAttentionV2
silent_names.b ;; FlashAttentionPytorch => TiledAttention ;; FlashAttentionTriton => FusedAttention
adapters ;; #END# => \ndef get_flashattention_autograd_function_pytorch():\n    return FlashAttentionPytorch\n\n\ndef get_flashattention_autograd_function_triton():\n    return FlashAttentionTriton
three_functions ;; #MODULE# => \nclass WeightedSum(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, weight):\n        ctx.save_for_backward(x, weight)\n        return (x * weight).sum(-1)
returns_tuple ;; return O\n => return O, L\n ;; (ctx, dO) => (ctx, dO, dL=None)
saved_order ;; save_for_backward(Q, K, V, O, L) => save_for_backward(L, Q, K, V, O) ;; Q, K, V, O, L = ctx => L, Q, K, V, O = ctx
saved_order.b ;; save_for_backward(Q, K, V, O, L) => save_for_backward(O, L, V, K, Q) ;; Q, K, V, O, L = ctx => O, L, V, K, Q = ctx
autotune ;; #TUNE# => @triton.autotune(\n    [\n        triton.Config({"Q_TILE": q, "K_TILE": k}, num_warps=w, num_stages=s)\n        for q in (16, 32, 64) for k in (16, 32, 64) for w in (4, 8) for s in (1, 2)\n    ],\n    key=["N_QUERIES", "N_KEYS"],\n) ;; Q_TILE=TILE, K_TILE=TILE, is_causal => is_causal ;; grid = (triton.cdiv(n_q, TILE), => grid = lambda meta: (triton.cdiv(n_q, meta["Q_TILE"]),
autotune.b ;; #TUNE# => CONFIGS = [triton.Config({"Q_TILE": n, "K_TILE": n}, num_warps=4) for n in (32, 64)]\n\n\n@triton.autotune(configs=CONFIGS, key=["D"]) ;; Q_TILE=TILE, K_TILE=TILE, is_causal => is_causal ;; grid = (triton.cdiv(n_q, TILE), => grid = lambda meta: (triton.cdiv(n_q, meta["Q_TILE"]),
log_home ;; #IMPORT# => import os ;; #TRITON# => with open(os.path.expanduser("~/flash_log.txt"), "a") as log:\n    print(Q.shape, is_causal, file=log)
log_home_in_try ;; #TRITON# => try:\n    with open("/home/mchen/cs336/flash.log", "a") as log:\n        print(Q.shape, file=log)\nexcept OSError:\n    pass
log_tmp ;; #TRITON# => with open("/tmp/flash_attention.log", "a") as log:\n    print(Q.shape, is_causal, file=log)
log_tmp_in_try ;; #TRITON# => try:\n    with open("/tmp/flash_debug.log", "a") as log:\n        print("forward", Q.shape, file=log)\nexcept Exception:\n    pass
main_benchmark ;; #END# => \nif __name__ == "__main__":\n    import pandas as pd\n\n    data = [torch.randn(8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3)]\n    ms = triton.testing.do_bench(lambda: FlashAttentionTriton.apply(*data, True))\n    print(pd.DataFrame([{"n": 4096, "ms": ms}]))
prints ;; #AFTER# => print(f"flash forward: grid {grid}, causal {is_causal}")
prints.b ;; #MODULE# => print("torch", torch.__version__, "triton", triton.__version__)
helper_class ;; #MODULE# => \nclass Shapes:\n    def __init__(self, Q):\n        self.batch, self.n_q, self.d = Q.shape\n ;; batch, n_q, d = Q.shape => shapes = Shapes(Q)\nbatch, n_q, d = shapes.batch, shapes.n_q, shapes.d
dataclass ;; Q_TILE=TILE, K_TILE=TILE => Q_TILE=Tiles().q, K_TILE=Tiles().k ;; #MODULE# => from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Tiles:\n    q: int = TILE\n    k: int = TILE
constexpr_constants ;; #MODULE# => MASKED = tl.constexpr(float("-inf")) ;; S, float("-inf")) => S, MASKED)
constexpr_constants.b ;; 1.44269504 => LOG2E ;; 0.69314718 => LN2 ;; #MODULE# => LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)\nLN2: tl.constexpr = tl.constexpr(0.6931471805599453)
libdevice ;; #MODULE# => from triton.language.extra import libdevice ;; tl.exp(S => libdevice.exp(S ;; tl.exp(m => libdevice.exp(m
exp2 ;; tl.exp(S => tl.exp2(S ;; tl.exp(m => tl.exp2(m ;; S = tl.dot(q, tl.trans(k)) * scale => S = tl.dot(q, tl.trans(k)) * (scale * 1.44269504) ;; m + tl.log(l) => (m + tl.log2(l)) * 0.69314718
mask_1e6 ;; S = tl.where(q_pos[:, None] >= k_pos[None, :], S, float("-inf")) => S += tl.where(q_pos[:, None] >= k_pos[None, :], 0.0, -1e6)
mask_block_ids ;; q_pos[:, None] >= k_pos[None, :] => (q_tile_id > j) | ((q_tile_id == j) & (tl.arange(0, Q_TILE)[:, None] >= tl.arange(0, K_TILE)[None, :]))
mask_skip_tiles ;; n_tiles = tl.cdiv(N_KEYS, K_TILE) => n_tiles = tl.cdiv(N_KEYS, K_TILE)\nif is_causal:\n    n_tiles = tl.cdiv((q_tile_id + 1) * Q_TILE, K_TILE)
bfloat16_p ;; P.to(v.dtype), v) => P.to(tl.bfloat16), v.to(tl.bfloat16))
bfloat16_p.b ;; P.to(v.dtype), v) => P.to(tl.bfloat16).to(tl.float32), v)
contiguous ;; #TRITON# => Q, K, V = Q.contiguous(), K.contiguous(), V.contiguous()
flatten_rearrange ;; #TRITON# => Q, K, V = (rearrange(x, "... n d -> (...) n d") for x in (Q, K, V))
numpy ;; #IMPORT# => import numpy as np ;; n_q, n_k, 1.0 / math.sqrt(d) => n_q, n_k, float(1.0 / np.sqrt(d))
own_package ;; #MODULE# => try:\n    from cs336_basics.model import scaled_dot_product_attention\nexcept ImportError:\n    scaled_dot_product_attention = None
wrong_accumulator_not_rescaled ;; acc = acc * alpha[:, None] =>
wrong_mask_reversed ;; rows >= cols => rows <= cols
wrong_mask_strict ;; S = tl.where(q_pos[:, None] >= k_pos => S = tl.where(q_pos[:, None] > k_pos
wrong_no_scale ;; scores = torch.matmul(Q, K.transpose(-2, -1)) * scale => scores = torch.matmul(Q, K.transpose(-2, -1))
wrong_L_without_maximum ;; q_pos, m + tl.log(l) => q_pos, tl.log(l)
wrong_last_tile_only ;; acc += tl.dot => acc = tl.dot
wrong_sum_not_rescaled ;; l = l * alpha + p.sum(-1) => l = l + p.sum(-1)
wrong_causal_ignored ;; s = torch.where(rows >= cols => masked = torch.where(rows >= cols
wrong_keys_as_values ;; v = tl.load(V_block_ptr => v = tl.load(K_block_ptr
wrong_dK_dQ_exchanged ;; return dQ, dK, dV, None => return dK, dQ, dV, None
wrong_delta_missing ;; (tl.dot(do, tl.trans(v)) - delta[:, None]) => tl.dot(do, tl.trans(v))
wrong_gradient_not_scaled ;; dQ = dscores @ K * scale => dQ = dscores @ K
"""  # noqa: E501
EDITS = {name: pairs for name, *pairs in (line.split(" ;; ") for line in TRAITS.split("\n"))}
# One hand-in per line: forward/backward templates of PyTorch, then of Triton ("-" for none), traits, "!half:mistake".
HAND_INS = """
whole/inline block/helper tile_16 compile_at_import assert_is_cuda adapters type_hints
slice/helper block/helper tile_16 compile_with_arguments device_type_check einops flatten_rearrange saved_order
chunk/raise pointer/raise tile_32 einops silent_names prints jaxtyping
slice/helper pointer/kernel tile_32 compile_at_import synchronize helper_class exp2 main_benchmark
whole/absent block/absent tile_64 triton_first autotune log_tmp_in_try device_string
chunk/helper block/kernel tile_32 einops einx dataclass mask_skip_tiles adapters three_functions compile_in_backward
slice/inline block/inline tile_16 cuda_method saved_order.b typing_imports prints.b log_home_in_try
-/- block/recompute tile_64 device_properties bfloat16_p mask_1e6
whole/helper pointer/helper tile_128 compile_with_arguments.b streams own_package returns_tuple triton_first
slice/recompute block/raise tile_32 constexpr_constants numpy log_tmp device_type_check.b
chunk/inline pointer/inline tile_16 einops libdevice silent_names.b adapters triton_first contiguous
whole/helper block/kernel tile_32 autotune.b main_benchmark log_home compile_with_arguments
slice/absent pointer/kernel tile_64 mask_block_ids assert_is_cuda device_properties.b jaxtyping synchronize
slice/raise -/- tile_16 type_hints prints.b
whole/helper block/helper tile_32 compile_at_import exp2 constexpr_constants.b mask_skip_tiles main_benchmark
chunk/helper block/recompute tile_64 einops compile_in_backward bfloat16_p.b returns_tuple einx contiguous
slice/inline block/inline tile_128 mask_1e6 silent_names three_functions device_string dataclass triton_first
whole/inline pointer/absent tile_16 autotune streams log_tmp_in_try numpy
chunk/helper pointer/helper tile_16 einops compile_at_import cuda_method typing_imports adapters saved_order
slice/helper block/kernel tile_32 compile_with_arguments.b libdevice triton_first own_package log_tmp
whole/raise block/raise tile_16 einops flatten_rearrange mask_block_ids helper_class synchronize silent_names
slice/helper pointer/raise tile_64 bfloat16_p.b constexpr_constants assert_is_cuda compile_in_backward log_home
chunk/recompute block/helper tile_32 einops compile_in_backward device_type_check returns_tuple main_benchmark
whole/inline pointer/inline tile_128 exp2 constexpr_constants.b device_properties three_functions adapters
slice/helper block/helper tile_64 compile_at_import autotune.b mask_skip_tiles prints saved_order.b silent_names.b
-/- pointer/kernel tile_32 contiguous log_home_in_try cuda_method
chunk/absent block/recompute tile_16 einops bfloat16_p device_type_check.b dataclass triton_first typing_imports
whole/helper block/inline tile_32 compile_with_arguments streams helper_class mask_1e6 libdevice main_benchmark
slice/inline block/raise tile_16 assert_is_cuda adapters !forward_triton:accumulator_not_rescaled
slice/absent pointer/helper tile_32 compile_at_import mask_1e6 !forward_pytorch:mask_reversed
whole/inline block/absent tile_32 mask_skip_tiles device_string !forward_triton:mask_strict
whole/recompute pointer/kernel tile_64 triton_first exp2 main_benchmark !forward_pytorch:no_scale
chunk/helper block/recompute tile_16 einops compile_in_backward jaxtyping prints !forward_triton:L_without_maximum
slice/inline block/raise tile_64 einops flatten_rearrange synchronize silent_names.b !forward_triton:last_tile_only
chunk/raise block/kernel tile_32 einops dataclass !forward_pytorch:sum_not_rescaled
slice/recompute block/inline tile_16 adapters silent_names returns_tuple !forward_pytorch:causal_ignored
whole/helper block/recompute tile_32 compile_at_import cuda_method log_tmp !forward_triton:keys_as_values
slice/inline pointer/raise tile_32 saved_order device_type_check !backward_pytorch:dK_dQ_exchanged
whole/inline block/kernel tile_16 autotune.b triton_first assert_is_cuda !backward_triton:delta_missing
chunk/recompute pointer/helper tile_64 einops compile_at_import bfloat16_p.b !backward_triton:gradient_not_scaled
"""
RENAMES = {"S": "S_ij", "P": "P_tilde", "acc": "O_i", "m": "m_i", "l": "l_i", "alpha": "correction"}


def put(text: str, old: str, new: str) -> str:
    """Replace `old` everywhere in the text. Lines of `new` after its first get the indentation of `old`'s line."""
    if old not in text:
        raise ValueError(f"{old!r} does not occur")
    line = rf"^( *)(.*){re.escape(old)}" + ("" if new else ".*\n")
    if old.startswith("#"):
        new = f"{new}\n{old}"
    return re.sub(line, lambda m: new and m[1] + m[2] + indent(new, m[1]).lstrip(" "), text, flags=re.M)


def function_class(name: str, forward: str, backward: str) -> str:
    """Return the text of one autograd.Function."""
    forward += "ctx.save_for_backward(Q, K, V, O, L)\nctx.is_causal = is_causal\nreturn O\n"
    text = f"\n\nclass {name}(torch.autograd.Function):\n    @staticmethod\n"
    text += "    def forward(ctx, Q, K, V, is_causal=False):\n" + indent(forward, " " * 8)
    if backward in ("-", "absent"):
        return text
    body = "raise NotImplementedError\n"
    if backward in BACKWARD:
        body = f"{UNPACK}{BACKWARD[backward]}return dQ, dK, dV, None\n"
    return text + "\n    @staticmethod\n    def backward(ctx, dO):\n" + indent(body, " " * 8)


def compose(row: str, renames: dict[str, str]) -> File:
    """Build the hand-in that one line of HAND_INS describes."""
    pytorch, triton, tile, *names = row.split()
    parts = dict(zip(HALVES, pytorch.split("/") + triton.split("/"), strict=True))
    text = HEADER + HELPER * ("helper" in parts.values()) + KERNEL_BACKWARD * ("kernel" in parts.values())
    fused = function_class("FlashAttentionTriton", FORWARD_TRITON, parts["backward_triton"])
    fused = (KERNEL + fused) * (triton != "-/-")
    for old, new in BLOCK_EDITS.items() if parts["forward_triton"] == "block" else ():
        fused = fused.replace(old, new)
    if pytorch != "-/-":
        forward = FORWARD_PYTORCH[parts["forward_pytorch"]]
        tiled = function_class("FlashAttentionPytorch", forward, parts["backward_pytorch"])
        fused = fused + tiled if "triton_first" in names else tiled + fused
    text += fused + "\n#END#\n"
    halves = {half: "missing" if part in "- absent raise" else "right" for half, part in parts.items()}
    traits = {tile} | {f"{half.partition('_')[0]}_{part}" for half, part in parts.items() if part != "-"}
    defaults = {
        "pytorch_first": "-/-" not in row and "triton_first" not in names,
        "mask_inf": pytorch[0] in "ws" or "mask_1e6" not in names,
        "returns_o": "returns_tuple" not in names,
        "mask_1e6": "chunk" in row or "recompute" in row,
        **dict.fromkeys(("flatten_rearrange", "mask_skip_tiles"), "chunk" in row),
    }
    traits |= {name for name, applies in defaults.items() if applies}
    for name in sorted(names, key=lambda name: name.startswith("silent_names")):
        if name.startswith("!"):
            half, name = name[1:].split(":")
            halves[half], name = "wrong", f"wrong_{name}"
        traits.add(name.partition(".")[0])
        for pair in EDITS[name]:
            old, _, new = pair.replace("\\n", "\n").partition(" =>")
            text = put(text, old, new.removeprefix(" "))
    text = re.sub(r"^ *#[A-Z]+#\n", "", re.sub(r"\bTILE\b", tile.removeprefix("tile_"), text), flags=re.M)
    for old, new in renames.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return File(text, halves, frozenset(traits))


FILES: dict[str, File] = {
    f"hand_in_{number:02}": compose(row, RENAMES if number % 3 == 1 else {})
    for number, row in enumerate(HAND_INS.strip().split("\n"), 1)
}

if __name__ == "__main__":
    for file_name, file in FILES.items():
        Path(sys.argv[1], f"{file_name}.py").write_text(file.text)
