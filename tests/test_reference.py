"""The reference library at every x86-64 level and on 64-bit Arm, and the starter, which is made from the master."""

import ctypes
import dataclasses
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import ASSIGNMENT, ROOT, put, python, refused
from hypothesis import given, settings, strategies

from grader.assignment.regions import strip_solution
from grader.backends import binding
from grader.backends.native import toolchain
from grader.core.arrays import Array, np
from grader.core.errors import KitError
from grader.explain.comparison import compare
from grader.study.standalone import ran
from labs.attention import cases, oracle
from module_ref_stub import library as ref_library

KERNELS = ("naive", "blocked", "fused", "flash")
#: N is a multiple of all tiles; a prime; 1; less than the tiles; 33, which is one more than the blocked kernel's tile.
SHAPES = (
    {"B": 1, "H": 2, "N": 64, "d": 32, "Br": 16, "Bc": 32, "threads": 4},
    {"B": 2, "H": 3, "N": 97, "d": 40, "Br": 24, "Bc": 7, "threads": 3},
    {"B": 1, "H": 2, "N": 1, "d": 7, "Br": 4, "Bc": 1, "threads": 2},
    {"B": 3, "H": 1, "N": 5, "d": 3, "Br": 256, "Bc": 8, "threads": 8},
    {"B": 1, "H": 1, "N": 33, "d": 17, "Br": 1, "Bc": 33, "threads": 1},
)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"N{shape['N']}d{shape['d']}")
OFFERED = {f"gpt149_ref_{kernel}" for kernel in KERNELS}
#: By library: its recipe, the function that builds it, some functions, symbol prefixes, and more compiler flags.
LIBRARIES = {
    "reference": (ref_library.REFERENCE, ref_library.library_path, OFFERED, ("gpt149_ref_",), ()),
    "expert": (ref_library.EXPERT, ref_library.expert_path, {"gpt149_expert_attention"},
               ("gpt149_expert_", "gpt149_plain_"), ("-O0",)),
}  # fmt: skip
LARGEST = {"B": 2, "H": 3, "N": 40, "d": 35, "threads": 5, "Br": 50, "Bc": 50}
ANY_SHAPE = strategies.fixed_dictionaries({name: strategies.integers(1, n) for name, n in LARGEST.items()})


