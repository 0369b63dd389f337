"""Delays, under which a race shows even where each thread could finish its share within one time slice."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from building import binding as binding_of
from building import includes
from conftest import ASSIGNMENT, keeping, needs_delays, write
from native_programs import asked, program

from grader.assignment.mutations import Mutation, edited
from grader.backends import binding
from grader.backends.faults import Faulty
from grader.backends.native.backend import NativeBackend
from grader.backends.native.nativehost import NativeHost
from grader.backends.torch.torchbuild import build
from grader.backends.torch.zygote import Zygote
from grader.core import machine
from grader.explain import comparison
from grader.judge.bench import Options
from grader.judge.correctness import met_s
from grader.judge.marker import Marker
from grader.judge.timing.rounds import TimedInputs
from grader.runner.calls import Call
from grader.runner.session import Session
from grader.sandbox.tiers import choose
from labs.attention import kernels, oracle
from labs.attention.cases import make_inputs

#: Some milliseconds of work in all: about one for each of the eight threads.
N = 256
#: Few enough scores for torch to clear them in one thread: threads that wait busily count as shared work.
SERIAL_N = 128
CALLS, SERIAL_CALLS = 30, 300
ONE_ROW_FOR_ALL = Mutation("one row", "part3", (("int row = omp_get_thread_num();", "int row = 0;"),))

Start = Callable[[Path, str], Session]


@pytest.fixture(scope="module", params=["native", pytest.param("with torch", marks=pytest.mark.full)])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a source on one core, so that threads switch only when the system makes them."""
    how = {"threads": 8, "cpus": machine.usable_cpus()[:1], "call_timeout_s": 60}
    if request.param == "native":
        with NativeHost() as host:
            yield lambda folder, text: host.spawn(program(folder, text), **how)
    else:
        with Zygote(sandbox=choose()) as zygote:
            spawn = partial(zygote.spawn, "student", **how)
            yield lambda folder, text: spawn(str(build(write(folder, text)).object_path))


def right_answers(session: Session, part_name: str, calls: int, n: int = N) -> int:
    """Return how many of these calls with delays are right, after a first call that shows if threads share the work."""
    part, shape = ASSIGNMENT.part(part_name), {**ASSIGNMENT.defaults, "N": n}
    inputs = make_inputs("random", shape, 1)
    expected = oracle.ORACLES[part.oracle].expected(inputs, shape)
    request = binding.request(part, shape, inputs)
    made = [session.call(request, delays=number > 0) for number in range(calls + 1)]
    assert {call.status for call in made} == {"ok"}
    return sum(comparison.compare(expected, call.output).ok for call in made[1:])


@needs_delays
def test_a_race_shows_on_one_core(master: str, start: Start, tmp_path: Path) -> None:
    racy = keeping(edited(master, ONE_ROW_FOR_ALL, kernels), "myFusedAttention")
    with start(tmp_path, racy) as session:
        # Where this was written: nearly every call with delays is wrong, and hardly any without.
        assert right_answers(session, "part3", CALLS) < 3 * CALLS / 4


def test_delays_leave_right_answers_right(master: str, start: Start, tmp_path: Path) -> None:
    with start(tmp_path, keeping(master, "myFusedAttention")) as session:
        assert right_answers(session, "part3", CALLS) == CALLS
        assert session.shares_work or sys.platform != "linux"


@needs_delays
def test_a_serial_kernel_is_not_delayed(master: str, start: Start, tmp_path: Path) -> None:
    with start(tmp_path, keeping(master, "myUnfusedAttentionBlocked")) as session:
        # Enough to outweigh idle threads of torch that still wait busily when the first call begins.
        assert right_answers(session, "part2", SERIAL_CALLS, SERIAL_N) == SERIAL_CALLS
        assert not session.shares_work


