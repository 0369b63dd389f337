"""From a source to a native program: what is found again, what is refused, and what is said of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from building import HEAD, UNOPTIMIZED, one_function, sharing_headers, write

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


def test_a_program_is_found_again(tmp_path: Path) -> None:
    first = nativebuild.build(write(tmp_path, WORKS))
    again = nativebuild.build(write(tmp_path, WORKS))
    assert first.ok and again.ok and again.cached and again.cpu_s == 0.0
    assert (again.program, again.object_path, again.key) == (first.program, first.object_path, first.key)
    keys = {first.key}
    keys.add(nativebuild.build(write(tmp_path, WORKS + "// other\n")).key)
    keys.add(nativebuild.build(write(tmp_path, WORKS), defines={"N": "3"}).key)
    keys.add(nativebuild.build(write(tmp_path, WORKS), flags=UNOPTIMIZED).key)
    assert len(keys) == 4
    with NativeHost() as host:
        assert call(host, first.program) == [1.0, 2.0]


def test_macros_and_flags_are_taken(tmp_path: Path) -> None:
    text = one_function(
        "#if defined(__OPTIMIZE__)\nn = 0;\n#endif\nreturn torch::full({1}, (float)(TIMES + n));"
    )
    with NativeHost() as host:
        fast = nativebuild.build(write(tmp_path, text), defines={"TIMES": "7"})
        slow = nativebuild.build(write(tmp_path, text), defines={"TIMES": "7"}, flags=UNOPTIMIZED)
        assert (call(host, fast.program), call(host, slow.program)) == ([7.0], [10.0])


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("return at::matmul(t, t);", "module.cpp:3 calls at::matmul"),
        ("\nreturn t.softmax(-1);", "module.cpp:4 calls Tensor::softmax"),
        ("return torch::fft::fft(t);", "module.cpp:3 uses torch's"),
    ],
)
def test_what_is_torchs_own_work_is_refused_by_name_and_line(tmp_path: Path, body: str, line: str) -> None:
    made = nativebuild.build(write(tmp_path, one_function(body)))
    assert not made.ok and made.program is None and made.diagnostics
    assert made.refused is not None and made.refused.text.startswith(line)


def test_a_students_error_is_explained_and_not_refused(tmp_path: Path) -> None:
    source = tmp_path / "mine.cpp"
    source.write_text(one_function("int x = 3\nreturn t;"))
    made = nativebuild.build(source)
    assert not made.ok and made.refused is None
    assert made.diagnostics.startswith("mine.cpp:4: error") and str(tmp_path) not in made.diagnostics


@pytest.mark.parametrize("name", ["cblas_sgemm", "PyEval_GetBuiltins"])
def test_what_is_not_there_does_not_link(tmp_path: Path, name: str) -> None:
    made = nativebuild.build(
        write(tmp_path, one_function(f"{name}(); return t;", f'extern "C" void {name}();\n'))
    )
    assert not made.ok and name in made.diagnostics


def test_an_object_beyond_its_limit_is_refused(tmp_path: Path) -> None:
    text = (
        HEAD
        + "int numbers[1 << 20] = {1};\n"
        + one_function("return torch::full({1}, (float)numbers[n]);", "")
    )
    made = nativebuild.build(write(tmp_path, text), object_bytes=1 << 20)
    assert not made.ok and "it may have 1 MiB" in made.diagnostics
    assert nativebuild.build(write(tmp_path, text), object_bytes=8 << 20).ok


def test_a_file_that_binds_nothing_says_so(tmp_path: Path) -> None:
    made = nativebuild.build(write(tmp_path, HEAD + "torch::Tensor f(torch::Tensor t) { return t; }\n"))
    assert made.ok and any("PYBIND11_MODULE" in note for note in made.notes)
    with NativeHost() as host:
        assert made.program is not None
        with host.spawn(made.program, threads=1) as session:
            assert session.death is None and session.functions == {}


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
