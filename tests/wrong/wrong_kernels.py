"""Wrong kernels of all parts. A comment marks kernels that the course's published grader accepts."""

from family_rows import DECLARE_ZERO, HEADS, ROW_SUM, head_of
from family_rows import WRONG as WRONG_OF
from wrong_flash import FLASHED, ROWS_OUTER
from wrong_nests import NESTS

from grader.assignment.mutations import Mutation

p1, p2, p3, _ = WRONG_OF
# Texts of the master solution that mutations replace.
READ_Q = "fourDimRead(Q, b, h, i, k, H, N, d)"
READ_K = "fourDimRead(K, b, h, j, k, H, N, d)"
READ_V = "fourDimRead(V, b, h, j, k, H, N, d)"
WRITE_O = "fourDimWrite(O, b, h, i, k, H, N, d, value)"
QK_T = "twoDimRead(QK_t, i, j, N)"
EXP = f"std::exp({QK_T})"
SCORE = "float score = 0.0f;"
RETURN = "return fillTensor(OTensor, O);"
VALUE_LOOP = f"for (int j = 0; j < N; j++) {{\n                        value += {QK_T}"
HALF = "static_cast<float>(c10::Half(x))"


def rounded(kind: str) -> tuple[tuple[str, str], ...]:
    """Return edits that round inputs to a coarser type after they are read."""
    read = {t: f"std::vector<float> {t} = formatTensor({t}Tensor);" for t in "QKV"}
    return tuple((text, f"{text}\n    for (float &x : {t}) {{ x = {kind}; }}") for t, text in read.items())


COPY_HEADS = """for (int b = 0; b < B; b++)
        for (int h = 1; h < H; h++)
            for (int e = 0; e < N * d; e++) O[(b * H + h) * N * d + e] = O[b * H * N * d + e];
    """

#: Mistakes in the formula, an operand or the output, for parts 1 and 2.
UNFUSED = [
    p1("empty", "not_written", body=""),
    p1("result not stored", "not_written", (RETURN, "return OTensor;")),
    p1("starter copies Q", "copied_input", (WRITE_O, WRITE_O.replace("value", READ_Q))),
    p1("scaled", "scaled", ("QK_t, i, j, N, score)", "QK_t, i, j, N, score / std::sqrt((float)d))")),
    p1("exp forgotten", "exp_missing", (EXP, QK_T)),
    p2("exp twice", "exp_twice", (f"{QK_T} / rowSum", f"{EXP} / rowSum")),
    # accepted by the published grader for N <= 256
    p1("linear exp", "linear_exp", (EXP, f"1.0f + {QK_T}")),
    # accepted by the published grader for N <= 96
    p1("mean of V", "uniform_softmax", (f"{QK_T} * {READ_V}", f"{READ_V} / N")),
    p2("2 to the x", "wrong_base", (EXP, f"std::exp2({QK_T})")),
    p1("not normalised", "not_normalised", ("/ rowSum", "")),
    p1("sum of 1", "not_finite", ("/ rowSum", "/ (rowSum - rowSum)")),
    p1("K transposed", "k_transposed", (READ_K, "fourDimRead(K, b, h, k, j, H, d, N)")),
    p2("V transposed", "v_transposed", (READ_V, "fourDimRead(V, b, h, k, j, H, d, N)")),
    p1("Q and K swapped", "q_k_swapped", (READ_Q, READ_Q.replace("i,", "j,")), (READ_K, READ_K.replace("j", "i"))),
    p1("own value", "wrong_operand", (READ_V, READ_V.replace("j", "i"))),
    p2("K for V", "wrong_operand", (READ_V, READ_K)),
    # the published grader accepts the next three at all N
    p1("one head copied", "heads_copied", (HEADS, HEADS.replace("h < H", "h < 1")), (RETURN, COPY_HEADS + RETURN)),
    p1("h ignored", "heads_copied", DECLARE_ZERO, *head_of("b", "zero")),
    p1("b ignored", "batches_copied heads_copied", DECLARE_ZERO, *head_of("zero", "h")),
    p1("last key", "key_missing", (VALUE_LOOP, VALUE_LOOP.replace("j < N", "j < N - 1"))),
    p1("first key", "key_missing", (VALUE_LOOP, VALUE_LOOP.replace("j = 0", "j = 1"))),
    p1("scores pile up", "stale_scores", (SCORE, f"float score = {QK_T};")),
    p1("row sum piles up", "stale_sum", (ROW_SUM, ""), (HEADS, f"{HEADS}\n            {ROW_SUM}")),
    p1("softmax over columns", "wrong_axis",
        ("float weight = " + EXP, "float weight = std::exp(twoDimRead(QK_t, j, i, N))"),
        ("twoDimWrite(QK_t, i, j, N, weight)", "twoDimWrite(QK_t, j, i, N, weight)"),
        (f"twoDimWrite(QK_t, i, j, N, {QK_T} / rowSum)",
          "twoDimWrite(QK_t, j, i, N, twoDimRead(QK_t, j, i, N) / rowSum)")),
    # accepted by the published grader
    p1("float16 inputs", "low_precision", *rounded(HALF)),
    p1("output (d, N)", "wrong_layout", (WRITE_O, "fourDimWrite(O, b, h, k, i, H, d, N, value)")),
    p1("output (B, N, H, d)", "wrong_layout", (WRITE_O, "fourDimWrite(O, b, i, h, k, N, H, d, value)")),
    p1("causal", "causal_mask", ("rowSum += weight;", "rowSum += (weight = j > i ? 0 : weight);"),
        ("twoDimWrite(QK_t, i, j, N, weight);", "twoDimWrite(QK_t, i, j, N, j > i ? 0.0f : weight);")),
    p1("good at N = 256 only", "", ("float score = 0.0f;", "float score = N == 256 ? 0.0f : 1e-3f * i * j;")),
    p2("shape", "wrong_shape", (RETURN, "return at::zeros({B, N, H, d}, at::kFloat);")),
    p2("dtype", "wrong_dtype", (RETURN, "return at::zeros({B, H, N, d}, at::kDouble);")),
    p1("input overwritten", "inputs_overwritten", (RETURN, "VTensor.data_ptr<float>()[0] += 1;\n    " + RETURN)),
]  # fmt: skip

