"""The zygote: the process from which runners with torch are forked. It has imported torch and holds no student code.

Theory of operation. The judge starts this file as a script, isolated from the user's environment and, in a sandbox,
from the user's files. It imports torch once and then serves requests over a socket. `spawn` forks a runner, which gets
its pipe ends and a new folder, limits and locks itself, and only then loads the student's object. `reap` waits for a
runner, kills processes that it left behind and removes its folder. When the judge ends, zygote and runners end.

Text on a runner's descriptors 1 and 2 counts as its kernel's output. Messages of Python and torch (warnings, logged
errors) do not: `sys.stderr` has another descriptor, which leads to /dev/null in a runner.

Each message is one JSON object. This file imports nothing of the kit: it gets the paths of the files that it needs.
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
from types import ModuleType
from typing import Any

#: Modules that torch imports on first use. The zygote imports them, because a locked runner cannot open their files.
LATE_MODULES = ("torch.autograd.profiler", "torch.profiler", "torch.profiler._cupti_monitor")
#: A module for tensors without memory. Compilers need it, runners do not, and importing it takes
#: a fifth of torch's time.
UNUSED_MODULE = "torch._meta_registrations"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP_WITHIN_S = 10.0
MOST_FDS = 4
"""Most descriptors in a request: a runner's three pipe ends, and the judge's device memory."""
MOST_AT_ONCE, LISTING_BYTES = 10_000, 64 << 10
"""Limits on the processes or threads that are read at once, and on the bytes read of a list of them."""


def serve(control: socket.socket, files: dict[str, Any], modules: list[str], folder: str) -> None:
    """Serve the requests `spawn` and `reap` until the judge closes `control`; then end all runners and exit."""
    # The zygote gets no signal when the judge dies. Instead, reading `control` ends, and the zygote can clean up.
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # saves a tenth of the import's time
    torch_version, removal, own = import_torch(modules), files["removal"], files["devicerunner"]
    for file in files.values():
        # These modules use one another through global variables with the modules' names, which are None until now.
        vars(file).update({name: other for name, other in files.items() if name in vars(file)})
    if "triton" in modules:
        (own.prepare_interpreter if os.environ.get("TRITON_INTERPRET") else own.prepare)()
    elif modules:  # for a CUDA file without Triton
        own.trace = own.tracing.Trace()
    # The kit or Python may be mounted below a folder that is emptied after each runner: keep these mounts.
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
        removal.remove(folder)  # a judge that was killed did not remove it
    os._exit(0)  # a normal exit of a process with torch takes long


class Unused(ModuleType):
    """Stand-in for a module. The module is imported if something uses one of its names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_torch(modules: list[str]) -> str:
    """Import these modules, and all modules of torch that a runner uses. Return torch's version."""
    if "numpy" not in modules:
        sys.modules["numpy"] = None  # type: ignore[assignment]  # so torch imports no NumPy: runners do not need it
    if not modules:  # Python files may use all of torch.
        sys.modules[UNUSED_MODULE] = Unused(UNUSED_MODULE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

        for name in LATE_MODULES:
            with contextlib.suppress(ImportError):  # some versions of torch lack some of them
                importlib.import_module(name)
        for name in modules:
            importlib.import_module(name)
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            # torch counts GPUs once and keeps the number: let it count here. In a runner with limited memory, CUDA
            # would fail and print an error.
            getattr(torch._C, "_cuda_getDeviceCount", int)()
    return torch.__version__


def next_request(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive a message of the judge. Return (request, or None if the judge has ended; descriptors sent with it)."""
    message, fds, _, _ = socket.recv_fds(control, 1 << 20, MOST_FDS)
    while message and not message.endswith(b"\n"):
        more = control.recv(1 << 20)
        message = message + more if more else b""
    return (json.loads(message) if message else None), fds


def answer(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def spawn(control: socket.socket, request: dict[str, Any], files: dict[str, Any], fds: list[int]) -> None:
    """Fork a runner with a new working folder. Send the judge the runner's process id, or an error."""
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
            # The runner itself sends this message: Linux adds the sender's process id, as seen outside of the
            # namespace.
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
    files: dict[str, Any],
    request_fd: int,
    reply_fd: int,
    output_fd: int,
    shared_fd: int | None = None,
) -> None:
    """Set up a forked runner, lock it and serve its requests. Never returns."""
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
    # Set the number of threads twice: torch and the student's object may have different OpenMP runtimes.
    os.environ["OMP_NUM_THREADS"] = str(spec["threads"])
    os.environ.update(spec["environment"])
    import torch

    torch.set_num_threads(spec["threads"])
    if spec["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec["cpus"])
    runner, lock, of_gpu = files["runner"], files["lock"], files["devicerunner"]
    is_on_gpu = spec["kind"].partition("-")[0] in of_gpu.KINDS
    if not is_on_gpu:
        # Close files that torch has opened (CUDA's devices, say): they would count towards the limit on open files.
        close_all_but({0, 1, 2, sys.stderr.fileno(), request_fd, reply_fd})
    else:
        roots = [path for path in sys.path if os.path.isdir(path)]
        of_gpu.settle(spec["scratch"], roots, is_locked=spec["lock"] is not None)
    delays = runner.Delays()
    lock.limit(spec["limits"], lock.mapped_bytes())
    if spec["lock"] is not None:
        # From here on, imported modules and open files stay usable, but nothing else. Then the object is loaded.
        lock.enter(spec["lock"])
    given = (spec["kind"], spec["object"], *([shared_fd] if is_on_gpu else []))
    load = of_gpu.load if is_on_gpu else runner.load
    runner.run(lambda: load(*given), request_fd, reply_fd, delays)
    os._exit(0)


def close_all_but(kept: set[int]) -> None:
    """Close all descriptors of this process except those in `kept`."""
    below = 0
    for fd in [*sorted(kept), os.sysconf("SC_OPEN_MAX")]:
        if below < fd:  # some versions of Python close all descriptors for an empty range
            os.closerange(below, fd)
        below = fd + 1


def set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def sweep(living: list[int]) -> None:
    """Kill the processes that a dead runner left behind: all children of the zygote except the runners `living`.

    All are stopped before any is killed, so that they cannot start new processes meanwhile.
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
    """Return these processes and their descendants, at most about MOST_AT_ONCE. `sweep` repeats this for the rest."""
    found = list(pids)
    for pid in found:  # `found` grows during the loop
        if len(found) >= MOST_AT_ONCE:
            break
        found += children(pid)
    return found


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process; if there are very many, only the first ones."""
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in itertools.islice(tasks, MOST_AT_ONCE):
            with contextlib.suppress(OSError), open(f"{task.path}/children", "rb") as listing:
                # The list may be cut within a number: use it up to the last blank.
                found += map(int, listing.read(LISTING_BYTES).rpartition(b" ")[0].split())
            if len(found) >= MOST_AT_ONCE:
                break
    return found


def load_file(path: str) -> Any:
    """Load a file of the kit as a module. It cannot be imported by name, because the sandbox lacks its package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Run the command line `forkserver.py SOCKET FILE ... MODULES FOLDER`.

    SOCKET is the descriptor of the judge's socket, FILE ... are the kit's files that runners use. MODULES, separated by
    commas, are imported besides torch. FOLDER holds the runners' folders and is removed at the end. It is "" if their
    file system ends with the zygote's namespace.
    """
    # Replace stderr before any import: handlers of logging keep the stream that they find.
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    sys.__stderr__ = sys.stderr  # type: ignore[misc]  # typeshed calls it final; handlers keep it
    _, control, *paths, modules, folder = sys.argv
    serve(
        socket.socket(fileno=int(control)),
        {Path(path).stem: load_file(path) for path in paths},
        [name for name in modules.split(",") if name],
        folder,
    )


if __name__ == "__main__":
    main()
