"""Ten files in the style of the published starter: ten ways to write part 3, one of them with a data race.

All have the same frame, and differ in the access to elements and in the loop. `SOURCES` has the texts by name.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from honest.styles import FORMAT_TENSOR, FORMATTED, INCLUDES, STARTERS_ROW, TWO_DIMENSIONS, four_dimensions

FRAME = f"{INCLUDES}@headers@\n@accessors@{FORMAT_TENSOR}@helpers@\n@kernel@"
KERNEL = """\
torch::Tensor myFusedAttention(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor, torch::Tensor temp,
                               int B, int H, int N, int d) {
@body@
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("myFusedAttention", &myFusedAttention, "Fused Attention");
@bindings@
}
"""
BINDINGS = """\
    m.def("twoDimRead", &twoDimRead, "twoDimRead");
    m.def("fourDimRead", &fourDimRead, "fourDimRead");"""

BY_REFERENCE = f"{TWO_DIMENSIONS}\n{four_dimensions(val='float &val')}"
BY_VALUE = re.sub(r"(const )?(int|float) ?& ?", r"\2 ", BY_REFERENCE)
BY_INDEX = """
static inline size_t at4(int x, int y, int z, int b, int sizeX, int sizeY, int sizeZ) {
    return ((size_t)(x * sizeX + y) * sizeY + z) * sizeZ + b;
}
inline float twoDimRead(std::vector<float> &tensor, int &x, int &y, const int &sizeX) { return tensor[x * sizeX + y]; }
inline float fourDimRead(std::vector<float> &tensor, int &x, int &y, int &z, int &b, const int &sizeX, const int &sizeY,
                         const int &sizeZ) {
    return tensor[at4(x, y, z, b, sizeX, sizeY, sizeZ)];
}
inline void fourDimWrite(std::vector<float> &tensor, int x, int y, int z, int b, int sizeX, int sizeY, int sizeZ,
                         float val) {
    tensor[at4(x, y, z, b, sizeX, sizeY, sizeZ)] = val;
}
"""

RETURN = """
    return torch::from_blob(O.data(), {B, H, N, d}, torch::TensorOptions().dtype(torch::kFloat32)).clone();"""


def vectors(loop: str) -> str:
    return FORMATTED + loop + RETURN


#: Loops over batches, heads and rows, put in the place of @rows@.
ROWS = """for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < N; i++)"""
ONE_ROW = """for (int j = 0; j < N; j++) {
                    float dot = 0.f;
                    for (int k = 0; k < d; k++)
                        dot += fourDimRead(Q, b, h, i, k, H, N, d) * fourDimRead(K, b, h, j, k, H, N, d);
                    ORow[j] = @exp@(dot);
                    total += ORow[j];
                }
                for (int k = 0; k < d; k++) {
                    float val = 0.f;
                    for (int j = 0; j < N; j++) val += ORow[j] * fourDimRead(V, b, h, j, k, H, N, d);
                    val /= total;
                    fourDimWrite(O, b, h, i, k, H, N, d, val);
                }"""
#: The published loop. Placeholders for the texts in which the files differ are written @...@.
LOOP = """
@before@
    #pragma omp parallel for @pragma@
    @rows@ {
                @row@
                @sum@
                @one row@
            }
