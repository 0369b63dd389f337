"""A release: equal bytes each time, no secret in the handout, no untested part, and use of both archives."""

import ctypes
import importlib
import io
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from conftest import ROOT, one_of_each, put, python, refused, tiers
from releases import OBJECT, Release, proof_setup, release_of, third_party
from without_card import interpreted

from grader import __main__ as command_line
from grader import study
from grader.assignment import labs, regions
from grader.assignment.loading import load
from grader.backends.gpu import devicebuild
from grader.backends.gpu.card import finding
from grader.backends.native.nativehost import NativeHost
from grader.backends.native.toolchain import cache_root, toolchain
from grader.core import errors, imports, objectcache, places
from grader.core.arrays import np
from grader.doctor import Host, students, tools
from grader.judge.bench import Options
from grader.report import github, gradescope
from grader.runner.calls import Request
from grader.staff.release import contents, making, products, proofs
from grader.staff.release.contents import File, Files, packed, unpack
from grader.study.watching import loop
from grader.submission import companions_of, find
from module_ref_stub import library

MAIN = release_of("attention")
STAFFS = ("configs/hidden/gpt149.yaml", "module_ref_stub/kernels.cpp", "labs/attention/threats/rows.py")
GPU_STAFFS = ("kernels2.cu", "labs/gpu/reference.cu", "labs/gpu/tuned.py", "labs/gpu/known.py")
PUBLIC = f"configs/{contents.CONFIG}"
GPU_LAB = ROOT / "labs" / "gpu"
PYTHON, CUDA = ((GPU_LAB / name).read_text() for name in ("kernels.py", "kernels.cu"))


def test_an_archives_bytes_depend_only_on_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"room{k}/file": File(bytes([k]) * 999, executable=k % 2 == 0) for k in range(9)}
    first = packed(files)
    shuffled = random.Random(1).sample([*files.items()], len(files))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        assert packed(dict(shuffled)) == first
        unpack(first, tmp_path)
    finally:
        os.umask(before)
    assert [k for k in range(9) if os.access(tmp_path / f"room{k}/file", os.X_OK)] == [0, 2, 4, 6, 8]
    assert (tmp_path / "room8" / "file").read_bytes() == bytes([8]) * 999
    refused("leads out of its folder", packed, {"../out": File(b"")}, of=errors.KitError)


def test_a_prebuilt_object_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # To save time, build one instruction-set level without optimisation. Most causes of different bytes show here, too.
    monkeypatch.setattr(library, "COMMON_FLAGS", ("-std=c++17", "-O0", "-fPIC"))
    made = set()
    for folder in (tmp_path / "here", tmp_path / "or" / "there"):
        folder.mkdir(parents=True)
        made.add(library.build_prebuilt(folder, "Linux", "other", str(toolchain().compiler)).read_bytes())
    (content,) = made
    assert not [name for name in (b"kernels.cpp", b"blockedScores") if name in content]


@pytest.mark.full
def test_every_import_of_the_handout_resolves_inside_it(tmp_path: Path) -> None:
    unpack(packed(MAIN.handout), tmp_path)
    proofs.imports_resolve(tmp_path)
    rooms = set(imports.modules(tmp_path))
    assert not [name for name in rooms if contents.within(name, contents.STAFF_ROOMS)]
    # Commands are imported by names in a table, which a search for import statements does not find.
    by_name = {module for module, _ in study.commands(MAIN.kit.assignment.lab).values()}
    assert by_name & {*imports.modules(ROOT)} <= rooms
    listed = {*re.findall(r"^\w+", MAIN.handout["requirements.txt"].content.decode(), re.M)}
    assert third_party(tmp_path, rooms) <= {"yaml", "regex", "torch", *listed}
    (tmp_path / "grader" / "explain" / "oracle.py").unlink()
    lost = "imports grader.explain.oracle, which the handout lacks"
    refused(lost, proofs.imports_resolve, tmp_path, of=proofs.Unproved)


