"""The runner of a GPU assignment: it loads a Python file with Triton kernels, or a CUDA library.

A loaded file (`Kernels`) has the attribute `functions`, which `runner.runner` expects, and these operations:

    call     make one call; its tensors arrive and return as bytes
    offers   check that the file has a function of this name
    warm     call the function once on random numbers, so that its kernels are compiled; do not wait for the GPU
    settle   wait until the GPU is idle
    attach   map GPU memory of the judge that holds sets of inputs and outputs (`card.arena`)
    go       call the function once for each set, and reply without tensors when the GPU has finished

For `call`, tensors are put on the GPU if there is one, else on the CPU for Triton's interpreter. The request chooses
their strides. Returned values are copied into the outputs. A call's operators and kernel launches are recorded as its
"trace", so that another runner can repeat ("replay") them on other inputs. Runners are forked from the "zygote", which
has imported torch. This file runs beside untrusted code, so it imports nothing of the kit and the judge does not trust
it.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import importlib
import io
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

#: Languages of files, and "replay". A runner's kind is one of these, followed by "-cpu" on a machine without a GPU.
KINDS = ("triton", "cuda", "replay")
KIND_VOID = 0
ANSWERED = {"status": "ok", "kind": KIND_VOID, "dtype": 0, "shape": []}
GAP_ELEMENTS = 8
LONGEST_NAME = 56
#: Most threads in which a builder (a runner that compiles kernels, see `gpu.host`) compiles autotuners' configurations.
MOST_COMPILERS = 8
#: Compute capabilities of GPUs, as Triton writes them.
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
#: Other modules of `grader.backends.gpu`. The zygote (`torch.forkserver`) loads them and sets these variables.
kernelfiles: Any = None
tensormemory: Any = None
tracing: Any = None
replay: Any = None
cardlike: Any = None
#: The `tensormemory.Memory` of Triton's interpreter; None on a GPU, or if this Triton has another interpreter.
memory: Any = None
#: The `tracing.Trace` that records calls. It is made in the zygote.
trace: Any = None
kept: list[Any] = []
"""Objects that replace torch's kernels. They are kept here, because they must live as long as the process."""
tunes_itself = False
"""True if autotuners ignore the builder's choices: in `tuning_anew`, and in timed calls, when the GPU is idle."""
asked: list[tuple[Any, Any]] = []
"""(autotuner, key) for each choice of a configuration so far."""
tuned: dict[str, int] = {}
"""The choices of autotuners in timed calls, by kernel and key. The first timed runner passes them to later runners."""
given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
"""Arguments of the running autotuners' calls, in a builder. The last entry belongs to the innermost call."""
builds = False
"""True in a builder: autotuners compile all configurations in parallel before they measure them."""
blind = False
"""True if kernel launches cannot be observed, because this Triton has an unexpected structure."""


def prepare() -> None:
    """Prepare the zygote on a machine with a GPU.

    A runner must not start programs, so the results of programs that Triton starts are cached here. From here on,
    launches of kernels are traced.
    """
    global trace, blind
    kernelfiles.remember_code()
    trace = tracing.Trace()
    kept.extend(tracing.watch_attention(trace))
    # torch.compile would start compilers. A runner must not start programs, and compiling takes longer than a call may.
    importlib.import_module("torch").compile = cardlike.uncompiled  # type: ignore[attr-defined]
    try:
        tracing.watch_launches(trace)
    except (ImportError, AttributeError):
        blind = True
    # Import by name: Triton may be missing where the kit's types are checked.
    compiler, driver, build = (
        importlib.import_module(f"triton.{name}")
        for name in ("backends.nvidia.compiler", "backends.nvidia.driver", "runtime.build")
    )
    for ask in (
        driver.libcuda_dirs,
        driver.library_dirs,
        getattr(build, "platform_key", driver.libcuda_dirs),
    ):
        with contextlib.suppress(Exception):
            ask()
    for architecture in ARCHITECTURES:
        with contextlib.suppress(Exception):
            compiler.get_ptxas_version(architecture)
    # The first launch in a process imports Gluon and hashes Triton's files. Doing it here saves 0.5 s in each runner.
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("triton.runtime.cache").triton_key()
        importlib.import_module("triton.experimental.gluon.nvidia.hopper")
    with contextlib.suppress(ImportError, AttributeError):  # Triton before 3.3 stores no tuning results
        keep_tuned()


