"""Releases of an assignment that is handed in as several files: GELU of the kit's lab for GPUs, in Triton and CUDA."""

import importlib
import json
import re
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from conftest import ROOT, python, refused, write_files
from releases import Release, proof_setup
from without_card import interpreted

from grader.assignment import labs
from grader.assignment.loading import load
from grader.backends.gpu import devicebuild
from grader.backends.gpu.card import finding
from grader.core.errors import EXIT_KIT, KitError
from grader.core.places import PUBLIC_CONFIG
from grader.doctor import Host, students, tools
from grader.judge.bench import Options
from grader.report import github, gradescope
from grader.staff.release import contents, making, products, proofs, search
from grader.staff.release.contents import File, packed, unpack
from grader.study.watching import loop
from grader.submission import companions_of, find

GPU_LAB = ROOT / "labs" / "gpu"
PYTHON, CUDA = ((GPU_LAB / name).read_text() for name in ("kernels.py", "kernels.cu"))


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Write the assignment with its first two parts, and the first case of each list."""
    names = ("assignment.yaml", "hidden/assignment.yaml")
    texts = {name: (GPU_LAB / name).read_text().partition("  - id: softmax\n")[0] for name in names}
    later_cases = re.compile(r"(\n      - {name:.*)(\n      - {name:.*)+")
    files = {name: later_cases.sub(r"\1", text) for name, text in texts.items()}
    return Release(write_files(tmp_path_factory.mktemp("assignment"), files) / "hidden" / "assignment.yaml")


def test_an_assignment_names_its_files_of_which_a_class_may_hand_in_one(two: Release, tmp_path: Path) -> None:
    assert two.kit.assignment.sources == ("kernels.py", "kernels.cu")
    assert two.kit.assignment.beside("mine.py") == ("mine.cu",)
    assert load(PUBLIC_CONFIG).sources == ("module.cpp",)
    for name, others in {"scale.py": ("scale.cu",), "scale.cu": ("scale.py",), "scale.cpp": ()}.items():
        assert companions_of(name) == ("module.ispc", *others)
    handed_in = {"ada": ("scale.py", "scale.cu", "notes.txt"), "bob": ("scale.py",)}
    for name, files in handed_in.items():
        write_files(tmp_path / "in" / name, dict.fromkeys(files, "x = 1\n"))
    found = {one.id: one.path for one in find(tmp_path / "in", "scale.py", tmp_path / "out")}
    for name, files in handed_in.items():
        assert {path.name for path in found[name].iterdir()} == {*files} - {"notes.txt"}


def test_a_handout_has_both_starters_and_what_a_gpu_needs(two: Release) -> None:
    cuda, python = (two.handout[name].content.decode() for name in ("kernels.cu", "kernels.py"))
    assert "    return 0;  // not written yet\n" in cuda and 'extern "C" int gelu(' in cuda
    assert '    raise NotImplementedError("gelu is not written yet")\n' in python
    for text in (cuda, python):
        assert not re.search("SOLUTION|STARTER|gelu_kernel|_gelu", text), text
    kept = re.compile(r"labs/.*(reference|tuned|kernels|known)\b|hidden|staff|submission")
    assert not [path for path in two.handout if kept.search(path)]
    texts = {path: file.content.decode(errors="replace") for path, file in two.handout.items()}
    assert "All your code goes into `kernels.py` and `kernels.cu`." in texts["README.md"]
    assert not [each for each in ("{", "--sanitize", "C++") if each in texts["README.md"]]
    assert "judges kernels.py and kernels.cu." in texts["Makefile"]
    assert devicebuild.TRITON_PACKAGE in texts["requirements.txt"]
    tasks = re.sub(r"^ *//.*$", "", texts[contents.EDITOR_TASKS], flags=re.MULTILINE)
    assert [task["label"] for task in json.loads(tasks)["tasks"]] == ["judge", "watch"]
    assert {"grader/backends/gpu/card/kernels.ptx", "grader/backends/gpu/card/kernels.cu"} <= {*texts}
    assert "grader/backends/gpu/card/kernels.ptx" in two.autograder


REGION = "// BEGIN SOLUTION\nx\n// END SOLUTION\n"
NO_REGIONS = {
    "no markers": ("int gelu;\n", "kernels.cu: it has no '// BEGIN SOLUTION': it is a starter"),
    "no end": ("// BEGIN SOLUTION\nint gelu;\n", "kernels.cu: line 1: BEGIN SOLUTION has no END"),
    "no text": (f"\udcff\n{REGION}", "kernels.cu:1: not UTF-8 text; save it as UTF-8"),
    "no file": (None, "no such file: .*kernels.cu"),
}


@pytest.mark.parametrize("kind", NO_REGIONS)
def test_a_further_file_without_regions_is_refused(kind: str, two: Release, tmp_path: Path) -> None:
    text, why = NO_REGIONS[kind]
    (tmp_path / "kernels.py").write_text(PYTHON)
    if text is not None:
        (tmp_path / "kernels.cu").write_bytes(text.encode(errors="surrogateescape"))
    refused(why, contents.kit, ROOT, two.config, tmp_path / "kernels.py")


def line_of(path: str, part: str) -> str:
    return next(line for line in (GPU_LAB / path).read_text().splitlines() if part in line)


CUDA_LINE = line_of("kernels.cu", "const float u =")
#: What follows // in Python is no comment.
PYTHON_LINE = line_of("kernels.py", "tl.program_id(0) // blocks")


@pytest.mark.parametrize(
    ("path", "planted", "found_as"),
    [
        ("README.md", CUDA_LINE, r":\d+ holds the solution, kernels.cu:\d+"),
        ("kernels.py", f"# {CUDA_LINE}", r"holds the solution, kernels.cu:\d+"),
        ("kernels.cu", f"// {PYTHON_LINE}", r"holds the solution, kernels.py:\d+"),
        ("docs/handout.md", line_of("reference.cu", "tanhf"), "the reference, gpu/reference.cu"),
        ("docs/handout.md", line_of("reference.py", "tl.sigmoid"), "the reference, gpu/reference.py"),
        ("docs/handout.md", line_of("tuned.py", "k_tensor.load"), "for the staff, gpu/tuned.py"),
        ("grader/__init__.py", line_of("known/edits.py", '"base 2"'), "for the staff, known/edits"),
        ("README.md", "seed 3105774286619048253", "a hidden seed"),
    ],
    ids=["CUDA", "a comment", "Python", "reference.cu", "reference.py", "tuned.py", "known", "a seed"],
)
def test_lines_of_every_staff_file_are_found(two: Release, path: str, planted: str, found_as: str) -> None:
    assert re.search(found_as, two.found_in(path, planted))


def test_a_handout_holds_nothing_of_the_staff_s_and_all_that_it_imports(two: Release, tmp_path: Path) -> None:
    for path in ("kernels2.cu", "labs/gpu/reference.cu", "labs/gpu/tuned.py", "labs/gpu/known/edits.py"):
        assert search.strangers({path: File(b"")}, two.kit)
    kept = {path.relative_to(GPU_LAB).as_posix() for path in two.kit.staff_files}
    assert {"reference.py", "reference.cu", "tuned.py", "known/edits.py"} <= kept
    unpack(packed(two.handout), tmp_path)
    proofs.imports_resolve(tmp_path)
    search.refuse(two.handout, two.kit)
    leaky = {**two.handout, "README.md": File(CUDA_LINE.encode())}
    refused(r"nothing was written.*README.md:\d+ holds the solution", search.refuse, leaky, two.kit)


def test_an_autograder_holds_each_master_once_also_one_s_own(two: Release, tmp_path: Path) -> None:
    files = two.autograder
    assert files["kernels.cu"].content.decode() == CUDA and files["kernels.py"].content.decode() == PYTHON
    assert {"labs/gpu/reference.cu", "labs/gpu/reference.py"} <= {*files}
    assert not {"labs/gpu/kernels.cu", "labs/gpu/kernels.py"} & {*files}
    setup = files["setup.sh"].content.decode()
    assert "chmod 0600 kernels.py kernels.cu\n" in setup and 'TORCH_INDEX="${TORCH_INDEX-}"' in setup
    assert devicebuild.TRITON_PACKAGE in files["requirements.txt"].content.decode()
    write_files(tmp_path, {"kernels.py": PYTHON, "kernels.cu": CUDA.replace("256", "128")})
    kit = contents.kit(ROOT, two.config, tmp_path / "kernels.py")
    assert "kThreads = 128" in kit.solutions["kernels.cu"]
    assert b"kThreads = 128" in contents.autograder(kit)["kernels.cu"].content


def test_a_question_and_a_workflow_name_both_files(two: Release) -> None:
    html = two.question["questions/gpu/question.html"].content.decode()
    # Without the second its part is not handed in, and the other is judged.
    assert '<pl-file-upload file-names="kernels.py" optional-file-names="kernels.cu">' in html
    assert "Hand in <code>kernels.py</code> and <code>kernels.cu</code>." in html and "{" not in html
    flow = products.PRODUCTS["github"].in_handout(two.kit)[products.WORKFLOW].content.decode()
    (work,) = yaml.safe_load(flow)["jobs"].values()
    (install,) = [step["run"] for step in work["steps"] if step.get("name") == "Python packages"]
    assert f'"{devicebuild.TRITON_PACKAGE}"' in install and " torch==" in install


def part(verdict: str, points: float = 0.0, waits_for: str = "", why: str = "not written yet") -> dict:
    told = {"waits_for": waits_for, "diagnosis": {"message": why}}
    return {"verdict": verdict, "points": points, "max_points": 10.0, **told}


#: A judge that says what is given of each part, by the files that lie there and the part that is named.
FAKE_JUDGE = """
import json, pathlib, sys
written = all('SOLUTION' in pathlib.Path(name).read_text() for name in ('kernels.py', 'kernels.cu'))
found = EACH[1 + ('--no-time' not in sys.argv) if written else 0]
if sys.argv[1] != 'all': found = {sys.argv[1]: found[sys.argv[1]]}
parts = [dict(part, id=name) for name, part in found.items()]
pathlib.Path(sys.argv[-1]).write_text(json.dumps(dict(parts=parts)))
sys.exit(3 if any(part['verdict'] == 'unjudged' for part in parts) else 0)
"""
Setup = tuple[proofs.ProofSetup, list[str]]


@pytest.fixture
def setup(two: Release, tmp_path: Path) -> Setup:
    return proof_setup(two.kit, tmp_path)


def prove(setup: Setup, program: str) -> list[str]:
    bench, said = setup
    proofs.handout(bench, packed({"gpt149.py": File(program.encode())}))
    bench.say_what_is_open()
    return said


GPU = part("unjudged", waits_for="GPU", why="no GPU")
TRITON = part("unjudged", waits_for="triton", why="no triton")
WRONG, PASS = part("wrong"), part("pass", 10.0)


def judge(*triton: dict, cuda: tuple[dict, ...] = (GPU, GPU, GPU)) -> str:
    """Return the fake judge with the results of the starter, the solution and its times, in Triton and in CUDA."""
    each = [{"gelu": one, "gelu_cuda": other} for one, other in zip(triton, cuda, strict=True)]
    return FAKE_JUDGE.replace("EACH", repr(each))


def test_an_unjudged_part_is_named_and_never_counted_as_proved(setup: Setup) -> None:
    said = prove(setup, judge(WRONG, PASS, GPU))
    assert setup[0].lacking == {"gelu_cuda": "GPU"} and setup[0].untimed == {"gelu": "GPU"}
    assert said[-1] == "NOT PROVED on this machine: gelu_cuda (no GPU); the times of gelu (no GPU)"
    assert "is right on gelu" in said[-2] and "every part" not in "".join(said[1:])


def test_a_machine_that_judges_everything_leaves_nothing_open(setup: Setup) -> None:
    said = prove(setup, judge(WRONG, PASS, PASS, cuda=(WRONG, PASS, PASS)))
    assert "right on every part" in said[-2] and "fast enough" in said[-1]


NO_TRITON = judge(TRITON, TRITON, TRITON, cuda=(TRITON, TRITON, TRITON))
REFUSED = {
    "no triton": (NO_TRITON, "nothing was written: this machine has no triton, and can judge no part of gpu"),
    # A machine that judged the starter has to judge the solution as well.
    "an open solution": (judge(WRONG, GPU, GPU), "the solution in the handout is unjudged on gelu: no GPU"),
    "a wrong one": (judge(WRONG, WRONG, GPU), "the solution in the handout is wrong on gelu"),
    "a slow one": (judge(WRONG, PASS, part("slow", 5.0)), "is slow on gelu, with 5 of 10"),
    "open starter": (judge(part("unjudged"), PASS, PASS), "the starter in the handout is unjudged on gelu"),
    "one with points": (judge(part("wrong", 1.5), PASS, PASS), "the starter .* earns 1.5 points on gelu"),
    "a right starter": (judge(part("pass"), PASS, PASS), "is pass on gelu"),
    "a broken one of its own": (judge(part("compile_error"), PASS, PASS), "is compile_error"),
    "no words": (judge(part("wrong", why="no"), PASS, PASS), "not told on gelu that it is not written"),
    "an exception": ("raise KeyError('starter')", "left no result in handout: KeyError: 'starter'"),
    "a code": ("print('no compiler'); raise SystemExit(3)", "ended with code 3 in handout: no compiler"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_handout_without_a_proof_is_refused(kind: str, setup: Setup) -> None:
    program, why = REFUSED[kind]
    refused(why, prove, setup, program, of=KitError if program == NO_TRITON else proofs.Unproved)


def scored(name: str, score: float, *, is_open: bool = False, hidden: str = "") -> list[dict]:
    """Return Gradescope's results of a part, and of its hidden cases if there were any."""
    own = {"name": f"{name}: GELU{gradescope.NO_GRADE * is_open}", "score": score, "max_score": 10.0}
    unseen = {"name": f"{name}: {gradescope.HIDDEN_TESTS}", "score": 0.0, "max_score": 0.0, "status": hidden}
    return [{**own, "output": "no GPU"}, *([{**unseen, "output": ""}] if hidden else [])]


