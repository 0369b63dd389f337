"""Races are found in files that include torch, but without torch. Delays make races visible in short calls."""

import csv
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from building import PLAIN, SANITIZED, asked, includes, needs_tsan, program
from building import binding as binding_of
from conftest import ASSIGNMENT, Capture, keeping, line_of, needs_delays, one_of_each, refused, some, write
from honest.styles import FORMAT_TENSOR, FORMATTED, INCLUDES, STARTERS_ROW, TWO_DIMENSIONS, four_dimensions

import gpt149
from grader.assignment.mutations import Mutation, edited
from grader.backends import binding, faults
from grader.backends.native import nativehost, sanitize
from grader.backends.native.backend import NativeBackend
from grader.backends.torch.torchbuild import build
from grader.backends.torch.zygote import Zygote
from grader.core import machine
from grader.explain import comparison
from grader.judge import correctness, marker
from grader.judge.bench import Options
from grader.judge.timing.rounds import TimedInputs
from grader.runner.calls import Call
from grader.runner.session import Session
from grader.sandbox.tiers import choose
from grader.study import race
from grader.study.standalone import Ran, Unsuitable, build_program, ran
from labs.attention import cases, kernels, oracle

#: Template of ten files in the published style: ten ways to access elements and write part 3's loop, one with a race.
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
#: The published loop. Texts in which the files differ have placeholders @...@.
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
    """Texts for the placeholders @...@ in FRAME and LOOP. The kernel's body is `body`, or LOOP if `body` is empty."""

    accessors: str = BY_REFERENCE
    headers: str = ""
    helpers: str = ""
    before: str = ""
    pragma: str = "collapse(3)"
    row: str = STARTERS_ROW
    sum: str = "float total = 0.f;"
    exp: str = "exp"
    body: str = ""

    @property
    def text(self) -> str:
        text = FRAME.replace("@kernel@", KERNEL).replace("@body@", self.body or vectors(LOOP))
        text = text.replace("@rows@", ROWS).replace("@one row@", ONE_ROW)
        for name, given in {**asdict(self), "bindings": BINDINGS * bool(self.accessors)}.items():
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
    "accessors": Written("", headers="#include <cmath>", body=WITH_ACCESSORS),
    "safe": Written(BY_INDEX, headers="#include <limits>\n#include <algorithm>", body=vectors(SAFE_SOFTMAX)),
    "heads": Written("", USING, body=OF_A_HEAD),
    "parallel_for": Written(headers="#include <ATen/Parallel.h>", body=vectors(BY_PARALLEL_FOR)),
    # A race: all threads use one sum.
    "race": Written(**ONE_TOTAL, sum=RACING_SUM),
}
#: Two more files, which write through views of temp's rows with SIMD. In the second file, all threads share one row.
ROWS_OF_TEMP, ONE_ROW_OF_TEMP = (
    Written("", USING, helpers=WITH_SIMD, body=vectors(loop))
    for loop in (SIMD_LOOP, SIMD_LOOP.replace("temp.index({omp_get_thread_num(),", "temp.index({0,"))
)
SOURCES = {name: written.text for name, written in WRITTEN.items()}


def together(names: Iterable[str]) -> str:
    """Return one file with these kernels of SOURCES, exported by their names. Ten separate files would take minutes."""
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


PART = ASSIGNMENT.part("part3")
SHAPE = {**ASSIGNMENT.defaults, **ASSIGNMENT.lab.watched_sizes, "threads": race.THREADS}
RIGHT = [name for name in SOURCES if name != "race"]
written = partial(write, name="mine.cpp")


def study(name: str, folder: Path, text: str, *arguments: str) -> int:
    """Return the exit code of `python gpt149.py NAME part3` with this text as the student's file."""
    files = ["--module", str(written(folder, text)), "--out", str(folder)]
    return gpt149.run([name, "part3", *arguments, *files])


def parallel_construct(name: str) -> tuple[bool, ...]:
    return tuple(word in SOURCES[name] for word in ("omp parallel for", "at::parallel_for"))


