"""Releases of an assignment that is handed in as several files: Triton's kernels and, beside them, CUDA's.

The lab is a small one, outside of the kit. Its whole release is made once, where Triton is.
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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from two_file_lab import LAB, NAME, written
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


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield written(tmp_path_factory.mktemp("labs"))
    for name in [name for name in sys.modules if name.startswith(f"{labs.PACKAGE}.{NAME}")]:
        del sys.modules[name]
    labs.load.cache_clear()


@pytest.fixture(scope="module")
def kit(config: Path) -> contents.Kit:
    return contents.kit(ROOT, config)


@pytest.fixture(scope="module")
def handout(kit: contents.Kit) -> dict[str, File]:
    return contents.handout(kit, {})


# ---- which files


def test_an_assignment_names_the_files_that_it_is_handed_in_as(kit: contents.Kit) -> None:
    assert kit.assignment.sources == ("scale.py", "scale.cu")
    assert kit.assignment.beside("mine.py") == ("mine.cu",)
    assert load(PUBLIC_CONFIG).sources == ("module.cpp",)
    assert companions_of("scale.py") == ("module.ispc", "scale.cu")
    assert companions_of("scale.cu") == ("module.ispc", "scale.py")
    assert companions_of("scale.cpp") == ("module.ispc",)


def test_starters_are_stripped_of_both_files(kit: contents.Kit, handout: dict[str, File]) -> None:
    cuda, python = handout["scale.cu"].content.decode(), handout["scale.py"].content.decode()
    assert "    return 0;  // not written yet\n" in cuda and 'extern "C" int thrice(' in cuda
    assert '    raise NotImplementedError("thrice is not written yet")\n' in python
    for text in (cuda, python):
        assert not re.search("SOLUTION|STARTER|thrice_kernel|_thrice", text), text
    kept = re.compile(r"labs/.*(reference|tuned|kernels|scale)\.|hidden|staff|submission")
    assert not [path for path in handout if kept.search(path)]


def test_a_handout_has_what_a_card_is_timed_with(handout: dict[str, File], kit: contents.Kit) -> None:
    assert {"grader/run/card/kernels.ptx", "grader/run/card/kernels.cu"} <= {*handout}
    assert "grader/run/card/kernels.ptx" in contents.autograder(kit)


def test_texts_of_a_handout_name_both_files_and_what_they_need(handout: dict[str, File]) -> None:
    readme = handout["README.md"].content.decode()
    assert "All your code goes into `scale.py` and `scale.cu`." in readme and "{" not in readme
    assert "no reference in here" in readme and "--sanitize" not in readme and "C++" not in readme
    assert "judges scale.py and scale.cu." in handout["Makefile"].content.decode()
    assert devicebuild.TRITON_PACKAGE in handout["requirements.txt"].content.decode()
    tasks = re.sub(r"^ *//.*$", "", handout[contents.EDITOR_TASKS].content.decode(), flags=re.MULTILINE)
    assert [task["label"] for task in json.loads(tasks)["tasks"]] == ["judge", "watch"]


# ---- what is wrong with a lab


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("int thrice;\n", r"scale.cu: it has no '// BEGIN SOLUTION': it is a starter"),
        ("// BEGIN SOLUTION\nint thrice;\n", r"scale.cu: line 1: BEGIN SOLUTION has no END"),
        ("// END SOLUTION\n", r"scale.cu: line 1: END SOLUTION, but no region is open"),
        ("// begin solution\nint x;\n", r"scale.cu: line 1: a marker stands alone on its line, in capitals"),
        ("\udcff\n// BEGIN SOLUTION\nx\n// END SOLUTION\n", r"scale.cu:1: not UTF-8 text; save it as UTF-8"),
        (None, "no such file: .*scale.cu"),
    ],
    ids=["no markers", "no end", "no beginning", "small letters", "no text", "no file"],
)
def test_a_further_file_that_is_no_master_is_told_in_one_line(
    text: str | None, told: str, tmp_path: Path
) -> None:
    config = written(tmp_path)
    if text is None:
        (tmp_path / NAME / "scale.cu").unlink()
    else:
        (tmp_path / NAME / "scale.cu").write_bytes(text.encode(errors="surrogateescape"))
    ended = subprocess.run(
        [sys.executable, "-m", "grader", "release", "--config", config, "--out", tmp_path / "dist"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert re.search(told, ended.stderr), ended.stderr
    assert not (tmp_path / "dist").exists()


def test_a_master_of_one_s_own_has_the_further_ones_beside_it(config: Path, tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(LAB["scale.py"])
    with pytest.raises(UsageError, match=r"no such file: .*scale\.cu"):
        contents.kit(ROOT, config, tmp_path / "scale.py")
    (tmp_path / "scale.cu").write_text(LAB["scale.cu"].replace("256", "128"))
    kit = contents.kit(ROOT, config, tmp_path / "scale.py")
    assert (
        "128" in kit.solutions["scale.cu"] and "128" in contents.autograder(kit)["scale.cu"].content.decode()
    )


# ---- the search


@pytest.mark.parametrize(
    ("path", "planted", "told"),
    [
        ("README.md", "if (mine < count) y[mine] = 3.0f * x[mine];", r":\d+ holds the solution, scale.cu:7"),
        ("scale.py", "# if (mine < count) y[mine] = 3.0f * x[mine];", "holds the solution, scale.cu:7"),
        # What follows // in Python is no comment.
        ("scale.cu", "// last = count // BLOCK * BLOCK", "holds the solution, scale.py:12"),
        ("docs/handout.md", LAB["reference.cu"].splitlines()[3], "the reference, thrice/reference.cu:4"),
        ("docs/handout.md", LAB["reference.py"].splitlines()[6], "the reference, thrice/reference.py:7"),
        ("docs/handout.md", LAB["tuned.py"].splitlines()[3], "for the staff, thrice/tuned.py:4"),
        ("grader/__init__.py", LAB["kernels.py"].splitlines()[3], "for the staff, thrice/kernels.py:4"),
        ("README.md", "seed 2405197663112489", "a hidden seed"),
    ],
)
def test_lines_of_every_file_of_the_staff_are_looked_for(
    handout: dict[str, File], kit: contents.Kit, path: str, planted: str, told: str
) -> None:
    assert search.leaks(handout, search.secrets(kit)) == [] and search.strangers(handout, kit) == []
    leaky = {path: replace(handout[path], content=handout[path].content + f"\n{planted}\n".encode())}
    (found,) = search.leaks(leaky, search.secrets(kit))
    assert told in found if "\\" not in told else re.search(told, found), found


def test_a_line_that_imports_is_nobody_s_secret() -> None:
    text = "from grader.assignment.mutations import Mutation, variant\nimport grader.assignment.mutations as known\n"
    assert stripping.of_source(text, "kernels.py") == []
    (found,) = stripping.of_source("x = first_of_all_numbers // second_of_all_numbers  # told\n", "a.py")
    assert found.needle == b"x=first_of_all_numbers//second_of_all_numbers"


@pytest.mark.parametrize("path", ["scale2.cu", "labs/thrice/reference.cu", "labs/thrice/tuned.py"])
def test_files_of_the_staff_are_strangers_in_a_handout(kit: contents.Kit, path: str) -> None:
    assert search.strangers({path: File(b"")}, kit)
    assert search.strangers({"scale.py": File(b""), "scale.cu": File(b"")}, kit) == []


def test_the_kit_s_lab_keeps_its_kernels(tmp_path: Path) -> None:
    """Of the lab `gpu`: nothing of the staff's in its handout, every import of which resolves there."""
    kit = contents.kit(ROOT, ROOT / "labs" / "gpu" / "hidden" / "assignment.yaml")
    kept = {path.relative_to(ROOT / "labs" / "gpu").as_posix() for path in kit.staff_files}
    assert {"reference.py", "reference.cu", "tuned.py", "known/wrong_rows.py"} <= kept
    files = contents.handout(kit, {})
    search.refuse(files, kit)
    assert {"kernels.py", "kernels.cu"} <= {*files}
    with pytest.raises(UsageError, match=r"labs/gpu/known/right\.py is for the staff"):
        search.refuse({"labs/gpu/known/right.py": File(b"")}, kit)
    unpack(packed(files), tmp_path)
    proofs.imports_resolve(tmp_path)


