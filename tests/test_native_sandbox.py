"""Code in a native runner reaches nothing outside, in any tier: sandbox_probe.cpp tries files, processes and rights."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from building import HEAD, asked, binding, includes, program, text_of
from conftest import ROOT, refused, tiers
from process_tree import stat, wait_for

from grader.backends.native.nativehost import NativeHost
from grader.core.errors import KitError
from grader.sandbox import Limits, Sandbox, view
from grader.sandbox.tiers import LOCK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these sandboxes")

HEADERS = """cerrno csignal cstdio cstring ctime dlfcn.h dirent.h fcntl.h link.h sched.h unistd.h sys/mman.h sys/prctl.h
sys/ptrace.h sys/resource.h sys/socket.h sys/stat.h sys/syscall.h sys/time.h sys/wait.h"""
request = partial(asked, shape=(3,), output=(3,))
PROBE = text_of("sandbox_probe.cpp")
BOXES = tiers()
if os.geteuid() == 0:
    # Also try the tiers of a judge without root rights, whose runners have the judge's user id.
    BOXES += [Sandbox(each.tier, each.bwrap, True, each.landlock, True) for each in BOXES if each.bwrap]


def name(box: Sandbox) -> str:
    return box.tier + ("" if box.own_uid else "-one-uid")


@pytest.fixture(scope="module", params=BOXES, ids=name)
def host(request: pytest.FixtureRequest) -> Iterator[NativeHost]:
    with NativeHost(request.param) as started:
        yield started


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = includes(HEADERS) + PROBE + binding("files libraries power reach take hangs")
    return program(tmp_path_factory.mktemp("probe"), text)


def test_a_kernel_sees_no_files_libraries_or_rights(host: NativeHost, probe: Path) -> None:
    with host.spawn(probe, threads=2, cpus=[0]) as session:
        assert session.death is None, session.death
        calls = [session.call(request(function)) for function in ("files", "libraries", "power")]
    assert [call.status for call in calls] == ["ok"] * 3, (calls, session.printed)
    # The runner's own lines begin with "gpt149: ". They name files that it could not open (inside/machine_files.h).
    lines = [line for line in session.printed.splitlines() if not line.startswith("gpt149: ")]
    assert lines[0] == "no open at the start: /" and [line for line in lines if line.startswith("SAW")] == []
    assert len([line for line in lines if line.startswith("no ")]) > 90
    assert [line for line in lines if line.startswith("open")] == [f"open descriptor {fd}" for fd in range(6)]
    # The program itself and the library that Linux maps into every process may be seen.
    assert {row for row in lines if row.startswith("library")} <= {"library ''", "library 'linux-vdso.so.1'"}
    environment = {line for line in lines if line.startswith("environment")}
    names = {line.partition("=")[0] for line in environment}
    assert names <= {"environment OMP_NUM_THREADS", "environment GPT149_CACHE_FILES"}
    assert "environment OMP_NUM_THREADS=2" in environment
    assert session.evidence.new_code == () and not session.evidence.extra_cpus


def test_reaching_out_ends_the_runner(host: NativeHost, probe: Path) -> None:
    for how in range(PROBE.count("if (how == ")):
        with host.spawn(probe, threads=1) as session:
            assert session.call(request("reach", -1)).status == "ok"
            call = session.call(request("reach", how))
        assert (call.status, call.signal_name) == ("crash", "SIGSYS"), how


def test_memory_is_limited(host: NativeHost, probe: Path) -> None:
    with host.spawn(probe, threads=1, limits=Limits(memory_bytes=300 << 20)) as session:
        assert session.call(request("take", 200)).status == "ok"
        call = session.call(request("take", 400))
    assert (call.status, call.message) == ("exception", "std::bad_alloc")


def processes() -> dict[int, int]:
    """Return {process id: its parent's id} for all living processes, without zombies and kernel threads."""
    fields = {int(pid): stat(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    return {pid: int(each[1]) for pid, each in fields.items() if each[0] != "Z" and int(each[20]) > 0}


def children() -> set[int]:
    return {pid for pid, parent in processes().items() if parent == os.getpid()}


def test_an_ended_runner_leaves_no_process_and_no_open_file(host: NativeHost, probe: Path) -> None:
    before, fds = children(), set(os.listdir("/proc/self/fd"))
    why = "no native runner could be started: there is no file"
    refused(why, host.spawn, probe.with_name("none"), threads=1, of=KitError)
    assert children() <= before
    with host.spawn(probe, threads=4, call_timeout_s=0.3) as session:
        assert 1 <= len(children() - before) <= 2 and session.call(request("hangs")).status == "timeout"
    assert children() <= before and set(os.listdir("/proc/self/fd")) <= fds


JUDGE = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from building import asked
from grader.backends.native.nativehost import NativeHost
from grader.sandbox import choose
host = NativeHost(choose({tier!r}, trust=True))
session = host.spawn(Path({probe!r}), threads=2)
print(session.pid, *(each.init for each in host._living.values()), flush=True)
session.call(asked("hangs", shape=(3,), output=(3,)), timeout_s=600)
"""


def test_a_runner_ends_with_its_judge(host: NativeHost, probe: Path) -> None:
    text = JUDGE.format(root=str(ROOT), tier=host.sandbox.tier, probe=str(probe))
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as judge:
        pids = {int(word) for word in judge.stdout.readline().split()} - {0}
        assert pids and pids <= set(processes())
        judge.send_signal(signal.SIGKILL)
    assert wait_for(lambda: not pids & set(processes()))


def test_a_program_built_in_a_tier_starts_there(host: NativeHost, tmp_path: Path) -> None:
    """Under any umask, the compiler's user can read the file and the runner's user can start the program."""
    tier = name(host.sandbox)
    text = f"{HEAD}// built in tier {tier}\ntorch::Tensor same(torch::Tensor t) {{ return t; }}\n{binding('same')}"
    umask = os.umask(0o077)
    try:
        built = program(tmp_path, text, sandbox=host.sandbox)
    finally:
        os.umask(umask)
    with host.spawn(built, threads=1) as session:
        assert session.call(asked("same")).status == "ok", session.death


def test_compilers_see_all_that_lock_py_loads() -> None:
    """A compiler sees few files of the system. They include the libraries of the Python that runs lock.py."""
    text = "import runpy, sys; runpy.run_path(sys.argv[1]); print(open('/proc/self/maps').read())"
    command = [sys.executable, "-I", "-S", "-c", text, str(LOCK)]
    libraries = set(re.findall(r"/.*\.so.*", subprocess.check_output(command, text=True)))
    seen = [path.resolve() for path in view.interpreter_paths()]
    assert libraries
    assert [name for name in libraries if not any(Path(name).is_relative_to(path) for path in seen)] == []
