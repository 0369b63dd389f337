"""The sandbox's tiers on this machine: what a kernel can do in each, and that no files or processes are left."""

import errno
import functools
import hashlib
import itertools
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from conftest import COURSE, ROOT, put, refused
from conftest import tiers as usable

from grader.backends.native import stages
from grader.backends.native.toolchain import toolchain
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import np
from grader.core.errors import KitError
from grader.runner.calls import Call, Request
from grader.runner.session import PipeSession
from grader.sandbox import OPEN, Limits, Sandbox, choose, compiling, run_limited, tiers, view
from grader.sandbox.command import TimeLimit

DEEDS = ROOT / "tests" / "confinement" / "deeds.cpp"
OTHERS = "forks runs_a_program opens_a_socket kills_its_parent stops_its_parent traces_its_parent kills"
LIMITS = Limits(scratch_bytes=16 << 20, scratch_files=100)


def available() -> dict[str, Sandbox]:
    """Return, by name, this machine's working tiers, and variants of them without root rights or without Landlock."""
    found = {sandbox.tier: sandbox for sandbox in usable()}
    if os.geteuid() == 0 and "A" in found and "B" in found:
        found["A-user"] = replace(found["A"], own_user_namespace=True, own_uid=False)
        found["A-no-landlock"] = replace(found["A"], landlock=0)
        found["B-user"] = replace(found["B"], own_uid=False)
    return found


AVAILABLE = available()
#: Tests without the mark `full` use only the strongest sandbox, and tier D, which only sets limits.
STRONGEST = choose(trust=True).tier


def tiers_that(has: Callable[[Sandbox], bool]) -> list[ParameterSet]:
    full = {name: [pytest.mark.full] for name in AVAILABLE if name not in (STRONGEST, "D")}
    return [pytest.param(name, marks=full.get(name, [])) for name in AVAILABLE if has(AVAILABLE[name])]


LOCKED = tiers_that(lambda sandbox: sandbox.locks)


@pytest.mark.skipif(tiers.lock.landlock_version() == 0, reason="this kernel has no Landlock")
def test_a_kernel_with_landlock_gives_a_tier_that_hides_files() -> None:
    """If tiers A and B do not work, their tests are skipped. This test fails if neither works in spite of Landlock."""
    assert {"A", "B"} & set(AVAILABLE)


class Kennel:
    """A zygote in a sandbox. Its runners call functions of `library` ("deeds"), which try to escape."""

    def __init__(self, sandbox: Sandbox, zygote: Zygote, library: Path) -> None:
        self.sandbox, self.zygote, self.library = sandbox, zygote, library

    def runner(self, threads: int = 1) -> PipeSession:
        return self.zygote.spawn("student", self.library, threads=threads, limits=LIMITS)

    def do(self, deed: str, number: float = 0, *, threads: int = 1, timeout_s: float = 20.0) -> Call:
        with self.runner(threads) as session:
            assert session.death is None and session.load_error is None, (session.load_error, session.printed)
            return call(session, deed, number, timeout_s)

    def value(self, deed: str, number: float = 0, threads: int = 1) -> float:
        done = self.do(deed, number, threads=threads)
        assert done.status == "ok", done
        return float(done.output[0])