def test_a_handout_has_what_students_need_and_no_commands_of_the_staff(tmp_path: Path) -> None:
    kit, handout = MAIN.kit, MAIN.handout
    for path in ("gpt149.py", "Makefile", "README.md", "textgen/data/plays.safetensors", "docs/handout.md"):
        assert handout[path].content
    assert handout["module.cpp"].content.decode() == regions.strip_solution(kit.solutions["module.cpp"])
    assert load(kit.public).seed is None and handout["configs/gpt149.yaml"].content == kit.public.read_bytes()
    assert not any(path.endswith((".pyc", "kernels.cpp", "dispatch.cpp")) for path in handout)
    readme = handout["README.md"].content
    assert b"{" not in readme and b"python gpt149.py part4" in readme
    # The file has comments, which VS Code allows in JSON.
    text = handout[contents.EDITOR_TASKS].content.decode()
    tasks = json.loads(re.sub(r"^ *//.*$", "", text, flags=re.MULTILINE))
    judge, watch = tasks["tasks"][:2]
    assert tasks["inputs"][0]["options"][-2:] == ["part4", "all"] and "--watch" in watch["args"]
    pattern = re.compile(judge["problemMatcher"]["pattern"]["regexp"])
    for line in ("  results  module.cpp:12: error: x", "           module.cpp:7:3: fatal error: x"):
        assert (found := pattern.match(line)) and found[1] == "module.cpp" and found[5] == "x", line
    assert not pattern.match("  results  right on 9 of 9 inputs, largest error: 3.5e-06")
    unpack(packed(handout), tmp_path)
    said = python("-m", "grader", "--help", folder=tmp_path).stdout
    assert "doctor" in said and "writeup" in said
    assert not any(f"\n    {name}" in said for name in ("run", "similar", "release", "selftest"))


@pytest.mark.full
def test_a_labs_handout_names_only_its_own_parts(tmp_path: Path) -> None:
    release = release_of("operators")
    files = release.handout
    for path in ("README.md", "Makefile"):
        assert b"module.cpp" not in files[path].content and b"operators.cpp" in files[path].content, path
    readme = files["README.md"].content.decode()
    for part in release.kit.assignment.parts:
        assert re.search(rf"^    python gpt149\.py {part.command} +[A-Z]", readme, re.MULTILINE), part.command
    assert not {*contents.MAIN_PAGES} & {*files}
    unpack(packed(files), tmp_path)
    said = python("gpt149.py", "--help", folder=tmp_path).stdout
    assert "maxpool2d_backward" in said
    assert not [each for each in ("--inference", "compare:", "module.cpp") if each in said]


