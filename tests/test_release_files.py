"""Releases of an assignment that is handed in as several files: Triton's kernels and, beside them, CUDA's.

It is GELU alone of the kit's lab for GPUs, once in Triton and once in CUDA.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from releases import Release
from without_card import interpreted

from grader.assignment import labs
from grader.assignment.loading import load
from grader.base.errors import EXIT_KIT, KitError, UsageError
from grader.base.places import PUBLIC_CONFIG
from grader.base.results import Diagnosis, PartResult
from grader.build import devicebuild
from grader.doctor import Host, students, tools
from grader.judge.bench import Options
from grader.report import github, gradescope, terminal
from grader.run.card import finding
from grader.staff.release import contents, making, products, proofs, search, stripping
from grader.staff.release.archive import File, packed, unpack
from grader.study.watching import loop
from grader.submission import companions_of, find

GPU_LAB = ROOT / "labs" / "gpu"
PYTHON, CUDA = ((GPU_LAB / name).read_text() for name in ("kernels.py", "kernels.cu"))


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Write the assignment with its first two parts, and the first case of each list."""
    folder = tmp_path_factory.mktemp("assignment")
    (folder / "hidden").mkdir()
    for name in ("assignment.yaml", "hidden/assignment.yaml"):
        text = (GPU_LAB / name).read_text().partition("  - id: softmax\n")[0]
        (folder / name).write_text(re.sub(r"(\n      - {name:.*)(\n      - {name:.*)+", r"\1", text))
    return Release(folder / "hidden" / "assignment.yaml")


def test_an_assignment_names_the_files_that_it_is_handed_in_as(two: Release) -> None:
    assert two.kit.assignment.sources == ("kernels.py", "kernels.cu")
    assert two.kit.assignment.beside("mine.py") == ("mine.cu",)
    assert load(PUBLIC_CONFIG).sources == ("module.cpp",)
    assert companions_of("scale.py") == ("module.ispc", "scale.cu")
    assert companions_of("scale.cu") == ("module.ispc", "scale.py")
    assert companions_of("scale.cpp") == ("module.ispc",)


def test_starters_are_stripped_of_both_files(two: Release) -> None:
    cuda, python = (two.handout[name].content.decode() for name in ("kernels.cu", "kernels.py"))
    assert "    return 0;  // not written yet\n" in cuda and 'extern "C" int gelu(' in cuda
    assert '    raise NotImplementedError("gelu is not written yet")\n' in python
    for text in (cuda, python):
        assert not re.search("SOLUTION|STARTER|gelu_kernel|_gelu", text), text
    kept = re.compile(r"labs/.*(reference|tuned|kernels|known)\b|hidden|staff|submission")
    assert not [path for path in two.handout if kept.search(path)]


def test_a_handout_names_both_files_and_has_what_a_gpu_needs(two: Release) -> None:
    texts = {path: file.content.decode(errors="replace") for path, file in two.handout.items()}
    assert "All your code goes into `kernels.py` and `kernels.cu`." in texts["README.md"]
    assert not [each for each in ("{", "--sanitize", "C++") if each in texts["README.md"]]
    assert "judges kernels.py and kernels.cu." in texts["Makefile"]
    assert devicebuild.TRITON_PACKAGE in texts["requirements.txt"]
    tasks = re.sub(r"^ *//.*$", "", texts[contents.EDITOR_TASKS], flags=re.MULTILINE)
    assert [task["label"] for task in json.loads(tasks)["tasks"]] == ["judge", "watch"]
    assert {"grader/run/card/kernels.ptx", "grader/run/card/kernels.cu"} <= {*texts}
    assert "grader/run/card/kernels.ptx" in two.autograder


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int gelu;\n", r"kernels.cu: it has no '// BEGIN SOLUTION': it is a starter"),
        ("// BEGIN SOLUTION\nint gelu;\n", r"kernels.cu: line 1: BEGIN SOLUTION has no END"),
        ("// END SOLUTION\n", r"kernels.cu: line 1: END SOLUTION, but no region is open"),
        (
            "// begin solution\nint x;\n",
            r"kernels.cu: line 1: a marker stands alone on its line, in capitals",
        ),
        (
            "\udcff\n// BEGIN SOLUTION\nx\n// END SOLUTION\n",
            r"kernels.cu:1: not UTF-8 text; save it as UTF-8",
        ),
        (None, "no such file: .*kernels.cu"),
    ],
    ids=["no markers", "no end", "no beginning", "small letters", "no text", "no file"],
)
def test_a_further_file_without_regions_is_refused(
    text: str | None, why: str, two: Release, tmp_path: Path
) -> None:
    (tmp_path / "kernels.py").write_text(PYTHON)
    if text is not None:
        (tmp_path / "kernels.cu").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=why) as refused:
        contents.kit(ROOT, two.config, tmp_path / "kernels.py")
    assert "\n" not in str(refused.value)


