# ruff: noqa: E501
"""Rounds of the reference against 1.3 times its work and against itself, and verdicts resampled from them."""

from __future__ import annotations

import statistics
import time

from gpu_steps.common import ROOT, WORK, lab, working


def step_slower() -> None:
    """Rounds of the reference against itself, and against 1.3 times its work: verdicts resampled from them."""
    import random
    from contextlib import ExitStack
    from itertools import islice

    from grader.build.records import Build
    from grader.judge.bench import Bench, Options
    from grader.judge.correctness import Runners
    from grader.judge.marking import Marker
    from grader.judge.ondevice import host
    from grader.judge.ondevice.timing import DeviceRounds
    from grader.judge.timing import measure

    sandbox, assignment = working(), lab()
    source = ROOT / "labs" / "gpu" / "reference.py"
    slow = WORK / "slow.py"
    for name, what, count in (
        ("matmul", "1.3", 4),
        ("flash_forward", "1.3", 4),
        ("matmul", "A/A", 5),
        ("softmax", "A/A", 4),
    ):
        part = assignment.part(name)
        begun = time.perf_counter()
        slow.write_text(
            source.read_text()
            + f"\n_plain, _n = {part.function}, 0\ndef {part.function}(*a):\n    global _n\n    _n += 1\n    if _n % 10 < 3:\n        _plain(*a)\n    return _plain(*a)\n"
        )
        for path in (source,) if what == "A/A" else (slow,):
            with ExitStack() as stack:
                built = Build(
                    ok=True,
                    object_path=path,
                    cached=False,
                    diagnostics="",
                    notes=(),
                    wall_s=0,
                    cpu_s=0,
                    key="",
                )
                device = stack.enter_context(
                    host.DeviceHost(assignment, {"triton": built}, [part], assignment.defaults, sandbox)
                )
                bench = Bench(
                    assignment,
                    path,
                    Options(),
                    lambda event: None,
                    built,
                    device.place.zygote,
                    stack,
                    device=device,
                )
                rounds = DeviceRounds(Marker(bench, part), Runners(bench, part).fresh, 7, stack)
                taken = list(islice(measure.play(rounds), count))
            policy = measure.TimePolicy(
                clock="wall",
                allowance_ratio=part.time.allowance_ratio if what == "A/A" else 1.1,
                allowance_ms=0.0,
                budget_s=None,
            )
            ratios = measure._view(taken, policy, "wall").ratios()
            draw, ends = random.Random(1), []
            for _ in range(200):
                found = measure.sequential((draw.choice(taken) for _ in range(30)), policy)
                ends.append((found.verdict, found.rounds, "undecided" in found.flags))
            slow_share = sum(end[0] == "slow" for end in ends) / len(ends)
            print(
                f"{name} {what}: sets {rounds.mine.sets}, {rounds.set_s * 1e3:.4f} ms; ratios {[round(r, 3) for r in ratios]}; of 200 resampled slow {slow_share:.3f}, undecided {sum(e[2] for e in ends)}, rounds {statistics.mean(e[1] for e in ends):.1f}; self {[round(one.reference[0].wall_s / one.reference[1].wall_s, 3) for one in taken]}; {time.perf_counter() - begun:.1f} s",
                flush=True,
            )