@needs_tsan
@pytest.mark.parametrize("name", one_of_each(RIGHT, key=parallel_construct))
def test_race_is_silent_on_a_right_file(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert study("race", tmp_path, SOURCES[name]) == 0
    printed = capsys.readouterr()
    assert re.search(r"No data race in myFusedAttention\s+\(ThreadSanitizer", printed.out), printed.out
    assert "no parallel region" not in printed.out and "cannot be used" not in printed.err


@needs_tsan
def test_race_names_the_variable_and_the_line(tmp_path: Path, capsys: Capture) -> None:
    text = SOURCES["race"]
    assert study("race", tmp_path, text) == 1
    printed = capsys.readouterr()
    assert "cannot be used" not in printed.err
    assert f"mine.cpp:{line_of(text, RACING_SUM)}: {RACING_SUM}" in printed.out
    rows = csv.DictReader((tmp_path / "race.csv").read_text().splitlines())
    assert "total" in {row["variable"] for row in rows}


#: Both threads write `shared`, with views of `temp` in between. A relaxed flag does not order the two writes: a race.
BESIDE_VIEWS = """
    std::vector<float> shared(1);
    std::atomic<bool> has_viewed(false);
    #pragma omp parallel
    {
        int mine = omp_get_thread_num();
        if (mine == 0) shared[0] = 1;
        while (mine == 1 && !has_viewed.load(std::memory_order_relaxed)) {}
        for (int k = 0; k < 10; k++) at::Tensor row = temp.index({mine});
        if (mine == 0) has_viewed.store(true, std::memory_order_relaxed);
        if (mine == 1) shared[0] = 2;
    }
    return at::zeros({B, H, N, d});"""


@needs_tsan
def test_views_of_temp_share_its_memory_and_a_race_between_views_is_found(tmp_path: Path) -> None:
    """A file whose threads use different rows of temp is right. If all use row 0, it has a race, even through views."""
    apart = race.watch(ASSIGNMENT, PART, written(tmp_path, ROWS_OF_TEMP.text), SHAPE)
    assert apart.is_clean and apart.regions
    text = ONE_ROW_OF_TEMP.text
    together = race.watch(ASSIGNMENT, PART, written(tmp_path, text), SHAPE)
    assert "row" in {found.variable for found in together.races}
    assert any(line_of(text, "row[j] = expf(") in found.lines for found in together.races)
    text = Written("", headers="#include <atomic>", body=BESIDE_VIEWS).text
    finding = race.watch(ASSIGNMENT, PART, written(tmp_path, text), SHAPE)
    lines = tuple(line_of(text, f"shared[0] = {value};") for value in (1, 2))
    assert [found.lines for found in finding.races] == [lines]


def sanitized(source: Path, function: str, threads: int) -> tuple[Ran, comparison.Comparison | None]:
    """Make a call in a program with sanitizers. Return the ended program and its result's comparison, if any."""
    shape = {**SHAPE, "threads": threads}
    inputs = cases.make_inputs("random", shape, 3)
    request = binding.request(replace(PART, function=function), shape, inputs)
    environment = {"ASAN_OPTIONS": ":".join(f"{key}={value}" for key, value in sanitize.ASAN_OPTIONS.items())}
    program = build_program(source, SANITIZED)
    with ran(program, request, threads=threads, environment=environment, memory_bytes=None) as run:
        pass
    if run.call is None or run.call.output is None:
        return run, None
    return run, comparison.compare(oracle.ORACLES[PART.oracle].expected(inputs, shape), run.call.output)


@pytest.fixture(scope="module")
def all_right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("together"), together(RIGHT))


@pytest.mark.parametrize("name", RIGHT)
def test_sanitizers_are_silent_and_the_result_is_right(name: str, all_right: Path) -> None:
    run, comparison = sanitized(all_right, name, race.THREADS)
    assert run.finished.returncode == 0, run.output
    assert sanitize.report(run.output, all_right) is None
    assert comparison is not None and comparison.ok


def test_sanitizers_report_a_write_beyond_a_view_of_temp(tmp_path: Path) -> None:
    wrong = "for (int j = 0; j <= N; j++) row[j] = 0;"
    text = ROWS_OF_TEMP.text.replace("float sum = 0;", f"{wrong}\n                float sum = 0;")
    source = written(tmp_path, text)
    run, _ = sanitized(source, PART.function, 1)
    report = sanitize.report(run.output, source)
    assert report is not None and report.kind == "heap-buffer-overflow write", run.output
    assert report.frames[0].line == line_of(text, wrong)