def test_a_master_of_one_s_own_has_the_further_ones_beside_it(two: Release, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(PYTHON)
    (tmp_path / "kernels.cu").write_text(CUDA.replace("256", "128"))
    kit = contents.kit(ROOT, two.config, tmp_path / "kernels.py")
    assert "kThreads = 128" in kit.solutions["kernels.cu"]
    assert b"kThreads = 128" in contents.autograder(kit)["kernels.cu"].content


def line_of(path: str, part: str) -> str:
    """Return the first line of a file of the lab that holds this text."""
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
        ("grader/__init__.py", line_of("known/wrong_rows.py", '"base 2"'), "for the staff, known/wrong_rows"),
        ("README.md", "seed 3105774286619048253", "a hidden seed"),
    ],
    ids=["CUDA", "a comment", "Python", "reference.cu", "reference.py", "tuned.py", "known", "a seed"],
)
def test_lines_of_every_staff_file_are_found(two: Release, path: str, planted: str, found_as: str) -> None:
    assert re.search(found_as, two.found_in(path, planted))


def test_a_handout_holds_nothing_of_the_staff_s_and_all_that_it_imports(two: Release, tmp_path: Path) -> None:
    assert search.leaks(two.handout, two.secrets) == [] and search.strangers(two.handout, two.kit) == []
    for path in ("kernels2.cu", "labs/gpu/reference.cu", "labs/gpu/tuned.py", "labs/gpu/known/right.py"):
        assert search.strangers({path: File(b"")}, two.kit)
    kept = {path.relative_to(GPU_LAB).as_posix() for path in two.kit.staff_files}
    assert {"reference.py", "reference.cu", "tuned.py", "known/wrong_rows.py"} <= kept
    unpack(packed(two.handout), tmp_path)
    proofs.imports_resolve(tmp_path)


def test_a_handout_with_a_line_of_the_solution_is_refused(two: Release) -> None:
    search.refuse(two.handout, two.kit)
    with pytest.raises(UsageError, match=r"nothing was written.*README.md:\d+ holds the solution"):
        search.refuse({**two.handout, "README.md": File(CUDA_LINE.encode())}, two.kit)


def test_a_line_that_imports_is_nobody_s_secret() -> None:
    imports = "from grader.assignment.mutations import Mutation, variant\nimport grader.assignment.mutations as known\n"
    assert stripping.of_source(imports, "kernels.py") == []
    (found,) = stripping.of_source("x = first_of_all_numbers // second_of_all_numbers  # told\n", "a.py")
    assert found.needle == b"x=first_of_all_numbers//second_of_all_numbers"


def test_an_autograder_holds_each_master_once_and_closed(two: Release) -> None:
    files = two.autograder
    assert files["kernels.cu"].content.decode() == CUDA and files["kernels.py"].content.decode() == PYTHON
    assert {"labs/gpu/reference.cu", "labs/gpu/reference.py"} <= {*files}
    assert not {"labs/gpu/kernels.cu", "labs/gpu/kernels.py"} & {*files}
    setup = files["setup.sh"].content.decode()
    assert "chmod 0600 kernels.py kernels.cu\n" in setup and 'TORCH_INDEX="${TORCH_INDEX-}"' in setup
    assert devicebuild.TRITON_PACKAGE in files["requirements.txt"].content.decode()


def test_a_question_and_a_workflow_name_both_files(two: Release) -> None:
    html = two.question["questions/gpu/question.html"].content.decode()
    # Without the second its part is not handed in, and the other is judged.
    assert '<pl-file-upload file-names="kernels.py" optional-file-names="kernels.cu">' in html
    assert "Hand in <code>kernels.py</code> and <code>kernels.cu</code>." in html and "{" not in html
    flow = products.PRODUCTS["github"].in_handout(two.kit)[products.WORKFLOW].content.decode()
    (work,) = yaml.safe_load(flow)["jobs"].values()
    (install,) = [step["run"] for step in work["steps"] if step.get("name") == "Python packages"]
    assert f'"{devicebuild.TRITON_PACKAGE}"' in install and " torch==" in install