def call(session: PipeSession, deed: str, number: float = 0, timeout_s: float = 20.0) -> Call:
    rows = np.full((1, 1), float(number))
    return session.call(Request(deed, [{"column": 0}], [rows], (1,), op="table"), timeout_s=timeout_s)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the attacks in deeds.cpp to a library. Beside it write two secrets, one of them readable by all."""
    folder = tmp_path_factory.mktemp("deeds")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    secret, made = folder / "secret.txt", folder / "deeds.so"
    for path, mode in ((secret, 0o644), (Path(f"{secret}.closed"), 0o600)):
        path.write_text("the expected values")
        path.chmod(mode)
    command = [str(toolchain().compiler), "-O1", "-fopenmp", "-shared", "-fPIC", f'-DSECRET="{secret}"']
    command += [f'-DFORGED="{forged_name(made)}"', "-o", str(made), str(DEEDS)]
    subprocess.run(command, check=True)
    return made


def forged_name(library: Path) -> str:
    """Return the name of the files that functions of deeds.cpp try to write. It differs between parallel test runs."""
    return "forged-by-" + hashlib.sha256(bytes(library)).hexdigest()[:16]


@pytest.fixture(scope="module")
def kennel_of(library: Path) -> Iterator[Callable[[str], Kennel]]:
    with ExitStack() as stack:

        @functools.cache
        def kennel(tier: str) -> Kennel:
            return Kennel(AVAILABLE[tier], stack.enter_context(Zygote(sandbox=AVAILABLE[tier])), library)

        yield kennel


def kennel_fixture(tiers: list[ParameterSet]) -> Callable[..., Kennel]:
    return pytest.fixture(params=tiers)(lambda request, kennel_of: kennel_of(request.param))


kennel, locked = kennel_fixture(tiers_that(lambda sandbox: True)), kennel_fixture(LOCKED)


def softmax(size: int) -> Request:
    values = np.zeros((size, size), np.float32)
    return Request("torch.softmax", [{"input": 0}, {"value": 1}], [values], (size, size))


def test_a_kernel_computes_and_is_profiled_as_it_would_be_outside(kennel: Kennel) -> None:
    assert kennel.value("nothing", 41) == 42 and kennel.value("uses_openmp", 3, threads=3) == 1000
    assert kennel.do("kills_itself").signal_name == "SIGABRT"
    # Every runner finds an empty folder, and may write to it.
    assert kennel.value("writes_a_note") == kennel.value("writes_a_note") == 1
    with kennel.zygote.spawn("torch", "", threads=1) as session:
        profiled = session.call(softmax(256), profile_label="softmax", measure_peak=True)
        assert profiled.status == "ok", (profiled, session.printed)
    assert sum(row.self_cpu_bytes for row in profiled.profile) == 4 * 256 * 256
    assert profiled.cpu_s is not None and profiled.peak_bytes is not None and profiled.peak_bytes > 0


def test_memory_threads_disk_and_time_are_bounded_and_a_full_disk_is_emptied(kennel: Kennel) -> None:
    assert 0 < kennel.value("fills_the_memory", 64) <= 4.5 and 4 < kennel.value("starts_threads", 3000) < 1500
    for deed, number in (("fills_the_disk", 64), ("makes_files", 400)):
        filled = kennel.do(deed, number)
        assert filled.status == "crash" and "it wrote more than" in filled.message, deed
        assert not any(kennel.zygote._scratch.iterdir()) and kennel.value("writes_a_note") == 1
    with kennel.runner() as session:
        assert call(session, "loops", timeout_s=0.4).status == "timeout"
        assert not Path(f"/proc/{session.pid}").exists()


@pytest.mark.parametrize("deed", OTHERS.split())
def test_reaching_for_another_process_is_fatal(locked: Kennel, deed: str) -> None:
    # Each deed gets the id of the judge's process, which it would reach without the sandbox.
    assert locked.do(deed, os.getpid()).signal_name == "SIGSYS"


def test_a_locked_kernel_is_refused_rights_and_files_and_leaves_none_in_open_folders(locked: Kennel) -> None:
    read = "reads_the_closed_secret reads_its_parent reads_the_environment_of"
    for deeds, answers in {
        "owns_a_file_for takes_more_cores lifts_a_limit": {-errno.EPERM},
        f"{read} writes_beside_the_secret": {-errno.EACCES, -errno.ENOENT},
        "writes_to_the_system": {-errno.EACCES, -errno.EROFS},
        "has_capabilities": {0},
    }.items():
        for deed in deeds.split():
            assert locked.value(deed, os.getpid()) in answers, deed
    if locked.sandbox.hides_files:
        assert locked.value("reads_the_secret") < 0 and locked.value("sees") == 0
    # If runners have their own /tmp, /var/tmp and /dev/shm, the second runner finds the folders empty again.
    assert locked.value("writes_to_open_folders") == locked.value("writes_to_open_folders")
    name = forged_name(locked.library)
    assert not any(Path(folder, name).exists() for folder in ("/tmp", "/var/tmp", "/dev/shm"))


def test_orphans_are_swept_up(kennel_of: Callable[[str], Kennel]) -> None:
    """In tier D a kernel can start processes, so the zygote has to kill those that outlive the runner."""
    kennel = kennel_of("D")
    assert kennel.value("forks") > 0 and kennel.value("bomb", 15) == 15
    pid = kennel.zygote._process.pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text().split() == []


def test_threads_end_runners_at_the_same_time() -> None:
    """While one thread ends a runner, another thread must not kill the runner as an orphan."""
    with Zygote() as zygote:
        for _ in range(3):
            runners = [zygote.spawn("torch", "", threads=1, freeze=False) for _ in range(6)]
            with ThreadPoolExecutor(len(runners)) as pool:
                list(pool.map(PipeSession.close, runners))
            assert [runner.death.status for runner in runners if runner.death] == ["crash"] * 6


def test_a_kernel_that_signals_its_parent_or_the_reference_is_found(library: Path) -> None:
    with Zygote() as zygote:
        kennel = Kennel(OPEN, zygote, library)
        assert kennel.value("stops_its_parent") == 1 and kennel.value("nothing", 1) == 2
        assert kennel.do("kills_its_parent").status == "crash" and zygote.sabotaged
        assert kennel.value("nothing", 1) == 2
    with Zygote() as zygote, zygote.spawn("torch", "", threads=1) as reference:
        with Kennel(OPEN, zygote, library).runner() as student:
            assert reference.call(softmax(4)).status == "ok" and not zygote.sabotaged
            assert call(student, "kills", reference.pid).status == "ok"
            assert reference.call(softmax(4)).signal_name == "SIGKILL"
        assert zygote.sabotaged


def test_no_process_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    """The command's child holds one end of a pipe. The pipe's other end becomes readable when the child has ended."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        shell = "exec 3> pipe; sleep 100 > /dev/null 2>&1 & exit 0"
        assert run_limited(["sh", "-c", shell], cwd=tmp_path, timeout_s=60.0).returncode == 0
        assert select.select([reader], [], [], 30.0)[0], "the child still lives"
        assert reader.read(1) == b""


