"""A release: the same bytes each time, nothing of the staff in the handout, nothing written that is not proved."""

from __future__ import annotations

import ctypes
import io
import json
import os
import platform
import random
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from grader import __main__ as command_line
from grader import study
from grader.assignment.loading import load
from grader.assignment.regions import strip_solution
from grader.base import imports, prebuilt
from grader.base.arrays import np
from grader.base.errors import KitError, UsageError
from grader.build.toolchain import cache_root, toolchain
from grader.doctor import Host, tools
from grader.run.calls import Request
from grader.run.nativehost import NativeHost
from grader.staff.release import contents, making, proofs, search, stripping
from grader.staff.release.archive import File, packed, unpack
from module_ref_stub import library

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "hidden" / "gpt149.yaml"
LIBRARY = prebuilt.name(library.STEM, platform.system(), platform.machine())
OBJECTS = "module_ref_stub/prebuilt"
PATH = f"{OBJECTS}/{LIBRARY}"


@pytest.fixture(scope="module")
def kit() -> contents.Kit:
    return contents.kit(ROOT, CONFIG)


@pytest.fixture(scope="module")
def handout(kit: contents.Kit) -> dict[str, File]:
    return contents.handout(kit, {PATH: b"\x7fELF an object"})


@pytest.fixture(scope="module")
def secrets(kit: contents.Kit) -> list[stripping.Secret]:
    return search.secrets(kit)


# ---- archives


def test_an_archive_depends_on_its_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"room{k}/file": File(bytes([k]) * 999, executable=k % 2 == 0) for k in range(9)}
    first = packed(files)
    shuffled = list(files.items())
    random.Random(1).shuffle(shuffled)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        assert packed(dict(shuffled)) == first
        unpack(first, tmp_path)
    finally:
        os.umask(before)
    assert os.access(tmp_path / "room0" / "file", os.X_OK) and not os.access(tmp_path / "room1/file", os.X_OK)
    assert (tmp_path / "room8" / "file").read_bytes() == bytes([8]) * 999
    with pytest.raises(KitError, match="outside"):
        packed({"../out": File(b"")})


def test_a_prebuilt_object_has_the_same_bytes_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unoptimised, and one level alone: what differs between two builds would differ here as well. No name of the
    source's own is left in it."""
    monkeypatch.setattr(library, "COMMON_FLAGS", ("-std=c++17", "-O0", "-fPIC"))
    folders = (tmp_path / "here", tmp_path / "or" / "there")
    for folder in folders:
        folder.mkdir(parents=True)
    made = [library.build_prebuilt(each, "Linux", "other", str(toolchain().compiler)) for each in folders]
    assert made[0].read_bytes() == made[1].read_bytes()
    assert b"kernels.cpp" not in made[0].read_bytes() and b"blockedScores" not in made[0].read_bytes()


# ---- what a handout holds


def test_every_import_of_the_handout_resolves_inside_it(
    handout: dict[str, File], kit: contents.Kit, tmp_path: Path
) -> None:
    unpack(packed(handout), tmp_path)
    proofs.imports_resolve(tmp_path)
    rooms = set(imports.modules(tmp_path))
    assert not [name for name in rooms if contents.within(name, contents.STAFF_ROOMS)]
    # What command lines import by name, which no reading of imports finds.
    known = imports.modules(ROOT)
    by_name = [module for module, _ in study.commands(kit.assignment.lab).values()]
    assert {name for name in by_name if name in known} <= rooms
    needed = imports.third_party(tmp_path, rooms)
    listed = {
        "yaml",
        "regex",
        "torch",
        *re.findall(r"^\w+", handout["requirements.txt"].content.decode(), re.M),
    }
    assert needed <= listed, "the handout's requirements.txt lacks one"
    (tmp_path / "grader" / "judge" / "oracle.py").unlink()
    with pytest.raises(proofs.Unproved, match=r"imports grader.judge.oracle, which is not in it"):
        proofs.imports_resolve(tmp_path)


