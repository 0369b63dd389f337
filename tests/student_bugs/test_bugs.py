"""For every bug of the table, the message names the line of the mistake, and no wrong place.

The bugs are typical of students, and were not used when the suspects were written: edits of the master or of a file in
the published style. A mark (removed before compiling) is at the mistake, or the loop where a statement is missing.
"""

import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import ROOT, one_of_each
from honest.styles import STYLES, source

from grader.assignment import loading, mutations, records
from grader.backends.native.toolchain import toolchain
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.study import race, watch_races

#: Comment that marks the line of a mistake.
MARK = "/*!*/"


@dataclass(frozen=True)
class Bug:
    """One mistake of a `kind`, put into `part` by `edits`. Kinds "race", "outside" and "crash" have their own tests."""

    name: str
    part: str
    kind: str
    #: Acceptable codes of the diagnosis; empty where the code changes from run to run.
    codes: tuple[str, ...]
    #: Required part of the message: words for the cause, or the end of a corrected line that the message shows.
    said: str
    edits: tuple[mutations.Edit, ...]
    #: Largest allowed distance, in lines, from the mistake to the nearest line that the message names.
    within: int = 0
    base: Literal["master", "published", "softmax", "operators"] = "master"


def bug(name: str, part: str, kind: str, codes: str, said: str, *edits: mutations.Edit, **more: Any) -> Bug:
    """Return a Bug. `codes` has its acceptable codes with spaces between them, and may be empty."""
    return Bug(name, part, kind, tuple(codes.split()), said, edits, **more)


def before(place: str, lines: str) -> mutations.Edit:
    """Return an edit that puts `lines` in front of the text `place`. The lines need not be indented."""
    return place, f"{lines}\n{place}"


# Texts in the master, which edits replace.
READ_Q = "fourDimRead(Q, b, h, i, k, H, N, d)"
READ_K = "fourDimRead(K, b, h, j, k, H, N, d)"
READ_V = "fourDimRead(V, b, h, j, k, H, N, d)"
I_LOOP = "for (int i = 0; i < N; i++) {"
J_LOOP = "for (int j = 0; j < N; j++) {"
SCORES = f"{I_LOOP}\n                {J_LOOP}\n                    float score"
OUTPUT = f"{I_LOOP}\n                for (int k = 0; k < d; k++) {{"
PRODUCT = f"{J_LOOP}\n                        value += twoDimRead(QK_t, i, j, N)"
ROW = "int row = omp_get_thread_num();"
PRAGMA = "#pragma omp parallel for collapse(3)"
HEADS = "for (int h = 0; h < H; h++) {"
ROW_SUM = f"float rowSum = 0.0f;\n                {J_LOOP}"