def call(kernel: str, inputs: dict[str, Array], shape: dict[str, int]) -> Array:
    """Call a kernel of KERNELS. Return O (B, H, N, d). Memory holds NaN before: a kernel must not rely on zeros."""
    B, H, N, d, Br, Bc = (shape[key] for key in ("B", "H", "N", "d", "Br", "Bc"))
    tiles = ((Br, d), (Bc, d), (Bc, d), (Br, Bc), (Br, Bc), (Br, d), (Br, d), (N,), (Br,), (Br,), (Br,))
    rows = {"fused": ((shape["threads"], N),), "flash": tiles}
    stale = [np.full(size, np.nan, np.float32) for size in rows.get(kernel, ((N, N),))]
    sizes = (*((Bc, Br) if kernel == "flash" else ()), B, H, N, d)
    out = np.full((B, H, N, d), np.nan, np.float32)
    library = ctypes.CDLL(str(ref_library.library_path()))
    library.gpt149_ref_set_threads(shape["threads"])
    pointers = [ctypes.c_void_p(one.ctypes.data) for one in (*(inputs[name] for name in "QKV"), *stale, out)]
    getattr(library, f"gpt149_ref_{kernel}")(*pointers[:-1], *map(ctypes.c_int, sizes), pointers[-1])
    return out


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    """After a test, reset the number of OpenMP threads (also torch's), because the fused kernel sets it."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    found = ctypes.CDLL(str(ref_library.library_path()))
    best = found.gpt149_ref_level()
    yield found
    found.gpt149_ref_set_level(best)


def nm(*arguments: object) -> str:
    return subprocess.check_output(["nm", *map(str, arguments)], text=True)


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm (binutils) is not installed")
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_uses_no_torch_and_no_code_of_one_level_for_another(name: str, tmp_path: Path) -> None:
    """The linker merges weak functions of several levels into one, so AVX-512 code could get into the baseline."""
    recipe, path, offered, prefixes, more = LIBRARIES[name]
    symbols = nm("-DC", path())
    exported = set(re.findall(r" [TBDRW] (\w+)", symbols))
    assert offered <= exported and all(name.startswith(prefixes) for name in exported), exported
    assert not re.findall(r"\bat::|\bc10::|torch|\bPy[A-Z_]", symbols)
    tools = toolchain.toolchain()
    flags, _ = toolchain.openmp_flags(tools.system, tools.family, toolchain.libomp_prefix())
    given = (tools.machine, str(tools.compiler), flags, tmp_path, recipe)
    commands, objects = ref_library.compile_commands(*given)
    # The first object, which chooses the level, has no kernels.
    for command, made in [*zip(commands, objects, strict=True)][1:][-2:]:
        subprocess.run([*command, *more], check=True)
        defined = nm("-C", "--defined-only", made)
        assert " t " in defined, "the kernels are there, as local symbols"
        assert not re.findall(r"^\S+ [WuV] (?!DW\.ref\.).*$", defined, re.MULTILINE)


@shapes
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_level_is_right_and_they_agree(library, kernel: str, shape: dict[str, int]) -> None:
    inputs = cases.make_inputs("random", shape, seed=149)
    expected = oracle.ORACLES["attention"].expected(inputs, shape)
    outputs = []
    for level in range(library.gpt149_ref_level() + 1):
        assert library.gpt149_ref_set_level(level) == level
        outputs.append(call(kernel, inputs, shape))
        assert compare(expected, outputs[-1]).ok, f"level {level}"
    for level, output in enumerate(outputs):
        assert abs(output - outputs[0]).max() <= 1e-6, f"level {level} against the baseline"


def test_a_level_that_the_machine_lacks_is_not_set(library) -> None:
    best = library.gpt149_ref_level()
    for level in (best + 1, -1):
        assert library.gpt149_ref_set_level(level) == best


@settings(max_examples=25)
@given(ANY_SHAPE, strategies.sampled_from(("random", "onehot", "permuted_keys", "constant_rows")))
def test_kernels_are_right_for_any_shape(shape: dict[str, int], distribution: str) -> None:
    inputs = cases.make_inputs(distribution, shape, seed=1)
    expected = oracle.ORACLES["attention"].expected(inputs, shape)
    for kernel in KERNELS:
        assert compare(expected, call(kernel, inputs, shape)).ok, kernel


def test_accessors_read_and_write_row_major(library) -> None:
    tensor = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    written = torch.zeros_like(tensor)
    library.gpt149_ref_read4d.restype = ctypes.c_float
    for index in torch.cartesian_prod(*(torch.arange(size) for size in tensor.shape)).tolist():
        place = [ctypes.c_int(number) for number in (*index, 3, 4, 5)]
        value = library.gpt149_ref_read4d(ctypes.c_void_p(tensor.data_ptr()), *place)
        assert value == tensor[tuple(index)].item()
        library.gpt149_ref_write4d(ctypes.c_void_p(written.data_ptr()), *place, ctypes.c_float(value))
    assert torch.equal(written, tensor)


def use_compiler(monkeypatch: pytest.MonkeyPatch, cache: Path, script: str) -> None:
    put(cache, {"compiler": f"#!/bin/sh\n{script}\n"}, 0o755)
    tools = dataclasses.replace(toolchain.toolchain(), compiler=cache / "compiler")
    monkeypatch.setattr(ref_library, "toolchain", lambda: tools)
    monkeypatch.setattr(ref_library, "cache_root", lambda: cache)


def test_builds_side_by_side_leave_one_object_and_one_library(monkeypatch, tmp_path: Path) -> None:
    script = 'echo run >> "$0.log"; sleep 0.05; for last; do :; done; echo built > "$last"'
    use_compiler(monkeypatch, tmp_path, script)
    with ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(lambda _: ref_library.library_path(), range(3)))
    kept = (tmp_path / "objects").iterdir()
    assert len(paths) == 1 and {path.stem for path in kept} == {path.stem for path in paths}
    runs = (tmp_path / "compiler.log").read_text()
    assert ref_library.library_path() in paths
    assert (tmp_path / "compiler.log").read_text() == runs, "a library in the cache is not built again"


def test_a_failing_compiler_and_a_closed_cache_are_the_kits_fault(monkeypatch, tmp_path: Path) -> None:
    error = "kernels.cpp:1:1: error: no such thing"
    use_compiler(monkeypatch, tmp_path, f"echo some notes; echo '{error}'; exit 1")
    refused(f"cannot build the reference: {re.escape(error)}", ref_library.library_path, of=KitError)
    assert not (tmp_path / "objects").exists()
    shutil.rmtree(tmp_path / "work")
    (tmp_path / "work").write_text("a file where the folder should be")
    refused("GPT149_CACHE", ref_library.library_path, of=KitError)


CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
missing = [tool for tool in (CROSS_COMPILER, EMULATOR) if shutil.which(tool) is None]
emulated = pytest.mark.skipif(bool(missing), reason="no aarch64: apt install g++-aarch64-linux-gnu qemu-user")
#: Script that builds a source for aarch64. It runs in a process of its own, because a process examines its machine only
#: once. It replaces `_works`, because this machine cannot run the linked program.
NATIVE_BUILD = """
import platform, sys
from pathlib import Path
from grader.backends.native import nativebuild
platform.machine = lambda: "aarch64"
nativebuild._works = lambda *_: True
made = nativebuild.build(Path(sys.argv[1]), flags=("-O3", "-fopenmp"))
sys.exit(print(made.program) if made.ok else made.diagnostics)
"""


@pytest.fixture(scope="module")
def aarch64_runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = {"CXX": CROSS_COMPILER, "GPT149_CACHE": str(tmp_path_factory.mktemp("cache"))}
    return Path(python("-c", NATIVE_BUILD, ROOT / "module.cpp", timeout_s=600, code=0, **env).stdout.strip())


@emulated
@pytest.mark.parametrize("name", ["part1", "part2", "part3", "part4"])
def test_the_master_s_kernels_are_right_on_another_processor(aarch64_runner: Path, name: str) -> None:
    part = ASSIGNMENT.part(name)
    shape = {**ASSIGNMENT.defaults, "B": 2, "H": 3, "N": 97, "d": 33, "threads": 3}
    inputs = ASSIGNMENT.typical_inputs(part, shape, 5)
    request = binding.request(part, shape, inputs)
    with ran(aarch64_runner, request, prefix=(EMULATOR,), threads=3, memory_bytes=None) as run:
        assert run.call is not None and run.call.status == "ok", run.output
        found = run.call.output
    assert compare(oracle.ORACLES["attention"].expected(inputs, shape), found).ok


@pytest.fixture(scope="module")
def aarch64_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aarch64")
    commands, objects = ref_library.compile_commands("aarch64", CROSS_COMPILER, ["-fopenmp"], folder)
    assert len(commands) == 2, "one level and the dispatch"
    program, main = folder / "program", Path(__file__).with_name("reference_main.cpp")
    link = [CROSS_COMPILER, "-O2", "-fopenmp", "-static", str(main), *objects, "-o", str(program)]
    for command in (*commands, link):
        subprocess.run(command, check=True)
    return program


@emulated
@shapes
def test_the_aarch64_build_is_right(aarch64_program: Path, tmp_path: Path, shape: dict[str, int]) -> None:
    inputs = cases.make_inputs("random", shape, seed=149)
    header = np.array([shape[key] for key in ("B", "H", "N", "d", "Br", "Bc")], np.int32)
    source, result = tmp_path / "input", tmp_path / "output"
    source.write_bytes(b"".join(array.tobytes() for array in (header, *(inputs[name] for name in "QKV"))))
    command = [shutil.which(EMULATOR), aarch64_program, source, result]
    subprocess.run(command, check=True, env={"OMP_NUM_THREADS": str(shape["threads"])}, timeout=60)
    outputs = np.frombuffer(result.read_bytes(), np.float32).reshape(5, *inputs["Q"].shape)
    expected = oracle.ORACLES["attention"].expected(inputs, shape)
    for kernel, output in zip(KERNELS, outputs[:4], strict=True):
        assert compare(expected, output).ok, kernel
    assert np.array_equal(outputs[4], inputs["Q"]), "accessors"


def test_the_starter_has_all_lines_but_the_solutions(master: str) -> None:
    starter = strip_solution(master)
    regions = re.findall(r"// BEGIN SOLUTION\n(.*?)// END SOLUTION", master, re.DOTALL)
    solution = [line.strip() for line in "".join(regions).splitlines() if line.strip()]
    assert len(solution) > 100
    # Some lines, such as closing braces, occur in and outside of the regions. Only those outside may remain.
    given_lines = Counter(line.strip() for line in master.splitlines())
    given_lines.subtract(solution)
    left = Counter(line.strip() for line in starter.splitlines())
    assert not {line for line in solution if left[line] > given_lines[line]}
    assert not re.search(r"std::exp|BEGIN|END S", starter)
    bound = [re.findall(r'm\.def\("(\w+)", &\1', text) for text in (master, starter)]
    assert bound[0] == bound[1] and len(bound[0]) >= 5
    assert starter.count("return fillTensor(OTensor, O);") == 4
    assert "    return 0.0f;\n" in starter and "#define TILE_SIZE 16" in starter


def test_starter_lines_take_the_solutions_place() -> None:
    text = "a\n  // BEGIN SOLUTION\n  secret\n  // END SOLUTION\n  // BEGIN STARTER\n  // shown;\n"
    text += "  //     // a comment\n  //\n\n  // END STARTER\nb"
    assert strip_solution(text) == "a\n  shown;\n      // a comment\n\n\nb"
    assert strip_solution("no regions // at all\n") == "no regions // at all\n"
    assert strip_solution("// BEGIN SOLUTION\r\nx\r\n// END SOLUTION\r\ny\r\n") == "y\r\n"


def test_a_malformed_region_is_named_by_its_line() -> None:
    alone = "write the marker in capitals, alone on its line"
    for text, message in {
        "x\n// BEGIN SOLUTION\ny": "line 2: BEGIN SOLUTION has no END",
        "x\ny\n// END SOLUTION\n": "line 3: END SOLUTION, but no region is open",
        "// BEGIN SOLUTION\n// BEGIN STARTER\n": "line 2: BEGIN STARTER is inside the region of line 1",
        "// BEGIN STARTER\n// END SOLUTION\n": "line 2: END SOLUTION, but the region of line 1 is STARTER",
        "// BEGIN STARTER\nlive();\n// END STARTER\n": "line 2: a starter line must be commented out",
        "// BEGIN SOLUTION\nf(); // END SOLUTION\n": f"line 2: {alone}",
        **dict.fromkeys(("// begin solution\n", "// BEGIN_SOLUTION\n"), f"line 1: {alone}"),
    }.items():
        refused(f"^{re.escape(message)}", strip_solution, text)