def test_a_handout_has_what_students_need_and_no_commands_of_the_staff(
    handout: dict[str, File], kit: contents.Kit, tmp_path: Path
) -> None:
    for path in ("gpt149.py", "Makefile", "README.md", "textgen/data/plays.safetensors", "docs/handout.md"):
        assert handout[path].content
    assert handout["module.cpp"].content.decode() == strip_solution(kit.solutions["module.cpp"])
    assert load(kit.public).seed is None and handout["configs/gpt149.yaml"].content == kit.public.read_bytes()
    assert not any(path.endswith((".pyc", "kernels.cpp", "dispatch.cpp")) for path in handout)
    assert (
        b"{" not in handout["README.md"].content and b"python gpt149.py part4" in handout["README.md"].content
    )
    # VS Code reads comments in it; nobody else has to.
    text = handout[contents.EDITOR_TASKS].content.decode()
    tasks = json.loads(re.sub(r"^ *//.*$", "", text, flags=re.MULTILINE))
    judge, watch = tasks["tasks"][:2]
    assert tasks["inputs"][0]["options"][-2:] == ["part4", "all"] and "--watch" in watch["args"]
    pattern = re.compile(judge["problemMatcher"]["pattern"]["regexp"])
    for line in ("  results  module.cpp:12: error: x", "           module.cpp:7:3: fatal error: x"):
        assert (found := pattern.match(line)) and found[1] == "module.cpp" and found[5] == "x", line
    assert not pattern.match("  results  right on 9 of 9 inputs, largest error: 3.5e-06")
    unpack(packed(handout), tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "grader", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "doctor" in ended.stdout and "writeup" in ended.stdout
    assert not any(f"\n    {name}" in ended.stdout for name in ("run", "similar", "release", "selftest"))


def test_a_lab_s_handout_speaks_of_its_own_parts_alone(tmp_path: Path) -> None:
    """In a handout its lab is the main one; what only another lab can do, the demo, is neither offered nor told of."""
    kit = contents.kit(ROOT, ROOT / "labs" / "operators" / "hidden" / "assignment.yaml")
    files = contents.handout(kit, {})
    for path in ("README.md", "Makefile"):
        assert b"module.cpp" not in files[path].content and b"operators.cpp" in files[path].content, path
    readme = files["README.md"].content.decode()
    for part in kit.assignment.parts:
        assert re.search(rf"^    python gpt149\.py {part.command} +[A-Z]", readme, re.MULTILINE), part.command
    assert contents.DEMO not in files
    unpack(packed(files), tmp_path)
    ended = subprocess.run(
        [sys.executable, "gpt149.py", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "maxpool2d_backward" in ended.stdout
    assert "--inference" not in ended.stdout and "compare:" not in ended.stdout
    assert "module.cpp" not in ended.stdout


@pytest.mark.parametrize("lab", ["attention", "softmax", "operators", "gpu"])
def test_the_autograder_s_setup_ends_well(lab: str, kit: contents.Kit, tmp_path: Path) -> None:
    """It runs while an image is built, of whichever lab: all that it names has to be in the archive. Installing is
    played by scripts; what else it calls is this Python, in the folder of the archive."""
    if lab != "attention":
        kit = contents.kit(ROOT, ROOT / "labs" / lab / "hidden" / "assignment.yaml")
    source, played = tmp_path / "source", tmp_path / "bin"
    unpack(packed(contents.autograder(kit)), source)
    python = f'#!/bin/sh\nGPT149_CACHE="{cache_root()}" exec "{sys.executable}" "$@"\n'
    for path, script in {
        source / ".venv/bin/python": python,
        source / ".venv/bin/pip": "#!/bin/sh\n",
        played / "python3": "#!/bin/sh\n",
        played / "apt-get": "#!/bin/sh\nexit 1\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "GPT149_CACHE")
    }
    environment |= {"TORCH": "", "TORCH_INDEX": "", "PATH": f"{played}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(["bash", source / "setup.sh"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "compiled reference" not in ended.stdout, (
        "the doctor asks this lab's reference, whose sources are there"
    )
    closed = [name for name in contents.PRIVATE if (source / name).exists()] + [kit.assignment.source]
    assert {"configs/hidden", "labs"} < {*closed}
    assert [name for name in closed if (source / name).stat().st_mode & 0o077] == []


def test_the_autograder_holds_what_grades(kit: contents.Kit, tmp_path: Path) -> None:
    files = contents.autograder(kit)
    unpack(packed(files), tmp_path)
    for script in ("setup.sh", "run_autograder"):
        assert os.access(tmp_path / script, os.X_OK) and files[script].content.startswith(
            b"#!/usr/bin/env bash"
        )
        assert b"{" not in files[script].content.replace(b"${", b"")
        subprocess.run(["bash", "-n", str(tmp_path / script)], check=True)
    assert load(tmp_path / "configs" / "hidden" / "gpt149.yaml").seed == kit.assignment.seed
    assert (tmp_path / "labs/attention/threats/rows.py").is_file() and (
        tmp_path / "module_ref_stub/kernels.cpp"
    ).is_file()
    found = imports.modules(tmp_path)
    lost = [each for each in imports.missing(tmp_path, found) if not each.late]
    assert not lost, lost


def laid_out(kit: contents.Kit, root: Path, python: str | None) -> Path:
    """Gradescope's folders, with the autograder in source/ and, for its .venv, this script as Python."""
    unpack(packed(contents.autograder(kit)), root / "source")
    (root / "submission").mkdir()
    if python is not None:
        (root / "source" / ".venv" / "bin").mkdir(parents=True)
        (root / "source" / ".venv" / "bin" / "python").write_text(python)
        (root / "source" / ".venv" / "bin" / "python").chmod(0o755)
    return root


@pytest.mark.parametrize(
    ("python", "word"),
    [
        (None, ".venv has no Python"),
        ("#!/bin/sh\necho 'ModuleNotFoundError: no module named yaml' >&2\nexit 1\n", "ModuleNotFoundError"),
        ("#!/no/such/interpreter\n", ".venv/bin/python"),
    ],
    ids=["no environment", "an empty one", "a broken one"],
)
@pytest.mark.parametrize("before", ["nothing", "a folder", "a link"])
def test_an_autograder_that_cannot_start_leaves_a_result_that_says_so(
    kit: contents.Kit, tmp_path: Path, python: str | None, word: str, before: str
) -> None:
    root = laid_out(kit, tmp_path / "autograder", python)
    if before != "nothing":
        (root / "results").mkdir()
    if before == "a folder":
        (root / "results" / "results.json").mkdir()
    if before == "a link":
        (tmp_path / "elsewhere").write_text("untouched")
        (root / "results" / "results.json").symlink_to(tmp_path / "elsewhere")
    ended = subprocess.run([root / "source" / "run_autograder", root], capture_output=True, text=True)
    assert ended.returncode != 0 and word in ended.stderr
    found = json.loads((root / "results" / "results.json").read_text())
    assert found["score"] == 0 and "not your code's fault" in found["output"]
    seen = [test for test in found["tests"] if test["visibility"] == "visible"]
    staffs = [test for test in found["tests"] if test["visibility"] == "hidden"]
    assert [test["max_score"] for test in seen] == [93] and ".venv" not in seen[0]["output"]
    assert "setup.sh" in staffs[0]["output"] and "build log" in staffs[0]["output"]
    if before == "a link":
        assert (tmp_path / "elsewhere").read_text() == "untouched"


def test_what_the_kit_finds_takes_the_place_of_that_result(kit: contents.Kit, tmp_path: Path) -> None:
    script = '#!/bin/sh\necho \'{"score": 7}\' > ../results/results.json\necho "$@" > ../asked\n'
    root = laid_out(kit, tmp_path, script)
    subprocess.run([root / "source" / "run_autograder", root], check=True)
    assert json.loads((root / "results" / "results.json").read_text()) == {"score": 7}
    assert (root / "asked").read_text().split() == ["-m", "grader", "gradescope", str(root)]


# ---- the search


def test_the_handout_gives_nothing_away(
    handout: dict[str, File], secrets: list[stripping.Secret], kit: contents.Kit
) -> None:
    assert len(secrets) > 200
    assert not search.leaks(handout, secrets) and not search.strangers(handout, kit)


def solution_line(kit: contents.Kit) -> str:
    return next(line for line in kit.solutions["module.cpp"].splitlines() if "score +=" in line)


@pytest.mark.parametrize(
    ("path", "planted", "told"),
    [
        ("docs/handout.md", solution_line, r"docs/handout.md:\d+ holds the solution, module.cpp:\d+"),
        ("module.cpp", lambda kit: "// " + solution_line(kit), r"module.cpp:\d+ holds the solution"),
        ("README.md", lambda kit: f"seed {kit.assignment.seed}", "README.md:.* holds a hidden seed"),
        ("README.md", lambda kit: f"0x{kit.assignment.seed:x}", "holds a hidden seed"),
        (
            PATH,
            lambda kit: kit.assignment.seed.to_bytes(8, "little"),
            "holds a hidden seed, in binary",
        ),
        ("grader/study/__init__.py", lambda kit: "# hidden tiles of one", "name of the hidden case"),
        (
            "docs/demo.md",
            lambda kit: "\n".join((ROOT / "module_ref_stub/kernels.cpp").read_text().splitlines()[-20:-10]),
            "holds the reference, module_ref_stub/kernels.cpp",
        ),
        (
            "docs/demo.md",
            lambda kit: (ROOT / "configs/hidden/writeup_key.yaml").read_text().splitlines()[-3],
            "what is for the staff, writeup_key.yaml",
        ),
    ],
)
def test_a_secret_is_found_wherever_it_is_put(
    handout: dict[str, File],
    secrets: list[stripping.Secret],
    kit: contents.Kit,
    path: str,
    planted,
    told: str,
) -> None:
    text = planted(kit)
    before = handout[path]
    data = text if isinstance(text, bytes) else text.encode()
    leaky = {path: replace(before, content=before.content + b"\n" + data + b"\n")}
    (found,) = search.leaks(leaky, secrets)
    assert re.search(told, found), found


def test_a_public_part_s_name_is_no_secret(kit: contents.Kit) -> None:
    """The staff's file of a lab names the parts that it adds to; what it adds is secret."""
    text = "parts:\n  - id: softmax_long\n    hidden_cases:\n      - {name: hidden gaps, shape: {lines: 3}}\n"
    found = stripping.of_staff_text(text, "staff.yaml", ["softmax_long"])
    assert [secret.what for secret in found] == ["what is for the staff, staff.yaml:4"]
    assert len(stripping.of_staff_text(text, "staff.yaml", ["softmax"])) == 2
    for lab in ("softmax", "operators", "gpu"):
        other = contents.kit(ROOT, ROOT / "labs" / lab / "hidden" / "assignment.yaml")
        public = {"configs/gpt149.yaml": File(other.public.read_bytes())}
        assert search.leaks(public, search.secrets(other)) == [], lab


@pytest.mark.parametrize(
    "path",
    [
        "configs/hidden/gpt149.yaml",
        "module_ref_stub/kernels.cpp",
        "labs/attention/threats/rows.py",
        "labs/rows/kernels.py",
        "a.cpp",
    ],
)
def test_files_of_the_staff_are_strangers(kit: contents.Kit, path: str) -> None:
    assert search.strangers({path: File(b"")}, kit)
    with pytest.raises(UsageError, match="nothing was written"):
        search.refuse({path: File(b"")}, kit)


# ---- the proofs


def judged(verdict: str, points: float, told: str = "The output is all zeros: not written yet.") -> dict:
    return {"verdict": verdict, "points": points, "max_points": 10.0, "diagnosis": {"message": told}}


def test_what_starter_and_solution_must_earn() -> None:
    proofs.earns_nothing({"part1": judged("wrong", 0.0)}, "the starter")
    for part, told in (
        (judged("wrong", 1.5), "earns 1.5 points on part1"),
        (judged("pass", 0.0), "is pass on part1"),
        (judged("compile_error", 0.0), "is compile_error"),
        (judged("wrong", 0.0, "V's mean"), "not told on part1 that it is not written yet"),
    ):
        with pytest.raises(proofs.Unproved, match=told):
            proofs.earns_nothing({"part1": part}, "the starter")
    proofs.earns_all({"part1": judged("pass", 10.0)}, "the solution")
    with pytest.raises(proofs.Unproved, match="is slow on part1, with 5 of 10"):
        proofs.earns_all({"part1": judged("slow", 5.0)}, "the solution")


def a_bench(kit: contents.Kit, folder: Path) -> proofs.ProofSetup:
    folder.mkdir()
    return proofs.ProofSetup(kit.assignment, {"module.cpp": "starter"}, {"module.cpp": "solution"}, folder)


def fake_judge(**points: float) -> dict[str, File]:
    """A handout whose judge gives the starter and the solution these points."""
    program = (
        "import json, pathlib, sys\n"
        "text = pathlib.Path('module.cpp').read_text()\n"
        f"points = {points!r}[text]\n"
        "part = dict(id='part1', verdict='pass' if points else 'wrong', points=points, max_points=10.0,\n"
        "            diagnosis=dict(message='not written yet'))\n"
        "pathlib.Path(sys.argv[-1]).write_text(json.dumps(dict(parts=[part])))\n"
    )
    return {"gpt149.py": File(program.encode()), "module.cpp": File(b"starter")}


def test_a_handout_is_judged_in_a_folder_of_its_own(kit: contents.Kit, tmp_path: Path) -> None:
    proofs.handout(a_bench(kit, tmp_path / "a"), packed(fake_judge(starter=0.0, solution=10.0)))
    with pytest.raises(proofs.Unproved, match="the starter in the handout earns 3 points on part1"):
        proofs.handout(a_bench(kit, tmp_path / "b"), packed(fake_judge(starter=3.0, solution=10.0)))
    with pytest.raises(proofs.Unproved, match="the solution in the handout is wrong on part1"):
        proofs.handout(a_bench(kit, tmp_path / "c"), packed(fake_judge(starter=0.0, solution=0.0)))
    with pytest.raises(proofs.Unproved, match="left no result in handout: KeyError: 'starter'"):
        broken = {"gpt149.py": File(b"raise KeyError('starter')")}
        proofs.handout(a_bench(kit, tmp_path / "d"), packed(broken))
    with pytest.raises(proofs.Unproved, match="ended with code 3 in handout: no compiler"):
        broken = {"gpt149.py": File(b"print('no compiler'); raise SystemExit(3)")}
        proofs.handout(a_bench(kit, tmp_path / "e"), packed(broken))


def test_nothing_is_written_that_is_not_proved(
    kit: contents.Kit, handout: dict[str, File], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "handout", lambda *_: handout)
    monkeypatch.setattr(contents, "autograder", lambda *_: {"run_autograder": File(b"#!")})
    monkeypatch.setattr(making, "prebuilt", lambda *_: {})
    monkeypatch.setattr(proofs, "handout", lambda *_: None)

    def refuse(*_: object) -> None:
        raise proofs.Unproved("the autograder gives the solution 70 points, and not 93")

    monkeypatch.setattr(proofs, "autograder", refuse)
    with pytest.raises(UsageError, match="nothing was written: the autograder gives the solution 70"):
        making.release(kit, tmp_path / "dist", (), lambda line: None)
    assert not (tmp_path / "dist").exists()
    monkeypatch.setattr(proofs, "autograder", lambda *_: None)
    said: list[str] = []
    written = [path.read_bytes() for path in making.release(kit, tmp_path / "dist", (), said.append)]
    again = [path.read_bytes() for path in making.release(kit, tmp_path / "again", (), said.append)]
    assert written == again and "sha256" in said[-1]
    with zipfile.ZipFile(io.BytesIO(written[0])) as archive:
        assert sorted(archive.namelist()) == archive.namelist() == sorted(handout)


def test_what_cannot_be_released(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs the staff's file"):
        contents.kit(ROOT, ROOT / "configs" / "gpt149.yaml")
    starter = tmp_path / "module.cpp"
    starter.write_text("int main() {}\n")
    with pytest.raises(UsageError, match="it is a starter, and not the master"):
        contents.kit(ROOT, CONFIG, starter)
    starter.write_text("// BEGIN SOLUTION\nint main() {}\n")
    with pytest.raises(UsageError, match=r"module.cpp: line 1: BEGIN SOLUTION has no END"):
        contents.kit(ROOT, CONFIG, starter)
    with pytest.raises(UsageError, match="no such file"):
        contents.kit(ROOT, CONFIG, tmp_path / "nowhere.cpp")
    for name in ("nowhere.o", f"{library.STEM}-darwin-aarch64.o", f"{library.STEM}-linux-x86_64.so"):
        with pytest.raises(UsageError, match="--reference"):
            making.given_objects((tmp_path / name,), [PATH])


# ---- the reference in a handout


def test_a_handout_finds_its_object_by_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "SOURCE_DIR", tmp_path)
    monkeypatch.setattr(library, "PREBUILT", tmp_path / "prebuilt")
    find = library.object_path
    with pytest.raises(
        KitError, match=r"no compiled reference for .* \(it has none\): use a machine of the course"
    ):
        find()
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "prebuilt" / LIBRARY).write_bytes(b"no object")
    assert find() == tmp_path / "prebuilt" / LIBRARY
    with pytest.raises(
        KitError, match=r"for Darwin on arm64 .*, or ask the staff for libgpt149_ref-darwin-aarch64.o"
    ):
        prebuilt.path(tmp_path / "prebuilt", library.STEM, "compiled reference", "Darwin", "arm64")
    assert prebuilt.name("x", "Linux", "AMD64") == prebuilt.name("x", "Linux", "x86_64")


def test_a_handout_links_its_object_and_the_doctor_tries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a library for torch, and into a program of the native runner."""
    assert not list(tools._reference(Host(scratch=tmp_path))), "a checkout compiles it"
    monkeypatch.setattr(library, "COMMON_FLAGS", ("-std=c++17", "-O0", "-fPIC", "-fvisibility=hidden"))
    made = library.build_prebuilt(tmp_path, platform.system(), platform.machine(), str(toolchain().compiler))
    content = made.read_bytes()
    made.unlink()
    monkeypatch.setattr(library, "has_sources", lambda recipe=library.REFERENCE: False)
    monkeypatch.setattr(library, "PREBUILT", tmp_path)
    (lost,) = tools._reference(Host(scratch=tmp_path))
    assert lost.level == "fail" and "no compiled reference" in lost.what and "ask the staff" in lost.remedy
    made.write_bytes(b"no object")
    (broken,) = tools._reference(Host(scratch=tmp_path))
    assert broken.level == "fail" and "cannot build the reference" in broken.what
    made.write_bytes(content)
    (found,) = tools._reference(Host(scratch=tmp_path))
    assert found.level == "ok", found
    symbols = ctypes.CDLL(str(library.library_path()))
    assert symbols.gpt149_ref_naive and not hasattr(symbols, "gpt149_kernels_baseline")
    ones = np.ones((1, 1, 2, 1), np.float32)
    arguments = [*({"input": k} for k in range(3)), {"input": 3}, *({"value": n} for n in (1, 1, 2, 1))]
    request = Request(
        "gpt149_ref_naive", arguments, [ones, ones, 2 * ones, np.zeros((2, 2), np.float32)], ones.shape
    )
    with NativeHost() as host, host.spawn(library.native_program(), threads=1) as session:
        assert session.death is None
        assert session.call(request).output.ravel().tolist() == [2.0, 2.0]


def test_the_staffs_command_line_knows_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "release" in command_line.parser().format_help()
    monkeypatch.setattr(command_line, "has_room", lambda module: module == "grader.doctor")
    assert "release" not in command_line.parser().format_help()
    with pytest.raises(UsageError, match="invalid choice: 'release'"):
        command_line.run(["release", "--out", "x"])
