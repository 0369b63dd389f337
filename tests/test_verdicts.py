"""Each way to fail has its own verdict, words to act on and exit code 1, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from building import includes
from conftest import ASSIGNMENT, COURSE, ROOT, insert_at_start, keeping, one_of_each, python, write
from process_tree import alive, cpu_s, descendants, wait_for

from grader import score
from grader.assignment.regions import strip_solution
from grader.report import result_json

SMALL = ("-N", "64", "-B", "2", "-br", "16", "-bc", "24", "--no-time", "--no-table")
GPT149 = (sys.executable, str(ROOT / "gpt149.py"))
KERNELS = {part.id: part.function for part in ASSIGNMENT.parts if part.function.startswith("my")}


class Fault(NamedTuple):
    """A broken kernel: statements at its beginning, or an edit of the whole text that breaks part 1."""

    name: str
    verdict: str
    says: str
    edit: str | tuple[str, str] = ""


SIZES, GIVEN = "int B, int H, int N, int d) {", "// Given: between tensors"
LEAVE = "leave = (std::exit(0), 1)"
ENDLESS = Fault("endless loop", "timeout", "did not end", "volatile bool on = true; while (on) {}")
#: Each list is one source, with a fault in each part. A fault of the whole file is alone in its source.
QUICK = [
    [
        Fault("missing function", "missing", "not bound", ('m.def("myNaiveAttention"', 'm.def("myNaive"')),
        Fault("out of bounds write", "crash", "SIGSEGV",
              "for (long i = 0; i < 1L << 40; i += 512) QTensor.data_ptr<float>()[i] = 1;"),
        Fault("segfault", "crash", "SIGSEGV", "volatile int *nowhere = nullptr; *nowhere = 1;"),
        Fault("abort", "crash", "SIGABRT", "std::abort();"),
    ],
    [
        Fault("changed signature", "missing", "takes 7 arguments where 8",
              (f"torch::Tensor QK_tTensor, {SIZES}", f"{SIZES} torch::Tensor QK_tTensor = at::zeros({{N, N}});")),
        Fault("exit in the kernel", "crash", r"exit\(0\)", "std::exit(0);"),
        ENDLESS,
        Fault("exception", "crash", "C.. exception: lost my way", 'throw std::runtime_error("lost my way");'),
    ],
    [Fault("syntax error", "compile_error", r"module.cpp:\d+.*", ("float score = 0.0f;", "float score = 0.0f"))],
    [Fault("exit in an initialiser", "crash", "static initialisers", (GIVEN, f"\nstatic int {LEAVE};\n{GIVEN}"))],
]  # fmt: skip
#: Wrong results and forged replies have tables of their own: the wrong family and the threats.
SLOW = [
    Fault("torch exception", "crash", "threw a C.. exception", "return QTensor.view({1, 2, 3});"),
    Fault("undefined result", "wrong", r"undefined", "return torch::Tensor();"),
    Fault("a flood of text", "pass", "xxxx",
          "static std::string row(1023, 'x'); for (static int i = 0; i < 1 << 20; i++) std::puts(row.c_str());"),
    Fault("a file of its own, which it cannot have", "pass", "",
          'if (std::FILE *f = std::fopen("debug.txt", "w")) std::fclose(f); else std::puts("no file");'),
]  # fmt: skip


def edited(master: str, faults: Sequence[Fault]) -> str:
    source = master
    for kernel, fault in zip(KERNELS.values(), faults, strict=False):
        if isinstance(fault.edit, str):
            source = insert_at_start(source, kernel, fault.edit)
        else:
            assert fault.edit[0] in source, f"the master no longer holds {fault.edit[0]!r}"
            source = source.replace(*fault.edit, 1)
    return includes("cstdio cstdlib stdexcept string unistd.h") + source


def run(*arguments: object, source: Path | None = None) -> subprocess.CompletedProcess[str]:
    return python(*GPT149[1:], *arguments, *(["--module", source] if source else []), timeout_s=200)


OF_BOTH_TIERS = [*QUICK, pytest.param(SLOW, marks=pytest.mark.full)]


@pytest.mark.parametrize("faults", OF_BOTH_TIERS, ids=lambda faults: ", ".join(each.name for each in faults))
def test_faults_have_their_own_verdicts(faults: list[Fault], master: str, tmp_path: Path) -> None:
    folder, report, impatient = tmp_path / "submission", tmp_path / "result.json", tmp_path / "impatient.yaml"
    impatient.write_text(f"extends: {COURSE}\nlimits: {{call_s: 3}}\n")
    folder.mkdir()
    tests, source = "all" if len(faults) > 1 else "part1", write(folder, edited(master, faults))
    ended = run(tests, *SMALL, "--config", impatient, "--json", report, source=source)
    result = json.loads(report.read_text())
    assert "Traceback" not in ended.stdout + ended.stderr
    expected = dict(zip(KERNELS, faults, strict=False))
    for part, said in zip(result["parts"], ended.stdout.split("\nRunning ")[1:], strict=True):
        fault = expected.get(part["id"], Fault("none", "pass", ""))
        assert part["verdict"] == fault.verdict, f"{fault.name}: {said}"
        assert re.search(fault.says, said), f"{fault.name}: {said}"
        assert part["points"] == (part["max_points"] if fault.verdict == "pass" else 0)
        assert len(said) < 20_000
    some_fail = {part["verdict"] for part in result["parts"]} != {"pass"}
    assert ended.returncode == some_fail, ended.stdout + ended.stderr
    # Files that a kernel writes land in its scratch folder, and go with it.
    assert [path.name for path in folder.iterdir()] == ["module.cpp"]
    assert not (Path("/") / "debug.txt").exists() and not (ROOT / "debug.txt").exists()


def test_result_file_replaces_no_device_and_no_link(tmp_path: Path) -> None:
    kept, link, pipe = (tmp_path / f"{name}.json" for name in ("kept", "link", "pipe"))
    kept.write_text("old")
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    ended = run("part0", *SMALL, "--json", pipe, source=ROOT / "module.cpp")
    result = json.loads(reader.communicate(timeout=30)[0])
    assert result["schema_version"] == 1 and ended.returncode == 0 and pipe.is_fifo()
    assert "Running Part 0 Test" in ended.stdout, "PyTorch itself is a part"
    link.symlink_to(kept)
    read = result_json.from_dict(result)
    result_json.write(read, score.score(ASSIGNMENT, read), link)
    assert link.is_symlink() and json.loads(kept.read_text())["points"] == 0


def test_a_reader_that_leaves_gets_no_exit_code_of_a_verdict() -> None:
    with subprocess.Popen([*GPT149, "part0", *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.close()
        assert b"Traceback" not in run.stderr.read()
    assert run.returncode in (141, -signal.SIGPIPE)


def test_unwritable_cache_is_the_machine_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT149_CACHE", "/proc/nowhere")
    ended = run("part1", *SMALL, source=ROOT / "module.cpp")
    assert ended.returncode == 3 and "GPT149_CACHE" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_starter_is_not_written_yet(master: str, tmp_path: Path) -> None:
    source, report = write(tmp_path, strip_solution(master)), tmp_path / "result.json"
    ended = run("all", *SMALL, "--no-table", "--json", report, source=source)
    result = json.loads(report.read_text())
    assert ended.returncode == 1 and result["points"] == 0, ended.stdout + ended.stderr
    for part in result["parts"]:
        assert (part["verdict"], part["diagnosis"]["code"]) == ("wrong", "not_written"), part
    assert "not written yet" in ended.stdout


def test_a_killed_judge_leaves_no_process(master: str, tmp_path: Path) -> None:
    source = write(tmp_path, edited(master, [ENDLESS]))
    command = [*GPT149, "part1", *SMALL, "--no-table", "--module", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as judge:
        try:
            assert judge.stdout is not None and any(line.startswith(b"Running Part") for line in judge.stdout)
            # Once the file is built, only the endless loop takes more than a second of CPU time: no table is made.
            assert wait_for(lambda: [pid for pid in descendants(judge.pid) if cpu_s(pid) > 1.0])
            children = descendants(judge.pid)
        finally:
            judge.kill()
    assert wait_for(lambda: not any(alive(pid) for pid in children))


#: Lines of arguments, and a part of the message.
USAGE = """
part3 -N 0: -N takes a whole number | part3 -N x: -N takes a whole number | part9: no test 'part9' | : TEST
part3 -N 99999999999: -N takes a whole number | part1 -N 8192 -B 64 -d 1024: choose smaller sizes
part1 --module nowhere/at/all.cpp: no such file | part1 --config nowhere.yaml: cannot read the assignment
part1 --module /dev/null: is not a file: it is a folder, a pipe, a device or a link | part1 -D 1X: -D takes
part1 --frobnicate: unrecognized arguments | part1 --json /nowhere/at/all.json: no such folder
"""


@pytest.mark.parametrize("line", USAGE.strip().replace("\n", " | ").split(" | "))
def test_wrong_usage_is_one_line(line: str) -> None:
    arguments, _, says = line.partition(": ")
    ended = run(*arguments.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.strip().splitlines()) == 1 and says in ended.stderr


SCHEMA = {
    "": {"schema_version", "submission", "assignment", "machine", "toolchain", "sandbox", "parts", "flags"},
    "part": {"id", "title", "verdict", "points", "max_points", "cases", "time", "memory"},
    "case": {"name", "shape", "ok", "max_error", "diagnosis"},
    "time": {"reference_ms", "student_ms", "ratio", "ratio_interval", "rounds", "clock", "allowance"},
    "memory": {"profiler_bytes", "reference_profiler_bytes", "peak_bytes"},
}
student_run = partial(python, ROOT / "gpt149.py", timeout_s=300)


def judged(text: str, folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    source, report = write(folder, text), folder / "result.json"
    run = student_run(*arguments, "--no-time", "--no-table", "--module", source, "--json", report)
    assert report.is_file(), run.stdout + run.stderr
    return run, json.loads(report.read_text())


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    """Everything at the assignment's own shape, without the timing (test_timed_run has that on a small one)."""
    report = tmp_path_factory.mktemp("run") / "result.json"
    run = student_run("all", "--no-time", "--json", report)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout, json.loads(report.read_text())


