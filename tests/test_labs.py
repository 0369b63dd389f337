"""Labs besides attention: a new lab, the lab of docs/lab-example.md, a lab with all kinds of shapes and outputs."""

import json
import re
import shutil
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from conftest import one_of_each, put, python, refused, results_alone, some, write

from grader.__main__ import parser
from grader.assignment import labs, mutations, records, regions
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation
from grader.core import pythontree
from grader.core.places import ROOT
from grader.core.results import PartResult
from grader.staff import newlab, selftest
from grader.staff.newlab import ends
from grader.staff.release import contents, making
from labs.operators import known as operators
from labs.softmax import kernels as softmax

MIXED = ROOT / "tests" / "labs"
STUDENT = (ROOT / "gpt149.py", "lab", "--labs", str(MIXED), "mixed")
NAMES = ("ta-guide.md", "appeals.md", "labs.md", "lab-example.md", "platforms.md", "gradebooks.md")
GUIDES = {name: (ROOT / "docs" / name).read_text() for name in NAMES}
#: Numbers of the results in docs/lab-example.md: master, starter, four wrong kernels, a slow one (ten seconds).
ENDINGS = some(range(7), 4)
KERNELS = {"softmax": softmax, "operators": operators}
BEGIN, END = "    // BEGIN SOLUTION\n", "    // END SOLUTION\n"
HEADERS = "#include <chrono>\n#include <cstdlib>\n#include <cstring>\n#include <thread>\n"


def run(*arguments: object, folder: Path = ROOT, accept: tuple[int, ...] = (0,)) -> str:
    ended = python(*arguments, folder=folder, timeout_s=300, PYTHONPATH=ROOT)
    assert ended.returncode in accept, f"{ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended.stdout + ended.stderr


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return newlab.write("vadd", tmp_path_factory.mktemp("labs"))


@pytest.mark.parametrize("ending", one_of_each(
    ends.all_of(MIXED / "mixed"), key=lambda end: (end.edit.part if end.edit else end.name, end.verdict), name=str
))  # fmt: skip
def test_a_lab_of_every_kind_is_judged(ending: ends.Ending, tmp_path: Path) -> None:
    assert ending.faults(tmp_path) == []


@pytest.mark.parametrize("folder", labs.folders(), ids=lambda folder: folder.name)
def test_a_handout_is_searched_for_lines_of_the_lab_s_known_kernels(folder: Path) -> None:
    known = {Path(labs.load(folder).kernels().__file__), *(folder / "known").glob("*.py")}
    assert known <= set(contents.kit(ROOT, labs.assignment_file(folder, staff=True)).staff_files)


