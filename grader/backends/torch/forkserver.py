"""The process that runners are forked from: Python with torch imported, no student code and no secret.

Theory of operation. The judge starts this file as a script, isolated from the user's environment and, in a sandbox,
from the user's files. It imports torch once and then serves requests over a socket. `spawn` forks a runner, which gets
its pipe ends and a fresh folder, limits and locks itself, and only then loads the student's object. `reap` waits for a
runner, kills its leftovers and removes its folder. When the judge ends, all of them end.

Text on a runner's descriptors 1 and 2 counts as its kernel's output. Messages of Python and torch (warnings, logged
errors) do not: `sys.stderr` has its own descriptor, which is discarded in a runner.

Each message is one JSON object. Imports nothing of the kit: the files that it needs are named at its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import itertools
import json
import os
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

#: Modules that torch imports on first use. By then a runner may no longer have access to their files.
LATE_MODULES = ("torch.autograd.profiler", "torch.profiler", "torch.profiler._cupti_monitor")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP_WITHIN_S = 10.0
MOST_FDS = 4
"""A runner's pipe ends, and the judge's device memory if there is any."""
MOST_AT_ONCE, LISTING_BYTES = 10_000, 64 << 10
"""Processes or threads that are looked at before the next ones are; bytes of a list of them."""


class Files(NamedTuple):
    """The kit's files that are used here, as modules, in the order in which they are named at the start."""

    runner: Any
    loaded: Any
    delays: Any
    lock: Any
    removal: Any
    filebundle: Any
    devicerunner: Any
    kernelfiles: Any
    tensormemory: Any
    tracing: Any
    replay: Any
    torchwork: Any
    cardlike: Any
    userspace: Any


def serve(control: socket.socket, files: Files, modules: list[str], folder: str) -> None:
    """Fork a runner for each `spawn`, reap and sweep up for each `reap`; when the judge ends, end all of them."""
    # No death signal for the zygote itself: when the judge is killed it reads the end of `control`, and still sweeps.
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # A tenth of the import, and a collection in a fork would copy every page.
    torch_version, removal = import_torch(modules), files.removal
    own = files.devicerunner
    own.kernelfiles, own.tensormemory = files.kernelfiles, files.tensormemory
    own.tracing, own.replay, own.torchwork = files.tracing, files.replay, files.torchwork
    own.cardlike = files.cardlike
    own.kernelfiles.filebundle = own.replay.filebundle = files.filebundle
    if "triton" in modules:
        (own.prepare_interpreter if os.environ.get("TRITON_INTERPRET") else own.prepare)()
    elif modules:  # CUDA alone
        own.trace = files.tracing.Trace()
    # Bubblewrap may have put the kit or Python itself below a folder that is emptied after each runner.
    mounted = removal.mount_points()
    gc.freeze()
    gc.enable()

    answer(control, {"ready": torch_version, "blind": own.blind})
    while True:
        request, fds = next_request(control)
        if request is None:
            break
        if request["op"] == "spawn":
            spawn(control, request, files, fds)
        else:
            _, status = os.waitpid(request["pid"], 0)
            sweep(request["living"])
            removal.remove(request["scratch"])
            for shared in request["shared"]:
                removal.empty(shared, [*request["kept"], *mounted])
            answer(control, {"status": status})
    sweep([])
    if folder:
        removal.remove(folder)  # a judge that was killed could not
    os._exit(0)  # tearing torch down takes longer than many a run


def import_torch(modules: list[str]) -> str:
    """Import all that a runner uses of torch, now, and these modules; returns torch's version."""
    if "numpy" not in modules:
        sys.modules["numpy"] = None  # type: ignore[assignment]  # No runner needs it, and torch does without.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

        for name in LATE_MODULES:
            with contextlib.suppress(ImportError):  # not every torch has them all
                importlib.import_module(name)
        for name in modules:
            importlib.import_module(name)
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            # torch counts GPUs once. In a runner, whose memory is limited, CUDA would fail and write to its output.
            getattr(torch._C, "_cuda_getDeviceCount", int)()
    return torch.__version__


