"""A class on a cluster: a scheduler and two machines, simulated by processes, and their failures."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from unittest.mock import Mock

import pytest
from classes.acting_class import HANG_S, SMALL, Class, environment, gone, processes_of, wait_until
from conftest import ROOT, Patch, put, refused
from process_tree import descendants

from grader.assignment.loading import load
from grader.backends.native import toolchain
from grader.core.errors import KitError
from grader.staff.classroom import ledger
from grader.staff.classroom.worker import calibrated
from grader.staff.cluster import local, node, proof, tasks
from grader.staff.cluster.executor import named, needs, room_of
from grader.staff.cluster.local import Address, LocalMachines, connect, cores_of, parse

distributed = pytest.importorskip("distributed")
LOCAL = "cluster.local"
MARKS = {"machine": (LOCAL, "worker"), "node": ("cluster.node",), "scheduler": (LOCAL, "scheduler")}


def running(state: Path, what: str) -> list[int]:
    """Return the ids of processes of one kind (a key of MARKS) that belong to the class with this state folder."""
    found = []
    for pid in processes_of(state):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if all(mark in line for mark in MARKS[what]):
                found.append(pid)
    return found


def overlaps(out: Path) -> tuple[int, int]:
    """Return the number of timings in the ledger, and the number of pairs that shared a core at the same time."""
    timings = [timing for record in ledger.read(out).records.values() for timing in record.timings]
    count = 0
    for one, other in combinations(timings, 2):
        same = one.resource == other.resource or "machine" in (one.resource, other.resource)
        at_once = one.began_s < other.ended_s and other.began_s < one.ended_s
        count += one.machine == other.machine and same and at_once
    return len(timings), count


def reach(pid: int) -> list[str]:
    """Return a process's open sockets and its environment variables DASK_..., by which it could reach a scheduler."""
    found: list[str] = []
    with suppress(OSError):
        found += Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        for place in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(place))
    return [one for one in found if one.startswith(("socket:", "DASK_"))]


@pytest.mark.full
def test_a_cluster_gives_the_grades_of_one_machine_also_when_its_judge_is_killed(tmp_path: Path) -> None:
    calibration = put(tmp_path, {"module.cpp": b"PYBIND11_MODULE\n"}) / "module.cpp"
    here, there = (Class(tmp_path / name) for name in ("here", "there"))
    for one in (here, there):
        for k in range(6):
            one.add(f"student{k}", "sleep 0.2", ("pass", "slow", "wrong")[k % 3])
        one.add("bob", "die 1", "slow")
    there.add("eve", "fell 9")
    here.grade(seed=1, kit="")
    how = {"seed": 1, "kit": "", "workers": 2, "cluster": "local:2", "calibration": str(calibration)}
    judge = there.start(**how)
    near: dict[int, list[str]] = {}

    def has_begun() -> bool:
        for one in running(there.state, "node"):
            near.update((pid, reach(pid)) for pid in (one, *descendants(one)))
        return len(near) >= 2 and len(there.recorded()) >= 2

    wait_until(has_begun, judge)
    there.kill(judge)
    finished = len(there.recorded())
    said = there.grade(exit_code=3, apart=True, **how)
    assert f"{finished} were finished before and stay as they are" in said
    grades = there.grades()
    blamed = grades.pop("eve")
    assert grades == here.grades()
    assert there.recorded() == dict.fromkeys([*grades, "eve"], 1), "graded twice"
    assert blamed["total"] == "" and "machines were lost while they judged only" in blamed["trouble"]
    assert said.count("was lost: it is gone") >= 3
    assert "1 has no verdict because the kit or the machine failed: eve" in said and gone(there.state)
    # The sandbox has no network (tests/test_native_sandbox.py). A node and its child processes have no connection and
    # no key that student code could use.
    assert not any(near.values()), near
    history = ledger.read(there.out)
    machines = {record.machine for record in history.records.values() if not record.fault}
    assert machines and machines <= set(history.machines)
    fit = [met.ratios["part3"] for met in history.machines.values() if not met.refused]
    assert len(fit) > 1 and set(fit) == {(1.0, 0.9, 1.1)}
    timings, at_once = overlaps(there.out)
    assert timings >= 6 and at_once == 0


