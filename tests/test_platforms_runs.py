"""Grading in platforms' folders and containers, in which hostile submissions gain nothing, and their releases."""

import hashlib
import io
import json
import os
import subprocess
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from classes.acting_class import SMALL, Class
from conftest import ROOT, Capture, Patch, grader, insert_at_start, keeping, line_of, put, python, refused
from platform_schemas import FORGING, SCHEMAS, faults, obeyed, require_valid
from releases import OBJECT, Release, proof_setup, release_of

from grader.__main__ import run
from grader.staff import newlab
from grader.staff.classroom import ledger
from grader.staff.platforms import container, prairielearn
from grader.staff.platforms import github as clones
from grader.staff.release import contents, making, products, proofs
from grader.submission import find


def job(folder: Path, files: dict[str, str], config: str) -> Path:
    student = {f"student/{name}": each for name, each in files.items()}
    return put(folder, {**student, "data/data.json": "{}", "tests/configs/gpt149.yaml": config})


def results_of(root: Path) -> dict[str, Any]:
    return require_valid("prairielearn", json.loads((root / "results" / "results.json").read_bytes()))


def half_wrong(master: str) -> str:
    return keeping(master, "myNaiveAttention", "myFusedAttention").replace("/ rowSum", "/ (rowSum + i)", 1)


@pytest.mark.full
def test_a_forgery_gains_nothing_in_a_job_of_prairielearns(tmp_path: Path, master: str) -> None:
    forging = FORGING.replace("RESULTS", str(tmp_path / "results" / "results.json"))
    files = {"module.cpp": forging + half_wrong(master), "results.json": '{"score": 1}'}
    root = job(tmp_path, {**files, "results/results.json": '{"score": 1}'}, SMALL.read_text())
    cases = "hidden_cases:\n  - {name: kept secret, distribution: random, shape: {N: 9}}\nseed: 5\n"
    put(root, {"tests/configs/hidden/gpt149.yaml": f"extends: ../gpt149.yaml\n{cases}"})
    assert prairielearn.main([str(root)]) == 0
    found = results_of(root)
    tests = {test["name"].partition(":")[0]: test for test in found["tests"]}
    assert found["gradable"] and found["score"] < 0.7
    assert found["score"] == pytest.approx(sum(test["points"] for test in tests.values()) / 30, abs=1e-3)
    assert tests["part1"]["points"] == 0 and tests["part1"]["images"]
    assert "kept secret" not in json.dumps(found)
    assert sorted(path.name for path in (root / "results").iterdir()) == ["results.json"]


def test_faults_and_missing_sources_cost_nothing(tmp_path: Path, monkeypatch: Patch, capfd: Capture) -> None:
    """A submission without a source, or a fault of the kit, does not count as an attempt in PrairieLearn."""
    root = job(tmp_path / "a", {"readme.txt": "sorry"}, SMALL.read_text())
    assert prairielearn.main(root) == 0 and "no module.cpp" in results_of(root)["format_errors"][0]
    root = job(tmp_path / "b", {"module.cpp": "int x;"}, "id: [broken")
    assert prairielearn.main(root) == 3 and "not your code's fault" in results_of(root)["format_errors"][0]
    assert "gpt149.yaml" in capfd.readouterr().err and "gpt149.yaml" not in json.dumps(results_of(root))
    monkeypatch.setattr(container, "run", lambda *_: "stopped")
    assert prairielearn.main(root) == 3 and "stopped" not in json.dumps(results_of(root))
    refused("laid out like /grade of PrairieLearn", prairielearn.main, ["absent"])


def in_a_workflow(*command: object, folder: Path, **environment: object) -> subprocess.CompletedProcess[str]:
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    return python(*command, folder=folder, timeout_s=300, **{"PYTHONPATH": ROOT, **files, **environment})


def outputs_of(folder: Path) -> dict[str, str]:
    return dict(row.split("=") for row in (folder / "GITHUB_OUTPUT").read_text().splitlines())


