"""Delays, under which a race shows even where each thread could finish its share within one time slice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import keeping, needs_delays

from grader.assignment import loading
from grader.assignment.mutations import Mutation
from grader.base import machine
from grader.build.torchbuild import build
from grader.judge import binding, comparison
from grader.judge.correctness import met_s
from grader.run.calls import Call
from grader.run.session import Session
from grader.run.zygote import Zygote
from grader.sandbox.tiers import choose
from labs.attention import oracle
from labs.attention.cases import make_inputs
from labs.attention.mutations import apply

ROOT = Path(__file__).resolve().parent.parent
#: Some milliseconds of work in all: about one for each of the eight threads.
N = 256
CALLS = 40
ONE_ROW_FOR_ALL = Mutation("one row", "part3", (("int row = omp_get_thread_num();", "int row = 0;"),))


class Kernel:
    """One of the master's kernels, built from this source, and what it is to answer to random inputs."""

    def __init__(self, source: str, part: str, folder: Path) -> None:
        course = loading.load(ROOT / "configs" / "gpt149.yaml")
        self.part = course.part(part)
        self.shape = {**course.defaults, "N": N}
        self.inputs = make_inputs("random", self.shape, 1)
        self.expected = oracle.ORACLES[self.part.oracle].expected(self.inputs, self.shape)
        path = folder / "module.cpp"
        path.write_text(keeping(source, self.part.function))
        self.object_path = build(path).object_path

    def run(self, zygote: Zygote) -> Session:
        """On one core, so that threads take turns only when the system makes them."""
        assert self.object_path is not None
        return zygote.spawn(
            "student", self.object_path, threads=8, cpus=machine.usable_cpus()[:1], call_timeout_s=60
        )

    def is_right(self, session: Session, *, delays: bool) -> bool:
        call = session.call(binding.request(self.part, self.shape, self.inputs), delays=delays)
        assert call.status == "ok", call
        return bool(comparison.compare(self.expected, call.output).ok)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(sandbox=choose()) as started:
        yield started


@needs_delays
def test_a_race_shows_on_one_core(master: str, zygote: Zygote, tmp_path: Path) -> None:
    racy = Kernel(apply(master, [ONE_ROW_FOR_ALL]), "part3", tmp_path)
    with racy.run(zygote) as session:
        racy.is_right(session, delays=False)  # the first call shows that threads share the work
        answers = [racy.is_right(session, delays=True) for _ in range(CALLS)]
    # Where this was written: nearly every call with delays, and hardly any without.
    assert answers.count(False) > CALLS / 4


def test_delays_leave_right_answers_right(master: str, zygote: Zygote, tmp_path: Path) -> None:
    kernel = Kernel(master, "part3", tmp_path)
    with kernel.run(zygote) as session:
        assert all(kernel.is_right(session, delays=True) for _ in range(CALLS))
        assert session._watch.shares_work()


@needs_delays
def test_a_serial_kernel_is_not_held_up(master: str, zygote: Zygote, tmp_path: Path) -> None:
    kernel = Kernel(master, "part2", tmp_path)
    with kernel.run(zygote) as session:
        assert all(kernel.is_right(session, delays=True) for _ in range(5))
        assert not session._watch.shares_work()


def test_time_that_others_had_does_not_count_as_held_up() -> None:
    """Where eight programs share a core, calls of 10 ms last 80: a race that needs 100 ms to show would pass."""
    assert met_s(Call("ok", wall_s=0.08, cpu_s=0.01)) == 0.01
    assert met_s(Call("ok", wall_s=0.01, cpu_s=0.02)) == 0.01
    assert met_s(Call("ok", wall_s=0.08)) == 0.08
