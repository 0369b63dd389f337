"""Studies: fits, comparisons, tables, figures, the write-up, command lines, and a whole sweep."""

import csv
import io
import platform
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock, create_autospec

import pytest
from building import HEAD, needs_tsan, one_function
from building import binding as bound
from conftest import ASSIGNMENT, ROOT, insert_at_start, put, refused, write

import gpt149
from grader import study
from grader.assignment.options import chosen_lab
from grader.assignment.records import Part
from grader.backends import binding, faults
from grader.backends.native.compilers import Compilers
from grader.core import errors, objectcache
from grader.core.results import Diagnosis
from grader.explain import comparison
from grader.runner.calls import Sample
from grader.study import facts, figure, helpers, memory, options, race, racereport, standalone, together
from grader.study import writeup as writeups
from grader.study.figure import HeatMap, Plot, Series
from grader.study.laboratory import Outcome, Variant, compared, one_round
from grader.study.table import NOTHING, Table, shown
from grader.study.threads import Threads, amdahl, core_share, serial_share
from labs.attention import cases, oracle
from labs.attention.studies import cache, sweep
from labs.attention.studies.cache import Model, Shape, Traffic

ROWS = ((2, 188.6543, "wrong | <!-- end -->"), (4, 136.85, ""), (8, None, "=1+1"))
TABLE = Table("sweep-part2", "Part 2", ("tile", "ms", "note"), ROWS, "How it was measured.")
START = b"# Mine\r\n\r\n<!-- answer: a -->\r\nMy own.  \r\n<!-- end -->\r\n<!-- table: sweep-part2 -->\r\n"
END = b"<!-- end -->\r\nend\r\n"
WRONG_AT_4 = "if (TILE_SIZE == 4) return at::zeros({B, H, N, d}, at::kFloat);"
PART1, PART3, PART4 = map(ASSIGNMENT.part, ("part1", "part3", "part4"))
STATIC = ("f(at::Tensor, int)", "f(at::Tensor, int) [clone ._omp_fn.0]", "(anonymous namespace)::f(int)")
GLOBAL = {"(anonymous namespace)::score": "score", "mine::score": "mine::score", "score": "score"}
KB = 1 << 10
Access = tuple[str, int]


def outcome_of(part: Part, *rounds: tuple[Sample, Sample]) -> Outcome:
    return Outcome(Variant("v", part, {"threads": 1}), rounds, "" if rounds else "wrong result")


def outcomes(part: Part, *times_s: list[float]) -> list[Outcome]:
    return [outcome_of(part, *[(Sample(9.0, time),) * 2 for time in times]) for times in times_s]


def test_fits_find_the_parameter_of_their_own_law() -> None:
    sizes, counts = [64, 128, 512, 2048], [1, 2, 4, 7]
    for power in (0.0, 1.0, 2.0, 2.7):
        rounds = [[level * n**power for n in sizes] for level in (1.0, 3.0, 0.2)]
        assert sweep.exponents(sizes, rounds) == pytest.approx([power] * 3)
    for serial in (0.0, 0.05, 0.5, 1.0):
        assert serial_share(counts, [3.0 / amdahl(serial, n) for n in counts]) == pytest.approx(serial)


def test_a_shared_machine_is_reported() -> None:
    alone = outcome_of(PART3, *[(Sample(1.0, 0.99), Sample(1.0, 0.97))] * 3)
    crowded = outcome_of(PART3, *[(Sample(2.0, 0.99), Sample(1.0, 0.2))] * 3)
    found = Threads(PART3, (1, 2), 2, compared([alone]), (None, None), None, core_share(alone), "")
    assert "of its core" not in found.law()
    assert "had only 35 % of its core" in replace(found, core_share=core_share(crowded)).law()


def test_workspace_and_output_bytes_follow_the_assignment() -> None:
    assert memory.workspace_bytes(PART4, ASSIGNMENT.defaults) == 695296
    assert memory.output_bytes(PART4, ASSIGNMENT.defaults) == 524288
    assert memory.workspace_bytes(PART3, ASSIGNMENT.defaults) + 524288 == 557056