def keep_tuned() -> None:
    """Let the build store the measurements of autotuners beside the compiled kernels.

    Otherwise each runner would measure all configurations, which takes longer than a call may. Raises ImportError or
    AttributeError if this version of Triton cannot store measurements.
    """
    tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    known = tuner.check_disk_cache
    importlib.import_module("triton.knobs").autotuning.cache = True
    run = tuner.run

    def followed(self: Any, *arguments: Any, **named: Any) -> Any:
        if not builds:
            return run(self, *arguments, **named)
        given.append((arguments, named))
        try:
            return run(self, *arguments, **named)
        finally:
            given.pop()

    def check(self: Any, key: Any, configs: Any, bench: Callable[[], None]) -> bool:
        def measure() -> None:
            if builds:
                compile_ahead(self.fn, configs, *given[-1])
            bench()

        asked.append((self, key))
        if not tunes_itself:
            with contextlib.suppress(OSError):  # a runner cannot write new measurements
                return bool(known(self, key, configs, measure))
        name = f"{self.base_fn.__name__} {key}"
        if key not in self.cache and name in tuned and tuned[name] in range(len(self.configs)):
            self.cache[key] = self.configs[tuned[name]]
        elif key not in self.cache:
            measure()
        if self.cache[key] in self.configs:
            tuned[name] = self.configs.index(self.cache[key])
        return False

    tuner.run, tuner.check_disk_cache = followed, check


