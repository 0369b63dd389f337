"""Each way in which a submission can fail gets its own verdict, words to act on, exit 1, and leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from building import includes
from conftest import ASSIGNMENT, COURSE, ROOT, insert_at_start, python, write
from process_tree import alive, cpu_s, descendants, wait_for

from grader import score
from grader.assignment.regions import strip_solution
from grader.report import result_json

SMALL = ("-N", "64", "-B", "2", "-br", "16", "-bc", "24", "--no-time", "--no-table")
GPT149 = (sys.executable, str(ROOT / "gpt149.py"))
KERNELS = {part.id: part.function for part in ASSIGNMENT.parts if part.function.startswith("my")}


class Fault(NamedTuple):
    """A broken kernel: statements put first in it, or an edit of the whole text that breaks part 1."""

    name: str
    verdict: str
    says: str
    edit: str | tuple[str, str] = ""


SIZES, GIVEN = "int B, int H, int N, int d) {", "// Given: between tensors"
LEAVE = "leave = (std::exit(0), 1)"
ENDLESS = Fault("endless loop", "timeout", "did not end", "volatile bool on = true; while (on) {}")
#: Faults that share a source, each in a part of its own; alone in part 1 those that concern the file as a whole.
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
    told = json.loads(reader.communicate(timeout=30)[0])
    assert told["schema_version"] == 1 and ended.returncode == 0 and pipe.is_fifo()
    assert "Running Part 0 Test" in ended.stdout, "PyTorch itself is a part"
    link.symlink_to(kept)
    read = result_json.from_dict(told)
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
            # Without the table nothing but the loop works as long as this once the file is built.
            assert wait_for(lambda: [pid for pid in descendants(judge.pid) if cpu_s(pid) > 1.0])
            children = descendants(judge.pid)
        finally:
            judge.kill()
    assert wait_for(lambda: not any(alive(pid) for pid in children))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *((["part3", "-N", size], "-N takes a whole number") for size in ("0", "x", "99999999999")),
        (["part9"], "no test 'part9'"),
        (["part1", "-N", "8192", "-B", "64", "-d", "1024"], "choose smaller sizes"),
        ([], "TEST"),
        (["part1", "--module", "nowhere/at/all.cpp"], "no such file"),
        (["part1", "--module", "/dev/null"], "is no file: a folder, a pipe, a device or a link"),
        (["part1", "--config", "nowhere.yaml"], "cannot read the assignment"),
        (["part1", "-D", "1X"], "-D takes"),
        (["part1", "--frobnicate"], "unrecognized arguments"),
        (["part1", "--json", "/nowhere/at/all.json"], "no such folder"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], says: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.strip().splitlines()) == 1 and says in ended.stderr
