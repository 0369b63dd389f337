"""On which cores a timed call runs."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from grader.assignment.loading import load
from grader.base import machine
from grader.base.places import PUBLIC_CONFIG
from grader.doctor import steady
from grader.run import placement
from grader.run.nativehost import NativeHost

CORES = machine.usable_cpus()


@pytest.mark.parametrize(
    ("threads", "cores", "expected"),
    [(None, None, None), (None, 8, None), (None, 4, [0, 1, 2, 3]), (None, 6, [0, 1, 2, 3, 4, 5]), (1, None, [7]),
     (2, 1, [7]), (2, 6, [6, 7]), (16, 16, None)],
)  # fmt: skip
def test_a_limit_of_cores_takes_whole_ones_first(
    threads: int | None, cores: int | None, expected: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight hardware threads 0 and 4 share a core, 1 and 5, and so on."""
    shared = {f"cpu{k}": f"{k % 4},{k % 4 + 4}" for k in range(8)}
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(8)))
    monkeypatch.setattr(machine.Path, "read_text", lambda path: shared[path.parts[-3]])
    assert machine.timing_cpus(threads, cores) == expected


@pytest.mark.skipif(len(CORES) < 2, reason="a limit of cores means nothing on one core")
@pytest.mark.parametrize("cores", [1, None])
def test_a_timed_call_keeps_to_its_cores(cores: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cores` in an assignment holds for every thread of both sides, from before the first call. Without it, threads
    that work are pinned to a core each, as far as there are cores; idle ones may use all of them."""
    assignment = load(PUBLIC_CONFIG)
    part = assignment.part("part3")
    assert part.time is not None
    part = dataclasses.replace(part, time=dataclasses.replace(part.time, cores=cores))
    allowed: list[set[int]] = []
    warm_up = placement.warm_up

    def looked_at(session: object, call: object, **options: object) -> object:
        sample = warm_up(session, call, **options)  # type: ignore[arg-type]
        for thread in os.listdir(f"/proc/{session.pid}/task"):  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                allowed.append(os.sched_getaffinity(int(thread)))
        return sample

    monkeypatch.setattr(placement, "warm_up", looked_at)
    sizes = {**assignment.defaults, "N": 256}
    with NativeHost() as host, steady.reference_twice(host, assignment, part, sizes)():
        pass
    used = set.union(*allowed)
    assert len(allowed) == 2 * sizes["threads"]
    if cores is None:
        assert used <= set(CORES) and len(used) >= min(sizes["threads"], len(CORES))
    else:
        assert used == set(machine.timing_cpus(part.time.threads, cores) or CORES)


@pytest.mark.parametrize(
    ("wall_s", "pages", "calls"),
    [
        pytest.param(0.001, [0] * 9, 4, id="short"),
        pytest.param(0.03, [0, 2, 9], 1, id="settled"),
        pytest.param(0.03, [0, 2000, 2010], 2, id="fresh once"),
        pytest.param(0.03, [0, 4000, 6000, 6010], 3, id="fresh twice"),
        pytest.param(0.03, [0, 2000, 4000, 6000, 8000], 2, id="always fresh"),
        pytest.param(3.0, [0, 2000], 1, id="fresh but long"),
    ],
)
def test_a_call_is_repeated_while_fresh_memory_is_felt(
    wall_s: float, pages: list[int], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "page_faults", Mock(side_effect=pages))
    session = SimpleNamespace(pid=os.getpid(), cpu_clock_s=lambda: 0.0)
    call = Mock(return_value=SimpleNamespace(wall_s=wall_s))
    placement.warm_up(session, call)  # type: ignore[arg-type]
    assert call.call_count == calls


def test_pages_that_are_touched_are_counted() -> None:
    before = placement.page_faults(os.getpid())
    touched = mmap.mmap(-1, 256 * mmap.PAGESIZE)
    for place in range(0, len(touched), mmap.PAGESIZE):
        touched[place] = 1
    assert placement.page_faults(os.getpid()) - before >= 256
    assert placement.page_faults(2**22 + 1) == 0