def test_a_limit_of_cpu_time_ends_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of CPU time holds for all commands together. A command that only waits, like `sleep`, ends, too."""
    endless, limit = "while :; do :; done", TimeLimit(0.3)
    finished = run_limited(["sh", "-c", f"sh -c '{endless}'; exit 0"], cwd=tmp_path, timeout_s=limit)
    assert finished.timed_out and limit.used_s >= 0.3
    # Both commands share the limit, which the first has used up.
    assert run_limited(["sleep", "9"], cwd=tmp_path, timeout_s=limit).timed_out
    monkeypatch.setattr("grader.sandbox.command.LEAST_PATIENCE_S", 0.3)
    refused("too busy", run_limited, ["sleep", "99"], of=KitError, cwd=tmp_path, timeout_s=0.1)


class Compilers:
    def __init__(self, sandbox: Sandbox, room: compiling.Room) -> None:
        self.sandbox, self.uid, self.folder = sandbox, room.uid, room.folder

    def run(self, text: str, command: list[str], **seen: Any) -> tuple[int, str]:
        (self.folder / "module.cpp").write_text(text)
        seen |= {"sandbox": self.sandbox, "uid": self.uid, "cwd": self.folder, "timeout_s": 60}
        finished = run_limited(command, env={"PATH": os.environ["PATH"], "TMPDIR": str(self.folder)}, **seen)
        return finished.returncode, finished.output.decode()

    def compiled(self, text: str, *flags: str) -> tuple[int, str]:
        command = [str(toolchain().compiler), *flags, "-shared", "-o", "module.so", "module.cpp"]
        return self.run(text, command, read=view.programs_folders(command[0]))


@pytest.fixture(params=LOCKED)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Compilers]:
    sandbox = AVAILABLE[request.param]
    with compiling.room(sandbox, tmp_path, None) as found:
        yield Compilers(sandbox, found)


def test_a_compiler_may_be_a_script(room: Compilers) -> None:
    """Clusters wrap compilers in scripts. The sandbox must show their shell, the programs that they call, and links."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        own, linked = Path(folder, "own"), Path(folder, "linked")
        own.mkdir()
        linked.mkdir()
        asked = [str(toolchain().compiler), "-print-file-name=libgomp.spec"]
        shutil.copy(subprocess.check_output(asked, text=True).strip(), linked)
        (own / "libgomp.spec").symlink_to(linked / "libgomp.spec")
        script, real = Path(folder, "g++"), f'"$(dirname {toolchain().compiler})/g++"'
        calls = {"g++": f"{folder}/inner", "inner": f"{folder}/third -B{own}/", "third": real}
        put(Path(folder), {name: f'#!/bin/sh\nexec {call} "$@"\n' for name, call in calls.items()}, 0o755)
        views = stages.views(replace(toolchain(), compiler=script))
        text = "#include <vector>\nint main() {}"
        for command, seen in (
            ([*stages.FRONT_END_FLAGS], views.front_end),
            (["-c", stages.ASSEMBLY, "-o", "module.o"], views.assembler),
            (["-fopenmp", "module.o", "-o", "module"], views.linker),
        ):
            code, said = room.run(text, [str(script), *command], system=seen)
            assert code == 0, said