@pytest.mark.parametrize("lab", one_of_each(labs.known(), lambda _: "any"))
def test_the_autograders_setup_script_succeeds(lab: str, tmp_path: Path) -> None:
    """The archive has every file that its scripts name. Fake programs replace the installers and Python."""
    release = release_of(lab)
    source, played = tmp_path / "source", tmp_path / "bin"
    unpack(packed(release.autograder), source)
    python = f'#!/bin/sh\nGPT149_CACHE="{cache_root()}" exec "{sys.executable}" "$@"\n'
    programs = {"source/.venv/bin/python": python, "bin/apt-get": "#!/bin/sh\nexit 1\n"}
    programs |= dict.fromkeys(("source/.venv/bin/pip", "bin/python3"), "#!/bin/sh\n")
    put(tmp_path, programs, 0o755)
    environment = {k: text for k, text in os.environ.items() if k not in ("PYTHONPATH", "GPT149_CACHE")}
    environment |= {"TORCH": "", "TORCH_INDEX": "", "PATH": f"{played}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run(["bash", source / "setup.sh"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "compiled reference" not in ended.stdout, "the reference's sources are there"
    closed = {name for name in contents.PRIVATE if (source / name).exists()} | {release.kit.assignment.source}
    assert {"configs/hidden", "labs"} < closed
    assert [name for name in closed if (source / name).stat().st_mode & 0o077] == []


def test_the_autograder_has_all_files_for_grading(tmp_path: Path) -> None:
    unpack(packed(MAIN.autograder), tmp_path)
    for script in ("setup.sh", "run_autograder"):
        content = MAIN.autograder[script].content
        assert os.access(tmp_path / script, os.X_OK) and content.startswith(b"#!/usr/bin/env bash")
        assert b"{" not in content.replace(b"${", b"")
    assert load(tmp_path / "configs" / "hidden" / "gpt149.yaml").seed == MAIN.kit.assignment.seed
    for path in ("labs/attention/threats/rows.py", "module_ref_stub/kernels.cpp"):
        assert (tmp_path / path).is_file()
    lost = [each for each in imports.missing(tmp_path, imports.modules(tmp_path)) if not each.late]
    assert not lost, lost


def laid_out(autograder: Files, root: Path, python: str | None) -> Path:
    """Write Gradescope's folders, with the autograder in source/. `python`: script for .venv's Python, or None."""
    unpack(packed(autograder), root / "source")
    (root / "submission").mkdir()
    if python is not None:
        put(root, {"source/.venv/bin/python": python}, 0o755)
    return root


EMPTY = "#!/bin/sh\necho 'ModuleNotFoundError: no module named yaml' >&2\nexit 1\n"
PYTHONS = {".venv has no Python": None, "ModuleNotFoundError": EMPTY, ".venv/bin/python": "#!/no/such/file\n"}


@pytest.mark.parametrize(("word", "python"), PYTHONS.items(), ids=["none", "an empty one", "a broken one"])
@pytest.mark.parametrize("before", ["nothing", "a folder", "a link"])
def test_a_failed_start_leaves_a_result(tmp_path: Path, python: str | None, word: str, before: str) -> None:
    # Leave out the kit's folders: the test does not need them, and unpacking takes long.
    autograder = {path: file for path, file in MAIN.autograder.items() if "/" not in path}
    root = laid_out(autograder, tmp_path / "autograder", python)
    elsewhere, place = tmp_path / "elsewhere", root / "results" / "results.json"
    elsewhere.write_text("untouched")
    if before == "a folder":
        place.mkdir(parents=True)
    if before == "a link":
        place.parent.mkdir()
        place.symlink_to(elsewhere)
    ended = subprocess.run([root / "source" / "run_autograder", root], capture_output=True, text=True)
    assert ended.returncode != 0 and word in ended.stderr
    found = json.loads(place.read_text())
    assert found["score"] == 0 and "not your code's fault" in found["output"]
    seen = [test for test in found["tests"] if test["visibility"] == "visible"]
    staffs = [test for test in found["tests"] if test["visibility"] == "hidden"]
    assert [test["max_score"] for test in seen] == [93] and ".venv" not in seen[0]["output"]
    assert "setup.sh" in staffs[0]["output"] and "build log" in staffs[0]["output"]
    assert elsewhere.read_text() == "untouched"


def test_the_kits_result_replaces_the_result_of_a_failed_start(tmp_path: Path) -> None:
    script = '#!/bin/sh\necho \'{"score": 7}\' > ../results/results.json\necho "$@" > ../asked\n'
    root = laid_out(MAIN.autograder, tmp_path, script)
    subprocess.run([root / "source" / "run_autograder", root], check=True)
    assert json.loads((root / "results" / "results.json").read_text()) == {"score": 7}
    assert (root / "asked").read_text().split() == ["-m", "grader", "gradescope", str(root)]


@pytest.mark.parametrize("lab", one_of_each(labs.known(), lambda lab: lab == "attention"))
def test_a_handout_has_no_secrets_or_staff_files(lab: str) -> None:
    release = release_of(lab)
    assert not making.leaks(release.handout, release.secrets)
    assert not making.strangers(release.handout, release.kit)


SEED = MAIN.kit.assignment.seed or 0
SOLUTION_LINE = next(line for line in MAIN.kit.solutions["module.cpp"].splitlines() if "score +=" in line)
REFERENCE_LINES = "\n".join((ROOT / "module_ref_stub/kernels.cpp").read_text().splitlines()[-20:-10])
KEY_LINE = (ROOT / "configs/hidden/writeup_key.yaml").read_text().splitlines()[-3]
GUIDE = "docs/handout.md"
PLANTED = {
    "a line": (GUIDE, SOLUTION_LINE, r"docs/handout.md:\d+ holds the solution, module.cpp:\d+"),
    "a comment": ("module.cpp", f"// {SOLUTION_LINE}", r"module.cpp:\d+ holds the solution"),
    "a seed": ("README.md", f"seed {SEED}", "README.md:.* holds a hidden seed"),
    "a seed in hex": ("README.md", f"0x{SEED:x}", "holds a hidden seed"),
    "a seed in binary": (OBJECT, SEED.to_bytes(8, "little"), "holds a hidden seed, in binary"),
    "a case": ("grader/study/__init__.py", "# hidden tiles of one", "name of the hidden case"),
    "kernels": ("docs/demo.md", REFERENCE_LINES, "holds the reference, module_ref_stub/kernels.cpp"),
    "the key": ("docs/demo.md", KEY_LINE, "a text for the staff, writeup_key.yaml"),
}


def test_a_public_part_s_name_and_a_line_that_imports_are_no_secrets() -> None:
    """The staff's file of a lab repeats names of parts of the public file; only its additions are secret."""
    text = "parts:\n  - id: softmax_long\n    hidden_cases:\n      - {name: hidden gaps, shape: {lines: 3}}\n"
    found = making.of_staff_text(text, "staff.yaml", ["softmax_long"])
    assert [secret.what for secret in found] == ["a text for the staff, staff.yaml:4"]
    assert len(making.of_staff_text(text, "staff.yaml", ["softmax"])) == 2
    imports = "from grader.assignment.mutations import Mutation, variant\nimport grader.assignment.mutations as known\n"
    assert making.of_source(imports, "kernels.py") == []
    (line,) = making.of_source("x = first_of_all_numbers // second_of_all_numbers  # kept\n", "a.py")
    assert line.needle == b"x=first_of_all_numbers//second_of_all_numbers"


def test_an_unproved_release_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {path: MAIN.handout[path] for path in ("module.cpp", "README.md", OBJECT)}
    monkeypatch.setattr(contents, "handout", lambda *_: few)
    monkeypatch.setattr(contents, "autograder", lambda *_: {"run_autograder": File(b"#!")})
    monkeypatch.setattr(making, "prebuilt", lambda *_: {})
    monkeypatch.setattr(proofs, "handout", lambda *_: None)
    unproved = proofs.Unproved("the autograder gives the solution 70 points, and not 93")
    monkeypatch.setattr(proofs, "autograder", Mock(side_effect=unproved))
    refused(f"nothing was written: {unproved}", making.release, MAIN.kit, tmp_path / "dist", (), print)
    assert not (tmp_path / "dist").exists()
    monkeypatch.setattr(proofs, "autograder", lambda *_: None)
    said: list[str] = []
    written = [path.read_bytes() for path in making.release(MAIN.kit, tmp_path / "dist", (), said.append)]
    again = [path.read_bytes() for path in making.release(MAIN.kit, tmp_path / "again", (), said.append)]
    assert written == again and "sha256" in said[-1]
    with zipfile.ZipFile(io.BytesIO(written[0])) as archive:
        assert sorted(archive.namelist()) == archive.namelist() == sorted(few)


def test_an_unfit_kit_or_reference_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("a release needs the staff.s file", contents.kit, ROOT, ROOT / "configs" / "gpt149.yaml")
    program = "int main() {}\n"
    put(tmp_path, {"starter.cpp": program, "module.cpp": f"// BEGIN SOLUTION\n{program}"})
    masters = {"starter.cpp": "it has no line '// BEGIN SOLUTION'", "nowhere.cpp": "no such file"}
    for name, why in {**masters, "module.cpp": "module.cpp: line 1: BEGIN SOLUTION has no END"}.items():
        refused(why, contents.kit, ROOT, MAIN.config, tmp_path / name)
    for name in ("nowhere.o", f"{library.STEM}-darwin-aarch64.o", f"{library.STEM}-linux-x86_64.so"):
        refused("--reference", making.given_objects, (tmp_path / name,), {OBJECT: b""})
    other = tmp_path / f"{library.STEM}-darwin-aarch64.o"
    other.write_bytes(b"gpt149_ref_fused")
    own, named = {OBJECT: b"gpt149_ref_naive gpt149_ref_fused"}, ("gpt149_ref_fused", "gpt149_ref_naive", "x")
    refused("function gpt149_ref_naive is missing", making.given_objects, (other,), own, named)
    assert list(making.given_objects((other,), own, named[:1]).values()) == [b"gpt149_ref_fused"]
    assert "release" in command_line.parser().format_help()
    monkeypatch.setattr(command_line, "has_room", lambda module: module == "grader.doctor")
    assert "release" not in command_line.parser().format_help()
    refused("invalid choice: 'release'", command_line.run, ["release", "--out", "x"])


def test_a_handout_finds_its_object_by_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "SOURCE_DIR", tmp_path)
    monkeypatch.setattr(library, "PREBUILT", tmp_path / "prebuilt")
    find = library.object_path
    refused(r"no compiled reference for .* \(found: none\)", find, of=errors.KitError)
    put(tmp_path, {f"prebuilt/{Path(OBJECT).name}": "no object"})
    assert find() == tmp_path / "prebuilt" / Path(OBJECT).name
    wanted = (tmp_path / "prebuilt", library.STEM, "compiled reference", "Darwin", "arm64")
    why = r"Darwin on arm64 .* the staff for libgpt149_ref-darwin-aarch64.o"
    refused(why, objectcache.prebuilt, *wanted, of=errors.KitError)
    named = [objectcache.prebuilt_name("x", "Linux", processor) for processor in ("AMD64", "x86_64")]
    assert named[0] == named[1]