UNWRITTEN = scored("gelu", 0.0, hidden="failed")
OPEN, FAILED = (scored("gelu", 0.0, is_open=True, hidden=end) for end in ("passed", "failed"))
UNTESTED = scored("gelu", 0.0, is_open=True)
RIGHT = scored("gelu", 10.0, hidden="passed")
LACKED = scored("gelu_cuda", 0.0, is_open=True)
FAKE_AUTOGRADER = """
import json, pathlib, sys
root = pathlib.Path(sys.argv[-1])
names = [root / 'submission' / name for name in ('kernels.py', 'kernels.cu')]
tests = TESTS[all('SOLUTION' in name.read_text() for name in names)]
found = {'score': sum(test['score'] for test in tests), 'tests': tests}
(root / 'results' / 'results.json').write_text(json.dumps(found))
sys.exit(3)
"""
#: Results of the starter and of the solution, and the last words.
LEFT_OPEN = {
    # On a machine with a GPU the autograder has times that a handout has not.
    "no times": (UNWRITTEN + LACKED, OPEN + LACKED, "gelu_cuda (no GPU); the times of gelu (no reference)"),
    "times": (UNWRITTEN + LACKED, RIGHT + LACKED, "gelu_cuda (no GPU)"),
    "open starter": (OPEN + LACKED, OPEN + LACKED, "does not judge gelu of the starter: no GPU"),
    "starter's CUDA": (UNWRITTEN, OPEN + LACKED, "does not judge gelu_cuda of the starter"),
    "untested": (UNWRITTEN + LACKED, UNTESTED + LACKED, "does not judge gelu of the solution"),
    "failed": (UNWRITTEN + LACKED, FAILED + LACKED, "does not judge gelu of the solution"),
    "unwritten": (UNWRITTEN + LACKED, UNWRITTEN + LACKED, "gives the solution 0 points, and not 10"),
    "nothing": ([], [], "does not judge gelu of the starter"),
}


