"""Honest kernels in the published starter's style. Each Style in STYLES is one person's way to write all parts.

All texts were written for the kit. Helpers such as `formatTensor` (which makes a vector) do the same as the starter's.
Each score is computed as one dot product. As published, part 3 takes a row of `temp` by `index` for each output row.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Style:
    name: str
    #: Access to elements: functions that take indices by reference (as published) or by value, or a computed offset.
    accessors: Literal["reference", "value", "offset"] = "reference"
    exp: Literal["exp", "std::exp", "expf"] = "exp"
    #: True: each row's maximum is subtracted from its scores before exp.
    maximum: bool = False
    #: Early: each weight is divided by the row's sum. Late: the output is divided.
    division: Literal["early", "late"] = "early"
    #: How O = P V is computed: by a dot product for each column of the output, or as a weighted sum of V's rows.
    product: Literal["columns", "rows"] = "columns"
    #: Number of nested loops whose iterations OpenMP divides among threads.
    collapse: Literal[2, 3] = 3
    #: Part 3's row of weights: the published `temp.index`, a row of a copy of temp, or a vector made in the loop.
    row: Literal["index", "copied", "local"] = "index"
    #: Order of part 2's loops over tiles, outermost first: i rows, j columns of the product, k the summed index.
    tiles: Literal["ijk", "jik", "kij"] = "ijk"
    side: int = 16  # rows and columns of a tile
    #: A tile's end is computed before the loop over the tile, or in the loop's condition.
    bounds: Literal["before", "condition"] = "before"
    #: Pragmas above all headers. They affect the headers and the kernels.
    options: str = ""


OPTIONS = """#pragma GCC optimize("O3,unroll-loops,fast-math")
#ifdef __AVX__
#pragma GCC target("avx2,fma")
#endif
"""
STYLES = (
    Style("as the starter"),
    Style("std::exp, divided late", exp="std::exp", division="late"),
    Style("by value", accessors="value"),
    Style("by value, divided late", accessors="value", division="late", collapse=2, tiles="jik"),
    Style("offset function", accessors="offset", exp="std::exp", bounds="condition"),
    Style("offset function, local row", accessors="offset", row="local", division="late", side=32),
    Style("maximum subtracted", maximum=True, exp="std::exp"),
    Style("maximum subtracted, by value", maximum=True, accessors="value", division="late", row="local"),
    Style("collapse(2)", collapse=2, division="late", bounds="condition"),
    Style("copied rows of temp", row="copied", exp="expf"),
    Style("row by row of V", product="rows", row="copied", tiles="kij", side=32),
    Style("row by row of V, divided late", product="rows", division="late", accessors="value", row="index"),
    Style("larger tiles", side=64, exp="std::exp", division="late", row="copied"),
    Style("offset function, maximum", accessors="offset", maximum=True, collapse=2, tiles="jik", side=32),
    Style("options for all functions", options=OPTIONS),
)


def source(style: Style) -> str:
    write = _Writer(style)
    parts = (write.naive(), write.blocked(), write.fused(), write.flash())
    return style.options + "\n".join([PREAMBLE, write.accessors(), *parts, BINDINGS])


HEADERS = "torch/extension.h ATen/ATen.h iostream time.h sys/time.h vector immintrin.h omp.h"
INCLUDES = "".join(f"#include <{name}>\n" for name in HEADERS.split())
TWO_DIMENSIONS = """
inline float twoDimRead(std::vector<float> &tensor, int &x, int &y, const int &sizeX) {
    return tensor[x * sizeX + y];
}

