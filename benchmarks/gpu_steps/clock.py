# ruff: noqa: E501
"""The judge's clock against CUDA events, in the very same calls: the file that is timed records events around them."""

from __future__ import annotations

import re
import statistics

from gpu_steps.common import ARGUMENTS, KERNELS, WORK, product_tensors, quartiles, spawn, timed, zygote

EVENTS = """
_begun, _done, _waits, _calls = None, None, torch.cuda.synchronize, 0
def _watched(act):
    def call(*given):
        global _begun, _done, _calls
        if _calls == 0:
            _begun, _done = _begun or torch.cuda.Event(enable_timing=True), _done or torch.cuda.Event(enable_timing=True)
            _begun.record()
        _calls += 1
        act(*given)
    return call
product, scale = _watched(product), _watched(scale)
def _synchronize(*a, **k):
    global _calls
    if not _calls:
        return _waits()
    _done.record()
    _waits()
    print("events", _calls, _begun.elapsed_time(_done), flush=True)
    _calls = 0
torch.cuda.synchronize = _synchronize
"""
CALLS = 12


def step_clock() -> None:
    from grader.backends.gpu.card.arena import Arena, Card, Tensor
    from grader.backends.gpu.card.clock import sets_for

    card = Card()
    path = WORK / "events.py"
    path.write_text(KERNELS.read_text() + EVENTS)
    wide = [Tensor("x", (8192, 8192), "float32"), Tensor("y", (8192, 8192), "float32", is_output=True)]
    scaled = [{"input": 0}, {"input": 1}, {"value": 1.5}]
    with zygote() as z:
        for name, function, tensors, arguments, set_s in (
            ("product 4096", "product", product_tensors(4096), ARGUMENTS, 2.7e-4),
            ("product 1024", "product", product_tensors(1024), ARGUMENTS, 2e-5),
            ("scale 8192", "scale", wide, scaled, 1.3e-4),
        ):
            sets = sets_for(tensors, set_s, card.driver.memory()[0])
            arena = Arena(card, tensors, sets)
            with spawn(z, path, arena.fd) as session:
                runner = timed(session, arena, function, arguments)
                ended = runner.warm_up(5)
                if ended:
                    print(name, ended.status, ended.message, session.printed[-300:])
                    continue
                # By the sets that a call is made on; in turns, so that a warm card is warm for all.
                walls: dict[int, list[float]] = {sets: [], sets // 2: [], 1: [], 0: []}
                for k in range(CALLS):
                    for number, found in walls.items():
                        found.append(runner.raw(50 + k, number).wall_s * 1e3)
                runner.session.close()
                told = [
                    (int(n), float(ms)) for n, ms in re.findall(r"events (\d+) ([\d.]+)", session.printed)
                ]
            arena.close()
            events = [ms / n for n, ms in told if n == sets][-CALLS:]
            print(
                f"{name}: {sets} sets, go {quartiles(walls[sets])}, one set {quartiles(walls[1])}, none {quartiles(walls[0])} ms"
            )
            known = statistics.median(events) if events else float("nan")
            for words, few in (("one", 1), ("none", 0), ("half", sets // 2)):
                base = statistics.median(walls[few])
                ours = [(ms - base) / (sets - few) for ms in walls[sets]]
                print(
                    f"  a set, less {words}: {quartiles(ours)} ms, {statistics.median(ours) / known:.4f} of the events'"
                )
            print(f"  a set by CUDA events in these calls: {quartiles(events)} ms", flush=True)
