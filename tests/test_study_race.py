"""Planted races are found by variable and line, right kernels are not blamed. One program holds all of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from building import HEAD, needs_tsan, one_function
from building import binding as bound
from conftest import ASSIGNMENT, write

from grader.backends import binding
from grader.backends.native.compilers import Compilers
from grader.explain import comparison
from grader.sandbox import Finished
from grader.study import race, racereport
from grader.study.standalone import build_program, ran
from labs.attention import oracle
from labs.attention.cases import make_inputs

KERNELS = Path(__file__).parent / "races" / "kernels.cpp"
TEXT = KERNELS.read_text()
RIGHT, RACES = (re.findall(rf"KERNEL\(({kind}\w+)\)", TEXT) for kind in ("right", "race"))
VARIABLES = ("rowSum", "scores", "weight", "", "temp")
PART3 = ASSIGNMENT.part("part3")
SHAPE = {**ASSIGNMENT.defaults, **ASSIGNMENT.lab.watched_sizes, "threads": race.THREADS}


def watched(function: str) -> racereport.RaceResult:
    return race.watch(ASSIGNMENT, replace(PART3, function=function), KERNELS, SHAPE, seed=1)


def planted_line(function: str) -> int:
    return TEXT.count("\n", 0, TEXT.index("// the race", TEXT.index(f"KERNEL({function})"))) + 1


@needs_tsan
@pytest.mark.parametrize("function", RIGHT)
def test_a_right_kernel_is_not_blamed(function: str) -> None:
    finding = watched(function)
    assert finding.races == () and finding.trouble == ""
    assert finding.regions and finding.is_clean


@needs_tsan
@pytest.mark.parametrize(("function", "variable"), [*zip(RACES, VARIABLES, strict=True)])
def test_a_planted_race_is_found(function: str, variable: str) -> None:
    finding = watched(function)
    assert any(planted_line(function) in found.lines for found in finding.races)
    if variable:
        assert variable in {found.variable for found in finding.races}
    assert f"mine.cpp:{planted_line(function)}: " in "\n".join(racereport.words(finding.races[0], "mine.cpp"))
    assert str(planted_line(function)) in finding.table().csv()


@needs_tsan
@pytest.mark.parametrize("function", ["rightTasks", "rightReduction", "rightBarriers", "rightTaskloop"])
def test_the_kits_openmp_runtime_does_all_the_work_once_and_in_order(function: str) -> None:
    inputs = make_inputs("random", SHAPE, 3)
    request = binding.request(replace(PART3, function=function), SHAPE, inputs)
    program = build_program(KERNELS, race.KIT)
    with ran(program, request, threads=race.THREADS, memory_bytes=None) as run:
        assert run.call is not None and run.call.status == "ok", run.output
    output = run.call.output
    assert comparison.compare(oracle.ORACLES["attention"].expected(inputs, SHAPE), output).ok


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("sum += temp[j];", "sum"),
        ("for (j = 0; j < N; j++)", "j"),
        ("for (int k = 0; k < d; k++) O[i * d + k] += x;", "O"),
        ("else total -= x;", "total"),
        ("(*count)++;", "count"),
        ("++rows;", "rows"),
        ("if (a == b) best = a;", "best"),
        *((line, "") for line in ("out.rows[k] = 1;", "float x = sum;")),
    ],
)
def test_a_variable_is_named_after_the_line_that_writes_it(line: str, name: str) -> None:
    side = racereport.Access(True, (racereport.Frame(1, line, "f"),))
    assert racereport._written_name([side]) == name


#: Wrong on every number of threads, and differently on each.
WRONG_BY_THREADS = """
using torch::Tensor;
Tensor myFusedAttention(Tensor Q, Tensor K, Tensor V, Tensor temp, int B, int H, int N, int d) {
    Tensor O = at::zeros({B, H, N, d}, at::kFloat);
    O.data_ptr<float>()[0] = omp_get_max_threads();
    return O;
}
"""


def test_repeated_runs_of_a_kernel_that_one_thread_gets_wrong_show_no_race(tmp_path: Path) -> None:
    source = write(tmp_path, f"{HEAD}#include <omp.h>{WRONG_BY_THREADS}{bound('myFusedAttention')}")
    finding = race.compare(ASSIGNMENT, PART3, source, SHAPE, rounds=1, seed=1)
    assert "is wrong on one thread already" in finding.trouble
    assert "data race" not in finding.trouble


def test_repeated_runs_show_a_race_where_only_several_threads_are_wrong() -> None:
    right, wrong = race.Run(1, False, None), race.Run(2, True, (0, 1, 2, 3))
    assert race.told([right, right, race.Run(2, False, None)]) == ""
    assert race.told([right, race.Run(2, True, None)]) == "", "within the error budget"
    told = race.told([right, wrong])
    assert "right on one thread, first at (0, 1, 2, 3) on 2 threads: a data race" in told
    told = race.told([right, race.Run(1, True, (0, 0, 0, 0)), wrong])
    assert "is wrong on one thread already in 1 of 2 runs" in told


REPORT = """WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 4 at 0x1 by thread T1:
    #0 f module.cpp:1 (p+0x1)

  Previous write of size 4 at 0x1 by main thread:
    #0 f module.cpp:1 (p+0x2)