inline void twoDimWrite(std::vector<float> &tensor, int &x, int &y, const int &sizeX, float &val) {
    tensor[x * sizeX + y] = val;
}
"""
FORMAT_TENSOR = """
std::vector<float> formatTensor(torch::Tensor tensor) {
    tensor = tensor.flatten();
    tensor = tensor.contiguous();
    std::vector<float> vec(tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel());
    return vec;
}
"""
AS_TENSOR = """
static torch::Tensor asTensor(std::vector<float> &O, int B, int H, int N, int d) {
    return torch::from_blob(O.data(), {B, H, N, d}, torch::TensorOptions().dtype(torch::kFloat32)).clone();
}
"""
PREAMBLE = f"{INCLUDES}#include <algorithm>\n#include <cmath>\n{TWO_DIMENSIONS}{FORMAT_TENSOR}{AS_TENSOR}"
BINDINGS = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("myNaiveAttention", &myNaiveAttention, "Naive Attention");
    m.def("myUnfusedAttentionBlocked", &myUnfusedAttentionBlocked, "Blocked Unfused Attention");
    m.def("myFusedAttention", &myFusedAttention, "Fused Attention");
    m.def("myFlashAttention", &myFlashAttention, "Flash Attention");
    m.def("twoDimRead", &twoDimRead, "twoDimRead");
    m.def("fourDimRead", &fourDimRead, "fourDimRead");
}
"""
#: Helpers in the published style: a macro, a clock, printed text, and named arguments with defaults.
HELPERS = """
#define ROW_CHUNK 16

static double seconds() {
    struct timeval now;
    gettimeofday(&now, nullptr);
    return now.tv_sec + 1e-6 * now.tv_usec;
}

static void printMatrix(const char *title, std::vector<float> &m, int rows, int columns) {
    std::cout << title << std::endl;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) printf("%8.4f ", twoDimRead(m, i, j, columns));
}
"""
PRINTS = """    if (N <= 2) {
        printMatrix("scores", QK_t, N, N);
        std::cout << "at " << seconds() << " s" << std::endl;
    }
"""
TWO_BINDINGS = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.doc() = "attention, two ways";
    m.def("myNaiveAttention", &myNaiveAttention, "Naive Attention", py::arg("Q"), py::arg("K"), py::arg("V"),
          py::arg("QK_t"), py::arg("B") = 1, py::arg("H") = 4, py::arg("N"), py::arg("d"));
    m.def("myFusedAttention", &myFusedAttention, "Fused Attention");
    m.def("twoDimRead", &twoDimRead, "twoDimRead");
    m.def("fourDimRead", &fourDimRead, "fourDimRead");
}
"""


def published() -> str:
    """Return parts 1 and 3 as in the starter; fourDimWrite takes a float by reference and is not exported."""
    write = _Writer(STYLES[0])
    naive = write.naive().replace("    return asTensor", f"{PRINTS}    return asTensor")
    accessors = four_dimensions(val="float &val")
    return "\n".join([PREAMBLE, accessors, HELPERS, naive, write.fused(), TWO_BINDINGS])


def formatted(*names: str) -> str:
    return "".join(f"    std::vector<float> {name} = formatTensor({name}Tensor);\n" for name in names)


FORMATTED = "    at::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);\n" + formatted(*"OQKV")
STARTERS_ROW = """at::Tensor ORowTensor =
                    temp.index({torch::indexing::Slice(omp_get_thread_num(), torch::indexing::None)});
                std::vector<float> ORow = formatTensor(ORowTensor);"""
OFFSET = """
static inline int offset4(int x, int y, int z, int b, int sizeX, int sizeY, int sizeZ) {
    return ((x * sizeX + y) * sizeY + z) * sizeZ + b;
}
"""
LIMITS = {"i": "N", "j": "N", "k": "d"}


def four_dimensions(is_by_value: bool = False, val: str = "float val") -> str:
    by, const = ("", "int ") if is_by_value else (" &", "const int &")
    place = f"int{by} x, int{by} y, int{by} z, int{by} b, {const}sizeX, {const}sizeY, {const}sizeZ"
    element = "tensor[x * (sizeX * sizeY * sizeZ) + y * (sizeY * sizeZ) + z * sizeZ + b]"
    return f"""\
inline float fourDimRead(std::vector<float> &tensor, {place}) {{
    return {element};
}}

