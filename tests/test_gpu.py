"""Tests that need a GPU: the lab's masters with times, and files that try to deceive the clock.

They are skipped on a machine without a GPU. An attack is code that is appended to a right file. It redefines `product`,
which stays right in single calls. A line "#### name: result" before the code names the required result of a timed call:
    ok           the attack gains nothing
    wrong        outputs differ from the reference's, or inputs were changed
    ended        the runner is killed
    raised       the call raises an exception
    takes much   as "ok"; or the call raises an exception, because the GPU has less free memory than it requests
"""

import fcntl
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, write

from grader.assignment.loading import load
from grader.backends.gpu.card import finding
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.sandbox import OPEN, Sandbox, choose

pytestmark = pytest.mark.skipif(not finding.is_here(), reason="this machine has no GPU")

ASSIGNMENT = load(ROOT / "labs" / "gpu" / "assignment.yaml")
SOURCE = ROOT / "labs" / "gpu" / "kernels.py"
SIDE = 2048
#: Least allowed ratio of the student's time to the reference's. The master's matmul has 0.76 to 0.82. An attack that
#: occupies half of the GPU during every second call of the reference slows the reference, so that the ratio is 0.55.
LEAST_RATIO = 0.65
_TEXTS = """
#### plain: ok
#### patched clocks: ok
import time
class _Event:
    def __init__(self, *a, **k): pass
    def record(self, *a): pass
    def elapsed_time(self, other): return 1e-6
    def synchronize(self): pass
torch.cuda.Event = _Event
time.perf_counter = time.time = time.monotonic = lambda: 0.0
#### synchronize does nothing: ok
# Still right, because the measured time ends only after the judge's own copy of the output.
torch.cuda.synchronize = lambda *a, **k: None
#### work on a side stream, nobody waits: wrong
torch.cuda.synchronize = lambda *a, **k: None
_stream = None
def product(a, b, c):
    global _stream
    _stream = _stream or torch.cuda.Stream()
    with torch.cuda.stream(_stream):
        torch.cuda._sleep(20_000_000)
        _product_plainly(a, b, c)
#### answers before the end: wrong
import gc, json, os, struct, sys
_calls = 0
def product(a, b, c):
    global _calls
    _calls += 1
    if _calls > 40:
        frame = sys._getframe()
        while frame is not None and "self" not in frame.f_locals or not hasattr(frame.f_locals.get("self"), "reply_fd"):
            frame = frame.f_back
        text = json.dumps({"status": "ok", "kind": 0, "dtype": 0, "shape": []}).encode()
        os.write(frame.f_locals["self"].reply_fd, struct.pack("<IQ", len(text), 0) + text)
        torch.cuda._sleep(200_000_000)
    _product_plainly(a, b, c)
#### outputs remembered by pointer: wrong
_known = {}
def product(a, b, c):
    if c.data_ptr() in _known:
        c.copy_(_known[c.data_ptr()])
        return
    _product_plainly(a, b, c)
    _known[c.data_ptr()] = c.clone()
#### outputs remembered by content: takes much
_known = {}
def product(a, b, c):
    key = float(a.flatten()[:64].float().sum()), float(b.flatten()[-64:].float().sum())
    if key in _known:
        c.copy_(_known[key])
        return
    _product_plainly(a, b, c)
    _known[key] = c.clone()
#### work before go: ok
_sets, _late, _passes = {}, None, 0
def product(a, b, c):
    # At the end of a call, launch work on all sets that begins some milliseconds later.
    global _late, _passes
    if a.shape[0] < SIDE:
        return _product_plainly(a, b, c)
    _late = _late or torch.cuda.Stream()
    _sets.setdefault(c.data_ptr(), (a, b, c))
    pointers = list(_sets) if c.data_ptr() in (next(iter(_sets)), next(reversed(_sets))) else ()
    if pointers and c.data_ptr() == pointers[0]:
        _passes += 1
    if _passes <= 2:
        _product_plainly(a, b, c)
    if _passes >= 2 and pointers and c.data_ptr() == pointers[-1]:
        torch.cuda.synchronize()
        torch.cuda.synchronize = lambda *x, **y: None
        with torch.cuda.stream(_late):
            torch.cuda._sleep(SLEEP)
            for one in _sets.values():
                _product_plainly(*one)
#### writes into the inputs: wrong
def product(a, b, c):
    a.zero_()
    c.zero_()
#### an illegal address: raised
@triton.jit
def _wild(p):
    tl.store(p + (1 << 44) + tl.arange(0, 128), 1.0)
def product(a, b, c):
    _wild[(1,)](c)
#### no end: ended
def product(a, b, c):
    torch.cuda._sleep(1 << 50)
#### 70 GB: takes much
def product(a, b, c):
    much = torch.empty(70 << 30, dtype=torch.uint8, device="cuda")
    much[::1 << 20] = 1
    _product_plainly(a, b, c)
#### a child process: ended
import os
def product(a, b, c):
    if os.fork() == 0:
        os._exit(0)
#### memory of before: ok
_old = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
print("bytes left behind by others:", any(bool(_part.any()) for _part in _old.split(1 << 28)))
del _old
#### forged profile: ok
torch.autograd.profiler.profile.events = lambda self, *a, **k: []
def product(a, b, c):
    getattr(torch, "m" + "m")(a[:16, :16], b[:16, :16])
    _product_plainly(a, b, c)
#### work left for the reference's time: ok
_beside, _wait = None, torch.cuda.synchronize
def product(a, b, c):
    # One spinning thread does not slow its own process, but takes half of the GPU from every other process.
    global _beside
    if a.shape[0] < SIDE:
        return _product_plainly(a, b, c)
    if _beside is None:
        _beside = torch.cuda.Stream()
        torch.cuda.synchronize = lambda *x, **y: torch.cuda.current_stream().synchronize()
    if _beside.query():
        with torch.cuda.stream(_beside):
            torch.cuda._sleep(2_000_000_000)
    _product_plainly(a, b, c)
#### longer when there is little to do: ok
import time
_calls, _wait = 0, torch.cuda.synchronize
def product(a, b, c):
    global _calls
    _calls += 1
    _product_plainly(a, b, c)
def _synchronize(*a, **k):
    # Lengthen calls on few sets: their time is subtracted from the others'.
    global _calls
    few, _calls = _calls < 2, 0
    _wait()
    if few:
        time.sleep(0.03)
torch.cuda.synchronize = _synchronize
#### calls put off until all are known: ok
_put_off, _wait = [], torch.cuda.synchronize
def product(a, b, c):
    if a.shape[0] < SIDE:
        return _product_plainly(a, b, c)
    _put_off.append((a, b, c))
def _synchronize(*x, **y):
    for one in _put_off:
        _product_plainly(*one)
    _put_off.clear()
    _wait()
torch.cuda.synchronize = _synchronize
#### sets beside one another: ok
_streams, _calls = [], 0
def product(a, b, c):
    # The next set begins on the part of the GPU that the end of this one leaves free.
    global _calls
    _calls += 1
    if not _streams:
        _streams.extend(torch.cuda.Stream() for _ in range(4))
    with torch.cuda.stream(_streams[_calls % 4]):
        _product_plainly(a, b, c)
"""
_PARTS = re.split(r"^#### (.+): (.+)\n", _TEXTS, flags=re.MULTILINE)[1:]
ATTACKS: dict[str, tuple[str, str]] = {
    name: (end, f"\n_product_plainly = product\n{text}")
    for name, end, text in zip(_PARTS[::3], _PARTS[1::3], _PARTS[2::3], strict=True)
}
ENDS = {"ok": {"pass", "slow"}, "wrong": {"wrong"}, "raised": {"crash"}}
# An attack "takes much" requests much memory, and crashes if the GPU has less.
ENDS |= {"ended": {"timeout", "crash", "wrong", "rejected"}, "takes much": {"pass", "slow", "crash"}}


