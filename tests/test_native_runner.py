"""The native runner and the runner with torch: equal replies to all calls, the cores in use, and limits."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from building import Both, asked, binding, floats, includes, one_function, plain, program, text_of
from conftest import ASSIGNMENT, ROOT, Patch, some, write

from grader.backends import binding as binding_of
from grader.backends.native import nativebuild
from grader.backends.native.nativehost import NativeHost
from grader.backends.torch.torchbuild import build
from grader.backends.torch.zygote import FORK_SERVER, Zygote
from grader.core import errors, machine
from grader.core.arrays import np
from grader.doctor import timing
from grader.runner import placement
from grader.runner.calls import MOST_CALLS, MOST_IDLE_CALLS, Budget, Call, Request
from grader.runner.session import Session
from labs.attention.cases import make_inputs
from module_ref_stub import library

CORES = machine.usable_cpus()
NAMES = """twice in_place in_double whole_numbers other_way nothing_in_it undefined large
list_of change number element put throws_of_row throws ends"""
STANDARD = includes("cstdio cstdlib dlfcn.h stdexcept string unistd.h")
tensors = partial(asked, shape=(2, 3), output=(2, 3))
ENDS = ("SIGABRT", "SIGSEGV", "exit(3)", "exit(4)", "timeout", "SIGFPE")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Iterator[Both]:
    text = STANDARD + text_of("runner_functions.cpp") + binding(NAMES)
    with NativeHost() as host:
        yield Both(zygote, host, write(tmp_path_factory.mktemp("functions"), text))


def same(both: Both, *asked: Request, freeze: bool = True, timeout_s: float = 20, **more: bool) -> list[Call]:
    found = []
    for session in both.sessions(freeze=freeze, call_timeout_s=timeout_s):
        with session:
            calls = [plain(session.call(request, **more)) for request in asked]
        found.append((calls, session.printed))
    assert found[0] == found[1]
    return calls


def twice() -> Request:
    arguments = [{"input": 0}, {"zeros": [2, 3]}, {"value": 6}, {"value": 2.5}]
    return Request("twice", arguments, [floats(2, 3)], (2, 3))


def test_the_greeting_names_functions_and_signatures(both: Both) -> None:
    python, native = (session.functions for session in both.sessions())
    assert native == python
    assert native["twice"] == "T(TTid)" and native["put"] == "v(Wiiif)" and native["number"] == "f(Tfb)"


@pytest.mark.parametrize("freeze", [True, False])
def test_repeated_calls_get_fresh_inputs_and_zeros(both: Both, freeze: bool) -> None:
    """If a runner is not stopped (`freeze` False), it repeats a call in the same memory, with a zero workspace."""
    calls = same(both, twice(), twice(), tensors("in_place", 4), twice(), twice(), freeze=freeze)
    assert [call.status for call in calls] == ["ok"] * 5
    assert [calls[k].output for k in (0, 1, 3, 4)] == [([[2.5, 5.0, 7.5], [10.0, 12.5, 15.0]], "float32")] * 4


def test_results_of_each_kind_are_read(both: Both) -> None:
    reserve = Request("", (), (), op="reserve", reserved_bytes=20 << 20)
    in_double = Request("in_double", [{"input": 0}], [np.full((2,), 0.1)], (2, 3))
    kinds = [
        *[(reserve, "nothing")] * 2,
        *((tensors(name), "a tensor") for name in ("other_way", "whole_numbers", "nothing_in_it")),
        *((tensors("undefined"), "an undefined tensor"), (tensors("number", 2.5, 1), "a number")),
        *((tensors("list_of", size), "a std::vector<float>") for size in (9, 0)),
        *((each, "a tensor") for each in (tensors("large"), in_double)),
        *((tensors("change", 3), "nothing"), (tensors("in_place", 4), "a tensor")),
    ]
    calls = same(both, *(request for request, _ in kinds), echo_inputs=True)
    assert [(call.status, call.kind) for call in calls] == [("ok", kind) for _, kind in kinds]
    assert [call.changed_inputs for call in calls] == [()] * 11 + [(0,)] * 2
    large, doubled, _, changed = calls[-4:]
    assert large.shape == (1 << 20,) and large.output is None, "more bytes than were requested"
    assert doubled.dtype == "float64" and doubled.output[0][1][2] == 0.1
    assert changed.echoes[0] == [[1.0, 2.0, 3.0], [4.0, -1.0, 6.0]]


def test_a_table_is_called_row_by_row(both: Both) -> None:
    tensor = floats(3, 4)
    rows = np.array([[0, 0, 5.5], [2, 3, -1], [1, 2, 0.25], [2, 3, 8]])
    columns = [{"input": 0}, {"column": 0}, {"column": 1}, {"value": 4}]
    read = Request("element", columns, [tensor, rows], (4,), op="table")
    write_ = Request("put", [*columns, {"column": 2}], [tensor, rows], (4,), op="table")
    fails = replace(read, function="throws_of_row")
    numbers, written, failed, after = same(both, read, write_, fails, read, echo_inputs=True)
    assert numbers.output[0] == [1.0, 12.0, 7.0, 12.0] and not numbers.changed_inputs
    assert written.changed_inputs == (0,) and written.echoes[0][2][3] == 8.0
    assert (failed.status, failed.message, after.status) == ("exception", "row", "ok")


def test_exceptions_are_reported_by_their_first_line(both: Both) -> None:
    calls = same(both, *(tensors("throws", kind) for kind in range(5)), tensors("nothing_in_it", 1), twice())
    assert [call.status for call in calls] == ["exception"] * 6 + ["ok"]
    assert "the first line" in calls[0].message and "second" not in calls[0].message
    assert "seven dimensions, not 2" in calls[3].message
    assert calls[5].message == "nothing_in_it takes 1 arguments, not 2"


@pytest.mark.parametrize(("kind", "expected"), [*enumerate(ENDS)])
def test_each_end_of_a_runner_is_reported(both: Both, kind: int, expected: str) -> None:
    timeout_s = 0.5 if expected == "timeout" else 20.0
    first, second = same(both, tensors("ends", kind), twice(), timeout_s=timeout_s)
    assert expected in (first.signal_name, first.message, first.status) and second == first


#: Maps statements of static initialisers, which run before the runner's first reply, to the runner's reported end.
INITIALISERS = {
    "std::abort();": "SIGABRT", "_exit(0);": "exit(0)", "*(volatile int *)8 = 1;": "SIGSEGV",
    'std::puts("{\\"status\\"}"); std::fflush(stdout); std::exit(9);': "exit(9)",
    'if (write(4, "\\5\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0hello", 17)) _exit(0);': "reply header",
    'for (;;) asm volatile("");': "timeout",
}  # fmt: skip


@pytest.mark.parametrize("text", some(INITIALISERS, 2))
def test_a_bad_initialiser_is_fatal(text: str, both: Both, tmp_path: Path, monkeypatch: Patch) -> None:
    expected = INITIALISERS[text]
    made = program(tmp_path, f"{STANDARD}static int begun = [] {{ {text} return 1; }}();\n{binding()}")
    if expected == "timeout":
        monkeypatch.setattr("grader.runner.session.LOAD_TIMEOUT_S", 0.5)
    with both.host.spawn(made, threads=1, call_timeout_s=0.5 if expected == "timeout" else 20.0) as session:
        assert expected in (session.death.signal_name, session.death.message, session.death.status)


def test_a_file_may_define_names_of_the_runners_program(both: Both, tmp_path: Path) -> None:
    names = "int main() { return 3; }\nint count = 5, name = 1, served = 2;\nstruct Reader { int x = 7; };\n"
    text = one_function("return torch::full({1}, (float)(Reader().x + count + main()));", names)
    with both.host.spawn(program(tmp_path, text), threads=1) as session:
        assert session.call(asked("f", 0, output=(1,))).output.tolist() == [15.0]


def test_threads_and_cores_are_those_that_were_given(both: Both, tmp_path: Path) -> None:
    text = one_function(
        "auto made = torch::zeros({2}); float *out = made.data_ptr<float>();\n"
        "#pragma omp parallel\n{\n#pragma omp single\nout[0] = omp_get_num_threads();\n}\n"
        "cpu_set_t cores; sched_getaffinity(0, sizeof cores, &cores); out[1] = CPU_COUNT(&cores); return made;",
        "#include <omp.h>\n#include <sched.h>\n",
    )
    made = program(tmp_path, text)
    for threads in (1, 8):
        with both.host.spawn(made, threads=threads, cpus=CORES[:1]) as session:
            assert session.call(asked("f", 0, output=(2,))).output.tolist() == [threads, 1.0]
            session.close()
            assert not session.evidence.extra_cpus


@pytest.mark.parametrize(("part", "threads"), [*((f"part{k}", 1) for k in (1, 2, 3, 4)), ("part3", 8)])
def test_native_and_torch_runners_give_the_same_bits(both: Both, part: str, threads: int) -> None:
    asked_part, shape = ASSIGNMENT.part(part), {**ASSIGNMENT.defaults, "N": 67, "d": 24, "threads": threads}
    inputs = make_inputs("random", shape, 3)
    made, with_torch = nativebuild.build(ROOT / "module.cpp"), build(ROOT / "module.cpp")

    def output(session: Session, reference: bool) -> object:
        with session:
            call = session.call(binding_of.request(asked_part, shape, inputs, reference=reference))
        assert call.status == "ok", call
        return call.output.tolist()

    zygote, host = both.zygote, both.host
    python = zygote.spawn("student", with_torch.object_path, threads=threads)
    assert output(host.spawn(made.program, threads=threads), False) == output(python, False)
    python = zygote.spawn("raw", library.library_path(), threads=threads)
    assert output(host.spawn(library.native_program(), threads=threads), True) == output(python, True)


def test_after_a_reserve_the_first_large_call_is_like_the_second(both: Both) -> None:
    """Serial parts are warmed up by a small call. Without `reserve`, fresh pages would slow the first large call."""
    part, shape = ASSIGNMENT.part("part2"), {**ASSIGNMENT.defaults, "N": 512, "H": 1}
    request = binding_of.request(part, shape, make_inputs("random", shape, 1), reference=True)
    size_bytes = 4 * (4 * 512 * 32 + 512 * 512)
    assert request.tensor_bytes() == size_bytes
    fresh = {}
    for copies in (0, 2):
        with both.host.spawn(library.native_program(), threads=1) as session:
            session.call(Request("", (), (), op="reserve", reserved_bytes=copies * size_bytes))
            faults = [placement.page_faults(session.pid)]
            for _ in range(2):
                assert session.call(request).status == "ok"
                faults.append(placement.page_faults(session.pid))
            fresh[copies] = faults[1] - faults[0]
            assert faults[2] - faults[1] < 50
    assert fresh[0] > 400 and fresh[2] < 100
    assert placement.page_faults(2**22 + 1) == 0, "0 for a process id that does not exist"


def test_peak_memory_is_the_kernel_s_own(both: Both, tmp_path: Path) -> None:
    body = "std::vector<float> v(10 << 20, 1.0f);\nreturn torch::full({1}, v[(int)t.data_ptr<float>()[0]]);"
    with both.host.spawn(program(tmp_path, one_function(body)), threads=1) as session:
        for _ in range(2):
            call = session.call(asked("f", 0, shape=(64, 1024), output=(1,)), measure_peak=True)
            assert call.peak_bytes is not None and 39 << 20 < call.peak_bytes < 42 << 20


def test_nothing_but_the_program_is_mapped(both: Both) -> None:
    with both.native() as session:
        session.call(twice())
    assert session.evidence.new_code == () and session.evidence.children == 0 and session.evidence.stops == 2
    assert session.evidence.frozen_cpu_s < 0.001


#: A kernel that calls the Python interpreter of its process: it prints, as torch does, and lists imported modules.
SPEAKS = r"""
static void python(const char *text) {
  auto run = reinterpret_cast<int (*)(const char *)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
  auto take = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
  auto leave = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
  int held = take();
  run(text);
  leave(held);
}
torch::Tensor imported(torch::Tensor t) {
  python("import sys; seen = set(sys.modules); print('new:', *sorted(seen - getattr(sys, 'seen_before', seen)),"
         " flush=True); sys.seen_before = seen");
  return t.clone();
}
torch::Tensor speaks(torch::Tensor t) {
  std::printf("printed by C\n");
  std::fflush(stdout);
  std::fprintf(stderr, "an error by C\n");
  python("print('printed by Python', flush=True)");
  python("import sys, warnings, logging; warnings.warn('noise of warnings'); sys.stderr.write('noise of stderr\\n')");
  python("logging.getLogger('torch').error('noise of logging'); logging.StreamHandler(sys.__stderr__).emit(None)");
  python("raise ValueError('noise of a traceback')");
  return t.clone();
}
"""


def test_calls_import_no_modules_and_keep_pythons_output(both: Both, tmp_path: Path) -> None:
    made = build(write(tmp_path, STANDARD + SPEAKS + binding("imported speaks")))
    assert made.ok and made.object_path, made.diagnostics
    with both.zygote.spawn("student", made.object_path, threads=1) as runner:
        for label in (None, "SOME LABEL", None):
            call = runner.call(tensors("imported"), profile_label=label, echo_inputs=True)
            assert call.status == "ok" and (label is None or call.profile)
        assert runner.call(tensors("speaks")).status == "ok"
    said = ["printed by C", "an error by C", "printed by Python"]
    assert runner.printed.splitlines() == ["new:"] * 3 + said


def other_fork_server(monkeypatch: Patch, folder: Path, old: str, new: str) -> None:
    text = FORK_SERVER.read_text()
    assert old in text
    (folder / "forkserver.py").write_text(text.replace(old, new, 1))
    monkeypatch.setattr("grader.backends.torch.zygote.FORK_SERVER", folder / "forkserver.py")


@pytest.mark.parametrize(("old", "new", "said"), [
    ("    import torch\n", "    import torch_that_is_not_there as torch\n", "torch_that_is_not_there"),
    ("    delays = runner", "    raise OSError('no clocks')\n    delays = runner", "ready: .*no clocks"),
    ("    delays = runner", "    os._exit(70)\n    delays = runner", "ready: exit"),
])  # fmt: skip
def test_failed_starts_are_faults(old: str, new: str, said: str, monkeypatch: Patch, tmp_path: Path) -> None:
    other_fork_server(monkeypatch, tmp_path, old, new)
    with Zygote() as started, pytest.raises(errors.KitError, match=said):
        started.spawn("torch", "", threads=1)


def test_runners_inherit_no_open_files_of_torch(monkeypatch: Patch, tmp_path: Path) -> None:
    """CUDA opens many files. A runner with more files than its limit could not list them to close them."""
    many = "    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]\n    mounted = removal"
    other_fork_server(monkeypatch, tmp_path, "    mounted = removal", many)
    with Zygote() as started, started.spawn("torch", "", threads=1) as runner:
        assert len(os.listdir(f"/proc/{runner.pid}/fd")) < 12


def test_a_limit_of_cores_takes_whole_ones_first(monkeypatch: Patch) -> None:
    """Choose among eight hardware threads on four cores: 0 and 4 share a core, as do 1 and 5, and so on."""
    shared = {f"cpu{k}": f"{k % 4},{k % 4 + 4}" for k in range(8)}
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(8)))
    monkeypatch.setattr(machine.Path, "read_text", lambda path: shared[path.parts[-3]])
    limited = {(None, 4): [0, 1, 2, 3], (None, 6): [*range(6)], (1, None): [7], (2, 1): [7], (2, 6): [6, 7]}
    for asked_for, expected in (dict.fromkeys([(None, None), (None, 8), (16, 16)]) | limited).items():
        assert machine.timing_cpus(*asked_for) == expected, asked_for


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores to test a limit on cores")
@pytest.mark.parametrize("cores", [1, None])
def test_a_timed_call_keeps_to_its_cores(cores: int | None, monkeypatch: Patch) -> None:
    """After the warm-up, threads keep to the part's cores; without a limit, to as many cores as threads, or to all."""
    part = ASSIGNMENT.part("part3")
    part = replace(part, time=replace(part.time, cores=cores))
    allowed: list[set[int]] = []
    warm_up = placement.warm_up

    def looked_at(session: object, call: object, **options: object) -> object:
        sample = warm_up(session, call, **options)  # type: ignore[arg-type]
        for thread in os.listdir(f"/proc/{session.pid}/task"):  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                allowed.append(os.sched_getaffinity(int(thread)))
        return sample

    monkeypatch.setattr(placement, "warm_up", looked_at)
    sizes = {**ASSIGNMENT.defaults, "N": 256}
    with NativeHost() as host, timing.reference_twice(host, ASSIGNMENT, part, sizes)():
        pass
    used = set.union(*allowed)
    assert len(allowed) == 2 * sizes["threads"]
    if cores is None:
        assert used <= set(CORES) and len(used) >= min(sizes["threads"], len(CORES))
    else:
        assert used == set(machine.timing_cpus(part.time.threads, cores) or CORES)


