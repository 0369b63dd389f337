"""Platforms in the layouts that they lay out: a job of PrairieLearn's, a step of a workflow, a folder of clones, and
the releases for them. A hostile submission gains nothing in any."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, insert_at_start, keeping
from platform_schemas import FORGING, SCHEMAS, faults, obeyed, require_valid
from test_classroom import SMALL, Class, acting, grader

from grader.base.errors import UsageError
from grader.staff import newlab
from grader.staff.classroom import ledger
from grader.staff.platforms import container, prairielearn
from grader.staff.platforms import github as clones
from grader.staff.release import contents, making, products, proofs, search
from grader.staff.release.archive import packed, unpack
from grader.submission import find

__all__ = ["acting"]


# ---- PrairieLearn


def job(folder: Path, files: dict[str, str], config: str) -> Path:
    """The layout of a job: what was handed in, and the question's tests."""
    for path, text in {
        **{f"student/{name}": each for name, each in files.items()},
        "data/data.json": "{}",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "tests" / "configs" / "hidden").mkdir(parents=True)
    (folder / "tests" / "configs" / "gpt149.yaml").write_text(config)
    return folder


def results_of(root: Path) -> dict[str, Any]:
    data = (root / "results" / "results.json").read_bytes()
    assert len(data) <= 1_000_000
    found: dict[str, Any] = json.loads(data)
    kind = "prairielearn" if found["gradable"] else "prairielearn ungradable"
    assert faults(found, SCHEMAS[kind]) == []
    return found


def test_a_job_of_prairielearns_ends_in_its_results_and_a_forgery_gains_nothing(
    tmp_path: Path, master: str
) -> None:
    """Results handed in beside the source, written while loading and at exit, printed: the score is the judge's. Of the
    two parts one is wrong, and its picture is there."""
    place = tmp_path / "results" / "results.json"
    wrong = keeping(master, "myNaiveAttention", "myFusedAttention").replace("/ rowSum", "/ (rowSum + i)", 1)
    hidden = "extends: ../gpt149.yaml\nhidden_cases:\n  - {name: told to nobody, distribution: random, shape: {N: 9}}\n"
    files = {"module.cpp": FORGING.replace("RESULTS", str(place)) + wrong, "results.json": '{"score": 1}'}
    root = job(tmp_path, {**files, "results/results.json": '{"score": 1}'}, SMALL.read_text())
    (root / "tests" / "configs" / "hidden" / "gpt149.yaml").write_text(f"{hidden}seed: 5\n")
    assert prairielearn.main([str(root)]) == 0
    found = results_of(root)
    tests = {test["name"].partition(":")[0]: test for test in found["tests"]}
    assert (
        found["gradable"]
        and found["score"] < 0.7
        and found["score"] == pytest.approx(sum(test["points"] for test in tests.values()) / 30, abs=1e-3)
    )
    assert (
        tests["part1"]["points"] == 0
        and tests["part1"]["images"]
        and "told to nobody" not in json.dumps(found)
    )
    assert sorted(path.name for path in (root / "results").iterdir()) == ["results.json"]


def test_nothing_to_judge_and_faults_of_the_kit_cost_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = job(tmp_path / "a", {"readme.txt": "sorry"}, SMALL.read_text())
    assert prairielearn.main(root) == 0
    assert "no module.cpp" in results_of(root)["format_errors"][0]
    root = job(tmp_path / "b", {"module.cpp": "int x;"}, "id: [broken")
    assert prairielearn.main(root) == 3
    assert "not your code's fault" in results_of(root)["format_errors"][0]
    assert "gpt149.yaml" in capfd.readouterr().err and "gpt149.yaml" not in json.dumps(results_of(root))
    monkeypatch.setattr(container, "run", lambda *_: "stopped")
    assert prairielearn.main(root) == 3 and "stopped" not in json.dumps(results_of(root))
    with pytest.raises(UsageError, match="name PrairieLearn's /grade"):
        prairielearn.main(["absent"])


# ---- a workflow of GitHub's