MESSAGES = """at::Tensor P = QTensor.matmul(KTensor); -> calls Tensor::matmul: that is torch's own work;
at::Tensor P = at::softmax(QTensor, -1); -> calls at::softmax: that is torch's own work;
at::Tensor P = QTensor * KTensor; -> calls operator*: that is torch's own work;
QTensor.exp_(); -> calls Tensor::exp_: that is torch's own work;
at::Tensor P = std::exp(QTensor); -> calls exp: that is torch's own work;
auto P = torch::nn::functional::softmax(QTensor, 1); -> calls torch::nn: that is torch's own work;
auto P = QTensor.fft(); -> uses torch's Tensor::fft, which kernels cannot use
auto P = torch::jit::load(name); -> uses torch's torch::jit, which kernels cannot use
auto P = QTensor.data_ptr<at::Half>(); -> uses torch's at::Half, which kernels cannot use
auto P = QTensor.data_ptr<char>(); -> uses tensors of a type that kernels cannot use
auto P = QTensor.index({KTensor}); -> uses a tensor or a bool as an index, which kernels cannot use
py::dict P; -> uses py::dict: there is no Python where kernels run
PyErr_Clear(); -> uses PyErr_Clear: there is no Python where kernels run"""


@pytest.mark.parametrize("line", some(MESSAGES.splitlines(), 4))
def test_a_line_that_needs_more_of_torch_is_named(line: str, tmp_path: Path) -> None:
    statement, message = line.split(" -> ")
    text = Written(body=vectors(f"    {statement}\n")).text
    why = re.escape(f"mine.cpp:{line_of(text, statement)} {message}")
    refused(f"^{why}", build_program, written(tmp_path, text), PLAIN, of=Unsuitable)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_cachegrind_names_the_call_that_it_cannot_run(tmp_path: Path) -> None:
    text = Written(body="    return QTensor.matmul(KTensor);").text
    place = f"mine.cpp:{line_of(text, 'matmul')} calls Tensor::matmul"
    why = re.escape(f"--cachegrind cannot run {tmp_path / 'mine.cpp'}: {place}")
    refused(why, study, "cache", tmp_path, text, "-N", "8", "-d", "4", "--cache", "1K", "--cachegrind")


#: Number of rows, chosen so that each of the eight threads computes for about 1 ms in a call.
N = 256
CALLS, SERIAL_CALLS = 30, 300
ONE_ROW_FOR_ALL = Mutation("one row", "part3", (("int row = omp_get_thread_num();", "int row = 0;"),))

Start = Callable[[Path, str], Session]


@pytest.fixture(scope="module", params=["native", pytest.param("with torch", marks=pytest.mark.full)])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Yield a function that starts a source on one core, so that threads switch only when the system makes them."""
    how = {"threads": 8, "cpus": machine.usable_cpus()[:1], "call_timeout_s": 60}
    if request.param == "native":
        with nativehost.NativeHost() as host:
            yield lambda folder, text: host.spawn(program(folder, text), **how)
    else:
        with Zygote(sandbox=choose()) as zygote:
            spawn = partial(zygote.spawn, "student", **how)
            yield lambda folder, text: spawn(str(build(write(folder, text)).object_path))


def right_answers(session: Session, part_name: str, calls: int, n: int = N) -> int:
    """Make a call without delays, then `calls` calls with delays. Return the number of right results with delays."""
    part, shape = ASSIGNMENT.part(part_name), {**ASSIGNMENT.defaults, "N": n}
    inputs = cases.make_inputs("random", shape, 1)
    expected = oracle.ORACLES[part.oracle].expected(inputs, shape)
    request = binding.request(part, shape, inputs)
    made = [session.call(request, delays=number > 0) for number in range(calls + 1)]
    assert {call.status for call in made} == {"ok"}
    return sum(comparison.compare(expected, call.output).ok for call in made[1:])


@needs_delays
def test_a_race_shows_on_one_core(master: str, start: Start, tmp_path: Path) -> None:
    with start(tmp_path, keeping(edited(master, ONE_ROW_FOR_ALL, kernels), "myFusedAttention")) as session:
        # On the machine where this was written, nearly every call with delays is wrong, and hardly any without.
        assert right_answers(session, "part3", CALLS) < 3 * CALLS / 4


def test_delays_do_not_make_right_results_wrong(master: str, start: Start, tmp_path: Path) -> None:
    with start(tmp_path, keeping(master, "myFusedAttention")) as session:
        assert right_answers(session, "part3", CALLS) == CALLS
        assert session.shares_work or sys.platform != "linux"


@needs_delays
def test_a_serial_kernel_is_not_delayed(master: str, start: Start, tmp_path: Path) -> None:
    with start(tmp_path, keeping(master, "myUnfusedAttentionBlocked")) as session:
        # In the first call, torch's idle threads use CPU time, as if they worked. After 300 calls their share is small.
        assert right_answers(session, "part2", SERIAL_CALLS, 128) == SERIAL_CALLS and not session.shares_work


SIGNS = r"""
torch::Tensor signs(torch::Tensor t) {
#pragma omp parallel
  t.data_ptr<float>()[0] = 1;
  struct sigaction now;
  sigaction(SIGALRM, nullptr, &now);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  itimerspec left = {};
  torch::Tensor seen = torch::zeros({4});
  float *first = seen.data_ptr<float>();
  first[0] = (float)((uintptr_t)now.sa_handler & 0xffffff);
  first[1] = (float)sigismember(&mask, SIGALRM);
  first[2] = (float)syscall(SYS_timer_gettime, 0, &left);
  first[3] = (float)left.it_value.tv_nsec;
  return seen;
}
torch::Tensor undo(torch::Tensor t) {
  signal(SIGALRM, SIG_IGN);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  return t;
}
"""


@needs_delays
def test_a_kernel_does_not_see_whether_a_call_is_delayed(tmp_path: Path) -> None:
    text = includes("csignal ctime omp.h sys/syscall.h unistd.h") + SIGNS + binding_of("signs", "undo")
    with nativehost.NativeHost() as host, host.spawn(program(tmp_path, text), threads=2) as session:
        seen = [session.call(asked("signs"), delays=delays) for delays in (False, True, False, True)]
        assert session.shares_work and {call.status for call in seen} == {"ok"}
        assert session.call(asked("undo")).status == "ok"
        seen.append(session.call(asked("signs"), delays=True))
    assert [call.output.tolist() for call in seen[1:]] == [seen[0].output.tolist()] * 4
    assert seen[0].output[0] > 1, "the signal handler is installed from the first call on"


@needs_delays
def test_an_initialiser_cannot_make_timers(tmp_path: Path) -> None:
    """A static initialiser makes none of 99 timers: Linux limits a user's timers, and other runners need some, too."""
    make = "!syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &id)"
    take = f"for (int k = 0, id; k < 99; k++) taken += {make};"
    text = includes("ctime sys/syscall.h unistd.h")
    text += f"static int taken, begun = [] {{ {take} return 1; }}();\n"
    text += "torch::Tensor taken_timers(torch::Tensor t) { return torch::full({1}, taken + begun); }\n"
    made = program(tmp_path, text + binding_of("taken_timers"))
    with nativehost.NativeHost() as host, host.spawn(made, threads=2) as session:
        assert session.call(asked("taken_timers", output=(1,))).output.tolist() == [1.0]


