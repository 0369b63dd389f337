"""Threats F2: one function handed in as several parts. The controls have different kernels, right or wrong."""

from __future__ import annotations

from .sources import End, Threat, function

#: Start of a file: a function `attention` with a naive loop over rows, and a part 1 that only calls this function.
NAIVE = """
#include <torch/extension.h>
#include <algorithm>
#include <cmath>
#include <vector>

static torch::Tensor attention(torch::Tensor QT, torch::Tensor KT, torch::Tensor VT, int B, int H, int N, int d) {
    torch::Tensor O = at::zeros({B, H, N, d}, at::kFloat);
    const float *q = QT.data_ptr<float>(), *k = KT.data_ptr<float>(), *v = VT.data_ptr<float>();
    float *o = O.data_ptr<float>();
    std::vector<float> s(N);
    for (int row = 0; row < B * H * N; row++) {
        const int base = row / N * N * d;
        float sum = 0;
        for (int j = 0; j < N; j++) {
            float dot = 0;
            for (int c = 0; c < d; c++) dot += q[row * d + c] * k[base + j * d + c];
            sum += s[j] = std::exp(dot);
        }
        for (int j = 0; j < N; j++)
            for (int c = 0; c < d; c++) o[row * d + c] += s[j] / sum * v[base + j * d + c];
    }
    return O;
}

torch::Tensor myNaiveAttention(torch::Tensor Q, torch::Tensor K, torch::Tensor V, torch::Tensor QK_t, int B, int H,
                               int N, int d) {
    return attention(Q, K, V, B, H, N, d);
}
"""
NAMED = ", ".join(
    f"torch::Tensor {name}" for name in ("Qi", "Kj", "Vj", "Sij", "Pij", "PV", "Oi", "L", "Li", "Lij", "Lnew")
)
NAMED += ", int Bc, int Br"
CALL = "return attention(Q, K, V, B, H, N, d);"
TILES = """
    torch::Tensor O = at::zeros({B, H, N, d}, at::kFloat);
    const float *q = Q.data_ptr<float>(), *k = K.data_ptr<float>(), *v = V.data_ptr<float>();
    float *o = O.data_ptr<float>(), *s = Sij.data_ptr<float>(), *l = L.data_ptr<float>(), *pv = PV.data_ptr<float>();
    for (int p = 0; p < B * H * N * d; p += N * d) {
        std::fill(l, l + N, 0.0f);
        for (int j0 = 0; j0 < N; j0 += Bc)
            for (int i0 = 0; i0 < N; i0 += Br)
                for (int i = i0; i < std::min(i0 + Br, N); i++) {
                    float sum = 0;
                    std::fill(pv, pv + d, 0.0f);
                    for (int j = j0; j < std::min(j0 + Bc, N); j++) {
                        float dot = 0;
                        for (int c = 0; c < d; c++) dot += q[p + i * d + c] * k[p + j * d + c];
                        sum += s[j - j0] = std::exp(dot);
                        for (int c = 0; c < d; c++) pv[c] += s[j - j0] * v[p + j * d + c];
                    }
                    for (int c = 0; c < d; c++) o[p + i * d + c] = (l[i] * o[p + i * d + c] + pv[c]) / (l[i] + sum);
                    l[i] += sum;
                }
    }
    return O;
"""


def flash(body: str, name: str, arguments: str = NAMED) -> str:
    """Return the source of a part 4 with this body, as a function called `name`."""
    head = f"torch::Tensor {name}(torch::Tensor Q, torch::Tensor K, torch::Tensor V, {arguments}"
    return f"{head}, int B, int H, int N, int d) {{\n    {body.strip()}\n}}\n"


def bound(*names: str) -> str:
    """Return the PYBIND11_MODULE of a file that exports these functions."""
    table = "".join(f'    m.def("{name}", &{name});\n' for name in names)
    return f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{table}}}\n"


def with_part_4(text: str, name: str) -> str:
    """Return a whole file with part 1 and with `text`, the source of a part 4 called `name`."""
    return f"{NAIVE}\n{text}\n{bound('myNaiveAttention', name)}"