# ---- what platforms get


def test_an_autograder_holds_each_master_once_and_closed(kit: contents.Kit) -> None:
    files = contents.autograder(kit)
    assert [path for path in files if path.rpartition("/")[2].startswith("scale")] == ["scale.py", "scale.cu"]
    assert files["scale.cu"].content.decode() == LAB["scale.cu"]
    assert {"labs/thrice/reference.cu", "labs/thrice/reference.py"} <= {*files}
    setup = files["setup.sh"].content.decode()
    assert "chmod 0600 scale.py scale.cu\n" in setup and 'TORCH_INDEX="${TORCH_INDEX-}"' in setup
    assert devicebuild.TRITON_PACKAGE in files["requirements.txt"].content.decode()


def test_a_question_and_a_workflow_name_both_files(kit: contents.Kit) -> None:
    question = products.PRODUCTS["prairielearn"].rest(kit, b"").folders["prairielearn"]
    html = question["questions/thrice/question.html"].content.decode()
    # Without the second its part is not handed in, and the other is judged.
    assert '<pl-file-upload file-names="scale.py" optional-file-names="scale.cu">' in html
    assert "Hand in <code>scale.py</code> and <code>scale.cu</code>." in html and "{" not in html
    flow = products.PRODUCTS["github"].in_handout(kit)[products.WORKFLOW].content.decode()
    assert flow.startswith("# Judges scale.py and scale.cu by")
    (work,) = yaml.safe_load(flow)["jobs"].values()
    (install,) = [step["run"] for step in work["steps"] if step.get("name") == "Python packages"]
    assert f'"{devicebuild.TRITON_PACKAGE}"' in install and " torch==" in install


