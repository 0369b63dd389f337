"""Wrong kernels of attention's backward pass, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

PART = "flash_backward"
DV = "        dv = tl.dot(p.to(do.dtype), do, dv)\n"
DK = "        dk = tl.dot(ds.to(q.dtype), q, dk)\n"
DQ = "        dq = tl.dot(ds.to(k.dtype), k, dq)\n"
KEY_DS = "        ds = p * (dp - delta[None, :])\n"
QUERY_DS = "        ds = p * (dp - delta[:, None])\n"
KEY_SEEN = "                seen = seen & (keys[:, None] <= rows[None, :])\n"
QUERY_SEEN = "                seen = seen & (keys[None, :] <= rows[:, None])\n"
KEY_ALL, QUERY_ALL = (
    "                seen = seen & (rows >= 0)[None, :]\n",
    "                seen = seen & (rows >= 0)[:, None]\n",
)
KEY_P = "        p = tl.exp2(s * scale - lse[None, :])\n"
QUERY_P = "        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])\n"
SUMS = "tl.sum(o * do, 1)"
UNITS = "mask=rows < N, other=0.0) * LOG2_E"
KEY_BLOCKS = "    rows, keys, warps, stages = _key_blocks(D, q.element_size())\n"
EQUAL_BLOCKS = "    rows, keys, warps, stages = 16, 16, 4, 2\n"


def _ds(old: str, new: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """An edit of dS in both kernels."""
    return (KEY_DS, KEY_DS.replace(old, new)), (
        QUERY_DS,
        QUERY_DS.replace(old.replace("[None, :]", "[:, None]"), new.replace("[None, :]", "[:, None]")),
    )


WRONG_BACKWARD = (
    Mutation("dQ not scaled", PART, (("dq * (scale / LOG2_E)", "dq"),), ("scale_missing",), says="dQ"),
    Mutation("dK not scaled", PART, (("dk * (scale / LOG2_E)", "dk"),), ("scale_missing",), says="dK"),
    Mutation("scale of log2", PART,
             (("dk * (scale / LOG2_E)", "dk * scale"), ("dq * (scale / LOG2_E)", "dq * scale")), ("base_mixed",)),
    Mutation("dV scaled", PART,
             (("tile * KEYS, M, dv, KEYS, D, d)", "tile * KEYS, M, dv * (scale / LOG2_E), KEYS, D, d)"),),
             ("dv_scaled",)),
    Mutation("no D", PART, _ds("(dp - delta[None, :])", "dp"), ("delta_missing",)),
    Mutation("D added", PART, _ds("dp - delta", "dp + delta"), ("delta_sign",)),
    Mutation("D of dO", PART, ((SUMS, "tl.sum(do, 1)"),), ("delta_wrong",), says="rowsum(dO)"),
    Mutation("D of squares", PART, ((SUMS, "tl.sum(o * o, 1)"),), ("delta_wrong",), says="rowsum(O * O)"),
    Mutation("no weights in dS", PART, _ds("p * ", ""), ("weights_missing", "not_finite")),
    Mutation("D outside", PART, _ds("p * (dp - delta[None, :])", "p * dp - delta[None, :]"),
             ("delta_outside", "wrong_values")),
    Mutation("dV of P", PART, ((DV, DV.replace("p.to", "tl.trans(p).to")), (KEY_BLOCKS, EQUAL_BLOCKS)),
             ("not_transposed",)),
    Mutation("dK of dS", PART, ((DK, DK.replace("ds.to", "tl.trans(ds).to")), (KEY_BLOCKS, EQUAL_BLOCKS)),
             ("not_transposed",)),
    Mutation("dK of P", PART, ((DK, DK.replace("ds.to", "p.to")),), ("operand_exchanged",)),
    Mutation("dV of dS", PART, ((DV, ""), (DK, DK + "        dv = tl.dot(ds.to(do.dtype), do, dv)\n")),
             ("operand_exchanged",)),
    Mutation("dQ of P", PART, ((DQ, DQ.replace("ds.to", "p.to")),), ("operand_exchanged",)),
    Mutation(
        "dP of keys",
        PART,
        (
            ("dp = tl.dot(do, tl.trans(v))", "dp = tl.dot(do, tl.trans(k))"),
            ("dp = tl.dot(v, tl.trans(do))", "dp = tl.dot(k, tl.trans(do))"),
        ),
        ("operand_exchanged",),
    ),
    Mutation("dK for dV", PART, (("return dq, dk, dv", "return dq, dv, dk"),), ("outputs_exchanged",)),
    Mutation("no L", PART,
             ((KEY_P, KEY_P.replace(" - lse[None, :]", "")), (QUERY_P, QUERY_P.replace(" - lse[:, None]", ""))),
             ("weights_not_normalised", "not_finite")),
    Mutation("L of base e", PART, ((UNITS, "mask=rows < N, other=0.0)", 2),), ("base_mixed", "not_finite")),
    Mutation("never causal", PART, (("CAUSAL=causal", "CAUSAL=False", 2),), ("mask_missing", "not_finite")),
    Mutation("mask reversed", PART,
             ((KEY_SEEN, KEY_SEEN.replace("<=", ">=")), (QUERY_SEEN, QUERY_SEEN.replace("<=", ">="))),
             ("mask_reversed", "diagonal_dropped", "wrong_values")),
    Mutation("strict mask", PART,
             ((KEY_SEEN, KEY_SEEN.replace("<=", "<")), (QUERY_SEEN, QUERY_SEEN.replace("<=", "<"))),
             ("mask_strict",)),
    Mutation("mask by tiles", PART, ((KEY_SEEN, KEY_ALL), (QUERY_SEEN, QUERY_ALL)),
             ("mask_by_tiles", "mask_missing", "not_finite")),
    Mutation("last queries left out", PART, (("unmasked, N,\n", "unmasked, N // ROWS * ROWS,\n"),),
             ("dropped_block",)),
    Mutation("last keys left out", PART, (("    last = M\n", "    last = M // KEYS * KEYS\n"),), ("dropped_block",)),
    Mutation("dK overwritten", PART, ((DK, "        dk = tl.dot(ds.to(q.dtype), q)\n"),), ("last_block_only",)),
    Mutation("dQ overwritten", PART, ((DQ, "        dq = tl.dot(ds.to(k.dtype), k)\n"),), ("last_block_only",)),
    Mutation("negative", PART, (("dq * (scale / LOG2_E)", "-dq * (scale / LOG2_E)"),), ("negated",)),
    Mutation("scores not scaled", PART,
             ((KEY_P, KEY_P.replace("s * scale", "s * LOG2_E")), (QUERY_P, QUERY_P.replace("* scale", "* LOG2_E"))),
             ("score_scale_missing", "not_finite")),
)  # fmt: skip
