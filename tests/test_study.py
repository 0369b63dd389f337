"""The study: fits, comparisons, tables, figures, the write-up, command lines, and one sweep from end to end."""

import csv
import io
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import ASSIGNMENT, ROOT, insert_at_start, refused

import gpt149
from grader import study
from grader.assignment.options import chosen_lab
from grader.assignment.records import Part
from grader.backends.faults import Faulty
from grader.core.errors import KitError
from grader.core.results import Diagnosis
from grader.runner.samples import Sample
from grader.study import figure, memory, options, together
from grader.study.figure import HeatMap, Plot, Series
from grader.study.laboratory import Outcome, Variant, compared, one_round
from grader.study.table import NOTHING, Table, shown
from grader.study.threads import Threads, amdahl, core_share, serial_share
from grader.study.writeup import regions
from labs.attention.studies import sweep
from labs.attention.studies.sweep import exponents

ROWS = ((2, 188.6543, "wrong | <!-- end -->"), (4, 136.85, ""), (8, None, "=1+1"))
TABLE = Table("sweep-part2", "Part 2", ("tile", "ms", "note"), ROWS, "How it was measured.")
START = b"# Mine\r\n\r\n<!-- answer: a -->\r\nMy own.  \r\n<!-- end -->\r\n<!-- table: sweep-part2 -->\r\n"
END = b"<!-- end -->\r\nend\r\n"
WRONG_AT_4 = "if (TILE_SIZE == 4) return at::zeros({B, H, N, d}, at::kFloat);"
PART1, PART3, PART4 = map(ASSIGNMENT.part, ("part1", "part3", "part4"))


def outcome_of(part: Part, *rounds: tuple[Sample, Sample]) -> Outcome:
    return Outcome(Variant("v", part, {"threads": 1}), rounds, "" if rounds else "wrong result")


def outcomes(part: Part, *times_s: list[float]) -> list[Outcome]:
    return [outcome_of(part, *[(Sample(9.0, time),) * 2 for time in times]) for times in times_s]


def test_fits_find_the_parameter_of_their_own_law() -> None:
    sizes, counts = [64, 128, 512, 2048], [1, 2, 4, 7]
    for power in (0.0, 1.0, 2.0, 2.7):
        rounds = [[level * n**power for n in sizes] for level in (1.0, 3.0, 0.2)]
        assert exponents(sizes, rounds) == pytest.approx([power] * 3)
    for serial in (0.0, 0.05, 0.5, 1.0):
        times = [3.0 / amdahl(serial, count) for count in counts]
        assert serial_share(counts, times) == pytest.approx(serial)


def test_a_shared_machine_is_reported() -> None:
    alone = outcome_of(PART3, *[(Sample(1.0, 0.99), Sample(1.0, 0.97))] * 3)
    crowded = outcome_of(PART3, *[(Sample(2.0, 0.99), Sample(1.0, 0.2))] * 3)
    found = Threads(PART3, (1, 2), 2, compared([alone]), (None, None), None, core_share(alone), "")
    assert "of its core" not in found.law()
    assert "had only 35 % of its core" in replace(found, core_share=core_share(crowded)).law()


def test_workspaces_are_what_the_assignment_allocates() -> None:
    assert memory.workspace_bytes(PART4, ASSIGNMENT.defaults) == 695296
    assert memory.output_bytes(PART4, ASSIGNMENT.defaults) == 524288
    assert memory.workspace_bytes(PART3, ASSIGNMENT.defaults) + 524288 == 557056


def test_a_round_runs_to_and_fro_and_goes_on_without_a_variant_that_breaks() -> None:
    called: list[int] = []
    callers = {k: lambda k=k: called.append(k) or Sample(1.0, float(k)) for k in range(3)}
    samples, broken = one_round(callers, 0)
    one_round(callers, 1)
    assert called == [0, 1, 2, 2, 1, 0, 1, 2, 0, 0, 2, 1]
    assert [len(samples[k]) for k in callers] == [2, 2, 2] and not broken
    breaks = Mock(side_effect=Faulty("crash", Diagnosis("sigsegv", "it crashed\nwith a second line")))
    samples, broken = one_round({0: lambda: Sample(1.0, 1.0), 1: breaks}, 0)
    assert broken == {1: "crash: it crashed"}
    assert len(samples[0]) == 2 and not samples[1]