def test_master_earns_every_point_in_a_result_file_as_promised(default_run: tuple[str, dict]) -> None:
    said, result = default_run
    assert result["points"] == result["max_points"] == 93
    assert {part["verdict"] for part in result["parts"]} == {"pass"}
    assert result["flags"] == []
    memory = {part["id"]: part["memory"] for part in result["parts"]}
    for part, expected in {"part1": 4718592, "part2": 4718592, "part3": 557056, "part4": 524288}.items():
        assert memory[part]["profiler_bytes"] == memory[part]["reference_profiler_bytes"] == expected
        assert said.count(f"mem usage:  {expected} bytes") >= 2
    # The kernels copy their tensors into vectors, which torch's profiler cannot know; N x N scores twice in part 1.
    assert memory["part1"]["peak_bytes"] > 2 * 4 * 1024 * 1024
    assert memory["part3"]["peak_bytes"] < memory["part1"]["peak_bytes"] / 2
    assert result["schema_version"] == 1 and set(result["submission"]) == {"id", "sha256"}
    assert set(result) >= SCHEMA[""]
    for part in result["parts"]:
        assert set(part) >= SCHEMA["part"] and set(part["memory"]) >= SCHEMA["memory"]
        assert all(set(case) >= SCHEMA["case"] for case in part["cases"])