I_TILES = "for (int i0 = 0; i0 < N; i0 += T) {"
J_TILES = "for (int j0 = 0; j0 < N; j0 += T) {"
K_TILES = "for (int k0 = 0; k0 < d; k0 += T) {"
J_END = "int jEnd = std::min(j0 + T, N);"
K_END = "int kEnd = std::min(k0 + T, d);"
FULL_I, FULL_J = (loop.replace(f"{v}0 < N", f"{v}0 + T <= N") for loop, v in ((I_TILES, "i"), (J_TILES, "j")))
FULL_K = K_TILES.replace("k0 < d", "k0 + T <= d")
LAST_I = f"            {I_TILES}\n                int iEnd = std::min(i0 + T, N);\n                {K_TILES}"
LAST_J = f"                    {J_TILES}\n                        {J_END}\n                        for (int i"
FIRST_J = f"                {J_TILES}\n                    {J_END}\n                    {K_TILES}"
SCORE_K = f"{K_TILES}\n                        {K_END}\n                        for (int i"
OLD_SCORE = f"float score = k0 == 0 ? 0.0f : {QK_T};"
OLD_VALUE = "float value = j0 == 0 ? 0.0f : fourDimRead(O, b, h, i, k, H, N, d);"
NO_LEFTOVER = (HEADS, HEADS + "\n            std::fill(QK_t.begin(), QK_t.end(), 0.0f);")

BLOCKED = [
    p2("empty", "not_written", body=""),
    # the next six leave out incomplete tiles, which is right if the tile divides N and d, as at the published shape
    p2("remainder rows", "remainder_tile", (LAST_I, LAST_I.replace(I_TILES, FULL_I))),
    p2("remainder columns", "remainder_tile", (LAST_I, LAST_I.replace(K_TILES, FULL_K))),
    p2("remainder keys in PV", "remainder_keys", (LAST_J, LAST_J.replace(J_TILES, FULL_J))),
    p2("remainder keys in QK^T", "remainder_keys", (FIRST_J, FIRST_J.replace(J_TILES, FULL_J))),
    p2("remainder channels", "remainder_channels", NO_LEFTOVER, (SCORE_K, SCORE_K.replace(K_TILES, FULL_K))),
    p2("all remainders", "", (I_TILES, FULL_I, 2), (J_TILES, FULL_J, 2), (K_TILES, FULL_K, 2)),
    p2("tiles one short", "periodic_rows", (LAST_I, LAST_I.replace("i0 + T, N", "i0 + T - 1, N"))),
    p2("score overwritten", "score_overwritten", (OLD_SCORE, SCORE)),
    p2("value overwritten", "block_overwritten", (OLD_VALUE, "float value = 0.0f;")),
    p2("scores pile up", "stale_scores", (OLD_SCORE, f"float score = {QK_T};")),
    p2("first tile of V only", "first_block_only", (LAST_J, LAST_J.replace("j0 < N", "j0 < T"))),
    p2("K of head 0", "head_ignored", DECLARE_ZERO, ("fourDimRead(K, b, h,", "fourDimRead(K, b, zero,")),
    p2("V of batch 0", "head_ignored", DECLARE_ZERO, ("fourDimRead(V, b, h,", "fourDimRead(V, zero, h,")),
    p2("not normalised", "not_normalised", ("/ rowSum", "")),
    p2("bfloat16 inputs", "low_precision", *rounded("static_cast<float>(c10::BFloat16(x))")),
    p2("QK^T returned", "scores_returned", (f"{QK_T} * {READ_V}", f"(j == k ? {QK_T} : 0.0f)")),
    p2("maximum kept", "not_normalised", ("rowSum += weight;", "rowSum = std::max(rowSum, weight);")),
]  # fmt: skip

