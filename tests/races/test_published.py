"""Files in the published style can be studied without torch: watched for races, counted by cachegrind, sanitized."""

import csv
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import published
import pytest
from building import PLAIN, SANITIZED, needs_tsan
from conftest import ASSIGNMENT, one_of_each, refused, some, write

import gpt149
from grader.backends import binding
from grader.backends.native import sanitize
from grader.explain import comparison
from grader.study import race
from grader.study.standalone import Ran, Unsuitable, build_program, ran
from labs.attention import oracle
from labs.attention.cases import make_inputs

PART = ASSIGNMENT.part("part3")
SHAPE = {**ASSIGNMENT.defaults, **ASSIGNMENT.lab.watched_sizes, "threads": race.THREADS}
CACHEGRIND = ("--cache", "1K", "--cachegrind")
Captured = pytest.CaptureFixture[str]
RIGHT = [name for name in published.SOURCES if name != "race"]
written = partial(write, name="mine.cpp")
needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


def line_of(text: str, what: str) -> int:
    (found,) = (number for number, line in enumerate(text.split("\n"), 1) if what in line)
    return found


def study(name: str, folder: Path, text: str, *arguments: str) -> int:
    """Return the exit code of `python gpt149.py NAME part3` with this text as the student's file."""
    files = ["--module", str(written(folder, text)), "--out", str(folder)]
    return gpt149.run([name, "part3", *arguments, *files])


