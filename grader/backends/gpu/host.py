"""Host of GPU runners: it starts them on the machine's GPU, or with Triton's interpreter on a machine without one.

Triton compiles kernels when they are called. On a GPU this happens before judging, in runners with the permissions of a
compiler ("builders"). They call each part once in every shape that is judged or timed, and leave a cache of compiled
kernels. Then the judge makes the cache read-only. Judged runners load kernels from it and start no programs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grader.assignment.expressions import evaluate_int
from grader.assignment.records import Assignment, Part
from grader.backends import binding
from grader.backends.gpu import devicebuild, devicecall
from grader.backends.gpu.card.finding import INTERPRETED, architecture, card
from grader.backends.gpu.compiled import Caches
from grader.backends.gpu.devicecall import properties
from grader.backends.gpu.kernelreference import KernelReference
from grader.backends.native.compilers import digest
from grader.backends.native.toolchain import cache_root
from grader.backends.records import Build
from grader.core import objectcache
from grader.core.errors import KitError
from grader.runner.calls import Request
from grader.runner.session import PipeSession
from grader.sandbox import GIB, Limits, Sandbox

if TYPE_CHECKING:
    from grader.backends.gpu.card.arena import Card

#: Modules that the zygote (the process from which runners are forked) imports. torch._dynamo is needed by backward
#: passes that are recorded, and by operators that a student's file defines. In a runner, the import would take seconds,
#: or fail because files are hidden.
MODULES = ("numpy", "triton", "triton.language", "torch._dynamo")
COMPILE_TIMEOUT_S, MOST_BUILDERS = 120.0, 8
PLAYER_CPU, PLAYER_WALL = 4, 32
"""Limits on the CPU and the wall time of a replayed call in the interpreter, in multiples of `call_s`: twice and four
times the call's own limits. A replay does not wait, so an honest one stays below them on a busy machine, too."""
PLAYER_TOTAL = 10
"""Limit on the CPU time of all replays of a part, in multiples of `call_s`."""
PLAYER_BYTES = 2 << 30
"""Memory that a player (a runner that replays calls) needs beyond a student's runner, because it keeps all tensors."""
#: Limit on open files, high because CUDA keeps many descriptors open.
OPEN_FILES = 1024
ON_CARD = {"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Environment variables of runners on a GPU. Without expandable segments, a call ran out of memory with 16 GiB free."""
PROBE = "def probe(x, y):\n    y.copy_(x)\n"
#: Environment variables by which a process finds CUDA's driver outside of the system's folders.
INHERITED = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")


#: Errors of CUDA if the GPU's memory is full, perhaps because of other processes.
NO_ROOM = re.compile(r"out of memory|_ALLOC_FAILED", re.IGNORECASE)


def gpu_bytes(assignment: Assignment) -> int:
    """Return the bytes of GPU memory that a kernel may take, except in timed calls."""
    return int(assignment.limits.memory_gib * GIB)


def player_bytes(assignment: Assignment) -> int:
    """Return the bytes that a replay may take: of GPU memory, or (with Triton's interpreter) of process memory."""
    return gpu_bytes(assignment) + PLAYER_BYTES


class Parent(Protocol):
    """The judge's end of a zygote, a process that forks runners (`grader.backends.torch.zygote.Zygote`)."""

    @property
    def caches(self) -> Caches: ...

    @property
    def blind(self) -> bool: ...

    @property
    def spawn(self) -> Callable[..., PipeSession]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """The zygote, from which GPU runners of one sandbox are forked, and the judge's context on the GPU (`card`).

    `interprets`: True if runners use Triton's interpreter. Then `card` is None.
    """

    zygote: Parent
    card: Card | None
    interprets: bool
    compiled: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """Caches of compiled kernels of the kit's own files, by path, part and sizes."""

    def kind(self, language: str) -> str:
        return f"{language}-cpu" if self.interprets else language


_places: dict[Sandbox, Place] = {}


def place(sandbox: Sandbox, start: Callable[..., Parent]) -> Place:
    """Return the Place of a sandbox. Cached for the life of this process, because importing Triton takes seconds.

    `start` makes the zygote (`torch.zygote.Zygote`). Raises KitError if runners in this sandbox cannot use the GPU.
    """
    if sandbox not in _places:
        found = card()
        interprets = found is None
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment |= {INTERPRETED: "1"} if interprets else ON_CARD
        modules = MODULES if devicebuild.has_triton() else MODULES[:1]
        zygote = start(environment, sandbox, modules=modules, card=not interprets)
        made = Place(zygote, found, interprets)
        if not interprets:
            _try(made, sandbox)
        atexit.register(zygote.close)
        _places[sandbox] = made
    return _places[sandbox]


def _try(made: Place, sandbox: Sandbox) -> None:
    """Raise KitError unless a runner with a file of the kit can use the GPU in this sandbox."""
    from grader.core.arrays import np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.py")
        path.write_text(PROBE)
        x = np.ones(64, np.float32)
        more = {"names": ["x", "y"], "outputs": ["y"]}
        request = Request("probe", [{"input": 0}, {"input": 1}], [x, 0 * x], echo=True, more=more)
        with made.zygote.spawn(
            "triton", path, threads=1, limits=_limits(made, None), is_kits=True
        ) as session:
            call = session.call(request)
            if call.status == "ok" and bool((call.echoes[1] == x).all()):
                return
            said = (call.message or session.printed or call.signal_name).strip()[-300:]
    made.zygote.close()
    raise KitError(
        f"runners in sandbox tier {sandbox.tier} cannot use the GPU: {said}. If you trust the code, judge it with "
        "--tier D --trust (docs/gpu.md)"
    )


def _limits(found: Place, memory_bytes: int | None) -> Limits:
    # Address space has no limit with a GPU: CUDA reserves hundreds of gigabytes of it.
    return Limits(memory_bytes=memory_bytes if found.interprets else None, open_files=OPEN_FILES)


class DeviceHost(contextlib.AbstractContextManager["DeviceHost"]):
    """Starter of GPU runners for one submission. `builds` are the builds of its files, by language."""

    def __init__(
        self,
        assignment: Assignment,
        builds: Mapping[str, Build],
        parts: Iterable[Part],
        shape: Mapping[str, int],
        sandbox: Sandbox,
        start: Callable[..., Parent],
        timed: Collection[str],
    ) -> None:
        """Prepare to start runners. `start` makes the zygote (`torch.zygote.Zygote`); `timed`: ids of timed parts."""
        self.timed = timed
        self.assignment, self.builds, self.shape = assignment, dict(builds), dict(shape)
        self.sandbox, self.start = sandbox, start
        self.parts = [part for part in parts if part.device is not None]
        self.peaks: dict[str, tuple[int, int]] = {}
        """GPU memory in bytes that the runners of student and reference took in a timed part, by the part's id."""

    @property
    def card(self) -> Card | None:
        """The judge's context on the GPU; None without a GPU."""
        return card()

    @functools.cached_property
    def place(self) -> Place:
        """The Place of the sandbox. Raises KitError if the sandbox's runners cannot use the GPU."""
        return place(self.sandbox, self.start)

    @functools.cached_property
    def cache(self) -> str:
        """Name of the folder with the compiled kernels of the student's file; "" if nothing is compiled.

        The first use compiles them.
        """
        made = self.builds.get("triton")
        if made is None or not made.ok or self.place.interprets:
            return ""
        assert made.object_path is not None
        parts = [part for part in self.parts if properties(part).language == "triton"]
        jobs = [job for part in parts for job in self.jobs_of(part)]
        return self._compiled(made.object_path, jobs, is_kits=False)[0]

    def close(self) -> None:
        if self.__dict__.get("cache"):
            self.place.zygote.caches.drop(self.cache)

    def __exit__(self, *_: object) -> None:
        self.close()

    def build_of(self, part: Part) -> Build:
        return self.builds[properties(part).language]

    # ---- runners

    def student(self, part: Part, *, memory_bytes: int | None, **how: Any) -> PipeSession:
        """Start a runner with the student's file for this part. `how` are keywords of `Zygote.spawn`."""
        path = self.build_of(part).object_path
        assert path is not None
        found = self.place
        return found.zygote.spawn(
            found.kind(properties(part).language),
            path,
            limits=_limits(found, memory_bytes),
            cache=self.cache,
            **how,
        )

    @contextlib.contextmanager
    def player(self, part: Part, *, call_s: float) -> Iterator[PipeSession]:
        """Yield a runner that replays traces (recorded operators and kernel launches) with the part's kernels.

        In the interpreter, the limits of this runner are multiples of `call_s`. On a GPU it has a compiler's limits,
        because it compiles the kernels itself: kernels that were compiled beside student code are not trusted.
        """
        path, found = self.build_of(part).object_path, self.place
        assert path is not None
        limits = _limits(found, player_bytes(self.assignment))
        how: dict[str, Any] = {"threads": 1, "limits": limits, "freeze": False}
        if found.interprets:
            # A replay writes no files.
            how |= {"limits": replace(limits, file_bytes=0), "call_timeout_s": PLAYER_WALL * call_s}
            with found.zygote.spawn("replay-cpu", path, **how) as session:
                session.call_cpu_s = PLAYER_CPU * call_s
                yield session
            return
        cache = found.zygote.caches.new()
        try:
            how |= {"builds": True, "cache": cache, "call_timeout_s": 2 * COMPILE_TIMEOUT_S}
            with found.zygote.spawn("replay", path, **how) as session:
                session.call_cpu_s = COMPILE_TIMEOUT_S
                yield session
        finally:
            found.zygote.caches.drop(cache)

    def reference_file(self, part: Part) -> Path | None:
        """Return the reference's file; None if this kit has none. Raises KitError if it does not compile."""
        kernels = self.assignment.lab.reference()
        language = properties(part).language
        source = kernels.source(language) if isinstance(kernels, KernelReference) else None
        if source is None or language == "triton":
            return source
        made = devicebuild.cuda(source, architecture())
        if not made.ok:
            raise KitError(f"the reference {source} does not compile: {made.diagnostics.splitlines()[0]}")
        return made.object_path

    def reference(self, part: Part, path: Path, **how: Any) -> PipeSession:
        """Start a runner with the reference's kernels at `path`. Raises KitError if they cannot be loaded."""
        found, language = self.place, properties(part).language
        key = (path, part.id, *sorted(self.shape.items()))
        if language == "triton" and not found.interprets and key not in found.compiled:
            job = warming(part, {**self.shape, "layout": 0}, is_reference=True)
            form = properties(part).autograd
            jobs = [job, {**job, "as_autograd": True}] if form else [job]
            found.compiled[key] = self._compiled_once(path, jobs)
        session = found.zygote.spawn(
            found.kind(language),
            path,
            limits=_limits(found, None),
            cache=found.compiled.get(key, ""),
            is_kits=True,
            **how,
        )
        if session.death is not None or session.load_error is not None:
            raise KitError(f"the reference {path} cannot be loaded: {session.load_error or session.death}")
        return session

    # ---- compiling

    def _compiled_once(self, path: Path, jobs: Sequence[Mapping[str, Any]]) -> str:
        """Return the name of a folder with the compiled kernels of a file of the kit, copied from or to the cache."""
        root, caches = cache_root(), self.place.zygote.caches
        versions = [sys.version, *(metadata.version(name) for name in ("torch", "triton")), architecture()]
        key = digest(path.read_bytes(), repr([*versions, *jobs]).encode())
        entry = root / "objects" / f"{key}.kernels"
        if objectcache.touch(entry):
            return caches.take(entry)
        name, is_whole = self._compiled(path, jobs, is_kits=True)
        if is_whole:
            with objectcache.workplace(root) as place:
                caches.keep(name, place / "made")
                objectcache.publish(place / "made", entry)
        return name

    def _compiled(self, path: Path, jobs: Sequence[Mapping[str, Any]], *, is_kits: bool) -> tuple[str, bool]:
        """Compile the kernels of a Python file by making the calls `jobs`, in several builders at once.

        `is_kits`: True for a file of the kit. Return (name of the folder with the kernels, True if every call
        succeeded, at once or when repeated). Results of the calls are not checked here.
        """
        zygote = self.place.zygote
        # When a whole class is judged, OMP_NUM_THREADS is this judge's share of the cores.
        cores = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 2)
        workers = max(1, min(len(jobs), MOST_BUILDERS, cores // 2))
        caches = [zygote.caches.new() for _ in range(workers)]
        how: dict[str, Any] = {
            "threads": 1,
            "limits": _limits(self.place, None),
            "builds": True,
            "is_kits": is_kits,
            "freeze": False,
            "call_timeout_s": COMPILE_TIMEOUT_S,
        }
        # Start the builders one by one, because a zygote serves one request at a time. Their calls run in parallel.
        sessions = [zygote.spawn("triton", path, cache=cache, **how) for cache in caches]
        with ThreadPoolExecutor(workers) as pool:
            # Compiling may take long, but running the compiled kernels may take only the time limit of a call.
            limit_s = self.assignment.limits.call_s
            shares = [jobs[k::workers] for k in range(workers)]
            missed = [*pool.map(lambda session, own: _call_all(session, own, limit_s), sessions, shares)]
        for session in sessions:
            session.close()
        # Repeat calls that failed. Each call that crashed its builder, or was not made because of the crash, gets a new
        # builder. Calls that raised may have lacked memory beside other builders: one new builder repeats all of them.
        raised = [job for _, jobs_raised in missed for job in jobs_raised]
        is_whole = all(session.load_error is None for session in sessions)
        for again in [*([job] for ended, _ in missed for job in ended), *([raised] if raised else [])]:
            caches.append(zygote.caches.new())
            with zygote.spawn("triton", path, cache=caches[-1], **how) as session:
                is_whole &= _call_all(session, again, limit_s) == ([], []) and session.load_error is None
        for cache in caches:
            zygote.caches.seal(cache)
        for cache in caches[1:]:
            zygote.caches.merge(caches[0], cache)
        return caches[0], is_whole

    def jobs_of(self, part: Part) -> list[dict[str, Any]]:
        """Return requests for calls ("jobs") with all shapes of a part's judged and timed calls, to compile kernels."""
        shapes = [{**self.shape, **case.shape} for case in part.cases]
        jobs = [warming(part, shape, is_reference=False) for shape in shapes]
        if part.id in self.timed:
            timed = warming(part, {**self.shape, "layout": 0}, is_reference=False)
            jobs.append({**timed, "tunes": True})
        return [{**job, "most_bytes": gpu_bytes(self.assignment)} for job in jobs]


Jobs = list[Mapping[str, Any]]


def _call_all(session: PipeSession, jobs: Sequence[Mapping[str, Any]], settle_s: float) -> tuple[Jobs, Jobs]:
    """Make the calls `jobs`. Return (calls without a result because the builder ended, calls that raised).

    After each call, wait at most `settle_s` seconds until the GPU is idle.
    """
    raised: Jobs = []
    for number, job in enumerate(jobs):
        if session.load_error is not None:
            break
        ended = session.command(dict(job))
        settled = session.command({"op": "settle", "inputs": []}, timeout_s=settle_s)
        if session.death is not None:
            return [*jobs[number:]], raised
        if "exception" in (ended.status, settled.status):
            raised.append(job)
    return [], raised


def warming(part: Part, shape: Mapping[str, int], *, is_reference: bool) -> dict[str, Any]:
    """Return the request for a call on random numbers, which compiles kernels.

    `is_reference`: True to call the reference's function.
    """
    request = devicecall.device_call(part, shape)
    tensors = {
        name: [
            [evaluate_int(dim, shape) for dim in binding.dims_of(part, name)],
            devicecall.dtype_of(part, name, shape),
            *properties(part).ranges.get(name, (-1.0, 1.0)),
        ]
        for name in request["names"]
    }
    function = part.reference if is_reference and part.reference else part.function
    layout = shape.get("layout", 0)
    layouts = {name: layout for name in tensors if layout and name not in part.outputs}
    return {
        "op": "warm",
        "inputs": [],
        **request,
        "function": function,
        "tensors": tensors,
        "layouts": layouts,
    }
