"""The house's rules, read from the sources: who imports whom, what stands alone, and how fast --help is."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grader.base import imports
from grader.base.imports import Import
from grader.staff.release import rooms

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def graph() -> list[Import]:
    return imports.graph(ROOT)


def test_every_import_of_ours_is_there(graph: list[Import]) -> None:
    known = imports.modules(ROOT)
    assert len(graph) > 300 and len(known) > 100
    assert not [each for each in graph if each.imported not in known]


def test_data_goes_down_the_list_of_rooms_and_never_up(graph: list[Import]) -> None:
    assert all(rooms.room_of(name) for name in imports.modules(ROOT) if name != "grader")
    assert not [f"{each.importer}:{each.line} imports {each.imported}" for each in rooms.upward(graph)]
    with pytest.raises(KeyError, match="lies in no room"):
        rooms.room_of("grader.attic")


def test_an_import_upward_is_found() -> None:
    up = Import("grader.score", "grader.report.html", 3, late=True, typing=False)
    down = Import("grader.report.html", "grader.score", 3, late=False, typing=False)
    for_types = Import("grader.score", "grader.report.html", 3, late=False, typing=True)
    assert rooms.upward([up, down, for_types]) == [up]
    assert rooms.room_of("grader.staff.similarity.similar_html") == "staff"


def test_no_module_imports_itself_by_way_of_others(graph: list[Import]) -> None:
    assert imports.circle(graph) == set()

    def edges(text: str) -> list[Import]:
        return [Import(*pair.split(">"), 1, late=True, typing=False) for pair in text.split()]

    assert imports.circle(edges("a>b b>c c>b c>d a>d")) == {"b", "c"}
    assert imports.circle(edges("a>b b>c p.m>p p>q")) == set()


def test_the_picture_shows_what_the_sources_say(graph: list[Import]) -> None:
    """`python -m grader.staff.release.rooms` draws it anew."""
    drawn = (ROOT / rooms.PICTURE).read_text()
    assert drawn == rooms.picture(graph)
    assert "rooms.svg" in (ROOT / "docs" / "design.md").read_text()
    assert rooms.picture([]) != drawn


def test_the_untrusted_side_imports_nothing_of_the_kit(graph: list[Import]) -> None:
    """What is called when student code is already there: the interpreter beside it sees no other file of ours."""
    assert not [each for each in graph if each.importer in rooms.ALONE]


def test_nobody_in_the_kit_imports_the_tests() -> None:
    names = {path.stem for path in (ROOT / "tests").glob("*.py")} | {"tests"}
    for path in imports.modules(ROOT).values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.partition(".")[0] not in names, path


def test_reading_imports_knows_late_ones_and_types(tmp_path: Path) -> None:
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "__init__.py").write_text("")
    (tmp_path / "grader" / "a.py").write_text(
        "from typing import TYPE_CHECKING\nfrom grader import b\nimport torch, os\n"
        "if TYPE_CHECKING:\n    from grader.gone import T\ndef f():\n    from grader.lost import g\n"
    )
    (tmp_path / "grader" / "b.py").write_text("")
    found = [(each.imported, each.late, each.typing) for each in imports.graph(tmp_path)]
    assert found == [
        ("grader", False, False),
        ("grader.b", False, False),
        ("grader.gone", False, True),
        ("grader.lost", True, False),
    ]
    assert [each.imported for each in imports.missing(tmp_path, ["grader.a"])] == ["grader.lost"]
    assert imports.third_party(tmp_path, ["grader.a"]) == {"torch"}
    assert imports.closure(tmp_path, ["grader.a"]) == {"grader.a", "grader.b", "grader"}


def test_imports_are_read_wherever_a_statement_may_stand(tmp_path: Path) -> None:
    (tmp_path / "grader").mkdir()
    text = """
class A:
    import grader.a
    async def f(self):
        with x: import grader.b
try: import grader.c
except E: import grader.d
else: import grader.e
finally: import grader.f
for x in y: import grader.g
else: import grader.h
while x: import grader.i
match x:
    case 1: import grader.j
if x: pass
elif y: import grader.k
"""
    (tmp_path / "grader" / "m.py").write_text(text)
    found = list(imports.imports("grader.m", tmp_path / "grader" / "m.py", {}))
    assert [each.imported[-1] for each in found] == list("abcdefghijk")
    assert [each.imported[-1] for each in found if each.late] == ["b"]


def cpu_s(*command: str) -> float:
    """CPU seconds of a process of Python's and all that it starts: a busy neighbour hardly moves them."""
    program = (
        "import os, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
    )
    program += "t = os.times(); print(t.children_user + t.children_system)"
    ended = subprocess.run(
        [sys.executable, "-c", program, sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ended.stdout)


def test_help_needs_no_torch() -> None:
    """Each --help takes under 0.3 of `import torch`, which is measured between the two."""
    students_s = cpu_s("gpt149.py", "--help")
    torch_s = cpu_s("-c", "import torch")
    staffs_s = cpu_s("-m", "grader", "--help")
    assert max(students_s, staffs_s) < 0.3 * torch_s, (students_s, torch_s, staffs_s)


def test_the_rooms_of_the_design_are_those_of_the_rules() -> None:
    """The table of docs/design.md has a row for each room of `grader/`, in order; the folder has at most 14 entries."""
    text = (
        (ROOT / "docs" / "design.md")
        .read_text()
        .partition("## Which room knows what")[2]
        .partition("\n## ")[0]
    )
    told = re.findall(r"^\| `(\w+)/?` \|", text, re.MULTILINE)
    entries = {path.name for path in (ROOT / "grader").iterdir() if path.name != "__pycache__"}
    assert told == [room for room in rooms.ORDER if {room, f"{room}.py"} & entries]
    assert {name.removesuffix(".py") for name in entries} == {*told, "__init__", "__main__"} and len(
        entries
    ) <= 14


def test_no_file_is_longer_than_a_reader_holds_in_mind() -> None:
    """400 lines at the most: a longer one has parts that want names of their own."""
    kinds = {".py", ".cpp", ".h"}
    files = [path for path in (ROOT / "grader").rglob("*") if path.suffix in kinds and path.is_file()]
    lines = {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in files}
    assert len(lines) > 200
    assert not {name: count for name, count in lines.items() if count > 400}


def test_every_room_says_what_it_knows(graph: list[Import]) -> None:
    for name, path in imports.modules(ROOT).items():
        if path.name == "__init__.py" and path.parent.name != "textgen":
            assert ast.get_docstring(ast.parse(path.read_text())), name
