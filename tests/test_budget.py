"""All calls of a part share one limit: a submission cannot delay a class by sleeping or by slow calls."""

from pathlib import Path

from building import binding, includes
from native_programs import asked, program

from grader.backends.native.nativehost import NativeHost
from grader.runner.calls import MOST_CALLS, MOST_IDLE_CALLS, Budget, Call

KERNELS = """
torch::Tensor nap(torch::Tensor t) { usleep(100000); return t; }
torch::Tensor work(torch::Tensor t) {
  timespec from, now;
  clock_gettime(CLOCK_MONOTONIC, &from);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while ((now.tv_sec - from.tv_sec) * 1000000000L + now.tv_nsec - from.tv_nsec < 100000000L);
  return t;
}
"""


def test_naps_and_work_are_separated_and_both_have_an_end(tmp_path: Path) -> None:
    made = program(tmp_path, includes("ctime unistd.h") + KERNELS + binding("nap", "work"))
    with NativeHost() as host:
        for name, idles in (("nap", True), ("work", False)):
            budget, calls = Budget(0.1), []
            for _ in range(10 * MOST_CALLS):
                # As in a verdict, each call may have a runner of its own.
                with host.spawn(made, threads=1) as session:
                    session.budget = budget
                    calls.append(session.call(asked(name)))
                if calls[-1].status != "ok":
                    break
            assert calls[-1].status == "timeout", "a limit for all calls together"
            assert ("waited for" in calls[-1].message) == idles, (calls[-1].message, vars(budget))
            if calls[0].idle_s is not None:
                assert (calls[0].idle_s > 0.08) == idles, calls[0]
                assert not idles or len(calls) <= MOST_IDLE_CALLS + 2


def test_waiting_for_a_core_is_not_counted() -> None:
    budget = Budget(1.0)
    for _ in range(100):
        budget.spend(Call("ok", wall_s=10.0, cpu_s=0.1, idle_s=0.0, own_s=0.1))
    assert budget.excess() == ""
    budget.spend(Call("ok", wall_s=10.0))
    assert "took 20 s" in budget.excess(), "all of it, where the system does not report it"