"""


@dataclass(frozen=True)
class Written:
    """Texts for the placeholders @...@ in FRAME and, if LOOP is the body because `body` is empty, in LOOP."""

    accessors: str = BY_REFERENCE
    headers: str = ""
    helpers: str = ""
    before: str = ""
    pragma: str = "collapse(3)"
    row: str = STARTERS_ROW
    sum: str = "float total = 0.f;"
    exp: str = "exp"
    body: str = ""
    bindings: str = BINDINGS

    @property
    def text(self) -> str:
        text = FRAME.replace("@kernel@", KERNEL).replace("@body@", self.body or vectors(LOOP))
        text = text.replace("@rows@", ROWS).replace("@one row@", ONE_ROW)
        for name, given in asdict(self).items():
            text = text.replace(f"@{name}@", given)
        return text


WITH_ACCESSORS = """\
    TORCH_CHECK(QTensor.dim() == 4 && QTensor.size(0) == B && QTensor.size(-1) == d, "Q is not (B, H, N, d)");
    at::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);
    auto Q = QTensor.accessor<float, 4>(), K = KTensor.accessor<float, 4>(), V = VTensor.accessor<float, 4>();
    auto O = OTensor.accessor<float, 4>();
    auto rows = temp.accessor<float, 2>();

    #pragma omp parallel for collapse(3)
    @rows@ {
                auto row = rows[omp_get_thread_num()];
                float sum = 0;
                for (int j = 0; j < N; j++) {
                    row[j] = 0;
                    for (int k = 0; k < d; k++) row[j] += Q[b][h][i][k] * K[b][h][j][k];
                    row[j] = std::exp(row[j]);
                    sum += row[j];
                }
                for (int j = 0; j < N; j++)
                    for (int k = 0; k < d; k++) O[b][h][i][k] += row[j] / sum * V[b][h][j][k];
            }
    return OTensor;"""

SAFE_SOFTMAX = """
    #pragma omp parallel for collapse(2) schedule(dynamic)
    @rows@ {
                std::vector<float> row(N);
                float largest = -std::numeric_limits<float>::infinity(), sum = 0;
                for (int j = 0; j < N; j++) {
                    float dot = 0;
                    for (int k = 0; k < d; k++)
                        dot += Q[at4(b, h, i, k, H, N, d)] * K[at4(b, h, j, k, H, N, d)];
                    row[j] = dot;
                    largest = std::max(largest, dot);
                }
                for (int j = 0; j < N; j++) sum += row[j] = std::exp(row[j] - largest);
                for (int j = 0; j < N; j++) {
                    row[j] /= sum;
                    for (int k = 0; k < d; k++)
                        O[at4(b, h, i, k, H, N, d)] += row[j] * V[at4(b, h, j, k, H, N, d)];
                }
            }
"""

OF_A_HEAD = """\
    std::cout << "Q " << QTensor.sizes() << " on " << omp_get_max_threads() << " threads" << std::endl;
    torch::Tensor OTensor = torch::zeros({B, H, N, d}, QTensor.options());
    #pragma omp parallel
    {
        torch::Tensor mine = temp[omp_get_thread_num()];
        float *row = mine.data_ptr<float>();
        #pragma omp for collapse(2)
        for (int b = 0; b < B; b++) {
            for (int h = 0; h < H; h++) {
                std::vector<float> q = formatTensor(QTensor.index({b, h})), v = formatTensor(VTensor[b][h]);
                std::vector<float> kt = formatTensor(KTensor.select(0, b).select(0, h).transpose(0, 1));
                torch::Tensor oHead = OTensor.index({b, h, Slice()});
                for (int i = 0; i < N; i++) {
                    float sum = 0.f;
                    for (int j = 0; j < N; j++) {
                        float dot = 0.f;
                        for (int k = 0; k < d; k++) dot += q[i * d + k] * kt[k * N + j];
                        row[j] = exp(dot);
                        sum += row[j];
                    }
                    float *o = oHead[i].data_ptr<float>();
                    for (int j = 0; j < N; j++)
                        for (int k = 0; k < d; k++) o[k] += row[j] / sum * v[j * d + k];
                }
            }
        }
    }
    if (N < 2) std::cout << OTensor << temp.narrow(0, 0, 1)[0][0].item<float>() << std::endl;
    return OTensor;"""

BY_PARALLEL_FOR = """
    at::parallel_for(0, B * H, 1, [&](int64_t from, int64_t to) {
        std::vector<float> ORow = formatTensor(temp.narrow(0, at::get_thread_num(), 1));
        for (int64_t head = from; head < to; head++) {
            int b = head / H, h = head % H;
            for (int i = 0; i < N; i++) {
                float total = 0.f;
                @one row@
            }
        }
    });
