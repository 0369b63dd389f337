"""The doctor on simulated machines: each finding appears on a machine with its fault, and on no other."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from building import BINDING
from conftest import put, python, refused, write

from grader import doctor, sandbox
from grader.backends.native import toolchain
from grader.core.errors import KitError
from grader.core.results import Timing
from grader.doctor import containment, students, timing, tools
from grader.doctor.host import Finding, Host, Ran

GIB = 1 << 30
#: System files of a machine without faults.
FINE = {
    "proc/loadavg": "0.10 0.20 0.30 1/100 4242",
    "proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapTotal: 1048576 kB\nSwapFree: 1048576 kB",
    "proc/cpuinfo": "processor : 0\nflags : fpu avx", "proc/stat": "cpu  100 0 100 1000 0 0 0 0 0 0",
    "proc/self/cgroup": "0::/user/me", "proc/self/status": "Name: x\nSeccomp:\t0",
    "proc/sys/user/max_user_namespaces": "10000", "proc/sys/kernel/unprivileged_userns_clone": "1",
    "proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread errno allow",
    "sys/kernel/security/lsm": "lockdown,capability,landlock,apparmor",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/devices/system/cpu/smt/active": "0",
    **{f"sys/devices/system/cpu/cpu{k}/cpufreq/scaling_governor": "performance" for k in (0, 1)},
    "sys/devices/system/cpu/cpufreq/boost": "0", "sys/fs/cgroup/user/me/cpu.max": "max 100000", "dev/shm/.keep": "",
}  # fmt: skip
SMI = "NVIDIA X, 580.1, Default, Enabled, 80000, 100\n"


def programs(*missing: str) -> Callable[[str], str | None]:
    return lambda name: None if name in missing else f"/usr/bin/{name}"


Facts, MadeUp = dict[str, Any], Callable[..., Host]
ANSWERS = {"which": programs(), "run": lambda command: Ran(0, ""), "has_module": lambda name: True}
ANSWERS |= {"free_bytes": lambda place: 100 * GIB, "landlock_version": lambda: 0}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """Return a function that makes a simulated host: FINE with changed `files` (None: missing), and other `facts`."""
    known = replace(toolchain.torch_files(), python_include_dir=tmp_path)
    monkeypatch.setattr(tools.toolchain, "torch_files", lambda: known)
    root = tmp_path / "root"
    namespace = root / "proc/self/ns/user"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("user:[4026531837]")

    def make(files: Mapping[str, str | None] | None = None, **facts: object) -> Host:
        given = {**FINE, **(files or {})}
        put(root, {name: text for name, text in given.items() if text is not None})
        for name in given.keys() - {name for name, text in given.items() if text is not None}:
            (root / name).unlink(missing_ok=True)
        host = Host(root, "Linux", 0, cpus=tuple(range(8)), threads=8, scratch=tmp_path, cache=tmp_path)
        return replace(host, **{**ANSWERS, **facts})  # type: ignore[arg-type]

    return make


def machine_findings(host: Host) -> list[Finding]:
    return [*containment.findings(host), *timing.findings(host, sleep=lambda seconds: None)]


def complaints(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.level != "ok"]


NO_SECCOMP = {"proc/sys/kernel/seccomp/actions_avail": None, "proc/self/status": "Name: x"}
SWAPPING = {"proc/meminfo": "MemAvailable: 9999999 kB\nSwapTotal: 2048 kB\nSwapFree: 0 kB"}
CFS = "sys/fs/cgroup/cpu/job/cpu.cfs_"
OLD_QUOTA = {f"{CFS}quota_us": "200000", f"{CFS}period_us": "100000"}
OLD_QUOTA["proc/self/cgroup"] = "4:cpu,cpuacct:/job\n3:memory:/job"
STOLEN = {"proc/cpuinfo": "flags : avx hypervisor", "proc/stat": "cpu  100 0 100 700 0 0 0 100 0 0"}
RESTRICTED = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
NOT_ROOT = {"euid": 1000}


@pytest.mark.parametrize(("files", "facts", "level", "words"), [
    ({"sys/devices/system/cpu/smt/active": "1"}, {}, "warn", "multithreading"),
    ({"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave"}, {}, "warn", "powersave"),
    ({"sys/devices/system/cpu/cpufreq/boost": "1"}, {}, "warn", "turbo"),
    ({"sys/devices/system/cpu/intel_pstate/no_turbo": "0"}, {}, "warn", "turbo"),
    (SWAPPING, {}, "warn", "2 MiB of swap"),
    ({"proc/meminfo": "MemAvailable: 1048576 kB"}, {}, "warn", "1 GiB of memory"),
    ({"sys/fs/cgroup/memory.max": str(2 * GIB)}, {}, "warn", "2 GiB of memory"),
    ({"proc/loadavg": "7.50 1 1 1/1 1"}, {}, "warn", "load 7.50 on 8 cores"),
    ({"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never"}, {}, "warn", "huge pages"),
    ({"sys/fs/cgroup/user/me/cpu.max": "150000 100000"}, {}, "warn", "1.5 cores"),
    ({"sys/fs/cgroup/user/cpu.max": "50000 100000"}, {}, "warn", "0.5 cores"),
    (OLD_QUOTA, {}, "warn", "2 cores"),
    (STOLEN, {}, "warn", "10.0% of its CPU time"),
    ({}, {"cpus": (0, 1)}, "warn", "2 cores for 8 threads"),
    ({}, {"cpus": (3,)}, "warn", "one core"),
    ({}, {"free_bytes": lambda place: 1 << 20}, "warn", "/dev/shm"),
    ({}, {"free_bytes": lambda place: GIB}, "warn", "for scratch"),
    ({}, {"which": programs("bwrap")}, "warn", "bubblewrap"),
    ({}, NOT_ROOT, "warn", "not running as root"),
    ({"sys/kernel/security/lsm": "capability,apparmor"}, {}, "warn", "Landlock is off"),
    ({"sys/kernel/security/lsm": None}, {}, "warn", "Landlock is off"),
    ({"proc/sys/user/max_user_namespaces": "0"}, NOT_ROOT, "warn", "max_user_namespaces is 0"),
    ({"proc/sys/kernel/unprivileged_userns_clone": "0"}, NOT_ROOT, "warn", "userns_clone is 0"),
    ({RESTRICTED: "1"}, NOT_ROOT, "warn", "apparmor_restrict_unprivileged_userns is 1"),
    (NO_SECCOMP, {}, "fail", "no seccomp filters"),
    ({}, {"system": "Darwin"}, "fail", "this is Darwin"),
])  # fmt: skip
def test_each_weakness_is_found(made_up: MadeUp, files: Facts, facts: Facts, level: str, words: str) -> None:
    found = complaints(machine_findings(made_up(files, **facts)))
    assert any(finding.level == level and words in finding.what for finding in found), found
    assert all(finding.why and finding.remedy for finding in found)


def test_a_machine_without_a_weakness_has_no_complaint(made_up: MadeUp) -> None:
    assert machine_findings(made_up()) and not complaints(machine_findings(made_up()))
    # The simulated judge is root, who may make namespaces even if other users may not.
    assert not complaints(containment.findings(made_up({"proc/sys/kernel/unprivileged_userns_clone": "0"})))
    quiet = made_up({"sys/fs/cgroup/user/me/cpu.max": "800000 100000", "proc/cpuinfo": "flags : hypervisor"})
    found = list(timing.findings(quiet, sleep=lambda seconds: None))
    assert not complaints(found) and any("virtual machine" in finding.what for finding in found)
    assert all(finding.what for finding in machine_findings(made_up(dict.fromkeys(FINE))))


def tool_findings(host: Host, answers: Mapping[str, Ran]) -> list[Finding]:
    """Return findings about tools. `answers`: results by a text in the command. Other commands succeed silently."""

    def answer(command: Sequence[str]) -> Ran:
        return next((ran for word, ran in answers.items() if word in " ".join(command)), Ran(0, ""))

    return list(tools.findings(replace(host, run=answer)))


WORKS = {
    "import torch": Ran(0, '{"torch": "2.9.0", "trouble": ""}'),
    "import numpy": Ran(0, "2.1.0\n"),
    "probe.cpp": Ran(0, ""),
    "/probe": Ran(0, "2 threads 3\n"),
    "ispc --version": Ran(0, "Intel(r) Implicit SPMD Program Compiler (Intel(r) ISPC), 1.22.0 (build)\n"),
}


def test_broken_tools_are_named(made_up: MadeUp) -> None:
    assert not complaints(tool_findings(made_up(), WORKS))
    for changed, level, words in (
        ({"probe.cpp": Ran(1, "probe.cpp:3: fatal error: omp.h: No such file")}, "fail", "no OpenMP"),
        ({"probe.cpp": Ran(1, "ld: cannot find -lgomp")}, "fail", "no OpenMP"),
        ({"probe.cpp": Ran(1, "fatal error: vector: No such file or directory")}, "fail", "lacks headers"),
        ({"probe.cpp": Ran(1, "internal compiler error")}, "fail", "does not compile"),
        ({"/probe": Ran(-4, "")}, "fail", "AVX"),
        ({"/probe": Ran(0, "1 threads 3")}, "fail", "does not run"),
        ({"import torch": Ran(1, "ImportError: libgomp.so.1")}, "warn", "libgomp.so.1"),
        ({"import torch": Ran(0, '{"torch": "2.1.0", "trouble": "Numpy is not available"}')},
         "warn", "does not work with this NumPy"),
        ({"import numpy": Ran(1, "ModuleNotFoundError: no module")}, "fail", "NumPy 2"),
        ({"import numpy": Ran(0, "1.26.4\n")}, "fail", "found: 1.26.4"),
        ({"ispc --version": Ran(127, "libtinfo.so.5: cannot open shared object file")}, "warn", "libtinfo.so.5"),
    ):  # fmt: skip
        found = complaints(tool_findings(made_up(), {**WORKS, **changed}))
        assert [finding.level for finding in found] == [level], changed
        assert words in found[0].what and found[0].remedy


def test_missing_tools_and_headers_are_named(made_up: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    host = made_up(which=programs("ispc", "valgrind"), has_module=lambda name: name != "jinja2")
    findings = [finding.what for finding in complaints(tool_findings(host, WORKS))]
    assert [text.split()[0] for text in findings] == ["jinja2", "ispc", "valgrind"]
    (lost,) = [found.why for found in tool_findings(host, WORKS) if found.what.startswith("ispc")]
    assert "not judged" in lost and "points stay open" in lost
    known = replace(toolchain.torch_files(), python_include_dir=None)
    monkeypatch.setattr(tools.toolchain, "torch_files", lambda: known)
    assert "no Python.h" in [finding.what for finding in complaints(tool_findings(made_up(), WORKS))]
    error = KitError("this torch was installed without its C++ headers: install the wheel from pytorch.org")
    monkeypatch.setattr(tools.toolchain, "torch_files", Mock(side_effect=error))
    (found,) = complaints(tool_findings(made_up(), WORKS))
    assert found.level == "warn" and "without its C++ headers" in found.what and "pytorch.org" in found.remedy
    host = made_up(has_module=lambda name: name != "torch")
    (found,) = complaints(tool_findings(host, {**WORKS, "import torch": Ran(1, "ModuleNotFoundError")}))
    assert found.level == "warn" and "no torch" in found.what and found.remedy
    assert all(word in found.why for word in ("table", "part0", "demo", "frontier"))


def test_the_level_of_a_self_comparison_follows_its_interval() -> None:
    for ratio, interval, verdict, fit, level in (
        (1.03, (1.01, 1.04), "pass", True, "ok"),
        (1.30, (0.80, 1.90), "pass", True, "ok"),
        (1.08, (1.06, 1.09), "pass", True, "warn"),
        (1.00, (0.99, 1.01), "pass", False, "warn"),
        (1.40, (1.30, 1.50), "slow", True, "fail"),
    ):
        measured = Timing(10.0, 10.0 * ratio, ratio, interval, 0.98, 8, "cpu", 1.1, verdict, 1.0, fit)
        assert timing.judged(measured, "cpu", "Part").level == level, interval


@pytest.mark.full
def test_failures_exit_with_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fine, warning = Finding("ok", "all is well"), Finding("warn", "load 3", "why", "how")
    bad = Finding("fail", "no compiler", "nothing can be built", "apt install g++")
    for found, code in (([fine], 0), ([fine, warning], 0), ([fine, bad], 3)):
        monkeypatch.setattr(doctor, "sections", lambda *_, found=found, **__: [("tools", found)])
        assert doctor.main(["--quick"]) == code
    printed = capsys.readouterr().out
    assert "FAIL  no compiler" in printed and "-> apt install g++" in printed
    assert "1 must be fixed" in printed
    # The doctor's quick checks run on this machine without importing torch.
    script = "import sys; from grader import doctor; code = doctor.main(['--quick']); "
    script += "assert 'torch' not in sys.modules; sys.exit(code)"
    ended = python("-c", script)
    assert ended.returncode in (0, 3), ended.stderr
    assert "sandbox" in ended.stdout and "must be fixed" in ended.stdout and not ended.stderr


def with_gpu(host: Host, smi: str = SMI, others: str = "", **facts: object) -> list[Finding]:
    facts |= {"run": lambda command: Ran(0, others if "--query-compute-apps=pid" in command else smi)}
    return list(tools.gpu_findings(replace(host, has_module=lambda name: True, **facts)))


def test_a_tier_in_which_the_compiler_fails_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "choose", lambda: sandbox.OPEN)
    assert containment.tier().level == "warn"
    ended = sandbox.Finished(1, b"probe.cpp:1\nfatal error: vector: Permission denied\n", 0.0, 0.0, False)
    monkeypatch.setattr(sandbox, "run_limited", lambda *words, **named: ended)
    found = containment.tier()
    assert found.level == "fail" and found.what.endswith("compiler: fatal error: vector: Permission denied")


def test_gpus_are_listed_with_the_obstacles_to_judging(made_up: MadeUp) -> None:
    host = made_up()
    assert [finding.level for finding in with_gpu(host)] == ["ok"]
    assert not list(tools.gpu_findings(made_up(which=programs("nvidia-smi"))))
    found = with_gpu(host, "NVIDIA X, 470.1, Prohibited, Disabled, 80000, 60000\n", "4711\n")
    assert [finding.level for finding in found] == ["ok", "warn", "fail", "warn", "warn", "warn"]
    assert "4711" in found[-1].what and all(finding.remedy for finding in found[1:])
    assert [one.what for one in with_gpu(made_up(which=programs("nvcc")))[1:]] == ["nvcc is not on the PATH"]
    broken = list(tools.gpu_findings(replace(host, run=lambda command: Ran(9, "no devices were found"))))
    assert [finding.level for finding in broken] == ["warn"] and "no devices" in broken[0].what


def test_a_student_sees_the_missing_tools(made_up: MadeUp) -> None:
    def findings(languages: tuple[str, ...], *missing: str, has_triton: bool = True) -> list[tuple[str, str]]:
        host = made_up(run=lambda _: Ran(0, SMI), which=programs(*missing), has_module=lambda _: has_triton)
        return [(finding.level, finding.what) for finding in students._on_a_card(host, languages)]

    both = ("triton", "cuda")
    assert findings(both) == [("ok", "NVIDIA X, driver 580.1, 80000 MiB"), ("ok", "Triton is installed")]
    lacking = [("fail", "Triton is not installed"), ("warn", "nvcc is not on the PATH"), ("warn", "no GPU")]
    assert findings(both, "nvidia-smi", "nvcc", has_triton=False) == lacking
    assert findings(("triton",), "nvidia-smi", "nvcc") == [("ok", "Triton is installed"), ("warn", "no GPU")]
    assert [said for _, said in findings(both, "nvcc")].count("nvcc is not on the PATH") == 1
    assert [said for _, said in findings(both, has_triton=False)].count("Triton is not installed") == 1
    assert not list(tools.missing(students.OWN_MODULES, made_up().has_module))
    (found,) = tools.missing(students.OWN_MODULES, lambda name: False)
    assert found.level == "warn" and "watchfiles" in found.what and "--watch" in found.why


def test_a_student_has_a_doctor_and_an_editor_that_knows_the_file(tmp_path: Path) -> None:
    """`gpt149.py doctor --editor` writes a compile command that works without the precompiled header."""
    includes = "#include <ATen/ATen.h>\n#include <torch/extension.h>\n#include <omp.h>\n"
    source = write(tmp_path, includes + "at::Tensor f(at::Tensor t) { return t.clone(); }\n" + BINDING)
    for headers in ([], ["full"]):
        assert students.main(["--editor", *headers, "--module", str(source)]) == 0
        (entry,) = json.loads((tmp_path / "compile_commands.json").read_text())
        assert entry["file"] == str(source) and entry["directory"] == str(tmp_path)
        words = entry["arguments"]
        assert not [word for word in words if ".gch" in word or "max-errors" in word]
        assert ("plain_torch.h" in " ".join(words)) is (not headers)
        assert (Path(next(word for word in words if "/editor/" in word)) / "omp.h").is_file()
        if not headers:
            ended = subprocess.run([*words, "-fsyntax-only"], cwd=tmp_path, capture_output=True, text=True)
            assert ended.returncode == 0 and not ended.stderr, ended.stderr
    for wrong, error in ("--editor all", "takes light or full"), ("--module no.cpp --editor", "no such"):
        refused(error, students.main, wrong.split())