def test_a_round_alternates_its_order_and_drops_a_broken_variant() -> None:
    called: list[int] = []
    callers = {k: lambda k=k: called.append(k) or Sample(1.0, float(k)) for k in range(3)}
    samples, broken = one_round(callers, 0)
    one_round(callers, 1)
    assert called == [0, 1, 2, 2, 1, 0, 1, 2, 0, 0, 2, 1]
    assert [len(samples[k]) for k in callers] == [2, 2, 2] and not broken
    breaks = Mock(side_effect=faults.Faulty("crash", Diagnosis("sigsegv", "it crashed\nwith a second line")))
    samples, broken = one_round({0: lambda: Sample(1.0, 1.0), 1: breaks}, 0)
    assert broken == {1: "crash: it crashed"}
    assert len(samples[0]) == 2 and not samples[1]


def test_ratios_are_free_of_drift_and_lines_have_notes_and_clocks() -> None:
    drift = [1.0, 1.4, 2.0, 3.0, 2.5, 1.1, 1.0, 5.0]
    found = compared(outcomes(PART1, drift, [1.3 * time for time in drift], []))
    base, slower, wrong = found.lines
    assert found.clock == "cpu" and slower.ratio is not None
    assert (slower.ratio.low, slower.ratio.high) == pytest.approx((1.3, 1.3))
    assert base.is_fastest and slower.note == ""
    assert (wrong.time_ms, wrong.note) == (None, "wrong result")
    assert base.time_ms is not None and base.time_ms.low == pytest.approx(1000.0)
    noisy = compared(outcomes(PART1, [1.0] * 8, [0.99, 1.1] * 4))
    assert [line.note for line in noisy.lines] == ["fastest", "may equal the fastest"]
    wrong = compared(outcomes(PART1, [], []))
    assert [line.note for line in wrong.lines] == ["wrong result"] * 2
    # The clock is wall time for OpenMP parts, and for calls whose CPU time is unknown.
    assert compared(outcomes(PART3, [1.0] * 7)).clock == "wall"
    assert compared([outcome_of(PART1, (Sample(2.0, None),) * 2)]).clock == "wall"


def test_csv_and_table_hold_the_same_numbers_and_no_markup() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == list(TABLE.columns)
    for line, in_csv in zip(TABLE.cells(), rows[1:], strict=True):
        assert in_csv[:2] == line[:2]
        assert all(cell in TABLE.text() and cell in TABLE.markdown() for cell in line[:2] if cell)
    assert [row[1] for row in rows[1:]] == ["188.7", "136.8", ""]
    assert "'=1+1" in TABLE.csv() and "<!--" not in TABLE.markdown()
    lines = [line for line in TABLE.markdown().splitlines() if "|" in line]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in lines)
    refused("2 columns", Table, "t", "T", ("a", "b"), ((1,),), of=ValueError)
    cells = (1024, 0.0123456, 1234567.8, 0.0, None, float("nan"))
    assert [shown(cell) for cell in cells] == ["1024", "0.01235", "1234568", "0", "", ""]


CURVES = (
    Series("student", (2.0, 8.0, 32.0), (30.0, 10.0, 20.0), (29.0, 9.0, 19.0), (31.0, 11.0, 21.0)),
    Series("model", (2.0, 32.0), (15.0, 15.0), style="line"),
    Series("other", (4.0,), (25.0,), style="points", notes=("here",)),
)
ABOUT = "a machine · a date · N=64 · -O3"
PLOT = Plot("p", "A title", ABOUT, "tile", "ms", CURVES, log_x=True, x_ticks=(2.0, 8.0, 32.0))
PEAKS = Series("peak", (0.0, 1.0), (1.0, 4.0), style="bars")
BARS = Plot("b", "Bars", "about", "", "MiB", (PEAKS,), x_names=("part1", "part2"))
MAP = HeatMap("m", "Map", "about", "Bc", "Br", ("16", "64"), ("8",), ((12.5, None),), "ms")