NAIVE = [
    bug("a row of scores too many", "part1", "outside", "", "index",
        (SCORES, SCORES.replace("i < N; i++) {", "i <= N; i++) {  /*!*/")), within=6),
    bug("a key too many in the product", "part1", "outside", "", "index",
        (PRODUCT, PRODUCT.replace("j < N; j++) {", "j <= N; j++) {  /*!*/")), within=1),
    bug("heads shared out over one QK_t", "part1", "race", "race", "QK_t: ",
        before("    for (int b = 0; b < B; b++) {", "#pragma omp parallel for collapse(2)  /*!*/"), within=9),
    bug("keys of grouped heads", "part1", "head", "heads head_ignored",
        "b, group, j, k, H, N, d);   (h in place of group)",
        before(I_LOOP + "\n                " + J_LOOP, "int group = h / 2;  /*!*/"),
        (READ_K, "fourDimRead(K, b, group, j, k, H, N, d)"), within=6),
    bug("value begun once a row", "part1", "left over", "stale_value", "for the next channel",
        (OUTPUT, f"{I_LOOP}\nfloat value = 0.0f;  /*!*/\nfor (int k = 0; k < d; k++) {{"),
        ("                    float value = 0.0f;\n", "")),
    bug("inputs cut to bfloat16", "part1", "precision", "low_precision", "cut to bfloat16",
        *((f"std::vector<float> {t} = formatTensor({t}Tensor);",
           f"std::vector<float> {t} = formatTensor({t}Tensor);\n"
           f"for (float &x : {t}) (unsigned &)x &= 0xFFFF0000u;  {MARK}") for t in "QKV")),
    bug("division of whole numbers", "part1", "integer", "not_written", "division by zero",
        ("twoDimRead(QK_t, i, j, N) / rowSum);", "twoDimRead(QK_t, i, j, N) * (1 / (int)rowSum));  /*!*/")),
    bug("offset in a short", "part1", "integer", "", "index",
        ("twoDimWrite(QK_t, i, j, N, score);", "short at = i * N + j;  /*!*/\nQK_t[at] = score;  /*!*/"), within=1),
    bug("one row of QK_t cleared", "part1", "left over", "stale_scores", "does not reach the rows",
        (HEADS, f"{HEADS}\nfor (int e = 0; e < N; e++)  /*!*/\nQK_t[e] = 0;"),
        ("float score = 0.0f;", "float score = QK_t[i * N + j];")),
    bug("row sum never begun", "part1", "unwritten", "", "rowSum",
        (ROW_SUM, f"float rowSum;  /*!*/\n{J_LOOP}"), within=4),
    bug("a tensor of memory that is gone", "part1", "crash", "", "freed when the function returns",
        ("return fillTensor(OTensor, O);", "return torch::from_blob(O.data(), {B, H, N, d}, at::kFloat);  /*!*/")),
    bug("the first score for all", "part1", "formula", "", "(i * N + j in place of i * N)",
        ("std::exp(twoDimRead(QK_t, i, j, N))", "std::exp(QK_t[i * N]) /*!*/")),
    bug("one pass over rows too few, and scaled", "part1", "two", "wrong_values", "1/sqrt(d)",
        (OUTPUT, OUTPUT.replace("i < N; i++) {", "i < N - 1; i++) {  /*!*/")),
        ("std::exp(twoDimRead(QK_t, i, j, N))", "std::exp(twoDimRead(QK_t, i, j, N) / std::sqrt((float)d))")),
]  # fmt: skip