def rows(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def parallel_construct(name: str) -> tuple[bool, ...]:
    return tuple(word in published.SOURCES[name] for word in ("omp parallel for", "at::parallel_for"))


@needs_tsan
@pytest.mark.parametrize("name", one_of_each(RIGHT, key=parallel_construct))
def test_race_is_silent_on_a_right_file(name: str, tmp_path: Path, capsys: Captured) -> None:
    assert study("race", tmp_path, published.SOURCES[name]) == 0
    printed = capsys.readouterr()
    assert re.search(r"No data race in myFusedAttention\s+\(ThreadSanitizer", printed.out), printed.out
    assert "no parallel region" not in printed.out and "cannot watch" not in printed.err


@needs_tsan
def test_race_names_the_variable_and_the_line(tmp_path: Path, capsys: Captured) -> None:
    text = published.SOURCES["race"]
    assert study("race", tmp_path, text) == 1
    printed = capsys.readouterr()
    assert "cannot watch" not in printed.err
    assert f"mine.cpp:{line_of(text, published.RACING_SUM)}: {published.RACING_SUM}" in printed.out
    assert "total" in {row["variable"] for row in rows(tmp_path / "race.csv")}


@needs_tsan
def test_views_of_temp_are_its_own_memory(tmp_path: Path) -> None:
    """Each thread has its own row of temp: right. All use row 0: a race, though every view is a different tensor."""
    apart = race.watch(ASSIGNMENT, PART, written(tmp_path, published.ROWS_OF_TEMP.text), SHAPE)
    assert apart.is_clean and apart.regions
    text = published.ONE_ROW_OF_TEMP.text
    together = race.watch(ASSIGNMENT, PART, written(tmp_path, text), SHAPE)
    assert "row" in {found.variable for found in together.races}
    assert any(line_of(text, "row[j] = expf(") in found.lines for found in together.races)


#: Thread 1 writes after thread 0, and both take views of one tensor in between. A relaxed flag orders no memory.
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
def test_taking_views_of_one_tensor_orders_no_threads(tmp_path: Path) -> None:
    text = published.Written("", headers="#include <atomic>", body=BESIDE_VIEWS, bindings="").text
    finding = race.watch(ASSIGNMENT, PART, written(tmp_path, text), SHAPE)
    lines = tuple(line_of(text, f"shared[0] = {value};") for value in (1, 2))
    assert [found.lines for found in finding.races] == [lines]


def sanitized(source: Path, function: str, threads: int) -> tuple[Ran, comparison.Comparison | None]:
    """Make one call in a program with sanitizers. Compare its result, if there is one, with the oracle's."""
    shape = {**SHAPE, "threads": threads}
    inputs = make_inputs("random", shape, 3)
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
    return written(tmp_path_factory.mktemp("together"), published.together(RIGHT))


@pytest.mark.parametrize("name", RIGHT)
def test_sanitizers_are_silent_and_the_result_is_right(name: str, all_right: Path) -> None:
    run, comparison = sanitized(all_right, name, race.THREADS)
    assert run.finished.returncode == 0, run.output
    assert sanitize.report(run.output, all_right) is None
    assert comparison is not None and comparison.ok


def test_sanitizers_see_where_a_view_of_temp_ends(tmp_path: Path) -> None:
    wrong = "for (int j = 0; j <= N; j++) row[j] = 0;"
    text = published.ROWS_OF_TEMP.text.replace("float sum = 0;", f"{wrong}\n                float sum = 0;")
    source = written(tmp_path, text)
    run, _ = sanitized(source, PART.function, 1)
    report = sanitize.report(run.output, source)
    assert report is not None and report.kind == "heap-buffer-overflow write", run.output
    assert report.frames[0].line == line_of(text, wrong)


# Two files with different ways to hold a row of temp, and the one with a race.
@needs_valgrind
@pytest.mark.parametrize("name", one_of_each(["starter", "parallel_for", "race"], key=lambda name: None))
def test_cachegrind_counts_its_lines(name: str, tmp_path: Path) -> None:
    assert study("cache", tmp_path, published.SOURCES[name], "-N", "24", "-d", "8", *CACHEGRIND) == 0
    (row,) = rows(tmp_path / "cache.csv")
    # K and V do not fit and are read again for each row; and no more lines come than elements are asked for.
    once, accesses = 2 * 24 * 8 // 16, 8 * 24 * 24 * 8
    assert 6 * once < int(row["fetched by cachegrind"]) < accesses


MESSAGES = """at::Tensor P = QTensor.matmul(KTensor); -> calls Tensor::matmul: that is torch's own work;
at::Tensor P = at::softmax(QTensor, -1); -> calls at::softmax: that is torch's own work;
at::Tensor P = QTensor * KTensor; -> calls operator*: that is torch's own work;
QTensor.exp_(); -> calls Tensor::exp_: that is torch's own work;
at::Tensor P = std::exp(QTensor); -> calls exp: that is torch's own work;
auto P = torch::nn::functional::softmax(QTensor, 1); -> calls torch::nn: that is torch's own work;
auto P = QTensor.fft(); -> uses torch's Tensor::fft, which kernels are not given
auto P = torch::jit::load(name); -> uses torch's torch::jit, which kernels are not given
auto P = QTensor.data_ptr<at::Half>(); -> uses torch's at::Half, which kernels are not given
auto P = QTensor.data_ptr<char>(); -> uses tensors of a type that kernels are not given
auto P = QTensor.index({KTensor}); -> indexes by a tensor or a bool, which kernels are not given
py::dict P; -> uses py::dict: there is no Python where kernels run
PyErr_Clear(); -> uses PyErr_Clear: there is no Python where kernels run"""


@pytest.mark.parametrize("line", some(MESSAGES.splitlines(), 4))
def test_a_line_that_needs_more_of_torch_is_named(line: str, tmp_path: Path) -> None:
    statement, message = line.split(" -> ")
    text = published.Written(body=published.vectors(f"    {statement}\n")).text
    why = re.escape(f"mine.cpp:{line_of(text, statement)} {message}")
    refused(f"^{why}", build_program, written(tmp_path, text), PLAIN, of=Unsuitable)


@needs_valgrind
def test_cachegrind_names_the_call_that_it_cannot_run(tmp_path: Path) -> None:
    text = published.Written(body="    return QTensor.matmul(KTensor);").text
    place = f"mine.cpp:{line_of(text, 'matmul')} calls Tensor::matmul"
    why = re.escape(f"--cachegrind cannot run {tmp_path / 'mine.cpp'}: {place}")
    refused(why, study, "cache", tmp_path, text, "-N", "8", "-d", "4", *CACHEGRIND)