BOUND = function("row0")
#: Part 4, defined by a macro that could define any part.
BY_A_MACRO = f"""
#define PART(name, ...) torch::Tensor name(__VA_ARGS__) {{ {CALL} }}
PART({BOUND}, torch::Tensor Q, torch::Tensor K, torch::Tensor V, {NAMED}, int B, int H, int N, int d)
"""


def on_one_line(text: str) -> str:
    """Return the source with all functions on one line, after the last #include."""
    head, last, functions = text.rpartition("#include <vector>\n")
    return f"{head}{last}{' '.join(functions.split())}\n"


UNFUSED = "torch::Tensor Q, torch::Tensor K, torch::Tensor V, torch::Tensor QK_t, int B, int H, int N, int d"
#: Part 2: part 1's loops over rows and keys, with tiles of keys. Sums are added in the same order as in part 1.
BLOCKED = """
    torch::Tensor O = at::zeros({B, H, N, d}, at::kFloat);
    float *s = QK_t.data_ptr<float>();
    for (int p = 0; p < B * H * N * d; p += N * d) {
        const float *q = Q.data_ptr<float>() + p, *k = K.data_ptr<float>() + p, *v = V.data_ptr<float>() + p;
        float *o = O.data_ptr<float>() + p;
        for (int j0 = 0; j0 < N; j0 += 16)
            for (int i = 0; i < N; i++)
                for (int j = j0; j < std::min(j0 + 16, N); j++) s[i * N + j] = product(q + i * d, k + j * d, d);
        for (int i = 0; i < N; i++) add_rows(s + i * N, v, o + i * d, N, d);
    }
    return O;
"""
#: Helpers that parts may honestly share: the product of two rows, and the softmax of a row times V.
SHARED = """
static float product(const float *a, const float *b, int d) {
    float sum = 0;
    for (int c = 0; c < d; c++) sum += a[c] * b[c];
    return sum;
}

static void add_rows(float *s, const float *v, float *o, int N, int d) {
    float sum = 0;
    for (int j = 0; j < N; j++) sum += s[j] = std::exp(s[j]);
    for (int j = 0; j < N; j++)
        for (int c = 0; c < d; c++) o[c] += s[j] / sum * v[j * d + c];
}
"""
NAIVE_OF_SHARED = BLOCKED.replace("j0 += 16", "j0 += N").replace("j0 + 16", "j0 + N")
#: A loop over heads that calls a given function for each head, and two such functions: naive and blocked.
HEADS = """
template <class Head>
static torch::Tensor heads(torch::Tensor Q, torch::Tensor K, torch::Tensor V, int B, int H, int N, int d, Head head) {
    torch::Tensor O = at::zeros({B, H, N, d}, at::kFloat);
    const float *q = Q.data_ptr<float>(), *k = K.data_ptr<float>(), *v = V.data_ptr<float>();
    for (int p = 0; p < B * H * N * d; p += N * d) head(q + p, k + p, v + p, O.data_ptr<float>() + p, N, d);
    return O;
}

static void naive(const float *q, const float *k, const float *v, float *o, int N, int d) {
    std::vector<float> s(N);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) s[j] = product(q + i * d, k + j * d, d);
        add_rows(s.data(), v, o + i * d, N, d);
    }
}

static void blocked(const float *q, const float *k, const float *v, float *o, int N, int d) {
    std::vector<float> s(N * N);
    for (int j0 = 0; j0 < N; j0 += 16)
        for (int i = 0; i < N; i++)
            for (int j = j0; j < std::min(j0 + 16, N); j++) s[i * N + j] = product(q + i * d, k + j * d, d);
    for (int i = 0; i < N; i++) add_rows(s.data() + i * N, v, o + i * d, N, d);
}
"""


def _row(row: str, name: str, end: End, source: str, part: str = "part4", beside: str = "part1") -> Threat:
    return Threat(row, name, end, source=source, part=part, beside=beside)


def _blocked(body: str, name: str = BOUND) -> str:
    return f"torch::Tensor {name}({UNFUSED}) {{\n    {body.strip()}\n}}\n"