def test_compilers_see_headers_and_no_private_files(room: Compilers, library: Path, scratch: Path) -> None:
    assert room.compiled("#include <cstdlib>\nint one = 1;") == (0, "")
    code, said = room.compiled(f'#include "{library.parent / "secret.txt.closed"}"')
    assert code != 0 and "expected values" not in said
    asks = '#if __has_include("{}")\n#error seen\n#endif'
    if room.sandbox.hides_files:
        for path in ("/etc/passwd", library.parent / "secret.txt", COURSE):
            assert "seen" not in room.compiled(asks.format(path))[1]
            for text in (f'#include "{path}"', f'asm(".incbin \\"{path}\\"");'):
                assert room.compiled(text)[0] != 0
    # The kit's own files cannot be read in any tier, not even where only file modes hide them.
    room.sandbox.protect(*view.secrets())
    around = "../" * len(room.folder.parts)
    for name in (
        "module.cpp", "configs/hidden/gpt149.yaml", "configs/gpt149.yaml", "labs/softmax/hidden/assignment.yaml",
        "labs/operators/reference.cpp", "labs/softmax/softmax.cpp", "labs/attention/kernels.py",
        "module_ref_stub/kernels.cpp", "tests/conftest.py", "benchmarks/planted_faults.py",
    ):  # fmt: skip
        path = ROOT / name
        lines = [line for line in path.read_text().splitlines() if len(line) > 20]
        for text in (f'#include "{path}"', f'#include "{around}{path}"', f'asm(".incbin \\"{path}\\"");'):
            code, said = room.compiled(text)
            assert code != 0 and not any(line in said for line in lines), (name, said)
        assert "seen" not in room.compiled(asks.format(path))[1]
    # Some linkers only warn if they cannot write the map file, so look for the file itself.
    elsewhere, here = scratch / "planted", room.folder / "planted"
    for target in (elsewhere, here):
        room.compiled("int one = 1;", f"-Wl,-Map={target}")
    assert here.exists() and not elsewhere.exists()


def test_headers_of_installed_libraries_are_refused(tmp_path: Path) -> None:
    allowed = """/usr/include/stdio.h /usr/include/x86_64-linux-gnu/bits/types.h /usr/include/linux/futex.h
        /usr/include/c++/12/bits/stl_vector.h /opt/kit/shim/gpt149.h"""
    libraries = """/usr/include/eigen3/Eigen/Dense /usr/local/include/Eigen/src/Core/Product.h
        /usr/include/x86_64-linux-gnu/openblas-pthread/cblas.h /usr/local/include/blaze.hpp"""
    roots = "/usr/include/c++/12 /usr/local/include /usr/include/x86_64-linux-gnu /usr/include /opt/kit"
    for header in f"{allowed} {libraries}".split():
        (tmp_path / stages.INCLUDED).write_text(f"{stages.ASSEMBLY}: {stages.SOURCE} {header}\n")
        said = stages.refused(toolchain(), tmp_path, stages.INCLUDED, [*map(Path, roots.split())])
        assert ("a header of a library" in said) == (header in libraries.split()), (header, said)


def test_only_a_plain_file_is_taken_as_compiler_output(tmp_path: Path) -> None:
    made, place = tmp_path / "room" / "module.so", tmp_path / "place"
    for folder in (made.parent, place):
        folder.mkdir()
    made.symlink_to("/etc/passwd")
    refused("is not a regular file", compiling.taken, made, place, of=KitError)
    made.unlink()
    made.write_text("object")
    assert compiling.taken(made, place).read_text() == "object"