def test_a_step_of_a_workflow_is_obeyed_by_nobody_but_the_kit(tmp_path: Path, master: str) -> None:
    """The command line on a hostile checkout: a folder and a file of odd names, a kernel that prints commands."""
    printing = (
        r'printf("::error file=x::forged\n  ::set-output name=result::x\n##[error]x\n</pre>\n"); N -= 1;'
    )
    text = insert_at_start(
        keeping(master, "myNaiveAttention", "myFusedAttention"), "myFusedAttention", printing
    )
    folder = tmp_path / "hw1,line=1::x" / "src"
    folder.mkdir(parents=True)
    (folder / "Module.cpp").write_text(text)
    (folder / "result.json").write_text('{"points": 30}')
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    ended = subprocess.run(
        [sys.executable, "-m", "grader", "one", folder.parent, "--no-time", "--github", "--config", SMALL],
        env={**os.environ, **files, "PYTHONPATH": str(ROOT), "GITHUB_WORKSPACE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1 and ended.stderr == ""
    (line,) = obeyed(ended.stdout)
    at = text[: text.index("torch::Tensor myFusedAttention(")].count("\n") + 1
    assert line.startswith(
        f"::error file=hw1%2Cline=1%3A%3Ax/src/Module.cpp,line={at},title=part3%3A wrong result::"
    )
    assert "forged" in ended.stdout
    (output,) = (tmp_path / "GITHUB_OUTPUT").read_text().splitlines()
    found = json.loads(base64.b64decode(output.removeprefix("result=")))
    assert faults(found, SCHEMAS["github"]) == []
    assert [(test["status"], test["score"]) for test in found["tests"]] == [("pass", 10.0), ("fail", 0.0)]
    assert found["status"] == "fail" and found["max_score"] == 30 and found["tests"][1]["line_no"] == at
    assert "&lt;/pre&gt;" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()


def test_a_checkout_without_the_source_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = grader("one", tmp_path, "--github", "--config", SMALL)
    assert told.returncode == 1 and told.stdout.count("::error file=module.cpp,line=1,title=") == 1
    assert "nothing was handed in" in told.stdout


# ---- a folder of clones

GIT = {
    "GIT_AUTHOR_NAME": "x",
    "GIT_AUTHOR_EMAIL": "x@y",
    "GIT_COMMITTER_NAME": "committer a <b> 99999999999 +0000\nx",
    "GIT_COMMITTER_EMAIL": "x@y",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def commit(folder: Path, at: str, *, packed_objects: bool = False) -> None:
    def git(*arguments: str) -> None:
        environment = {
            **os.environ,
            **GIT,
            "GIT_COMMITTER_DATE": at,
            "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
        }
        subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-q", "-m", "committer x <y> 1 +0000")
    if packed_objects:
        git("gc", "-q")


def test_clones_are_graded_by_the_roster_and_the_times_of_their_commits(
    acting: Class, tmp_path: Path
) -> None:
    acting.config.write_text(
        acting.config.read_text() + "late: {due: 2026-11-14T23:59:00-08:00, per_day: {points: 5}}\n"
    )
    for k, name in enumerate(("ada", "Bob", "x-ada", "stranger")):
        acting.add(f"hw1-{name}")
        # Ada's is late by a minute; what a clone's own configuration wants is not done.
        commit(acting.folder / f"hw1-{name}", f"2026-11-15T0{8 - k}:00:00+0000", packed_objects=k == 1)
    owned = acting.folder / "hw1-ada" / ".git" / "config"
    owned.write_text(
        f"{owned.read_text()}[core]\n\tfsmonitor = touch {tmp_path}/owned\n\tpager = touch {tmp_path}/owned\n"
    )
    (acting.folder / "roster.csv").write_text(
        '"identifier","github_username","github_id","name"\r\n"ada@x.org","ada","1","Ada =1+1"\r\n'
        '"1002","bob","2",""\r\n"1003","x-ada","3",""\r\n"late@x.org","","",""\r\n"gone@x.org","gone","5",""\r\n'
    )
    code, said = acting.run(commit_times=True)
    assert code == 0, said
    assert (
        "note: on the roster without a repository here (2): late@x.org (not joined), gone@x.org (gone)"
        in said
    )
    assert (
        "note: repositories of nobody on the roster, graded under their own names (1): hw1-stranger" in said
    )
    rows = acting.grades()
    assert {name: row["late_days"] for name, row in rows.items()} == {
        "hw1-ada": "1",
        "hw1-Bob": "0",
        "hw1-x-ada": "0",
        "hw1-stranger": "0",
    }
    assert rows["hw1-ada"]["email"] == "ada@x.org" and rows["hw1-ada"]["name"] == "Ada =1+1"
    assert not (tmp_path / "owned").exists()
    known = {entry.submission_id: entry.identities for entry in ledger.read(acting.out).roster}
    assert known["hw1-x-ada"] == ("sis:1003", "login:1003", "github:x-ada") and known["hw1-stranger"] == ()
    # Remembered, and good for a gradebook: by its number, by the address.
    code, said = acting.run()
    assert code == 0 and "carry no time" not in said, said
    export = tmp_path / "export.csv"
    export.write_text(
        "Student,ID,SIS User ID,SIS Login ID,Section,A small assignment (7)\n    Points Possible,,,,,30\n"
        "Bob,1,1002,bob@x.org,A,\nAda,2,,ADA@x.org,A,\nX,3,1003,y@x.org,A,\n"
    )
    told = grader("report", acting.out, "--canvas", export)
    assert told.returncode == 0, told.stderr
    assert (acting.out / "canvas.csv").read_text().splitlines()[2:] == [
        "Bob,1,1002,bob@x.org,A,30",
        "Ada,2,,ADA@x.org,A,25",
        "X,3,1003,y@x.org,A,30",
    ]
    assert "submissions of nobody in export.csv (1): hw1-stranger" in told.stdout

    before = (acting.out / "canvas.csv").read_bytes()
    for options, why in (
        (["--moodle", export], "Moodle in English"),
        (["--column", "7"], "--column is of an export"),
    ):
        told = grader("report", acting.out, *options)
        assert (
            told.returncode == 2 and why in told.stderr and told.stderr.count("\n") == 1 and told.stdout == ""
        )
    assert (acting.out / "canvas.csv").read_bytes() == before and not (acting.out / "moodle.csv").exists()
    (acting.folder / "classroom_roster.csv").write_text("github_username\n")
    size = (acting.out / "ledger.jsonl").stat().st_size
    told = grader("run", acting.folder, "--out", acting.out, "--resume", "--tier", "D", "--trust")
    assert told.returncode == 2 and "which roster counts" in told.stderr and told.stderr.count("\n") == 1
    assert (acting.out / "ledger.jsonl").stat().st_size == size


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            "identifier,github_username,github_id,name\na,ada,1,\nb,ADA,2,\n",
            ":3: two students with one username: 'ADA'",
        ),
        (
            "identifier,github_username,github_id,name\na,ada,1,\nA,bob,2,\n",
            ":3: two students with one identifier: 'A'",
        ),
        ("identifier,github_username\na,ada\n", ":1: there is no column 'name'"),
        ('identifier,github_username,name\n"a,ada\n', ":2: .* never closed"),
    ],
)
def test_what_is_no_roster_is_told_in_one_line(rows: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text(rows)
    path = clones.find_roster(tmp_path)
    assert path is not None
    with pytest.raises(UsageError, match=why):
        clones.read_roster(path)
    (tmp_path / "roster.csv").write_text("id,name\nada,Ada\n")
    assert clones.find_roster(tmp_path) is None, "a table of the course's own"


def test_times_of_commits_are_read_or_told_to_be_missing(tmp_path: Path) -> None:
    for name in ("detached", "broken", "linked", "plain"):
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / "module.cpp").write_text("int x;")
        if name != "plain":
            commit(tmp_path / "class" / name, "2026-01-02T03:04:05+0200")
    git = tmp_path / "class" / "detached" / ".git"
    (git / "HEAD").write_text((git / "refs" / "heads" / "main").read_text())
    (tmp_path / "class" / "broken" / ".git" / "HEAD").write_text("ref: refs/heads/../../../../etc/passwd\n")
    linked = tmp_path / "class" / "linked" / ".git" / "refs" / "heads" / "main"
    linked.unlink()
    linked.symlink_to(git / "HEAD")
    found = clones.with_commit_times(find(tmp_path / "class", "module.cpp", tmp_path / "a"), tmp_path)
    times = {item.id: item.submitted_at for item in found}
    assert times.pop("detached").isoformat() == "2026-01-02T01:04:05+00:00"  # type: ignore[union-attr]
    assert set(times.values()) == {None}
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match="no submission is a folder with a commit"):
        clones.with_commit_times([item for item in found if item.id == "plain"], tmp_path / "b")