@pytest.fixture(autouse=True)
def alone_on_the_gpu() -> Iterator[None]:
    """Let tests of parallel workers use the GPU one at a time, because they fill its memory and measure times."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return choose()
    except Exception:
        return OPEN


@pytest.mark.parametrize("part", [part.id for part in ASSIGNMENT.parts])
def test_the_master_is_right_and_in_time(part: str, sandbox: Sandbox) -> None:
    (found,) = evaluate(ASSIGNMENT, SOURCE, (ASSIGNMENT.part(part),), Options(), sandbox=sandbox).parts
    assert found.verdict == "pass", found.diagnosis
    assert found.time is not None and found.time.fit


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_clock_gain_nothing(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    end, text = ATTACKS[name]
    for old, new in {"product": "matmul", "SLEEP": str(48 << 20), "SIDE": str(SIDE)}.items():
        text = text.replace(old, new)
    source = write(tmp_path, SOURCE.read_text() + text, "kernels.py")
    whole = ASSIGNMENT.part("matmul")
    part = replace(whole, cases=whole.cases[:1])
    options = Options({"rows": SIDE, "inner": SIDE, "columns": SIDE})
    # A short limit for calls without end. Other calls may need more than this on a busy machine.
    limits = replace(ASSIGNMENT.limits, call_s=5.0) if end == "ended" else ASSIGNMENT.limits
    assignment = replace(ASSIGNMENT, parts=(part,), limits=limits)
    (found,) = evaluate(assignment, source, (part,), options, sandbox=sandbox).parts
    assert found.verdict in ENDS[end] | ({"wrong"} if end in ("ok", "takes much") else set()), found.diagnosis
    is_timed = found.time is not None and found.verdict != "wrong"
    assert not is_timed or found.time.ratio > LEAST_RATIO, "the attack must not improve the time"


#: CUDA code that reserves as much of the L2 cache as CUDA allows, to keep inputs in the cache between calls.
KEEPS_L2 = """
    static cudaStream_t own = nullptr;
    if (!own) {
        cudaStreamCreate(&own);
        cudaDeviceProp card;
        cudaGetDeviceProperties(&card, 0);
        cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, card.persistingL2CacheMaxSize);
    }
    cudaStreamAttrValue kept = {};
    kept.accessPolicyWindow.base_ptr = const_cast<float *>(x);
    kept.accessPolicyWindow.num_bytes = sizeof(float) * R * C < (16 << 20) ? sizeof(float) * R * C : 16 << 20;
    kept.accessPolicyWindow.hitRatio = 1.0f;
    kept.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    kept.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    cudaStreamSetAttribute(own, cudaStreamAttributeAccessPolicyWindow, &kept);
    cudaGetLastError();
    stream = own;
"""


def test_keeping_data_in_the_l2_cache_gains_no_time(sandbox: Sandbox, tmp_path: Path) -> None:
    part, source = ASSIGNMENT.part("gelu_cuda"), tmp_path / "kernels.cu"
    text, ratios = (ROOT / "labs" / "gpu" / "kernels.cu").read_text(), []
    first = "const long long count = (long long)R * C;"
    assert first in text
    for changed in (text, text.replace(first, KEEPS_L2 + first)):
        source.write_text(changed)
        (tmp_path / "kernels.py").write_text(SOURCE.read_text())
        (found,) = evaluate(ASSIGNMENT, tmp_path / "kernels.py", (part,), Options(), sandbox=sandbox).parts
        # Reserving part of the L2 cache costs time within the call, so the verdict may be "slow".
        assert found.verdict in ("pass", "slow")[: 1 + len(ratios)], found.diagnosis
        ratios.append(found.time.ratio)
    assert ratios[1] > 0.9 * ratios[0]