def next_request(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one request of the judge's with its pipe ends; None when the judge is gone."""
    message, fds, _, _ = socket.recv_fds(control, 1 << 20, MOST_FDS)
    while message and not message.endswith(b"\n"):
        more = control.recv(1 << 20)
        message = message + more if more else b""
    return (json.loads(message) if message else None), fds


def answer(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def spawn(control: socket.socket, request: dict[str, Any], files: Files, fds: list[int]) -> None:
    """Fork a runner with a fresh folder to work in."""
    try:
        os.mkdir(request["scratch"], 0o700)
        if request["uid"] is not None:
            os.chown(request["scratch"], request["uid"], request["uid"])
        pid = os.fork()
    except OSError as error:
        answer(control, {"error": str(error)})
        pid = -1
    if pid == 0:
        try:
            # The kernel reports the sender's id: in a process namespace the two know this process by different numbers.
            answer(control, {"pid": os.getpid()})
            control.close()
            become_runner(request, files, *fds)
        except BaseException as error:
            message = f"the runner ended by an error of its own: {type(error).__name__}: {error}\n"
            os.write(2, message.encode())
        finally:
            os._exit(70)
    for fd in fds:
        os.close(fd)


def become_runner(
    spec: dict[str, Any],
    files: Files,
    request_fd: int,
    reply_fd: int,
    output_fd: int,
    shared_fd: int | None = None,
) -> None:
    """Set up the runner between the fork and its first request. Never returns."""
    os.setsid()
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.dup2(null, sys.stderr.fileno())
    os.chdir(spec["scratch"])
    # Both spellings: torch and the student's object may share one OpenMP runtime or have one each.
    os.environ["OMP_NUM_THREADS"] = str(spec["threads"])
    os.environ.update(spec["environment"])
    import torch

    torch.set_num_threads(spec["threads"])
    if spec["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec["cpus"])
    own = files.devicerunner if spec["kind"].partition("-")[0] in files.devicerunner.KINDS else None
    if own is None:
        # Close files that torch has opened, such as CUDA's devices: kernels do not need them, and they count against a
        # limit.
        close_all_but({0, 1, 2, sys.stderr.fileno(), request_fd, reply_fd})
    else:
        roots = [path for path in sys.path if os.path.isdir(path)]
        files.userspace.settle(spec["scratch"], roots, is_locked=spec["lock"] is not None)
    delays = files.delays.Delays()
    files.lock.limit(spec["limits"])
    if spec["lock"] is not None:
        # Everything imported and opened so far stays. The student's object is loaded after this.
        files.lock.enter(spec["lock"])
    files.runner.run(files.loaded, spec["kind"], spec["object"], request_fd, reply_fd, delays, own, shared_fd)
    os._exit(0)


def close_all_but(kept: set[int]) -> None:
    """Close all other descriptors of this process."""
    below = 0
    for fd in [*sorted(kept), os.sysconf("SC_OPEN_MAX")]:
        if below < fd:  # some versions of Python close everything for an empty range
            os.closerange(below, fd)
        below = fd + 1


def set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def sweep(living: list[int]) -> None:
    """Kill a dead runner's leftovers: its orphans are now the zygote's children (subreaper).

    They are stopped before they are killed, so that they start no others meanwhile.
    """
    deadline = time.monotonic() + SWEEP_WITHIN_S
    while strays := [pid for pid in children(os.getpid()) if pid not in living]:
        if time.monotonic() > deadline:
            return
        family = descendants(strays)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        for pid in strays:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def descendants(pids: list[int]) -> list[int]:
    """Return these processes and their descendants, at most MOST_AT_ONCE: `sweep` repeats the call for the rest."""
    found = list(pids)
    for pid in found:  # `found` grows during the loop
        if len(found) >= MOST_AT_ONCE:
            break
        found += children(pid)
    return found


def children(pid: int) -> list[int]:
    """Return the children of all of a process's threads; if there are very many, the first ones."""
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in itertools.islice(tasks, MOST_AT_ONCE):
            with contextlib.suppress(OSError), open(f"{task.path}/children", "rb") as listing:
                # The text before the last blank consists of whole numbers.
                found += map(int, listing.read(LISTING_BYTES).rpartition(b" ")[0].split())
            if len(found) >= MOST_AT_ONCE:
                break
    return found


def load_file(path: str) -> Any:
    """Load one of the kit's files. A sandbox contains no package of them."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run the command line `forkserver.py SOCKET FILE ... MODULES FOLDER`.

    SOCKET is the judge's socket as a number, FILE the path of one of `Files`. MODULES, separated by commas, are
    imported besides torch. FOLDER is the folder of the runners, "" if it ends with its namespace.
    """
    # Replace stderr first: handlers of logging keep the stream that they find.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    sys.__stderr__ = sys.stderr  # type: ignore[misc]  # typeshed calls it final; handlers keep it
    _, control, *paths, modules, folder = sys.argv
    serve(
        socket.socket(fileno=int(control)),
        Files(*map(load_file, paths)),
        [name for name in modules.split(",") if name],
        folder,
    )


if __name__ == "__main__":
    main()
