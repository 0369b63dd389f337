"""The ladder of the operators: its fast kernels, its limits, one study from end to end, and its part of a handout."""

import csv
import functools
import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, results_alone, write

from grader.assignment import labs
from grader.assignment.loading import load
from grader.backends.native.toolchain import ABSENT
from grader.backends.torch.labreference import PREBUILT
from grader.core import prebuilt
from grader.judge import correctness
from grader.staff.release import contents, search
from grader.study import facts
from labs.operators import LAB
from labs.operators.studies import fast, ladder, sources
from labs.operators.studies.ladder import FAST, PYTORCH, REFERENCE, YOURS, Ladder, Limit, Rung
from labs.operators.studies.sources import Work

FOLDER = labs.named("operators")
STAFF = labs.assignment_file(FOLDER, staff=True)
ASSIGNMENT = load(STAFF)
MASTER = labs.master(FOLDER, ASSIGNMENT.source)


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.full)], ids=["two", "every case"])
def test_the_fast_kernels_are_right(most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if most:
        monkeypatch.setattr(correctness, "MOST_REPEATS", most)  # races are looked for with every case
    parts = tuple(part for part in ASSIGNMENT.parts if not part.id.endswith("_threads"))
    assert all(any(case.hidden for case in part.cases) for part in parts)
    parts = tuple(replace(part, cases=part.cases[:most]) for part in parts)
    for part in results_alone(ASSIGNMENT, FOLDER / fast.SOURCE, parts).parts:
        assert part.verdict == "pass", f"{part.id}: {part.diagnosis}"


SIZES = {
    **ASSIGNMENT.defaults,
    "R": 5, "C": 7, "RB": 1, "CB": 7, "n": 23, "M": 5, "K": 7, "N": 3, "batch": 6, "I": 5, "O": 4, "classes": 5,
    "images": 2, "channels": 1, "height": 3, "width": 3, "filters": 2, "kernel": 3, "stride": 1, "pad": 1,
    "maps": 2, "planes": 3, "rows": 5, "columns": 4, "side": 2, "step": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "part, operations, read, written, in_place",
    [
        ("add", 35, 4 * (35 + 7), 4 * 35, False),
        ("add_backward", 70, 4 * (35 + 35 + 7), 4 * (35 + 7), True),
        ("mul_backward", 140, 4 * (35 + 35 + 7 + 35 + 7), 4 * (35 + 7), True),
        ("relu", 23, 4 * 23, 4 * 23, False),
        ("matmul", 2 * 105, 4 * (35 + 21), 4 * 15, False),
        ("matmul_backward", 4 * 105, 4 * (15 + 35 + 21 + 35 + 21), 4 * (35 + 21), True),
        ("linear_backward", 4 * 120 + 24, 4 * (24 + 30 + 20 + 30 + 20 + 4), 4 * (30 + 20 + 4), True),
        # 3 x 3 filters over 3 x 3 with a border of 1: along a side 2 + 3 + 2 numbers of the image are seen.
        ("conv2d", 2 * (2 * 2 * 49), 4 * (18 + 18 + 2), 4 * 36, False),
        ("conv2d_backward", 4 * (2 * 2 * 49) + 36, 4 * (36 + 18 + 18 + 18 + 18 + 2), 4 * (18 + 18 + 2), True),
        # 2 x 2 windows on each of 6 planes of 5 x 4; indices have eight bytes.
        ("maxpool2d", 24 * 3, 4 * 120, 4 * 24 + 8 * 24, False),
        ("maxpool2d_backward", 24, 4 * 24 + 8 * 24 + 4 * 120, 4 * 120, True),
        ("mse", 3 * 23, 8 * 23, 4, False),
        ("cross_entropy_backward", 6 * 30, 4 * 30 + 8 * 6 + 4 * 30, 4 * 30, True),
        ("sgd", 2 * 23, 8 * 23, 4 * 23, True),
    ],
)
def test_limits_by_hand(part: str, operations: int, read: int, written: int, in_place: bool) -> None:
    assert sources.work(ASSIGNMENT.part(part), SIZES) == Work(operations, read, written, in_place)


def test_every_part_has_a_limit() -> None:
    for part in ASSIGNMENT.parts:
        work = sources.work(part, ASSIGNMENT.defaults)
        assert work.operations > 0 and work.moved_bytes > 0
        assert work.operations >= LAB.oracle(part.oracle).flops(ASSIGNMENT.defaults)


def made_up(binds_ms: float) -> Ladder:
    """Four rounds with a peak at which the operations take 2 ms, and bytes that take `binds_ms`."""
    limit = Limit(Work(2_000_000, 8, 4), 1e9, (binds_ms,) * 4)
    hand_made = Rung(REFERENCE, (40.0, 44.0, 48.0, 52.0)), Rung(YOURS, (10.0, 11.0, 12.0, 13.0))
    without_torch = Rung(PYTORCH, trouble="not here: this Python has no torch")
    rungs = (*hand_made, without_torch, Rung(FAST, (5.0, 5.5, 6.0, 6.5)))
    return Ladder(ASSIGNMENT.part("matmul"), rungs, limit, "cpu", 1, "a machine")


def test_ratios_are_those_of_a_round_and_the_longer_limit_binds() -> None:
    rows = {row[0]: row for row in made_up(1.0).table().rows}
    assert rows[REFERENCE][4:7] == (4.0, 4.0, 4.0) and rows[FAST][4:7] == (0.5, 0.5, 0.5)
    assert rows[FAST][1:4] == (5.75, 5.375, 6.125)
    assert rows["limit: multiply-adds"][1] == 2.0
    assert rows[YOURS][7] == pytest.approx(100 * 2 / 11.5, rel=0.01)
    assert rows[PYTORCH][1:] == (*[None] * 7, "not here: this Python has no torch")
    assert "the operations bind" in made_up(1.0).caption()
    other = made_up(4.0)
    assert other.table().rows[-1][:2] == ("limit: a copy", 4.0) and "the bytes bind" in other.caption()


def run(out: Path, source: Path, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    sizes = ("-M", "24", "-K", "16", "-N", "40", "--rounds", "2")
    files = ("--out", str(out), "--module", str(source), "--config", str(STAFF))
    code = ladder.main(["matmul", *sizes, *files, *more])
    with (out / "ladder-matmul.csv").open() as file:
        return code, {row["kernel"]: row for row in csv.DictReader(file)}


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Avoid compiling torch's headers, which takes half a minute, and measuring the machine's speed twice."""
    monkeypatch.setattr(ladder, "torch_version", lambda: ABSENT)
    monkeypatch.setattr(facts, "measure", functools.cache(facts.measure))


@pytest.fixture
def one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the fast kernels for one instruction set: each needs a precompiled header of its own."""
    monkeypatch.setattr(fast, "LEVELS", dict([*fast.LEVELS.items()][:1]))


@pytest.mark.usefixtures("without_torch", "one_level")
def test_a_part_from_beginning_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writeup = write(tmp_path, (FOLDER / "writeup_template.md").read_text(), "writeup.md")
    code, rows = run(tmp_path, MASTER, "--writeup", str(writeup))
    assert code == 0 and list(rows)[:4] == [REFERENCE, YOURS, PYTORCH, FAST] and len(rows) == 5
    assert "no torch" in rows[PYTORCH]["note"] and not rows[PYTORCH]["ms"]
    for name in (REFERENCE, YOURS, FAST):
        assert float(rows[name]["ms q1"]) <= float(rows[name]["ms"]) <= float(rows[name]["ms q3"])
        assert float(rows[name]["time / yours"]) > 0
    assert float(rows[YOURS]["time / yours"]) == 1
    assert "bind" in capsys.readouterr().out and FAST in writeup.read_text()
    assert (tmp_path / "ladder-matmul.png").stat().st_size > 10_000


@pytest.mark.usefixtures("without_torch", "one_level")
def test_a_wrong_kernel_is_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, added, rest = MASTER.read_text().partition("o[i * N + j] += factor * b[k * N + j]")
    assert added and added not in rest
    wrong = write(tmp_path, right + added.replace("+=", "=") + rest, "operators.cpp")
    code, rows = run(tmp_path, wrong)
    assert code == 1 and not rows[YOURS]["ms"] and "wrong result" in rows[YOURS]["note"]
    assert float(rows[FAST]["ms"]) > 0 and not rows[FAST]["time / yours"]
    assert "was not measured" in capsys.readouterr().out


@pytest.mark.parametrize("levels", ["one", pytest.param("all", marks=pytest.mark.full)])
def test_a_handout_has_the_fast_kernels_compiled_and_not_their_text(
    levels: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if levels == "one":
        request.getfixturevalue("one_level")
    kit = contents.kit(ROOT, STAFF)
    assert FOLDER / fast.SOURCE in kit.reference_sources
    files = contents.handout(kit, {})
    search.refuse(files, kit)
    assert "labs/operators/studies/ladder.py" in files
    assert not any(b"packedB" in file.content for file in files.values())
    leaking = {**files, "docs/x.md": contents.File((FOLDER / fast.SOURCE).read_bytes())}
    assert search.leaks(leaking, search.secrets(kit))
    compiled = LAB.reference().compiled(tmp_path, {})
    kernels = fast.all_levels(FOLDER)[0]
    name = prebuilt.name(kernels.stem, platform.system(), platform.machine())
    assert f"labs/operators/prebuilt/{name}" in compiled
    # Where the source is not, the object is linked.
    (tmp_path / PREBUILT).mkdir()
    (tmp_path / name).rename(tmp_path / PREBUILT / name)
    _, _, level = kernels.stem.partition("_")
    assert fast.kernels(tmp_path, level).program().is_file()


def test_all_files_bind_what_the_assignment_asks_for() -> None:
    """The starter, the reference, the fast kernels and PyTorch's calls each hold their own table of bindings."""
    asked = {part.function for part in ASSIGNMENT.parts}
    compared = {part.reference for part in ASSIGNMENT.parts if part.reference}
    texts = {name: (FOLDER / name).read_text() for name in ("operators.cpp", "reference.cpp", fast.SOURCE)}
    for name, text in {**texts, "pytorch": sources.PYTORCH}.items():
        bound = re.findall(r'm\.def\("(\w+)", &(\w+)\);', text)
        assert all(called == function for called, function in bound), name
        wanted = compared if name == "reference.cpp" else asked
        assert {called for called, _ in bound} - {sources.NOTHING} == wanted, name
