"""Wrong kernels of part 4, with mistakes in the flash update, its sums, and its blocks of rows and keys."""

from family_rows import BATCHES, DECLARE_ZERO, WRONG, head_of

*_, p4 = WRONG
FLASH = "float value = Li[i] * twoDimRead(Oi, i, k, d) + twoDimRead(PV, i, k, d);"
J_BLOCKS, I_BLOCKS = "for (int j0 = 0; j0 < N; j0 += Bc) {", "for (int i0 = 0; i0 < N; i0 += Br) {"
STORE_L = "L[row] = Lnew[i];"
LOAD_O = "twoDimWrite(Oi, i, k, d, fourDimRead(O, b, h, row, k, H, N, d));"
ADD_L = "Lnew[i] = Li[i] + Lij[i];"
FLASH_EXP = "std::exp(twoDimRead(Sij, i, j, Bc))"
COLUMN_LOOP = "for (int j = 0; j < columns; j++) {"
FLASH_SUM_LOOP = f"{COLUMN_LOOP}\n                            float weight"
RESET_L = "std::fill(L.begin(), L.end(), 0.0f);"

FLASHED = [
    p4("empty", "not_written", body=""),
    p4("O not rescaled", "flash_not_rescaled", (FLASH, FLASH.replace("Li[i] * ", ""))),
    p4("rescaled by lij", "flash_not_rescaled", (FLASH, FLASH.replace("Li[i]", "Lij[i]"))),
    p4("rescaled by lnew", "flash_not_rescaled", (FLASH, FLASH.replace("Li[i]", "Lnew[i]"))),
    p4("not divided", "flash_not_divided not_normalised not_finite", ("value / Lnew[i]", "value")),
    p4("divided by lij", "flash_not_divided", ("value / Lnew[i]", "value / Lij[i]")),
    p4("l not stored", "flash_l_not_carried", (STORE_L, "")),
    p4("lij stored", "flash_l_not_carried", (STORE_L, "L[row] = Lij[i];")),
    p4("l not added", "flash_l_not_carried flash_not_divided", (ADD_L, "Lnew[i] = Lij[i];")),
    p4("O not loaded", "flash_not_rescaled", (LOAD_O, "")),
    p4("L not reset", "stale_l", (RESET_L, "")),
    p4("remainder keys", "remainder_keys", (J_BLOCKS, J_BLOCKS.replace("j0 < N", "j0 + Bc <= N"))),
    p4("remainder rows", "remainder_tile", (I_BLOCKS, I_BLOCKS.replace("i0 < N", "i0 + Br <= N"))),
    p4("first block of keys", "first_block_only remainder_keys",
        (J_BLOCKS, J_BLOCKS.replace("j0 < N", "j0 < std::min(N, Bc)"))),
    p4("stale tail of Pij", "flash_stale_tail not_normalised",
        (FLASH_SUM_LOOP, FLASH_SUM_LOOP.replace("j < columns", "j < Bc"))),
    p4("whole tile always", "flash_stale_tail", (COLUMN_LOOP, COLUMN_LOOP.replace("j < columns", "j < Bc"), 4),
        ("for (int j = 0; j < Bc; j++) {\n                    int column = j0 + j;",
          f"{COLUMN_LOOP}\n                    int column = j0 + j;")),
    p4("exp forgotten", "exp_missing", (FLASH_EXP, FLASH_EXP.replace("std::exp", ""))),
    p4("scaled", "scaled", (FLASH_EXP, "std::exp(twoDimRead(Sij, i, j, Bc) / std::sqrt((float)d))")),
    p4("h ignored", "heads_copied", DECLARE_ZERO, *head_of("b", "zero")),
    p4("half weights", "low_precision", (FLASH_EXP, f"static_cast<float>(c10::BFloat16({FLASH_EXP}))")),
]  # fmt: skip

#: Statements for `row`, the index in the matrix. The mistakes below use `i`, the index in the tile, as for Li.
LOAD_L, WRITE_O = "Li[i] = L[row];", "fourDimWrite(O, b, h, row,"
L_STORED_AT_I, L_READ_AT_I = (STORE_L, "L[i] = Lnew[i];"), (LOAD_L, "Li[i] = L[i];")
O_STORED_AT_I, O_READ_AT_I = (WRITE_O, WRITE_O.replace("row", "i")), (LOAD_O, LOAD_O.replace("row", "i"))
Q_AT_I = ("fourDimRead(Q, b, h, row,", "fourDimRead(Q, b, h, i,")
K_AT_J, V_AT_J = ((f"fourDimRead({t}, b, h, column,", f"fourDimRead({t}, b, h, j,") for t in "KV")
FLASHED += [
    p4(f"{name} at the row of the tile", code, *edits, says=says.replace("the row", "the row within the tile"))
    for name, edits, code, says in (
        ("L", (L_READ_AT_I, L_STORED_AT_I), "flash_l_tile_row", "L is read and written at the row"),
        ("L stored", (L_STORED_AT_I,), "flash_l_tile_row", "L is written at the row"),
        ("L read", (L_READ_AT_I,), "flash_l_tile_row", "L is read at the row"),
        ("O read", (O_READ_AT_I,), "flash_o_tile_row", "O is read at the row"),
        ("O stored", (O_STORED_AT_I,), "flash_o_tile_row", "O is written at the row"),
        ("O", (O_READ_AT_I, O_STORED_AT_I), "flash_o_tile_row", "O is written at the row, and read there"),
        ("L and O", (L_READ_AT_I, L_STORED_AT_I, O_READ_AT_I, O_STORED_AT_I), "flash_tile_row",
         "L and O are read and written at the row"),
        ("Q", (Q_AT_I,), "q_tile_row", "Q is read at the row"),
        ("K", (K_AT_J,), "k_tile_row", "K is read at the row"),
        ("V", (V_AT_J,), "v_tile_row", "V is read at the row"),
        ("K and V", (K_AT_J, V_AT_J), "k_v_tile_row", "K and V are read at the row"),
    )
]  # fmt: skip