def test_addresses_are_read_and_nonsense_or_no_scheduler_is_one_line() -> None:
    assert parse("local:3") == Address(machines=3)
    assert parse("tls://lab-01.edu:8786") == Address("tls://lab-01.edu:8786")
    assert [cores_of(k, 2) for k in range(2)] != [[], []]
    nonsense = "|nonsense|tcp://|tcp://host|http://host:80|local:0|local:65|tcp://host:99999"
    for text in nonsense.split("|"):
        refused("name a scheduler as tcp://HOST:8786", parse, text)
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))  # without `listen`: the port is taken, and refuses connections
        address = f"tcp://127.0.0.1:{place.getsockname()[1]}"
        refused(f"{address}: no scheduler answers there", connect, address, within_s=0.2)


OPENSSLS = {"needs openssl": "", "no entropy": "echo no entropy >&2; exit 1", "printed no message": "exit 1"}
LOST = {"lost": "its node ended"}
SETTINGS = {"seed": None, "timing": True, "timings_alone": False, "trust": True}
KEY = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout key.pem -out cert.pem"
SCHEDULER = """
import asyncio, sys
from pathlib import Path
from distributed import Scheduler
from grader.staff.cluster import local
async def serve(place, protocol):
    how = {"security": local.security_of(place)} if protocol == "tls" else {}
    async with Scheduler(protocol=protocol, host="127.0.0.1", dashboard_address="127.0.0.1:0", **how) as found:
        (place / "partial").write_text(found.address)
        (place / "partial").rename(place / "address")
        await found.finished()
asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
"""
#: Script of a judge whose machines all fail their test. It tries again for each line on its standard input.
LONELY = """
import sys
from pathlib import Path
from grader.assignment.loading import load
from grader.staff.classroom.executor import Job
from grader.staff.cluster import executor as cluster, proof
from grader.staff.cluster.local import Address
cluster.WORKERS_WITHIN_S = 1.0
assignment = load(Path(sys.argv[2]))
kit = proof.kit_here(Path(sys.argv[2]), assignment, "D", seed=None, timing=True, timings_alone=False, trust=True)
for _ in sys.stdin:
    place = Path(sys.argv[2]).parent
    executor = cluster.ClusterExecutor(Address(sys.argv[1]), kit, place, calibration=None, command=())
    executor.submit(Job("ada", Path(sys.argv[2])))
    try:
        list(executor.results())
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    executor.close()
"""


