"""Labs besides the main one: a new one, that of docs/labs.md, one with shapes and outputs of every kind."""

import json
import re
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import python, refused, write, write_files

from grader.__main__ import parser
from grader.assignment import labs, mutations
from grader.assignment.loading import load
from grader.assignment.regions import strip_solution
from grader.core import pythontree
from grader.core.places import ROOT
from grader.core.results import PartResult
from grader.staff import newlab, selftest
from grader.staff.newlab import ends
from grader.staff.newlab.ends import Ending
from grader.staff.release import contents, making, products

MIXED = ROOT / "tests" / "labs"
STUDENT = (ROOT / "gpt149.py", "lab", "--labs", str(MIXED), "mixed")


def run(*arguments: object, folder: Path = ROOT, accept: tuple[int, ...] = (0,)) -> str:
    ended = python(*arguments, folder=folder, timeout_s=300, PYTHONPATH=ROOT)
    assert ended.returncode in accept, f"{ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended.stdout + ended.stderr


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return newlab.write("vadd", tmp_path_factory.mktemp("labs"))


@pytest.mark.parametrize("ending", ends.all_of(MIXED / "mixed"), ids=str)
def test_a_lab_of_every_kind_is_judged(ending: Ending, tmp_path: Path) -> None:
    assert ending.faults(tmp_path) == []