#: This test takes over ten seconds. The fast tier runs the test of the lab in docs/lab-example.md instead.
@pytest.mark.full
def test_a_new_lab_passes_its_test_and_selftest(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", made / f"test_{made.name}.py")
    assert f"{len(ends.all_of(made))} passed" in said
    selftest.main(["--config", str(made / "hidden" / "assignment.yaml"), "--trust"])
    said = capsys.readouterr().out
    for group in ("right kernels pass", "wrong kernels are found: 5 of 5"):
        assert f"trusted      that {group}" in said
    assert "there are no threats to try" in said


@pytest.mark.parametrize("backend", some(["pytorch", "triton", "cuda"], 3))
def test_a_new_lab_for_a_gpu_has_a_starter_and_a_test_that_needs_no_gpu(backend: str, tmp_path: Path) -> None:
    """Without a GPU the results of Triton and PyTorch are judged; times and kernels in CUDA are unjudged."""
    lab = newlab.write("vgpu", tmp_path, backend)
    assignment = load(lab / "hidden" / "assignment.yaml")
    master = labs.master(lab, assignment.source)
    assert "YOUR CODE HERE" in regions.strip_solution(master.read_text()) and not assignment.warnings
    assert pythontree.members(master) == {}, "the master imports the lab's package"
    found = {ending.name: ending for ending in ends.all_of(lab)}
    assert any(ending.verdict == "slow" for ending in found.values()) == (backend != "pytorch")
    for name, ending in found.items():
        if ending.edit is not None:
            mutations.edited(master.read_text(), ending.edit)  # raises if the master lacks a text to replace
        if name in ("the starter is wrong", "add: subtracted"):
            assert ending.faults(tmp_path) == []
    fault = found["add: subtracted"]._fault(PartResult("add", "", "pass", 1.0))
    assert fault == "add is pass and must be wrong"
    shutil.rmtree(lab)  # Another lab at the same path is imported anew.
    other = ends.all_of(newlab.write("vgpu", tmp_path, "pytorch" if backend == "cuda" else "cuda"))
    assert [ending.edit for ending in other] != [ending.edit for ending in found.values()]


def test_an_unfit_or_used_lab_name_is_refused(made: Path) -> None:
    for name in ("Vadd", "v-add", "1st", "", made.name, "softmax"):
        refused(".", newlab.write, name, made.parent)


def test_labs_are_listed_and_found(made: Path) -> None:
    listed = run("gpt149.py", "lab", "--labs", made.parent)
    assert "attention" in listed and "vadd: Z = X + Y" in listed
    assert "vadd?" in run("gpt149.py", "lab", "--labs", made.parent, "vad", "all", accept=(2,))
    # A lab outside of the kit is found by the folder in which its assignment file lies.
    assert load(made / "hidden" / "assignment.yaml").lab_folder == made


def test_size_options_come_from_the_lab_and_an_unfit_line_is_refused(tmp_path: Path) -> None:
    whys = {"nothing": "choose softmax, moments", "frontier": "the lab mixed has no study 'frontier': choose"}
    whys |= {"": "needs a test: softmax, moments", "counts -N 64": "unrecognized arguments: -N"}
    for line, said in {**whys, "race nothing": "no part", "outer --pad 11": "from 0 to 10"}.items():
        assert said in run(*STUDENT, *line.split(), accept=(2,), folder=tmp_path), line
    text = run(*STUDENT, "--help")
    assert "-R" in text and "--pad" in text and "-N" not in text and "Q tile" not in text
    assert "PASS" in run(*STUDENT, "outer", "-R", "8", "-C", "9", "--pad", "0", "--no-table")


@pytest.mark.full
def test_general_studies_work_without_attention(tmp_path: Path) -> None:
    threads = ("threads", "softmax", "--threads", "1,2", "--rounds", "2")
    assert "speed-up" in run(*STUDENT, *threads, "--out", tmp_path)
    assert "moments" in run(*STUDENT, "race", "moments", "--out", tmp_path)


@pytest.mark.full
def test_a_class_can_be_graded_in_any_lab(tmp_path: Path) -> None:
    master = (MIXED / "mixed" / "mixed.cpp").read_text()
    wrong = master.replace("sum += std::exp", "sum = std::exp").replace("= sum / C", "= sum")
    put(tmp_path / "in", {"ada/mixed.cpp": master, "bob/mixed.cpp": wrong})
    chosen, out = ("--lab", "mixed", "--labs", MIXED), tmp_path / "out"
    run("-m", "grader", "run", tmp_path / "in", "--out", out, *chosen, "--no-time", "--trust")
    ada, bob = (json.loads(next(out.rglob(f"{name}/result.json")).read_text()) for name in ("ada", "bob"))
    assert ada["points"] == 35 and bob["points"] == 15
    assert {part["id"]: part["verdict"] for part in bob["parts"]}["moments"] == "wrong"
    assert "35" in run("-m", "grader", "show", out, "ada")
    run("-m", "grader", "report", out)
    run("-m", "grader", "similar", tmp_path / "in", "--source", "mixed.cpp", folder=tmp_path, accept=(0, 1))


def test_an_edited_oracle_makes_verdicts_out_of_date(tmp_path: Path) -> None:
    lab = newlab.write("edited", tmp_path)
    before = load(lab / "assignment.yaml").fingerprint
    idle = ("kernels.py", "test_edited.py", "handout.md")
    for name in (*idle, "oracle.py", "reference.cpp", "__init__.py"):
        text = (lab / name).read_text()
        (lab / name).write_text(text + "\n")
        assert (load(lab / "assignment.yaml").fingerprint == before) == (name in idle), name
        (lab / name).write_text(text)


@pytest.mark.full
def test_a_lab_is_released(made: Path, tmp_path: Path) -> None:
    """A release of a new lab has the right files. Making it judges starter and solution in both archives."""
    out = tmp_path / "out"
    making.release(contents.kit(ROOT, made / "hidden" / "assignment.yaml"), out, (), lambda line: None)
    names = set(zipfile.ZipFile(out / "handout.zip").namelist())
    assert {"vadd.cpp", "labs/vadd/__init__.py", "labs/vadd/oracle.py", "docs/handout.md"} <= names
    assert not [name for name in names if "kernels.py" in name or "attention" in name or "hidden" in name]
    assert not [name for name in names if name.endswith("reference.cpp") and "labs/" in name]
    assert [name for name in names if name.startswith("labs/vadd/prebuilt/libreference-")]
    graders = set(zipfile.ZipFile(out / "autograder.zip").namelist())
    assert {"labs/vadd/reference.cpp", "labs/vadd/kernels.py", "configs/hidden/gpt149.yaml"} <= graders


def test_an_assignment_without_its_lab_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, (MIXED / "mixed" / "assignment.yaml").read_text(), "assignment.yaml")
    refused(r"assignment.yaml:\d+: no lab is called 'mixed'", load, path)
    broken = put(tmp_path / "broken", {"__init__.py": "import nowhere_at_all\n"})
    refused("broken cannot be imported: ModuleNotFoundError", labs.load, broken)