K_END = "int kEnd = std::min(k0 + T, d);"
FIRST_K = f"{K_END}\n                        for (int i = i0"
I_END, J_END = "int iEnd = std::min(i0 + T, N);", "int jEnd = std::min(j0 + T, N);"
FIRST_I = f"{I_END}\n                for (int j0"
BLOCKED = [
    bug("tiles of d not cut off", "part2", "outside", "", "index",
        (FIRST_K, FIRST_K.replace(K_END, "int kEnd = k0 + T;  /*!*/")), within=7),
    bug("tiles of rows not cut off", "part2", "outside", "", "index",
        (FIRST_I, FIRST_I.replace(I_END, "int iEnd = i0 + T;  /*!*/")), within=10),
    bug("b and h swapped for V", "part2", "head", "wrong_values", "the product with V",
        (READ_V, "fourDimRead(V, h, b, j, k, B, N, d)"),
        ("N) * fourDimRead(V, h, b, j, k, B, N, d);", "N) * fourDimRead(V, h, b, j, k, B, N, d);  /*!*/")),
    bug("keys with the stride of d", "part2", "stride", "", "index",
        ("fourDimRead(K, b, h, j, k, H, N, d);", "fourDimRead(K, b, h, j, k, H, d, d);  /*!*/")),
    bug("sums in memory that is not cleared", "part2", "unwritten", "unsteady", "never written",
        ("const int T = TILE_SIZE;",
         "const int T = TILE_SIZE;\nfloat *sums = (float *)malloc(N * sizeof(float));  /*!*/"),
        ("rowSum += weight;", "sums[i] += weight;  /*!*/"), ("                float rowSum = 0.0f;\n", ""),
        ("/ rowSum);", "/ sums[i]);"), before("return fillTensor(OTensor, O);", "free(sums);")),
    bug("scores begun with what QK_t holds", "part2", "left over", "stale_scores", "may include an old value",
        ("float score = k0 == 0 ? 0.0f : twoDimRead(QK_t, i, j, N);",
         "float score = twoDimRead(QK_t, i, j, N);  /*!*/")),
    bug("whole row sum", "part2", "integer", "whole_sum", "The row sum is a whole number",
        ("float rowSum = 0.0f;", "int rowSum = 0;  /*!*/"), within=4),
    bug("a local tile with an old tail", "part2", "ragged", "wrong_values", "jj < T; jj++) {   (with `&& j0 + jj < N`)",
        (f"{K_END}\n                    for (int j0 = 0; j0 < N; j0 += T) {{\n                        {J_END}\n",
         f"{K_END}\nfloat tile[T * T] = {{0}};\nfor (int j0 = 0; j0 < N; j0 += T) {{\n{J_END}\n"
          "for (int i = i0; i < iEnd; i++)\nfor (int j = j0; j < jEnd; j++)\n"
          "tile[(i - i0) * T + j - j0] = twoDimRead(QK_t, i, j, N);\n"),
        ("for (int j = j0; j < jEnd; j++) {\n                                    value += twoDimRead(QK_t, i, j, N)",
          "for (int jj = 0; jj < T; jj++) {  /*!*/\nint j = std::min(j0 + jj, N - 1);\n"
          "value += tile[(i - i0) * T + jj] /*!*/")),
    bug("the remainder begins a row late", "part2", "ragged", "row_range",
        "(T + 0 in place of T + 1)",
        (f"for (int i0 = 0; i0 < N; i0 += T) {{\n                {I_END}\n                for (int k0",
          "for (int i0 = 0; i0 < N; i0 = i0 + T <= N - T ? i0 + T : i0 + T + 1) {  /*!*/\n"
          f"{I_END}\nfor (int k0")),
]  # fmt: skip