def test_a_class_may_hand_in_one_file_or_both(tmp_path: Path) -> None:
    for name, files in {"ada": ("scale.py", "scale.cu", "notes.txt"), "bob": ("scale.py",)}.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "in" / name / file).write_text("x = 1\n")
    found = {one.id: one.path for one in find(tmp_path / "in", "scale.py", tmp_path / "out")}
    assert {name: sorted(path.name for path in folder.iterdir()) for name, folder in found.items()} == {
        "ada": ["scale.cu", "scale.py"],
        "bob": ["scale.py"],
    }


# ---- what is proved, and what a machine cannot


def told(verdict: str, points: float = 0.0, waits_for: str = "", why: str = "not written yet") -> dict:
    made = {"verdict": verdict, "points": points, "max_points": 10.0, "waits_for": waits_for}
    return {**made, "diagnosis": {"message": why}}


def fake(kit: contents.Kit, folder: Path, starter: dict, solution: dict, timed: dict) -> proofs.ProofSetup:
    """A proof whose handout's judge says what is given of each part, by which files lie there and what is asked."""
    program = (
        "import json, pathlib, sys\n"
        "written = all('3.0' in pathlib.Path(name).read_text() for name in ('scale.py', 'scale.cu'))\n"
        f"found = ({solution!r} if '--no-time' in sys.argv else {timed!r}) if written else {starter!r}\n"
        "if sys.argv[1] != 'all': found = {sys.argv[1]: found[sys.argv[1]]}\n"
        "parts = [dict(part, id=name) for name, part in found.items()]\n"
        "pathlib.Path(sys.argv[-1]).write_text(json.dumps(dict(parts=parts)))\n"
        "sys.exit(3 if any(part['verdict'] == 'unjudged' for part in parts) else 0)\n"
    )
    said: list[str] = []
    folder.mkdir()
    bench = proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, folder, said.append)
    bench.__dict__["said"] = said
    proofs.handout(bench, packed({"gpt149.py": File(program.encode())}))
    bench.say_what_is_open()
    return bench


