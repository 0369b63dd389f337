"""Each way in which a submission can fail gets its own verdict, words to act on, exit 1, and leaves nothing behind.

These run the student's command line as a student does, on a source made from the master by one edit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, insert_at_start

from grader.regions import strip_solution

SMALL = ("-N", "64", "-B", "2", "-br", "16", "-bc", "24", "--no-time")
LONGEST_S = 100


@dataclass(frozen=True)
class Fault:
    """One broken submission: statements put first in part 1's kernel, or an edit of the whole text."""

    name: str
    verdict: str
    says: str
    statements: str = ""
    replace: tuple[str, str] = ("", "")
    part: str = "part1"


def forged(reply: str) -> str:
    """A kernel that answers in the runner's place, on every descriptor it can find, with a frame of its own."""
    return f"""std::string said = R"({reply})"; uint32_t length = said.size(); uint64_t none = 0;
    for (int fd = 3; fd < 40; fd++)
        if (write(fd, &length, 4) + write(fd, &none, 8) + write(fd, said.data(), length) < 0) continue;"""


FAULTS = [
    Fault("syntax error", "compile_error", r"module.cpp:\d+.*", replace=("float score = 0.0f;", "float score = 0.0f")),
    Fault("missing function", "missing", "not bound", replace=('m.def("myNaiveAttention"', 'm.def("myNaive"')),
    Fault(
        "changed signature",
        "missing",
        "takes 7 arguments where 8",
        replace=(
            "torch::Tensor QK_tTensor, int B, int H, int N, int d) {",
            "int B, int H, int N, int d) { torch::Tensor QK_tTensor = at::zeros({N, N});",
        ),
    ),
    Fault(
        "out of bounds write",
        "crash",
        "SIGSEGV",
        "for (long i = 0; i < 1L << 40; i += 512) QTensor.data_ptr<float>()[i] = 1;",
    ),
    Fault("segfault", "crash", "SIGSEGV", "volatile int *nowhere = nullptr; *nowhere = 1;"),
    Fault("abort", "crash", "SIGABRT", "std::abort();"),
    Fault("exit in the kernel", "crash", r"exit\(0\)", "std::exit(0);"),
    Fault(
        "exit in an initialiser",
        "crash",
        "static initialisers",
        replace=("// Given: between tensors", "\nstatic int leave = (std::exit(0), 1);\n// Given: between tensors"),
    ),
    Fault("endless loop", "timeout", "did not end", "volatile bool on = true; while (on) {}"),
    Fault("exception", "crash", "threw a C.. exception: lost my way", 'throw std::runtime_error("lost my way");'),
    Fault("torch exception", "crash", "threw a C.. exception", "return QTensor.view({1, 2, 3});"),
    Fault("wrong shape", "wrong", r"shape", "return at::zeros({B, H, d, N});"),
    Fault("wrong dtype", "wrong", r"float32", "return at::zeros({B, H, N, d}, at::kDouble);"),
    Fault("undefined result", "wrong", r"undefined", "return torch::Tensor();"),
    Fault("not a number", "wrong", r"(?i)nan|not a number", "return at::full({B, H, N, d}, NAN);"),
    Fault("inputs overwritten", "wrong", "(?i)overw|changed", "KTensor = KTensor.clone(); QTensor.fill_(0.5f);"),
    Fault("forged shape", "crash", "no result", forged('{"kind": 2, "dtype": 6, "shape": [Infinity]}')),
    Fault("forged negative", "crash", "no result", forged(r'{"kind": 2, "dtype": 6, "shape": [-1, -2]}')),
    Fault("forged nest", "crash", "no result", forged("[" * 60_000)),
    Fault(
        "a flood of text",
        "pass",
        "",
        "static std::string line(1023, 'x'); for (int i = 0; i < 1 << 20; i++) std::puts(line.c_str());",
    ),
]  # fmt: skip


def edited(master: str, fault: Fault) -> str:
    if fault.statements:
        source = insert_at_start(master, "myNaiveAttention", fault.statements)
        return (
            "#include <cstdio>\n#include <cstdlib>\n#include <stdexcept>\n#include <string>\n#include <unistd.h>\n"
            + source
        )
    old, new = fault.replace
    assert old in master, f"the master no longer holds {old!r}"
    return "#include <cstdlib>\n" + master.replace(old, new, 1)