FUSED = [
    bug("the product with V left out", "part3", "formula", "not_written", "V is never read: is a last step missing",
        ("value += weight * fourDimRead(V, b, h, j, k, H, N, d);\n                        "
         "fourDimWrite(O, b, h, i, k, H, N, d, value);", "value += weight;  /*!*/")),
    bug("a row of temp for each token", "part3", "outside", "", "index", (ROW, "int row = i;  /*!*/"),
        within=7),
    bug("a local array of 512", "part3", "crash", "", "index 512 out of bounds",
        (ROW, "float scores[512];  /*!*/"),
        ("twoDimWrite(temp, row, j, N, score);", "scores[j] = score;  /*!*/"),
        ("twoDimRead(temp, row, j, N);", "scores[j];"),
        ("twoDimWrite(temp, row, j, N, weight);", "scores[j] = weight;"),
        ("twoDimRead(temp, row, j, N) / rowSum;", "scores[j] / rowSum;")),
    bug("a share of no rows", "part3", "crash", "sigfpe", "division by zero",
        (ROW, "int share = N / omp_get_max_threads();\nint row = i / share % omp_get_num_threads();  /*!*/"),
        (PRAGMA, "#pragma omp parallel for collapse(3) schedule(static, 1) num_threads(1)")),
    bug("a row of temp for each head", "part3", "race", "race", "temp: ",
        (ROW, "int row = h % omp_get_num_threads();  /*!*/"), within=7),
    bug("a counter for all threads", "part3", "race", "race", "j: ", (PRAGMA, f"int j;  /*!*/\n{PRAGMA}"),
        ("for (int j = 0; j < N; j++) {", "for (j = 0; j < N; j++) {", 3), within=7),
    bug("threads within a row", "part3", "race", "race", "rowSum: ", (PRAGMA + "\n", ""),
        (ROW_SUM, f"float rowSum = 0.0f;\n#pragma omp parallel for  /*!*/\n{J_LOOP}"),
        ("rowSum += weight;", "rowSum += weight;  /*!*/")),
    bug("exponentials by bits", "part3", "precision", "low_precision", "exp() or its argument is inexact",
        ("float weight = std::exp(score);",
         "int bits = (int)(12102203.0f * score) + 1064866805;  /*!*/\nfloat weight = (float &)bits;  /*!*/")),
    bug("maximum in the weights alone", "part3", "formula", "maximum_only_above",
        "subtracted in the numerator, not in the sum",
        ("float rowSum = 0.0f;\n", "float most = twoDimRead(temp, row, k0, N);\nfloat rowSum = 0.0f;\n"
          "for (int j = 0; j < N; j++) most = std::max(most, twoDimRead(temp, row, j, N));\n"),
        (ROW, f"{ROW}\nint k0 = 0;"),
        ("float weight = std::exp(score);", "float weight = std::exp(score - most);"),
        ("rowSum += weight;", "rowSum += std::exp(score);  /*!*/")),
    bug("eight channels at a time", "part3", "ragged", "remainder_channels", "d is a multiple of 8",
        ("for (int k = 0; k < d; k++) {\n                        score +=",
          "for (int k = 0; k + 8 <= d; k += 8) {  /*!*/\nfor (int e = k; e < k + 8; e++)\nscore +="),
        (READ_Q, READ_Q.replace("k", "e")), (READ_K, READ_K.replace("k", "e"))),
    bug("negative scores left out", "part3", "formula", "wrong_values", "(without if (score < 0) continue;)",
        ("float weight = std::exp(score);", "if (score < 0) continue;  /*!*/\nfloat weight = std::exp(score);")),
    bug("heads counted by B", "part3", "head", "", "index",
        (f"{PRAGMA}\n    for (int b = 0; b < B; b++) {{\n        {HEADS}",
          "#pragma omp parallel for collapse(2)\nfor (int one = 0; one < 1; one++) {\n"
          "for (int bh = 0; bh < B * H; bh++) {\nint b = bh / B, h = bh % B;  /*!*/"), within=7),
]  # fmt: skip