def test_folders_and_archives_name_whose_they_are(tmp_path: Path) -> None:
    """A download of Moodle's has a folder for each participant, of which the worksheet tells the number."""
    for name in ("Ada Lovelace_123_assignsubmission_file_", "Ada Lovelace_124_assignsubmission_file_"):
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / "module.cpp").write_text("int x;")
    found = find(tmp_path / "class", "module.cpp", tmp_path / "a")
    assert [(item.id, item.name, item.identities) for item in found] == [
        ("Ada_Lovelace_123", "Ada Lovelace", ("moodle:123",)),
        ("Ada_Lovelace_124", "Ada Lovelace", ("moodle:124",)),
    ]
    (tmp_path / "canvas").mkdir()
    (tmp_path / "canvas" / "doejane_LATE_12345_67890_module-1.cpp").write_text("int x;")
    (tmp_path / "canvas" / "b_1_2_module.cpp").write_text("int x;")
    found = find(tmp_path / "canvas", "module.cpp", tmp_path / "b")
    assert sorted(item.identities for item in found) == [("canvas:1",), ("canvas:12345",)]


# ---- releases


@pytest.fixture(scope="module")
def kit() -> contents.Kit:
    return contents.kit(ROOT, ROOT / "configs" / "hidden" / "gpt149.yaml")