def _in_common(first: str, second: str = BLOCKED, helpers: str = SHARED) -> str:
    """Return a file with `helpers`, part 1 with the body `first`, and part 2 with the body `second`."""
    head, tail = NAIVE.partition("torch::Tensor myNaiveAttention")[::2]
    assert tail
    return f"{head}{helpers}{_blocked(first, 'myNaiveAttention')}{_blocked(second)}{bound('myNaiveAttention', BOUND)}"


def _body(body: str) -> str:
    """Return a whole file with part 1 and with a part 4 that has this body."""
    return with_part_4(flash(body, BOUND), BOUND)


IDLE_LOOPS = "for (int i = 0; i < N; i++) QK_t.data_ptr<float>()[i] = 0;\n    "
CALL_FIRST = "return myNaiveAttention(Q, K, V, QK_t, B, H, N, d);"
#: Body of a part 2 that only calls a function `wrapper`.
WRAPPED = "return wrapper(Q, K, V, QK_t, B, H, N, d);"


def _second(body: str, helper: str = "") -> str:
    """Return a file with part 1 and a part 2 with this body. If given, `helper` is the body of a function `wrapper`."""
    before = _blocked(helper, "wrapper") if helper else ""
    return f"{NAIVE}\n{before}{_blocked(body)}{bound('myNaiveAttention', BOUND)}"


#: Part 1 has its own loops; part 2 only calls `attention`.
SECOND_LOOP = (
    NAIVE.partition("torch::Tensor myNaiveAttention")[0]
    + SHARED
    + _blocked(NAIVE_OF_SHARED, "myNaiveAttention")
    + _blocked(CALL, "myUnfusedAttentionBlocked")
)
_SAME = End(("pass",), ("same_as_part1",))
SAME_WORK = [
    _row("F2", "one loop as part 1 and as part 4", _SAME, _body(CALL)),
    _row("F2", "one loop as part 1 and as part 4, on one line", _SAME, on_one_line(_body(CALL))),
    _row("F2", "one loop as part 1 and as part 4, by a macro", _SAME, with_part_4(BY_A_MACRO, BOUND)),
    _row(
        "F2",
        "one loop as part 1 and as part 4, which calls part 1",
        _SAME,
        _body("return myNaiveAttention(Q, K, V, Sij, B, H, N, d);"),
    ),
    _row("F2", "part 1 as part 2, which calls it", _SAME, _second(CALL_FIRST), "part2"),
    _row(
        "F2",
        "part 1 as part 2, which calls it beside loops that do nothing",
        _SAME,
        _second(f"{IDLE_LOOPS}{CALL_FIRST}"),
        "part2",
    ),
    _row(
        "F2",
        "part 1 as part 2, by a function with a loop that does nothing",
        _SAME,
        _second(WRAPPED, f"{IDLE_LOOPS}{CALL_FIRST}"),
        "part2",
    ),
    _row(
        "F2", "part 1 as part 2, under other names", _SAME, _in_common(BLOCKED.replace("j0", "tile")), "part2"
    ),
    _row(
        "F2",
        "one loop as part 2 and as part 4; part 1 has another loop",
        End(("pass",), ("same_as_part2",)),
        f"{SECOND_LOOP}{flash(CALL, BOUND)}{bound('myUnfusedAttentionBlocked', BOUND)}",
        beside="part2",
    ),
]  # fmt: skip
SAME_WORK_CONTROLS = [
    _row("", "flash attention beside a naive part 1", End(("pass",)), _body(TILES)),
    _row("", "flash attention beside a naive part 1, on one line", End(("pass",)), on_one_line(_body(TILES))),
    _row(
        "",
        "a blocked part 2 with part 1's helpers and order of summation",
        End(("pass",)),
        _in_common(NAIVE_OF_SHARED),
        "part2",
    ),
    _row(
        "",
        "part 1 as part 2, with V for K",
        End(("wrong",)),
        _second(CALL_FIRST.replace("K,", "V,")),
        "part2",
    ),
    _row(
        "",
        "a naive part 1 and a blocked part 2, called by one shared loop over heads",
        End(("pass",)),
        _in_common(
            *(f"return heads(Q, K, V, B, H, N, d, {one});" for one in ("naive", "blocked")), SHARED + HEADS
        ),
        "part2",
    ),
    _row("", "a wrong loop beside a naive part 1", End(("wrong",)), _body(CALL.replace("V,", "K,"))),
]