READ_KEY = "fourDimRead(K, b, h, column, k, H, N, d)"
SUM_LOOP = "float rowSum = 0.0f;\n                        for (int j = 0; j < columns; j++) {"
FLASHED += [
    p4("L reset for each batch", "stale_l", (RESET_L, ""), (BATCHES, f"{BATCHES}\n        {RESET_L}"),
        says="of the batch"),
    *[p4(f"L reset for each {block} block", "flash_l_not_carried", (RESET_L, ""), (loop, f"{loop}\n{RESET_L}"),
        says="set to zero") for block, loop in (("key", J_BLOCKS), ("row", I_BLOCKS))],
    p4("last key block kept", "flash_l_not_carried last_block_only",
        (FLASH, "float value = twoDimRead(PV, i, k, d);"), ("value / Lnew[i]", "value / Lij[i]"),
        says="Only the last block of keys"),
    p4("padded keys counted", "padded_keys", (COLUMN_LOOP, COLUMN_LOOP.replace("j < columns", "j < Bc"), 4),
        *[(read, f"j < columns ? {read} : 0") for read in (READ_KEY, READ_KEY.replace("K", "V"))], says="exp(0) = 1"),
    p4("padded scores counted", "padded_keys", (SUM_LOOP, SUM_LOOP.replace("columns", "Bc")),
        (FLASH_EXP, "std::exp(j < columns ? twoDimRead(Sij, i, j, Bc) : 0)"), says="exp(0) = 1"),
    p4("N / Br row blocks", "remainder_tile",
        (I_BLOCKS, "for (int it = 0; it < N / Br; it++) {\nint i0 = it * Br;"), says="rounds down"),
    p4("N / Bc key blocks", "remainder_keys",
        (J_BLOCKS, "for (int jt = 0; jt < N / Bc; jt++) {\nint j0 = jt * Bc;"), says="rounds down"),
]  # fmt: skip

#: Loops over blocks of queries and, inside, over blocks of keys; then the division by the row sums. RESET_... are
#: placeholders: places at which Oi and Li may be set to 0.
ROWS_OUTER_BODY = """
    RESET_ALL
    for (int b = 0; b < B; b++) {
        RESET_BATCHES
        for (int h = 0; h < H; h++) {
            RESET_HEADS
            for (int i0 = 0; i0 < N; i0 += Br) {
                int rows = std::min(Br, N - i0);
                RESET_ROWS
                for (int j0 = 0; j0 < N; j0 += Bc) {
                    int columns = std::min(Bc, N - j0);
                    RESET_KEYS
                    for (int i = 0; i < rows; i++) {
                        int row = i0 + i;
                        for (int j = 0; j < columns; j++) {
                            int column = j0 + j;
                            float score = 0;
                            for (int k = 0; k < d; k++)
                                score += fourDimRead(Q, b, h, row, k, H, N, d) *
                                         fourDimRead(K, b, h, column, k, H, N, d);
                            float weight = std::exp(score);
                            Li[i] += weight;
                            for (int k = 0; k < d; k++)
                                Oi[i * d + k] += weight * fourDimRead(V, b, h, column, k, H, N, d);
                        }
                    }
                }
                for (int i = 0; i < rows; i++) {
                    int row = i0 + i;
                    for (int k = 0; k < d; k++)
                        fourDimWrite(O, b, h, row, k, H, N, d, Oi[i * d + k] / Li[i]);
                }
            }
        }
    }"""
PLACES = ("ALL", "BATCHES", "HEADS", "ROWS", "KEYS")


def rows_outer(oi: str, li: str) -> str:
    """Return ROWS_OUTER_BODY with Oi set to zero at the place `oi` (one of PLACES) and Li at the place `li`."""
    body = ROWS_OUTER_BODY
    for place in PLACES:
        reset = [t for t, at in (("Oi", oi), ("Li", li)) if at == place]
        fills = " ".join(f"std::fill({t}.begin(), {t}.end(), 0.0f);" for t in reset)
        body = body.replace(f"RESET_{place}\n", f"{fills}\n")
    return body


ROWS_OUTER = [
    p4(f"{names} reset {'for ' if at != 'ALL' else ''}{when}", "stale_sum", says=says,
        body=rows_outer(at if "Oi" in names else "ROWS", at if "Li" in names else "ROWS"))
    for names, says in (("Oi and Li", "Oi and Li"), ("Oi", "Oi is not set"), ("Li", "(Li or Lij) is not set"))
    for at, when in {"ALL": "never", "BATCHES": "each batch", "HEADS": "each head"}.items()
]  # fmt: skip
ROWS_OUTER += [
    p4(f"{names} reset for each key block", code, body=rows_outer(*places), says=says)
    for names, code, places, says in (
        ("Oi and Li", "last_block_only", ("KEYS", "KEYS"), "set to zero"),
        ("Oi", "block_overwritten", ("KEYS", "ROWS"), "Only the last block of keys"),
        ("Li", "last_block_sum", ("ROWS", "KEYS"), "last block of keys"),
    )
]
