"""Connection to the scheduler that `--cluster` names (tcp://HOST:PORT or tls://HOST:PORT), and local test clusters.

`--cluster local:N` starts a scheduler and N dask workers on this machine, which simulate N machines. The workers divide
the machine's cores; if there are too few, some share a core. Their timings use common locks (`node.slot_folder`). The
scheduler listens on the loopback interface only, by TLS with a new key. If it accepted connections without the key,
untrusted code on this machine could connect and run programs as the judge. Processes that die are started again, at
most MOST_RESTARTS times in total.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.core import machine, procfs
from grader.core.errors import KitError, UsageError
from grader.core.harmless import one_line
from grader.core.places import ROOT

if TYPE_CHECKING:
    from distributed import Client

MOST_LOCAL = 64
CONNECT_S = 10.0
_SCHEDULER = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")


@dataclass(frozen=True)
class Address:
    """Value of `--cluster`. `scheduler` is the address of a running scheduler, or "" for local:N; `machines` is N."""

    scheduler: str = ""
    machines: int = 0


def parse(text: str) -> Address:
    """Parse a value of `--cluster`. Raises UsageError if it is invalid, or if dask.distributed is not installed."""
    local = re.fullmatch(r"local:(\d{1,3})", text)
    found = _SCHEDULER.fullmatch(text)
    if local and 1 <= int(local[1]) <= MOST_LOCAL:
        address = Address(machines=int(local[1]))
    elif found and 0 < int(found[3]) < 1 << 16:
        address = Address(scheduler=text)
    else:
        raise UsageError(
            f"--cluster {one_line(text, 60)}: name a scheduler as tcp://HOST:8786 or tls://HOST:8786, "
            f"or local:N to simulate N machines (1 to {MOST_LOCAL}) on this machine"
        )
    if importlib.util.find_spec("distributed") is None:
        raise UsageError(
            "--cluster needs dask.distributed: pip install 'gpt149[cluster]' here and on each machine"
        )
    return address


def connect(scheduler: str, security: Any = None, within_s: float = CONNECT_S) -> Client:
    """Return a dask client that is connected to a scheduler.

    `security` are the TLS keys. If it is None, dask's own settings name them: in ~/.config/dask, or in environment
    variables DASK_.... Raises UsageError if no scheduler answers within `within_s` seconds, or if it uses another
    protocol.
    """
    import logging

    from distributed import Client

    # Turn off dask's log messages: the judge reports lost connections itself.
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        return Client(
            scheduler,
            timeout=within_s,
            security=security,
            set_as_default=False,
            name="gpt149",
            direct_to_workers=False,
        )
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise UsageError(_why(scheduler, error)) from error


def _why(scheduler: str, error: BaseException) -> str:
    """Return a message with the likely reason why a client cannot connect. `error` is dask's exception."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    words = " ".join(str(each) for each in causes)
    settings = "tls_ca_file, tls_client_cert and tls_client_key of dask's own settings (docs/cluster.md)"
    if any(isinstance(each, ssl.SSLError) for each in causes) or "TLS" in words or "SSL" in words:
        if scheduler.startswith("tls"):
            return f"--cluster {scheduler}: TLS fails ({_short(causes)}): check {settings}"
        return f"--cluster {scheduler}: the scheduler uses TLS: name it as tls://, and set {settings}"
    if scheduler.startswith("tls"):
        return (
            f"--cluster {scheduler}: no scheduler answers by TLS there within {CONNECT_S:g} s ({_short(causes)}): "
            f"start it with --tls-ca-file, --tls-cert and --tls-key, and set {settings}"
        )
    return (
        f"--cluster {scheduler}: no scheduler answers there within {CONNECT_S:g} s: start one with "
        "`dask scheduler`, or name it as tls:// if it uses TLS"
    )


def _short(causes: list[BaseException]) -> str:
    cause = next((each for each in causes if isinstance(each, ssl.SSLError)), causes[-1])
    return one_line(f"{type(cause).__name__}: {cause}", 120)


START_WITHIN_S = 60.0
END_WITHIN_S = 5.0
MOST_RESTARTS = 50
MOST_FAILED_STARTS = 3
"""Maximum number of attempts to start the scheduler, which may be killed while it starts."""
KEY_FILES = ("key.pem", "cert.pem")