def test_a_step_of_a_workflow_obeys_the_kit_alone(tmp_path: Path, master: str) -> None:
    forged = "::error file=x::forged\\n  ::set-output name=result::x\\n##[error]x\\n</pre>\\n"
    kernels = keeping(master, "myNaiveAttention", "myFusedAttention")
    text = insert_at_start(kernels, "myFusedAttention", f'printf("{forged}"); N -= 1;')
    checkout = tmp_path / "hw1,line=1::x"
    put(checkout / "src", {"Module.cpp": text, "result.json": '{"points": 30}'})
    command = ("-m", "grader", "one", checkout, "--no-time", "--github", "--config", SMALL)
    ended = in_a_workflow(*command, folder=tmp_path, GITHUB_WORKSPACE=tmp_path)
    assert ended.returncode == 1 and ended.stderr == ""
    (line,) = obeyed(ended.stdout)
    at = line_of(text, "torch::Tensor myFusedAttention(")
    place = f"::error file=hw1%2Cline=1%3A%3Ax/src/Module.cpp,line={at},title=part3%3A wrong result::"
    assert line.startswith(place) and "forged" in ended.stdout
    assert outputs_of(tmp_path) == {"status": "fail", "summary": "1 of 2 parts passed, 10 of 30 points"}
    assert "&lt;/pre&gt;" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()


def test_a_checkout_without_the_source_says_so(tmp_path: Path) -> None:
    ended = in_a_workflow("-m", "grader", "one", tmp_path, "--github", "--config", SMALL, folder=tmp_path)
    assert ended.returncode == 1 and ended.stdout.count("::error file=module.cpp,line=1,title=") == 1
    assert "nothing was handed in" in ended.stdout