def test_a_handout_links_the_object_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    inputs = [ones, ones, 2 * ones, np.zeros((2, 2), np.float32)]
    request = Request("gpt149_ref_naive", arguments, inputs, ones.shape)
    with NativeHost() as host, host.spawn(library.native_program(), threads=1) as session:
        assert session.death is None and session.call(request).output.ravel().tolist() == [2.0, 2.0]


def smaller(files: Files) -> Files:
    """Return the files with smaller default sizes, to save time."""
    before = b"N: 1024, d: 32, Br: 256, Bc: 256, threads: 8}"
    after = b"N: 160, d: 32, Br: 64, Bc: 64, threads: 2}"
    assert files[PUBLIC].content.count(before) == 1
    return {**files, PUBLIC: File(files[PUBLIC].content.replace(before, after))}


@pytest.mark.full
def test_a_handout_judges_with_the_object_that_it_holds(tmp_path: Path) -> None:
    """`proofs.handout` succeeds: the starter is judged as not written yet, the solution passes every part."""
    files = smaller(contents.handout(MAIN.kit, {OBJECT: library.object_path().read_bytes()}))
    assert not [name for name in files if re.match(r"module_ref_stub/.*\.(cpp|h)$", name)]
    bench, said = proof_setup(MAIN.kit, tmp_path)
    proofs.handout(bench, packed(files))
    assert said[-1].endswith("with -N 256: part1, part2, part3")
    # The reference library was linked from the handout's object, without compiling sources.
    assert list((tmp_path / "cache" / "objects").glob("libgpt149_ref-*.so"))
    assert not list((tmp_path / "cache" / "objects").glob("lib*.o"))


