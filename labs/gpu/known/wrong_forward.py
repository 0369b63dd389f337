"""Wrong kernels of attention's forward pass, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

PART = "flash_forward"
SEEN = "                seen = seen & (keys[None, :] <= rows[:, None])\n"
TAIL = "            seen = (keys < M)[None, :]\n"
NOW = "        now = tl.maximum(m, tl.max(s, 1) * scale)\n"
P = "        p = tl.exp2(s * scale - now[:, None])\n"
RESCALE = "        rescale = tl.exp2(m - now)\n"
SUM = "        total = total * rescale + tl.sum(p, 1)\n"
ACC = "        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])\n"
L = "(m + tl.log2(total)) / LOG2_E"
SCALE = "d**-0.5 * LOG2_E.value"
BOTH = '            s = tl.where(seen, s, float("-inf"))\n'

WRONG_FORWARD = (
    Mutation("nothing rescaled", PART, ((RESCALE, "        rescale = tl.exp2(now - now)\n"),), ("no_rescale",),
             says="either"),
    Mutation("accumulator not rescaled", PART, ((ACC, ACC.replace(" * rescale[:, None]", "")),), ("no_rescale",),
             says="accumulator"),
    Mutation("sum not rescaled", PART, ((SUM, SUM.replace("total * rescale", "total")),), ("no_rescale",),
             says="sum l"),
    Mutation("mask reversed", PART, ((SEEN, SEEN.replace("<=", ">=")),),
             ("mask_reversed", "no_rescale", "not_finite")),
    Mutation(
        "values by the strides of keys",
        PART,
        (
            ("k_strides[1], v_strides[1], rows", "k_strides[1], k_strides[1], rows", 2),
            ("v_strides[0]", "k_strides[0]"),
        ),
    ),
    Mutation("strict mask", PART, ((SEEN, SEEN.replace("<=", "<")),), ("mask_strict", "not_finite")),
    Mutation("one key too many", PART, ((SEEN, SEEN.replace("rows[:, None]", "rows[:, None] + 1")),),
             ("mask_strict",)),
    Mutation("no single key masked", PART, ((SEEN, "                seen = seen\n"),),
             ("mask_by_tiles", "mask_missing")),
    Mutation("never causal", PART, (("CAUSAL=causal", "CAUSAL=False"),), ("mask_missing",)),
    Mutation("always causal", PART, (("CAUSAL=causal", "CAUSAL=True"),), ("mask_always",)),
    Mutation("masked by 0", PART, ((BOTH, BOTH.replace('float("-inf")', "0.0")),), ("mask_as_zero", "tail_unmasked")),
    Mutation("tail not masked", PART, ((TAIL, "            seen = (keys >= 0)[None, :]\n"),), ("tail_unmasked",)),
    Mutation("last keys left out", PART, (("    last = M\n", "    last = M // KEYS * KEYS\n"),),
             ("dropped_block", "not_finite")),
    Mutation("overwritten", PART,
             ((ACC, "        acc = tl.dot(p.to(v.dtype), v)\n"), (SUM, "        total = tl.sum(p, 1)\n")),
             ("last_block_only",)),
    Mutation("weights to base 2", PART, ((SCALE, "d**-0.5"),), ("base_mixed",)),
    Mutation("log2(e) and exp", PART, ((P, P.replace("exp2", "exp")), (RESCALE, RESCALE.replace("exp2", "exp"))),
             ("base_mixed",)),
    Mutation("rescaled to another base", PART, ((RESCALE, RESCALE.replace("exp2", "exp")),), ("base_mixed",)),
    Mutation("L to base 2", PART, ((L, "m + tl.log2(total)"),), ("sum_base",)),
    Mutation("natural and base 2", PART, ((L, "m + tl.log(total)"),), ("sum_base",)),
    Mutation("L without maximum", PART, ((L, "tl.log(total)"),), ("sum_without_maximum",)),
    Mutation("L is a sum", PART, ((L, "total"),), ("sum_alone",)),
    Mutation("no scale", PART, ((SCALE, "LOG2_E.value"),), ("scale_missing",)),
    Mutation("divided by d", PART, ((SCALE, "LOG2_E.value / d"),), ("scale_wrong",)),
    Mutation("not divided", PART, (("acc / total[:, None]", "acc"),), ("not_normalised",)),
    Mutation("divided by M", PART, (("acc / total[:, None]", "acc / M"),), ("divided_by_keys",)),
    Mutation("maximum begins at 0", PART,
             (('m = tl.full([ROWS], float("-inf"), tl.float32)', "m = tl.zeros([ROWS], tl.float32)"),),
             ("maximum_start", "not_finite")),
    Mutation(
        "no maximum",
        PART,
        (
            (NOW, "        now = tl.zeros_like(m)\n"),
            ('m = tl.full([ROWS], float("-inf"), tl.float32)', "m = tl.zeros([ROWS], tl.float32)"),
        ),
        ("no_maximum", "maximum_start", "not_finite"),
    ),
    Mutation(
        "sums in float16",
        PART,
        (
            (
                ACC,
                "        acc = (acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)).to(tl.float16).to(tl.float32)\n",
            ),
            (SUM, "        total = (total * rescale + tl.sum(p, 1)).to(tl.float16).to(tl.float32)\n"),
        ),
        ("half_accumulator", "low_precision"),
    ),
    Mutation(
        "scaled in 16 bits",
        PART,
        (
            (
                "        s = tl.dot(q, tl.trans(k))\n",
                "        s = tl.dot((q * scale).to(q.dtype), tl.trans(k)) / scale\n",
            ),
        ),
        ("half_accumulator", "low_precision", "wrong_values"),
    ),
    Mutation("keys for values", PART, (("v = _load_tile(v_ptr, v_stride", "v = _load_tile(k_ptr, k_stride"),),
             ("operand_exchanged",)),
    Mutation("one head", PART, (("    k_ptr += head * k_strides[0]\n", ""),),
             ("wrong_values", "heads", "first_head")),
    Mutation("as if contiguous", PART,
             (("q.stride()[:2], k.stride()[:2], v.stride()[:2]", "(N * d, d), (M * d, d), (M * d, d)"),),
             ("operand_not_contiguous", "not_finite")),
    Mutation("last rows not stored", PART,
             (("_forward[(triton.cdiv(N, rows), B)]", "_forward[(max(1, N // rows), B)]"),),
             ("row_range", "remainder_tile", "partly_not_written", "race", "not_finite")),
)  # fmt: skip