FLASH = [
    bug("rows of Sij with Br places", "part4", "stride", "", "index",
        ("twoDimWrite(Sij, i, j, Bc, score);", "twoDimWrite(Sij, i, j, Br, score);  /*!*/"),
        ("twoDimRead(Sij, i, j, Bc)", "twoDimRead(Sij, i, j, Br)")),
    bug("Lnew by the row of N", "part4", "outside", "", "index",
        ("Lnew[i] = Li[i] + Lij[i];", "Lnew[i0 + i] = Li[i] + Lij[i];  /*!*/"),
        ("value / Lnew[i]", "value / Lnew[row]"), ("L[row] = Lnew[i];", "L[row] = Lnew[row];")),
    bug("L by the row of the tile", "part4", "index", "flash_l_tile_row",
        "L is written at the row within the tile", ("L[row] = Lnew[i];", "L[i] = Lnew[i];  /*!*/")),
    bug("a pointer into a vector that is gone", "part4", "crash", "", "freed",
        ("// BEGIN SOLUTION\n", "// BEGIN SOLUTION\nconst float *v = formatTensor(VTensor).data();  /*!*/\n"),
        ("fourDimRead(V, b, h, column, k, H, N, d)", "v[((b * H + h) * N + column) * d + k]")),
    bug("L kept from call to call", "part4", "left over", "", "",
        ("std::vector<float> L = formatTensor(LTensor);", "static std::vector<float> L(B * H * N);  /*!*/"),
        ("            std::fill(L.begin(), L.end(), 0.0f);\n", ""),
        ("Li[i] = L[row];", "Li[i] = L[(b * H + h) * N + row];"),
        ("L[row] = Lnew[i];", "L[(b * H + h) * N + row] = Lnew[i];")),
    bug("PV never cleared", "part4", "left over", "flash_pv_kept", "PV is not set to zero for each block",
        ("float value = 0.0f;", "float value = twoDimRead(PV, i, k, d);  /*!*/")),
    bug("divided by the root of Bc", "part4", "formula", "wrong_values", "1/sqrt(Bc)",
        ("std::exp(twoDimRead(Sij, i, j, Bc))", "std::exp(twoDimRead(Sij, i, j, Bc) / std::sqrt((float)Bc))"),
        ("float weight = ", "/*!*/ float weight = ")),
    bug("only PV divided", "part4", "formula", "wrong_values", "with the brackets of `(Li[i] *",
        ("+ twoDimRead(PV, i, k, d);", "+ twoDimRead(PV, i, k, d) / Lnew[i];  /*!*/"), ("value / Lnew[i]", "value")),
    bug("rows and columns of Pij swapped", "part4", "index", "", "index",
        ("twoDimRead(Pij, i, j, Bc) *", "twoDimRead(Pij, j, i, Bc) * /*!*/")),
    bug("stride of Pij by the columns that are left", "part4", "ragged", "row_range", "N is a multiple of Bc",
        ("twoDimWrite(Pij, i, j, Bc, weight);", "twoDimWrite(Pij, i, j, columns, weight);  /*!*/"), within=1),
    bug("all places of Pij", "part4", "ragged", "wrong_values", "(columns in place of Bc)",
        ("for (int j = 0; j < columns; j++) {\n                                value",
         "for (int j = 0; j < Bc; j++) {  /*!*/\nvalue")),
    bug("another maximum in each block", "part4", "formula", "wrong_values", "old maximum - new maximum",
        ("float rowSum = 0.0f;\n", "float most = Sij[i * Bc];\n"
          "for (int j = 0; j < columns; j++) most = std::max(most, Sij[i * Bc + j]);  /*!*/\nfloat rowSum = 0.0f;\n"),
        ("std::exp(twoDimRead(Sij, i, j, Bc))", "std::exp(twoDimRead(Sij, i, j, Bc) - most)")),
    bug("row blocks shared out over the same tiles", "part4", "race", "race", "two threads write it",
        before("                for (int i0 = 0; i0 < N; i0 += Br) {", "#pragma omp parallel for  /*!*/"), within=10),
]  # fmt: skip

OFFSET = "((x * sizeX + y) * sizeY + z) * sizeZ + b"
ACCESSORS = [
    bug("one size for all", "4Dread", "stride", "", "index",
        (f"{OFFSET}];", "((x * sizeZ + y) * sizeZ + z) * sizeZ + b];  /*!*/")),
    bug("a size more", "4Dwrite", "index", "", "index",
        (f"{OFFSET}] = val;", "((x * sizeX + y) * sizeY + z) * (sizeZ + 1) + b] = val;  /*!*/")),
]  # fmt: skip

PUBLISHED = [
    bug("O one row short", "part3", "ragged", "remainder_tile", "N is a multiple of 8",
        ("for (int i = 0; i < N; i++) {", "for (int i = 0; i < N - N % 8; i++) {  /*!*/"), base="published"),
    bug("scores in whole numbers", "part1", "integer", "wrong_values", "All scores are whole numbers",
        ("float sum = 0.f;\n                    for (int k = 0; k < d; k++)\n"
          "                        sum += fourDimRead(Q",
          "int sum = 0;  /*!*/\nfor (int k = 0; k < d; k++)\nsum += fourDimRead(Q"),
        ("twoDimWrite(QK_t, i, j, N, sum);", "float score = sum;\ntwoDimWrite(QK_t, i, j, N, score);"), within=2,
        base="published"),
    bug("the last block left out, and L not kept", "part4", "two", "wrong_values", "Smallest that fails",
        ("for (int jj = 0; jj < N; jj += Bc) {", "for (int jj = 0; jj < N - Bc; jj += Bc) {  /*!*/"),
        ("L[query] = Lnew[i];", "L[query] = Lij[i];  /*!*/"), base="published"),
]  # fmt: skip

