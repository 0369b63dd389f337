"""Wrong loop nests of parts 1 to 3: scores, softmax and product in separate loops, with a workspace of one head."""

from functools import partial

from family_rows import BATCHES, ROW_SUM, WRONG

from grader.assignment.mutations import Mutation

p1, p2, p3, _ = WRONG


def loop(variable: str, end: str, body: str) -> str:
    return f"\n    for (int {variable} = 0; {variable} < {end}; {variable}++) {{{body}\n    }}"


batches, heads, rows = partial(loop, "b", "B"), partial(loop, "h", "H"), partial(loop, "i", "N")


def both(body: str) -> str:
    return batches(heads(body))


SCORES_OF_ROW = """
        for (int j = 0; j < N; j++) {
            float score = START;
            for (int k = 0; k < d; k++)
                score += fourDimRead(Q, b, h, i, k, H, N, d) * fourDimRead(K, b, h, j, k, H, N, d);
            twoDimWrite(QK_t, i, j, N, score);
        }"""
SOFTMAX_OF_ROW = """
        float sum = 0;
        for (int j = 0; j < N; j++) sum += std::exp(twoDimRead(QK_t, i, j, N));
        for (int j = 0; j < N; j++) twoDimWrite(QK_t, i, j, N, std::exp(twoDimRead(QK_t, i, j, N)) / sum);"""
SCORES, SOFTMAX = rows(SCORES_OF_ROW), rows(SOFTMAX_OF_ROW)
PRODUCT = rows("""
        for (int k = 0; k < d; k++) {
            float value = 0;
            for (int j = 0; j < N; j++) value += twoDimRead(QK_t, i, j, N) * fourDimRead(V, b, h, j, k, H, N, d);
            fourDimWrite(O, b, h, i, k, H, N, d, value);
        }""")
TILED_SCORES = """
    for (int i0 = 0; i0 < N; i0 += TILE_SIZE)
    for (int j0 = 0; j0 < N; j0 += TILE_SIZE)
    for (int k0 = 0; k0 < d; k0 += TILE_SIZE)
        for (int i = i0; i < std::min(i0 + TILE_SIZE, N); i++)
        for (int j = j0; j < std::min(j0 + TILE_SIZE, N); j++) {
            float score = k0 > 0 ? twoDimRead(QK_t, i, j, N) : START;
            for (int k = k0; k < std::min(k0 + TILE_SIZE, d); k++)
                score += fourDimRead(Q, b, h, i, k, H, N, d) * fourDimRead(K, b, h, j, k, H, N, d);
            twoDimWrite(QK_t, i, j, N, score);
        }"""
TILED_PRODUCT = """
    for (int i0 = 0; i0 < N; i0 += TILE_SIZE)
    for (int k0 = 0; k0 < d; k0 += TILE_SIZE)
    for (int j0 = 0; j0 < N; j0 += TILE_SIZE)
        for (int i = i0; i < std::min(i0 + TILE_SIZE, N); i++)
        for (int k = k0; k < std::min(k0 + TILE_SIZE, d); k++) {
            float value = fourDimRead(O, b, h, i, k, H, N, d);
            for (int j = j0; j < std::min(j0 + TILE_SIZE, N); j++)
                value += twoDimRead(QK_t, i, j, N) * fourDimRead(V, b, h, j, k, H, N, d);
            fourDimWrite(O, b, h, i, k, H, N, d, value);
        }"""
CLEAR = "\n    std::fill(QK_t.begin(), QK_t.end(), 0.0f);"