def test_a_class_may_hand_in_one_file_or_both(tmp_path: Path) -> None:
    handed_in = {"ada": ("scale.py", "scale.cu", "notes.txt"), "bob": ("scale.py",)}
    for name, files in handed_in.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "in" / name / file).write_text("x = 1\n")
    found = {one.id: one.path for one in find(tmp_path / "in", "scale.py", tmp_path / "out")}
    for name, files in handed_in.items():
        assert {path.name for path in found[name].iterdir()} == {*files} - {"notes.txt"}


def part(verdict: str, points: float = 0.0, waits_for: str = "", why: str = "not written yet") -> dict:
    made = {"verdict": verdict, "points": points, "max_points": 10.0, "waits_for": waits_for}
    return {**made, "diagnosis": {"message": why}}


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


def setup(release: Release, folder: Path) -> tuple[proofs.ProofSetup, list[str]]:
    """Return what proves a release in a folder, and a list of what it says."""
    said: list[str] = []
    kit = release.kit
    return proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, folder, said.append), said


GPU = part("unjudged", waits_for="GPU", why="no GPU")
TRITON = part("unjudged", waits_for="triton", why="no triton")
WRONG, PASS = part("wrong"), part("pass", 10.0)


def judge(*triton: dict, cuda: tuple[dict, ...] = (GPU, GPU, GPU)) -> str:
    """Return the fake judge with the results of the starter, the solution and its times, in Triton and in CUDA."""
    each = [{"gelu": one, "gelu_cuda": other} for one, other in zip(triton, cuda, strict=True)]
    return FAKE_JUDGE.replace("EACH", repr(each))


def test_an_unjudged_part_is_named_and_never_counted_as_proved(two: Release, tmp_path: Path) -> None:
    bench, said = setup(two, tmp_path)
    proofs.handout(bench, packed({"gpt149.py": File(judge(WRONG, PASS, GPU).encode())}))
    bench.say_what_is_open()
    assert bench.lacking == {"gelu_cuda": "GPU"} and bench.untimed == {"gelu": "GPU"}
    assert said[-1] == "NOT PROVED on this machine: gelu_cuda (no GPU); the times of gelu (no GPU)"
    assert "is right on gelu" in said[-2] and "every part" not in "".join(said[1:])


def test_a_machine_that_judges_everything_leaves_nothing_open(two: Release, tmp_path: Path) -> None:
    bench, said = setup(two, tmp_path)
    program = judge(WRONG, PASS, PASS, cuda=(WRONG, PASS, PASS))
    proofs.handout(bench, packed({"gpt149.py": File(program.encode())}))
    bench.say_what_is_open()
    assert "right on every part" in said[-2] and "fast enough" in said[-1]


