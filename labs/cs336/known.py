"""Test kernels with known verdicts. Each is the course's solution (the master) with one named change.

Each kernel of WRONG states diagnosis codes, of which the judge must give one; () if any failure suffices. Kernels of
RIGHT must pass. Students do not get this file.
"""

from __future__ import annotations

from grader.assignment.mutations import Mutation

__all__ = ["RIGHT", "WRONG"]

PYTORCH, BACK_PYTORCH, TRITON, BACK = (
    *("forward_pytorch", "backward_pytorch"),
    *("forward_triton", "backward_triton"),
)
SCALE = "1.0 / math.sqrt(d)"
MASK = "keys[None, :] <= rows[:, None]"
P = "        p = tl.exp(s - now[:, None])\n"
RESCALE = "        rescale = tl.exp(most - now)\n"
TOTAL = "        total = total * rescale + tl.sum(p, 1)\n"
ACC = "        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)\n"
L = "most + tl.log(total))"
TORCH_ACC = "                acc = acc * rescale[..., None] + p @ v[:, start : start + KEYS].float()\n"
TORCH_TOTAL = "                total = total * rescale + p.sum(-1)\n"
DS = "        dS = p * (dP - delta[:, rows, None]) * scale\n"

WRONG = (
    Mutation("no maximum carried", TRITON, ((RESCALE, "        rescale = tl.exp(now - now)\n"),), ("no_rescale",)),
    Mutation("accumulator not rescaled", TRITON, ((ACC, ACC.replace(" * rescale[:, None]", "")),), ("no_rescale",)),
    Mutation("sum not rescaled", TRITON, ((TOTAL, TOTAL.replace("total * rescale", "total")),), ("no_rescale",)),
    Mutation("mask reversed", TRITON, ((MASK, MASK.replace("<=", ">=")),), ("mask_reversed", "not_finite")),
    Mutation("strict mask", TRITON, ((MASK, MASK.replace("<=", "<")),), ("mask_strict", "not_finite")),
    Mutation("never causal", TRITON, (("CAUSAL=is_causal", "CAUSAL=False"),), ("mask_missing",)),
    Mutation("always causal", TRITON, (("CAUSAL=is_causal", "CAUSAL=True"),), ("mask_always",)),
    Mutation("masked by 0", TRITON, (('rows[:, None], s, float("-inf"))', "rows[:, None], s, 0.0)"),),
             ("mask_as_zero",)),
    Mutation("not scaled", TRITON, ((SCALE, "1.0"),), ("scale_missing",)),
    Mutation("scaled by d", TRITON, ((SCALE, "1.0 / d"),), ("scale_wrong",)),
    Mutation("last tile alone", TRITON,
             ((ACC, "        acc = tl.dot(p.to(v.dtype), v)\n"), (TOTAL, "        total = tl.sum(p, 1)\n")),
             ("last_block_only",)),
    Mutation("not divided", TRITON, (("    o = acc / total[:, None]\n", "    o = acc\n"),), ("not_normalised",)),
    Mutation("L without maximum", TRITON, ((L, "tl.log(total))"),), ("sum_without_maximum",)),
    Mutation("L to base 2", TRITON, ((L, "most + tl.log2(total))"),), ("sum_base",)),
    Mutation("keys as values", TRITON,
             (("keys[:, None] * v_row", "keys[:, None] * k_row"),
              ("v_ptr + batch * v_batch", "k_ptr + batch * k_batch")),
             ("operand_exchanged",)),
    Mutation("first batch alone", TRITON, (("k_ptr + batch * k_batch", "k_ptr"),), ()),
    Mutation("one key tile left out", TRITON, (("    end = M\n", "    end = M - KEYS\n"),),
             ("first_block_only", "dropped_block")),
    Mutation("sum not carried", PYTORCH, ((TORCH_TOTAL, "                total = total + p.sum(-1)\n"),),
             ("no_rescale",)),
    Mutation("O not rescaled", PYTORCH, ((TORCH_ACC, TORCH_ACC.replace(" * rescale[..., None]", "")),),
             ("no_rescale",)),
    Mutation("hides itself", PYTORCH,
             (("[None] > place\n                    s =", "[None] >= place\n                    s ="),),
             ("mask_strict", "not_finite")),
    Mutation("no delta", BACK, ((DS, DS.replace("(dP - delta[:, rows, None])", "dP")),), ("delta_missing",)),
    Mutation("dS not scaled", BACK, ((DS, DS.replace(" * scale\n", "\n")),), ("scale_missing",)),
    Mutation("dQ and dK exchanged", BACK_PYTORCH,
             (("        dQ[:, rows] = dS @ k.float()\n        dK += dS.transpose(-1, -2) @ q_tile\n",
               "        dK[:, rows] = dS @ k.float()\n        dQ += dS.transpose(-1, -2) @ q_tile\n"),),
             ()),
    Mutation("dV of the scores", BACK, (("        dV += p.transpose", "        dV += s.transpose"),), ()),
    Mutation("not causal", BACK_PYTORCH,
             (("        if is_causal:\n            place", "        if False:\n            place"),),
             ("mask_missing",)),
)  # fmt: skip

RIGHT = (
    Mutation("small tiles", TRITON, (("ROWS, KEYS = 64, 64", "ROWS, KEYS = 16, 32"),)),
    Mutation("a large negative number", TRITON, (('rows[:, None], s, float("-inf"))', "rows[:, None], s, -1e6)"),)),
    Mutation("of the natural size", PYTORCH, (("ROWS, KEYS = 64, 64", "ROWS, KEYS = 128, 16"),)),
    Mutation("compiled", BACK, (("def _backward(", "@torch.compile\ndef _backward("),)),
)  # fmt: skip