THREAD_ROW = "int row = omp_get_thread_num();"
PRAGMA = "#pragma omp parallel for collapse(3)"
KEYS = "for (int j = 0; j < N; j++) {"
CHANNELS, SHORT = (f"for (int k = 0; k < {end}; k++) {{\n                        " for end in ("d", "d - 1"))
READ_VALUE = "float value = fourDimRead(O, b, h, i, k, H, N, d);"

FUSED = [
    p3("empty", "not_written", body=""),
    p3("one row of temp for all", "race", (THREAD_ROW, "int row = 0;")),
    p3("row sum shared", "race", (PRAGMA, f"{ROW_SUM}\n{PRAGMA}"), (f"                {ROW_SUM}", "rowSum = 0.0f;")),
    p3("weight and score", "", ("row, j, N, weight)", "row, j, N, weight + twoDimRead(temp, row, j, N))")),
    p3("scaled", "scaled", ("std::exp(score)", "std::exp(score / std::sqrt((float)d))")),
    p3("scaled by d", "scaled", ("std::exp(score)", "std::exp(score / d)")),
    p3("negated", "negated", ("std::exp(score)", "std::exp(-score)")),
    p3("second order exp", "linear_exp", ("std::exp(score)", "1 + score + score * score / 2")),
    p3("uniform", "uniform_softmax", ("std::exp(score)", "1.0f")),
    p3("first key", "key_missing", (KEYS, KEYS.replace("j = 0", "j = N > 1"), 3)),
    p3("not normalised", "not_normalised", (" / rowSum", "")),
    p3("divided twice", "normalised_twice", ("/ rowSum", "/ rowSum / rowSum")),
    p3("value starts anew", "block_overwritten", (READ_VALUE, "float value = 0.0f;")),
    p3("score piles up", "stale_scores not_finite", (SCORE, ""),
        (THREAD_ROW, f"{THREAD_ROW}\n                {SCORE}")),
    p3("rows shared out short", "remainder_tile", ("i < N; i++", "i < N / 8 * 8; i++")),
    p3("heads in reverse", "heads_permuted", ("int row =", "int g = H - 1 - h;\n                int row ="),
        ("(O, b, h,", "(O, b, g,", 2)),
    p3("last channel", "channel_missing", (f"{CHANNELS}score", f"{SHORT}score")),
    p3("last column", "column_range remainder_tile partly_not_written",
        (f"{CHANNELS}float value", f"{SHORT}float value")),
    p3("even rows", "periodic_rows", ("i < N; i++", "i < N; i += 2")),
    p3("1 in 1000 too large", "constant_factor", ("/ rowSum", "/ rowSum * 1.001f")),
    p3("whole numbers", "", (SCORE, "int score = 0;")),
]  # fmt: skip

#: Wrong accessors: with a wrong formula of the offset, without effect, or with an additional write.
OFFSET = "((x * sizeX + y) * sizeY + z) * sizeZ + b"
ACCESSORS = [
    Mutation("read not written", "4Dread", body="    return 0.0f;", codes=("not_written",)),
    Mutation("write not written", "4Dwrite", body="    return;", codes=("not_written",)),
    # A write outside of the vector may damage the heap, so a crash is accepted.
    *[Mutation(f"{verb} {name}", f"4D{verb}", ((OFFSET, formula),), (code, *others))
        for name, formula, code in (
            ("y and z swapped", "((x * sizeX + z) * sizeY + y) * sizeZ + b", "swapped_indices"),
            ("x without sizeX", "x * sizeY * sizeZ + y * sizeY * sizeZ + z * sizeZ + b", "missing_factor"),
            ("x left out", "(y * sizeY + z) * sizeZ + b", "missing_term"),
            ("sizes swapped", "((x * sizeY + y) * sizeX + z) * sizeZ + b", "wrong_strides"),
            ("single sizes", "x * sizeX + y * sizeY + z * sizeZ + b", "missing_factor"),
        ) for verb, others in (("read", ()), ("write", ("sigabrt", "sigsegv")))],
    Mutation("read always 0", "4Dread", ((OFFSET, "0"),), ("missing_term",)),
    Mutation("write twice", "4Dwrite",
        (("    // END SOLUTION", "    tensor[0] = val;\n    // END SOLUTION"),), ("extra_write",)),
    Mutation("write another value", "4Dwrite", (("= val;", "+= val;"),), ("wrong_value",)),
]  # fmt: skip

WRONG: list[Mutation] = [*UNFUSED, *BLOCKED, *FUSED, *NESTS, *FLASHED, *ROWS_OUTER, *ACCESSORS]