GPU = told("unjudged", waits_for="GPU", why="no GPU")
PASS = told("pass", 10.0)


def test_what_cannot_be_judged_is_named_and_never_counted_as_proved(
    kit: contents.Kit, tmp_path: Path
) -> None:
    both = {"thrice": told("wrong"), "thrice_cuda": GPU}
    bench = fake(
        kit, tmp_path / "a", both, {"thrice": PASS, "thrice_cuda": GPU}, {"thrice": GPU, "thrice_cuda": GPU}
    )
    said = bench.__dict__["said"]
    assert bench.lacking == {"thrice_cuda": "GPU"} and bench.untimed == {"thrice": "GPU"}
    assert said[-1] == "NOT PROVED on this machine: thrice_cuda (no GPU); the times of thrice (no GPU)"
    assert "is right on thrice" in said[-2] and "every part" not in "".join(said[1:])

    everything = {"thrice": PASS, "thrice_cuda": PASS}
    whole = fake(
        kit, tmp_path / "b", {name: told("wrong") for name in everything}, everything, everything
    ).__dict__["said"]
    assert "right on every part" in whole[-2] and "fast enough" in whole[-1]

    nothing = dict.fromkeys(everything, told("unjudged", waits_for="triton", why="no triton"))
    with pytest.raises(
        KitError, match=r"nothing was written: this machine has no triton, and can judge no part of thrice"
    ):
        fake(kit, tmp_path / "c", nothing, nothing, nothing)
    # What the starter was judged in, the solution has to be judged in as well.
    with pytest.raises(proofs.Unproved, match="the solution in the handout is unjudged on thrice: no GPU"):
        fake(kit, tmp_path / "d", both, {"thrice": GPU, "thrice_cuda": GPU}, {})
    with pytest.raises(proofs.Unproved, match="wrong on thrice"):
        fake(kit, tmp_path / "e", both, {"thrice": told("wrong"), "thrice_cuda": GPU}, {})
    with pytest.raises(proofs.Unproved, match="the starter in the handout is unjudged on thrice"):
        fake(kit, tmp_path / "f", {"thrice": told("unjudged"), "thrice_cuda": GPU}, {}, {})


def scored(name: str, score: float, *, is_open: bool = False, hidden: str = "") -> list[dict]:
    """What Gradescope is told of a part, and of its hidden cases if there were any."""
    part = {"name": f"{name}: Times three{gradescope.NO_GRADE * is_open}", "score": score, "max_score": 10.0}
    told = {"name": f"{name}: {gradescope.HIDDEN_TESTS}", "score": 0.0, "max_score": 0.0, "status": hidden}
    return [{**part, "output": "no GPU"}, *([{**told, "output": ""}] if hidden else [])]


UNWRITTEN = scored("thrice", 0.0, hidden="failed")
OPEN = scored("thrice", 0.0, is_open=True, hidden="passed")
LACKED = scored("thrice_cuda", 0.0, is_open=True)