#: What the lab's own test takes over ten seconds for is shown in the fast tier by the guide's lab.
@pytest.mark.full
def test_a_new_lab_holds_a_test_and_tries_its_kernels(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", made / f"test_{made.name}.py")
    assert f"{len(ends.all_of(made))} passed" in said
    selftest.main(["--config", str(made / "hidden" / "assignment.yaml"), "--trust"])
    said = capsys.readouterr().out
    assert "trusted      that right work passes" in said
    assert "trusted      that wrong work is found: 5 of 5" in said and "there are no threats to try" in said


@pytest.mark.parametrize(("backend", "slow"), [("triton", True), ("cuda", True), ("pytorch", False)])
def test_a_new_lab_for_a_gpu_has_a_starter_and_a_test_that_needs_no_gpu(
    backend: str, slow: bool, tmp_path: Path
) -> None:
    """Without a GPU Triton's results and PyTorch's are judged, a time or a kernel in CUDA is unjudged."""
    lab = newlab.write("vgpu", tmp_path, backend)
    assignment = load(lab / "hidden" / "assignment.yaml")
    master = labs.master(lab, assignment.source)
    assert "YOUR CODE HERE" in strip_solution(master.read_text()) and not assignment.warnings
    assert pythontree.members(master) == {}, "the lab's package is no part of the master"
    found = {ending.name: ending for ending in ends.all_of(lab)}
    assert any(ending.verdict == "slow" for ending in found.values()) == slow
    for name, ending in found.items():
        if ending.edit is not None:
            mutations.edited(master.read_text(), ending.edit)  # raises where a text does not occur
        if name in ("the starter is wrong", "add: subtracted"):
            assert ending.faults(tmp_path) == []
    assert (
        found["add: subtracted"]._fault(PartResult("add", "", "pass", 1.0)) == "add is pass and must be wrong"
    )


def test_a_new_lab_has_a_name_of_its_own(made: Path) -> None:
    for name in ("Vadd", "v-add", "1st", "", made.name, "softmax"):
        refused(".", newlab.write, name, made.parent)


def test_labs_are_listed_and_found(made: Path) -> None:
    listed = run("gpt149.py", "lab", "--labs", made.parent)
    assert "attention" in listed and "vadd: Z = X + Y" in listed
    assert "vadd?" in run("gpt149.py", "lab", "--labs", made.parent, "vad", "all", accept=(2,))
    # One that a file lies in, though the kit has none of that name.
    assert load(made / "hidden" / "assignment.yaml").lab_folder == made


@pytest.mark.parametrize(
    "line, said",
    [
        ("nothing", "choose softmax, moments"),
        ("frontier", "the lab mixed has no study 'frontier': choose"),
        ("", "needs a test: softmax, moments"),
        ("race nothing", "no part"),
        ("counts -N 64", "unrecognized arguments: -N"),
        ("outer --pad 11", "from 0 to 10"),
    ],
)
def test_an_unfit_line_is_refused(line: str, said: str, tmp_path: Path) -> None:
    assert said in run(*STUDENT, *line.split(), accept=(2,), folder=tmp_path)


def test_sizes_are_the_labs_own() -> None:
    text = run(*STUDENT, "--help")
    assert "-R" in text and "--pad" in text and "-N" not in text and "Q tile" not in text
    assert "PASS" in run(*STUDENT, "outer", "-R", "8", "-C", "9", "--pad", "0", "--no-table")


@pytest.mark.full
def test_studies_know_no_attention(tmp_path: Path) -> None:
    threads = ("threads", "softmax", "--threads", "1,2", "--rounds", "2")
    assert "speed-up" in run(*STUDENT, *threads, "--out", tmp_path)
    assert "moments" in run(*STUDENT, "race", "moments", "--out", tmp_path)


def test_a_class_of_another_lab(tmp_path: Path) -> None:
    """run, show, report and similar: one file with two wrong parts of five, by names of the lab's."""
    master = (MIXED / "mixed" / "mixed.cpp").read_text()
    wrong = master.replace("sum += std::exp", "sum = std::exp").replace("= sum / C", "= sum")
    write_files(tmp_path / "in", {"ada/mixed.cpp": master, "bob/mixed.cpp": wrong})
    chosen, out = ("--lab", "mixed", "--labs", MIXED), tmp_path / "out"
    run("-m", "grader", "run", tmp_path / "in", "--out", out, *chosen, "--no-time", "--trust")
    ada, bob = (json.loads(next(out.rglob(f"{name}/result.json")).read_text()) for name in ("ada", "bob"))
    assert ada["points"] == 35 and bob["points"] == 15
    assert {part["id"]: part["verdict"] for part in bob["parts"]}["moments"] == "wrong"
    assert "35" in run("-m", "grader", "show", out, "ada")
    run("-m", "grader", "report", out)
    run("-m", "grader", "similar", tmp_path / "in", "--source", "mixed.cpp", folder=tmp_path, accept=(0, 1))


def test_an_edited_oracle_makes_verdicts_out_of_date(tmp_path: Path) -> None:
    """A lab outside of the kit counts as its assignment does; its known kernels and its tests decide nothing."""
    lab = newlab.write("edited", tmp_path)
    before = load(lab / "assignment.yaml").fingerprint
    idle = ("kernels.py", "test_edited.py", "handout.md")
    for name in (*idle, "oracle.py", "reference.cpp", "__init__.py"):
        text = (lab / name).read_text()
        (lab / name).write_text(text + "\n")
        assert (load(lab / "assignment.yaml").fingerprint == before) == (name in idle), name
        (lab / name).write_text(text)


@pytest.mark.parametrize(
    "is_proved", [False, pytest.param(True, marks=pytest.mark.full)], ids=["unproved", "proved"]
)
def test_a_release_holds_the_lab_and_none_of_the_staffs(
    is_proved: bool, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole release is proved in the full tier alone: the starter and the solution are judged in both archives."""
    if not is_proved:
        product = replace(products.PRODUCTS["gradescope"], prove=lambda *_: None)
        monkeypatch.setitem(products.PRODUCTS, "gradescope", product)
    kit = contents.kit(ROOT, made / "hidden" / "assignment.yaml")
    out = tmp_path / "out"
    making.release(kit, out, (), lambda line: None)
    names = set(zipfile.ZipFile(out / "handout.zip").namelist())
    assert {"vadd.cpp", "labs/vadd/__init__.py", "labs/vadd/oracle.py", "docs/handout.md"} <= names
    assert not [name for name in names if "kernels.py" in name or "attention" in name or "hidden" in name]
    assert not [name for name in names if name.endswith("reference.cpp") and "labs/" in name]
    assert [name for name in names if name.startswith("labs/vadd/prebuilt/libreference-")]
    graders = set(zipfile.ZipFile(out / "autograder.zip").namelist())
    assert {"labs/vadd/reference.cpp", "labs/vadd/kernels.py", "configs/hidden/gpt149.yaml"} <= graders


def test_an_assignment_without_its_lab_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, (MIXED / "mixed" / "assignment.yaml").read_text(), "assignment.yaml")
    refused(r"assignment.yaml:\d+: no lab 'mixed'", load, path)
    broken = write_files(tmp_path / "broken", {"__init__.py": "import nowhere_at_all\n"})
    refused("broken cannot be imported: ModuleNotFoundError", labs.load, broken)


def test_labs_of_one_name_live_in_one_process(made: Path, tmp_path: Path) -> None:
    """Last year's copy beside this year's, and a copy of one of the kit's: none shares a module with another."""
    again = newlab.write("vadd", tmp_path / "again")
    edited = again / "oracle.py"
    edited.write_text(edited.read_text() + "\nLATER = True\n")
    copied = shutil.copytree(ROOT / "labs" / "softmax", tmp_path / "softmax")
    used = [labs.load(folder) for folder in (made, again, ROOT / "labs" / "softmax", copied)]
    oracles = [type(lab.oracle(next(iter(lab.oracles)))).__module__ for lab in used]
    assert len(set(oracles)) == 4
    assert [hasattr(sys.modules[name], "LATER") for name in oracles] == [False, True, False, False]
    assert [lab.folder for lab in used] == [made, again, ROOT / "labs" / "softmax", copied]
    assert labs.load(copied) is used[3]


@pytest.mark.parametrize(
    ("name", "statement", "instead"),
    [
        ("oracle.py", "from labs.mine.draws import f", "'from .draws import"),
        ("suspects/a.py", "from labs.mine.draws import f", "'from ..draws import"),
        ("oracle.py", "import labs.mine.draws", "'from .draws import"),
        ("oracle.py", "from labs.mine import draws", "'from . import"),
    ],
)
def test_a_lab_names_itself_relatively(name: str, statement: str, instead: str, tmp_path: Path) -> None:
    mine = write_files(tmp_path / "mine", {"__init__.py": "LAB = None\n", name: f"import os\n{statement}\n"})
    refused(f"{name}:2: .* {instead}", labs.load, mine)


GUIDES = {name: (ROOT / "docs" / name).read_text() for name in ("ta-guide.md", "labs.md", "platforms.md")}


@pytest.fixture(scope="session")
def guides_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`grader new rows`, then each file as the guide says; nothing of the engine is touched."""
    made = newlab.write("rows", tmp_path_factory.mktemp("labs"))
    found = dict(re.findall(r"^```\w+ ([\w./]+)\n(.*?)^```$", GUIDES["labs.md"], re.DOTALL | re.MULTILINE))
    line = found.pop("__init__.py").strip()
    package = (made / "__init__.py").read_text()
    (made / "__init__.py").write_text(re.sub(r"oracles: ClassVar = .*", line, package))
    for name, text in found.items():
        assert (made / name).is_file(), name
        (made / name).write_text(text)
    (made / "reference.cpp").write_text(re.sub(r" *// (BEGIN|END) .*\n", "", found["rows.cpp"]))
    return made


#: The master, the starter, four wrong kernels, a slow one: its time takes ten seconds.
ENDINGS = [*range(6), pytest.param(6, marks=pytest.mark.full)]


@pytest.mark.parametrize("number", ENDINGS)
def test_the_guides_lab_passes_and_names_its_mistakes(number: int, guides_lab: Path, tmp_path: Path) -> None:
    endings = ends.all_of(guides_lab)
    assert len(endings) == len(ENDINGS)
    assert endings[number].faults(tmp_path) == [], endings[number]


@pytest.mark.parametrize("name", GUIDES)
def test_every_file_and_command_that_a_guide_names_is_there(name: str) -> None:
    guide, known = GUIDES[name], parser().format_help()
    for command in re.findall(r"python -m grader (\w+)", guide):
        assert f"    {command}" in known, command
    folders = "configs|docs|grader|tests|module_ref_stub|labs/attention"
    for path in re.findall(rf"\b(?:{folders})/[\w/.-]+\w", guide):
        assert (ROOT / path).exists(), path
    headings = re.findall("^## (.*)", guide, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {*re.findall(r"\]\(#([\w-]+)\)", guide)} <= anchors