def test_labs_of_one_name_live_in_one_process(made: Path, tmp_path: Path) -> None:
    """Load four labs together, two of each name: two versions of a new lab, and the kit's softmax lab and a copy."""
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


def test_absolute_imports_within_a_lab_are_refused(tmp_path: Path) -> None:
    statement = "from labs.mine.draws import f"
    inside = {statement: ".draws", "import labs.mine.draws": ".draws", "from labs.mine import draws": "."}
    wanted = [*(("oracle.py", *each) for each in inside.items()), ("suspects/a.py", statement, "..draws")]
    for k, (name, said, instead) in enumerate(wanted):
        mine = put(tmp_path / f"mine{k}" / "mine", {"__init__.py": "", name: f"import os\n{said}\n"})
        refused(f"{name}:2: .* 'from {instead} import", labs.load, mine)


@pytest.fixture(scope="session")
def guides_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `grader new rows`, then write each file as docs/lab-example.md says. Return the lab's folder."""
    made = newlab.write("rows", tmp_path_factory.mktemp("labs"))
    blocks = re.compile(r"^```\w+ ([\w./]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    found = dict(blocks.findall(GUIDES["lab-example.md"]))
    line = found.pop("__init__.py").strip()
    package = (made / "__init__.py").read_text()
    (made / "__init__.py").write_text(re.sub(r"oracles: ClassVar = .*", line, package))
    for name, text in found.items():
        assert (made / name).is_file(), name
        (made / name).write_text(text)
    (made / "reference.cpp").write_text(re.sub(r" *// (BEGIN|END) .*\n", "", found["rows.cpp"]))
    return made


def test_the_guides_lab_can_be_released(guides_lab: Path) -> None:
    kit = contents.kit(ROOT, guides_lab / "hidden" / "assignment.yaml")
    making.refuse_unnamed(kit)
    lesser = replace(kit, assignment=replace(kit.assignment, parts=kit.assignment.parts[:1]))
    refused("students could see 'safeSoftmax' .*, but no part of", making.refuse_unnamed, lesser)
    handout = contents.handout(kit, {})
    assert not [name for name in ("Makefile", "README.md") if b"writeup" in handout[name].content]


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


@dataclass(frozen=True)
class Attempt:
    lab: str
    made: Mutation
    ends: str = "wrong"  # the required verdict, or several accepted verdicts with | between them
    code: str = ""  # the required diagnosis code; "" allows any


def attempt(lab: str, name: str, part: str, text: str, *words: str, old: str = END, **more: str) -> Attempt:
    """Return an attempt to cheat in a part. `words` and `more` are the Attempt's fields `ends` and `code`."""
    # `text` is put at the end of the solution, at its beginning (old=BEGIN), or in place of the text `old`.
    new = {BEGIN: f"{BEGIN}{text}\n", END: f"{text}\n{END}"}.get(old, text)
    return Attempt(lab, Mutation(name, part, ((old, new),)), *words, **more)


first = partial(attempt, old=BEGIN)
overwritten = partial(attempt, code="inputs_overwritten")

#: Code of a cheat: it returns the first result that was stored for the address {at} and has the size of {out}.
KEPT = """
    static std::vector<std::pair<const void *, torch::Tensor>> seen;
    for (auto &[at, made] : seen) if (at == {at} && made.numel() == {out}.numel()) return made;
    seen.emplace_back({at}, {out});
"""
LATER = """
    if (M != 7) {
        std::thread([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            const float *x = A.data_ptr<float>(), *y = B.data_ptr<float>();
            for (int e = 0; e < M * N; e++)
                for (int k = 0; k < K; k++) O.data_ptr<float>()[e] += x[e / N * K + k] * y[k * N + e % N];
        }).detach();
        return O;
    }
"""

ATTEMPTS = (
    first("operators", "a thread that goes on", "matmul", LATER, "wrong|rejected"),
    first("operators", "all but one size", "linear", "if (N == 60000) return Y;"),
    first("operators", "no hidden sizes", "matmul", "if (M == 13 || M == 3 || M == 2) return O;"),
    first("operators", "no hidden lengths", "mse", "if (n == 211 || n == 7) return loss;"),
    overwritten("operators", "an input halved", "relu", "const_cast<float *>(x)[0] *= 0.5f;"),
    overwritten("operators", "the upstream gradient cleared", "mul_backward",
        "std::fill(dO.data_ptr<float>(), dO.data_ptr<float>() + R * C, 0.0f);"),
    overwritten("operators", "labels changed", "cross_entropy", "labels.data_ptr<int64_t>()[0] = 0;"),
    overwritten("operators", "indices changed", "maxpool2d_backward",
        "index.data_ptr<int64_t>()[N * C * OH * OW - 1] ^= 1;"),
    overwritten("operators", "the gradient changed by the step", "sgd", "G.data_ptr<float>()[n - 1] = 0;"),
    overwritten("operators", "an input in place of a result", "relu",
        "std::copy(o, o + n, const_cast<float *>(x)); return X;"),
    attempt("operators", "float64", "relu", "return O.to(at::kDouble);", "wrong", "wrong_dtype"),
    attempt("operators", "another shape", "matmul", "return O.reshape({N, M});"),
    attempt("operators", "a step of another shape", "add", "return O.reshape({R * C});", "wrong", "wrong_shape"),
    attempt("operators", "no number", "matmul", "o[0] = NAN;"),
    attempt("operators", "infinite", "matmul_backward", "gb[0] = INFINITY;"),
    attempt("operators", "eight bits", "matmul", old="const float factor = a[i * K + k];",
        text="float factor = a[i * K + k]; int32_t bits; std::memcpy(&bits, &factor, 4); bits &= 0xffff0000;\n"
            "            std::memcpy(&factor, &bits, 4);"),
    first("operators", "the end of the process", "mse_backward", "std::exit(0);", "crash"),
    first("operators", "an exception of its own", "sgd", "throw 1;", "crash"),
    attempt("operators", "far outside", "relu_backward", "gx[1 << 28] = 1;", "crash"),
    attempt("operators", "a little outside", "add", "for (int e = 1; e < 64; e++) o[R * C + e] = 1;", "crash"),
    first("softmax", "by pointer", "safe", KEPT.format(at="XTensor.data_ptr<float>()", out="OTensor")),
    first("softmax", "some sizes alone", "online", "if (C > 1000) return OTensor;"),
    overwritten("softmax", "an input changed", "naive", "const_cast<float *>(X)[0] = 0;"),
    overwritten("softmax", "a maximum changed", "merge", "m1Tensor.data_ptr<float>()[R - 1] = 1;"),
    attempt("softmax", "sums exchanged afterwards", "merge", "std::swap_ranges(l, l + R, l2Tensor.data_ptr<float>());"),
    attempt("softmax", "float64", "naive", "return OTensor.to(at::kDouble);", "wrong", "wrong_dtype"),
    attempt("softmax", "no number in a masked place", "online", "O[0] = NAN;"),
    first("softmax", "the end of the process", "safe", "std::_Exit(0);", "crash"),
    attempt("softmax", "outside", "merge", "for (int e = 0; e < 64; e++) o[R * d + 1 + e] = 1;", "crash"),
)  # fmt: skip


def course(lab: str) -> tuple[records.Assignment, str]:
    place = labs.named(lab)
    assignment = load(labs.assignment_file(place, staff=True))
    master = labs.master(place, assignment.source).read_text(encoding="utf-8")
    return assignment, master.replace("#include <vector>\n", f"{HEADERS}#include <vector>\n", 1)


def judged(lab: str, made: Sequence[Mutation], folder: Path, timing: bool = False) -> tuple[PartResult, ...]:
    """Judge kernels in one file, each in its own function. `timing`: True to time them, too."""
    assignment, master = course(lab)
    text, parts = mutations.in_one_file(KERNELS[lab], assignment, master, made)
    return results_alone(assignment, write(folder, text, assignment.source), parts, timing=timing).parts


@pytest.mark.parametrize("lab", some(KERNELS, 2))
def test_cheating_attempts_end_as_listed(lab: str, tmp_path: Path) -> None:
    tried = [each for each in ATTEMPTS if each.lab == lab]
    for each, result in zip(tried, judged(lab, [each.made for each in tried], tmp_path), strict=True):
        shown = f"{each.made.name}: {result.verdict} {result.diagnosis}"
        assert result.verdict in each.ends.split("|"), shown
        assert not each.code or (result.diagnosis and result.diagnosis.code == each.code), shown


@pytest.mark.full
@pytest.mark.parametrize("lab, part, out", [("softmax", "online", "OTensor"), ("operators", "matmul", "O")])
def test_a_stored_result_is_wrong_in_a_timed_call(lab: str, part: str, out: str, tmp_path: Path) -> None:
    """A kernel returns an earlier result for the same size. It is wrong, because timed calls get new inputs."""
    kept = first(lab, "by size", part, KEPT.format(at="nullptr", out=out))
    (result,) = judged(lab, [kept.made], tmp_path, timing=True)
    assert result.verdict == "wrong", result


def test_torchs_own_work_is_refused(tmp_path: Path) -> None:
    works = {"operators matmul": "return at::matmul(A, B);", "softmax safe": "return XTensor.softmax(1);"}
    works["operators conv2d_backward"] = "dX.add_(at::conv_transpose2d(dY, W));"
    for place, text in works.items():
        lab, part = place.split()
        (result,) = judged(lab, [first(lab, "torch", part, text).made], tmp_path)
        assert result.verdict == "compile_error" and "torch's own work" in result.diagnosis.message, place


@pytest.mark.full
def test_a_broken_forward_function_only_removes_its_sentence(tmp_path: Path) -> None:
    assignment, text = course("operators")
    assignment = replace(assignment, limits=replace(assignment.limits, call_s=1.0))
    broken = {
        "mul": ("for (volatile int idle = 0;; idle = 1) {}", "ga[at]"),
        "linear": ("std::exit(0);", "gb[o]"),
        "relu": ("std::fill(O.data_ptr<float>(), O.data_ptr<float>() + n, NAN); return O;", "gx[i]"),
        "matmul": ("return at::zeros({1}, at::kFloat);", "ga[i * K + k]"),
    }
    for name, (body, sum_of) in broken.items():
        text = mutations.edited(text, first("operators", "broken", name, body).made, operators)
        sign = (f"{sum_of} +=", f"{sum_of} -=")
        text = mutations.edited(text, Mutation("subtracted", f"{name}_backward", (sign,)), operators)
    chosen = [assignment.part(f"{name}_backward") for name in broken]
    for result in results_alone(assignment, write(tmp_path, text, assignment.source), chosen).parts:
        assert (result.verdict, result.diagnosis.code) == ("wrong", "gradient_negated"), result
