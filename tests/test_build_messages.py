"""Compiler messages as students see them, with advice; and module.ispc, which is unjudged on machines without ispc."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from building import BINDING, HEAD, call, cpu_growth, loaded, one_function
from conftest import put, some, tiers, write
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, STAND_IN, VERSION, on_the_path

from grader import sandbox
from grader.backends.native import ispc, nativebuild
from grader.backends.native.toolchain import toolchain
from grader.backends.torch.torchbuild import build, precompile
from grader.sandbox import Finished, choose
from grader.source import cpptext, diagnostics
from grader.source.hints import hint_for


@pytest.mark.parametrize(("body", "before", "line", "error", "hint"), some([
    ("int a = 3\nreturn t;", "", 4, "expected ',' or ';'", "line above"),
    ("return t", "", 3, "expected ';'", "semicolon"),
    ("twoDimRaed(0);", "float twoDimRead(int x) { return x; }\n", 4, "not declared", "'twoDimRead'"),
    ("return t * read(0, n);", "float read(int &x, int n) { return x + n; }\n",
     4, "cannot bind non-const lvalue", "takes only a variable"),
    ("twoDimRead(n, n);", "float twoDimRead(int t, int x, int y) { return 0; }\n",
     4, "too few arguments", "twoDimRead(t, x, y)"),
    ("return t;", "half(float x) { return x / 2; }\n", 2, "", "needs its type"),
    ("return t;", "#include <attention.hpp>\n", 2, "attention.hpp", "no such header"),
    ("return t;", '#include "module_ispc.h"\n', 2, "module_ispc.h", "no module.ispc lies beside"),
    ("int n = 3;\nint k = 1;\nfloat k = 2;\nreturn t;", "", 3, "shadows|redecl", ""),
    ("for (;;) {\nreturn t;", "", 6, "inside another block", "never closed"),
    ("float x = t[0];\nreturn t;", "", 3, "cannot convert 'at::Tensor' to 'float'", "data_ptr"),
    ("__m256 x{}; _mm256_fmadd_ps(x, x, x);\nreturn t;", "#include <immintrin.h>\n",
     4, "inlining failed", "_mm256_fmadd_ps needs instructions"),
    ("helper(n);\nreturn t;", "void helper(int);\n", 0, r"undefined function: helper\(int\)", "body"),
], 3))  # fmt: skip
def test_a_compiler_error_has_its_line_and_a_hint(
    tmp_path: Path, body: str, before: str, line: int, error: str, hint: str
) -> None:
    text = one_function(body, before)
    made = nativebuild.build(write(tmp_path, text).rename(tmp_path / "ada.cpp"))
    assert not made.ok and made.program is None
    lines = made.diagnostics.splitlines()
    assert 1 <= len(lines) <= 15 and str(tmp_path) not in made.diagnostics and "shim" not in made.diagnostics
    assert re.search(error, lines[0]), made.diagnostics
    if line:
        assert lines[0].startswith(f"ada.cpp:{line}: error: "), made.diagnostics
        assert text.split("\n")[line - 1].strip() in lines[1] and lines[2].strip().endswith("^")
    assert hint in made.diagnostics


def _explained(output: str, source: str = "", returncode: int = 1, *, timed_out: bool = False) -> str:
    finished = Finished(returncode, output.encode(), 1.0, 1.0, timed_out)
    return diagnostics.explain(finished, {"module.cpp": source}, timeout_s=7)


def test_errors_inside_headers_show_the_students_line(tmp_path: Path) -> None:
    gcc = """In file included from /usr/include/c++/12/vector:66,
                 from /x/torch/extension.h:3:
/usr/include/c++/12/bits/stl_uninitialized.h: In instantiation of 'constexpr bool std::__check() [with T = int&]':
/usr/include/c++/12/bits/stl_vector.h:558:7:   required from 'std::vector<T>::vector(const T&)'
module.cpp:7:21:   required from here
/usr/include/c++/12/bits/stl_uninitialized.h:90:63: error: static assertion failed: result type must be constructible
   90 |       static_assert(is_constructible<_ValueType, _Tp>::value,
"""
    clang = """/usr/include/c++/v1/vector:558:7: error: static assertion failed: must be constructible
module.cpp:7:21: note: in instantiation of member function 'std::vector<int>::vector' requested here
"""
    for output in (gcc, clang):
        explained = _explained(output, "\n" * 6 + "  std::vector<float> v(strings);\n")
        assert explained.startswith("module.cpp:7: error: static assertion failed")
        assert "v(strings);" in explained and "noticed inside the header" in explained
    # With this machine's compiler, too, an error in a header is reported at the student's line.
    text = "#include <algorithm>\n#include <vector>\nstruct S {};\nvoid f(std::vector<S> v) {\n"
    made = nativebuild.build(write(tmp_path, text + "  std::sort(v.begin(), v.end());\n}\n"))
    assert made.diagnostics.startswith("module.cpp:5: error: ") and "noticed inside" in made.diagnostics
    made = nativebuild.build(write(tmp_path, 'void f() {\n  asm("bogus %rax");\n}\n'))
    assert made.diagnostics.startswith("module.cpp:2: error: ") and "bogus" in made.diagnostics


def test_limits_have_their_own_line_and_stop_an_endless_expansion(tmp_path: Path) -> None:
    assert "stopped after 7 s" in _explained("", "", -9, timed_out=True)
    assert "g++: fatal" in _explained("g++: fatal\n")
    for said in (
        "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
        "virtual memory exhausted: Cannot allocate memory",
        "/usr/bin/ld: final link failed: Cannot allocate memory",
        "LLVM ERROR: out of memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ):
        assert "4 GB" in _explained(f"{said}\n"), said
    # An endless template expansion is stopped. Precompile the header first: otherwise this could use up the time limit.
    precompile()
    bomb = """template <long D, long K> struct Twice {
  static constexpr int value = Twice<D - 1, 2 * K>::value + Twice<D - 1, 2 * K + 1>::value;
};
template <long K> struct Twice<0, K> { static constexpr int value = 1; };
"""
    made = build(write(tmp_path, one_function("  return t * Twice<60, 0>::value;", bomb)), timeout_s=1)
    assert not made.ok and made.path == "light"
    assert "stopped after 1 s" in made.diagnostics and "template" in made.diagnostics


def test_messages_are_short_and_harmless() -> None:
    explained = _explained("module.cpp:1:9: error: stray '\x1b' in program\n", "int a = \x1b[31m\u202e;\n")
    assert "\x1b" not in explained and "\u202e" not in explained and "module.cpp:1" in explained
    deep = "std::vector<std::map<std::pair<int, std::vector<float, std::allocator<float> > >, int> >" * 30
    explained = _explained(f"module.cpp:1:3000: error: no {deep}\n" * 40, "x" * 5000 + "\n")
    assert len(explained.splitlines()) <= 15 and max(map(len, explained.splitlines())) <= 310
    assert "39 more errors" in explained
    text = "cannot convert 'std::vector<float, std::allocator<float> >' to 'std::__cxx11::basic_string<char>'"
    assert diagnostics.simplify(text) == "cannot convert 'std::vector<float>' to 'std::string'"


@pytest.mark.full
def test_out_of_memory_in_a_source_text_is_not_an_out_of_memory_error(tmp_path: Path) -> None:
    precompile()
    memory, printed = "out of memory", r'".print \"out of memory\""'
    asserted = '#include <cstdio>\nstatic_assert(false, "\\ncc1plus: out of memory allocating 1 bytes");\n'
    for made_by, text, words in (
        (build, "#error out of memory\n", memory),
        (build, '#line 1 "cc1plus"\n#error out of memory\n', memory),
        (build, asserted, memory),
        (nativebuild.build, f'void f() {{ asm({printed}); asm(".error \\"mine\\""); }}\n', "error: mine"),
        (nativebuild.build, f"void g();\nvoid f() {{ asm({printed}); g(); }}\n", "undefined function: g()"),
    ):
        made = made_by(write(tmp_path, text))
        assert "4 GB" not in made.diagnostics and words in made.diagnostics


@pytest.mark.skipif(toolchain().family != "gcc", reason="only gcc lets users choose its colours")
@pytest.mark.parametrize("said", [
    r"\nmodule.cpp:1:1: error: forged\n",
    r"\n\033[01m\033[Kmodule.cpp:1:1:\033[m\033[K error: forged\nIn file included from module.cpp:1:\n",
    r"\nmodule.cpp:1: Error: forged\n",
], ids=["plain", "coloured", "of an assembler"])  # fmt: skip
def test_only_the_compiler_s_own_lines_are_errors(said: str, tmp_path: Path) -> None:
    """A #pragma message can print text that looks like errors. The compiler's own error is reported."""
    message = f'int a;\n#pragma message "{said}"\n'
    made = nativebuild.build(write(tmp_path, f"{message}int b = unknown;\n"), sandbox=choose(None, True))
    assert made.diagnostics.startswith("module.cpp:3: error: 'unknown' was not declared"), made.diagnostics
    assert "forged" not in made.diagnostics and "int b = unknown;" in made.diagnostics
    made = nativebuild.build(write(tmp_path, f'int a;\nstatic_assert(false, "{said}");\n'))
    assert made.diagnostics.startswith("module.cpp:2: error: static assertion failed"), made.diagnostics
    if "Error" not in said:
        made = nativebuild.build(write(tmp_path, f"{message}void gone();\nvoid f() {{ gone(); }}\n"))
        assert made.diagnostics.startswith("undefined function: gone()"), made.diagnostics


def test_a_file_cannot_choose_the_place_of_its_errors() -> None:
    source = '  # /* */ line 7 "/home/alice/module.cpp"\nint x = y;\n'
    explained = _explained("/home/alice/module.cpp:7:9: error: 'y' was not declared in this scope\n", source)
    assert "module.cpp (a #line directive hides the line): error: 'y'" in explained
    assert "alice" not in explained
    quoted = 'const char *s = R"(\n#line 7 "x"\n)"; // \\\n#line 8\nint x = y;\n'
    assert "module.cpp:5: error: no" in _explained("module.cpp:5:9: error: no\n", quoted)
    # By source: True if it has a #line directive. A backslash at a line's end joins it to the next line.
    renames = {
        # A raw string keeps backslashes: this one ends in its second line, and opens no comment.
        'const char*s = R"a( )a\\\n" /* )a";\n#line 5 "/x/y.yaml"\n#error forged // */\n': True,
        'const char*s = R"a( )a\\\n" )a";\n#li\\\nne 5\n': True,
        'const char*s = R"a( )a\\\n"\n#line 5\n)a";\n': False,
        'const char*s = R"a(\n#line 5\n)a"; // \\\n#line 6\n': False,
        'const char*s = R"a(\\\n\\ \n)a"; \\\n\n#line 6\n': True,
        # Compilers disagree about the next text, so it counts as a directive.
        'const char*s = R\\\n"a(b)a";\n': True,
        'const char*s = R"a(no end\\\n#line 5\n': False,
    }
    assert {source: cpptext.renames_lines(source) for source in renames} == renames


def test_hints_name_a_near_name_among_very_many_or_an_encoding() -> None:
    words = "".join(f"  word{k}x = word{k}y + word{k}x + word{k}y;\n" for k in range(20_000))
    source = f"void f() {{\n  float accumulator; accumulater = accumulator;\n{words}}}\n"
    found = hint_for("'accumulater' was not declared in this scope", 2, source)
    assert found == "did you mean 'accumulator'? Upper and lower case count."
    assert hint_for("something new", 1, "") == ""
    for content, hint in (
        ("int x = 1;\n".encode("utf-16"), "UTF-16"),
        ("int x = 1;\n".encode("utf-16-be"), "UTF-16"),
        (bytes(range(256)) * 4, "not text"),
        ("int x = “a”;\n".encode(), "typographic quote"),
        ("// 日本語\nint x = “a”;\n".encode(), "typographic quote"),
    ):
        assert hint in hint_for("stray '\\377' in program", 1, content.decode(errors="replace")), content


INLINED = "inlining failed in call to 'always_inline' '{}': target specific option mismatch"
#: Compilers' messages about instructions that the published flags forbid, and the target that allows them.
INSTRUCTIONS = [
    (INLINED.format("__m256 _mm256_fmadd_ps(__m256, __m256, __m256)"), "fmaintrin.h", "avx2,fma"),
    (INLINED.format("__m256i _mm256_add_epi32(__m256i, __m256i)"), "avx2intrin.h", "avx2,fma"),
    (INLINED.format("__m512 _mm512_add_ps(__m512, __m512)"), "avx512fintrin.h", "avx512f"),
    (INLINED.format("__m256i _mm256_maskz_add_epi8(__mmask32)"), "avx512vlbwintrin.h", "avx512vl,avx512bw"),
    (INLINED.format("long long unsigned int _pext_u64(long long unsigned int)"), "bmi2intrin.h", "bmi2"),
    (INLINED.format("__m256 _mm256_cvtph_ps(__m128i)"), "f16cintrin.h", "f16c"),
    (INLINED.format("float own(float)"), "", "avx2,fma"),
    ("'__builtin_ia32_gathersiv8sf' needs isa option -mavx2", "", "avx2,fma"),
    ("'__builtin_ia32_vpdpbusd_v8si' needs isa option -mavxvnni -mavx512vnni", "", "avxvnni"),
    ("always_inline function '_mm256_fmadd_ps' requires target feature 'fma', but would be", "", "avx2,fma"),
    ("'__builtin_ia32_pmaddubsw256' needs target feature avx2", "", "avx2,fma"),
]


@pytest.mark.parametrize(("message", "header", "target"), INSTRUCTIONS)
def test_a_hint_names_the_instructions_to_allow(message: str, header: str, target: str) -> None:
    hint = hint_for(message, 1, "", header)
    assert f'put __attribute__((target("{target}"))) before' in hint
    assert f'#pragma GCC target("{target}")' in hint
    assert ("AVX-512" in hint) is ("avx512" in target) and "__builtin" not in hint


def test_a_name_that_every_program_defines_is_explained(tmp_path: Path) -> None:
    text = one_function("  return t;", 'extern "C" void _start() {}\n')
    explained = nativebuild.build(write(tmp_path, text)).diagnostics
    assert "defined twice: _start" in explained and "rename your function" in explained
    assert not [text for text in ("without an error message", "collect2", "crt1.o") if text in explained]
    # Each linker words the error about a second `malloc` in another way.
    for said in (
        "/usr/bin/ld: libc.a(malloc.o): in function `malloc':\n(.text+0x42a0): multiple definition of `malloc'; "
        "module.o:module.cpp:(.text+0x690): first defined here",
        "ld.lld: error: duplicate symbol: malloc\n>>> defined at module.cpp",
        "ld: error: duplicate symbol 'malloc' in:\n    module.o",
        "duplicate symbol 'malloc' in:\n    module.o",
    ):
        first, *more = _explained(f"{said}\n{said}\n").splitlines()
        assert first == "defined twice: malloc" and len(more) == 1, said


DOUBLES = HEAD + INCLUDE + "float f(float x) { ispc::scaled(&x, 1, 2.0f); return x; }\n" + BINDING

Here = Callable[[str], None]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    return lambda text: monkeypatch.setenv("PATH", on_the_path(text))


def handed_in(folder: Path, source: str = DOUBLES, second: str = PROGRAM) -> Path:
    put(folder, {"module.ispc": second})
    return write(folder, source)


def test_a_file_waits_without_ispc_and_an_empty_one_needs_none(tmp_path: Path, here: Here) -> None:
    """With ispc, the file is compiled and linked. An empty file gets its header from the kit."""
    calls_none = HEAD + INCLUDE + "using namespace ispc;\nfloat f(float x) { return x; }\n" + BINDING
    here(BROKEN)
    made = build(handed_in(tmp_path, calls_none, " \n\t// nothing yet\n/* a\n * b */ // c"))
    assert (made.ok, made.waits_for, made.notes) == (True, "", ()), made.diagnostics
    # If module.cpp does not include the header made by ISPC, module.cpp is built without module.ispc.
    left_out = handed_in(tmp_path / "left out", one_function("return t;"))
    made = build(left_out)
    assert made.ok and any("left out" in note for note in made.notes)
    source = handed_in(tmp_path, DOUBLES, PROGRAM.replace("*= by", "*= by * FACTOR"))
    made = build(source, defines={"FACTOR": "10"})
    assert (made.ok, made.object_path, made.waits_for) == (False, None, "ispc")
    assert "no points are lost" in made.diagnostics and ispc.WHERE_FROM in made.diagnostics
    here(STAND_IN)
    assert build(left_out).ok
    made = build(source, defines={"FACTOR": "10"})
    assert (made.ok, made.waits_for, made.notes) == (True, "", ()), made.diagnostics
    assert call(loaded(made), "f", 3.5) == 70.0, "macros reach both files"
    assert ispc.describe(tmp_path / "module.cpp") == {"ispc": f"{VERSION}, target {ispc.compiler().target}"}


@pytest.mark.full
def test_a_file_that_is_not_included_may_define_an_undefined_function(tmp_path: Path, here: Here) -> None:
    here(BROKEN)
    declared = DOUBLES.replace(INCLUDE, 'extern "C" void scaled(float *, int, float);\n')
    made = build(handed_in(tmp_path, declared.replace("ispc::", "")))
    assert made.waits_for == "ispc" and "undefined function: scaled" in made.diagnostics
    here(STAND_IN)
    made = build(tmp_path / "module.cpp")
    assert made.ok and call(loaded(made), "f", 3.5) == 7.0, made.diagnostics


def test_an_ispc_that_the_sandbox_cannot_read_is_the_machines_fault(tmp_path: Path, here: Here) -> None:
    """If the judge is root, compilers in tier C have another user id. The test denies this user access to ispc."""
    here(f"{STAND_IN}# closed\n")
    program = Path(str(shutil.which("ispc")))
    for closed in (program, program.parent.parent, tmp_path):
        closed.chmod(0o700)
    box = next((box for box in tiers() if box.tier == "C" and os.geteuid() == 0), None) or sandbox.choose()
    made = build(handed_in(tmp_path / "in"), sandbox=box)
    assert made.waits_for == "ispc" if box.tier == "C" else made.ok, made.diagnostics


def test_an_ispc_file_is_compiled_in_the_sandbox(tmp_path: Path, here: Here) -> None:
    """In the strongest tier the sandbox shows the ispc program, but no files of other people."""
    secret = put(tmp_path, {"secret.h": "int secret;\n"}) / "secret.h"
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


def test_objects_are_cached_by_both_files_and_ispcs_version(tmp_path: Path, here: Here) -> None:
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


@pytest.mark.parametrize("bit", some([b"/*", b"/**/", b"//\n", b" ", b"/ ", b"*/", b"//", b"/*/", b"\n/"], 3))
def test_a_search_for_emptiness_takes_linear_time(bit: bytes) -> None:
    most = ispc.LONGEST_EMPTY_BYTES
    assert cpu_growth(lambda size: ispc.is_empty(bit * (size // len(bit))), most // 20, most) < 60


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