class LocalMachines:
    """Processes of a cluster on this machine: a scheduler, and `count` dask workers that simulate machines.

    `address` is the scheduler's address, and `security` has the keys for connections to it. The constructor starts the
    processes. It raises KitError if the key cannot be made or if the scheduler does not start.
    """

    def __init__(self, count: int, scratch: Path) -> None:
        self.count, self.place = count, scratch / "cluster"
        self.place.mkdir(mode=0o700)
        self.security = self._own_key()
        self.restarts = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self.tend()

    def tend(self) -> None:
        """Start all processes that are not running. Raises KitError if they keep dying."""
        if not self._runs("scheduler"):
            address_file = self.place / "address"
            address_file.unlink(missing_ok=True)
            port = self.address.rpartition(":")[2] or "0"
            for left in reversed(range(MOST_FAILED_STARTS)):
                self._start("scheduler", "scheduler", port, str(address_file))
                if address := self._awaited(address_file, may_end=left > 0):
                    self.address = address
                    break
        for k in range(self.count):
            name = f"machine-{k + 1}"
            if not self._runs(name):
                cores = ",".join(map(str, cores_of(k, self.count)))
                self._start(name, "worker", self.address, name, cores)

    def connect(self) -> Client:
        """Return a client of the scheduler. Start the scheduler again if it died. Raises UsageError or KitError."""
        for _ in range(MOST_FAILED_STARTS - 1):
            with contextlib.suppress(UsageError):
                return connect(self.address, self.security)
            self.tend()
        return connect(self.address, self.security)

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        ends_s = time.monotonic() + END_WITHIN_S
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends_s - time.monotonic()))
            process.kill()
            process.wait()

    def _runs(self, name: str) -> bool:
        return name in self.processes and self.processes[name].poll() is None

    def _start(self, name: str, *arguments: str) -> None:
        if name in self.processes:
            self.restarts += 1
            if self.restarts > MOST_RESTARTS:
                raise KitError(f"{name} of the local cluster ended again and again: {self._said(name)}")
        with (self.place / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "grader.staff.cluster.local",
                    str(os.getpid()),
                    str(self.place),
                    *arguments,
                ],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _awaited(self, address_file: Path, *, may_end: bool) -> str:
        """Wait until the scheduler has written its address into `address_file`, and return the address.

        If the scheduler ends before, return "" if `may_end`, else raise KitError. Also raises KitError if the address
        is missing after START_WITHIN_S seconds.
        """
        ends_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < ends_s and self._runs("scheduler"):
            if address_file.exists():
                return address_file.read_text()
            time.sleep(0.05)
        if may_end and not self._runs("scheduler"):
            return ""
        how = f"is not there after {START_WITHIN_S:g} s" if self._runs("scheduler") else "does not start"
        raise KitError(f"the scheduler of the local cluster {how}: {self._said('scheduler')}")

    def _said(self, name: str) -> str:
        lines = (self.place / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it printed no message"

    def _own_key(self) -> Any:
        """Make a TLS key by openssl and return the settings for it. Raises KitError if that fails."""
        if shutil.which("openssl") is None:
            raise KitError("--cluster local:N needs openssl to make its TLS key: 'apt install openssl'")
        key, certificate = (self.place / name for name in KEY_FILES)
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=gpt149"
        )
        made_files = ["-keyout", str(key), "-out", str(certificate)]
        made = subprocess.run([*command.split(), *made_files], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            said = (made.stderr.strip().splitlines() or ["it printed no message"])[-1][:200]
            raise KitError(f"--cluster local:N: openssl cannot make a TLS key: {said}")
        return security_of(self.place)


def security_of(folder: Path) -> Any:
    """Return the TLS settings of a local cluster, whose processes all use the key and certificate in `folder`."""
    from distributed.security import Security

    key, certificate = (str(folder / name) for name in KEY_FILES)
    roles = {f"tls_{role}_{what}": path for role in ("client", "scheduler", "worker")
             for what, path in (("key", key), ("cert", certificate))}  # fmt: skip
    return Security(tls_ca_file=certificate, require_encryption=True, **roles)


def cores_of(k: int, count: int) -> list[int]:
    """Return the cores of simulated machine `k` of `count`: a share of this machine's cores, or one shared core."""
    cores = machine.usable_cpus() or list(range(os.cpu_count() or 1))
    return cores[k::count] or [cores[k % len(cores)]]


# ---- code that runs in the processes of a local cluster


async def scheduler(security: Any, port: str, address_file: str) -> None:
    from distributed import Scheduler

    async with Scheduler(
        protocol="tls", host="127.0.0.1", port=int(port), security=security, dashboard_address="127.0.0.1:0"
    ) as found:
        partial = Path(address_file + ".partial")
        partial.write_text(found.address)
        partial.rename(address_file)
        await found.finished()


async def worker(security: Any, address: str, name: str, cores: Sequence[int]) -> None:
    from distributed import Worker

    async with Worker(
        address,
        name=name,
        nthreads=len(cores) + 1,
        # Each worker offers dask one GPU, although they all share the same one. The locks of `Slot` let them use it in
        # turn.
        resources={"cores": len(cores), "machine": 1, "card": 1},
        security=security,
        dashboard=False,
        host="127.0.0.1",
    ) as found:
        await found.finished()


def main(arguments: Sequence[str]) -> None:
    import asyncio

    parent, keys, what, *rest = arguments
    procfs.end_with_parent(signal.SIGTERM)
    if os.getppid() != int(parent):
        return  # The judge died before `end_with_parent` was called, so no signal will come.
    security = security_of(Path(keys))
    if what == "scheduler":
        asyncio.run(scheduler(security, *rest))
        return
    cores = [int(core) for core in rest[2].split(",")]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    asyncio.run(worker(security, rest[0], rest[1], cores))


if __name__ == "__main__":
    main(sys.argv[1:])