inline void fourDimWrite(std::vector<float> &tensor, {place}, {val}) {{
    {element} = val;
}}
"""


class _Writer:
    def __init__(self, style: Style) -> None:
        self.style = style

    def accessors(self) -> str:
        text = four_dimensions(is_by_value=self.style.accessors == "value")
        return text + OFFSET if self.style.accessors == "offset" else text

    def read(self, tensor: str, row: str, column: str) -> str:
        """Return an expression for element (b, h, row, column) of a (B, H, N, d) tensor."""
        if self.style.accessors == "offset":
            return f"{tensor}[offset4(b, h, {row}, {column}, H, N, d)]"
        return f"fourDimRead({tensor}, b, h, {row}, {column}, H, N, d)"

    def write(self, row: str, column: str, value: str) -> str:
        if self.style.accessors == "offset":
            return f"O[offset4(b, h, {row}, {column}, H, N, d)] = {value};"
        return f"fourDimWrite(O, b, h, {row}, {column}, H, N, d, {value});"

    # ---- steps shared by the parts; a matrix S is read and written by the published 2-D accessors

    @property
    def score(self) -> str:
        return f"{self.read('Q', 'i', 'k')} * {self.read('K', 'j', 'k')}"

    def sums(self, column: str, summed: str, product: str, store: str, keys: str = "N") -> str:
        """Return a loop over `column`: it sums `product` over `summed`, then runs `store`. j ends at `keys`, k at d."""
        limits = {"j": keys, "k": "d"}
        return f"""for (int {column} = 0; {column} < {limits[column]}; {column}++) {{
                    float sum = 0.f;
                    for (int {summed} = 0; {summed} < {limits[summed]}; {summed}++)
                        sum += {product};
                    {store}
                }}"""

    def sums_of_tile(self, *how: str) -> str:
        """Return loops that store sums for all rows of a tile of part 4."""
        inner = self.sums(*how, keys="columns").replace("\n", "\n        ")
        return f"for (int i = 0; i < rows; i++)\n                        {inner}"

    def tiled_sums(self, column: str, summed: str, begun: str, product: str, store: str) -> str:
        """Return loops over tiles. For each i and `column`, they sum `product` from `begun` on and then run `store`."""
        side, starts = self.style.side, dict(zip("ijk", ("ii", column * 2, summed * 2), strict=True))
        names = map(starts.get, self.style.tiles)
        first, second, third = (f"for (int {v} = 0; {v} < {LIMITS[v[0]]}; {v} += {side})" for v in names)
        ends = {index: f"std::min({index * 2} + {side}, {limit})" for index, limit in LIMITS.items()}
        line = ""
        if self.style.bounds == "before":
            line = "\n                        int iEnd = {i}, jEnd = {j}, kEnd = {k};".format(**ends)
            ends = {index: f"{index}End" for index in LIMITS}
        return f"""            {first}
                {second}
                    {third} {{{line}
                        for (int i = ii; i < {ends["i"]}; i++)
                            for (int {column} = {column * 2}; {column} < {ends[column]}; {column}++) {{
                                float sum = {begun};
                                for (int {summed} = {summed * 2}; {summed} < {ends[summed]}; {summed}++)
                                    sum += {product};
                                {store}
                            }}
                    }}"""

    def softmax(self, largest: str, score: str, keep: str, divide: str) -> str:
        """Return C++ for row i's softmax. `largest` declares the maximum, `keep` stores an exp, `divide` divides."""
        maximum, subtracted = "", ""
        if self.style.maximum:
            subtracted = " - largest"
            maximum = f"""
                {largest};
                for (int j = 1; j < N; j++)
                    largest = std::max(largest, {score});"""
        is_early = self.style.division == "early"
        division = f"\n                for (int j = 0; j < N; j++){divide}" if is_early else ""
        return f"""{maximum}
                float total = 0.f;
                for (int j = 0; j < N; j++) {{
                    float e = {self.style.exp}({score}{subtracted});
                    {keep}
                    total += e;
                }}{division}"""

    def naive(self) -> str:
        scores = f"""
            for (int i = 0; i < N; i++) {{
                {self.sums("j", "k", self.score, "twoDimWrite(QK_t, i, j, N, sum);")}
            }}"""
        return self.matrix_function("myNaiveAttention", scores, blocked=False)

    def blocked(self) -> str:
        sums = ("twoDimRead(QK_t, i, j, N)", self.score, "twoDimWrite(QK_t, i, j, N, sum);")
        scores = f"""
            std::fill(QK_t.begin(), QK_t.end(), 0.f);
{self.tiled_sums("j", "k", *sums)}"""
        return self.matrix_function("myUnfusedAttentionBlocked", scores, blocked=True)

    def divided_output(self, scaled: str) -> str:
        return f"""
            for (int i = 0; i < N; i++)
                for (int k = 0; k < d; k++) {{
                    float value = {self.read("O", "i", "k")}{scaled};
                    {self.write("i", "k", "value")}
                }}"""

    def function(self, name: str, buffers: str, sizes: str, copies: str, body: str, pragma: str = "") -> str:
        """Return a part's C++ function. `body` computes a head; `copies` goes before the loops over heads."""
        return f"""
torch::Tensor {name}(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor, {buffers},
                     {sizes}int B, int H, int N, int d) {{
{FORMATTED}{copies}
{pragma}    for (int b = 0; b < B; b++) {{
        for (int h = 0; h < H; h++) {{{body}
        }}
    }}
    return asTensor(O, B, H, N, d);
}}
"""

    def matrix_function(self, name: str, scores: str, *, blocked: bool) -> str:
        read = "twoDimRead(QK_t, i, j, N)"
        largest = "int first = 0;\n                float largest = twoDimRead(QK_t, i, first, N)"
        divide = f""" {{
                    float weight = {read} / total;
                    twoDimWrite(QK_t, i, j, N, weight);
                }}"""
        sums, keep, scaled = "", "", ""
        if self.style.division == "late":
            sums, keep, scaled = "            std::vector<float> sums(N);\n", "sums[i] = total;", " / sums[i]"
        softmax = self.softmax(largest, read, "twoDimWrite(QK_t, i, j, N, e);", divide)
        if blocked:
            product = f"{read} * {self.read('V', 'j', 'k')}"
            values = self.tiled_sums("k", "j", self.read("O", "i", "k"), product, self.write("i", "k", "sum"))
            values += self.divided_output(scaled) if scaled else ""
        else:
            values = f"""            for (int i = 0; i < N; i++) {{
                {self.values(read, scaled)}
            }}"""
        body = f"""{scores}
{sums}            for (int i = 0; i < N; i++) {{{softmax}
                {keep}
            }}
{values}"""
        return self.function(name, "torch::Tensor QK_tTensor", "", formatted("QK_t"), body)

    def values(self, weight: str, scaled: str) -> str:
        """Return code for row i of O: `weight` is key j's weight, `scaled` divides a value, or is ""."""
        if self.style.product == "rows":
            return f"""for (int j = 0; j < N; j++) {{
                    float weight = {weight}{scaled};
                    for (int k = 0; k < d; k++) {{
                        float value = {self.read("O", "i", "k")} + weight * {self.read("V", "j", "k")};
                        {self.write("i", "k", "value")}
                    }}
                }}"""
        product = f"{weight} * {self.read('V', 'j', 'k')}"
        return self.sums("k", "j", product, self.write("i", "k", "sum" + scaled))

    def fused(self) -> str:
        all_rows = "    std::vector<float> rows = formatTensor(temp);\n"
        outside, inside, at = {
            "index": ("", STARTERS_ROW, "ORow[{}]"),
            "copied": (all_rows, "int thread = omp_get_thread_num();", "rows[thread * N + {}]"),
            "local": ("", "std::vector<float> ORow(N, 0.f);", "ORow[{}]"),
        }[self.style.row]
        weight = at.format("j")
        largest, divide = f"float largest = {at.format('0')}", f"\n                    {weight} /= total;"
        softmax = self.softmax(largest, weight, f"{weight} = e;", divide)
        scaled = " / total" if self.style.division == "late" else ""
        body = f"""
            for (int i = 0; i < N; i++) {{
                {inside}
                {self.sums("j", "k", self.score, f"{weight} = sum;")}{softmax}
                {self.values(weight, scaled)}
            }}"""
        pragma = f"#pragma omp parallel for collapse({self.style.collapse})\n"
        return self.function("myFusedAttention", "torch::Tensor temp", "", outside, body, pragma)

    def flash(self) -> str:
        product = "twoDimRead(Pij, i, j, Bc) * twoDimRead(Vj, j, k, d)"
        products = self.sums_of_tile("k", "j", product, "twoDimWrite(PV, i, k, d, sum);")
        if self.style.product == "rows":
            products = """for (int i = 0; i < rows; i++)
                        for (int j = 0; j < columns; j++) {
                            float weight = twoDimRead(Pij, i, j, Bc);
                            for (int k = 0; k < d; k++)
                                PV[i * d + k] += weight * twoDimRead(Vj, j, k, d);
                        }"""
        # With late division, the undivided O is kept until all keys have been added, and is then divided by l.
        update, finish = "twoDimRead(Oi, i, k, d) + twoDimRead(PV, i, k, d)", self.divided_output(" / L[i]")
        if self.style.division == "early":
            update, finish = f"(Li[i] * {update}) / Lnew[i]", ""
        workspaces = ("Qi", "Kj", "Vj", "Sij", "Pij", "PV", "Oi", "L", "Li", "Lij", "Lnew")
        tensors = ", ".join(f"torch::Tensor {name}Tensor" for name in workspaces)
        score = "twoDimRead(Qi, i, k, d) * twoDimRead(Kj, j, k, d)"
        scores = self.sums_of_tile("j", "k", score, "twoDimWrite(Sij, i, j, Bc, sum);")
        body = f"""
            std::fill(L.begin(), L.end(), 0.f);
            for (int jj = 0; jj < N; jj += Bc) {{
                int columns = std::min(Bc, N - jj);
                for (int j = 0; j < columns; j++)
                    for (int k = 0; k < d; k++) {{
                        int key = jj + j;
                        float keyValue = {self.read("K", "key", "k")}, value = {self.read("V", "key", "k")};
                        twoDimWrite(Kj, j, k, d, keyValue);
                        twoDimWrite(Vj, j, k, d, value);
                    }}
                for (int ii = 0; ii < N; ii += Br) {{
                    int rows = std::min(Br, N - ii);
                    for (int i = 0; i < rows; i++) {{
                        int query = ii + i;
                        for (int k = 0; k < d; k++) {{
                            float queryValue = {self.read("Q", "query", "k")}, output = {self.read("O", "query", "k")};
                            twoDimWrite(Qi, i, k, d, queryValue);
                            twoDimWrite(Oi, i, k, d, output);
                        }}
                        Li[i] = L[query];
                    }}
                    {scores}
                    for (int i = 0; i < rows; i++) {{
                        float total = 0.f;
                        for (int j = 0; j < columns; j++) {{
                            float e = {self.style.exp}(twoDimRead(Sij, i, j, Bc));
                            twoDimWrite(Pij, i, j, Bc, e);
                            total += e;
                        }}
                        Lij[i] = total;
                        Lnew[i] = Li[i] + total;
                    }}
                    std::fill(PV.begin(), PV.end(), 0.f);
                    {products}
                    for (int i = 0; i < rows; i++) {{
                        int query = ii + i;
                        for (int k = 0; k < d; k++) {{
                            float value = {update};
                            {self.write("query", "k", "value")}
                        }}
                        L[query] = Lnew[i];
                    }}
                }}
            }}{finish}"""
        return self.function("myFlashAttention", tensors, "int Bc, int Br, ", formatted(*workspaces), body)