def test_a_tier_that_does_not_confine_or_work_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiers._escape(Sandbox("B", landlock=0, seccomp=True)) == "it does not hide files"
    assert tiers._escape(Sandbox("C", seccomp=False, own_uid=os.geteuid() == 0)) != ""
    for wanted, message in (("E", "no sandbox tier 'E'"), ("D", "--trust")):
        refused(message, choose, wanted)
    monkeypatch.setattr(tiers.shutil, "which", lambda name: None)
    monkeypatch.setattr(tiers.lock, "landlock_version", lambda: 0)
    monkeypatch.setattr(tiers.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(tiers, "_tried", tiers._tried.__wrapped__)
    refused(r"A: bubblewrap is not installed.*no Landlock.*only root.*--trust", choose)
    for trust in (False, True):
        refused("tier A does not work.*bubblewrap is not installed.*Leave out --tier", choose, "A", trust)
    assert choose(trust=True) == OPEN


def test_no_sandbox_shows_the_kit_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = tmp_path / "usr" / "src" / "kit"
    for name in ("grader/sandbox", "labs/rows/hidden", "unknown", ".venv/lib/torch", "lib/torch", "bin"):
        (kit / name).mkdir(parents=True)
    (tmp_path / "usr" / "include").mkdir()
    (kit / "module.cpp").touch()
    ours = {"grader", "labs", "unknown", "module.cpp"}

    def left_out(paths: tuple[Path, ...]) -> set[str]:
        return {str(path.relative_to(kit)) for path in paths if path.is_relative_to(kit)}

    shared = tmp_path / "shared"
    for prefix in (kit / ".venv", shared):
        monkeypatch.setattr(sys, "prefix", str(prefix))
        if prefix == shared:
            (kit / ".venv").rename(shared)
            (kit / ".venv").symlink_to(shared)
        assert left_out(view.kit_paths(kit)) == ours
    (kit / ".venv").unlink()
    shared.rename(kit / ".venv")
    monkeypatch.setattr(sys, "prefix", str(kit))
    assert left_out(view.kit_paths(kit)) == {*ours, ".venv"}
    hidden = view.kit_paths(kit)
    monkeypatch.setattr(view, "kit_paths", lambda: hidden)
    assert left_out(view.python_paths.__wrapped__()) == {"lib", "bin"}
    monkeypatch.setattr(view, "SYSTEM", (str(tmp_path / "usr"),))
    seen = view.system_paths.__wrapped__()
    assert tmp_path / "usr" / "include" in seen and not left_out(seen) & ours
    assert {path.name for path in view.secrets()} == {"labs", "unknown", "module.cpp", ".venv"}
    packages = tmp_path / "site-packages"
    names = "gpt149_kit/grader gpt149_kit/labs numpy/lib/grader/checks numpy/lib/other numpy/bin"
    for name in names.split():
        (packages / name).mkdir(parents=True)
    monkeypatch.undo()
    assert {path.name for path in view.kit_paths(packages / "gpt149_kit")} == {"grader", "labs"}
    seen = view.without([packages / "numpy"], [packages / "numpy" / "lib" / "grader"])
    assert {str(path.relative_to(packages)) for path in seen} == {"numpy/lib/other", "numpy/bin"}


def test_packages_of_other_folders_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages" / "einx-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages"), str(tmp_path / "own")])
    seen = view.python_paths.__wrapped__()
    assert tmp_path / "packages" in seen and tmp_path / "own" not in seen


def test_links_are_seen_with_their_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link /bin -> usr/bin stays a link. An environment behind a link is visible under the link's name, too."""
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / ".venv").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "sbin").symlink_to("bin")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert {tmp_path / ".venv", tmp_path / "elsewhere"} <= set(view.python_paths.__wrapped__())
    read = [tmp_path / name for name in ("usr", "bin", "sbin", ".venv")]
    options = list(itertools.pairwise(Sandbox("A", "bwrap").enclosed([], read=read, system=(), cwd="/")))
    assert ("--symlink", "usr/bin") in options
    assert ("--symlink", str(tmp_path / "usr" / "bin")) in options, "a link to a link, which is not seen"
    assert ("--ro-bind", str(tmp_path / ".venv")) in options


def test_rights_hide_files_and_closed_ones_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners with other user ids cannot use a folder that is closed to other users. A message names the folder."""
    by_rights, by_landlock = Sandbox("C", seccomp=True, own_uid=True), Sandbox("B", landlock=1)
    for sandbox, mode in ((by_rights, 0o700), (by_landlock, 0o755)):
        tmp_path.chmod(0o755)
        sandbox.protect(tmp_path, tmp_path / "absent")
        assert tmp_path.stat().st_mode & 0o777 == mode
    closed, inside = tmp_path / "closed", tmp_path / "closed" / "temporary"
    inside.mkdir(parents=True)
    closed.chmod(0o700)
    confined = replace(OPEN, own_uid=True)
    why = r"user ids that may not enter .*closed, .* set TMPDIR"
    refused(why, confined.check_within_reach, inside, of=KitError)
    OPEN.check_within_reach(inside)
    if os.geteuid() == 0:
        monkeypatch.setattr("tempfile.tempdir", str(inside))
        refused(why, Zygote, sandbox=confined, of=KitError)
        assert not list(inside.iterdir())