"""

WITH_SIMD = """
static inline float dot8(const float *a, const float *b, int n) {
    __m256 sum = _mm256_setzero_ps();
    int k = 0;
    for (; k + 8 <= n; k += 8) sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_loadu_ps(a + k), _mm256_loadu_ps(b + k)));
    float parts[8], all = 0;
    _mm256_storeu_ps(parts, sum);
    for (float part : parts) all += part;
    for (; k < n; k++) all += a[k] * b[k];
    return all;
}
"""
SIMD_LOOP = """
    struct timeval started, ended;
    gettimeofday(&started, NULL);
    #pragma omp parallel for collapse(3) schedule(static)
    @rows@ {
                float *row = temp.index({omp_get_thread_num(), Slice(None, N)}).data_ptr<float>();
                const size_t head = (size_t)(b * H + h) * N * d;
                float sum = 0;
                for (int j = 0; j < N; j++) {
                    row[j] = expf(dot8(&Q[head + i * d], &K[head + j * d], d));
                    sum += row[j];
                }
                for (int j = 0; j < N; j++)
                    for (int k = 0; k < d; k++) O[head + i * d + k] += row[j] / sum * V[head + j * d + k];
            }
    gettimeofday(&ended, NULL);
    if (ended.tv_sec - started.tv_sec > 3600) printf("%zu\\n", O.size());
"""

USING = "using namespace torch::indexing;"
RACING_SUM = "total = 0.f;"

SLICE_OF_TEMP = """int t = omp_get_thread_num();
                std::vector<float> ORow = formatTensor(temp.index({Slice(t, t + 1)}));"""
ROW_OF_TEMP = "std::vector<float> ORow = formatTensor(temp[omp_get_thread_num()]);"
THREADS = "    const int threads = omp_get_max_threads();"
ON_ALL_THREADS = {"helpers": USING, "before": THREADS, "pragma": "collapse(2) num_threads(threads)"}
ONE_TOTAL = {"before": "    float total;"}

WRITTEN = {
    "starter": Written(),
    "values": Written(BY_VALUE, USING, row=STARTERS_ROW.replace("torch::indexing::", ""), exp="std::exp"),
    "collapse2": Written(BY_INDEX, **ON_ALL_THREADS, row=SLICE_OF_TEMP, sum="float total(0);", exp="expf"),
    "local": Written(pragma="", row="std::vector<float> ORow(N, 0.0f);", exp="std::exp"),
    "private": Written(**ONE_TOTAL, pragma="collapse(3) private(total)", row=ROW_OF_TEMP, sum="total = 0.f;"),
    "accessors": Written("", headers="#include <cmath>", body=WITH_ACCESSORS, bindings=""),
    "safe": Written(BY_INDEX, headers="#include <limits>\n#include <algorithm>", body=vectors(SAFE_SOFTMAX)),
    "heads": Written("", USING, body=OF_A_HEAD, bindings=""),
    "parallel_for": Written(headers="#include <ATen/Parallel.h>", body=vectors(BY_PARALLEL_FOR)),
    # A race: all threads use one sum.
    "race": Written(**ONE_TOTAL, sum=RACING_SUM),
}
#: Two further files with SIMD write through views of temp's rows; in the second, all threads share one row.
ROWS_OF_TEMP, ONE_ROW_OF_TEMP = (
    Written("", USING, helpers=WITH_SIMD, body=vectors(loop), bindings="")
    for loop in (SIMD_LOOP, SIMD_LOOP.replace("temp.index({omp_get_thread_num(),", "temp.index({0,"))
)
SOURCES = {name: written.text for name, written in WRITTEN.items()}


def together(names: Iterable[str]) -> str:
    """Return a file with these kernels of SOURCES, each exported by its name: ten compilations would take minutes."""
    headers: list[str] = []
    kernels, bindings = "", ""
    for name in names:
        text = SOURCES[name].partition("PYBIND11_MODULE")[0]
        headers += [line for line in text.split("\n") if line.startswith("#include")]
        rest = "\n".join(line for line in text.split("\n") if not line.startswith("#include"))
        kernels += f"namespace of_{name} {{\n{rest}\n}}\n"
        bindings += f'    m.def("{name}", &of_{name}::myFusedAttention);\n'
    included = "\n".join(dict.fromkeys(headers))
    return f"{included}\n{kernels}PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{bindings}}}\n"
