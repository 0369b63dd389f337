"""Right variants: other ways to write the same computation. All must pass."""

from family_rows import BATCHES, ROW_SUM
from family_rows import RIGHT as RIGHT_OF
from wrong_flash import ADD_L, FLASH, I_BLOCKS, J_BLOCKS, STORE_L, rows_outer
from wrong_kernels import EXP, HEADS, J_TILES, KEYS, PRAGMA, QK_T, SCORE, THREAD_ROW

from grader.assignment.mutations import Mutation

p1, p2, p3, p4 = RIGHT_OF
ALLOCATE = "torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);"
TILE = "const int T = TILE_SIZE;"
SCORE_K = "for (int k = 0; k < d; k++) {\n                        score"

DOUBLE_SUM = (ROW_SUM, "double rowSum = 0;")
SAFE_ROW = (
    (ROW_SUM, "float rowSum = 0.0f, largest = -1e30f;\n" f"{KEYS} largest = std::max(largest, {QK_T}); }}"),
    (EXP, f"std::exp({QK_T} - largest)"),
)  # fmt: skip

#: Attention with pointers. WORKSPACE: the part's vector that holds a row of weights. p is the offset of a head.
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
ROW_OF_THREAD = "float *s = temp.data() + omp_get_thread_num() * N, sum = 0;"
SHARED_OUT_BY_HAND = BY_ROW_IN_PARALLEL.replace(
    "#pragma omp parallel for\n    for (int row = 0; row < B * H * N; row++) {",
    "#pragma omp parallel\n    for (int row = omp_get_thread_num(); row < B * H * N; row += omp_get_num_threads()) {",
)

ROW_LOOP = """for (int i = 0; i < N; i++) {
                for (int j = 0; j < N; j++) {
                    float score"""

PART1 = [
    p1("as it is", (SCORE, SCORE)),
    p1("safe softmax", *SAFE_ROW),
    p1("double sums", (SCORE, "double score = 0;"), DOUBLE_SUM, ("float value = 0.0f;", "double value = 0;")),
    p1("reciprocal", ("/ rowSum", "* (1.0f / rowSum)")),
    p1("with pointers", body=WITH_POINTERS.replace("WORKSPACE", "QK_t")),
    p1("online softmax", body=ONLINE),
    p1("keys backwards", body=BACKWARDS.replace("WORKSPACE", "QK_t")),
    p1("K transposed first", body=TRANSPOSED_K),
    p1("parallel rows", (ROW_LOOP, "#pragma omp parallel for\n            " + ROW_LOOP)),
    p1("made empty", (ALLOCATE, ALLOCATE.replace("zeros", "empty"))),
    p1("prints", (HEADS, 'std::printf("head\\n"); ' + HEADS)),
    p1("channels backwards", (SCORE_K, SCORE_K.replace("k = 0; k < d; k++", "k = d - 1; k >= 0; k--"))),
]  # fmt: skip

PART2 = [
    *[p2(f"tile {t}", (TILE, f"const int T = {t};")) for t in (1, 7, 8, 32, 64, 200)],
    p2("safe softmax", *SAFE_ROW),
    p2("key tiles backwards", (f"                    {J_TILES}",
        "                    for (int j0 = (N - 1) / T * T; j0 >= 0; j0 -= T) {"),
        ("j0 == 0 ?", "j0 == (N - 1) / T * T ?")),
    p2("double rows", DOUBLE_SUM),
    p2("four sums", body=FOUR_SUMS.replace("WORKSPACE", "QK_t")),
    p2("double dots", body=IN_DOUBLE.replace("WORKSPACE", "QK_t")),
]  # fmt: skip

VALUES_END = """fourDimWrite(O, b, h, i, k, H, N, d, value);
                    }
                }"""

PART3 = [
    p3("serial", (PRAGMA, ""), (THREAD_ROW, "int row = 0;")),
    p3("collapse 2", (PRAGMA, PRAGMA.replace("3", "2"))),
    p3("over batches only", (PRAGMA, PRAGMA.replace(" collapse(3)", ""))),
    p3("dynamic", (PRAGMA, PRAGMA + " schedule(dynamic, 3)")),
    p3("two threads", (PRAGMA, PRAGMA + " num_threads(2)")),
    p3("flat rows, simd", body=BY_ROW_IN_PARALLEL),
    p3("shared out by hand", body=SHARED_OUT_BY_HAND),
    p3("own vector", body=BY_ROW_IN_PARALLEL.replace(ROW_OF_THREAD, "std::vector<float> s(N); float sum = 0;")),
    p3("online softmax", body="    #pragma omp parallel for" + ONLINE),
    p3("heads in parallel", body="    #pragma omp parallel for" + TRANSPOSED_K),
    p3("normalised last", (" / rowSum", ""),
        (VALUES_END, f"{VALUES_END}\nfor (int k = 0; k < d; k++) O[((b * H + h) * N + i) * d + k] /= rowSum;")),
    p3("column by column", ("float weight = twoDimRead(temp, row, j, N) / rowSum;", "if (j > 0) break;"),
        ("value += weight * fourDimRead(V, b, h, j, k, H, N, d);", "for (int t = 0; t < N; t++)\n"
          "    value += twoDimRead(temp, row, t, N) / rowSum * fourDimRead(V, b, h, t, k, H, N, d);")),
]  # fmt: skip

PART4 = [
    p4("normalised once", (FLASH, FLASH.replace("Li[i] * ", "")),
        ("value / Lnew[i]", "j0 + Bc < N ? value : value / Lnew[i]")),
    p4("reciprocal", ("value / Lnew[i]", "value * (1.0f / Lnew[i])")),
    p4("query blocks backwards", (I_BLOCKS, "for (int i0 = (N - 1) / Br * Br; i0 >= 0; i0 -= Br) {")),
    p4("key blocks backwards", (J_BLOCKS, "for (int j0 = (N - 1) / Bc * Bc; j0 >= 0; j0 -= Bc) {")),
    p4("double sums", (SCORE, "double score = 0;"), DOUBLE_SUM),
    p4("own blocks", (BATCHES, f"Bc = std::max(1, Bc / 2); Br = std::max(1, Br / 3);\n    {BATCHES}")),
    p4("L by hand", ("std::fill(L.begin(), L.end(), 0.0f);", "for (float &l : L) { l = 0; }")),
    p4("without tiles", body=WITH_POINTERS.replace("WORKSPACE", "L")),
    p4("online softmax", body=ONLINE),
    p4("rows outside, keys inside", body=rows_outer("ROWS", "ROWS")),
    p4("one key a block", (BATCHES, f"Bc = 1;\n    {BATCHES}")),
    p4("L stored early", (STORE_L, ""), (ADD_L, f"{ADD_L}\n                        L[i0 + i] = Lnew[i];")),
]  # fmt: skip

RIGHT: list[Mutation] = [*PART1, *PART2, *PART3, *PART4]