@pytest.mark.parametrize(
    ("starter", "solution", "why"),
    [
        (UNWRITTEN + LACKED, OPEN + LACKED, ""),
        # On a machine with a card the autograder has times that a handout has not.
        (UNWRITTEN + LACKED, scored("thrice", 10.0, hidden="passed") + LACKED, "proved"),
        (OPEN + LACKED, OPEN + LACKED, "does not judge thrice of the starter: no GPU"),
        (UNWRITTEN, OPEN + LACKED, "does not judge thrice_cuda of the starter"),
        (
            UNWRITTEN + LACKED,
            scored("thrice", 0.0, is_open=True) + LACKED,
            "does not judge thrice of the sol",
        ),
        (
            UNWRITTEN + LACKED,
            scored("thrice", 0.0, is_open=True, hidden="failed") + LACKED,
            "does not judge thrice of the solution",
        ),
        (UNWRITTEN + LACKED, UNWRITTEN + LACKED, "gives the solution 0 points, and not 10"),
        ([], [], "does not judge thrice of the starter"),
    ],
)
def test_an_autograder_may_leave_open_what_the_machine_lacks_and_nothing_else(
    kit: contents.Kit, starter: list[dict], solution: list[dict], why: str, tmp_path: Path
) -> None:
    program = (
        "import json, pathlib, sys\n"
        "root = pathlib.Path(sys.argv[-1])\n"
        "text = (root / 'submission' / 'scale.py').read_text() + (root / 'submission' / 'scale.cu').read_text()\n"
        f"tests = {solution!r} if text.count('3.0') == 2 else {starter!r}\n"
        "found = {'score': sum(test['score'] for test in tests), 'tests': tests}\n"
        "(root / 'results' / 'results.json').write_text(json.dumps(found))\n"
        "sys.exit(3)\n"
    )
    said: list[str] = []
    bench = proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, tmp_path, said.append)
    bench.lacking["thrice_cuda"], bench.untimed["thrice"] = "GPU", "reference"
    archive = packed({"grader/__init__.py": File(b""), "grader/__main__.py": File(program.encode())})
    if why not in ("", "proved"):
        with pytest.raises(proofs.Unproved, match=why):
            proofs.autograder(bench, archive)
        return
    proofs.autograder(bench, archive)
    bench.say_what_is_open()
    left = "" if why else "; the times of thrice (no reference)"
    assert said[-1] == f"NOT PROVED on this machine: thrice_cuda (no GPU){left}"
    assert f"the solution {10 if why else 0} of 20 points" in said[-2]


