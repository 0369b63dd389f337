"""Device memory and timed calls on a simulated GPU, and the evaluator without a GPU. No test needs Triton."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from conftest import ROOT, Patch, put, write

from grader.assignment import loading, records
from grader.backends.gpu import devicebuild, devicerunner, host, timing
from grader.backends.gpu.card import driver, finding
from grader.backends.gpu.card.arena import FEW_SETS, Arena, Card, OnCard, Tensor
from grader.backends.gpu.compiled import Caches
from grader.backends.torch.zygote import Zygote
from grader.core import places, precision, results
from grader.judge.bench import Bench, Options, unshared
from grader.judge.evaluate import evaluate
from grader.judge.timing import measure
from grader.runner.calls import Call, Round, Sample
from grader.sandbox import OPEN

SIZES = "R=8 C=64 lines=2 width=64 rows=8 inner=8 columns=8 B=1 N=8 M=8 d=16"
SHAPE = {name: int(size) for name, size in (word.split("=") for word in SIZES.split())}
Results = dict[str, results.PartResult]
Judge = Callable[..., Results]
RIGHT = """
import torch
import torch.nn.functional as F
def gelu(x, y):
    y.copy_(F.gelu(x.float(), approximate="tanh"))
def softmax(x, y):
    y.copy_(torch.softmax(x.float(), 1))
"""
FAULTY = """
import torch
def gelu(x, y):
    z = x + 1
    raise RuntimeError("no such kernel")
def softmax(x, y):
    raise NotImplementedError
def Matmul(a, b, c):
    c.copy_(a @ b)
def flash_forward(q, k, v, causal):
    return q
"""
GELU = "def gelu(x, y):\n    "
MUTE = """class Mute(BaseException):
    def __str__(self):
        raise RuntimeError("no text")
"""
#: A file whose code runs when the kit looks up a name in its module.
LOOKED_UP = """import torch
class Attention(torch.autograd.Function):
    pass
def __getattr__(name):
    raise KeyError(name)
"""
REMEMBERS = """
_softmax, _known = softmax, {}
def softmax(x, y):
    if y.data_ptr() in _known:
        y.copy_(_known[y.data_ptr()])
        return
    _softmax(x, y)
    _known[y.data_ptr()] = y.clone()
"""
#: A softmax that also executes `statement` in every call except the first `first` calls.
COUNTED = """
_softmax, _calls = softmax, 0
def softmax(x, y):
    global _calls
    _softmax(x, y)
    _calls += 1
    if _calls > {first}:
        {statement}