@needs_delays
def test_a_race_at_the_timed_size_only_is_wrong(master: str, tmp_path: Path) -> None:
    """The kernel has a race only at the timed size. On one core, only calls with delays show it."""
    racy = keeping(edited(master, ONE_ROW_FOR_ALL, kernels), "myFusedAttention")
    racy = racy.replace("parallel for collapse(3)", f"parallel for collapse(3) if(N == {N})")
    assert f"if(N == {N})" in racy
    part, shape = ASSIGNMENT.part("part3"), {**ASSIGNMENT.defaults, "N": N}
    how = {"threads": 8, "cpus": machine.usable_cpus()[:1], "call_timeout_s": 60}
    for text, has_race in ((racy, True), (keeping(master, "myFusedAttention"), False)):
        bench = SimpleNamespace(assignment=ASSIGNMENT, shape=shape, options=Options(), emit=str, command="")
        bench.source, bench.backend = write(tmp_path, text), lambda part: NativeBackend(None, None, None)
        draw = TimedInputs(marker.Marker(bench, part), 149)  # type: ignore[arg-type]
        with nativehost.NativeHost() as host, host.spawn(program(tmp_path, text), **how) as session:
            draw.called(session, is_reference=False)
            try:
                for _ in range(CALLS):
                    draw.check_delayed(session, is_reference=False)
            except faults.Faulty as fault:
                assert has_race and fault.verdict == "wrong" and fault.diagnosis.code == "race", fault
            else:
                assert not has_race


def test_delayed_calls_vary_in_position_and_count_own_time_only() -> None:
    assert {TimedInputs(None, 149).place(count) for count in range(20)} == {0, 1, 2}  # type: ignore[arg-type]
    # CPU time counts: if eight programs share a core, a call of 10 ms takes 80 ms, and the search would end too early.
    assert correctness.met_s(Call("ok", wall_s=0.08, cpu_s=0.01)) == 0.01
    assert correctness.met_s(Call("ok", wall_s=0.01, cpu_s=0.02)) == 0.01
    assert correctness.met_s(Call("ok", wall_s=0.08)) == 0.08
