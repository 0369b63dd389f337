"""module.ispc: compiled on machines with ispc, left open on machines without it. No student loses points for that."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from building import BINDING, HEAD, call, cpu_growth, loaded, one_function
from conftest import tiers, write, write_files
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, STAND_IN, VERSION, on_the_path

from grader import sandbox
from grader.backends.native import ispc
from grader.backends.torch.torchbuild import build

DOUBLES = HEAD + INCLUDE + "float f(float x) { ispc::scaled(&x, 1, 2.0f); return x; }\n" + BINDING

Here = Callable[[str], None]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with ExitStack() as stack:
        yield lambda text: monkeypatch.setenv("PATH", stack.enter_context(on_the_path(text)))


def handed_in(folder: Path, source: str = DOUBLES, second: str | None = PROGRAM) -> Path:
    folder.mkdir(exist_ok=True)
    if second is not None:
        (folder / "module.ispc").write_text(second)
    return write(folder, source)


def test_a_file_waits_without_ispc_and_is_compiled_and_linked_with_it(tmp_path: Path, here: Here) -> None:
    here(BROKEN)
    source = handed_in(tmp_path, DOUBLES, PROGRAM.replace("*= by", "*= by * FACTOR"))
    made = build(source, defines={"FACTOR": "10"})
    assert (made.ok, made.object_path, made.waits_for) == (False, None, "ispc")
    assert "no points are lost" in made.diagnostics and ispc.WHERE_FROM in made.diagnostics
    here(STAND_IN)
    made = build(source, defines={"FACTOR": "10"})
    assert (made.ok, made.waits_for, made.notes) == (True, "", ()), made.diagnostics
    assert call(loaded(made), "f", 3.5) == 70.0, "macros reach both files"
    assert ispc.describe(tmp_path / "module.cpp") == {"ispc": f"{VERSION}, target {ispc.compiler().target}"}


def test_an_empty_file_gets_its_header_from_the_kit_and_needs_no_ispc(tmp_path: Path, here: Here) -> None:
    calls_none = HEAD + INCLUDE + "using namespace ispc;\nfloat f(float x) { return x; }\n" + BINDING
    for text in ("", " \n\t// nothing yet\n/* a\n * b */ // c"):
        here(BROKEN)
        made = build(handed_in(tmp_path, calls_none, text))
        assert (made.ok, made.waits_for, made.notes) == (True, "", ()), made.diagnostics
        here(STAND_IN)
        assert build(tmp_path / "module.cpp").ok


def test_a_header_without_a_module_ispc_is_the_files_own_fault(tmp_path: Path, here: Here) -> None:
    for text in (BROKEN, STAND_IN):
        here(text)
        made = build(handed_in(tmp_path, second=None))
        assert (made.ok, made.waits_for) == (False, "")
        assert "no module.ispc lies beside this file" in made.diagnostics
    # If only module.cpp does without ispc, module.ispc is left out and the rest is built.
    here(BROKEN)
    made = build(handed_in(tmp_path, one_function("return t;")))
    assert made.ok and any("left out" in note for note in made.notes)


@pytest.mark.full
def test_a_file_that_is_not_included_may_define_an_undefined_function(tmp_path: Path, here: Here) -> None:
    here(BROKEN)
    declared = DOUBLES.replace(INCLUDE, 'extern "C" void scaled(float *, int, float);\n')
    made = build(handed_in(tmp_path, declared.replace("ispc::", "")))
    assert made.waits_for == "ispc" and "undefined function: scaled" in made.diagnostics
    here(STAND_IN)
    made = build(tmp_path / "module.cpp")
    assert made.ok and call(loaded(made), "f", 3.5) == 7.0, made.diagnostics


def test_an_ispc_out_of_the_sandboxs_reach_is_the_machines_fault(tmp_path: Path, here: Here) -> None:
    """Compilers run under a user of their own (tier C, as root) that may not enter ispc's folder."""
    here(STAND_IN)
    program = Path(str(shutil.which("ispc")))
    for closed in (program, program.parent.parent, tmp_path):
        closed.chmod(0o700)
    box = next((box for box in tiers() if box.tier == "C" and os.geteuid() == 0), None) or sandbox.choose()
    made = build(handed_in(tmp_path / "in"), sandbox=box)
    assert made.waits_for == "ispc" if box.tier == "C" else made.ok, made.diagnostics


