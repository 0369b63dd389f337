"""Each way to fail has its own verdict, words and exit code. If the machine lacks a tool, points stay open."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from building import includes
from classes import acting_class
from classrows import PARTS, assignment, result
from classrows import part as part_of
from conftest import ASSIGNMENT, COURSE, ROOT, insert_at_start, keeping, one_of_each, put, python, write
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, STAND_IN, USES_IT, on_the_path
from process_tree import alive, cpu_s, descendants, wait_for

import gpt149
from grader.assignment.regions import strip_solution
from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION
from grader.core.results import Diagnosis, PartResult, SubmissionResult, exit_code
from grader.report import classbook, feedback, gradescope, machines, result_json, terminal
from grader.score import part_points, score
from grader.staff.classroom import gradebook, ledger, planning

SMALL = ("-N", "64", "-B", "2", "-br", "16", "-bc", "24", "--no-time", "--no-table")
GPT149 = (sys.executable, str(ROOT / "gpt149.py"))
KERNELS = {part.id: part.function for part in ASSIGNMENT.parts if part.function.startswith("my")}
OTHERS = ("-N 333 -B 2 -H 3 -d 40 -br 48 -bc 64", "-N 1", "-N 50 -d 1 -H 1 --threads 3 -D TILE_SIZE=7")
LACKING = "This machine has no ispc that runs."
CODES = {"": EXIT_PASS, "pass pass": EXIT_PASS, "pass unjudged": EXIT_KIT, "unjudged": EXIT_KIT}
CODES |= {"unjudged wrong": EXIT_SUBMISSION, "pass slow": EXIT_SUBMISSION}


class Fault(NamedTuple):
    """A fault (a kernel's first statements, or (old, new) texts of the file), its verdict and a part of the message."""

    name: str
    verdict: str
    says: str
    edit: str | tuple[str, str] = ""


SIZES, GIVEN = "int B, int H, int N, int d) {", "// Given: copies between tensors"
LEAVE = "leave = (std::exit(0), 1)"
ENDLESS = Fault("endless loop", "timeout", "did not end", "volatile bool on = true; while (on) {}")
#: Each list becomes one source: its first fault is in part 1, and so on. A fault that stops all parts is alone.
QUICK = [
    [
        Fault("missing function", "missing", "not exported", ('m.def("myNaiveAttention"', 'm.def("myNaive"')),
        Fault("out of bounds write", "crash", "SIGSEGV",
              "for (long i = 0; i < 1L << 40; i += 512) QTensor.data_ptr<float>()[i] = 1;"),
        Fault("segfault", "crash", "SIGSEGV", "volatile int *nowhere = nullptr; *nowhere = 1;"),
        Fault("abort", "crash", "SIGABRT", "std::abort();"),
    ],
    [
        Fault("changed signature", "missing", "takes 7 arguments, but 8",
              (f"torch::Tensor QK_tTensor, {SIZES}", f"{SIZES} torch::Tensor QK_tTensor = at::zeros({{N, N}});")),
        Fault("exit in the kernel", "crash", r"exit\(0\)", "std::exit(0);"),
        ENDLESS,
        Fault("exception", "crash", "C.. exception: lost my way", 'throw std::runtime_error("lost my way");'),
    ],
    [Fault("syntax error", "compile_error", r"module.cpp:\d+.*", ("float score = 0.0f;", "float score = 0.0f"))],
    [Fault("exit in an initialiser", "crash", "static initialisers", (GIVEN, f"\nstatic int {LEAVE};\n{GIVEN}"))],
]  # fmt: skip
#: Faults that take longer. (Wrong results are in tests/wrong, forged replies in labs/attention/threats.)
SLOW = [
    Fault("torch exception", "crash", "threw a C.. exception", "return QTensor.view({1, 2, 3});"),
    Fault("undefined result", "wrong", r"undefined", "return torch::Tensor();"),
    Fault("a flood of text", "pass", "xxxx",
          "static std::string row(1023, 'x'); for (static int i = 0; i < 1 << 20; i++) std::puts(row.c_str());"),
    Fault("a file of its own, which it cannot have", "pass", "",
          'if (std::FILE *f = std::fopen("debug.txt", "w")) std::fclose(f); else std::puts("no file");'),
]  # fmt: skip
OF_BOTH_TIERS = [*QUICK, pytest.param(SLOW, marks=pytest.mark.full)]


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
    return python(*GPT149[1:], *arguments, *(["--module", source] if source else []), timeout_s=300)


def run_here(*arguments: object, source: Path = ROOT / "module.cpp") -> tuple[int, str]:
    """Run the student's command in this process. Return its exit code and what it prints."""
    with redirect_stdout(io.StringIO()) as said:
        return gpt149.run([*map(str, arguments), "--module", str(source)]), said.getvalue()


@pytest.mark.parametrize("faults", OF_BOTH_TIERS, ids=lambda faults: ", ".join(each.name for each in faults))
def test_faults_have_their_own_verdicts(faults: list[Fault], master: str, tmp_path: Path) -> None:
    folder, report, impatient = tmp_path / "submission", tmp_path / "result.json", tmp_path / "impatient.yaml"
    impatient.write_text(f"extends: {COURSE}\nlimits: {{call_s: {2 if ENDLESS in faults else 3}}}\n")
    folder.mkdir()
    tests, source = "all" if len(faults) > 1 else "part1", write(folder, edited(master, faults))
    code, printed = run_here(tests, *SMALL, "--config", impatient, "--json", report, source=source)
    result = json.loads(report.read_text())
    expected = dict(zip(KERNELS, faults, strict=False))
    for part, said in zip(result["parts"], printed.split("\nRunning ")[1:], strict=True):
        fault = expected.get(part["id"], Fault("none", "pass", ""))
        assert part["verdict"] == fault.verdict, f"{fault.name}: {said}"
        assert re.search(fault.says, said), f"{fault.name}: {said}"
        assert part["points"] == (part["max_points"] if fault.verdict == "pass" else 0) and len(said) < 20_000
    assert code == any(part["verdict"] != "pass" for part in result["parts"]), printed
    # Files that a kernel writes are in its scratch folder, and are removed with it.
    assert [path.name for path in folder.iterdir()] == ["module.cpp"]
    assert not (Path("/") / "debug.txt").exists() and not (ROOT / "debug.txt").exists()


@pytest.mark.full
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
    result_json.write(read, score(ASSIGNMENT, read), link)
    assert link.is_symlink() and json.loads(kept.read_text())["points"] == 0


def test_a_closed_pipe_gives_no_exit_code_of_a_verdict() -> None:
    with subprocess.Popen([*GPT149, "part0", *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert b"Traceback" not in run.stderr.read()
    assert run.returncode in (141, -signal.SIGPIPE)


def test_unwritable_cache_is_the_machine_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPT149_CACHE", "/proc/nowhere")
    ended = run("part1", *SMALL, source=ROOT / "module.cpp")
    assert ended.returncode == 3 and "GPT149_CACHE" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_starter_is_not_written_yet(master: str, tmp_path: Path) -> None:
    code, said, result = judged(strip_solution(master), tmp_path, "all", *SMALL)
    assert code == 1 and result["points"] == 0, said
    for part in result["parts"]:
        assert (part["verdict"], part["diagnosis"]["code"]) == ("wrong", "not_written"), part
    assert "not written yet" in said


def test_a_killed_judge_leaves_no_process(master: str, tmp_path: Path) -> None:
    source = write(tmp_path, edited(master, [ENDLESS]))
    command = [*GPT149, "part1", *SMALL, "--no-table", "--module", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as judge:
        try:
            assert judge.stdout is not None and any(line.startswith(b"Running Part") for line in judge.stdout)
            # Once the file is built, only the endless loop takes more than a second of CPU time.
            assert wait_for(lambda: [pid for pid in descendants(judge.pid) if cpu_s(pid) > 1.0])
            children = descendants(judge.pid)
        finally:
            judge.kill()
    assert wait_for(lambda: not any(alive(pid) for pid in children))


#: Wrong arguments of the command, and a part of its message.
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


def judged(text: str, folder: Path, *arguments: str) -> tuple[int, str, dict]:
    source, report = write(folder, text), folder / "result.json"
    code, said = run_here(*arguments, "--no-time", "--no-table", "--json", report, source=source)
    return code, said, json.loads(report.read_text())


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict]:
    """Run all parts at the assignment's own shape, without timing. Return the printed text and result.json."""
    report = tmp_path_factory.mktemp("run") / "result.json"
    code, said = run_here("all", "--no-time", "--json", report)
    assert code == 0, said
    return said, json.loads(report.read_text())


def test_master_earns_every_point_in_a_result_file_as_promised(default_run: tuple[str, dict]) -> None:
    said, result = default_run
    assert result["points"] == result["max_points"] == 93
    assert {part["verdict"] for part in result["parts"]} == {"pass"}
    assert [flag["code"] for flag in result["flags"]] == ["races_unseen"], "part 3 is not timed"
    memory = {part["id"]: part["memory"] for part in result["parts"]}
    for part, expected in {"part1": 4718592, "part2": 4718592, "part3": 557056, "part4": 524288}.items():
        assert memory[part]["profiler_bytes"] == memory[part]["reference_profiler_bytes"] == expected
        assert said.count(f"mem usage:  {expected} bytes") >= 2
    # Part 1 holds its N x N scores twice: in the tensor QK_t, and in a vector, which torch's profiler does not see.
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


@pytest.mark.parametrize("shape", one_of_each(("-N 97 -br 256 -bc 7", *OTHERS), key=lambda shape: None))
def test_master_passes_in_other_shapes(shape: str) -> None:
    code, said = run_here("all", *shape.split(), "--no-time", "--no-table")
    assert code == 0, said
    assert "38 / 93, not final" in said, "points that depend on a time are open"


def test_timed_run_reports_ratio_and_rounds(tmp_path: Path) -> None:
    report = tmp_path / "result.json"
    code, said = run_here("part1", "-N", "128", "--seed", "7", "--json", report)
    assert code in (0, 1), said
    time = json.loads(report.read_text())["parts"][0]["time"]
    assert set(time) >= SCHEMA["time"]
    assert time["ratio_interval"][0] <= time["ratio"] <= time["ratio_interval"][1]
    assert 3 <= time["rounds"] <= 24 and time["allowance"] >= 1.10
    assert len(time["student_wall_ms"]) == 2 * time["rounds"]


def test_accessor_without_usable_signature_counts_through_a_part(master: str, tmp_path: Path) -> None:
    renamed = keeping(master, "myNaiveAttention").replace("fourDimWrite", "storeElement")
    without = re.sub(r'\n *m\.def\("storeElement".*?;', "", renamed, flags=re.DOTALL)
    assert without != renamed
    # The file must define and call the part's function: a comment and a declaration do not suffice.
    *_, result = judged(f"{without}// fourDimWrite\nvoid fourDimWrite();\n", tmp_path, "4Dwrite", "-N", "70")
    assert (result["parts"][1]["verdict"], result["parts"][1]["flags"]) == ("missing", [])
    head, kernels = without.split("torch::Tensor myNaiveAttention", 1)
    used = kernels.replace("storeElement(", "fourDimWrite(")
    used = used.replace("PYBIND11_MODULE", "#undef fourDimWrite\nPYBIND11_MODULE", 1)
    macro = "#define fourDimWrite(...) storeElement(__VA_ARGS__)\n"
    bound = f"{head}{macro}torch::Tensor myNaiveAttention{used}"
    code, said, result = judged(bound, tmp_path, "4Daccess", "-N", "70")
    assert code == 0, said
    write = result["parts"][1]
    assert write["verdict"] == "pass" and "judged through part1" in said
    assert [flag["code"] for flag in write["flags"]] == ["judged_through_part1"]


def test_an_accessor_with_a_ninth_parameter_costs_only_its_own_points(master: str, tmp_path: Path) -> None:
    """The judge calls the accessor with eight arguments, which fails. Kernels compile: the ninth has a default."""
    old = "const int &sizeY, const int &sizeZ) {"
    assert master.index(old) > master.index("inline float fourDimRead(")
    text = master.replace(old, "const int &sizeY, const int &sizeZ, int unused = 0) {", 1)
    code, said, result = judged(text, tmp_path, "all", "-N", "40")
    parts = {part["id"]: part for part in result["parts"]}
    assert parts.pop("4Dread")["verdict"] == "missing" and "takes 9 arguments, but 8" in said
    assert {part["verdict"] for part in parts.values()} == {"pass"}, said
    assert result["points"] == result["max_points"] - 1.5 and code == 1


def test_sanitizers_name_the_student_s_line(master: str, tmp_path: Path) -> None:
    old = "for (int j = 0; j < N; j++) {\n                    float score = 0.0f;"
    assert old in master
    text = keeping(master, "myNaiveAttention").replace(old, old.replace("j < N", "j <= N"), 1)
    code, said, _ = judged(text, tmp_path, "part1", "-N", "20", "--sanitize")
    assert code == 1
    line = 1 + text[: text.index("twoDimWrite(QK_t, i, j, N, score)")].count("\n")
    assert f"module.cpp:{line}: twoDimWrite(QK_t, i, j, N, score);" in said, said


def unjudged(part_id: str, title: str, points: float) -> PartResult:
    diagnosis = Diagnosis("machine_lacks", LACKING)
    return PartResult(part_id, title, "unjudged", points, diagnosis=diagnosis, waits_for="ispc")


WAITING = result(tuple(unjudged(*known) for known in PARTS))
SCORED = score(assignment(), WAITING)
MIXED = result((part_of(*PARTS[2]), unjudged(*PARTS[3])))


def row_of(found: SubmissionResult, name: str = "bob", **manual: float) -> machines.Row:
    return machines.Row(name, name.title(), "", found, score(assignment(), found, manual), None)


def test_unjudged_points_are_open_until_they_are_given_by_hand() -> None:
    ids = tuple(known[0] for known in PARTS)
    assert SCORED.waiting == ids and SCORED.pending == (*ids, "writeup")
    assert all("no ispc" in line.reason and "open" in line.reason for line in SCORED.lines if line.id in ids)
    for known in assignment().parts:
        points, reason = part_points(known, PartResult(known.id, known.title, "unjudged", known.points))
        assert points == 0 and "open" in reason
    scored = score(assignment(), WAITING, {"part1": 8.0})
    assert "part1" not in scored.waiting and "part1" not in scored.pending
    assert next(line for line in scored.lines if line.id == "part1").points == 8.0
    row = row_of(WAITING, part1=0.0)
    assert row.part_points("part1") == 0.0 and row.part_points("part2") is None and row.total is None
    row = row_of(WAITING, **{known[0]: known[2] for known in PARTS})
    assert row.total == 93.0 and not row.waiting


@pytest.mark.parametrize("verdicts", CODES)
def test_the_exit_code_follows_from_the_verdicts(verdicts: str) -> None:
    assert exit_code(PartResult("p", "", verdict, 1) for verdict in verdicts.split()) == CODES[verdicts]


def test_the_missing_tool_is_stored_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result_json.write(WAITING, SCORED, path)
    values = json.loads(path.read_text())
    assert {part["waits_for"] for part in values["parts"]} == {"ispc"} and values["schema_version"] == 1
    assert result_json.read(path) == WAITING
    for part_values in values["parts"]:
        del part_values["waits_for"]  # earlier versions of the kit did not write this key
    path.write_text(json.dumps(values))
    assert result_json.read(path).parts[0].waits_for == ""
    prints = {"source": "1", "assignment": "2", "kit": "3", "settings": "4"}
    old = {"submission_id": "a", "at": "", "seconds": {}, "attempt": 1, "fingerprints": prints}
    (tmp_path / ledger.LEDGER).write_text(json.dumps({"kind": "result", **old}) + "\n")
    assert ledger.read(tmp_path).records["a"].waits_for == ""
    nameless = result((PartResult("part1", "Naive", "unjudged", 10.0),))
    assert "lacks a tool for them" in feedback.not_judged(nameless, ("part1",))


def test_reports_leave_unjudged_points_empty(tmp_path: Path) -> None:
    whole = result(tuple(part_of(*known) for known in PARTS))
    rows = [row_of(WAITING), row_of(MIXED, "ann"), row_of(whole, "zoe")]
    assert not classbook.write(tmp_path, assignment(), rows)
    bob, ann, zoe = acting_class.rows_of(tmp_path).values()
    assert {bob[name] for name, _, _ in PARTS} == {""}
    assert (bob["total"], bob["part1_verdict"]) == ("", "unjudged")
    assert bob["pending"].split() == [*(name for name, _, _ in PARTS), "writeup"]
    assert (ann["part1"], ann["part2"], ann["total"]) == ("10", "", "") and "part2" in ann["pending"].split()
    assert zoe["total"] == "93" and zoe["pending"] == "writeup"
    page = (tmp_path / "report.html").read_text()
    assert "missing ispc" in page and "not judged yet" in page and "not final" in page
    assert page.count('class="c-unjudged"') >= 7
    feedback_text = (tmp_path / "bob" / "feedback.txt").read_text()
    for words in ("not your fault", "has no ispc", "not judged  open of 10 points", LACKING):
        assert words in feedback_text
    assert "\nTotal open of 100" in re.sub(" +", " ", feedback_text)
    assert "not judged" not in (tmp_path / "zoe" / "feedback.txt").read_text()


def test_a_terminal_says_that_the_points_are_open() -> None:
    stream = io.StringIO()
    screen = terminal.Terminal(stream)
    other = replace(WAITING.parts[0], id="other", diagnosis=Diagnosis("machine_lacks", "no nvcc"))
    for one in (*WAITING.parts, other):
        screen.verdict(one, 0.0)
    screen.scoreboard(WAITING, SCORED)
    screen.say(gradebook.score_text(SCORED))
    printed = stream.getvalue()
    assert "NOT JUDGED  open of 10 points" in printed and printed.count(LACKING) == 1 and "no nvcc" in printed
    assert printed.count("as above") == len(WAITING.parts) - 1
    assert "not judged" in printed and "open / 10" in printed and "0 / 93, not final" in printed
    assert "total: open of 100" in printed and "0 of 10" not in printed


def test_gradescope_says_that_its_0_is_not_a_grade() -> None:
    def rendered(found: SubmissionResult) -> dict:
        return gradescope.results(assignment(), found, score(assignment(), found), seconds=1.0)

    found = rendered(WAITING)
    assert found["output"].startswith("Not judged yet: 4Dread") and "not your fault" in found["output"]
    assert "graded by people: writeup." in found["output"]
    for test in found["tests"]:
        assert "this 0 is not a grade" in test["name"] and "not judged" in test["output"]
    names = [test["name"] for test in rendered(MIXED)["tests"] if test["visibility"] == "visible"]
    assert ["not a grade" in name for name in names] == [False, True]


def test_waiting_ends_when_all_tools_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planning, "CHECKS", {"ispc": lambda: True, "gpu": lambda: False})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert planning.is_over("") == planning.is_over("gpu") == planning.is_over("gpu ispc") == ""
    assert planning.is_over("ispc") == "ispc is here now" and planning.is_over("nvcc") == ""
    put(tmp_path, {"nvcc": "#!/bin/sh\n"}, 0o755)
    assert planning.is_over("ispc nvcc") == "ispc and nvcc is here now"


def test_lines_name_waiting_students_the_tool_and_the_next_step() -> None:
    first, second = planning.missing_tools({**{f"s{k}": "ispc" for k in range(7)}, "x": "nvcc"}, "go on")
    assert first.startswith("7 submissions cannot be judged without ispc")
    assert "s0, s1, s2, s3, s4 and 2 more" in first
    assert "https://ispc.github.io" in first and "open" in first and first.endswith("then go on")
    assert second.startswith("1 submission cannot be judged without nvcc (points stay open): x;")


def run_on(path: str, *command: object) -> subprocess.CompletedProcess[str]:
    return python(*command, "--config", acting_class.SMALL, "--no-time", timeout_s=600, PATH=path)


@pytest.fixture(scope="module")
def class_folder(master: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = keeping(master, "myNaiveAttention", "myFusedAttention")
    uses = INCLUDE + insert_at_start(plain, "myNaiveAttention", USES_IT)
    submissions = {
        "plain": {"module.cpp": plain}, "uses": {"module.cpp": uses, "module.ispc": PROGRAM},
        "wrong": {"module.cpp": uses, "module.ispc": PROGRAM.replace("*= by", "+= by")},
        "empty": {"module.cpp": INCLUDE + plain, "module.ispc": "// later\n"}, "alone": {"module.cpp": uses},
        "leftover": {"module.cpp": plain, "module.ispc": PROGRAM},
        "broken": {"module.cpp": "no C++;", "module.ispc": PROGRAM},
    }  # fmt: skip
    texts = {f"{name}/{file}": text for name, files in submissions.items() for file, text in files.items()}
    return put(tmp_path_factory.mktemp("class"), texts)


@pytest.mark.full
def test_a_class_waits_for_ispc(class_folder: Path, tmp_path: Path) -> None:
    out, without, with_ispc = tmp_path / "out", on_the_path(BROKEN), on_the_path(STAND_IN)

    def run_class(path: str, *more: str) -> tuple[int, str]:
        where = (class_folder, "--out", out, "--seed", "149", "--trust")
        ended = run_on(path, "-m", "grader", "run", *where, *more)
        return ended.returncode, ended.stdout + ended.stderr

    code, said = run_class(without)
    assert code == EXIT_KIT, said
    waits = "2 submissions cannot be judged without ispc (points stay open): uses, wrong"
    before, _, after = said.partition("[1/7]")
    assert waits in before and waits in after and "5 of 7 graded" in after
    assert "--resume" in after.rpartition(waits)[2] and "no points yet: judging waits for ispc" in after
    for name, record in ledger.read(out).records.items():
        broken = name in ("alone", "broken") and "compile_error"
        verdict = "unjudged" if name in ("uses", "wrong") else broken or "pass"
        assert set(record.verdicts.values()) == {verdict}, name
    grades = acting_class.rows_of(out)
    assert set(grades) == {folder.name for folder in class_folder.iterdir()}
    for name in ("uses", "wrong"):
        assert grades[name]["total"] == grades[name]["part1"] == grades[name]["part3"] == ""
        assert grades[name]["pending"] == "part1 part3" and grades[name]["trouble"] == ""
    assert grades["alone"]["total"] == "0" and grades["plain"]["total"] == "30"
    code, said = run_class(without, "--resume")
    assert code == EXIT_KIT and waits in said.partition("of 7 graded")[0] and "[1/" not in said, said
    code, said = run_class(with_ispc, "--resume")
    assert code == EXIT_PASS, said
    assert "2 are graded again (ispc is here now): uses, wrong" in said and "[2/2]" in said
    assert "cannot be judged" not in said and "7 of 7 graded" in said
    grades = acting_class.rows_of(out)
    assert grades["uses"]["total"] == "30" and grades["uses"]["pending"] == ""
    assert (grades["wrong"]["part1"], grades["wrong"]["part1_verdict"]) == ("0", "wrong")
    kept = json.loads((out / "uses" / ledger.RESULT).read_text())
    assert "stand-in" in kept["toolchain"]["ispc"] and (out / "uses" / "module.ispc").is_file()
    assert "ispc" not in json.loads((out / "plain" / ledger.RESULT).read_text())["toolchain"]
    code, said = run_class(without, "--resume")
    assert code == EXIT_PASS and "7 were finished before" in said, "finished submissions are not judged again"


@pytest.mark.full
def test_a_single_run_says_what_to_install(class_folder: Path) -> None:
    student, staff = ("gpt149.py", "all", "--no-table", "--module"), ("-m", "grader", "one", "--trust")
    for path, code in ((on_the_path(BROKEN), EXIT_KIT), (on_the_path(STAND_IN), EXIT_PASS)):
        for command in (student, staff):
            ended = run_on(path, *command, class_folder / "uses")
            assert ended.returncode == code, ended.stdout + ended.stderr
            if code == EXIT_KIT:
                assert "NOT JUDGED  open of 10 points" in ended.stdout and "Note" not in ended.stdout
                assert "no points" in ended.stdout and "ispc.github.io" in ended.stdout
