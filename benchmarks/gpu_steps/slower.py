# ruff: noqa: E501
"""Rounds of the reference against itself and against 1.3 times its work, and verdicts resampled from them."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from gpu_steps.common import ROOT, WORK, lab, working

RESAMPLED = 200
#: Rounds recorded of each; at least three settle a verdict.
ROUNDS = {"A/A": 5, "1.3": 6}
#: What earlier runs have not shown comes first (docs/gpu.md).
PARTS = ("flash_forward", "matmul", "gelu", "softmax_long", "flash_backward", "gelu_cuda", "softmax")
PYTHON = """
_plain, _calls = {function}, 0
def {function}(*arguments):
    global _calls
    _calls += 1
    if _calls % 10 < 3:
        _plain(*arguments)
    return _plain(*arguments)
"""
CUDA = """
extern "C" int gelu(const float *x, float *y, int R, int C, void *stream) {
    static int calls = 0;
    if (++calls % 10 < 3) {
        plain(x, y, R, C, stream);
    }
    return plain(x, y, R, C, stream);
}
"""


def step_slower() -> None:
    """1.3 times the reference's work, of every part."""
    for name in PARTS:
        recorded(name, "1.3")


def step_aa() -> None:
    """The reference against itself, of every part."""
    for name in PARTS:
        recorded(name, "A/A")


def file_of(language: str, function: str, what: str) -> Path:
    """The reference's source of one language, or one that calls it 13 times instead of 10."""
    source = ROOT / "labs" / "gpu" / ("reference.cu" if language == "cuda" else "reference.py")
    if what == "A/A":
        return source
    slow, text = WORK / f"slow{source.suffix}", source.read_text()
    if language == "cuda":
        slow.write_text(text.replace('extern "C" int gelu(', "static int plain(") + CUDA)
    else:
        slow.write_text(text + PYTHON.format(function=function))
    return slow


def recorded(name: str, what: str) -> None:
    """Print the ratios of some rounds and the ends of verdicts that are resampled from them."""
    from grader.backends.gpu import devicebuild, host
    from grader.backends.gpu.card.finding import architecture
    from grader.backends.gpu.timing import DeviceRounds
    from grader.backends.torch.zygote import Zygote
    from grader.judge.bench import Bench, Options
    from grader.judge.correctness import Runners
    from grader.judge.marking import Marker
    from grader.judge.timing import measure
    from grader.judge.timing.rounds import timed_part

    sandbox, assignment = working(), lab()
    part = assignment.part(name)
    assert part.device is not None and part.time is not None
    begun, language = time.perf_counter(), part.device.language
    path = file_of(language, part.function, what)
    made = devicebuild.cuda(path, architecture()) if language == "cuda" else devicebuild.python(path)
    assert made.ok, made.diagnostics
    with ExitStack() as stack:
        device = stack.enter_context(
            host.DeviceHost(assignment, {language: made}, [part], assignment.defaults, sandbox, Zygote)
        )
        bench = Bench(
            assignment, path, Options(), lambda event: None, made, device.place.zygote, stack, device=device
        )
        timed = timed_part(Marker(bench, part), Runners(bench, part).fresh, attempt=1)
        rounds = DeviceRounds(timed, device, stack)
        taken = list(islice(rounds.play(), ROUNDS[what]))
    policy = measure.TimePolicy(
        clock="wall",
        allowance_ratio=part.time.allowance_ratio if what == "A/A" else 1.1,
        allowance_ms=0.0,
        budget_s=None,
    )
    draw, verdicts = random.Random(1), []
    for _ in range(RESAMPLED):
        found = measure.sequential((draw.choice(taken) for _ in range(30)), policy)
        end = found.verdict if found.fit else "unfit, to be measured again"
        verdicts.append((end, found.rounds, "undecided" in found.flags))
    ends = dict(Counter(end for end, _, _ in verdicts))
    ratios = [round(ratio, 3) for ratio in measure._view(taken, policy, "wall").ratios()]
    own = [round(one.reference[0].wall_s / one.reference[1].wall_s, 3) for one in taken]
    print(
        f"{name} {what}: sets {rounds.mine.sets}, {rounds.set_s * 1e3:.4f} ms; ratios {ratios}; of {RESAMPLED} resampled {ends}, "
        f"undecided {sum(undecided for _, _, undecided in verdicts)}, rounds {statistics.mean(count for _, count, _ in verdicts):.1f}; self {own}; {time.perf_counter() - begun:.1f} s",
        flush=True,
    )