def test_ratios_feel_no_drift_that_all_variants_share_and_notes_and_clocks_are_theirs() -> None:
    drift = [1.0, 1.4, 2.0, 3.0, 2.5, 1.1, 1.0, 5.0]
    found = compared(outcomes(PART1, drift, [1.3 * time for time in drift], []))
    base, slower, wrong = found.lines
    assert found.clock == "cpu" and slower.ratio is not None
    assert (slower.ratio.low, slower.ratio.high) == pytest.approx((1.3, 1.3))
    assert base.is_fastest and slower.note == ""
    assert (wrong.time_ms, wrong.note) == (None, "wrong result")
    assert base.time_ms is not None and base.time_ms.low == pytest.approx(1000.0)
    noisy = compared(outcomes(PART1, [1.0] * 8, [0.99, 1.1] * 4))
    assert [line.note for line in noisy.lines] == ["fastest", "not told from the fastest"]
    wrong = compared(outcomes(PART1, [], []))
    assert [line.note for line in wrong.lines] == ["wrong result"] * 2
    # Wall time decides OpenMP parts and calls without a CPU clock.
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
    # Above the plot is the upper end of the first interval.
    assert lines[:2] == [PLOT.title, PLOT.about] and frame[0].startswith("-")
    marks = sorted((line.index("o"), row) for row, line in enumerate(frame) if "o" in line)
    rows = [row for _, row in marks]
    assert [column for column, _ in marks] == pytest.approx([0, 28, 56], abs=3)
    assert rows[0] < rows[2] < rows[1]  # 30 above 20 above 10
    assert "other: here (4.000, 25.00)" in lines[-1]
    bars = figure.text(BARS).splitlines()
    lengths = [line.count(figure.BAR) for line in bars if figure.BAR in line]
    assert lengths[1] == pytest.approx(4 * lengths[0], abs=2)
    assert "12.50" in figure.text(MAP) and "none" in figure.text(MAP)


def test_figures_take_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for one in (PLOT, BARS, MAP):
        figure.draw(one, tmp_path / f"{one.name}.png")
        assert (tmp_path / f"{one.name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("pip install matplotlib", figure.draw, MAP, tmp_path / "m.png", of=KitError)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sweep", "PART"),
        ("swep part2", r"no command 'swep': sweep\?"),
        ("sweep part9", "choose part1, part2"),
        ("sweep part2 --tile 2,x", "--tile takes a whole number"),
        ("sweep part2 --tile 2 -N 64,128", "one thing at a time"),
        ("sweep part2 --tile 2 --br 16", "one thing at a time"),
        ("sweep part3 --br 16", "no Br and Bc"),
        ("sweep part2 --macro 2x", "macro's name"),
        ("sweep part2 --module nowhere.cpp", "no such file"),
        ("sweep part2 --rounds 0", "--rounds takes"),
        ("sweep part2 --writeup nowhere.md", "writeup_template.md"),
        ("threads part1", "for OpenMP parts"),
        ("memory part3 -N 0", "-N takes"),
        ("study --only part2", "no study 'part2'"),
        ("study --quick --nothing", "unrecognized"),
        ("memory --out gpt149.py", "--out takes a folder"),
    ],
)
def test_a_wrong_usage_is_one_line(line: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    refused(message, gpt149.run, line.split())


def test_a_macro_without_effect_is_refused(tmp_path: Path, master: str) -> None:
    (tmp_path / "module.cpp").write_text(master.replace("TILE_SIZE", "SIDE"))
    line = ["sweep", "part2", "--module", str(tmp_path), "--out", str(tmp_path / "study")]
    refused(r"does not use TILE_SIZE.*#ifndef TILE_SIZE", gpt149.run, line)
    refuse_unchanged = partial(sweep.refuse_unchanged, "TILE_SIZE", Path("module.cpp"))
    refuse_unchanged([b"one", b"another"])
    refuse_unchanged([b"one"])
    refused("the same whatever TILE_SIZE is", refuse_unchanged, [b"one", b"one"])


def test_commands_have_help_and_the_options_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = chosen_lab([])
    for command in study.commands(lab):
        with pytest.raises(SystemExit) as ended:
            gpt149.run([command, "--help"])
        assert ended.value.code == 0
        assert f"gpt149.py {command}" in capsys.readouterr().out
    given = together.parser([]).parse_args(["--quick", "-H", "2", "--out", str(tmp_path), "--seed", "5"])
    assert options.numbers("16,2, 8,2", "--tile", 1, 64) == (2, 8, 16)
    for step in lab.steps():
        line = [*together.common(given, fills=False), *step.arguments(is_quick=True)]
        assert step.command in study.commands(lab)
        assert line[line.index("-H") + 1] == "2"
        assert line[line.index("--rounds") + 1] == together.QUICK_ROUNDS
    assert [step.table for step in together.chosen(lab.steps(), "race,memory")] == ["memory", "race"]


def test_a_sweep_times_right_tiles_names_a_wrong_one_and_fills_a_table(tmp_path: Path, master: str) -> None:
    (tmp_path / "module.cpp").write_text(insert_at_start(master, "myUnfusedAttentionBlocked", WRONG_AT_4))
    writeup, out = tmp_path / "writeup.md", tmp_path / "out"
    writeup.write_bytes(START + b"an older table\r\n" + END)
    line = ["sweep", "part2", "--tile", "4,8", "-N", "64", "-H", "1", "--rounds", "3", "--seed", "1"]
    paths = ["--module", str(tmp_path), "--out", str(out), "--writeup", str(writeup)]
    # A write-up without the place is refused before anything is measured.
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
    lines = [line for line in regions.tables(text)["sweep-part2"].splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace(NOTHING, "") for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [line[:7] for line in cells] == [list(row.values())[:7] for row in found.values()]
