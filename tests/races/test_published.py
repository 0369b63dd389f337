"""Files in the published style can be studied without torch: watched for races, counted by cachegrind, sanitized."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import published
import pytest
from building import PLAIN, SANITIZED

import gpt149
from grader.assignment.loading import load
from grader.base.errors import UsageError
from grader.build import sanitize
from grader.build.toolchain import toolchain
from grader.judge import binding, comparison
from grader.study import options, race
from grader.study.standalone import Ran, Unsuitable, build_program, ran
from labs.attention import oracle
from labs.attention.cases import make_inputs

ASSIGNMENT = load(options.PUBLIC_CONFIG)
PART = ASSIGNMENT.part("part3")
SHAPE = {**ASSIGNMENT.defaults, **ASSIGNMENT.lab.watched_sizes, "threads": race.THREADS}
RIGHT = [name for name in published.SOURCES if name != "race"]
needs_tsan = pytest.mark.skipif(
    not race.has_thread_sanitizer(toolchain()), reason="only gcc on Linux has the ThreadSanitizer that fits"
)
needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")


def written(folder: Path, text: str) -> Path:
    source = folder / "mine.cpp"
    source.write_text(text)
    return source


def line_of(text: str, what: str) -> int:
    """The number of the only line that holds `what`."""
    (found,) = (number for number, line in enumerate(text.split("\n"), 1) if what in line)
    return found


def watched(tmp_path: Path, text: str) -> int:
    """The exit code of `python gpt149.py race part3`."""
    return gpt149.run(["race", "part3", "--module", str(written(tmp_path, text)), "--out", str(tmp_path)])


def test_there_are_ten_and_no_two_alike() -> None:
    assert len(published.SOURCES) == len(set(published.SOURCES.values())) == 10
    assert all("@" not in text for text in published.SOURCES.values())


@needs_tsan
@pytest.mark.parametrize("name", RIGHT)
def test_race_is_silent_on_a_right_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched(tmp_path, published.SOURCES[name]) == 0
    said = capsys.readouterr()
    assert re.search(r"No data race in myFusedAttention\s+\(ThreadSanitizer", said.out), said.out
    assert "no parallel region" not in said.out and "cannot watch" not in said.err


@needs_tsan
def test_race_names_the_variable_and_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = published.SOURCES["race"]
    assert watched(tmp_path, text) == 1
    said = capsys.readouterr()
    assert "cannot watch" not in said.err
    assert f"mine.cpp:{line_of(text, published.RACING_SUM)}: {published.RACING_SUM}" in said.out
    with open(tmp_path / "race.csv", newline="") as file:
        assert "total" in {row["variable"] for row in csv.DictReader(file)}


@needs_tsan
def test_views_of_temp_are_its_own_memory(tmp_path: Path) -> None:
    """Each thread in its row of temp is right; all in row 0 is a race, though every view is another tensor."""
    apart = race.watch(ASSIGNMENT, PART, written(tmp_path, published.ROWS_OF_TEMP.text), SHAPE)
    assert apart.is_clean and apart.regions
    text = published.ONE_ROW_OF_TEMP.text
    together = race.watch(ASSIGNMENT, PART, written(tmp_path, text), SHAPE)
    assert "row" in {found.variable for found in together.races}
    assert any(line_of(text, "row[j] = expf(") in found.lines for found in together.races)


#: Thread 1 writes long after thread 0, and both take views of one tensor in between.
BESIDE_VIEWS = """
    std::vector<float> shared(1);
    #pragma omp parallel
    {
        int mine = omp_get_thread_num();
        if (mine == 0) shared[0] = 1;
        if (mine == 1) usleep(300000);
        for (int k = 0; k < 10; k++) at::Tensor row = temp.index({mine});
        if (mine == 1) shared[0] = 2;
    }
    return at::zeros({B, H, N, d});"""


@needs_tsan
def test_taking_views_of_one_tensor_orders_no_threads(tmp_path: Path) -> None:
    kernel = published.Written("", headers="#include <unistd.h>", body=BESIDE_VIEWS, bindings="")
    finding = race.watch(ASSIGNMENT, PART, written(tmp_path, kernel.text), SHAPE)
    lines = tuple(line_of(kernel.text, f"shared[0] = {value};") for value in (1, 2))
    assert [found.lines for found in finding.races] == [lines]


def sanitized(source: Path, function: str, threads: int) -> tuple[Ran, comparison.Comparison | None]:
    """One call in a program with sanitizers, and its result beside the right one, None if there is none."""
    shape = {**SHAPE, "threads": threads}
    inputs = make_inputs("random", shape, 3)
    options_of_asan = ":".join(f"{key}={value}" for key, value in sanitize.ASAN_OPTIONS.items())
    with ran(
        build_program(source, SANITIZED),
        binding.request(replace(PART, function=function), shape, inputs),
        threads=threads,
        environment={"ASAN_OPTIONS": options_of_asan},
        memory_bytes=None,
    ) as run:
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


#: Of the ten: two ways of holding temp's row, and the file with a race.
COUNTED = ("starter", "parallel_for", "race")


@needs_valgrind
@pytest.mark.parametrize("name", COUNTED)
def test_cachegrind_counts_its_lines(name: str, tmp_path: Path) -> None:
    source = written(tmp_path, published.SOURCES[name])
    sizes = ["-N", "24", "-d", "8", "--cache", "1K", "--cachegrind"]
    files = ["--module", str(source), "--out", str(tmp_path)]
    assert gpt149.run(["cache", "part3", *sizes, *files]) == 0
    with open(tmp_path / "cache.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    # K and V do not fit and are read again for each row; and no more lines come than elements are asked for.
    once, accesses = 2 * 24 * 8 // 16, 8 * 24 * 24 * 8
    assert 6 * once < int(row["fetched by cachegrind"]) < accesses


# ---- what a study cannot run


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("at::Tensor P = QTensor.matmul(KTensor);", "calls Tensor::matmul: that is torch's own work;"),
        ("at::Tensor P = at::softmax(QTensor, -1);", "calls at::softmax: that is torch's own work;"),
        ("at::Tensor P = QTensor * KTensor;", "calls operator*: that is torch's own work;"),
        ("QTensor.exp_();", "calls Tensor::exp_: that is torch's own work;"),
        ("at::Tensor P = std::exp(QTensor);", "calls exp: that is torch's own work;"),
        (
            "auto P = torch::nn::functional::softmax(QTensor, 1);",
            "calls torch::nn: that is torch's own work;",
        ),
        ("auto P = QTensor.fft();", "uses torch's Tensor::fft, which kernels are not given"),
        ("auto P = torch::jit::load(name);", "uses torch's torch::jit, which kernels are not given"),
        ("auto P = QTensor.data_ptr<at::Half>();", "uses torch's at::Half, which kernels are not given"),
        ("auto P = QTensor.data_ptr<char>();", "uses tensors of a type that kernels are not given"),
        ("auto P = QTensor.index({KTensor});", "indexes by a tensor or a bool, which kernels are not given"),
        ("py::dict P;", "uses py::dict: there is no Python where kernels run"),
        ("PyErr_Clear();", "uses PyErr_Clear: there is no Python where kernels run"),
    ],
)
def test_a_file_that_needs_more_of_torch_is_told_its_line(statement: str, told: str, tmp_path: Path) -> None:
    text = published.Written(body=f"    {statement}\n{published.VECTORS}{published.RETURN}").text
    with pytest.raises(Unsuitable) as caught:
        build_program(written(tmp_path, text), PLAIN)
    assert str(caught.value).startswith(f"mine.cpp:{line_of(text, statement)} {told}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 160


@needs_valgrind
def test_cachegrind_says_which_call_it_cannot_run(tmp_path: Path) -> None:
    source = written(tmp_path, published.Written(body="    return QTensor.matmul(KTensor);").text)
    line = ["cache", "part3", "-N", "8", "-d", "4", "--cache", "1K", "--cachegrind"]
    with pytest.raises(UsageError) as caught:
        gpt149.run([*line, "--module", str(source), "--out", str(tmp_path)])
    said = f"mine.cpp:{line_of(source.read_text(), 'matmul')} calls Tensor::matmul"
    assert f"--cachegrind cannot run {source}: {said}" in str(caught.value)