MAIN = release_of("attention")
AUTHOR = {"GIT_AUTHOR_NAME": "x", "GIT_AUTHOR_EMAIL": "x@y", "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z"}
COMMITTER = {"GIT_COMMITTER_NAME": "committer a <b> 99999999999 +0000\nx", "GIT_COMMITTER_EMAIL": "x@y"}
MESSAGE = "committer x <y> 1 +0000"
GIT = (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", MESSAGE), ("gc", "-q"))


def commit(folder: Path, at: str, *, packed_objects: bool = False) -> None:
    given = {"GIT_COMMITTER_DATE": at, "GIT_CONFIG_GLOBAL": os.devnull}
    environment = {**os.environ, **AUTHOR, **COMMITTER, **given}
    for command in GIT[: 4 if packed_objects else 3]:
        subprocess.run(["git", *command], cwd=folder, env=environment, check=True, capture_output=True)


def refusal(*arguments: object) -> str:
    ended = grader(*arguments, code=2)
    assert ended.stderr.count("\n") == 1 and ended.stdout == ""
    return ended.stderr


#: A roster as GitHub Classroom exported it, until that service was closed.
COLUMNS = "identifier,github_username,github_id,name\n"
STUDENTS = "ada@x.org,ada,1,Ada =1+1\n1002,bob,2,\n1003,x-ada,3,\nlate@x.org,,,\ngone@x.org,gone,5,\n"
ROSTER = "".join('"' + row.replace(",", '","') + '"\r\n' for row in f"{COLUMNS}{STUDENTS}".splitlines())
EXPORT = """Student,ID,SIS User ID,SIS Login ID,Section,A small assignment (7)
    Points Possible,,,,,30
Bob,1,1002,bob@x.org,A,
Ada,2,,ADA@x.org,A,
X,3,1003,y@x.org,A,
"""
GRADED = {"wrong": [0, 20], "broken": [0, 0], "empty": [0, 0], "forged": [0, 20]}


@pytest.mark.full
@pytest.mark.usefixtures("due_date")
def test_clones_are_graded_by_roster_and_commit_times(acting: Class, tmp_path: Path) -> None:
    for k, name in enumerate(("ada", "Bob", "x-ada", "stranger")):
        acting.add(f"hw1-{name}")
        # ada is a minute late. Below, git configuration in ada's clone contains commands, which must not be executed.
        commit(acting.folder / f"hw1-{name}", f"2026-11-15T0{8 - k}:00:00+0000", packed_objects=k == 1)
    with (acting.folder / "hw1-ada" / ".git" / "config").open("a") as owned:
        owned.write(f"[core]\n\tfsmonitor = touch {tmp_path}/owned\n\tpager = touch {tmp_path}/owned\n")
    (acting.folder / "roster.csv").write_text(ROSTER)
    said = acting.grade(commit_times=True)
    assert "roster without a repository (2): late@x.org (not joined), gone@x.org (gone)" in said
    assert "whose student is not in the roster, graded under the folder's name (1): hw1-stranger" in said
    rows = acting.grades()
    late_days = {name.removeprefix("hw1-"): row["late_days"] for name, row in rows.items()}
    assert late_days == {"ada": "1", "Bob": "0", "x-ada": "0", "stranger": "0"}
    assert rows["hw1-ada"]["email"] == "ada@x.org" and rows["hw1-ada"]["name"] == "Ada =1+1"
    assert not (tmp_path / "owned").exists()
    known = {entry.submission_id: entry.identities for entry in ledger.read(acting.out).roster}
    assert known["hw1-x-ada"] == ("sis:1003", "login:1003", "github:x-ada", "github_id:3")
    assert known["hw1-stranger"] == ()
    # A later run still knows times and identities. Rows of a gradebook match by number or by e-mail address.
    assert "without a submission time" not in acting.grade()
    export, filled = tmp_path / "export.csv", acting.out / "canvas.csv"
    export.write_text(EXPORT)
    reported = grader("report", acting.out, "--canvas", export)
    assert [row[-3:] for row in filled.read_text().splitlines()[2:]] == [",30", ",25", ",30"]
    assert "submissions whose student is not in export.csv (1): hw1-stranger" in reported.stdout
    before = filled.read_bytes()
    assert "Moodle in English" in refusal("report", acting.out, "--moodle", export)
    assert "--column needs an export" in refusal("report", acting.out, "--column", "7")
    assert filled.read_bytes() == before and not (acting.out / "moodle.csv").exists()
    (acting.folder / "classroom_roster.csv").write_text("github_username\n")
    size = (acting.out / "ledger.jsonl").stat().st_size
    again = ("run", acting.folder, "--out", acting.out, "--resume", "--tier", "D", "--trust")
    assert "there are two rosters" in refusal(*again) and (acting.out / "ledger.jsonl").stat().st_size == size


def test_a_broken_roster_is_refused_in_one_line(tmp_path: Path) -> None:
    for rows, why in {
        f"{COLUMNS}a,ada,1,\nb,ADA,2,\n": ":3: another student has the same username 'ADA'",
        f"{COLUMNS}a,ada,1,\nA,bob,2,\n": ":3: another student has the same identifier 'A'",
        "identifier,github_username\na,ada\n": ":1: there is no column 'name'",
        'identifier,github_username,name\n"a,ada\n': ":2: .* never closed",
    }.items():
        (tmp_path / "roster.csv").write_text(rows)
        refused(why, clones.read_roster, clones.find_roster(tmp_path))
    (tmp_path / "roster.csv").write_text("id,name\nada,Ada\n")
    assert clones.find_roster(tmp_path) is None, "a table of the course's own"


def test_a_roster_of_classroom_50_names_a_student_by_the_number_of_the_account(tmp_path: Path) -> None:
    rows = "username,first_name,last_name,email,section,github_id\n"
    rows += "ada,Ada,Lovelace,ada@x.org,A,11\nbob-new,Bob,,bob@x.org,B,12\n,Cyd,Diaz,cyd@x.org,A,\n"
    clones_of = ("cs-hw1-ada", "cs-hw1-12", "cs-hw1-eve")
    folder = put(tmp_path / "class", {f"{name}/module.cpp": "int x;" for name in clones_of})
    (folder / "students.csv").write_text(rows)
    found = find(folder, "module.cpp", tmp_path / "a")
    named, notes = clones.named(found, clones.read_roster(clones.find_roster(folder)))
    known = {item.id: (item.name, item.emails, item.identities) for item in named}
    assert known["cs-hw1-ada"] == ("Ada Lovelace", ("ada@x.org",), ("github:ada", "github_id:11"))
    assert known["cs-hw1-12"] == ("Bob", ("bob@x.org",), ("github:bob-new", "github_id:12"))
    assert known["cs-hw1-eve"][2] == () and "cyd@x.org (not joined)" in notes[0] and "cs-hw1-eve" in notes[1]
    (folder / "students.csv").write_text(rows.replace(",12\n", ",11\n"))
    refused(":3: another student has the same github_id '11'", clones.read_roster, folder / "students.csv")


def test_times_of_commits_are_read_or_reported_missing(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    for name in ("detached", "broken", "linked", "plain"):
        put(folder / name, {"module.cpp": "int x;"})
        if name != "plain":
            commit(folder / name, "2026-01-02T03:04:05+0200")
    git = folder / "detached" / ".git"
    (git / "HEAD").write_text((git / "refs" / "heads" / "main").read_text())
    (folder / "broken" / ".git" / "HEAD").write_text("ref: refs/heads/../../../../etc/passwd\n")
    linked = folder / "linked" / ".git" / "refs" / "heads" / "main"
    linked.unlink()
    linked.symlink_to(git / "HEAD")
    found = clones.with_commit_times(find(folder, "module.cpp", tmp_path / "a"), tmp_path)
    times = {item.id: item.submitted_at for item in found}
    assert times.pop("detached").isoformat() == "2026-01-02T01:04:05+00:00"  # type: ignore[union-attr]
    assert set(times.values()) == {None}
    (tmp_path / "b").mkdir()
    plain = [item for item in found if item.id == "plain"]
    refused("no submission is a folder with a commit", clones.with_commit_times, plain, tmp_path / "b")


@pytest.mark.full
def test_a_commit_that_inflates_beyond_gits_memory_has_no_time(tmp_path: Path) -> None:
    """Each commit's message consists of zero bytes, which git stores in a thousandth of their size."""
    head = b"tree %040d\nauthor a <a@b> 0 +0000\ncommitter a <a@b> 1700000000 +0000\n\n" % 0
    for name, size in (("bomb", clones.GIT_MEMORY_BYTES), ("long", 4 * clones.GIT_OUTPUT_BYTES)):
        start = b"commit %d\0" % (len(head) + size)
        digest, packing, data = hashlib.sha1(), zlib.compressobj(1), []
        for piece in (start, head, *([b"\0" * (1 << 20)] * (size >> 20))):
            digest.update(piece)
            data.append(packing.compress(piece))
        path = f".git/objects/{digest.hexdigest()[:2]}/{digest.hexdigest()[2:]}"
        packed = {path: b"".join([*data, packing.flush()]), ".git/HEAD": digest.hexdigest()}
        put(tmp_path / "class" / name, {"module.cpp": "int x;", **packed})
    found = clones.with_commit_times(find(tmp_path / "class", "module.cpp", tmp_path / "a"), tmp_path)
    assert {item.id: item.submitted_at is not None for item in found} == {"bomb": False, "long": True}


def test_folder_names_of_moodle_and_canvas_give_student_ids(tmp_path: Path) -> None:
    ada = "Ada Lovelace_{}_assignsubmission_file_/module.cpp"
    moodle = put(tmp_path / "class", {ada.format(number): "int x;" for number in (123, 124)})
    found = [(item.id, item.name, item.identities) for item in find(moodle, "module.cpp", tmp_path / "a")]
    assert found == [(f"Ada_Lovelace_{k}", "Ada Lovelace", (f"moodle:{k}",)) for k in (123, 124)]
    names = ("doejane_LATE_12345_67890_module-1.cpp", "b_1_2_module.cpp")
    found = find(put(tmp_path / "canvas", dict.fromkeys(names, "int x;")), "module.cpp", tmp_path / "b")
    assert sorted(item.identities for item in found) == [("canvas:1",), ("canvas:12345",)]


def test_a_prairielearn_question_has_all_its_files(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(making, "prebuilt", lambda *_: {})
    monkeypatch.setattr(making, "refuse", lambda *_: None)
    product = products.PRODUCTS["prairielearn"]
    monkeypatch.setitem(products.PRODUCTS, "prairielearn", replace(product, prove=lambda *_: None))
    wanted = (MAIN.kit, tmp_path / "a", (), print, "prairielearn")
    making.release(*wanted)
    question, image = (tmp_path / "a" / "prairielearn" / name for name in ("questions/gpt149", "image"))
    assert faults(json.loads((question / "info.json").read_text()), SCHEMAS["info.json"]) == []
    html = (question / "question.html").read_text()
    assert '<pl-file-upload file-names="module.cpp">' in html and "<pl-external-grader-results>" in html
    assert "{" not in html and "attention" in html.lower()
    assert (question / "tests" / "configs" / "hidden" / "gpt149.yaml").is_file()
    with zipfile.ZipFile(question / "clientFilesQuestion" / "handout.zip") as archive:
        assert "module.cpp" in archive.namelist() and not [n for n in archive.namelist() if "hidden" in n]
    assert (image / "autograder.zip").read_bytes() == MAIN.question["image/autograder.zip"].content
    with zipfile.ZipFile(image / "autograder.zip") as archive:
        fallback = json.loads(archive.read("not_started.json"))
        assert archive.getinfo("run_grader").external_attr >> 16 & 0o111
    assert faults(fallback, SCHEMAS["prairielearn ungradable"]) == []
    docker = (image / "Dockerfile").read_text()
    assert products.IMAGE_KIT.rpartition("/")[0] in docker and "{" not in docker
    refused("prairielearn exists already: remove it", making.release, *wanted)


def test_another_lab_has_its_own_question_and_workflow(tmp_path: Path) -> None:
    other = Release(newlab.write("vsum", tmp_path) / "hidden" / "assignment.yaml")
    made = {path: file.content for path, file in other.question.items()}
    assert b'file-names="vsum.cpp"' in made["questions/vsum/question.html"]
    assert json.loads(made["questions/vsum/info.json"])["externalGradingOptions"]["image"] == "vsum-grader"
    assert b"lab: vsum" in made["questions/vsum/tests/configs/gpt149.yaml"]
    with zipfile.ZipFile(io.BytesIO(made["image/autograder.zip"])) as archive:
        assert {"labs/vsum/oracle.py", "vsum.cpp", "run_grader"} <= set(archive.namelist())
    assert b"vsum.cpp" in products.PRODUCTS["github"].in_handout(other.kit)[products.WORKFLOW].content


@pytest.mark.full
def test_a_job_without_the_kit_is_not_gradable(tmp_path: Path) -> None:
    contents.unpack(MAIN.question["image/autograder.zip"].content, tmp_path / "source")
    grade = tmp_path / "grade"
    grade.mkdir()
    (grade / "results").symlink_to(tmp_path)
    ended = subprocess.run([tmp_path / "source" / "run_grader", grade], capture_output=True, text=True)
    assert ended.returncode == 3 and "setup.sh failed" in ended.stderr
    assert results_of(grade)["gradable"] is False and not (tmp_path / "results.json").exists()


@pytest.mark.full
def test_the_workflow_calls_the_kit(tmp_path: Path, master: str) -> None:
    flow = yaml.safe_load(products.PRODUCTS["github"].in_handout(MAIN.kit)[products.WORKFLOW].content)
    assert flow["permissions"] == {"contents": "read"}
    assert flow[True] == ["push"], "YAML 1.1 reads 'on' as true"
    (work,) = flow["jobs"].values()
    (step,) = (step for step in work["steps"] if "id" in step)
    wrong = half_wrong(master)
    (tmp_path / "module.cpp").write_text(wrong)
    program, *command = step["run"].split()
    assert (program, *command[:2]) == (".venv/bin/python", "-m", "grader")
    # Pretend that the staff's packages are missing, as in a handout.
    alone = "import sys, grader.__main__ as it; it.has_room = lambda _: False; sys.exit(it.run(sys.argv[1:]))"
    ended = in_a_workflow("-c", alone, *command[2:], "--config", SMALL, folder=tmp_path)
    assert ended.returncode == 1, ended.stderr
    (line,) = obeyed(ended.stdout)
    at = line_of(wrong, "/ (rowSum + i)")
    assert line.startswith(f"::error file=module.cpp,line={at},title=part1%3A wrong result::")
    assert outputs_of(tmp_path)["status"] == "fail"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a release's bundle with a small assignment in its handout. Return the path of autograder.py."""
    handout = {**MAIN.handout, "configs/gpt149.yaml": contents.File(SMALL.read_bytes())}
    # Replace the prebuilt object by the reference's sources. Objects made from these are in the tests' cache.
    del handout[OBJECT]
    handout |= {path: file for path, file in MAIN.autograder.items() if path.startswith("module_ref_stub/")}
    files = products.PRODUCTS["classroom50"].rest(MAIN.kit, contents.packed(handout))
    made = {path: file.content for path, file in files.folders["classroom50"].items()}
    return put(tmp_path_factory.mktemp("bundle"), made) / "autograders" / "gpt149" / products.BUNDLE_SCRIPT


def called(bundle: Path, checkout: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Call autograder.py in a checkout as Classroom 50's runner does. Return the ended process and result.json."""
    outside = put(checkout.parent / f"of {checkout.name}", {})
    outside.mkdir(exist_ok=True)
    files = {name: outside / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    given = {**products.CLASSROOM50_SAMPLE, **files, "GITHUB_WORKSPACE": checkout}
    ended = python(bundle, folder=checkout, timeout_s=300, code=0, **given)
    found = require_valid("classroom50", json.loads((checkout / "result.json").read_text()))
    assert (checkout / "release-body.md").read_text().startswith("**")
    assert "<script" not in (checkout / "verdict.html").read_text()
    return ended, found


@pytest.mark.full
@pytest.mark.parametrize("kind", ["forged", "empty", "broken", "wrong", "right", "hostile"])
def test_a_bundle_of_classroom_50_grades_all(kind: str, bundle: Path, tmp_path: Path, master: str) -> None:
    scores, status = GRADED.get(kind, [10, 20]), "fail" if kind in GRADED else "pass"
    right = keeping(master, "myNaiveAttention", "myFusedAttention")
    checkout = tmp_path / "cs-hw1-ada"
    files = {"README.md": "hello", "module.cpp": right}
    if kind == "wrong":
        files["module.cpp"] = half_wrong(master)
    elif kind == "broken":
        files["module.cpp"] = right.replace("return", "retrun", 1)
    elif kind == "empty":
        del files["module.cpp"]
    elif kind == "hostile":
        checkout = tmp_path / "::error file=x::y, 'z' %0A"
        names = ("gpt149.py", "grader/__init__.py", "numpy.py", "yaml.py", "sitecustomize.py", "zipfile.py")
        # The checkout has modules that would write a result if the kit imported them.
        files |= dict.fromkeys(names, "open('result.json', 'w').write('{}'); raise SystemExit(0)\n")
        files |= {"configs/gpt149.yaml": "id: [", "::error::x": "", "-rf": ""}
    elif kind == "forged":
        forging = FORGING.replace("RESULTS", str(checkout / "result.json"))
        files |= {"module.cpp": forging + half_wrong(master), "result.json/x": ""}
        files["release-body.md"] = "**100 %**"
    put(checkout, files)
    if kind == "forged":
        (tmp_path / "kept").write_text("kept")
        (checkout / "verdict.html").symlink_to(tmp_path / "kept")
    ended, found = called(bundle, checkout)
    assert [test["score"] for test in found["tests"]] == scores
    assert (found["score"], found["max-score"]) == (sum(scores), 30)
    assert [test["passed"] for test in found["tests"]] == [score > 0 for score in scores]
    assert outputs_of(tmp_path / f"of {checkout.name}")["status"] == status
    assert len(obeyed(ended.stdout)) == (0 if status == "pass" else 1)
    if kind == "broken":
        assert "retrun" in found["tests"][0]["message"]
    elif kind == "empty":
        assert "nothing was handed in: there is no file module.cpp" in found["tests"][0]["message"]
    elif kind == "forged":
        assert (tmp_path / "kept").read_text() == "kept"
        assert "100 %" not in (checkout / "release-body.md").read_text()


@pytest.mark.full
def test_a_bundle_that_cannot_start_leaves_no_result(bundle: Path, tmp_path: Path) -> None:
    broken = put(tmp_path / "bundle", {"packages.txt": "numpy\n", "handout.zip": "not a zip"})
    (broken / bundle.name).write_bytes(bundle.read_bytes())
    checkout = put(tmp_path / "checkout", {"result.json": "{}", "module.cpp": "int x;"})
    ended = python(broken / bundle.name, folder=checkout, **products.CLASSROOM50_SAMPLE)
    assert ended.returncode == 3 and "not the fault of the submission" in ended.stderr
    assert [path.name for path in checkout.iterdir()] == ["module.cpp"]


def test_a_link_is_not_judged(bundle: Path, tmp_path: Path) -> None:
    checkout = put(tmp_path / "checkout", {"README.md": ""})
    (checkout / "module.cpp").symlink_to(ROOT / "module.cpp")
    assert called(bundle, checkout)[1]["score"] == 0


@pytest.mark.parametrize("name", ["nowhere/out", "folder"])
def test_a_github_file_that_cannot_be_written_is_reported_first(tmp_path: Path, name: str) -> None:
    put(tmp_path, {"module.cpp": "", "folder/file": ""})
    command = ("-m", "grader", "one", tmp_path / "module.cpp", "--github")
    ended = in_a_workflow(*command, folder=tmp_path, GITHUB_OUTPUT=tmp_path / name)
    assert ended.returncode == 2 and ended.stdout == "", ended.stdout
    assert ended.stderr.startswith("grader: GITHUB_OUTPUT: cannot write ") and ended.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "module.cpp"]


@pytest.mark.full
@pytest.mark.parametrize("more", ["", "*.h\n"], ids=["as it is", "with a pattern too many"])
def test_a_repository_takes_every_file_of_a_handout(more: str, tmp_path: Path) -> None:
    """A pattern of .gitignore could match folders of the kit by mistake; clones would then lack these files."""
    compiled = {"module_ref_stub/prebuilt/object.o": b"o", "labs/attention/studies/prebuilt/program": b"p"}
    files = {**contents.handout(MAIN.kit, compiled), **products.PRODUCTS["github"].in_handout(MAIN.kit)}
    files[".gitignore"] = contents.File(files[".gitignore"].content + more.encode())
    bench, said = proof_setup(MAIN.kit, tmp_path)
    if more:
        left_out = r"\.gitignore .* excludes \S+\.h and \d+ more from"
        refused(left_out, proofs.git_takes_all, bench, contents.packed(files), of=proofs.Unproved)
    else:
        proofs.git_takes_all(bench, contents.packed(files))
    assert said == ([] if more else ["the handout's .gitignore excludes none of its files"])


def test_a_platform_without_a_release_is_reported(tmp_path: Path, capsys: Capture) -> None:
    for name in ("canvas", "nowhere"):
        known = "--platform takes gradescope, github, classroom50, prairielearn"
        refused(known, run, ["release", "--platform", name, "--out", str(tmp_path / "dist")])
    assert not (tmp_path / "dist").exists() and run(["platforms"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["gradescope", "github", "classroom50", "prairielearn", "canvas", "moodle"]
    assert run(["platforms", "canvas"]) == 0 and "students see" in capsys.readouterr().out
    refused("choose one of gradescope", run, ["platforms", "gitub"])
    assert capsys.readouterr().out == ""