def test_a_question_of_prairielearns_has_what_its_course_reads(
    kit: contents.Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "prebuilt", lambda *_: {})
    monkeypatch.setattr(search, "refuse", lambda *_: None)
    product = products.PRODUCTS["prairielearn"]
    monkeypatch.setitem(products.PRODUCTS, "prairielearn", replace(product, prove=lambda *_: None))
    making.release(kit, tmp_path / "a", (), lambda line: None, "prairielearn")
    question = tmp_path / "a" / "prairielearn" / "questions" / "gpt149"
    assert faults(json.loads((question / "info.json").read_text()), SCHEMAS["info.json"]) == []
    html = (question / "question.html").read_text()
    assert '<pl-file-upload file-names="module.cpp">' in html and "<pl-external-grader-results>" in html
    assert "{" not in html and "attention" in html.lower()
    assert (question / "tests" / "configs" / "hidden" / "gpt149.yaml").is_file()
    with zipfile.ZipFile(question / "clientFilesQuestion" / "handout.zip") as archive:
        assert "module.cpp" in archive.namelist() and not [n for n in archive.namelist() if "hidden" in n]
    again = product.rest(kit, b"").folders["prairielearn"]
    image = tmp_path / "a" / "prairielearn" / "image" / "autograder.zip"
    assert image.read_bytes() == again["image/autograder.zip"].content, "the same bytes each time"
    with zipfile.ZipFile(image) as archive:
        fallback = json.loads(archive.read("not_started.json"))
        assert archive.getinfo("run_grader").external_attr >> 16 & 0o111
    assert faults(fallback, SCHEMAS["prairielearn ungradable"]) == []
    docker = (tmp_path / "a" / "prairielearn" / "image" / "Dockerfile").read_text()
    assert products.IMAGE_KIT.rpartition("/")[0] in docker and "{" not in docker
    with pytest.raises(UsageError, match="prairielearn is there already: take it away"):
        making.release(kit, tmp_path / "a", (), lambda line: None, "prairielearn")


def test_another_lab_has_a_question_and_a_workflow_of_its_own(tmp_path: Path) -> None:
    lab = newlab.write("vadd", tmp_path)
    other = contents.kit(ROOT, lab / "hidden" / "assignment.yaml")
    made = products.PRODUCTS["prairielearn"].rest(other, b"").folders["prairielearn"]
    assert b'file-names="vadd.cpp"' in made["questions/vadd/question.html"].content
    assert (
        json.loads(made["questions/vadd/info.json"].content)["externalGradingOptions"]["image"]
        == "vadd-grader"
    )
    assert b"lab: vadd" in made["questions/vadd/tests/configs/gpt149.yaml"].content
    with zipfile.ZipFile(io.BytesIO(made["image/autograder.zip"].content)) as archive:
        assert {"labs/vadd/oracle.py", "vadd.cpp", "run_grader"} <= set(archive.namelist())
    assert b"vadd.cpp" in products.PRODUCTS["github"].in_handout(other)[products.WORKFLOW].content


def test_a_job_without_the_kit_is_not_gradable(kit: contents.Kit, tmp_path: Path) -> None:
    made = products.PRODUCTS["prairielearn"].rest(kit, b"").folders["prairielearn"]
    unpack(made["image/autograder.zip"].content, tmp_path / "source")
    (tmp_path / "grade").mkdir()
    (tmp_path / "grade" / "results").symlink_to(tmp_path)
    ended = subprocess.run(
        [tmp_path / "source" / "run_grader", tmp_path / "grade"], capture_output=True, text=True
    )
    assert ended.returncode == 3 and "setup.sh did not end well" in ended.stderr
    assert results_of(tmp_path / "grade")["gradable"] is False and not (tmp_path / "results.json").exists()


