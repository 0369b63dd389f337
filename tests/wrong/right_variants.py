"""The right ones: other ways to write the same thing, each of which must be accepted."""

from __future__ import annotations

from wrong_flash import STORE_L, rows_outer
from wrong_kernels import HEADS, J_TILES, KEYS, PRAGMA, QK_T, SCORE, THREAD_ROW

from grader.assignment.mutations import Mutation

ALLOCATE = "torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);"
TILE = "const int T = TILE_SIZE;"
EXP = f"std::exp({QK_T})"
SCORE_K = "for (int k = 0; k < d; k++) {\n                        score"

#: Row maximum found first, and subtracted in exp().
SAFE_ROW = (
    ("float rowSum = 0.0f;",
        "float rowSum = 0.0f, largest = -1e30f;\n" f"{KEYS} largest = std::max(largest, {QK_T}); }}"),
    (EXP, f"std::exp({QK_T} - largest)"),
)  # fmt: skip

#: The whole of part 1, 2 or 3 for head p = (b * H + h) * N * d, as other people write it.
WITH_POINTERS = """
    for (int p = 0; p < B * H * N * d; p += N * d) {
        const float *q = Q.data() + p, *k = K.data() + p, *v = V.data() + p;
        float *o = O.data() + p, *s = WORKSPACE.data();
        for (int i = 0; i < N; i++) {
            float sum = 0;
            for (int j = 0; j < N; j++) {
                float dot = 0;
                for (int c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];
                s[j] = std::exp(dot);
                sum += s[j];
            }
            for (int c = 0; c < d; c++) o[i * d + c] = 0;
            for (int j = 0; j < N; j++)
                for (int c = 0; c < d; c++) o[i * d + c] += s[j] / sum * v[j * d + c];
        }
    }"""

ONLINE = """
    for (int p = 0; p < B * H * N * d; p += N * d) {
        for (int i = 0; i < N; i++) {
            float largest = -INFINITY, sum = 0;
            std::vector<float> o(d, 0.0f);
            for (int j = 0; j < N; j++) {
                float dot = 0;
                for (int c = 0; c < d; c++) dot += Q[p + i * d + c] * K[p + j * d + c];
                float now = std::max(largest, dot), old = std::exp(largest - now), weight = std::exp(dot - now);
                for (int c = 0; c < d; c++) o[c] = o[c] * old + weight * V[p + j * d + c];
                sum = sum * old + weight;
                largest = now;
            }
            for (int c = 0; c < d; c++) O[p + i * d + c] = o[c] / sum;
        }
    }"""

IN_DOUBLE = WITH_POINTERS.replace("float sum", "double sum").replace("float dot = 0", "double dot = 0")
BACKWARDS = WITH_POINTERS.replace("for (int j = 0; j < N; j++)", "for (int j = N - 1; j >= 0; j--)")
TRANSPOSED_K = """
    for (int p = 0; p < B * H * N * d; p += N * d) {
        std::vector<float> kt(N * d), s(N);
        for (int j = 0; j < N; j++)
            for (int c = 0; c < d; c++) kt[c * N + j] = K[p + j * d + c];
        for (int i = 0; i < N; i++) {
            std::fill(s.begin(), s.end(), 0.0f);
            for (int c = 0; c < d; c++)
                for (int j = 0; j < N; j++) s[j] += Q[p + i * d + c] * kt[c * N + j];
            float largest = *std::max_element(s.begin(), s.end()), sum = 0;
            for (float &x : s) sum += x = std::exp(x - largest);
            for (int c = 0; c < d; c++) {
                float value = 0;
                for (int j = 0; j < N; j++) value += s[j] * V[p + j * d + c];
                O[p + i * d + c] = value / sum;
            }
        }
    }"""