"""


def test_a_race_of_foreign_code_is_not_reported() -> None:
    assert racereport.races(REPORT.replace("module", "x"), "") == ()
    ours = REPORT.replace("module.cpp:1 (p+0x1)", "x.cpp:3 (p+0x1)")
    ours = ours.replace("Previous write", "Previous read")
    assert racereport.races(ours, "x += 1;")[0].lines == (1,)


@pytest.mark.parametrize(
    ("location", "name", "is_static"),
    [
        ("myFused(at::Tensor, int)::score", "score", True),
        ("myFused(at::Tensor, int) [clone ._omp_fn.0]::score", "score", True),
        ("(anonymous namespace)::f(int)::score", "score", True),
        ("(anonymous namespace)::score", "score", False),
        *((name, name, False) for name in ("mine::score", "score")),
    ],
)
def test_a_static_variable_in_a_function_is_named(location: str, name: str, is_static: bool) -> None:
    output = f"{REPORT}\n  Location is global '{location}' of size 4 at 0x1 (p+0x3)\n"
    (found,) = racereport.races(output, "score += x;")
    assert (found.variable, found.is_static) == (name, is_static)
    said = "\n".join(racereport.words(found, "mine.cpp"))
    assert ("without 'static'" in said) is is_static
    assert ("Declare it inside the parallel region" in said) is not is_static


@needs_tsan
def test_a_second_file_is_compiled_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = one_function("return t;")
    build_program(write(tmp_path, small), race.KIT)
    commands = []
    real = Compilers.run

    def heard(self: Compilers, command: Sequence[str], *how: Any) -> Finished:
        commands.append(command)
        return real(self, command, *how)

    monkeypatch.setattr(Compilers, "run", heard)
    build_program(write(tmp_path, f"{small}// {tmp_path}\n"), race.KIT)
    made = [("module.cpp" in command, "-c" in command) for command in commands]
    assert made == [(True, True), (False, False)]


@pytest.mark.parametrize(
    ("line", "other", "says"),
    [
        ("sum += x[i];", "sum += x[i];", "reduction(+: sum)"),
        ("sum = std::max(sum, x);", "sum = std::max(sum, x);", "reduction(max: sum)"),
        ("sum += x[i];", "y[i] /= sum;", "private(...))."),
        ("sum[o] += x[i];", "sum[o] += x[i];", "the same element of sum"),
    ],
)
def test_a_reduction_is_advised_only_where_one_makes_it_right(line: str, other: str, says: str) -> None:
    now, before = (racereport.Access(True, (racereport.Frame(1, text, "f"),)) for text in (line, other))
    (*_, advice) = racereport.words(racereport.Race("sum", "memory", now, before), "module.cpp")
    assert advice.endswith(says) or says in advice
    assert ("reduction" in advice) == ("reduction" in says)