NO_TRITON = judge(TRITON, TRITON, TRITON, cuda=(TRITON, TRITON, TRITON))
REFUSED = {
    "no triton": (NO_TRITON, "nothing was written: this machine has no triton, and can judge no part of gpu"),
    # A machine that judged the starter has to judge the solution as well.
    "an open solution": (judge(WRONG, GPU, GPU), "the solution in the handout is unjudged on gelu: no GPU"),
    "a wrong one": (judge(WRONG, WRONG, GPU), "the solution in the handout is wrong on gelu"),
    "a slow one": (judge(WRONG, PASS, part("slow", 5.0)), "is slow on gelu, with 5 of 10"),
    "an open starter": (
        judge(part("unjudged"), PASS, PASS),
        "the starter in the handout is unjudged on gelu",
    ),
    "one with points": (judge(part("wrong", 1.5), PASS, PASS), "the starter .* earns 1.5 points on gelu"),
    "a right starter": (judge(part("pass"), PASS, PASS), "is pass on gelu"),
    "a broken one of its own": (judge(part("compile_error"), PASS, PASS), "is compile_error"),
    "no words": (judge(part("wrong", why="no"), PASS, PASS), "not told on gelu that it is not written"),
    "an exception": ("raise KeyError('starter')", "left no result in handout: KeyError: 'starter'"),
    "a code": ("print('no compiler'); raise SystemExit(3)", "ended with code 3 in handout: no compiler"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_handout_without_a_proof_is_refused(kind: str, two: Release, tmp_path: Path) -> None:
    program, why = REFUSED[kind]
    bench, _ = setup(two, tmp_path)
    with pytest.raises(KitError if program == NO_TRITON else proofs.Unproved, match=why):
        proofs.handout(bench, packed({"gpt149.py": File(program.encode())}))


def scored(name: str, score: float, *, is_open: bool = False, hidden: str = "") -> list[dict]:
    """Return Gradescope's results of a part, and of its hidden cases if there were any."""
    own = {"name": f"{name}: GELU{gradescope.NO_GRADE * is_open}", "score": score, "max_score": 10.0}
    unseen = {"name": f"{name}: {gradescope.HIDDEN_TESTS}", "score": 0.0, "max_score": 0.0, "status": hidden}
    return [{**own, "output": "no GPU"}, *([{**unseen, "output": ""}] if hidden else [])]


UNWRITTEN = scored("gelu", 0.0, hidden="failed")
OPEN = scored("gelu", 0.0, is_open=True, hidden="passed")
UNTESTED = scored("gelu", 0.0, is_open=True)
FAILED = scored("gelu", 0.0, is_open=True, hidden="failed")
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


# On a machine with a GPU the autograder has times that a handout has not.
@pytest.mark.parametrize(
    ("starter", "solution", "said_last"),
    [
        (UNWRITTEN + LACKED, OPEN + LACKED, "gelu_cuda (no GPU); the times of gelu (no reference)"),
        (UNWRITTEN + LACKED, RIGHT + LACKED, "gelu_cuda (no GPU)"),
        (OPEN + LACKED, OPEN + LACKED, "does not judge gelu of the starter: no GPU"),
        (UNWRITTEN, OPEN + LACKED, "does not judge gelu_cuda of the starter"),
        (UNWRITTEN + LACKED, UNTESTED + LACKED, "does not judge gelu of the solution"),
        (UNWRITTEN + LACKED, FAILED + LACKED, "does not judge gelu of the solution"),
        (UNWRITTEN + LACKED, UNWRITTEN + LACKED, "gives the solution 0 points, and not 10"),
        ([], [], "does not judge gelu of the starter"),
    ],
)
def test_an_autograder_may_leave_open_what_the_machine_lacks_and_nothing_else(
    starter: list[dict], solution: list[dict], said_last: str, two: Release, tmp_path: Path
) -> None:
    program = FAKE_AUTOGRADER.replace("TESTS", repr([starter, solution]))
    bench, said = setup(two, tmp_path)
    bench.lacking["gelu_cuda"], bench.untimed["gelu"] = "GPU", "reference"
    archive = packed({"grader/__init__.py": File(b""), "grader/__main__.py": File(program.encode())})
    if not said_last.startswith("gelu_cuda"):
        with pytest.raises(proofs.Unproved, match=said_last):
            proofs.autograder(bench, archive)
        return
    proofs.autograder(bench, archive)
    bench.say_what_is_open()
    assert said[-1] == f"NOT PROVED on this machine: {said_last}"
    assert f"the solution {sum(test['score'] for test in solution):.0f} of 20 points" in said[-2]


@pytest.mark.full
@pytest.mark.skipif(finding.is_here(), reason="a GPU judges the part in CUDA without Triton")
def test_a_machine_without_triton_writes_nothing(two: Release, tmp_path: Path) -> None:
    """A Python that finds no triton makes the whole release, up to where the starter is to be judged."""
    without = (
        "import importlib.util as it, sys\n"
        "found = it.find_spec\n"
        "it.find_spec = lambda name, *more: None if name == 'triton' else found(name, *more)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(without)
    ended = subprocess.run(
        [sys.executable, "-c", START, two.config, tmp_path / "dist"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "WITHOUT": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == EXIT_KIT, ended.stderr
    (line,) = ended.stderr.splitlines()
    # A part in CUDA waits for what this machine lacks of its own.
    assert re.search(r"this machine has no triton(, (GPU|nvcc))?, and can judge no part of gpu", line), line
    assert not (tmp_path / "dist").exists()


START = """
import os, sys
from pathlib import Path
from grader.base import commandline
from grader.staff.release import main, proofs

# Proofs run in an environment of their own, to which the Python without triton has to be handed on.
own = proofs.ProofSetup.environment
proofs.ProofSetup.environment = lambda bench: {**own(bench), "PYTHONPATH": os.environ["WITHOUT"]}
commandline.main("grader", lambda words: main(["--config", words[0], "--out", words[1]]))
"""


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
    opened = [line for line in said if line.startswith("NOT PROVED on this machine: ")]
    if not finding.is_here():
        lacks = "GPU" if devicebuild.nvcc() else "nvcc"
        assert opened == [f"NOT PROVED on this machine: gelu_cuda (no {lacks}); the times of gelu (no GPU)"]
        assert said[-4].endswith("(right, and open until times are judged: gelu; not judged: gelu_cuda)")


@interpreted
def test_an_autograder_judges_one_file_without_the_other(two: Release, tmp_path: Path) -> None:
    """Hand in kernels.py alone, beside a file that no part names."""
    unpack(packed(two.autograder), tmp_path / "source")
    (tmp_path / "submission").mkdir()
    wrong = PYTHON.replace("y = x / (1.0 + tl.exp2(u", "y = 2.0 * x / (1.0 + tl.exp2(u")
    (tmp_path / "submission" / "kernels.py").write_text(wrong)
    (tmp_path / "submission" / "helper.py").write_text("raise SystemExit(9)\n")
    ended = subprocess.run(
        [sys.executable, "-m", "grader", "gradescope", str(tmp_path)],
        cwd=tmp_path / "source",
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "results" / "results.json").read_text())
    tests = {test["name"].partition(":")[0]: test["output"] for test in reversed(found["tests"])}
    assert found["score"] == 0 and tests["gelu"].startswith("wrong")
    assert tests["gelu_cuda"].startswith("missing")
    assert "There is no kernels.cu beside kernels.py" in tests["gelu_cuda"]


def test_a_terminal_repeats_no_other_part_s_words() -> None:
    """Parts of one file are told as above; one that lacks something else is not."""
    stream = io.StringIO()
    screen = terminal.Terminal(stream)
    for name, words in (("a", "no GPU for its time"), ("b", "no GPU for its time"), ("c", "no nvcc")):
        why = Diagnosis("machine_lacks", words)
        screen.verdict(PartResult(name, name, "unjudged", 1.0, diagnosis=why, waits_for="x"), 0.0)
    shown = stream.getvalue()
    assert shown.count("no GPU for its time") == 1 and shown.count("as above") == 1 and "no nvcc" in shown


def test_the_doctor_of_such_a_handout_misses_no_compiled_reference(
    two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = two.kit.assignment.lab
    monkeypatch.setattr(labs, "load", lambda folder: lab)
    assert list(tools._reference(Host(scratch=tmp_path, has_module=lambda name: True))) == []
    (lost,) = tools._reference(Host(scratch=tmp_path, has_module=lambda name: False))
    assert lost.level == "fail" and devicebuild.TRITON_PACKAGE in lost.remedy
    monkeypatch.undo()
    with pytest.raises(UsageError, match="--editor is for C\\+\\+"):
        students.main(["--editor", "--config", str(two.kit.public)])


def test_a_watched_assignment_is_judged_again_for_any_of_its_files(
    two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def look(paths: tuple[Path, ...], on_save: object) -> None:
        raise Seen(*(path.name for path in paths))

    monkeypatch.setattr(loop.files, "Watcher", look)
    course, mine = two.kit.assignment, tmp_path / "mine.py"
    task = loop.WatchTask(course, mine, course.parts, Options(), lambda *_: None)
    with pytest.raises(Seen) as seen:
        loop.Loop(task).run()
    assert seen.value.args == ("mine.py", "mine.cu", "module.ispc")


def test_a_workflow_annotates_both_files(
    two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the student's own command line, which is what a handout has."""
    for name in ("kernels.py", "kernels.cu"):
        (tmp_path / name).write_text((GPU_LAB / name).read_text())
    seen: list[github.Sources] = []
    monkeypatch.setattr(github, "publish", lambda a, result, scored, sources, seconds: seen.append(sources))
    monkeypatch.setattr(devicebuild, "nvcc", lambda: "")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    gpt149 = importlib.import_module("gpt149")
    asked = ["gelu_cuda", "--config", two.kit.public, "--module", tmp_path, "--no-time", "--no-table"]
    assert gpt149.run([*map(str, asked), "--github"]) == EXIT_KIT
    (sources,) = seen
    assert sources.path("kernels.cu") == "kernels.cu" and sources.texts["kernels.cu"] == CUDA
