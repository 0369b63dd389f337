"""Tests that need a GPU: the lab's masters with times, and files that try to deceive the clock.

Left out on a machine without a GPU.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, write
from gpu.attacks import ATTACKS

from grader.assignment.loading import load
from grader.backends.gpu.card import finding
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.sandbox import OPEN, Sandbox, choose

pytestmark = pytest.mark.skipif(not finding.is_here(), reason="this machine has no GPU")

ASSIGNMENT = load(ROOT / "labs" / "gpu" / "assignment.yaml")
SOURCE = ROOT / "labs" / "gpu" / "kernels.py"
SIDE = 2048
#: Least ratio to the reference's time. The master's product has 0.76 to 0.82. It would have 0.55 if the student's
#: process took half of the GPU from the reference in every second call.
LEAST_RATIO = 0.65
ENDS = {"ok": {"pass", "slow"}, "wrong": {"wrong"}, "raised": {"crash"}}
# "takes much": a card may have less left than it asks for.
ENDS |= {"ended": {"timeout", "crash", "wrong", "rejected"}, "takes much": {"pass", "slow", "crash"}}


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
def test_nothing_is_gained(name: str, sandbox: Sandbox, tmp_path: Path) -> None:
    end, text = ATTACKS[name]
    for old, new in {"product": "matmul", "SLEEP": str(48 << 20), "SIDE": str(SIDE)}.items():
        text = text.replace(old, new)
    source = write(tmp_path, SOURCE.read_text() + text, "kernels.py")
    whole = ASSIGNMENT.part("matmul")
    part = replace(whole, cases=whole.cases[:1])
    options = Options({"rows": SIDE, "inner": SIDE, "columns": SIDE})
    assignment = replace(ASSIGNMENT, parts=(part,), limits=replace(ASSIGNMENT.limits, call_s=5.0))
    (found,) = evaluate(assignment, source, (part,), options, sandbox=sandbox).parts
    assert found.verdict in ENDS[end] | ({"wrong"} if end in ("ok", "takes much") else set()), found.diagnosis
    is_timed = found.time is not None and found.verdict != "wrong"
    assert not is_timed or found.time.ratio > LEAST_RATIO, "no time that is better than one's own"


#: Sets aside as much of the L2 cache as it may, to keep the inputs in it from one call to the next.
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


def test_what_a_kernel_keeps_in_the_l2_cache_gains_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    part, source = ASSIGNMENT.part("gelu_cuda"), tmp_path / "kernels.cu"
    text, ratios = (ROOT / "labs" / "gpu" / "kernels.cu").read_text(), []
    first = "const long long count = (long long)R * C;"
    assert first in text
    for changed in (text, text.replace(first, KEEPS_L2 + first)):
        source.write_text(changed)
        (tmp_path / "kernels.py").write_text(SOURCE.read_text())
        (found,) = evaluate(ASSIGNMENT, tmp_path / "kernels.py", (part,), Options(), sandbox=sandbox).parts
        # Setting the window of the L2 cache takes part of the student's time, so the verdict may be "slow".
        assert found.verdict in ("pass", "slow")[: 1 + len(ratios)], found.diagnosis
        assert found.time is not None
        ratios.append(found.time.ratio)
    assert ratios[1] > 0.9 * ratios[0]
