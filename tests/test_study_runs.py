"""One sweep from the command line to its files: a wrong tile is told, right ones are timed, the write-up is filled."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from conftest import insert_at_start

import gpt149
from grader.study import table
from grader.study.writeup import regions

WRONG_AT_4 = "if (TILE_SIZE == 4) return at::zeros({B, H, N, d}, at::kFloat);"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, master: str) -> tuple[Path, int]:
    """A folder with the results of a sweep whose tile of 4 is wrong, and the exit code."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "module.cpp").write_text(insert_at_start(master, "myUnfusedAttentionBlocked", WRONG_AT_4))
    (folder / "writeup.md").write_text("Mine.\n<!-- table: sweep-part2 -->\n<!-- end -->\nStill mine.\n")
    line = ["sweep", "part2", "--tile", "4,8", "-N", "64", "-H", "1", "--rounds", "3", "--seed", "1"]
    files = ["--module", str(folder), "--out", str(folder / "out"), "--writeup", str(folder / "writeup.md")]
    return folder, gpt149.run([*line, *files])


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "out" / "sweep-part2.csv", newline="") as file:
        return {row["TILE_SIZE"]: row for row in csv.DictReader(file)}


def test_a_wrong_tile_is_told_and_not_timed(swept: tuple[Path, int]) -> None:
    folder, code = swept
    found = rows(folder)
    assert code == 1
    assert found["4"]["ms"] == ""
    assert found["4"]["note"].startswith("wrong result")
    assert float(found["8"]["ms from"]) <= float(found["8"]["ms"]) <= float(found["8"]["ms to"])
    assert float(found["reference"]["to reference"]) == 1.0


def test_the_write_up_holds_the_numbers_of_the_csv(swept: tuple[Path, int]) -> None:
    folder, _ = swept
    text = (folder / "writeup.md").read_text()
    lines = [line for line in regions.tables(text)["sweep-part2"].splitlines() if line.startswith("|")]
    cells = [
        [cell.strip().replace(table.NOTHING, "") for cell in line.strip("|").split("|")] for line in lines
    ]
    by_name = {line[0]: line for line in cells[2:]}
    for name, row in rows(folder).items():
        assert by_name[name][:7] == list(row.values())[:7]
    assert text.startswith("Mine.\n")
    assert text.endswith("Still mine.\n")


def test_the_picture_is_there(swept: tuple[Path, int]) -> None:
    folder, _ = swept
    assert (folder / "out" / "sweep-part2.png").stat().st_size > 10_000