FOUR_SUMS = WITH_POINTERS.replace(
    "for (int c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];",
    """float part[4] = {0, 0, 0, 0};
                for (int c = 0; c < d; c++) part[c % 4] += q[i * d + c] * k[j * d + c];
                dot = (part[0] + part[1]) + (part[2] + part[3]);""",
)
BY_ROW_IN_PARALLEL = """
    #pragma omp parallel for
    for (int row = 0; row < B * H * N; row++) {
        int p = row / N * N * d, i = row % N;
        float *s = temp.data() + omp_get_thread_num() * N, sum = 0;
        for (int j = 0; j < N; j++) {
            float dot = 0;
            #pragma omp simd reduction(+ : dot)
            for (int c = 0; c < d; c++) dot += Q[p + i * d + c] * K[p + j * d + c];
            sum += s[j] = std::exp(dot);
        }
        for (int c = 0; c < d; c++) {
            float value = 0;
            for (int j = 0; j < N; j++) value += s[j] * V[p + j * d + c];
            O[p + i * d + c] = value / sum;
        }
    }"""
SHARED_OUT_BY_HAND = BY_ROW_IN_PARALLEL.replace(
    "#pragma omp parallel for\n    for (int row = 0; row < B * H * N; row++) {",
    "#pragma omp parallel\n    for (int row = omp_get_thread_num(); row < B * H * N; row += omp_get_num_threads()) {",
)


def using(body: str, workspace: str) -> str:
    return body.replace("WORKSPACE", workspace)


ROW_LOOP = """for (int i = 0; i < N; i++) {
                for (int j = 0; j < N; j++) {
                    float score"""

PART1 = [
    Mutation("p1 as it is", "part1", ((SCORE, SCORE),)),
    Mutation("p1 safe softmax", "part1", SAFE_ROW),
    Mutation("p1 double sums", "part1",
        ((SCORE, "double score = 0;"), ("float rowSum = 0.0f;", "double rowSum = 0;"),
          ("float value = 0.0f;", "double value = 0;"))),
    Mutation("p1 reciprocal", "part1", (("/ rowSum", "* (1.0f / rowSum)"),)),
    Mutation("p1 with pointers", "part1", body=using(WITH_POINTERS, "QK_t")),
    Mutation("p1 online softmax", "part1", body=ONLINE),
    Mutation("p1 keys backwards", "part1", body=using(BACKWARDS, "QK_t")),
    Mutation("p1 K transposed first", "part1", body=TRANSPOSED_K),
    Mutation("p1 parallel rows", "part1", ((ROW_LOOP, "#pragma omp parallel for\n            " + ROW_LOOP),)),
    Mutation("p1 made empty", "part1", ((ALLOCATE, ALLOCATE.replace("zeros", "empty")),)),
    Mutation("p1 prints", "part1", ((HEADS, 'std::printf("head\\n"); ' + HEADS),)),
    Mutation("p1 channels backwards", "part1",
        ((SCORE_K, SCORE_K.replace("k = 0; k < d; k++", "k = d - 1; k >= 0; k--")),)),
]  # fmt: skip

PART2 = [
    *[Mutation(f"p2 tile {t}", "part2", ((TILE, f"const int T = {t};"),)) for t in (1, 7, 8, 32, 64, 200)],
    Mutation("p2 safe softmax", "part2", SAFE_ROW),
    Mutation("p2 key tiles backwards", "part2",
        ((f"                    {J_TILES}",
            "                    for (int j0 = (N - 1) / T * T; j0 >= 0; j0 -= T) {"),
          ("j0 == 0 ?", "j0 == (N - 1) / T * T ?"))),
    Mutation("p2 double rows", "part2", (("float rowSum = 0.0f;", "double rowSum = 0;"),)),
    Mutation("p2 four sums", "part2", body=using(FOUR_SUMS, "QK_t")),
    Mutation("p2 double dots", "part2", body=using(IN_DOUBLE, "QK_t")),
]  # fmt: skip

#: Where part 3 has added up a row of O.
VALUES_END = """fourDimWrite(O, b, h, i, k, H, N, d, value);
                    }
                }"""