def test_it_is_compiled_in_the_sandbox(tmp_path: Path, here: Here) -> None:
    """In the strongest tier ispc is visible, and other people's files are not."""
    secret = write_files(tmp_path, {"secret.h": "int secret;\n"}) / "secret.h"
    here(STAND_IN)
    box = sandbox.choose()
    made = build(handed_in(tmp_path / "right"), sandbox=box)
    assert made.ok and call(loaded(made), "f", 3.5) == 7.0, made.diagnostics
    made = build(handed_in(tmp_path / "reads", second=f'#include "{secret}"\n{PROGRAM}'), sandbox=box)
    assert not made.ok or not box.locks


def test_mistakes_and_endless_files_are_not_faults_of_the_machine(tmp_path: Path, here: Here) -> None:
    here(STAND_IN)
    made = build(handed_in(tmp_path, second=PROGRAM.replace("values[k]", "valeus[k]")))
    assert (made.ok, made.waits_for) == (False, "")
    assert made.diagnostics.startswith("module.ispc:4: error:") and "valeus" in made.diagnostics
    here(STAND_IN.replace("exec g++", "while :; do :; done; exec g++"))
    made = build(handed_in(tmp_path), timeout_s=1)
    assert (made.ok, made.waits_for) == (False, "") and "was stopped after" in made.diagnostics
    # An ispc that compiles nothing is the machine's fault.
    here(STAND_IN.replace("exec g++", "echo 'cannot load libLLVM.so'; exit 1; exec g++"))
    made = build(handed_in(tmp_path), sandbox=sandbox.choose())
    assert (made.ok, made.waits_for) == (False, "ispc"), made.diagnostics
    assert "no points are lost" in made.diagnostics


def test_the_object_is_kept_under_both_files_and_the_compilers_version(tmp_path: Path, here: Here) -> None:
    here(STAND_IN)
    made = [build(handed_in(tmp_path, second=text)) for text in (PROGRAM, PROGRAM, PROGRAM + "// more\n")]
    assert made[1].cached and made[0].key == made[1].key
    for compiler in (STAND_IN.replace("1.22.0", "1.23.0"), BROKEN):
        here(compiler)
        made.append(build(handed_in(tmp_path)))
    assert len({each.key for each in made}) == len(made) - 1


def test_empty_is_white_space_and_whole_comments() -> None:
    longest = b" " * ispc.LONGEST_EMPTY_BYTES
    empty = [b"", b"\n \t\v\f\r", b"//", b"// a\n/* b */\n//", b"/**/", b"\xef\xbb\xbf// a", longest]
    code = [b"/* a", b"/", b"/*/", b"x", b"// a\nint i;", b"/* a */ int i;", b"#include <x>", b"\x00"]
    assert [text for text in (*empty, *code, longest + b" ") if ispc.is_empty(text)] == empty


@pytest.mark.parametrize("unit", [b"/*", b"/**/", b"//\n", b" ", b"/ ", b"*/", b"//", b"/*/", b"\n/"])
def test_a_search_for_emptiness_takes_linear_time(unit: bytes) -> None:
    most = ispc.LONGEST_EMPTY_BYTES
    assert cpu_growth(lambda size: ispc.is_empty(unit * (size // len(unit))), most // 20, most) < 60


def test_gangs_are_of_eight_and_the_compiler_sees_ispc_and_not_a_home(tmp_path: Path) -> None:
    assert ispc.target_of("x86_64", ispc.AVX2_FLAGS | {"avx512f"}) == ("x86-64", "avx2-i32x8")
    assert ispc.target_of("AMD64", frozenset({"avx", "sse4_1"})) == ("x86-64", "sse4-i32x8")
    assert ispc.target_of("x86_64", ispc.AVX2_FLAGS - {"fma"}) == ("x86-64", "sse4-i32x8")
    assert ispc.target_of("aarch64", frozenset()) == ("aarch64", "neon-i32x8")
    home = tmp_path / "home"
    for name in ("bin", "lib", "share/ispc", "thesis"):
        (home / name).mkdir(parents=True)
    known = ispc.Compiler(str(home / "bin" / "ispc"), 0, 0, "", "x86-64", "avx2-i32x8")
    assert set(known.files()) == {home / "bin" / "ispc", home / "lib", home / "share" / "ispc"}


def test_the_files_that_will_wait_are_known_before_the_build(tmp_path: Path, here: Here) -> None:
    sources = {"waits": handed_in(tmp_path / "waits"), "gone": tmp_path / "gone" / "module.cpp"}
    sources["empty"] = handed_in(tmp_path / "empty", second="// later\n")
    sources["alone"] = handed_in(tmp_path / "alone", second=None)
    sources["leftover"] = handed_in(tmp_path / "leftover", one_function("return t;"))
    here(BROKEN)
    assert [name for name, source in sources.items() if ispc.waits_for(source) == "ispc"] == ["waits"]
    here(STAND_IN)
    assert not any(map(ispc.waits_for, sources.values()))