def test_the_workflow_calls_the_kit_and_the_reporter(kit: contents.Kit, tmp_path: Path, master: str) -> None:
    """Its form, and its own command as a handout has it."""
    added = products.PRODUCTS["github"].in_handout(kit)
    flow = yaml.safe_load(added[products.WORKFLOW].content)
    assert flow["permissions"] == {"checks": "write", "actions": "read", "contents": "read"}
    assert flow[True] == ["push"], "YAML 1.1 reads 'on' as true"
    (work,) = flow["jobs"].values()
    assert work["if"] == "github.actor != 'github-classroom[bot]'"
    named, (reporter,) = (
        [step for step in work["steps"] if "id" in step],
        [step for step in work["steps"] if "grading-reporter@" in step.get("uses", "")],
    )
    (step,) = named
    assert reporter["uses"] == "classroom-resources/autograding-grading-reporter@v1"
    assert reporter["with"] == {"runners": step["id"]}
    assert reporter["env"] == {f"{step['id'].upper()}_RESULTS": f"${{{{steps.{step['id']}.outputs.result}}}}"}
    wrong = keeping(master, "myNaiveAttention", "myFusedAttention").replace("/ rowSum", "/ (rowSum + i)", 1)
    (tmp_path / "module.cpp").write_text(wrong)
    program, module, name, *words = step["run"].split()
    assert (program, module, name) == (".venv/bin/python", "-m", "grader")
    # A handout has no rooms of the staff's; a release proves the same in the handout itself.
    alone = "import sys, grader.__main__ as it; it.has_room = lambda _: False; sys.exit(it.run(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", alone, *words, "--config", SMALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_OUTPUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1, ended.stderr
    (line,) = obeyed(ended.stdout)
    at = wrong[: wrong.index("torch::Tensor myNaiveAttention(")].count("\n") + 1
    assert line.startswith(f"::error file=module.cpp,line={at},title=part1%3A wrong result::")
    found = json.loads(base64.b64decode((tmp_path / "out").read_text().removeprefix("result=")))
    assert faults(found, SCHEMAS["github"]) == [] and found["status"] == "fail"


@pytest.mark.parametrize("name", ["nowhere/out", "folder"])
def test_a_file_of_githubs_that_cannot_be_written_is_told_before_anything(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "module.cpp").write_text("")
    files = {"GITHUB_OUTPUT": str(tmp_path / name), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    ended = subprocess.run(
        [sys.executable, "-m", "grader", "one", str(tmp_path / "module.cpp"), "--github"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **files},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2 and ended.stdout == "", ended.stdout
    assert ended.stderr.startswith("grader: GITHUB_OUTPUT: cannot write ") and ended.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "module.cpp"]


@pytest.mark.parametrize("more", ["", "*.h\n"], ids=["as it is", "with a pattern too many"])
def test_a_repository_takes_every_file_of_a_handout(kit: contents.Kit, tmp_path: Path, more: str) -> None:
    """A pattern that is meant for the top folder could name one of the kit's rooms: students' clones would lack it."""
    compiled = {"module_ref_stub/prebuilt/object.o": b"o", "labs/attention/studies/prebuilt/program": b"p"}
    files = {**contents.handout(kit, compiled), **products.PRODUCTS["github"].in_handout(kit)}
    own = files[".gitignore"]
    files[".gitignore"] = replace(own, content=own.content + more.encode())
    said: list[str] = []
    bench = proofs.ProofSetup(kit.assignment, kit.starters, kit.solutions, tmp_path, said.append)
    if more:
        with pytest.raises(proofs.Unproved, match=r"\.gitignore .* leaves \S+\.h and \d+ more out"):
            proofs.git_takes_all(bench, packed(files))
    else:
        proofs.git_takes_all(bench, packed(files))
        assert said == ["a repository takes every file of the handout"]


def test_a_platform_without_a_release_is_told(tmp_path: Path) -> None:
    for name in ("canvas", "nowhere"):
        told = grader("release", "--platform", name, "--out", tmp_path / "dist")
        assert told.returncode == 2 and "--platform takes gradescope, github, prairielearn" in told.stderr
    assert not (tmp_path / "dist").exists()
    listed = grader("platforms").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [
        "gradescope",
        "github",
        "prairielearn",
        "canvas",
        "moodle",
    ]
    assert "students see" in grader("platforms", "canvas").stdout
    told = grader("platforms", "gitub")
    assert told.returncode == 2 and "there are gradescope" in told.stderr
    assert told.stdout == ""