def programs(folder: Path, *, without: str) -> str:
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name != without and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return str(folder)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these sandboxes")
@pytest.mark.parametrize("tier", ["A", "B"])
def test_an_autograder_gives_starter_0_and_solution_93(scratch: Path, tmp_path: Path, tier: str) -> None:
    if tier not in [each.tier for each in tiers()]:
        pytest.skip(f"tier {tier} does not work on this machine")
    for folder in (scratch, *scratch.parents[:2]):
        folder.chmod(0o755)  # pytest makes its folders unreadable for the user ids of runners
    laid_out(smaller(MAIN.autograder), scratch, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    source = scratch / "source"
    # In a real image, setup.sh fills the cache.
    objectcache.share(cache_root(), source / "cache", (".plain", ".kit"))
    path = os.environ["PATH"] if tier == "A" else programs(tmp_path / "bin", without="bwrap")
    environment = {"PATH": path, "LANG": "C.UTF-8"}
    ask = [sys.executable, "-c", "from grader import sandbox; print(sandbox.choose().tier)"]
    chosen = subprocess.run(ask, cwd=source, env=environment, capture_output=True, text=True, check=True)
    assert chosen.stdout.strip() == tier
    bench, _ = proof_setup(MAIN.kit, tmp_path)
    for files, points in ((MAIN.kit.starters, 0.0), (MAIN.kit.solutions, 93.0)):
        proofs.hand_in(scratch, bench, files)
        subprocess.run([source / "run_autograder", scratch], env=environment, check=True, timeout=300)
        found = json.loads((scratch / "results" / "results.json").read_text())
        assert found["score"] == points, found
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return a release of the GPU assignment with only its first two parts and the first case of each list."""
    names = ("assignment.yaml", "hidden/assignment.yaml")
    texts = {name: (GPU_LAB / name).read_text().partition("  - id: softmax\n")[0] for name in names}
    later_cases = re.compile(r"(\n      - {name:.*)(\n      - {name:.*)+")
    files = {name: later_cases.sub(r"\1", text) for name, text in texts.items()}
    return Release(put(tmp_path_factory.mktemp("assignment"), files) / "hidden" / "assignment.yaml")


def test_a_submission_may_lack_one_of_the_assignments_files(two: Release, tmp_path: Path) -> None:
    assert two.kit.assignment.sources == ("kernels.py", "kernels.cu")
    assert two.kit.assignment.beside("mine.py") == ("mine.cu",)
    assert load(places.PUBLIC_CONFIG).sources == ("module.cpp",)
    for name, others in {"scale.py": ("scale.cu",), "scale.cu": ("scale.py",), "scale.cpp": ()}.items():
        assert companions_of(name) == ("module.ispc", *others)
    handed_in = {"ada": ("scale.py", "scale.cu", "notes.txt"), "bob": ("scale.py",)}
    for name, files in handed_in.items():
        put(tmp_path / "in" / name, dict.fromkeys(files, "x = 1\n"))
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
    "no markers": ("int gelu;\n", "kernels.cu: it has no line '// BEGIN SOLUTION'"),
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
#: A line with `//`, which does not begin a comment in Python.
PYTHON_LINE = line_of("kernels.py", "tl.program_id(0) // blocks")

#: Secrets to put into the GPU assignment's handout, in the form of PLANTED.
PLANTED_FOR_GPU = {
    "CUDA": ("README.md", CUDA_LINE, r":\d+ holds the solution, kernels.cu:\d+"),
    "CUDA in a comment": ("kernels.py", f"# {CUDA_LINE}", r"holds the solution, kernels.cu:\d+"),
    "Python": ("kernels.cu", f"// {PYTHON_LINE}", r"holds the solution, kernels.py:\d+"),
    "reference.cu": (GUIDE, line_of("reference.cu", "tanhf"), "the reference, gpu/reference.cu"),
    "reference.py": (GUIDE, line_of("reference.py", "tl.sigmoid"), "the reference, gpu/reference.py"),
    "tuned.py": (GUIDE, line_of("tuned.py", "k_tensor.load"), "for the staff, gpu/tuned.py"),
    "known": ("grader/__init__.py", line_of("known.py", '"base 2"'), "for the staff, gpu/known.py"),
    "the lab's seed": ("README.md", "seed 3105774286619048253", "a hidden seed"),
}


@pytest.mark.parametrize("kind", [*PLANTED, *PLANTED_FOR_GPU])
def test_a_secret_is_found_wherever_it_is_put(kind: str, two: Release) -> None:
    path, planted, found_as = (PLANTED | PLANTED_FOR_GPU)[kind]
    assert re.search(found_as, (MAIN if kind in PLANTED else two).found_in(path, planted))


@pytest.mark.parametrize("path", [*STAFFS, "labs/rows/kernels.py", "a.cpp", *GPU_STAFFS])
def test_a_handout_with_a_staff_file_is_refused(path: str, two: Release) -> None:
    kit = (two if path in GPU_STAFFS else MAIN).kit
    refused("nothing was written", making.refuse, {path: File(b"")}, kit)


def test_a_handout_has_no_staff_files_and_all_its_imports(two: Release, tmp_path: Path) -> None:
    kept = {path.relative_to(GPU_LAB).as_posix() for path in two.kit.staff_files}
    assert {"reference.py", "reference.cu", "tuned.py", "known.py"} <= kept
    unpack(packed(two.handout), tmp_path)
    proofs.imports_resolve(tmp_path)
    making.refuse(two.handout, two.kit)
    leaky = {**two.handout, "README.md": File(CUDA_LINE.encode())}
    refused(r"nothing was written.*README.md:\d+ holds the solution", making.refuse, leaky, two.kit)


@pytest.mark.full
def test_an_autograder_has_each_master_once(two: Release, tmp_path: Path) -> None:
    files = two.autograder
    assert files["kernels.cu"].content.decode() == CUDA and files["kernels.py"].content.decode() == PYTHON
    assert {"labs/gpu/reference.cu", "labs/gpu/reference.py"} <= {*files}
    assert not {"labs/gpu/kernels.cu", "labs/gpu/kernels.py"} & {*files}
    setup = files["setup.sh"].content.decode()
    assert "chmod 0600 kernels.py kernels.cu\n" in setup and 'TORCH_INDEX="${TORCH_INDEX-}"' in setup
    assert devicebuild.TRITON_PACKAGE in files["requirements.txt"].content.decode()
    put(tmp_path, {"kernels.py": PYTHON, "kernels.cu": CUDA.replace("256", "128")})
    kit = contents.kit(ROOT, two.config, tmp_path / "kernels.py")
    assert "kThreads = 128" in kit.solutions["kernels.cu"]
    assert b"kThreads = 128" in contents.autograder(kit)["kernels.cu"].content


@pytest.mark.full
def test_a_question_and_a_workflow_name_both_files(two: Release) -> None:
    html = two.question["questions/gpu/question.html"].content.decode()
    # The second file is optional: without it, the parts of the first file are judged.
    assert '<pl-file-upload file-names="kernels.py" optional-file-names="kernels.cu">' in html
    assert "Hand in <code>kernels.py</code> and <code>kernels.cu</code>." in html and "{" not in html
    flow = products.PRODUCTS["github"].in_handout(two.kit)[products.WORKFLOW].content.decode()
    (work,) = yaml.safe_load(flow)["jobs"].values()
    (install,) = [step["run"] for step in work["steps"] if step.get("name") == "Python packages"]
    assert f'"{devicebuild.TRITON_PACKAGE}"' in install and " torch==" in install


def part(verdict: str, points: float = 0.0, waits_for: str = "", why: str = "not written yet") -> dict:
    outcome = {"waits_for": waits_for, "diagnosis": {"message": why}}
    return {"verdict": verdict, "points": points, "max_points": 10.0, **outcome}


#: Script of a fake judge, which writes one of the three results in EACH: of the starter, of the solution without times,
#: of the solution with times. Files that contain SOLUTION are the solution, other files the starter.
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
GPU = part("unjudged", waits_for="GPU", why="no GPU")
TRITON = part("unjudged", waits_for="triton", why="no triton")
WRONG, PASS = part("wrong"), part("pass", 10.0)


@pytest.fixture
def setup(two: Release, tmp_path: Path) -> Setup:
    return proof_setup(two.kit, tmp_path)


def prove(setup: Setup, program: str) -> list[str]:
    bench, said = setup
    proofs.handout(bench, packed({"gpt149.py": File(program.encode())}))
    bench.say_what_is_open()
    return said


def judge(*triton: dict, cuda: tuple[dict, ...] = (GPU, GPU, GPU)) -> str:
    """Return the script of a fake judge. `triton` and `cuda` are the three results (see FAKE_JUDGE) of each part."""
    each = [{"gelu": one, "gelu_cuda": other} for one, other in zip(triton, cuda, strict=True)]
    return FAKE_JUDGE.replace("EACH", repr(each))


def test_an_unjudged_part_is_named_and_never_counted_as_proved(setup: Setup) -> None:
    said = prove(setup, judge(WRONG, PASS, GPU))
    assert setup[0].lacking == {"gelu_cuda": "GPU"} and setup[0].untimed == {"gelu": "GPU"}
    assert said[-1] == "NOT PROVED on this machine: gelu_cuda (no GPU); the times of gelu (no GPU)"
    assert "right results on gelu" in said[-2] and "every part" not in "".join(said[1:])


def test_a_machine_that_judges_everything_leaves_nothing_open(setup: Setup) -> None:
    said = prove(setup, judge(WRONG, PASS, PASS, cuda=(WRONG, PASS, PASS)))
    assert "right results on every part" in said[-2] and "fast enough" in said[-1]


NOTHING = judge(TRITON, TRITON, TRITON, cuda=(TRITON, TRITON, TRITON))
REFUSED = {
    "bare": (NOTHING, "nothing was written: without triton this machine cannot judge any part of gpu"),
    # A machine that judges the starter of a part must judge its solution, too.
    "an open solution": (judge(WRONG, GPU, GPU), "the solution in the handout is unjudged on gelu: no GPU"),
    "a wrong one": (judge(WRONG, WRONG, GPU), "the solution in the handout is wrong on gelu"),
    "a slow one": (judge(WRONG, PASS, part("slow", 5.0)), "is slow on gelu, with 5 of 10"),
    "open starter": (judge(part("unjudged"), PASS, PASS), "the starter in the handout is unjudged on gelu"),
    "one with points": (judge(part("wrong", 1.5), PASS, PASS), "the starter .* earns 1.5 points on gelu"),
    "a right starter": (judge(part("pass"), PASS, PASS), "is pass on gelu"),
    "a broken one of its own": (judge(part("compile_error"), PASS, PASS), "is compile_error"),
    "no words": (judge(part("wrong", why="no"), PASS, PASS), "is not reported as `not written yet` on gelu"),
    "an exception": ("raise KeyError('starter')", "wrote no result in handout: KeyError: 'starter'"),
    "a code": ("print('no compiler'); raise SystemExit(3)", "exits with code 3 in handout: no compiler"),
}


@pytest.mark.parametrize(("program", "why"), REFUSED.values(), ids=REFUSED)
def test_a_handout_without_a_proof_is_refused(program: str, why: str, setup: Setup) -> None:
    refused(why, prove, setup, program, of=errors.KitError if program == NOTHING else proofs.Unproved)


def scored(name: str, score: float, *, is_open: bool = False, hidden: str = "") -> list[dict]:
    """Return Gradescope's results for a part (unjudged if `is_open`), and its hidden cases if `hidden` is a status."""
    own = {"name": f"{name}: GELU{gradescope.NO_GRADE * is_open}", "score": score, "max_score": 10.0}
    unseen = {"name": f"{name}: {gradescope.HIDDEN_TESTS}", "score": 0.0, "max_score": 0.0, "status": hidden}
    return [{**own, "output": "no GPU"}, *([{**unseen, "output": ""}] if hidden else [])]


UNWRITTEN = scored("gelu", 0.0, hidden="failed")
OPEN, FAILED = (scored("gelu", 0.0, is_open=True, hidden=end) for end in ("passed", "failed"))
UNTESTED = scored("gelu", 0.0, is_open=True)
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
#: Results of starter and solution from Gradescope; the end of the printed text (first two rows), or words of the error.
LEFT_OPEN = {
    # Only the autograder can have times, because a handout lacks the reference.
    "no times": (UNWRITTEN + LACKED, OPEN + LACKED, "gelu_cuda (no GPU); the times of gelu (no reference)"),
    "times": (UNWRITTEN + LACKED, scored("gelu", 10.0, hidden="passed") + LACKED, "gelu_cuda (no GPU)"),
    "open starter": (OPEN + LACKED, OPEN + LACKED, "does not judge gelu of the starter: no GPU"),
    "starter's CUDA": (UNWRITTEN, OPEN + LACKED, "does not judge gelu_cuda of the starter"),
    "untested": (UNWRITTEN + LACKED, UNTESTED + LACKED, "does not judge gelu of the solution"),
    "failed": (UNWRITTEN + LACKED, FAILED + LACKED, "does not judge gelu of the solution"),
    "unwritten": (UNWRITTEN + LACKED, UNWRITTEN + LACKED, "gives the solution 0 points instead of 10"),
    "nothing": ([], [], "does not judge gelu of the starter"),
}


@pytest.mark.parametrize("kind", LEFT_OPEN)
def test_only_missing_tools_may_leave_parts_of_a_proof_open(kind: str, setup: Setup) -> None:
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
        assert said[-4].endswith("(right, but no grade until times are judged: gelu; not judged: gelu_cuda)")


@pytest.mark.full
@interpreted
def test_an_autograder_judges_one_file_without_the_other(two: Release, tmp_path: Path) -> None:
    """Hand in kernels.py and a file that does not belong to a part. The file kernels.cu is missing."""
    unpack(packed(two.autograder), tmp_path / "source")
    wrong = PYTHON.replace("y = x / (1.0 + tl.exp2(u", "y = 2.0 * x / (1.0 + tl.exp2(u")
    put(tmp_path / "submission", {"kernels.py": wrong, "helper.py": "raise SystemExit(9)\n"})
    asked = ("-m", "grader", "gradescope", tmp_path)
    python(*asked, folder=tmp_path / "source", timeout_s=300, code=0, PYTHONPATH="")
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


def test_all_source_files_are_watched(two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, course = Mock(side_effect=EOFError), two.kit.assignment
    monkeypatch.setattr(loop.files, "Watcher", watcher)
    task = loop.WatchTask(course, tmp_path / "mine.py", course.parts, Options(), lambda *_: None)
    refused("", loop.Loop(task).run, of=EOFError)
    assert [path.name for path in watcher.call_args.args[0]] == ["mine.py", "mine.cu", "module.ispc"]


def test_both_files_are_annotated(two: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"kernels.py": PYTHON, "kernels.cu": CUDA})
    published = Mock()
    monkeypatch.setattr(github, "publish", published)
    monkeypatch.setattr(devicebuild, "nvcc", lambda: "")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    asked = ["gelu_cuda", "--config", two.kit.public, "--module", tmp_path, "--no-time", "--no-table"]
    assert importlib.import_module("gpt149").run([*map(str, asked), "--github"]) == errors.EXIT_KIT
    sources = published.call_args.args[3]
    assert sources.path("kernels.cu") == "kernels.cu" and sources.texts["kernels.cu"] == CUDA
