"""The wrong ones. Comments name those that the published kit accepts."""

from __future__ import annotations

from wrong_flash import FLASHED, ROWS_OUTER
from wrong_nests import NESTS

from grader.assignment.mutations import Mutation

# What the mutations replace, by the names of the master's variables.
READ_Q = "fourDimRead(Q, b, h, i, k, H, N, d)"
READ_K = "fourDimRead(K, b, h, j, k, H, N, d)"
READ_V = "fourDimRead(V, b, h, j, k, H, N, d)"
WRITE_O = "fourDimWrite(O, b, h, i, k, H, N, d, value)"
QK_T = "twoDimRead(QK_t, i, j, N)"
EXP = f"std::exp({QK_T})"
SCORE = "float score = 0.0f;"
RETURN = "return fillTensor(OTensor, O);"
HEADS = "for (int h = 0; h < H; h++) {"
VALUE_LOOP = f"for (int j = 0; j < N; j++) {{\n                        value += {QK_T}"
ROUND = "for (float &x : {0}) {{ x = {1}; }}"
HALF = "static_cast<float>(c10::Half(x))"
BFLOAT = "static_cast<float>(c10::BFloat16(x))"


def rounded(kind: str) -> tuple[tuple[str, str], ...]:
    """Inputs rounded to a coarser type after they are read."""
    return tuple(
        (f"std::vector<float> {t} = formatTensor({t}Tensor);",
         f"std::vector<float> {t} = formatTensor({t}Tensor);\n    {ROUND.format(t, kind)}")
        for t in "QKV"
    )  # fmt: skip


def head_of(b: str, h: str) -> tuple[tuple[str, str], ...]:
    """Q, K and V read from another head than the one that is worked on."""
    return (
        ("fourDimRead(Q, b, h,", f"fourDimRead(Q, {b}, {h},"),
        ("fourDimRead(K, b, h,", f"fourDimRead(K, {b}, {h},"),
        ("fourDimRead(V, b, h,", f"fourDimRead(V, {b}, {h},"),
    )


ZERO = "int zero = 0;\n        "
DECLARE_ZERO = (HEADS, ZERO + HEADS)
COPY_HEADS = """for (int b = 0; b < B; b++)
        for (int h = 1; h < H; h++)
            for (int e = 0; e < N * d; e++) O[(b * H + h) * N * d + e] = O[b * H * N * d + e];
    """