def compile_ahead(
    kernel: Any, configs: Sequence[Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Compile a kernel in all configurations of its autotuner, in several threads, without launching it.

    An autotuner compiles one configuration after the other while it measures, which takes up to a minute. Errors are
    ignored: the measurement compiles missing kernels again. If a configuration has a hook, which may change the
    arguments, nothing is compiled here.
    """
    if any(config.pre_hook for config in configs):
        return

    def compile_all(mode: Callable[..., Any], pool: ThreadPoolExecutor) -> None:
        with mode(pool, ignore_errors=True):
            for config in configs:
                with contextlib.suppress(Exception):
                    kernel.run(*arguments, **{**named, **config.all_kwargs(), "warmup": True})

    # An exception means that this Triton cannot compile in threads. The mode is set in a copy of the context only.
    with contextlib.suppress(Exception), ThreadPoolExecutor(compilers()) as pool:
        copy_context().run(compile_all, importlib.import_module("triton").AsyncCompileMode, pool)
    # Forget the kernels in memory. Autotuning then reads compiled kernels from the disk, and compiles kernels that
    # failed here again, so that it gets their errors.
    with contextlib.suppress(AttributeError):
        while not hasattr(kernel, "device_caches"):
            kernel = kernel.fn
        kernel.device_caches.clear()


def compilers() -> int:
    """Return the number of threads in which a builder compiles."""
    return max(1, min(MOST_COMPILERS, len(os.sched_getaffinity(0))))


@contextlib.contextmanager
def tuning_anew() -> Iterator[None]:
    """Let autotuners measure again in the `with` block, as they do in the first timed call.

    A builder uses this for the shape of timed calls. An autotuner's key often lacks a parameter on which the compiled
    kernel depends. If the builder reused an earlier choice, kernels that timed calls need would not be compiled.
    """
    global tunes_itself
    forget_tuned()
    tunes_itself = True
    try:
        yield
    finally:
        tunes_itself = False
        forget_tuned()


def forget_tuned() -> None:
    """Make autotuners forget the configurations that they chose since the last call of this function."""
    for tuner, key in asked:
        tuner.cache.pop(key, None)
    asked.clear()
    tuned.clear()


def prepare_interpreter() -> None:
    """Prepare the zygote on a machine without a GPU: install a stand-in for the GPU, and checks of memory accesses."""
    global memory, trace, blind
    kernelfiles.remember_code()
    cardlike.prepare()
    memory, trace = tensormemory.guard(kernelfiles.OWN), tracing.Trace()
    kept.extend(tracing.watch_attention(trace))
    blind = memory is None
    if memory is not None:
        memory.trace = trace


# ---- tensors


def laid_out(tensor: Any, layout: int, device: str, place: int = 0) -> Any:
    """Return a tensor with the same numbers on `device`, arranged differently in memory.

    Args:
        layout: 0: contiguous. 1: the two axes before the last (in a matrix both axes) are swapped in memory; a vector
            has a gap after each element. 2: gaps before and after each row. Gaps hold NaN (integers: 0).
        place: the tensor's index in the call. It changes the strides, so that a kernel that uses another tensor's
            strides gives wrong results.
    """
    import torch

    if layout == 0 or tensor.dim() == 0:
        return tensor.to(device)
    sizes, gap = list(tensor.shape), float("nan") if tensor.is_floating_point() else 0
    if layout == 1 and tensor.dim() >= 2:
        a, b = (-3, -2) if tensor.dim() >= 3 else (-2, -1)
        swapped = tensor.to(device).transpose(a, b)
        wider = list(swapped.shape)
        wider[b] += place
        wide = torch.full(wider, gap, dtype=tensor.dtype, device=device).narrow(b, 0, swapped.shape[b])
        wide.copy_(swapped)
        return wide.transpose(a, b)
    if layout == 1:
        wide = torch.full((sizes[0], 2), gap, dtype=tensor.dtype, device=device)
        wide[:, 0] = tensor.to(device)
        return wide[:, 0]
    width = sizes[-1] + (2 + place) * GAP_ELEMENTS
    wide = torch.full((*sizes[:-1], width), gap, dtype=tensor.dtype, device=device)
    view = wide[..., GAP_ELEMENTS : GAP_ELEMENTS + sizes[-1]]
    view.copy_(tensor)
    return view


def put_changed(tensor: Any, before: Any, after: Any) -> None:
    """Write the elements that a call has changed to the bfloat16 `tensor`.

    The call worked on a float32 copy of `tensor`, which was `before` and is now `after`. Unchanged elements are not
    written, because rounding would change the bits of NaN.
    """
    import torch

    changed = after.contiguous().view(torch.int32) != before.view(torch.int32)
    tensor[changed] = after.contiguous()[changed].to(tensor.dtype)


def limit_card(most_bytes: int) -> None:
    """Limit the GPU memory that torch may use in this process. Beyond it, torch reports that it is out of memory."""
    import torch

    torch.cuda.set_per_process_memory_fraction(min(1.0, most_bytes / torch.cuda.mem_get_info()[1]))


def played(player: Any, packed: str, tensors: list[Any], *, ablate: bool) -> None:
    """Replay the trace `packed` on `tensors`. Raises Failed if that fails.

    `ablate`: True to replace the numbers that kernels compute by NaN.
    """
    try:
        player.play(packed, tensors, ablate=ablate)
    except BaseException as error:
        raise kernelfiles.Failed(replay.described(error)) from error


def rows(counts: Mapping[str, int]) -> list[list[Any]]:
    """Convert counts by name to rows in the form of `ProfileRow`, with 0 for times and memory."""
    return [[name[:LONGEST_NAME], 0, 0, count, 0, 0] for name, count in counts.items()]


# ---- the environment of Python files

# Python files expect a user name, a home folder, /tmp, and modules to import. The user id of a runner has no entry in
# the system's table of users. A runner may write only in its scratch folder. It may lack access to the folders above
# Python, such as /root.

USER = "student"
TEMPORARY = "/tmp"


def settle(scratch: str, roots: Iterable[str], *, is_locked: bool) -> None:
    """Set the folders and the user's name that Python files expect, before the process locks itself.

    `roots`: folders with Python's modules, which the lock may hide. `is_locked`: True if the lock will allow writing in
    `scratch` only.
    """
    os.environ.update(HOME=scratch, USER=USER, LOGNAME=USER)
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(scratch, "triton"))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(scratch, "inductor")
    name_user(scratch)
    tempfile.tempdir = scratch
    if is_locked:
        write_in(scratch)
    keep_open(roots)


def name_user(home: str) -> None:
    """Make `pwd.getpwuid` return an entry for any user id: `getpass` and torch's compiler ask for one."""
    import pwd

    known: Callable[[int], Any] = pwd.getpwuid

    def getpwuid(uid: int) -> Any:
        try:
            return known(uid)
        except KeyError:
            return pwd.struct_passwd((USER, "x", uid, uid, USER, home, "/bin/sh"))

    pwd.getpwuid = getpwuid


def write_in(scratch: str) -> None:
    """Let `open` and `os.mkdir` use `scratch` in place of /tmp.

    Paths in the judge's own folder below /tmp do not change: `scratch` lies there.
    """
    plain_open, plain_mkdir = io.open, os.mkdir
    judges = "/".join(scratch.split("/")[:3])

    def moved(path: Any) -> Any:
        if not isinstance(path, (str, os.PathLike)):
            return path
        text = os.fspath(path)
        if (
            not isinstance(text, str)
            or not text.startswith(f"{TEMPORARY}/")
            or f"{text}/".startswith(f"{judges}/")
        ):
            return path
        return os.path.join(scratch, os.path.relpath(os.path.normpath(text), TEMPORARY))

    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        return plain_open(moved(file), *arguments, **named)

    def made(path: Any, *arguments: Any, **named: Any) -> None:
        plain_mkdir(moved(path), *arguments, **named)

    builtins.open = io.open = opened
    os.mkdir = made


def keep_open(roots: Iterable[str]) -> None:
    """Open the folders `roots` and import through their descriptors, which works even if parent folders are hidden."""
    ways = {}
    for root in roots:
        if os.path.isdir(root):
            ways[root] = f"/proc/self/fd/{os.open(root, os.O_PATH | os.O_DIRECTORY)}"

    def way(path: str) -> str:
        found = next((root for root in ways if path == root or path.startswith(f"{root}/")), None)
        return path if found is None else ways[found] + path[len(found) :]

    sys.path[:] = [way(path) for path in sys.path]
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            places[:] = [way(path) for path in places]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


# ---- serving

Operation = Callable[[dict[str, Any], list[Any]], dict[str, Any]]


def raising_failed(operation: Operation, *, has_card: bool) -> Operation:
    """Wrap an operation so that every exception becomes Failed. `has_card`: True if the machine has a GPU.

    An uncaught exception would end the runner without a message. All operations need this, because student code also
    runs when a function is looked up or a result's type is read. sys.exit() and KeyboardInterrupt are caught, too: the
    judge ends a runner by a signal.
    """

    def served(request: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
        try:
            return operation(request, tensors)
        except kernelfiles.Failed:
            raise
        except BaseException as error:
            raise kernelfiles.Failed(kernelfiles.described(error, has_card=has_card)) from error

    return served


class Kernels:
    """One loaded file, with its operations and the tensors of its calls."""

    def __init__(self, loaded: Any, device: str, shared_fd: int | None = None) -> None:
        self.failures = (kernelfiles.Failed,)
        self.loaded, self.device, self.shared_fd = loaded, device, shared_fd
        self.is_python = isinstance(loaded, kernelfiles.PythonFile)
        self.functions = loaded.functions
        self.sets: list[Callable[[], None]] = []
        served = (self.call, self.offers, self.warm, self.settle, self.attach, self.go)
        has_card = device != "cpu"
        self.operations = {
            operation.__name__: raising_failed(operation, has_card=has_card) for operation in served
        }
        self._memory: Any = None

    def call(self, request: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
        """Make one call on tensors that came as bytes, and copy its results back to them.

        Fields of the request: `names` are the tensors' names, `layouts` the layouts of inputs that are not contiguous,
        `outputs` the names of the tensors that the function writes.
        """
        names, layouts, written = request["names"], request.get("layouts", {}), request["outputs"]
        # The interpreter has no bfloat16: use float32, and round outputs to bfloat16.
        wide = {k for k, t in enumerate(tensors) if self.device == "cpu" and str(t.dtype) == "torch.bfloat16"}
        given = [t.float() if k in wide else t for k, t in enumerate(tensors)]
        before = {k: given[k].clone() for k in wide}
        placed = {
            name: laid_out(tensor, layouts.get(name, 0), self.device, place)
            for place, (name, tensor) in enumerate(zip(names, given, strict=True))
        }

        def work() -> None:
            self.prepared(request, placed, written)()
            self.synchronize()

        seen: dict[str, Any] = {}
        with self.observed(seen, placed) if self.is_python else contextlib.nullcontext():
            kernelfiles.attempted(work)
        if (request.get("autograd") or {}).get("language") == "pytorch":
            self.refuse_kernels()
        if isinstance(self.loaded, replay.Player):
            seen["profile"] = rows(self.loaded.seen)
        for k, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
            if k in wide:
                put_changed(tensor, before[k], placed[name].cpu())
            elif placed[name] is not tensor:
                tensor.copy_(placed[name])
        outside = memory.lines_outside() if memory is not None else []
        return {**ANSWERED, **seen, "outside": outside}

    def refuse_kernels(self) -> None:
        """Raise NotWritten if the last call, of a class that must be in PyTorch, launched a Triton kernel."""
        names = [name.removeprefix(tracing.LAUNCH) for name in trace.seen if name.startswith(tracing.LAUNCH)]
        if names:
            raise kernelfiles.NotWritten(
                f"the class in PyTorch is not implemented: the called class launches the Triton kernel {names[0]}"
            )

    @contextlib.contextmanager
    def observed(self, seen: dict[str, Any], placed: dict[str, Any]) -> Iterator[None]:
        """Record in `seen` the operators of torch called in the block ("op mm"), the launched kernels and the trace.

        Every operation `call` is recorded. So a Python file that finds the recorder only learns that the call is not
        timed.
        """
        launched: list[str] = []
        with kernelfiles.profiled_kernels(launched, self.device), trace.follow(placed.values()):
            yield
        counts = {**trace.seen, **{f"kernel {name}": 1 for name in launched}}
        if self.loaded.judged_class:
            counts[f"class {self.loaded.judged_class}"] = 1 + self.loaded.judged_file
        seen["profile"] = rows(counts)
        if not blind:
            seen["trace"] = trace.packed()

    def prepared(
        self, request: dict[str, Any], placed: dict[str, Any], written: list[str]
    ) -> Callable[[], None]:
        """Return a function that makes one call on the tensors `placed`, or replays the request's trace on them."""
        if self.device != "cpu" and "most_bytes" in request:
            limit_card(request["most_bytes"])
        if isinstance(self.loaded, replay.Player):
            given = [*placed.values()]
            return functools.partial(played, self.loaded, request["trace"], given, ablate=request["ablate"])
        names = request["names"]
        arguments = [placed[names[a["input"]]] if "input" in a else a["value"] for a in request["arguments"]]
        call: Callable[[], None] = self.loaded.bound(request, arguments, [placed[name] for name in written])
        return call

    def offers(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        """Check that the file has the function. Raises Failed if not."""
        self.loaded.find(request["function"])
        return ANSWERED

    def warm(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        """Call the function once on random numbers, to compile it. The request's `tensors` describe the tensors:
        {name: [shape, dtype, low, high]}."""
        import torch

        global builds
        builds = True

        def made(shape: list[int], dtype: str, low: float, high: float) -> Any:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            return tensor.uniform_(low, high) if tensor.is_floating_point() else tensor.zero_()

        layouts = request["layouts"]
        placed = {
            name: laid_out(made(*described), layouts.get(name, 0), self.device, place)
            for place, (name, described) in enumerate(request["tensors"].items())
        }
        run = self.prepared(request, placed, request["outputs"])
        with tuning_anew() if request.get("tunes") else contextlib.nullcontext():
            kernelfiles.attempted(run)
        return ANSWERED

    def settle(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        kernelfiles.attempted(self.synchronize)
        return ANSWERED

    def attach(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        """Place the tensors of each set ("sets": [{name: [offset, shape, dtype]}]) in the judge's memory."""
        import torch

        global tunes_itself
        tunes_itself = True
        with contextlib.suppress(ValueError):  # "tuned" is empty at first, or was cut off
            tuned.update(json.loads(request["tuned"]))
        if self._memory is None:
            assert self.shared_fd is not None
            size = request["bytes"]
            if self.device == "cpu":
                self._memory = torch.frombuffer(mmap.mmap(self.shared_fd, size), dtype=torch.uint8)
            else:
                self._memory = mapped_memory(self.shared_fd, size)
        self.sets = []
        for one in request["sets"]:
            placed = {}
            for name, (offset, shape, dtype) in one.items():
                kind = getattr(torch, dtype)
                count = 1
                for size in shape:
                    count *= size
                width = torch.empty((), dtype=kind).element_size()
                placed[name] = self._memory[offset : offset + count * width].view(kind).view(shape)
            self.sets.append(self.prepared(request, placed, request["outputs"]))
        self.synchronize()
        return ANSWERED

    def go(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        """Call the function on the first `sets` sets of tensors (0: no call).

        The reply's message holds the choices of autotuners, for later runners.
        """

        def work() -> None:
            for call in self.sets[: request["sets"]]:
                call()
            self.synchronize()

        kernelfiles.attempted(work)
        return {**ANSWERED, "message": json.dumps(tuned) if tuned else ""}

    def synchronize(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


# ---- the judge's device memory


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def mapped_memory(fd: int, size: int) -> Any:
    """Return the `size` bytes of GPU memory that the judge shares by the descriptor `fd`, as a tensor of uint8."""
    import torch

    torch.zeros(1, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    device = torch.cuda.current_device()

    def check(code: int, what: str) -> None:
        if code:
            raise OSError(f"{what}: CUDA error {code}")

    handle, address = ctypes.c_uint64(), ctypes.c_uint64()
    wide, zero = ctypes.c_size_t(size), ctypes.c_size_t(0)
    none = ctypes.c_uint64(0)
    check(
        cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), 1),
        "cuMemImportFromShareableHandle",
    )
    check(cuda.cuMemAddressReserve(ctypes.byref(address), wide, zero, none, none), "cuMemAddressReserve")
    check(cuda.cuMemMap(address, wide, zero, handle, none), "cuMemMap")
    access = _Access(_Location(1, device), 3)
    check(cuda.cuMemSetAccess(address, wide, ctypes.byref(access), ctypes.c_size_t(1)), "cuMemSetAccess")
    described = {
        "shape": (size,),
        "typestr": "|u1",
        "data": (address.value, False),
        "version": 3,
        "strides": None,
    }
    return torch.as_tensor(type("Memory", (), {"__cuda_array_interface__": described})(), device="cuda")


def load(kind: str, path: str, shared_fd: int | None = None) -> Kernels:
    """Load a file of this kind: one of KINDS, followed by "-cpu" for Triton's interpreter.

    Raises OSError or AttributeError if it cannot be loaded; other exceptions of the file become OSError.
    """
    language, _, device = kind.partition("-")
    try:
        if language == "cuda":
            loaded = kernelfiles.CudaLibrary(path)
        elif language == "replay":
            loaded = replay.Player(path, device or "cuda")
            if memory is not None:
                memory.from_arguments = True
        else:
            loaded = kernelfiles.PythonFile(path)
    except (OSError, AttributeError):
        raise
    except BaseException as error:
        raise OSError(kernelfiles.described(error, has_card=device != "cpu")) from error
    return Kernels(loaded, device or "cuda", shared_fd)