def test_figures_in_letters_show_points_where_they_are_and_every_number() -> None:
    lines = figure.text(PLOT, width=60, height=40).splitlines()
    frame = [line.partition("|")[2] for line in lines if "|" in line]
    # The topmost mark, "-", is the upper end of the first point's interval.
    assert lines[:2] == [PLOT.title, PLOT.about] and frame[0].startswith("-")
    marks = sorted((line.index("o"), row) for row, line in enumerate(frame) if "o" in line)
    rows = [row for _, row in marks]
    assert [column for column, _ in marks] == pytest.approx([0, 28, 56], abs=3)
    assert rows[0] < rows[2] < rows[1]  # the values of the points are 30, 10 and 20; row 0 is at the top
    assert "other: here (4.000, 25.00)" in lines[-1]
    lengths = [line.count(figure.BAR) for line in figure.text(BARS).splitlines() if figure.BAR in line]
    assert lengths[1] == pytest.approx(4 * lengths[0], abs=2)
    assert "12.50" in figure.text(MAP) and "none" in figure.text(MAP)


def test_figures_need_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for one in (PLOT, BARS, MAP):
        figure.draw(one, tmp_path / f"{one.name}.png")
        assert (tmp_path / f"{one.name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("pip install matplotlib", figure.draw, MAP, tmp_path / "m.png", of=errors.KitError)


#: Wrong command lines, each with a part of its message.
USAGE = r"""
sweep: PART | swep part2: no command 'swep': did you mean sweep\? | sweep part9: choose part1, part2
sweep part2 --tile 2,x: --tile takes a whole number | sweep part2 --tile 2 -N 64,128: one thing at a time
sweep part2 --tile 2 --br 16: tiles or blocks, not both | sweep part3 --br 16: no Br and Bc
sweep part2 --macro 2x: macro's name | sweep part2 --module nowhere.cpp: no such file
sweep part2 --rounds 0: --rounds takes | sweep part2 --writeup nowhere.md: writeup_template.md
threads part1: part with OpenMP | memory part3 -N 0: -N takes | study --only part2: no study 'part2'
study --quick --nothing: unrecognized | memory --out gpt149.py: --out takes a folder | race part3 -D 1=2: -D takes NAME
"""


def test_a_wrong_usage_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for each in USAGE.strip().replace("\n", " | ").split(" | "):
        line, _, message = each.partition(": ")
        refused(message, gpt149.run, line.split())


def test_a_macro_without_effect_is_refused(tmp_path: Path, master: str) -> None:
    (tmp_path / "module.cpp").write_text(master.replace("TILE_SIZE", "SIDE"))
    line = ["sweep", "part2", "--module", str(tmp_path), "--out", str(tmp_path / "study")]
    refused(r"does not use TILE_SIZE.*#ifndef TILE_SIZE", gpt149.run, line)
    refuse_unchanged = partial(sweep.refuse_unchanged, "TILE_SIZE", Path("module.cpp"))
    refuse_unchanged([b"one", b"another"])
    refuse_unchanged([b"one"])
    refused("the same code for all values of TILE_SIZE", refuse_unchanged, [b"one", b"one"])


def test_commands_have_help_and_common_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab, guide = chosen_lab([]), (ROOT / "docs" / "study.md").read_text()
    assert [command for command in study.COMMANDS if f"`{command}" not in guide] == []
    for command in study.commands(lab):
        with pytest.raises(SystemExit) as ended:
            gpt149.run([command, "--help"])
        assert ended.value.code == 0 and f"gpt149.py {command}" in capsys.readouterr().out
    given = together.parser([]).parse_args(["--quick", "-H", "2", "--out", str(tmp_path), "--seed", "5"])
    assert options.numbers("16,2, 8,2", "--tile", 1, 64) == (2, 8, 16)
    for step in lab.steps():
        line = [*together.common(given, fills=False), *step.arguments(is_quick=True)]
        assert step.command in study.commands(lab) and line[line.index("-H") + 1] == "2"
        assert line[line.index("--rounds") + 1] == together.QUICK_ROUNDS
    assert [step.table for step in together.chosen(lab.steps(), "race,memory")] == ["memory", "race"]


def test_a_sweep_times_right_tiles_names_a_wrong_one_and_fills_a_table(tmp_path: Path, master: str) -> None:
    (tmp_path / "module.cpp").write_text(insert_at_start(master, "myUnfusedAttentionBlocked", WRONG_AT_4))
    writeup, out = tmp_path / "writeup.md", tmp_path / "out"
    writeup.write_bytes(START + b"an older table\r\n" + END)
    line = ["sweep", "part2", "--tile", "4,8", "-N", "64", "-H", "1", "--rounds", "3", "--seed", "1"]
    paths = ["--module", str(tmp_path), "--out", str(out), "--writeup", str(writeup)]
    # A write-up without a region for the table is refused before a kernel is called.
    refused("<!-- table: threads-part3 -->", gpt149.run, ["threads", "part3", *paths])
    assert gpt149.run([*line, *paths]) == 1
    with open(out / "sweep-part2.csv", newline="") as file:
        found = {row["TILE_SIZE"]: row for row in csv.DictReader(file)}
    assert found["4"]["ms"] == "" and found["4"]["note"].startswith("wrong result")
    assert float(found["8"]["ms from"]) <= float(found["8"]["ms"]) <= float(found["8"]["ms to"])
    assert float(found["reference"]["to reference"]) == 1.0
    assert (out / "sweep-part2.png").read_bytes().startswith(b"\x89PNG")
    written = writeup.read_bytes()
    assert written.startswith(START) and written.endswith(END) and b"older" not in written
    text = written.decode()
    lines = [line for line in writeups.tables(text)["sweep-part2"].splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace(NOTHING, "") for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [line[:7] for line in cells] == [list(row.values())[:7] for row in found.values()]


KERNELS = Path(__file__).parent / "races" / "kernels.cpp"
TEXT = KERNELS.read_text()
RIGHT, RACES = (re.findall(rf"KERNEL\(({kind}\w+)\)", TEXT) for kind in ("right", "race"))
VARIABLES = ("rowSum", "scores", "weight", "", "temp", "O")
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
def test_a_region_that_had_one_thread_is_not_called_clean() -> None:
    found = watched("fromFortyRows")
    assert found.is_clean and found.alone == 1 and "Choose larger sizes" in found.summary()
    assert "Choose larger sizes" not in watched("rightStatic").summary()
    part = replace(PART3, function="fromFortyRows")
    assert race.watch(ASSIGNMENT, part, KERNELS, {**SHAPE, "N": 48}, seed=1).races


@needs_tsan
@pytest.mark.parametrize("function", ["rightTasks", "rightReduction", "rightBarriers", "rightTaskloop"])
def test_the_kits_openmp_runtime_does_all_the_work_once_and_in_order(function: str) -> None:
    inputs = cases.make_inputs("random", SHAPE, 3)
    request = binding.request(replace(PART3, function=function), SHAPE, inputs)
    program = standalone.build_program(KERNELS, race.KIT)
    with standalone.ran(program, request, threads=race.THREADS, memory_bytes=None) as run:
        assert run.call is not None and run.call.status == "ok", run.output
    assert comparison.compare(oracle.ORACLES["attention"].expected(inputs, SHAPE), run.call.output).ok


def test_a_variable_is_named_after_the_line_that_writes_it() -> None:
    lines = "j: for (j = 0; j < N; j++)|O: for (int k = 0; k < d; k++) O[i * d + k] += x;|"
    lines += "total: else total -= x;|count: (*count)++;|rows: ++rows;|best: if (a == b) best = a;|"
    lines += "sum: sum += temp[j];|: out.rows[k] = 1;|: float x = sum;"
    for name, _, line in (each.partition(": ") for each in lines.split("|")):
        side = racereport.Access(True, (racereport.Frame(1, line, "f"),))
        assert racereport._written_name([side]) == name, line
        assert racereport._made_name("T p(N), rows(d);", [side]) == ("rows" if "rows" in line else "p")


#: A kernel whose result is always wrong, and differs with the number of threads.
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
    assert "is wrong even on one thread" in finding.trouble and "data race" not in finding.trouble


def test_repeated_runs_show_a_race_where_only_several_threads_are_wrong() -> None:
    right, wrong = race.Run(1, False, None), race.Run(2, True, (0, 1, 2, 3))
    assert race.differences_text([right, right, race.Run(2, False, None)]) == ""
    assert race.differences_text([right, race.Run(2, True, None)]) == "", "within the error budget"
    words = race.differences_text([right, wrong])
    assert "right on one thread, first at (0, 1, 2, 3) on 2 threads: a data race" in words
    words = race.differences_text([right, race.Run(1, True, (0, 0, 0, 0)), wrong])
    assert "is wrong even on one thread in 1 of 2 runs" in words


REPORT = """WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 4 at 0x1 by thread T1:
    #0 f module.cpp:1 (p+0x1)

  Previous write of size 4 at 0x1 by main thread:
    #0 f module.cpp:1 (p+0x2)
"""


def test_a_race_of_foreign_code_is_not_reported() -> None:
    assert racereport.races(REPORT.replace("module", "x"), "") == ()
    ours = REPORT.replace("module.cpp:1 (p+0x1)", "x.cpp:3 (p+0x1)")
    assert racereport.races(ours.replace("Previous write", "Previous read"), "x += 1;")[0].lines == (1,)


@pytest.mark.parametrize("location", [*(f"{function}::score" for function in STATIC), *GLOBAL])
def test_a_static_variable_in_a_function_is_named(location: str) -> None:
    name, is_static = GLOBAL.get(location, "score"), location not in GLOBAL
    output = f"{REPORT}\n  Location is global '{location}' of size 4 at 0x1 (p+0x3)\n"
    (found,) = racereport.races(output, "score += x;")
    assert (found.variable, found.is_static) == (name, is_static)
    said = "\n".join(racereport.words(found, "mine.cpp"))
    assert ("without 'static'" in said) is is_static
    assert ("Declare it inside the parallel region" in said) is not is_static


@needs_tsan
def test_a_second_file_is_compiled_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = one_function("return t;")
    standalone.build_program(write(tmp_path, small), race.KIT)
    heard = create_autospec(Compilers.run, side_effect=Compilers.run)
    monkeypatch.setattr(Compilers, "run", heard)
    standalone.build_program(write(tmp_path, f"{small}// {random.SystemRandom().random()}\n"), race.KIT)
    made = [("module.cpp" in call.args[1], "-c" in call.args[1]) for call in heard.mock_calls]
    assert made == [(True, True), (False, False)]


def test_a_reduction_is_advised_only_if_it_removes_the_race() -> None:
    alike = {"sum += x[i];": "reduction(+: sum)", "sum = std::max(sum, x);": "reduction(max: sum)"}
    alike["sum[o] += x[i];"] = "the same element of sum"
    pairs = [(line, line, says) for line, says in alike.items()]
    pairs.append(("sum += x[i];", "y[i] /= sum;", "private(...))."))
    for *lines, says in pairs:
        now, before = (racereport.Access(True, (racereport.Frame(1, text, "f"),)) for text in lines)
        found = racereport.Race("sum", "memory", now, before)
        advice = " ".join(map(str.strip, racereport.words(found, "module.cpp")))
        assert says in advice and ("reduction" in advice) == ("reduction" in says), lines


def simulated(kernel: str, shape: Shape, model: Model, *, scores_only: bool = True) -> Traffic:
    walk = (kernel, model, shape)
    return cache.simulate([walk], scores_only=scores_only)[walk]


def scores(kernel: str, N: int, d: int, cache_bytes: int, **tiles: int) -> Traffic:
    return simulated(kernel, Shape(N, d, **tiles), Model(cache_bytes))


def naive(accesses: list[Access], lines: int, ways: int) -> Traffic:
    """Simulate a cache of `lines` lines in sets of `ways` (0: all). A set is a list, its last used line at the end."""
    per_set = ways or lines
    sets: list[list[int]] = [[] for _ in range(lines // per_set)]
    dirty: set[int] = set()
    fetched = written = 0
    for kind, index in accesses:
        line = index // 16
        kept = sets[line % len(sets)]
        if line in kept:
            kept.remove(line)
        else:
            fetched += 1
            if len(kept) == per_set:
                out = kept.pop(0)
                written += out in dirty
                dirty.discard(out)
        kept.append(line)
        if kind == "w":
            dirty.add(line)
    stores = sum(kind == "w" for kind, _ in accesses)
    return Traffic(len(accesses) - stores, stores, fetched, written + len(dirty))


@pytest.mark.parametrize("seed", range(12))
def test_the_simulated_cache_counts_as_a_naive_one(seed: int) -> None:
    """Compare the simulator with `naive` on random sequences of consecutive, equal and distant indices (N = d = 16)."""
    draw = random.Random(seed)
    ways, lines = draw.choice([0, 1, 2, 4]), draw.choice([4, 8, 16])
    accesses, place = [], 0
    for _ in range(600):
        place = draw.choice([place, place + 1, place + 1, draw.randrange(1024)]) % 1024
        accesses.append((draw.choice("rrw"), place))
    command = [helpers.program(cache.SIMULATOR), "script", *f"16 16 1 16 16 {64 * lines} {ways} 64".split()]
    script = "".join(f"{kind} {index}\n" for kind, index in accesses)
    ended = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    assert Traffic(*map(int, ended.stdout.split())) == naive(accesses, lines, ways)


def walked(N: int, d: int, T: int) -> Iterator[Access]:
    """Yield accesses ("r" or "w", index) for part 2's S with tiles of T. Q, K, V, O, S each begin a new cache line."""
    K, S = (matrix * -(-N * d // 16) * 16 for matrix in (1, 4))
    for i0 in range(0, N, T):
        for j0 in range(0, N, T):
            for k0 in range(0, d, T):
                for i in range(i0, min(i0 + T, N)):
                    for j in range(j0, min(j0 + T, N)):
                        if k0 > 0:
                            yield "r", S + i * N + j
                        for k in range(k0, min(k0 + T, d)):
                            yield from (("r", i * d + k), ("r", K + j * d + k))
                        yield "w", S + i * N + j


@pytest.mark.parametrize(("N", "d", "T"), [(7, 19, 4), (12, 8, 16), (9, 33, 3)])
@pytest.mark.parametrize(("lines", "ways"), [(4, 0), (16, 0), (16, 2), (8, 1)])
def test_the_simulator_walks_as_the_loops_of_part_2(N: int, d: int, T: int, lines: int, ways: int) -> None:
    """Parameters include rows that begin within a cache line, ragged tiles, and a cache smaller than two rows."""
    found = simulated("part2", Shape(N, d, T), Model(64 * lines, ways))
    assert found == naive(list(walked(N, d, T)), lines, ways)


def test_simulated_traffic_equals_counts_by_hand() -> None:
    """With N = d = 16, Q, K and S have 16 cache lines each, one for each row."""
    assert scores("part1", 16, 16, 64 * KB) == Traffic(2 * 16**3, 16**2, 16 + 16 + 16, 16)
    # A cache of four lines keeps the current rows of Q and S; the rows of K are fetched again for each row of Q.
    assert scores("part1", 16, 16, 4 * 64).fetched == 16 + 16 * 16 + 16
    # The cache holds tiles of 4 rows of Q, K and S, and 4 more rows. So K is fetched again for each tile of Q.
    assert scores("part2", 16, 16, 16 * 64, tile=4).fetched == 16 + 4 * 16 + 16
    # Part 3 keeps one row of scores, not all rows. So it fetches Q, K, V, O and one line, and writes O and this line.
    whole = simulated("part3", Shape(16, 16), Model(64 * KB), scores_only=False)
    assert (whole.fetched, whole.written) == (4 * 16 + 1, 16 + 1)


def test_the_ratio_is_one_over_the_tile_only_where_rows_exceed_the_cache() -> None:
    first = scores("part1", 192, 4096, 16 * KB)
    for kernel, tile, wanted in (("part2", 16, 1 / 16), ("part2-rewritten", 16, 3 / 32)):
        found = scores(kernel, 192, 4096, 16 * KB, tile=tile)
        assert found.lines / first.lines == pytest.approx(wanted, rel=0.02 if kernel == "part2" else 0.03)
        assert found.lines == pytest.approx(cache.formula(kernel, Shape(192, 4096, tile), 64), rel=0.03)
    assert first.lines == pytest.approx(cache.formula("part1", Shape(192, 4096), 64), rel=0.01)
    # At the assignment's default size the ratio is 1.
    lines = {kernel: scores(kernel, 1024, 32, 512 * KB).lines for kernel in ("part1", "part2")}
    assert lines["part2"] / lines["part1"] == pytest.approx(1.0, abs=0.001)


def test_a_table_holds_both_kernels_for_each_cache() -> None:
    models, shape = (Model(4 * KB), Model(64 * KB)), Shape(48, 64)
    study = cache.measure(("part1", "part2"), models, (shape,), scores_only=True, about="here")
    rows = study.table().rows
    assert [" ".join(row[2:4]) for row in rows] == ["4K part1", "4K part2", "64K part1", "64K part2"]
    assert rows[1][7] == pytest.approx(study.ratio(("part2", models[0], shape)))
    assert rows[0][7] == 1.0 and rows[3][7] == pytest.approx(1.0)
    assert rows[1][9] == 1 / 16


def test_sizes_with_units_and_outputs_of_probe_and_cachegrind_are_read() -> None:
    sizes = {"16K,512K": (16 * KB, 512 * KB), "2m": (2 << 20,), "64,64b": (64,)}
    assert {text: helpers.byte_sizes(text, "--cache") for text in sizes} == sizes
    for text in ("", "K", "0", "-1K", "12Q", "1T", "99999999999G"):
        refused("--cache takes sizes like 32K", helpers.byte_sizes, text, "--cache")
    text = "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfn=main\nsummary: 90 1 1 30 7 2 20 5 1\n"
    assert cache.data_misses(text) == 12
    peaks = "peak scalar 1 2e9\npeak avx2 1 4e10\npeak avx2 4 1.5e11\n"
    speed = facts.parse(peaks + "triad 1 5e9\nread 1 8e9\ntriad 4 9e9\nread 4 7e9\n", 4)
    assert speed.levels == ("scalar", "avx2")
    assert speed.peak("avx2", 1) == 4e10 and speed.peak("avx2", 4) == 1.5e11
    assert speed.bandwidth(1) == 8e9 and speed.bandwidth(4) == 9e9


def test_the_machine_has_wider_levels_that_are_faster_and_caches() -> None:
    """The last level's peak is usually 8 to 16 times the first's. Load slows some tries; the probe keeps the best."""
    speed = facts.measure()
    assert speed.peak(speed.levels[-1], 1) > 2 * speed.peak(speed.levels[0], 1) or len(speed.levels) == 1
    assert min(*speed.triad.values(), *speed.read.values()) > 0
    found = facts.describe()
    sizes = [each.size_bytes for each in found.caches]
    assert found.line_bytes in (32, 64, 128, 256) and sizes == sorted(sizes) and sizes


@pytest.mark.full
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_cachegrind_agrees_in_the_trend(tmp_path: Path) -> None:
    sizes = ["-N", "24", "-d", "512", "--cache", "4K"]
    assert gpt149.run(["cache", "part1", "part2", *sizes, "--cachegrind", "--out", str(tmp_path)]) == 0
    second = list(csv.DictReader((tmp_path / "cache.csv").read_text().splitlines()))[1]
    assert float(second["ratio"]) < float(second["ratio by cachegrind"]) < 0.5


def test_a_prebuilt_program_needs_no_executable_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cachesim.cpp"
    monkeypatch.setenv("GPT149_CACHE", str(tmp_path / "cache"))
    name = objectcache.prebuilt_name("cachesim", platform.system(), platform.machine())
    handed_out = put(tmp_path / "prebuilt", {name: "#!/bin/sh\necho counted\n"}, 0o444) / name
    assert helpers.output_of(source, [], 60.0) == "counted\n"
    handed_out.chmod(0o555)
    assert helpers.program(source) == handed_out