def test_familiar_lines_come_in_their_order(default_run: tuple[str, dict]) -> None:
    said, _ = default_run
    block = said[said.index("Running Part 3 Test: Fused Attention") :]
    right = r"manual attention == pytorch attention True"
    statistics = r"cpu time:  \d+\.\d{3}ms\s+mem usage:  557056 bytes"
    expected = [
        r"part3: Fused Attention .* PASS  open of 25 points \(not timed\)",
        r"-----RUNNING REFERENCE IMPLEMENTATION-----", right, r"Manual Execution Time:  \d+\.\d{4}",
        r"Name .*Self CPU %.*Self CPU .*CPU total %.*CPU total .*CPU Mem.*# of Calls",
        r"model_inference", r"REFERENCE - FUSED ATTENTION statistics", statistics,
        r"-----RUNNING STUDENT IMPLEMENTATION-----", right, r"STUDENT - FUSED ATTENTION statistics", statistics,
    ]  # fmt: skip
    assert re.search(r"[\s\S]*?".join(expected), block), block


OTHERS = ("-N 333 -B 2 -H 3 -d 40 -br 48 -bc 64", "-N 1", "-N 50 -d 1 -H 1 --threads 3 -D TILE_SIZE=7")


@pytest.mark.parametrize("shape", one_of_each(("-N 97 -br 256 -bc 7", *OTHERS), key=lambda shape: None))
def test_master_passes_in_other_shapes(shape: str) -> None:
    run = student_run("all", *shape.split(), "--no-time", "--no-table")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "38 / 93, not final" in run.stdout, "points that depend on a time are open"