OTHERS = [
    bug("four at a time without the rest", "naive", "ragged", "sum_misses_columns", "C is a multiple of 4",
        ("for (int j = 0; j < C; j++) {\n            sum += std::exp(x[j]);",
          "for (int j = 0; j + 4 <= C; j += 4) {  /*!*/\nfor (int e = j; e < j + 4; e++) sum += std::exp(x[e]);"),
        base="softmax"),
    bug("the next element", "online", "outside", "", "index",
        ("+ std::exp(x[j] - now);", "+ std::exp(x[j + 1] - now);  /*!*/"), base="softmax"),
    bug("no left border", "conv2d", "outside", "column_range", "before an array",
        ("&& iw >= 0 && iw < Wd)", "&& iw < Wd)  /*!*/"), within=1, base="operators"),
    bug("labels as numbers of 32 bits", "cross_entropy_backward", "formula", "", "Write labels.data_ptr<int64_t>()",
        ("int64_t *label = labels.data_ptr<int64_t>();", "int *label = (int *)labels.data_ptr();  /*!*/"),
        base="operators"),
    bug("the row length of A for B", "add_backward", "crash", "", "* CB in place of",
        ("row[CB == 1 ? 0 : j] +=", "int bi = RB == 1 ? 0 : i, bj = CB == 1 ? 0 : j;\ngb[bi * C + bj] +=  /*!*/"),
        base="operators"),
    bug("the same plane for all", "maxpool2d_backward", "index", "plane_ignored", "to the first plane",
        ("gx[plane * H * Wd + at[", "gx[at["), ("#pragma omp parallel for\n", ""),
        ("+= gy[plane * OH * OW + p];", "+= gy[plane * OH * OW + p];  /*!*/"), base="operators"),
    bug("the batch shared out for db", "linear_backward", "race", "race", "gb: ",
        before("    for (int n = 0; n < N; n++)\n        for (int o = 0; o < O; o++) gb", "#pragma omp parallel for"),
        ("gb[o] += gy[n * O + o];", "gb[o] += gy[n * O + o];  /*!*/"), base="operators"),
]  # fmt: skip

DOT = """auto dot = [&](int b, int h, int i, int j) {
float sum = 0.0f;
for (int k = 0; k < d; k++) sum += fourDimRead(Q, b, h, i, k, H, N, d) * fourDimRead(K, b, h, j, k, H, N, d);
return sum;
};
"""
PAIRED = f"score += {READ_Q} * {READ_K};"
#: Bugs that the kit explains by trying edits until one makes the function right (`grader.explain.repair`).
REPAIRED = [
    bug("arguments of a call swapped", "part1", "call", "", "i, j in place of j, i",
        before("for (int b = 0; b < B; b++) {", DOT), ("float score = 0.0f;", "float score = dot(b, h, j, i);  /*!*/"),
        (PAIRED, "")),
    bug("rows skipped by a condition", "part1", "skip", "", "6) continue;)",
        (ROW_SUM, f"if (i % 7 == 6) continue;  /*!*/\n{ROW_SUM}")),
    bug("a macro without brackets", "part1", "macro", "", "With brackets around the whole text of this macro",
        before("for (int b = 0; b < B; b++) {", "#define TIMES(a, b) a * b  /*!*/"),
        (PAIRED, f"float q = {READ_Q};\nscore += TIMES(q + 0.0f, {READ_K});")),
]  # fmt: skip

BUGS: tuple[Bug, ...] = (*REPAIRED, *NAIVE, *BLOCKED, *FUSED, *FLASH, *ACCESSORS, *PUBLISHED, *OTHERS)

ADDR2LINE = shutil.which("addr2line") is not None
WATCHED = race.has_thread_sanitizer(toolchain())
#: A message about a bug of the kind "outside" or "crash" must contain one of these words.
OUTSIDE = ("out of range", "beyond", "before an array", "freed", "out of bounds", "division by zero")
#: Two bugs need a large N: an array of 512 elements is too small, and N * N does not fit into a short.
SHAPE = {"N": 600, "Br": 64, "Bc": 64}
IN_ONE_SOURCE = 12