#: Parts 1 and 2 alike: what is wrong with the formula, with an operand or with the output.
UNFUSED = [
    Mutation("p1 empty", "part1", body="", codes=("not_written",)),
    Mutation("p1 result not stored", "part1", ((RETURN, "return OTensor;"),), ("not_written",)),
    Mutation("p1 starter copies Q", "part1", ((WRITE_O, WRITE_O.replace("value", READ_Q)),),
        ("copied_input",)),
    Mutation("p1 scaled", "part1",
        (("QK_t, i, j, N, score)", "QK_t, i, j, N, score / std::sqrt((float)d))"),), ("scaled",)),
    Mutation("p1 exp forgotten", "part1", ((EXP, QK_T),), ("exp_missing",)),
    # accepted by the published kit for N <= 256
    Mutation("p1 linear exp", "part1", ((EXP, f"1.0f + {QK_T}"),), ("linear_exp",)),
    # accepted by the published kit for N <= 96
    Mutation("p1 mean of V", "part1", ((f"{QK_T} * {READ_V}", f"{READ_V} / N"),), ("uniform_softmax",)),
    Mutation("p2 2 to the x", "part2", ((EXP, f"std::exp2({QK_T})"),), ("wrong_base",)),
    Mutation("p1 not normalised", "part1", (("/ rowSum", ""),), ("not_normalised",)),
    Mutation("p1 sum of 1", "part1", (("/ rowSum", "/ (rowSum - rowSum)"),), ("not_finite",)),
    Mutation("p1 K transposed", "part1", ((READ_K, "fourDimRead(K, b, h, k, j, H, d, N)"),),
        ("k_transposed",)),
    Mutation("p2 V transposed", "part2", ((READ_V, "fourDimRead(V, b, h, k, j, H, d, N)"),),
        ("v_transposed",)),
    Mutation("p1 Q and K swapped", "part1",
        ((READ_Q, "fourDimRead(Q, b, h, j, k, H, N, d)"), (READ_K, "fourDimRead(K, b, h, i, k, H, N, d)")),
        ("q_k_swapped",)),
    Mutation("p1 own value", "part1", ((READ_V, "fourDimRead(V, b, h, i, k, H, N, d)"),), ("wrong_operand",)),
    Mutation("p2 K for V", "part2", ((READ_V, READ_K),), ("wrong_operand",)),
    # accepted by the published kit at all N
    Mutation("p1 one head copied", "part1",
        ((HEADS, "for (int h = 0; h < 1; h++) {"), (RETURN, COPY_HEADS + RETURN)), ("heads_copied",)),
    # accepted by the published kit at all N
    Mutation("p1 h ignored", "part1", (DECLARE_ZERO, *head_of("b", "zero")), ("heads_copied",)),
    # accepted by the published kit at all N
    Mutation("p1 b ignored", "part1", (DECLARE_ZERO, *head_of("zero", "h")),
        ("batches_copied", "heads_copied")),
    Mutation("p1 last key", "part1", ((VALUE_LOOP, VALUE_LOOP.replace("j < N", "j < N - 1")),),
        ("key_missing",)),
    Mutation("p1 first key", "part1", ((VALUE_LOOP, VALUE_LOOP.replace("j = 0", "j = 1")),),
        ("key_missing",)),
    Mutation("p1 scores pile up", "part1", ((SCORE, f"float score = {QK_T};"),), ("stale_scores",)),
    Mutation("p1 row sum piles up", "part1", codes=("stale_sum",),
        edits=(("float rowSum = 0.0f;", ""), (HEADS, HEADS + "\n            float rowSum = 0.0f;"))),
    Mutation("p1 softmax over columns", "part1",
        (("float weight = " + EXP, "float weight = std::exp(twoDimRead(QK_t, j, i, N))"),
          ("twoDimWrite(QK_t, i, j, N, weight)", "twoDimWrite(QK_t, j, i, N, weight)"),
          (f"twoDimWrite(QK_t, i, j, N, {QK_T} / rowSum)",
            "twoDimWrite(QK_t, j, i, N, twoDimRead(QK_t, j, i, N) / rowSum)")), ("wrong_axis",)),
    # accepted by the published kit
    Mutation("p1 float16 inputs", "part1", rounded(HALF), ("low_precision",)),
    Mutation("p1 output (d, N)", "part1", ((WRITE_O, "fourDimWrite(O, b, h, k, i, H, d, N, value)"),),
        ("wrong_layout",)),
    Mutation("p1 output (B, N, H, d)", "part1", ((WRITE_O, "fourDimWrite(O, b, i, h, k, N, H, d, value)"),),
        ("wrong_layout",)),
    Mutation("p1 causal", "part1", codes=("causal_mask",),
        edits=(("rowSum += weight;", "rowSum += weight;".replace("weight", "(weight = j > i ? 0 : weight)")),
          ("twoDimWrite(QK_t, i, j, N, weight);", "twoDimWrite(QK_t, i, j, N, j > i ? 0.0f : weight);"))),
    Mutation("p1 good at N = 256 only", "part1",
        (("float score = 0.0f;", "float score = N == 256 ? 0.0f : 1e-3f * i * j;"),)),
    Mutation("p2 shape", "part2", ((RETURN, "return at::zeros({B, N, H, d}, at::kFloat);"),),
        ("wrong_shape",)),
    Mutation("p2 dtype", "part2", ((RETURN, "return at::zeros({B, H, N, d}, at::kDouble);"),),
        ("wrong_dtype",)),
    Mutation("p1 input overwritten", "part1",
        ((RETURN, "VTensor.data_ptr<float>()[0] += 1;\n    " + RETURN),), ("inputs_overwritten",)),
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
SCORE_K = (
    f"                    {K_TILES}\n                        {K_END}\n                        for (int i"
)
OLD_SCORE = f"float score = k0 == 0 ? 0.0f : {QK_T};"
OLD_VALUE = "float value = j0 == 0 ? 0.0f : fourDimRead(O, b, h, i, k, H, N, d);"
NO_LEFTOVER = (HEADS, HEADS + "\n            std::fill(QK_t.begin(), QK_t.end(), 0.0f);")

#: Part 2: what is wrong with the tiles.
BLOCKED = [
    Mutation("p2 empty", "part2", body="", codes=("not_written",)),
    # the remainders: right whenever the tile divides N and d, as at the published shape
    Mutation("p2 remainder rows", "part2", ((LAST_I, LAST_I.replace(I_TILES, FULL_I)),), ("remainder_tile",)),
    Mutation("p2 remainder columns", "part2", ((LAST_I, LAST_I.replace(K_TILES, FULL_K)),),
        ("remainder_tile",)),
    Mutation("p2 remainder keys in PV", "part2", ((LAST_J, LAST_J.replace(J_TILES, FULL_J)),),
        ("remainder_keys",)),
    Mutation("p2 remainder keys in QK^T", "part2", ((FIRST_J, FIRST_J.replace(J_TILES, FULL_J)),),
        ("remainder_keys",)),
    Mutation("p2 remainder channels", "part2", (NO_LEFTOVER, (SCORE_K, SCORE_K.replace(K_TILES, FULL_K))),
        ("remainder_channels",)),
    Mutation("p2 all remainders", "part2",
        ((I_TILES, FULL_I, 2), (J_TILES, FULL_J, 2), (K_TILES, FULL_K, 2))),
    Mutation("p2 tiles one short", "part2", ((LAST_I, LAST_I.replace("i0 + T, N", "i0 + T - 1, N")),),
        ("periodic_rows",)),
    Mutation("p2 score overwritten", "part2", ((OLD_SCORE, SCORE),), ("score_overwritten",)),
    Mutation("p2 value overwritten", "part2", ((OLD_VALUE, "float value = 0.0f;"),), ("block_overwritten",)),
    Mutation("p2 scores pile up", "part2", ((OLD_SCORE, f"float score = {QK_T};"),), ("stale_scores",)),
    Mutation("p2 first tile of V only", "part2", ((LAST_J, LAST_J.replace("j0 < N", "j0 < T")),),
        ("first_block_only",)),
    Mutation("p2 K of head 0", "part2", (DECLARE_ZERO, ("fourDimRead(K, b, h,", "fourDimRead(K, b, zero,")),
        ("head_ignored",)),
    Mutation("p2 V of batch 0", "part2", (DECLARE_ZERO, ("fourDimRead(V, b, h,", "fourDimRead(V, zero, h,")),
        ("head_ignored",)),
    Mutation("p2 not normalised", "part2", (("/ rowSum", ""),), ("not_normalised",)),
    Mutation("p2 bfloat16 inputs", "part2", rounded(BFLOAT), ("low_precision",)),
    Mutation("p2 QK^T returned", "part2", ((f"{QK_T} * {READ_V}", f"(j == k ? {QK_T} : 0.0f)"),),
        ("scores_returned",)),
    Mutation("p2 maximum kept", "part2", (("rowSum += weight;", "rowSum = std::max(rowSum, weight);"),),
        ("not_normalised",)),
]  # fmt: skip

THREAD_ROW = "int row = omp_get_thread_num();"
PRAGMA = "#pragma omp parallel for collapse(3)"
KEYS = "for (int j = 0; j < N; j++) {"
READ_VALUE = "float value = fourDimRead(O, b, h, i, k, H, N, d);"
ROW_SUM = "float rowSum = 0.0f;"

FUSED = [
    Mutation("p3 empty", "part3", body="", codes=("not_written",)),
    Mutation("p3 one row of temp for all", "part3", ((THREAD_ROW, "int row = 0;"),), ("race",)),
    Mutation("p3 row sum shared", "part3",
        ((PRAGMA, f"{ROW_SUM}\n{PRAGMA}"), (f"                {ROW_SUM}", "rowSum = 0.0f;")), ("race",)),
    Mutation("p3 weight and score", "part3",
        (("row, j, N, weight)", "row, j, N, weight + twoDimRead(temp, row, j, N))"),)),
    Mutation("p3 scaled", "part3", (("std::exp(score)", "std::exp(score / std::sqrt((float)d))"),),
        ("scaled",)),
    Mutation("p3 scaled by d", "part3", (("std::exp(score)", "std::exp(score / d)"),), ("scaled",)),
    Mutation("p3 negated", "part3", (("std::exp(score)", "std::exp(-score)"),), ("negated",)),
    Mutation("p3 second order exp", "part3", (("std::exp(score)", "1 + score + score * score / 2"),),
        ("linear_exp",)),
    Mutation("p3 uniform", "part3", (("std::exp(score)", "1.0f"),), ("uniform_softmax",)),
    Mutation("p3 first key", "part3", ((KEYS, KEYS.replace("j = 0", "j = N > 1"), 3),), ("key_missing",)),
    Mutation("p3 not normalised", "part3", ((" / rowSum", ""),), ("not_normalised",)),
    Mutation("p3 divided twice", "part3", (("/ rowSum", "/ rowSum / rowSum"),), ("normalised_twice",)),
    Mutation("p3 value starts anew", "part3", ((READ_VALUE, "float value = 0.0f;"),), ("block_overwritten",)),
    Mutation("p3 score piles up", "part3", codes=("stale_scores", "not_finite"),
        edits=((SCORE, ""), (THREAD_ROW, THREAD_ROW + "\n                " + SCORE))),
    Mutation("p3 rows shared out short", "part3", (("i < N; i++", "i < N / 8 * 8; i++"),),
        ("remainder_tile",)),
    Mutation("p3 heads in reverse", "part3",
        (("int row =", "int g = H - 1 - h;\n                int row ="), ("(O, b, h,", "(O, b, g,", 2)),
        ("heads_permuted",)),
    Mutation("p3 last channel", "part3",
        (("for (int k = 0; k < d; k++) {\n                        score",
            "for (int k = 0; k < d - 1; k++) {\n                        score"),), ("channel_missing",)),
    Mutation("p3 last column", "part3", codes=("column_range", "remainder_tile", "partly_not_written"),
        edits=(("for (int k = 0; k < d; k++) {\n                        float value",
            "for (int k = 0; k < d - 1; k++) {\n                        float value"),)),
    Mutation("p3 even rows", "part3", (("i < N; i++", "i < N; i += 2"),), ("periodic_rows",)),
    Mutation("p3 1 in 1000 too large", "part3", (("/ rowSum", "/ rowSum * 1.001f"),), ("constant_factor",)),
    Mutation("p3 whole numbers", "part3", ((SCORE, "int score = 0;"),)),
]  # fmt: skip

#: Wrong accessors: offsets of another formula, nothing done, too much done.
OFFSET = "((x * sizeX + y) * sizeY + z) * sizeZ + b"


def _offset(name: str, formula: str, code: str) -> list[Mutation]:
    return [
        Mutation(f"read {name}", "4Dread", ((OFFSET, formula),), (code,)),
        # A write outside the vector may damage the heap, and end in a crash.
        Mutation(f"write {name}", "4Dwrite", ((OFFSET, formula),), (code, "sigabrt", "sigsegv")),
    ]


ACCESSORS = [
    Mutation("read not written", "4Dread", body="    return 0.0f;", codes=("not_written",)),
    Mutation("write not written", "4Dwrite", body="    return;", codes=("not_written",)),
    *_offset("y and z swapped", "((x * sizeX + z) * sizeY + y) * sizeZ + b", "swapped_indices"),
    *_offset("x without sizeX", "x * sizeY * sizeZ + y * sizeY * sizeZ + z * sizeZ + b", "missing_factor"),
    *_offset("x left out", "(y * sizeY + z) * sizeZ + b", "missing_term"),
    *_offset("sizes swapped", "((x * sizeY + y) * sizeX + z) * sizeZ + b", "wrong_strides"),
    *_offset("single sizes", "x * sizeX + y * sizeY + z * sizeZ + b", "missing_factor"),
    Mutation("read always 0", "4Dread", ((OFFSET, "0"),), ("missing_term",)),
    Mutation("write twice", "4Dwrite",
        (("    // END SOLUTION", "    tensor[0] = val;\n    // END SOLUTION"),), ("extra_write",)),
    Mutation("write another value", "4Dwrite", (("= val;", "+= val;"),), ("wrong_value",)),
]  # fmt: skip

WRONG: list[Mutation] = [*UNFUSED, *BLOCKED, *FUSED, *NESTS, *FLASHED, *ROWS_OUTER, *ACCESSORS]
