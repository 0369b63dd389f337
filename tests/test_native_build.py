"""From a source to a native program: macros and flags, refusals, the compiler's sandbox, dynamic programs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from building import UNOPTIMIZED, one_function, sharing_headers, write

from grader.base.arrays import np
from grader.base.errors import KitError
from grader.build import nativebuild
from grader.run.calls import Request
from grader.run.nativehost import NativeHost
from grader.sandbox import choose

WORKS = one_function("return t;")


def call(host: NativeHost, program: Path | None) -> list[float]:
    assert program is not None
    with host.spawn(program, threads=1) as session:
        assert session.death is None, session.death
        request = Request("f", [{"input": 0}, {"value": 3}], [np.array([1.0, 2.0], np.float32)], (2,))
        answer = session.call(request)
    assert answer.status == "ok", answer
    return answer.output.tolist()


def test_macros_and_flags_are_taken(tmp_path: Path) -> None:
    text = one_function(
        "#if defined(__OPTIMIZE__)\nn = 0;\n#endif\nreturn torch::full({1}, (float)(TIMES + n));"
    )
    with NativeHost() as host:
        fast = nativebuild.build(write(tmp_path, text), defines={"TIMES": "7"})
        slow = nativebuild.build(write(tmp_path, text), defines={"TIMES": "7"}, flags=UNOPTIMIZED)
        assert (call(host, fast.program), call(host, slow.program)) == ([7.0], [10.0])


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("return at::matmul(t, t);", "mine.cpp:4 calls at::matmul", "mine.cpp:4: error"),
        ("\nreturn t.softmax(-1);", "mine.cpp:5 calls Tensor::softmax", "mine.cpp:5: error"),
        ("return torch::fft::fft(t);", "mine.cpp:4 uses torch's", "mine.cpp:4: error"),
        ("int x = 3\nreturn t;", "", "mine.cpp:5: error"),
        ("cblas_sgemm(); return t;", "", "undefined function: cblas_sgemm"),
        ("PyEval_GetBuiltins(); return t;", "", "PyEval_GetBuiltins"),
    ],
)
def test_torchs_own_work_is_refused_by_name_and_other_errors_are_explained(
    tmp_path: Path, body: str, line: str, message: str
) -> None:
    declared = 'extern "C" { void cblas_sgemm(); void PyEval_GetBuiltins(); }\n'
    source = write(tmp_path, one_function(body, declared))
    made = nativebuild.build(source.rename(tmp_path / "mine.cpp"))
    assert not made.ok and made.program is None
    assert message in made.diagnostics and str(tmp_path) not in made.diagnostics
    assert made.refused.text.startswith(line) if made.refused else not line


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these sandboxes")
def test_a_compiler_in_the_sandbox_sees_what_it_needs_and_no_more(tmp_path: Path) -> None:
    box = choose()
    made = nativebuild.build(write(tmp_path, one_function(f"// {box.tier}\nreturn t;")), sandbox=box)
    assert made.ok, made.diagnostics
    with NativeHost(box) as host:
        assert call(host, made.program) == [1.0, 2.0]
    secret = tmp_path / "secret.h"
    secret.write_text("#error seen\n")
    made = nativebuild.build(write(tmp_path, f'#include "{secret}"\n{WORKS}'), sandbox=box)
    assert not made.ok and "seen" not in made.diagnostics


@pytest.mark.skipif(sys.platform != "linux", reason="static programs are tried on Linux alone")
def test_without_static_libraries_a_program_is_dynamic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nativebuild, "LINKAGES", {"dynamic": nativebuild.LINKAGES["dynamic"]})
    cache = sharing_headers(tmp_path / "cache")
    made = nativebuild.build(write(tmp_path, WORKS), cache=cache)
    assert made.ok and made.linkage == "dynamic", made.diagnostics
    for box in (choose(), choose("D", trust=True)):
        with NativeHost(box, cache) as host:
            assert call(host, made.program) == [1.0, 2.0]
            assert "no files" not in host.applied
    # As with an OpenMP library that wants shared memory files: no student is told that his kernel crashed.
    trial = nativebuild.kit(cache).folder / nativebuild.TRIAL
    trial.unlink()
    shutil.copy("/bin/false", trial)
    with pytest.raises(KitError, match=r"under a runner's lock .*: try CXX="):
        NativeHost(choose(), cache)