def scheduler(place: Path, protocol: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a dask scheduler of its own, not one that the kit starts for a class. Return (process, address)."""
    address = place / "address"
    command = [sys.executable, "-c", SCHEDULER, str(place), protocol]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment(), cwd=ROOT)
    wait_until(address.exists, process)
    return process, address.read_text()


def worker(address: str, *more: str, **variables: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*program, *more], **quiet, cwd=ROOT, env=environment(**variables))


@pytest.mark.full
def test_a_scheduler_without_workers_and_one_whose_workers_all_fail_are_one_line_each(tmp_path: Path) -> None:
    shutil.copy(SMALL, tmp_path / "small.yaml")
    put(tmp_path, {"other-g++": "#!/bin/sh\necho 'g++ (Other) 1.2.3'\n"}, 0o755)
    process, address = scheduler(tmp_path, "tcp")
    command = [sys.executable, "-c", LONELY, address, str(tmp_path / "small.yaml")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    judge = subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes)  # type: ignore[call-overload]
    started = [process, judge]
    try:
        judge.stdin.write("\n")
        said = judge.stdout.readline()
        assert said.startswith("UsageError") and "the scheduler has no workers: start one" in said
        resources = ("--resources", "cores=1 machine=1", "--nthreads", "1")
        odd = worker(address, "--name", "odd", *resources, CXX=str(tmp_path / "other-g++"))
        started += [odd, worker(address, "--name", "bare")]
        with connect(address, None, HANG_S) as client:
            client.wait_for_workers(2, timeout=HANG_S)
        said, _ = judge.communicate("\n", timeout=HANG_S)
        assert said.startswith("KitError no machine of the cluster may judge: ") and said.count("\n") == 1
        assert "bare: it offers no cores: start it with --resources" in said
        assert "odd: another compiler ('g++ (Other) 1.2.3' there" in said
    finally:
        for each in reversed(started):
            each.kill()
            each.communicate()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_wrong_tls_key_or_missing_tls_is_reported_in_one_line(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
        subprocess.run(KEY.split(), check=True, capture_output=True, cwd=tmp_path / name)
    right, wrong = (local.security_of(tmp_path / name) for name in ("right", "wrong"))
    process, address = scheduler(tmp_path / "right", "tls")
    try:
        connect(address, right, HANG_S).close()
        plain = (address.replace("tls:", "tcp:"), None, r"tcp://.*tls://")
        for place, security, why in ((address, wrong, "TLS.*docs/cluster.md"), plain):
            refused(why, connect, place, security, 2.0)
    finally:
        process.kill()
        process.wait()


def test_a_machine_with_another_kit_gets_the_difference_as_reason(monkeypatch: Patch) -> None:
    config = ROOT / "configs" / "gpt149.yaml"
    kit = proof.kit_here(config, load(config), "D", **SETTINGS)
    assert kit.config == "configs/gpt149.yaml" and proof.refusals(kit) == []
    changes = {field: f"another {field}" for field in ("compiler", "torch", "python")}
    changes |= {"kit": "other sources of the kit", "config": "no assignment"}
    for field, words in {**changes, "assignment_fingerprint": "another configs/gpt149.yaml"}.items():
        found = proof.refusals(replace(kit, **{field: "x"}))
        assert len(found) == 1 and words in found[0], (field, found)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    toolchain._toolchain_for.cache_clear()
    assert "no C++ compiler" in proof.refusals(kit)[0]


def test_calibration_refuses_a_machine_that_judges_wrongly_or_unsteadily() -> None:
    part = {"id": "part1", "verdict": "pass", "time": {"fit": True, "self_ratio": 1.0}}
    assert calibrated({"parts": [part]}, False) == ""
    assert "part1 'wrong'" in calibrated({"parts": [{**part, "verdict": "wrong"}]}, False)
    unsteady = {**part, "time": {"fit": False, "self_ratio": 1.2}}
    assert "differs from itself (part1 1.20)" in calibrated({"parts": [unsteady]}, True)


def test_nodes_share_locks_and_remove_only_killed_ones_scratch(tmp_path: Path, monkeypatch: Patch) -> None:
    shared = node.slot_folder()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living, claim = node.own_scratch()
    killed = put(tmp_path / f"{node.SCRATCH}dead", {"job-0/ada/module.cpp": b"x"})
    elsewhere = put(tmp_path / "elsewhere", {"file": b""})
    (tmp_path / f"{node.SCRATCH}link").symlink_to(elsewhere)
    fresh, own = node.own_scratch()
    os.close(claim)
    os.close(own)
    assert living.is_dir() and fresh.is_dir() and not killed.exists() and (elsewhere / "file").exists()
    assert node.slot_folder() == shared
    monkeypatch.setattr(node, "MACHINES_FOLDERS", (str(tmp_path / "no such folder"),))
    assert node.slot_folder().parent == tmp_path


def node_that(script: str, monkeypatch: Patch) -> tasks.NodeProcess:
    start = subprocess.Popen
    monkeypatch.setattr(tasks.subprocess, "Popen", lambda _, **how: start(["sh", "-c", script], **how))
    return tasks.NodeProcess({})


@pytest.mark.parametrize("last", ['printf \'{"job": "a", "do\'', "echo 'no JSON'", "echo '[]'", "true"])
def test_a_node_that_dies_while_it_answers_loses_its_jobs(last: str, monkeypatch: Patch) -> None:
    lost = node_that(f"read start; echo '{{\"facts\": {{}}}}'; read job; {last}", monkeypatch)
    assert lost.wait_facts() is not None
    for job in "ab":
        assert lost.begin({"job": job}).get(timeout=HANG_S) == LOST


def test_a_node_that_cannot_be_started_is_lost(monkeypatch: Patch) -> None:
    monkeypatch.setattr(tasks.subprocess, "Popen", Mock(side_effect=BlockingIOError("no process to be had")))
    lost = tasks.NodeProcess({})
    assert "lost" in lost.wait_facts() and lost.begin({"job": "a"}).get(timeout=HANG_S) == LOST
    lost.forget("a")
    lost.close()


def test_a_node_that_is_stopped_is_ended_and_its_job_lost(monkeypatch: Patch) -> None:
    stopped = node_that("read start; echo '{\"facts\": {}}'; kill -STOP $$; sleep 600", monkeypatch)
    stopped.wait_facts()
    monkeypatch.setattr(tasks, "NODE_SILENT_S", 0.5)
    monkeypatch.setattr(tasks, "_nodes", {"run": stopped})
    monkeypatch.setattr(tasks, "_is_wanted", lambda *_: True)
    monkeypatch.setattr(distributed, "get_worker", Mock)
    assert tasks.judge("run", {}, {"job": "a"}, "topic") == {"lost": "its node stopped answering"}
    stopped._reader.join(HANG_S)
    assert stopped.ended


def test_a_full_disk_does_not_end_a_node(tmp_path: Path, monkeypatch: Patch) -> None:
    said: list[dict[str, object]] = []
    kit = dict.fromkeys(proof.Kit.__dataclass_fields__, "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = node.Node({"kit": kit, "name": "lab-01", "workers": 1, "command": []}, said.append)
    given: list[object] = []
    one.executor = Mock(submit=given.append, close=given.clear)
    request = {"job": "a", "submission_id": "ada", "source": "m.cpp", "files": {"m.cpp": ""}}
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", Mock(side_effect=OSError(28, "No space left on device")))
        one.take(request)
    why = "its files cannot be written here: No space left on device"
    assert said == [{"job": "a", "failed": why, "died": False}]
    assert not given and not list(one.scratch.iterdir())
    one.take(request)
    assert given and list(one.scratch.iterdir())
    one.take({"stop": "a"})
    assert not list(one.scratch.iterdir())
    one.close()
    assert not one.scratch.exists()


def test_a_part_for_a_gpu_reserves_one_on_the_cluster() -> None:
    for path, card in ((ROOT / "labs" / "gpu" / "assignment.yaml", True), (SMALL, False)):
        assert proof.kit_here(path, load(path), "D", **SETTINGS).card == card
    assert needs(card=True) == {"cores": 1, "card": 1} and needs(card=False) == {"cores": 1}
    there = {"nthreads": 8, "resources": {"cores": 8.0, "machine": 1.0}}
    assert room_of(there, card=False) == (8, "")
    assert room_of(there, card=True)[0] == 0 and "it offers no GPU" in room_of(there, card=True)[1]
    there["resources"]["card"] = 1.0  # type: ignore[index]
    assert room_of(there, card=True) == (1, "") and room_of(there, card=False) == (8, "")


def test_a_scheduler_killed_early_is_restarted(tmp_path: Path, monkeypatch: Patch) -> None:
    start, ended = LocalMachines._start, []

    def starting(machines: LocalMachines, name: str, *arguments: str) -> None:
        start(machines, name, *arguments)
        if name == "scheduler" and len(ended) < deaths:
            machines.processes[name].kill()
            ended.append(machines.processes[name].wait())

    monkeypatch.setattr(LocalMachines, "_start", starting)
    for name in ("once", "always"):
        (tmp_path / name).mkdir()
    deaths = 1
    with closing(LocalMachines(1, tmp_path / "once")) as machines:
        machines.connect().close()
        assert ended == [-9] and machines.restarts == 1
    deaths, why = 100, "the scheduler of the local cluster does not start"
    refused(why, LocalMachines, 1, tmp_path / "always", of=KitError)


def test_machine_names_are_unique_and_short() -> None:
    taken: set[str] = set()
    for _ in range(12):
        taken.add(named("tcp://host:1", {"name": "lab-" * 40}, taken))
    assert len(taken) == 12 and all(len(name) <= 64 for name in taken)


@pytest.mark.parametrize(("why", "script"), OPENSSLS.items(), ids=OPENSSLS)
def test_an_unfit_openssl_is_reported(why: str, script: str, tmp_path: Path, monkeypatch: Patch) -> None:
    if script:
        put(tmp_path, {"openssl": f"#!/bin/sh\n{script}\n"}, 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    monkeypatch.setattr(LocalMachines, "tend", lambda self: pytest.fail("it was started"))
    refused(why, LocalMachines, 1, tmp_path, of=KitError)