def nests(part: str, scores: str, product: str) -> list[Mutation]:
    """Return kernels whose loops `scores` (QK^T, room for one head) and `product` (with V) are in a wrong order."""
    plain, added = scores.replace("START", "0"), scores.replace("START", "twoDimRead(QK_t, i, j, N)")
    weights = plain + SOFTMAX
    of_first_batch = weights.replace("(Q, b,", "(Q, zero,").replace("(K, b,", "(K, zero,")
    of_head_before = weights.replace("(Q, b, h,", "(Q, b, before,").replace("(K, b, h,", "(K, b, before,")
    other, summed, again = "other_heads_weights", "summed_heads", "repeated_softmax"
    bodies = [
        ("softmax after all heads", other, "last head of all", both(plain) + SOFTMAX + both(product)),
        ("softmax after each batch", other, "last head of its batch", batches(heads(plain) + SOFTMAX + heads(product))),
        ("heads outside, batches inside", other, "same head of the last batch",
         heads(batches(plain) + SOFTMAX + batches(product))),
        ("softmax after the sum of all heads", summed, "scores of all heads", both(added) + SOFTMAX + both(product)),
        ("softmax after the sum of a batch", summed, "scores of all heads of its batch",
         batches(CLEAR + heads(added) + SOFTMAX + heads(product))),
        ("three nests", again, "once for each head", both(plain) + both(SOFTMAX) + both(product)),
        ("softmax and product in a second nest", again, "once more for each head",
         both(plain) + both(SOFTMAX + product)),
        ("sum of all heads, then a second nest", again, "sum of all heads' scores",
         both(added) + both(SOFTMAX + product)),
        ("weights of the first head", other, "first head of all",
         both(f"\n    if (b == 0 && h == 0) {{{weights}\n    }}" + product)),
        ("weights of its batch's first head", other, "first head of its batch",
         both(f"\n    if (h == 0) {{{weights}\n    }}" + product)),
        ("weights of the first batch", other, "batch 0",
         both(of_first_batch + product).replace("\n", "\n    int zero = 0;\n", 1)),
        ("product before the scores", other, "previous head", both(product + weights)),
        ("scores after the product", other, "previous head", both(SOFTMAX + product + plain)),
        ("weights of the head before", other, "previous head",
         both("\n    int before = std::max(h - 1, 0);" + of_head_before + product)),
        ("scores pile up in a batch", "stale_scores", "of its batch",
         batches(CLEAR + heads(added + SOFTMAX + product))),
    ]  # fmt: skip
    return [
        Mutation(f"{part[0]}{part[-1]} {name}", part, codes=(code,), says=says, body=body)
        for name, code, says, body in bodies
    ]


READ_PV = "value += twoDimRead(QK_t, i, j, N)"
WRITE_SCORE = "twoDimWrite(QK_t, i, j, N, score)"

RESET = (BATCHES, f"{BATCHES}\n        {ROW_SUM}")
#: d and N are exchanged in strides of the workspace, Q, K and V. (Exchanged in O's stride, they would damage the heap.)
STRIDES = [
    *[p("weights read with stride d", "wrong_stride", (READ_PV, READ_PV.replace("j, N", "j, d")), says="product with V")
        for p in (p1, p2)],
    p1("scores written with stride d", "wrong_stride", (WRITE_SCORE, WRITE_SCORE.replace("N, s", "d, s")),
        says="scores are written"),
    p1("stride d throughout", "wrong_stride", ("i, j, N", "i, j, d", 6), says="everywhere"),
    p3("temp with stride d", "race", ("row, j, N", "row, j, d", 4)),
    *[p1(f"strides of {place[0]} exchanged", "wrong_stride sigsegv sigabrt",
        (f"({place}, k, H, N, d", f"({place}, k, H, d, N")) for place in ("Q, b, h, i", "K, b, h, j", "V, b, h, j")],
]  # fmt: skip

#: Loops over N / T tiles: the division of integers rounds down, so an incomplete tile is left out.
COUNTED = [
    p2(f"{size} / T tiles of {what}", codes, (f"for (int {v}0 = 0; {v}0 < {size}; {v}0 += T) {{",
        f"for (int {v}t = 0; {v}t < {size} / T; {v}t++) {{\nint {v}0 = {v}t * T;", 2), says="rounds down")
    for what, v, size, codes in (
        ("rows", "i", "N", "remainder_tile"),
        ("keys", "j", "N", "remainder_keys"),
        ("channels", "k", "d", "remainder_channels remainder_tile"),
    )
]  # fmt: skip

#: All rows share one row of the workspace, so V is multiplied by the weights of the last row.
WEIGHTS_OF_ROW = SCORES_OF_ROW.replace("START", "0") + SOFTMAX_OF_ROW
LAST_ROW = both("\n    int row = 0;" + (rows(WEIGHTS_OF_ROW) + PRODUCT).replace("(QK_t, i,", "(temp, row,"))

NESTS = [
    *nests("part1", SCORES, PRODUCT),
    *nests("part2", TILED_SCORES, TILED_PRODUCT),
    p3("product after all rows", "other_rows_weights", body=LAST_ROW, says="last row"),
    *STRIDES,
    *[p("row sum reset for each batch", "stale_sum", (ROW_SUM, ""), RESET, says="of its batch") for p in (p1, p2)],
    *COUNTED,
]  # fmt: skip
