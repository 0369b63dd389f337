"""A run that passes, from the command line to result.json: bytes, familiar lines, shapes, files of other origins."""

import json
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, keeping, one_of_each, python, write

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
    """Its binding takes nine arguments where the part sends eight; the kernels call it with eight all the same."""
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