""".format
OUT_OF_MEMORY = 'raise MemoryError("CUDA out of memory")'
CHANGES = COUNTED(first=2, statement="x.view(-1)[3] += 1")
HUNGRY = COUNTED(first=1, statement=OUT_OF_MEMORY)
WAKING_S, REFERENCE_S = 0.004, 0.001
Mhz = tuple[int, int, int, int]
#: Clock rates in MHz in the four calls of a round: A B B A (A: reference, B: student).
STEADY, DRAWS_MORE, DRIFTS = (1980, 1980, 1965, 1970), (1980, 1700, 1690, 1980), (1980, 1980, 1980, 1700)
#: Clock rates in rounds, and the number of rounds that are repeated.
REPEATED = [((STEADY,), 0), ((DRAWS_MORE,), 0), ((STEADY, DRIFTS, STEADY), 1), ((DRIFTS, DRIFTS, STEADY), 2)]
#: Keys: the result that the test gives to rounds on few sets of tensors: a verdict, and the machine's fitness. Values:
#: the kinds of rounds that the judge then makes, in order.
TRIED = {"slow fit": "all few", "pass fit": "all few however-long", "pass unfit": "all few all few"}


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    if shutil.which("gcc") is None:
        pytest.skip("the pretended card is compiled by gcc")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = ROOT / "tests" / "gpu" / "pretended.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "LIBRARY", str(library))
        return Card()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(modules=("numpy",)) as made:
        yield made


@pytest.fixture
def judge(zygote: Zygote, tmp_path: Path, monkeypatch: Patch) -> Judge:
    assignment = loading.load(ROOT / "labs" / "gpu" / "assignment.yaml")
    monkeypatch.setattr(devicebuild, "has_triton", lambda: True)

    def run(text: str, *parts: str, on: Card | None = None, cases: int = 100, **options: Any) -> Results:
        graded, exclusive = options.pop("graded", True), options.pop("exclusive", unshared)
        source = write(tmp_path, text, "kernels.py")
        monkeypatch.setattr(host, "card", lambda: on)
        monkeypatch.setattr(host, "_places", {OPEN: host.Place(zygote, on, True)})
        chosen = tuple(
            replace(part, cases=part.cases[:cases], time=part.time and replace(part.time, graded=graded))
            for part in map(assignment.part, parts)
        )
        made, settings = replace(assignment, parts=chosen), Options(**{"shape": SHAPE, "seed": 5, **options})
        found = evaluate(made, source, chosen, settings, exclusive=exclusive, sandbox=OPEN)
        return {part.id: part for part in found.parts}

    return run


def mixed(h: np.ndarray) -> np.ndarray:
    """Return MurmurHash3's finalizer (by Austin Appleby, public domain) of each uint32 value."""
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x85EBCA6B)
    h = h ^ (h >> np.uint32(13))
    h = h * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def uniform(count: int, seed: int, low: float, span: float, dtype: str) -> np.ndarray:
    """Return the first `count` < 2**32 numbers, from `low` to `low + span`, that `fill_sets` (kernels.cu) draws."""
    with np.errstate(over="ignore"):
        h = mixed(mixed(np.arange(count, dtype=np.uint32) ^ np.uint32(seed)) + np.uint32(seed))
        unit = (h >> np.uint32(8)).astype(np.float32) * np.float32(1 / 16777216)
        x = np.float32(low) + np.float32(span) * unit
    return precision.widened(precision.encoded(x.astype(np.float32), dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sets", [3, FEW_SETS + 3])
def test_device_memory_is_filled_poisoned_and_compared(card: Card, dtype: str, sets: int) -> None:
    x = Tensor("x", (11, 37), dtype, -3.0, 5.0)
    y = Tensor("y", (11, 37), dtype, is_output=True)
    arena = Arena(card, [x, y], sets)
    arena.poison()
    arena.fill(7)
    for k in (0, sets - 1):
        drawn = uniform(x.count, arena.seed_of(7, k, x), -3.0, 8.0, dtype)
        assert (card.read(arena.place(k, x), x).reshape(-1) == drawn).all()
        assert (arena.input_values(7, k)["x"].reshape(-1) == drawn).all()
    arena.take()
    assert np.isnan(arena.output_values(sets - 1)["y"]).all(), "outputs are not NaN before the call"
    assert arena.differing(arena, {"y": (1e9, 0.0)}) == {"y": sets * y.count}, "a NaN counts as equal"
    assert arena.inputs_changed(7) == [] and arena.inputs_changed(8) == ["x"]
    # Change one element of an input in the last set of tensors. Further below, change one element of an output.
    card.driver.copy(arena.place(sets - 1, x), arena.place(0, x), 4)
    assert arena.inputs_changed(7) == ["x"]
    other = Arena(card, [x, y], sets)
    for each in (arena, other):
        for k in range(sets):
            card.driver.copy(each.place(k, y), arena.place(0, x), x.size)
        each.take()
    assert arena.differing(other, {"y": (0.0, 0.0)}) == {"y": 0}
    card.poison(other.kept(sets - 1, y), replace(y, shape=(1,)))
    assert other.differing(arena, {"y": (0.0, 0.0)}) == {"y": 1}
    arena.close()
    other.close()


def test_the_number_of_tensor_sets_fits_call_time_and_memory() -> None:
    tensors = [Tensor("x", (1000,), "float32"), Tensor("y", (1000,), "float32", is_output=True)]
    assert Arena.bytes_for(tensors) == 3 * 4096
    assert timing.sets_for(tensors, timing.GO_S / 99.5, 1 << 40) == 100
    assert timing.sets_for(tensors, 1.0, 1 << 40) == 1
    assert timing.sets_for(tensors, 0.0, 100 * 3 * 4096) == int(100 * timing.MEMORY_SHARE)
    assert timing.sets_for(tensors, 0.0, 1 << 40) == timing.MOST_SETS
    assert timing.judges_bytes(140 << 30, 8 << 30) == 132 << 30, "the kernel's share is free"
    assert timing.judges_bytes(8 << 30, 8 << 30) == 4 << 30


def test_caches_of_several_builders_become_one(tmp_path: Path) -> None:
    """Triton lists a kernel's files by absolute paths, so merging caches has to change these paths."""
    caches = Caches(tmp_path, str(tmp_path))
    one, other = caches.new(), caches.new()
    folder = tmp_path / other / "key"
    paths = f'{{"child_paths": {{"k.cubin": "{folder}/k.cubin"}}}}'
    put(folder, {"k.cubin": "code", "__grp__k.json": paths})
    caches.seal(one)
    caches.seal(other)
    caches.merge(one, other)
    assert (tmp_path / one / "key" / "k.cubin").read_text() == "code"
    assert f"{tmp_path / one}/key/k.cubin" in (tmp_path / one / "key" / "__grp__k.json").read_text()
    assert not (tmp_path / other).exists()
    # The paths in a cache also change when its folder is kept for later judges.
    caches.keep(one, tmp_path / "kept")
    caches.drop(one)
    assert str(tmp_path) not in (tmp_path / "kept" / "key" / "__grp__k.json").read_text()
    again = caches.take(tmp_path / "kept")
    assert f"{tmp_path / again}/key/k.cubin" in (tmp_path / again / "key" / "__grp__k.json").read_text()
    assert (tmp_path / again / "key" / "k.cubin").read_text() == "code"
    caches.drop(again)


def test_the_kit_s_kernels_are_compiled_once_for_all(tmp_path: Path, monkeypatch: Patch) -> None:
    """Compiled kernels of the kit stay on disk unless a call failed. A changed file or other call is compiled anew."""
    built: list[str] = []
    monkeypatch.setattr(host, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr(host.metadata, "version", lambda name: "1")
    file = put(tmp_path, {"reference.py": "one"}) / "reference.py"

    def once(job: str, is_whole: bool = True) -> str:
        (folder := tmp_path / f"judge {len(built)} {job}").mkdir(exist_ok=True)
        caches = Caches(folder, str(folder))

        def compiled(*_: object, is_kits: bool) -> tuple[str, bool]:
            built.append(job)
            put(folder / (name := caches.new()), {"k.cubin": job})
            return name, is_whole

        place = SimpleNamespace(zygote=SimpleNamespace(caches=caches))
        device = SimpleNamespace(_compiled=compiled, place=place)
        name = host.DeviceHost._compiled_once(device, file, [{"op": job}])  # type: ignore[arg-type]
        return (folder / name / "k.cubin").read_text()

    assert [once(job) for job in ("a", "a", "b", "a")] == ["a", "a", "b", "a"] and built == ["a", "b"]
    assert [once("c", is_whole) for is_whole in (False, True, True)] == ["c"] * 3
    assert built == ["a", "b", "c", "c"]
    file.write_text("other")
    once("a")
    assert built[4:] == ["a"]


def test_without_a_driver_there_is_no_gpu(monkeypatch: Patch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libnowhere.so")
    assert finding.card.__wrapped__() is None


def test_right_results_wait_for_a_gpu_and_libraries_are_flagged(judge: Judge) -> None:
    found = judge(RIGHT, "softmax", "gelu")
    for part in found.values():
        assert (part.verdict, part.waits_for) == ("unjudged", "GPU"), part.diagnosis
        assert all(case.ok for case in part.cases) and len(part.cases) >= 6
        assert [flag.code for flag in part.flags] == ["library_operators", "no_kernel"]
    assert "softmax" in found["softmax"].flags[0].message and "gelu" in found["gelu"].flags[0].message
    assert judge(RIGHT, "softmax", cases=1, timing=False)["softmax"].verdict == "pass"


def test_faults_of_a_file_are_reported_part_by_part(judge: Judge) -> None:
    found = judge(FAULTY, "gelu", "softmax", "matmul", "flash_forward", cases=2)
    for name, verdict, code, said in (
        ("gelu", "crash", "exception", "line 5 raised RuntimeError: no such kernel"),
        ("softmax", "wrong", "not_written", ""),
        ("matmul", "missing", "not_bound", "There is Matmul"),
        ("flash_forward", "crash", "exception", "it should return O and L, and returns 1 tensor"),
    ):
        assert (found[name].verdict, found[name].diagnosis.code) == (verdict, code), name
        assert said in found[name].diagnosis.message


#: Rows: a shell command that fails if nvcc does not work, the source, and the result: (compiled, missing tool).
COMPILED = [("true", "good", (True, "")), ("true", "bad", (False, ""))]
COMPILED += [("false", source, (False, devicebuild.NVCC)) for source in ("good", "bad")]


@pytest.mark.parametrize(("works", "source", "found"), COMPILED)
def test_what_nvcc_lacks_is_not_the_students_fault(
    works: str, source: str, found: tuple[bool, str], tmp_path: Path, monkeypatch: Patch
) -> None:
    """The stand-in for nvcc rejects sources that hold "bad"; if it does not work, it rejects every source."""
    check, error = f"{works} && ! grep -q bad kernels.cu", "gcc: fatal error: cannot execute 'cc1plus'"
    script = f'#!/bin/sh\nif {check}; then : > kernels.so; else echo "{error}"; exit 1; fi\n'
    put(tmp_path, {"cuda/bin/nvcc": script}, 0o755)
    monkeypatch.setattr(devicebuild, "nvcc", lambda: str(tmp_path / "cuda" / "bin" / "nvcc"))
    build = devicebuild.cuda(write(tmp_path, source, "kernels.cu"), cache=tmp_path / "cache")
    assert (build.ok, build.waits_for) == found and (error in build.diagnostics) is not build.ok
    assert ("no points are lost" in build.diagnostics) is bool(build.waits_for)


def test_a_file_that_cannot_be_loaded_does_not_compile(judge: Judge) -> None:
    for text, said in (
        ("def gelu(x, y):\n    y.copy_(x\n", r"kernels\.py:2:(.|\n)*y\.copy_\(x"),
        ("import nowhere\n", "line 1 raised ModuleNotFoundError"),
        ("def gelu(x, y):\n    pass\n\0\n", "kernels.py: error: "),
        (f"{MUTE}raise Mute\n", "whose text cannot be read"),
    ):
        part = judge(text, "gelu")["gelu"]
        assert part.verdict == "compile_error" and part.diagnosis is not None, text
        assert re.search(said, part.diagnosis.message) and ":0:" not in part.diagnosis.message


def test_every_exception_is_reported_and_ends_no_runner(judge: Judge) -> None:
    for text, said in (
        (f"{MUTE}{GELU}import sys; sys.exit(0)\n", "line 5 raised SystemExit: 0"),
        (f"{MUTE}{GELU}raise KeyboardInterrupt\n", "line 5 raised KeyboardInterrupt"),
        (f"{MUTE}{GELU}raise Mute\n", "whose text cannot be read"),
        (f"{GELU}error = ValueError('round')\n    raise error from error\n", "ValueError: round"),
        (LOOKED_UP, "line 5 raised KeyError: 'flash_forward'"),
    ):
        (part,) = judge(text, "gelu" if "gelu" in text else "flash_forward", cases=2, timing=False).values()
        assert part.diagnosis is not None and said in part.diagnosis.message, part.diagnosis
        assert "error of its own" not in part.output and "exit(70)" not in part.diagnosis.message


def test_without_triton_points_stay_open(judge: Judge, monkeypatch: Patch) -> None:
    monkeypatch.setattr(devicebuild, "has_triton", lambda: False)
    part = judge(RIGHT, "gelu")["gelu"]
    assert (part.verdict, part.waits_for) == ("unjudged", "triton")
    lacking = judge(RIGHT, "gelu_cuda")["gelu_cuda"]
    assert lacking.verdict == "missing" and "no kernels.cu" in lacking.diagnosis.message


@pytest.mark.parametrize(("fails", "fault"), [(OUT_OF_MEMORY, "crash"), ("time.sleep(9)", "timeout")])
def test_a_part_that_others_disturb_is_judged_again_alone(
    fails: str, fault: str, judge: Judge, card: Card, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Other submissions may fill the GPU's memory or slow the GPU, so that an honest kernel's call fails."""
    full, alone = tmp_path / "full", []
    monkeypatch.setattr(Bench, "call_timeout_s", lambda self, shape: 2.0)
    hungry = f"""{RIGHT}
import os, time
_softmax = softmax
def softmax(x, y):
    if os.path.exists("{full}") or os.path.exists("{full} always"):
        {fails}
    _softmax(x, y)
"""

    @contextmanager
    def exclusive(part: records.Part) -> Iterator[None]:
        full.unlink(missing_ok=True)
        yield alone.append(part.id)

    for always, verdict in (("", "pass"), (" always", fault)):
        Path(f"{full}{always}").touch()
        part = judge(hungry, "softmax", on=card, cases=2, timing=False, exclusive=exclusive)["softmax"]
        assert part.verdict == verdict, part.diagnosis
    assert alone == ["softmax"] * 2


class Clock:
    """A judge that makes all calls, but takes times from a formula: no verdict depends on this machine's load."""

    limit_s = 3.0  # a longer call times out
    fill_s = 0.0  # time to fill and copy one set of tensors

    def __init__(self, judge: Callable[..., results.PartResult], monkeypatch: Patch) -> None:
        self.judge, self.patch = judge, monkeypatch.setattr
        # Time of the student's call for one set of tensors in the current measurement.
        self.student_s: Callable[[timing.DeviceRounds], float] = lambda rounds: REFERENCE_S
        self.rounds: list[timing.DeviceRounds] = []
        self.sets(10)
        make, raw = timing.DeviceRounds.__post_init__, timing.TimedRunner.raw

        def made(rounds: timing.DeviceRounds) -> None:
            make(rounds)
            self.rounds.append(rounds)

        def called(runner: timing.TimedRunner, seed: int, sets: int, laid: int | None = None) -> Call:
            is_student = bool(self.rounds) and runner.arena is self.rounds[-1].mine
            set_s = self.student_s(self.rounds[-1]) if is_student else REFERENCE_S
            laid_sets = runner.arena.sets if laid is None else laid
            seconds = WAKING_S + self.fill_s * laid_sets + set_s * sets
            if seconds > self.limit_s:
                return Call("timeout", self.limit_s)
            call = raw(runner, seed, sets, laid)
            assert call.wall_s > 0 or call.status != "ok"
            return replace(call, wall_s=seconds)

        self.patch(timing.DeviceRounds, "__post_init__", made)
        self.patch(timing.TimedRunner, "raw", called)

    def clock_is(self, rounds: Iterator[Mhz]) -> None:
        """Set the GPU's clock rate in each call of the rounds, as if heat limited the rate."""
        readings = (finding.Reading(mhz, frozenset({"heat"})) for one in rounds for mhz in one)
        self.patch(finding, "clock_of", lambda driver: SimpleNamespace(read=readings.__next__))

    def sets(self, count: int) -> None:
        self.patch(timing, "GO_S", count * REFERENCE_S)


@pytest.fixture
def timed(judge: Judge, card: Card, tmp_path: Path, monkeypatch: Patch) -> Clock:
    reference = write(tmp_path, RIGHT, "reference.py")
    monkeypatch.setattr(host.DeviceHost, "reference_file", lambda self, part: reference)
    monkeypatch.setattr(host.DeviceHost, "card", property(lambda self: card))
    monkeypatch.setattr(timing, "WARM_UP_S", 0.0)
    monkeypatch.setattr(timing, "LONGEST_GO_S", 1.0)
    monkeypatch.setattr(timing, "_known_sets", {})
    return Clock(lambda text, **how: judge(text, "softmax", on=card, cases=1, **how)["softmax"], monkeypatch)


@pytest.mark.parametrize("text, code", [(REMEMBERS, "wrong_when_timed"), (CHANGES, "inputs_overwritten")])
def test_timed_calls_are_compared_set_by_set(timed: Clock, text: str, code: str) -> None:
    found = timed.judge(RIGHT + text)
    assert found.verdict == "wrong" and found.diagnosis is not None and found.diagnosis.code == code


@pytest.mark.parametrize("times, verdict, rounds", [(1, "pass", 3), (2, "slow", 4), (3, "slow", 2)])
def test_the_ratio_of_a_timed_kernel_decides(timed: Clock, times: int, verdict: str, rounds: int) -> None:
    timed.student_s = lambda rounds: times * REFERENCE_S
    found = timed.judge(RIGHT)
    assert found.verdict == verdict and found.time is not None, found.diagnosis
    assert found.time.rounds == rounds and found.memory is not None
    # The judge subtracts the time of a reference's call on one set of tensors from the times of student and reference.
    assert found.time.ratio == pytest.approx(times, rel=0.1) and found.time.reference_ms == pytest.approx(1)


def test_workers_of_a_class_share_trials_not_times(timed: Clock, tmp_path: Path, monkeypatch: Patch) -> None:
    """The first worker's trial chooses the number of sets of tensors for all workers. Each one times the reference."""
    trial, trials = timing.DeviceRounds.trial_s, list[float]()
    timed.patch(timing.DeviceRounds, "trial_s", lambda *given: trials.append(trial(*given)) or trials[-1])
    for folder, made in ((None, 1), (None, 2), (tmp_path, 3), (tmp_path, 3), (tmp_path / "missing", 4)):
        monkeypatch.delenv(places.SHARED_TRIALS, raising=False)
        if folder is not None:
            monkeypatch.setenv(places.SHARED_TRIALS, str(folder))
        monkeypatch.setattr(timing, "_known_sets", {})  # a new worker has no result of a trial
        found = timed.judge(RIGHT)
        assert len(trials) == made and found.time is not None, found.diagnosis
        assert timed.rounds[-1].theirs.sets == timed.rounds[0].theirs.sets
        assert len(found.time.reference_wall_ms) == 2 * found.time.rounds
    (file,) = tmp_path.glob("trial-*")
    assert float(file.read_text()) == trials[2]


def test_under_the_power_limit_clocks_are_not_compared() -> None:
    """A power limit changes the clock rate within each call, so different rates do not mean an unsteady clock."""
    slowed, hot = (finding.Reading(1605, frozenset(k)) for k in ({"power limit"}, {"power limit", "heat"}))
    assert finding.is_steady([finding.Reading(1770), slowed])
    assert not finding.is_steady([finding.Reading(1770), hot])


@pytest.mark.parametrize(("rounds", "repeated"), REPEATED)
def test_rounds_at_unsteady_clocks_are_repeated(timed: Clock, rounds: tuple[Mhz, ...], repeated: int) -> None:
    """A kernel that draws more power than the reference may run at a slower clock: its rounds are not repeated."""
    timed.clock_is(chain(rounds, repeat(rounds[-1])))
    # Calls of a repeated round take five times as long: if they counted, the verdict would be slow.
    timed.student_s = lambda at: REFERENCE_S * (5 if rounds[min(at.round, len(rounds)) - 1] is DRIFTS else 1)
    found = timed.judge(RIGHT)
    assert found.verdict == "pass" and found.time is not None and found.time.card is not None, found.diagnosis
    assert found.time.card.repeated == repeated and found.time.card.slowed_by == ("heat",)
    kept = [mhz for one in rounds if one is not DRIFTS for mhz in one]
    assert (found.time.card.lowest_mhz, found.time.card.highest_mhz) == (min(kept), max(kept))


def test_an_unsteady_clock_leaves_the_part_unjudged_but_costs_an_ungraded_one_no_points(timed: Clock) -> None:
    hungry = [timed.judge(RIGHT + HUNGRY, graded=graded) for graded in (True, False)]
    timed.clock_is(repeat(DRIFTS))
    found = timed.judge(RIGHT)
    assert (found.verdict, found.waits_for) == ("unjudged", "steady-clock") and found.diagnosis is not None
    assert "1980, 1700" in found.diagnosis.message and "--lock-gpu-clocks" in found.diagnosis.message
    hungry.append(timed.judge(RIGHT, graded=False))
    assert [found.verdict for found in hungry] == ["crash", "pass", "pass"]
    assert [flag.code for flag in hungry[1].flags if flag.code == "not_timed"] == ["not_timed"]


def test_the_reference_is_timed_while_no_student_process_runs(timed: Clock) -> None:
    alive: list[tuple[bool, int]] = []
    sample = timing.DeviceRounds.sample

    def looked(rounds: timing.DeviceRounds, side: timing.Side, other: timing.Side | None = None) -> Sample:
        sessions = rounds.timed.student.__self__.sessions  # type: ignore[attr-defined]
        alive.append((side.is_reference, sum(session.death is None for session in sessions)))
        return sample(rounds, side, other)

    timed.patch(timing.DeviceRounds, "sample", looked)
    assert timed.judge(RIGHT).verdict == "pass"
    assert alive[:4] == [(True, 0), (False, 1), (False, 1), (True, 0)]
    assert set(alive) == {(True, 0), (False, 1)}


#: Row 1: a call on all sets exceeds its time limit. Row 2: it exceeds LONGEST_GO_S. Row 3: filling 10 sets takes longer
#: than the slow kernel takes for one set, so nothing would be left if the fill time were subtracted.
@pytest.mark.parametrize("sets, fewer, fill_s", [(20, 1, 0.0), (8, 4, 0.0), (10, 3, 0.05)])
def test_a_slow_kernel_is_timed_on_fewer_sets(timed: Clock, sets: int, fewer: int, fill_s: float) -> None:
    timed.student_s, timed.fill_s = lambda rounds: 0.2, fill_s
    timed.sets(sets)
    found = timed.judge(RIGHT)
    assert [rounds.mine.sets for rounds in timed.rounds] == [sets, fewer]
    assert found.verdict == "slow" and found.time is not None, found.diagnosis
    assert found.time.student_ms == pytest.approx(200)


@pytest.mark.parametrize("on_few_sets, tried", TRIED.items())
def test_only_slow_kernels_are_timed_on_fewer_sets(timed: Clock, on_few_sets: str, tried: str) -> None:
    """If rounds on few sets of tensors end as a pass (the test sets `on_few_sets`), rounds on all sets follow."""

    def kind(rounds: timing.DeviceRounds) -> str:
        return "few" if rounds.most_sets else "all" if rounds.shortens else "however-long"

    decide, (verdict, fit) = measure.sequential, on_few_sets.split()

    def decided(source: Iterator[Round], policy: measure.TimePolicy) -> results.Timing:
        found = (verdict, fit == "fit") if kind(timed.rounds[-1]) == "few" else ("pass", True)
        return replace(decide(source, policy), verdict=found[0], fit=found[1])

    timed.student_s = lambda rounds: 0.2 if kind(rounds) == "all" else REFERENCE_S
    timed.patch(measure, "sequential", decided)
    found = timed.judge(RIGHT)
    assert [kind(rounds) for rounds in timed.rounds] == tried.split(), found.diagnosis
    assert found.verdict == verdict, found.diagnosis


def test_the_gpu_clock_is_read_only_through_nvml(monkeypatch: Patch) -> None:
    Failed = type("Failed", (Exception,), {})
    reasons = {"now": 0x20 | 0x04 | 0x01}  # 0x01 (GPU idle) does not limit the clock
    library = SimpleNamespace(
        NVMLError=Failed,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetClockInfo=lambda handle, kind: {(b"0000:01:00.0", 1): 1980}[handle, kind],
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: reasons["now"],
    )

    def called(name: str, bus: Any, *_: object) -> None:
        bus.value = b"0000:01:00.0"

    called.device = 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    found = finding.clock_of(called)  # type: ignore[arg-type]
    assert found is not None and found.read() == finding.Reading(1980, frozenset({"heat", "power limit"}))
    library.nvmlDeviceGetClockInfo = Mock(side_effect=Failed)
    assert found.read() is None
    library.nvmlInit = Mock(side_effect=Failed)
    assert finding.clock_of(called) is None  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert finding.clock_of(called) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_only_rows_that_are_looked_at_are_read(dtype: str) -> None:
    numbers = np.arange(64 * 3 * 5, dtype=np.float32).reshape(64, 3, 5) % 97
    stored = precision.encoded(numbers, dtype).tobytes()
    read: list[int] = []

    def reading(offset: int, size: int) -> bytearray:
        read.append(size)
        return bytearray(stored[offset : offset + size])

    seen = OnCard(reading, numbers.shape, dtype)
    heads, rows = np.array([[7], [50]]), np.array([[2, 0]])
    assert (seen[np.array([9, 3, 9])] == numbers[[9, 3, 9]]).all()
    assert (seen[heads, rows] == numbers[heads, rows]).all()
    assert sum(read) == 4 * (len(stored) // 64), "two rows for either"
    assert seen[np.array([1])].dtype == np.float32 and seen.shape == (64, 3, 5) and len(seen) == 64
    assert (seen[:, 1] == numbers[:, 1]).all() and (seen[()] == numbers).all()
    assert (seen * 2 == numbers * 2).all() and (abs(seen).max() == 96) and (np.asarray(seen) == numbers).all()
    assert (seen.astype(np.float64) == numbers).all()
    with pytest.raises(IndexError):
        seen[np.array([64])]


def test_the_subtracted_time_is_a_call_on_one_set() -> None:
    asked: list[int] = []

    def command(header: dict[str, object], **_: object) -> Call:
        if header["op"] != "go":
            return Call("ok")
        asked.append(int(str(header["sets"])))
        return Call("ok", 10.0 + asked[-1])

    ignored = dict.fromkeys(("warm_up", "poison", "take"), lambda *_: None)
    calls = SimpleNamespace(session=None, pid=0, sets=9, command=command, **ignored)
    runner = timing.TimedRunner(calls, calls, {"op": "attach"})  # type: ignore[arg-type]
    assert runner.warm_up(1) is None and asked == [9], "no time is subtracted from a student's call"
    taken_off = runner.calibrate(1)
    assert isinstance(taken_off, float) and set(asked[1:]) == {1}
    runner.base_s = taken_off
    assert runner.seconds(Call("ok", 19.0)) == pytest.approx(1.0)


def test_results_take_what_autotuners_measured_in_the_builder(monkeypatch: Patch) -> None:
    """An autotuner measures if Triton's cache on disk lacks the results, and always in the first timed runner."""
    disk, measured = {"a": 1}, list[str]()

    def probe() -> None:
        """Stand in for a kernel."""

    class Tuner:
        def __init__(self) -> None:
            self.cache: dict[str, int] = {}
            self.configs, self.base_fn = [1, 2], probe

        def run(self) -> None:
            """Stand in for the method that a launch calls."""

        def check_disk_cache(self, key: str, configs: object, measure: Callable[[], None]) -> bool:
            if key not in disk:
                measure()
                raise PermissionError("a runner's folder is read-only")
            self.cache[key] = disk[key]
            return True

    knobs = SimpleNamespace(autotuning=SimpleNamespace(cache=False))
    monkeypatch.setattr(devicerunner, "tuned", {})
    monkeypatch.setattr(devicerunner, "asked", [])
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", SimpleNamespace(Autotuner=Tuner))
    monkeypatch.setitem(sys.modules, "triton.knobs", knobs)
    devicerunner.keep_tuned()
    for key, timed in (("a", False), ("b", False), ("a", True)):
        tuner = Tuner()

        def measure(key: str = key, tuner: Tuner = tuner) -> None:
            measured.append(key)
            tuner.cache[key] = 2

        monkeypatch.setattr(devicerunner, "tunes_itself", timed)
        tuner.check_disk_cache(key, [], measure)
        assert tuner.cache == {key: 1 if (key, timed) == ("a", False) else 2}
    assert measured == ["b", "a"] and knobs.autotuning.cache
    assert devicerunner.tuned == {"probe a": 1, "probe b": 1}
    # The next timed runner uses the first runner's choice, unless the kernel lacks that configuration.
    for choice, taken in ((0, 1), (1, 2), (7, 2)):
        devicerunner.tuned.update({"probe a": choice})
        tuner = Tuner()
        tuner.check_disk_cache("a", [], lambda tuner=tuner: tuner.cache.update(a=2))
        assert tuner.cache == {"a": taken}
    # In a call of the build, the autotuner measures again and ignores earlier choices.
    measured.clear()
    with devicerunner.tuning_anew():
        assert tuner.cache == {}
        tuner.check_disk_cache("a", [], lambda: tuner.cache.update(a=2) or measured.append("anew"))
    assert (measured, tuner.cache, devicerunner.tunes_itself) == (["anew"], {}, False)


@pytest.mark.parametrize("builds", [True, False])
@pytest.mark.parametrize("lacks", ["", "mode", "caches"])
def test_a_builder_compiles_all_at_once_then_measures(monkeypatch: Patch, builds: bool, lacks: str) -> None:
    """A builder compiles two configurations at the same time; a third does not compile. Other runners only measure."""
    both, done, failures = threading.Barrier(2), list[str](), list[str]()
    pools, futures = list[ThreadPoolExecutor](), list[Future[None]]()
    caches = {0: "kernels in memory"}
    blocks = ({"BLOCK": name} for name in ("small", "fails", "large"))
    configs = [SimpleNamespace(pre_hook=None, all_kwargs=block.copy) for block in blocks]

    @contextmanager
    def asynchronous(pool: ThreadPoolExecutor, *, ignore_errors: bool) -> Iterator[None]:
        """Stand in for Triton's mode in which kernels are compiled in threads."""
        pools.append(pool)
        yield
        wait(futures)

    def compile_one(name: str) -> None:
        both.wait(60)
        done.append(name)

    def compiled(x: int, *, grid: object, warmup: bool, BLOCK: str) -> None:
        assert (x, grid, warmup) == (1, (2,), True)
        if BLOCK == "fails":
            failures.append(BLOCK)
            raise ValueError("does not compile")
        futures.append(pools[-1].submit(compile_one, BLOCK))

    class Tuner:
        fn = SimpleNamespace(run=compiled, fn=SimpleNamespace(device_caches=caches))

        def run(self, *arguments: int, **named: object) -> None:
            def measure() -> None:
                done.append("measured")

            self.check_disk_cache("key", configs, measure)

        def check_disk_cache(self, key: str, configs: object, measure: Callable[[], None]) -> bool:
            measure()
            return False

    if lacks == "caches":
        Tuner.fn = SimpleNamespace(run=compiled, fn=SimpleNamespace())
    mode = {} if lacks == "mode" else {"AsyncCompileMode": asynchronous}
    monkeypatch.setattr(devicerunner, "asked", [])
    monkeypatch.setattr(devicerunner, "builds", builds)
    monkeypatch.setattr(devicerunner, "compilers", lambda: 2)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(**mode))
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", SimpleNamespace(Autotuner=Tuner))
    monkeypatch.setitem(sys.modules, "triton.knobs", SimpleNamespace(autotuning=SimpleNamespace(cache=False)))
    devicerunner.keep_tuned()
    Tuner().run(1, grid=(2,), warmup=False)
    is_ahead = builds and lacks != "mode"
    assert sorted(done[:-1]) == (["large", "small"] if is_ahead else []) and done[-1] == "measured"
    assert bool(failures) == is_ahead and not devicerunner.given
    assert bool(caches) == (not builds or lacks == "caches"), "the failed kernel is asked for again"


def test_builders_wait_for_a_kernel_no_longer_than_a_call_may_take() -> None:
    """`_call_all` returns two lists: calls that were not completed because the builder ended, and calls that raised."""
    asked: list[tuple[str, float | None]] = []

    def command(header: dict[str, str], timeout_s: float | None = None) -> Call:
        asked.append((header["op"], timeout_s))
        if header.get("ends"):
            session.death = Call("timeout")
        return Call("exception" if header.get("raises") else "ok")

    session = SimpleNamespace(death=None, load_error=None, command=command)
    warm, raises, ends = {"op": "warm"}, {"op": "warm", "raises": "x"}, {"op": "warm", "ends": "x"}
    made = host._call_all(session, [warm, raises, ends, warm], 4.0)  # type: ignore[arg-type]
    assert asked == [("warm", None), ("settle", 4.0)] * 3 and made == ([ends, warm], [raises])


def test_the_build_tunes_in_the_timed_shape_of_parts_that_are_timed() -> None:
    assignment = loading.load(ROOT / "labs" / "gpu" / "assignment.yaml")
    part = assignment.part("softmax")
    for timed, tuned in (({"gelu"}, []), ({"softmax"}, [True])):
        device = SimpleNamespace(assignment=assignment, shape=SHAPE, timed=timed)
        jobs = host.DeviceHost.jobs_of(device, part)  # type: ignore[arg-type]
        assert [job["tunes"] for job in jobs if "tunes" in job] == tuned
        assert len(jobs) == len(part.cases) + len(tuned)


def test_calls_that_a_builder_missed_are_made_again(monkeypatch: Patch) -> None:
    """If a builder crashes, each call that it did not complete gets a new builder. All calls that raised share one."""
    tried: list[list[str]] = []

    def call_all(session: object, jobs: list[dict[str, str]], limit_s: float) -> tuple[list[Any], list[Any]]:
        tried.append([job["name"] for job in jobs])
        return (jobs[1:3], jobs[3:]) if len(tried) == 1 else ([], [])

    monkeypatch.setattr(host, "_call_all", call_all)
    zygote, caches = MagicMock(), MagicMock()
    zygote.caches, place = caches, SimpleNamespace(zygote=zygote, interprets=False)
    device = SimpleNamespace(place=place, assignment=SimpleNamespace(limits=SimpleNamespace(call_s=4.0)))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    jobs = [{"name": name} for name in "abcde"]
    made = host.DeviceHost._compiled(device, Path("kernels.py"), jobs, is_kits=False)  # type: ignore[arg-type]
    assert not made[1], "False if a builder did not load the file"
    assert tried == [["a", "b", "c", "d", "e"], ["b"], ["c"], ["d", "e"]]
    assert caches.seal.call_count == 4 and caches.merge.call_count == 3