def groups() -> list[list[Bug]]:
    """Return groups of bugs that are judged in one source. Races are in groups of their own, with another build."""
    found: list[list[Bug]] = []
    for base in ("softmax", "operators", "published", "master"):
        for racing in (False, True):
            some = [bug for bug in BUGS if bug.base == base and (bug.kind == "race") == racing]
            found += [some[at : at + IN_ONE_SOURCE] for at in range(0, len(some), IN_ONE_SOURCE)]
    return found


@cache
def course_of(base: str) -> tuple[records.Assignment, str, dict[str, str]]:
    """Return the assignment of a base (see `Bug.base`), its correct file, and function names by part."""
    if base in ("softmax", "operators"):
        lab = loading.load(ROOT / f"labs/{base}/assignment.yaml")
        return lab, (ROOT / f"labs/{base}/{base}.cpp").read_text(), lab.lab.kernels().FUNCTIONS
    text = source(STYLES[0]) if base == "published" else (ROOT / "module.cpp").read_text()
    course = loading.load(ROOT / "configs/gpt149.yaml")
    return course, text, course.lab.kernels().FUNCTIONS


def mutation(bug: Bug) -> mutations.Mutation:
    return mutations.Mutation(bug.name, bug.part, bug.edits)


@pytest.mark.usefixtures("edited_builds")
@pytest.mark.skipif(toolchain().family != "gcc", reason="expects gcc's sanitizers and warnings")
@pytest.mark.parametrize(
    "group",
    one_of_each(groups(), key=lambda group: None, name=lambda group: f"{group[0].base}: {group[0].name}"),
)
def test_output_names_the_line(group: list[Bug], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge a file with a group of bugs as in a student's own run, without times and the profiler's table."""
    monkeypatch.chdir(tmp_path)
    course, correct, functions = course_of(group[0].base)
    made, file = [mutation(bug) for bug in group], tmp_path / "module.cpp"
    rows = mutations.side_by_side(correct, functions, made).split("\n")
    marked = [number for number, row in enumerate(rows, 1) if MARK in row]
    text = "\n".join(row.replace(MARK, "").rstrip() if MARK in row else row for row in rows)
    starts = [text[: text.index(f" {mutations.variant(k)}(")].count("\n") + 1 for k in range(len(group))]
    file.write_text(text)
    shape = {name: size for name, size in SHAPE.items() if name in course.defaults}
    options = Options(shape, timing=False, profile=False, second_look=True, watch_races=watch_races)
    parts = evaluate(course, file, mutations.parts_of(course, made), options).parts
    failed = [flag for part in parts for flag in part.flags if flag.code == "explanation_failed"]
    assert not failed, failed
    for bug, start, end, part in zip(group, starts, [*starts[1:], 1 << 30], parts, strict=True):
        # If the heap is damaged, free() may never return, so "timeout" is accepted.
        assert part.verdict in ("wrong", "crash", "timeout") and part.diagnosis is not None, bug.name
        message = part.diagnosis.message
        shown = f"{bug.name}: {message}"
        assert not bug.codes or part.diagnosis.code in bug.codes, f"{part.diagnosis.code} {shown}"
        if (bug.kind == "race" and not WATCHED) or (bug.part.startswith("4D") and not ADDR2LINE):
            continue
        lines = [line for line in marked if start <= line < end]
        named = [int(line) for line in re.findall(r"\bmodule\.cpp:(\d+)", message)]
        distance = min((abs(a - b) for a in named for b in lines), default=9999)
        assert distance <= bug.within, f"named {named}, wrong {lines}: {shown}"
        assert bug.said in message, shown
        assert bug.kind not in ("outside", "crash") or any(words in message for words in OUTSIDE), shown
        # Advice about threads would be wrong if the bug is not a race.
        assert bug.kind == "race" or "Do threads share" not in message, shown
        assert "Run again with --sanitize" not in message, shown