@pytest.mark.skipif(finding.is_here(), reason="a GPU judges the part in CUDA without Triton")
def test_a_machine_without_triton_writes_nothing(kit: contents.Kit, tmp_path: Path) -> None:
    """A Python that finds no triton makes the whole release, up to where the starter is to be judged."""
    without = (
        "import importlib.util as it, sys\n"
        "found = it.find_spec\n"
        "it.find_spec = lambda name, *more: None if name == 'triton' else found(name, *more)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(without)
    ended = subprocess.run(
        [sys.executable, "-c", START, kit.config, tmp_path / "dist"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "WITHOUT": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == EXIT_KIT, ended.stderr
    (line,) = ended.stderr.splitlines()
    # A part in CUDA waits for what this machine lacks of its own.
    wanted = (
        r"nothing was written: this machine has no triton(, (GPU|nvcc))?, and can judge no part of thrice"
    )
    assert re.search(wanted, line), line
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


# ---- a whole release, and what its readers do with it


@pytest.fixture(scope="module")
def made(kit: contents.Kit, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a release for Gradescope, made and proved on this machine, and what it said."""
    out, said = tmp_path_factory.mktemp("dist"), []
    making.release(kit, out, (), said.append)
    return out, said


@interpreted
def test_a_release_says_what_it_proved_and_what_it_could_not(made: tuple[Path, list[str]]) -> None:
    out, said = made
    assert sorted(path.name for path in out.iterdir()) == ["autograder.zip", "handout.zip"]
    assert any(line.startswith("the starter compiles, earns 0 on ") for line in said)
    assert any(line.startswith("the autograder gives the starter 0 of 20 points") for line in said)
    with zipfile.ZipFile(io.BytesIO((out / "handout.zip").read_bytes())) as archive:
        assert {"scale.py", "scale.cu", "docs/handout.md", "writeup_template.md"} <= {*archive.namelist()}
    opened = [line for line in said if line.startswith("NOT PROVED on this machine: ")]
    if not finding.is_here():
        lacks = "GPU" if devicebuild.nvcc() else "nvcc"
        assert opened == [
            f"NOT PROVED on this machine: thrice_cuda (no {lacks}); the times of thrice (no GPU)"
        ]
        assert said[-4].endswith("(right, and open until times are judged: thrice; not judged: thrice_cuda)")


@interpreted
def test_an_autograder_judges_one_file_without_the_other(
    made: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scale.py alone, beside a file that nobody asked for."""
    unpack((made[0] / "autograder.zip").read_bytes(), tmp_path / "source")
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "scale.py").write_text(LAB["scale.py"].replace("number * 3.0", "number * 2.0"))
    (tmp_path / "submission" / "helper.py").write_text("raise SystemExit(9)\n")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-m", "grader", "gradescope", str(tmp_path)],
        cwd=tmp_path / "source",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "results" / "results.json").read_text())
    tests = {test["name"].partition(":")[0]: test["output"] for test in reversed(found["tests"])}
    assert found["score"] == 0 and tests["thrice"].startswith("wrong")
    assert (
        tests["thrice_cuda"].startswith("missing")
        and "There is no scale.cu beside scale.py" in tests["thrice_cuda"]
    )


# ---- what else knows the files of an assignment


def test_a_terminal_repeats_no_other_part_s_words() -> None:
    """Parts of one file are told as above; one that lacks something else is not."""
    stream = io.StringIO()
    screen = terminal.Terminal(stream)
    for name, words in (("a", "no GPU for its time"), ("b", "no GPU for its time"), ("c", "no nvcc")):
        lacking = PartResult(
            id=name,
            title=name,
            verdict="unjudged",
            max_points=1.0,
            cases=(),
            diagnosis=Diagnosis("machine_lacks", words),
            waits_for="x",
        )
        screen.verdict(lacking, 0.0)
    shown = stream.getvalue()
    assert shown.count("no GPU for its time") == 1 and shown.count("as above") == 1 and "no nvcc" in shown


def test_the_doctor_of_such_a_handout_misses_no_compiled_reference(
    config: Path, kit: contents.Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = kit.assignment.lab
    monkeypatch.setattr(labs, "load", lambda folder: lab)
    assert list(tools._reference(Host(scratch=tmp_path, has_module=lambda name: True))) == []
    (lost,) = tools._reference(Host(scratch=tmp_path, has_module=lambda name: False))
    assert lost.level == "fail" and devicebuild.TRITON_PACKAGE in lost.remedy
    monkeypatch.undo()
    with pytest.raises(UsageError, match="--editor is for C\\+\\+"):
        students.main(["--editor", "--config", str(kit.public)])


def test_a_watched_assignment_is_judged_again_for_any_of_its_files(
    kit: contents.Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def look(paths: tuple[Path, ...], on_save: object) -> None:
        raise Seen(*(path.name for path in paths))

    monkeypatch.setattr(loop.files, "Watcher", look)
    task = loop.WatchTask(
        kit.assignment, tmp_path / "mine.py", kit.assignment.parts, Options(), lambda *_: None
    )
    with pytest.raises(Seen) as seen:
        loop.Loop(task).run()
    assert seen.value.args == ("mine.py", "mine.cu", "module.ispc")


def test_a_workflow_annotates_the_further_file(
    kit: contents.Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the student's own command line, which is what a handout has."""
    for name in ("scale.py", "scale.cu"):
        (tmp_path / name).write_text(LAB[name])
    seen: list[github.Sources] = []
    monkeypatch.setattr(github, "publish", lambda a, result, scored, sources, seconds: seen.append(sources))
    monkeypatch.setattr(devicebuild, "nvcc", lambda: "")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))
    gpt149 = importlib.import_module("gpt149")
    asked = ["thrice_cuda", "--config", kit.public, "--module", tmp_path, "--no-time", "--no-table"]
    assert gpt149.run([*map(str, asked), "--github"]) == EXIT_KIT
    (sources,) = seen
    assert sources.path("scale.cu") == "scale.cu" and sources.texts["scale.cu"] == LAB["scale.cu"]
