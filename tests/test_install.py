"""The kit without a clone: a wheel in an empty environment, `init`'s folder, and version and commit in results."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import setuptools
from conftest import ROOT, python, refused

import grader
from grader.assignment import labs, loading, starter
from grader.core import imports, version
from grader.judge.bench import Bench, Options
from grader.staff import options
from grader.staff.release import contents


@pytest.mark.parametrize("lab", labs.known())
def test_init_writes_a_folder(lab: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(tmp_path / "hw"), "--lab", lab]
    assert starter.main(given) == 0
    written = {path.name: path.read_text() for path in (tmp_path / "hw").iterdir()}
    assert all(map(capsys.readouterr().out.__contains__, written))
    assert labs.assignment_file(labs.named(lab)).read_text() in written.values() and len(written) >= 2
    assert not any("SOLUTION" in text or "STARTER" in text for text in written.values())
    writeup = written.get("writeup.md", "")
    command = labs.command(labs.named(lab), f"python {ROOT / 'gpt149.py'}")
    assert "make writeup" not in writeup and writeup.count("gpt149.py ") == writeup.count(f"{command} ")
    refused("already holds", starter.main, given)


def test_init_writes_nothing_beside_a_file_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "writeup.md").symlink_to(tmp_path / "nowhere")
    refused("already holds writeup.md", starter.main, [str(tmp_path)])
    mistaken = [str(tmp_path), "--lab", "sofmax"]
    refused("no lab is called 'sofmax'; did you mean softmax?", starter.main, mistaken)
    assert [path.name for path in tmp_path.iterdir()] == ["writeup.md"]


def test_both_commands_print_version_and_commit() -> None:
    for command in (("gpt149.py",), ("-m", "grader")):
        ended = python(*command, "--version")
        assert ended.returncode == 0 and ended.stdout == f"{version.line()}\n"
    assert version.line().startswith(f"gpt149 {grader.__version__}")


def test_messages_name_the_command_that_their_reader_has(tmp_path: Path) -> None:
    """Messages in a class's feedback name the handout's command; other messages that of a kit with all labs."""
    softmax = loading.load(labs.assignment_file(labs.named("softmax")))
    bench = Bench(softmax, tmp_path, Options(), *[None] * 4)  # type: ignore[arg-type]
    assert bench.command == "python gpt149.py lab softmax"
    assert replace(bench, options=options(softmax, False)).command == "python gpt149.py"
    assert labs.command(labs.named(labs.main())) == "python gpt149.py"
    assert labs.command(tmp_path / "a b" / "rows", "gpt149") == f"gpt149 lab --labs '{tmp_path / 'a b'}' rows"


def test_the_commit_note_counts_before_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handout may be in a student's git repository, so the kit prefers the commit in its own `version.NOTE`."""
    monkeypatch.setattr(version, "ROOT", tmp_path)
    assert version.commit.__wrapped__() == ""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert version.commit.__wrapped__() == "", "no commit yet"
    (tmp_path / version.NOTE).write_text("0123456789ab\n")
    assert version.commit.__wrapped__() == "0123456789ab"


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """Return the module setup.py, imported without building a wheel."""
    spec = spec_from_file_location("setup_of_the_kit", ROOT / "setup.py")
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **_: None)
        spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_a_wheel_has_all_files_of_a_release(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = contents.kit(ROOT, labs.assignment_file(labs.named(labs.main()), staff=True))
    copied, copy = [kit.config, *kit.masters.values()], contents._file
    monkeypatch.setattr(contents, "_file", lambda path: copied.append(path) or copy(path))
    assert contents.handout(kit, {}) and contents.autograder(kit)
    for path in (*copied, *imports.modules(ROOT).values()):
        inside = path.relative_to(ROOT).as_posix()
        assert inside in setup.FILES or inside.partition("/")[0] in setup.FOLDERS, inside


@pytest.fixture(scope="module")
def installed(setup: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with only the kit's wheel; other packages come from this Python. Return its folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in (*setup.FOLDERS, "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", *setup.FILES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, source / name)
    (source / version.NOTE).write_text("0123456789ab\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = "wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir"
    subprocess.run([*pip, *build.split(), folder, source], cwd=folder, check=True, timeout=300)
    (wheel,) = folder.glob("gpt149-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=300)
    into = ["--python", folder / "venv" / "bin" / "python", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, *into, wheel], cwd=folder, check=True, timeout=300)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    found = filter(None, map(find_spec, ("numpy", "pygments", "rich", "tiktoken", "torch", "yaml")))
    folders = {Path(each.origin).parents[1] for each in found if each.origin}
    (packages / "zz_packages.pth").write_text("".join(f"{folder}\n" for folder in sorted(folders)))
    shutil.rmtree(source)
    return folder


@pytest.mark.full
def test_a_wheel_judges_grades_and_names_itself_in_an_empty_environment(installed: Path) -> None:
    (kit,) = installed.glob("venv/lib/python*/site-packages/gpt149_kit")
    before = {path for path in kit.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    work = installed / "work"

    def call(command: str, *arguments: object, code: int = 0, folder: Path = installed) -> str:
        folders = {"HOME": str(installed), "XDG_CACHE_HOME": str(installed / "cache")}
        how = {"cwd": folder, "env": {"PATH": "/usr/bin:/bin", **folders}, "stdin": subprocess.DEVNULL}
        program = [installed / "venv" / "bin" / command, *map(str, arguments)]
        ended = subprocess.run(program, **how, capture_output=True, text=True, timeout=900)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    for command in ("gpt149", "gpt149-grader"):
        assert call(command, "--version") == f"gpt149 {grader.__version__} (commit 0123456789ab)\n"
    assert "gpt149 4Daccess" in call("gpt149", "init", work)
    quick = ("--no-time", "--no-table")
    said = call("gpt149", "part3", *quick, code=1, folder=work)
    assert "not written yet" in said and "the kit's own solution" not in said
    assert "Smallest that fails: gpt149 part3" in said and "gpt149.py" not in said
    assert "gpt149 init DIR --lab softmax" in call("gpt149", "lab", "softmax", "naive", *quick)
    for name, source in (("ada", kit), ("bob", work)):
        (installed / "class" / name).mkdir(parents=True)
        shutil.copy2(source / "module.cpp", installed / "class" / name)
    options = ("--out", installed / "out", "--no-time", "--tier", "D", "--trust")
    call("gpt149-grader", "run", installed / "class", *options)
    result = json.loads((installed / "out" / "ada" / "result.json").read_text())
    assert {part["verdict"] for part in result["parts"]} == {"pass"}
    assert result["kit"] == {"version": grader.__version__, "commit": "0123456789ab"}
    feedback = (installed / "out" / "ada" / "feedback.txt").read_text()
    assert result["machine"]["load_average"] and "Judged by gpt149" in feedback
    assert "0123456789ab" in (installed / "out" / "report.html").read_text()
    assert "fails: python gpt149.py part3 -N 1" in (installed / "out" / "bob" / "feedback.txt").read_text()
    after = {path for path in kit.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    assert after == before, "caches lie in the user's folder"
    assert (installed / "cache" / "gpt149" / "objects").is_dir()