SIGNS = r"""
torch::Tensor signs(torch::Tensor t) {
#pragma omp parallel
  t.data_ptr<float>()[0] = 1;
  struct sigaction now;
  sigaction(SIGALRM, nullptr, &now);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  itimerspec left = {};
  torch::Tensor seen = torch::zeros({4});
  float *first = seen.data_ptr<float>();
  first[0] = (float)((uintptr_t)now.sa_handler & 0xffffff);
  first[1] = (float)sigismember(&mask, SIGALRM);
  first[2] = (float)syscall(SYS_timer_gettime, 0, &left);
  first[3] = (float)left.it_value.tv_nsec;
  return seen;
}
torch::Tensor undo(torch::Tensor t) {
  signal(SIGALRM, SIG_IGN);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  return t;
}
"""


@needs_delays
def test_a_kernel_does_not_see_whether_a_call_is_delayed(tmp_path: Path) -> None:
    text = includes("csignal ctime omp.h sys/syscall.h unistd.h") + SIGNS + binding_of("signs", "undo")
    with NativeHost() as host, host.spawn(program(tmp_path, text), threads=2) as session:
        seen = [session.call(asked("signs"), delays=delays) for delays in (False, True, False, True)]
        assert session.shares_work and {call.status for call in seen} == {"ok"}
        assert session.call(asked("undo")).status == "ok"
        seen.append(session.call(asked("signs"), delays=True))
    assert [call.output.tolist() for call in seen[1:]] == [seen[0].output.tolist()] * 4
    assert seen[0].output[0] > 1, "a handler is there before any call with delays"


@needs_delays
def test_initialisers_cannot_take_the_timer_away(tmp_path: Path) -> None:
    take = "for (int k = 0, id; k < 20000; k++) syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &id);"
    text = includes("ctime sys/syscall.h unistd.h") + f"static int taken = [] {{ {take} return 1; }}();\n"
    text += "torch::Tensor same(torch::Tensor t) { return t; }\n" + binding_of("same")
    with NativeHost() as host, host.spawn(program(tmp_path, text), threads=2) as session:
        assert session.death is not None and session.death.status == "crash"


@needs_delays
def test_a_race_at_the_timed_sizes_alone_is_wrong(master: str, tmp_path: Path) -> None:
    """On one core a timed call passes; the delayed call beside it does not."""
    racy = keeping(edited(master, ONE_ROW_FOR_ALL, kernels), "myFusedAttention")
    racy = racy.replace("parallel for collapse(3)", f"parallel for collapse(3) if(N == {N})")
    assert f"if(N == {N})" in racy
    part, shape = ASSIGNMENT.part("part3"), {**ASSIGNMENT.defaults, "N": N}
    how = {"threads": 8, "cpus": machine.usable_cpus()[:1], "call_timeout_s": 60}
    for text, has_race in ((racy, True), (keeping(master, "myFusedAttention"), False)):
        bench = SimpleNamespace(assignment=ASSIGNMENT, shape=shape, options=Options(), emit=str, command="")
        bench.source, bench.backend = write(tmp_path, text), lambda part: NativeBackend(None, None, None)
        draw = TimedInputs(Marker(bench, part), 149)  # type: ignore[arg-type]
        with NativeHost() as host, host.spawn(program(tmp_path, text), **how) as session:
            draw.called(session, is_reference=False)
            try:
                for _ in range(CALLS):
                    draw.check_delayed(session, is_reference=False)
            except Faulty as fault:
                assert has_race and fault.verdict == "wrong" and fault.diagnosis.code == "race", fault
            else:
                assert not has_race


def test_a_delayed_call_has_any_place_and_other_programs_time_does_not_count() -> None:
    draw = TimedInputs(None, 149)  # type: ignore[arg-type]
    assert {draw.place(count) for count in range(20)} == {0, 1, 2}
    # Where eight programs share a core, calls of 10 ms last 80: a race that needs 100 ms to show would pass.
    assert met_s(Call("ok", wall_s=0.08, cpu_s=0.01)) == 0.01
    assert met_s(Call("ok", wall_s=0.01, cpu_s=0.02)) == 0.01
    assert met_s(Call("ok", wall_s=0.08)) == 0.08