@pytest.mark.parametrize("kind", LEFT_OPEN)
def test_an_autograder_may_leave_open_what_the_machine_lacks_alone(kind: str, setup: Setup) -> None:
    starter, solution, said_last = LEFT_OPEN[kind]
    program = FAKE_AUTOGRADER.replace("TESTS", repr([starter, solution]))
    bench, said = setup
    bench.lacking["gelu_cuda"], bench.untimed["gelu"] = "GPU", "reference"
    archive = packed({"grader/__init__.py": File(b""), "grader/__main__.py": File(program.encode())})
    if not said_last.startswith("gelu_cuda"):
        refused(said_last, proofs.autograder, bench, archive, of=proofs.Unproved)
        return
    proofs.autograder(bench, archive)
    bench.say_what_is_open()
    assert said[-1] == f"NOT PROVED on this machine: {said_last}"
    assert f"the solution {sum(test['score'] for test in solution):.0f} of 20 points" in said[-2]


@interpreted
@pytest.mark.full
def test_a_release_says_what_it_proved_and_what_it_could_not(two: Release, tmp_path: Path) -> None:
    said: list[str] = []
    making.release(two.kit, tmp_path, (), said.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["autograder.zip", "handout.zip"]
    assert any(line.startswith("the starter compiles, earns 0 on ") for line in said)
    assert any(line.startswith("the autograder gives the starter 0 of 20 points") for line in said)
    with zipfile.ZipFile(tmp_path / "handout.zip") as archive:
        assert {"kernels.py", "kernels.cu", "docs/handout.md", "writeup_template.md"} <= {*archive.namelist()}
    if not finding.is_here():
        lacks = f"gelu_cuda (no {'GPU' if devicebuild.nvcc() else 'nvcc'}); the times of gelu (no GPU)"
        assert [line for line in said if "NOT PROVED" in line] == [f"NOT PROVED on this machine: {lacks}"]
        assert said[-4].endswith("(right, and open until times are judged: gelu; not judged: gelu_cuda)")


@interpreted
def test_an_autograder_judges_one_file_without_the_other(two: Release, tmp_path: Path) -> None:
    """Hand in kernels.py alone, beside a file that no part names."""
    unpack(packed(two.autograder), tmp_path / "source")
    wrong = PYTHON.replace("y = x / (1.0 + tl.exp2(u", "y = 2.0 * x / (1.0 + tl.exp2(u")
    write_files(tmp_path / "submission", {"kernels.py": wrong, "helper.py": "raise SystemExit(9)\n"})
    asked = ("-m", "grader", "gradescope", tmp_path)
    ended = python(*asked, folder=tmp_path / "source", timeout_s=300, PYTHONPATH="")
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "results" / "results.json").read_text())
    tests = {test["name"].partition(":")[0]: test["output"] for test in reversed(found["tests"])}
    assert found["score"] == 0 and tests["gelu"].startswith("wrong")
    assert tests["gelu_cuda"].startswith("missing")
    assert "There is no kernels.cu beside kernels.py" in tests["gelu_cuda"]