def student_run(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "gpt149.py"), *arguments, "--module", str(source)],
        capture_output=True, text=True, timeout=LONGEST_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes that mention a text (this machine's other work does not mention ours)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            maps = (entry / "maps").read_text(errors="replace")
        except OSError:
            continue
        if int(entry.name) != os.getpid() and (text in line or text in maps):
            found.append(line)
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_fault_has_its_own_verdict(fault: Fault, master: str, tmp_path: Path) -> None:
    folder = tmp_path / "submission"
    folder.mkdir()
    source = folder / "module.cpp"
    source.write_text(edited(master, fault))
    report = tmp_path / "result.json"
    run = student_run(source, fault.part, *SMALL, "--json", str(report))
    said = run.stdout + run.stderr
    part = json.loads(report.read_text())["parts"][0]
    assert part["verdict"] == fault.verdict, said
    assert run.returncode == (0 if fault.verdict == "pass" else 1), said
    assert "Traceback" not in said
    if fault.says:
        assert re.search(fault.says, said), said
    assert part["points"] == (part["max_points"] if fault.verdict == "pass" else 0)
    assert sorted(path.name for path in folder.iterdir()) == ["module.cpp"]
    assert len(said) < 20_000


def test_a_kernel_s_own_files_land_in_scratch(master: str, tmp_path: Path) -> None:
    source = tmp_path / "module.cpp"
    note = 'std::FILE *notes = std::fopen("debug.txt", "w"); std::fputs("here", notes); std::fclose(notes);'
    source.write_text("#include <cstdio>\n" + insert_at_start(master, "myNaiveAttention", note))
    run = student_run(source, "part1", *SMALL)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["module.cpp"]
    assert not (Path("/") / "debug.txt").exists() and not (ROOT / "debug.txt").exists()


def test_result_file_replaces_no_device_and_no_link(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("old")
    link, pipe = tmp_path / "link.json", tmp_path / "pipe.json"
    link.symlink_to(kept)
    run = student_run(ROOT / "module.cpp", "part0", *SMALL, "--json", str(link))
    assert run.returncode == 0 and link.is_symlink() and json.loads(kept.read_text())["points"] == 0
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    run = student_run(ROOT / "module.cpp", "part0", *SMALL, "--json", str(pipe))
    assert json.loads(reader.communicate(timeout=30)[0])["schema_version"] == 1
    assert run.returncode == 0 and pipe.is_fifo()


def test_a_reader_that_leaves_gets_no_exit_code_of_a_verdict() -> None:
    command = (
        f"{sys.executable} {ROOT / 'gpt149.py'} part0 {' '.join(SMALL)} | head -1; exit ${{PIPESTATUS[0]}}"
    )
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LONGEST_S)
    assert run.returncode == 141 and "Traceback" not in run.stderr


def test_unwritable_cache_is_the_machine_s_fault() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "gpt149.py"), "part1", *SMALL], capture_output=True, text=True,
        env={**os.environ, "GPT149_CACHE": "/proc/nowhere"}, timeout=LONGEST_S,
    )  # fmt: skip
    assert run.returncode == 3
    assert "GPT149_CACHE" in run.stderr and "Traceback" not in run.stderr


def test_starter_is_not_written_yet(master: str, tmp_path: Path) -> None:
    source = tmp_path / "module.cpp"
    source.write_text(strip_solution(master))
    report = tmp_path / "result.json"
    run = student_run(source, "all", *SMALL, "--json", str(report))
    result = json.loads(report.read_text())
    assert run.returncode == 1, run.stdout + run.stderr
    assert result["points"] == 0
    for part in result["parts"]:
        assert part["verdict"] == "wrong", part
        assert part["diagnosis"]["code"] == "not_written", part
    assert "not written yet" in run.stdout


def test_a_killed_judge_leaves_no_process(master: str, tmp_path: Path) -> None:
    source = tmp_path / "module.cpp"
    source.write_text(edited(master, next(fault for fault in FAULTS if fault.name == "endless loop")))
    judge = subprocess.Popen(
        [sys.executable, str(ROOT / "gpt149.py"), "part1", *SMALL, "--module", str(source)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert judge.stdout is not None
    for line in judge.stdout:
        if line.startswith("Running Part 1"):
            break
    time.sleep(3)  # it imports torch and enters the endless loop meanwhile; if not, the test is only easier
    children = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent_of(int(pid)) == judge.pid]
    assert children
    judge.kill()
    judge.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(alive(int(pid)) for pid in children):
        time.sleep(0.05)
    assert not any(alive(int(pid)) for pid in children)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["part3", "-N", "0"], "-N takes a whole number"),
        (["part3", "-N", "x"], "-N takes a whole number"),
        (["part3", "-N", "99999999999"], "-N takes a whole number"),
        (["part9"], "no test 'part9'"),
        (["part1", "-N", "8192", "-B", "64", "-d", "1024"], "choose smaller sizes"),
        ([], "TEST"),
        (["part1", "--module", "nowhere/at/all.cpp"], "no such file"),
        (["part1", "--config", "nowhere.yaml"], "cannot read the assignment"),
        (["part1", "-D", "1X"], "-D takes"),
        (["part1", "--frobnicate"], "unrecognized arguments"),
        (["part1", "--json", "/nowhere/at/all.json"], "no such folder"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], says: str) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "gpt149.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1
    assert says in run.stderr


def test_help_does_not_import_torch() -> None:
    probe = (
        "import sys, runpy; sys.argv = ['gpt149.py', '--help']\n"
        "try: runpy.run_path('gpt149.py', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'yaml' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "part3" in run.stdout
