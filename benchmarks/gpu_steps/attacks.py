"""Attacks of a submitted file on the clock and the sandbox, tried through the evaluator."""

from __future__ import annotations

from pathlib import Path

from gpu_steps.common import ROOT, WORK, judged, lab, working


def step_attacks() -> None:
    """Run each attack behind the lab's master: the part `matmul` through the evaluator, with one case."""
    from dataclasses import replace

    from gpu.attacks import ATTACKS

    from grader.backends.gpu.card import clock
    from grader.judge.timing import measure

    sandbox = working()
    side = 64 if sandbox.tier == "D" and not Path("/dev/nvidiactl").exists() else 2048
    clock.BASE_CALLS, clock.GO_S, clock.MEMORY_SHARE = 3, 0.03, 0.15
    measure.EARLY_PASS_ROUNDS = 2
    master = (ROOT / "labs" / "gpu" / "kernels.py").read_text()
    assignment = lab()
    part = assignment.part("matmul")
    part = replace(part, cases=part.cases[:1])
    assignment = replace(assignment, parts=(part,), limits=replace(assignment.limits, call_s=4.0))
    # Those that no earlier run reached come first.
    first = (
        "plain",
        "longer when there is little to do",
        "work left for the reference's time",
        "no end",
        "70 GB",
        "a child process",
        "memory of before",
        "forged profile",
        "patched clocks",
        "synchronize does nothing",
        "outputs remembered by content",
        "plain",
    )
    for name in [*first, *(name for name in ATTACKS if name not in first)]:
        end, text = ATTACKS[name]
        path = WORK / "attack.py"
        path.write_text(
            master
            + text.replace("product", "matmul").replace("SLEEP", str(48 << 20)).replace("SIDE", str(side))
        )
        print(f"-- {name} ({end}):", end=" ", flush=True)
        judged(path, ["matmul"], sandbox, assignment, shape={"rows": side, "inner": side, "columns": side})