def test_no_compiled_reference_is_missed(two: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = two.kit.assignment.lab
    monkeypatch.setattr(labs, "load", lambda folder: lab)
    assert list(tools._reference(Host(has_module=lambda name: True))) == []
    (lost,) = tools._reference(Host(has_module=lambda name: False))
    assert lost.level == "fail" and devicebuild.TRITON_PACKAGE in lost.remedy
    monkeypatch.undo()
    refused(r"--editor is for C\+\+", students.main, ["--editor", "--config", str(two.kit.public)])


def test_all_files_are_watched(two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, course = Mock(side_effect=EOFError), two.kit.assignment
    monkeypatch.setattr(loop.files, "Watcher", watcher)
    task = loop.WatchTask(course, tmp_path / "mine.py", course.parts, Options(), lambda *_: None)
    refused("", loop.Loop(task).run, of=EOFError)
    assert [path.name for path in watcher.call_args.args[0]] == ["mine.py", "mine.cu", "module.ispc"]


def test_both_files_are_annotated(two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the student's own command line, which is what a handout has."""
    write_files(tmp_path, {"kernels.py": PYTHON, "kernels.cu": CUDA})
    published = Mock()
    monkeypatch.setattr(github, "publish", published)
    monkeypatch.setattr(devicebuild, "nvcc", lambda: "")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    gpt149 = importlib.import_module("gpt149")
    asked = ["gelu_cuda", "--config", two.kit.public, "--module", tmp_path, "--no-time", "--no-table"]
    assert gpt149.run([*map(str, asked), "--github"]) == EXIT_KIT
    sources = published.call_args.args[3]
    assert sources.path("kernels.cu") == "kernels.cu" and sources.texts["kernels.cu"] == CUDA