def test_warm_up_repeats_a_call_until_page_faults_end(monkeypatch: Patch) -> None:
    fresh = ([0, 2, 9], [0, 2000, 2010], [0, 4000, 6000, 6010], [0, 2000, 4000, 6000, 8000])
    short, long = (0.001, [0] * 9, 4), (3.0, [0, 2000], 1)
    felt = ((0.03, pages, calls) for pages, calls in zip(fresh, (1, 2, 3, 2), strict=True))
    for wall_s, pages, calls in (short, long, *felt):
        monkeypatch.setattr(placement, "page_faults", Mock(side_effect=pages))
        session = SimpleNamespace(pid=os.getpid(), cpu_clock_s=lambda: 0.0)
        call = Mock(return_value=SimpleNamespace(wall_s=wall_s))
        placement.warm_up(session, call)  # type: ignore[arg-type]
        assert call.call_count == calls, (wall_s, pages)


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


@pytest.mark.full
def test_waiting_and_working_calls_both_reach_the_time_limit(tmp_path: Path) -> None:
    made = program(tmp_path, includes("ctime unistd.h") + KERNELS + binding("nap", "work"))
    with NativeHost() as host:
        for name, idles in (("nap", True), ("work", False)):
            budget, calls = Budget(0.1), []
            for _ in range(10 * MOST_CALLS):
                # Each call may have its own runner, as during judging.
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
    assert "took 20 s" in budget.excess(), "all time counts if waiting is not reported"