def test_timed_run_reports_ratio_and_rounds(tmp_path: Path) -> None:
    report = tmp_path / "result.json"
    run = student_run("part1", "-N", "128", "--seed", "7", "--json", report)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    time = json.loads(report.read_text())["parts"][0]["time"]
    assert set(time) >= SCHEMA["time"]
    assert time["ratio_interval"][0] <= time["ratio"] <= time["ratio_interval"][1]
    assert 3 <= time["rounds"] <= 24 and time["allowance"] >= 1.10
    assert len(time["student_wall_ms"]) == 2 * time["rounds"]


def test_accessor_without_usable_signature_counts_through_a_part(master: str, tmp_path: Path) -> None:
    renamed = keeping(master, "myNaiveAttention").replace("fourDimWrite", "storeElement")
    without = re.sub(r'\n *m\.def\("storeElement".*?;', "", renamed, flags=re.DOTALL)
    assert without != renamed
    # The function that the part is about has to be there and of use: more than a comment and a declaration.
    _, result = judged(f"{without}// fourDimWrite\nvoid fourDimWrite();\n", tmp_path, "4Daccess", "-N", "70")
    assert (result["parts"][1]["verdict"], result["parts"][1]["flags"]) == ("missing", [])
    head, kernels = without.split("torch::Tensor myNaiveAttention", 1)
    used = kernels.replace("storeElement(", "fourDimWrite(")
    used = used.replace("PYBIND11_MODULE", "#undef fourDimWrite\nPYBIND11_MODULE", 1)
    macro = "#define fourDimWrite(...) storeElement(__VA_ARGS__)\n"
    bound = f"{head}{macro}torch::Tensor myNaiveAttention{used}"
    run, result = judged(bound, tmp_path, "4Daccess", "-N", "70")
    assert run.returncode == 0, run.stdout + run.stderr
    write = result["parts"][1]
    assert write["verdict"] == "pass" and "judged through part1" in run.stdout
    assert [flag["code"] for flag in write["flags"]] == ["judged_through_part1"]


def test_an_accessor_with_a_ninth_parameter_costs_only_its_own_points(master: str, tmp_path: Path) -> None:
    """The binding takes nine arguments where the part sends eight; the kernels' own calls pass eight."""
    old = "const int &sizeY, const int &sizeZ) {"
    assert master.index(old) > master.index("inline float fourDimRead(")
    text = master.replace(old, "const int &sizeY, const int &sizeZ, int unused = 0) {", 1)
    run, result = judged(text, tmp_path, "all", "-N", "40")
    parts = {part["id"]: part for part in result["parts"]}
    assert parts.pop("4Dread")["verdict"] == "missing" and "takes 9 arguments where 8" in run.stdout
    assert {part["verdict"] for part in parts.values()} == {"pass"}, run.stdout
    assert result["points"] == result["max_points"] - 1.5 and run.returncode == 1


def test_sanitizers_name_the_student_s_line(master: str, tmp_path: Path) -> None:
    old = "for (int j = 0; j < N; j++) {\n                    float score = 0.0f;"
    assert old in master
    text = keeping(master, "myNaiveAttention").replace(old, old.replace("j < N", "j <= N"), 1)
    run, _ = judged(text, tmp_path, "part1", "-N", "20", "--sanitize")
    assert run.returncode == 1
    line = 1 + text[: text.index("twoDimWrite(QK_t, i, j, N, score)")].count("\n")
    assert f"module.cpp:{line}: twoDimWrite(QK_t, i, j, N, score);" in run.stdout, run.stdout
    assert "Traceback" not in run.stdout + run.stderr