PART3 = [
    Mutation("p3 serial", "part3", ((PRAGMA, ""), (THREAD_ROW, "int row = 0;"))),
    Mutation("p3 collapse 2", "part3", ((PRAGMA, PRAGMA.replace("3", "2")),)),
    Mutation("p3 over batches only", "part3", ((PRAGMA, PRAGMA.replace(" collapse(3)", "")),)),
    Mutation("p3 dynamic", "part3", ((PRAGMA, PRAGMA + " schedule(dynamic, 3)"),)),
    Mutation("p3 two threads", "part3", ((PRAGMA, PRAGMA + " num_threads(2)"),)),
    Mutation("p3 flat rows, simd", "part3", body=BY_ROW_IN_PARALLEL),
    Mutation("p3 shared out by hand", "part3", body=SHARED_OUT_BY_HAND),
    Mutation("p3 own vector", "part3",
        body=BY_ROW_IN_PARALLEL.replace("float *s = temp.data() + omp_get_thread_num() * N, sum = 0;",
            "std::vector<float> s(N); float sum = 0;")),
    Mutation("p3 online softmax", "part3", body="    #pragma omp parallel for" + ONLINE),
    Mutation("p3 heads in parallel", "part3", body="    #pragma omp parallel for" + TRANSPOSED_K),
    Mutation("p3 normalised last", "part3",
        ((" / rowSum", ""),
          (VALUES_END,
            f"{VALUES_END}\n" "for (int k = 0; k < d; k++) O[((b * H + h) * N + i) * d + k] /= rowSum;"))),
    Mutation("p3 column by column", "part3",
        (("float weight = twoDimRead(temp, row, j, N) / rowSum;", "if (j > 0) break;"),
          ("value += weight * fourDimRead(V, b, h, j, k, H, N, d);",
            "for (int t = 0; t < N; t++)\n"
            "    value += twoDimRead(temp, row, t, N) / rowSum * fourDimRead(V, b, h, t, k, H, N, d);"))),
]  # fmt: skip

I_BLOCKS = "for (int i0 = 0; i0 < N; i0 += Br) {"
NORMALISE_ONCE = (
    ("float value = Li[i] * twoDimRead(Oi, i, k, d) + twoDimRead(PV, i, k, d);",
        "float value = twoDimRead(Oi, i, k, d) + twoDimRead(PV, i, k, d);"),
    ("value / Lnew[i]", "j0 + Bc < N ? value : value / Lnew[i]"),
)  # fmt: skip

PART4 = [
    Mutation("p4 normalised once", "part4", NORMALISE_ONCE),
    Mutation("p4 reciprocal", "part4", (("value / Lnew[i]", "value * (1.0f / Lnew[i])"),)),
    Mutation("p4 query blocks backwards", "part4",
        ((I_BLOCKS, "for (int i0 = (N - 1) / Br * Br; i0 >= 0; i0 -= Br) {"),)),
    Mutation("p4 key blocks backwards", "part4",
        (("for (int j0 = 0; j0 < N; j0 += Bc) {", "for (int j0 = (N - 1) / Bc * Bc; j0 >= 0; j0 -= Bc) {"),)),
    Mutation("p4 double sums", "part4",
        (("float score = 0.0f;", "double score = 0;"), ("float rowSum = 0.0f;", "double rowSum = 0;"))),
    Mutation("p4 own blocks", "part4",
        (("for (int b = 0; b < B; b++) {",
            "Bc = std::max(1, Bc / 2); Br = std::max(1, Br / 3);\n" "    for (int b = 0; b < B; b++) {"),)),
    Mutation("p4 L by hand", "part4",
        (("std::fill(L.begin(), L.end(), 0.0f);", "for (float &l : L) { l = 0; }"),)),
    Mutation("p4 without tiles", "part4", body=using(WITH_POINTERS, "L")),
    Mutation("p4 online softmax", "part4", body=ONLINE),
    Mutation("p4 rows outside, keys inside", "part4", body=rows_outer("ROWS", "ROWS")),
    Mutation("p4 one key a block", "part4",
        (("for (int b = 0; b < B; b++) {", "Bc = 1;\n    for (int b = 0; b < B; b++) {"),)),
    Mutation("p4 L stored early", "part4",
        ((STORE_L, ""),
          ("Lnew[i] = Li[i] + Lij[i];",
            "Lnew[i] = Li[i] + Lij[i];\n                        L[i0 + i] = Lnew[i];"))),
]  # fmt: skip

RIGHT: list[Mutation] = [*PART1, *PART2, *PART3, *PART4]
