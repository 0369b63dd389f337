"""How often the judge's calls see a race, with and without the delays that it injects (grader.run.delays).

Two planted races, a row of `temp` and a row sum that all threads share, are called in turn without and with delays, on
one core and on two, alone and beside busy processes. What is counted: calls whose output is wrong, out of all; the
judge makes nine or more in each part. "CPU time" is that of the right kernel's calls, with delays over without.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from trials import ROOT, table

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "wrong")]

from wrong_kernels import WRONG  # noqa: E402

from grader.assignment import loading  # noqa: E402
from grader.base import machine  # noqa: E402
from grader.build.torchbuild import build  # noqa: E402
from grader.judge import binding, comparison  # noqa: E402
from grader.judge.comparison import Expected  # noqa: E402
from grader.run.calls import Request  # noqa: E402
from grader.run.session import Session  # noqa: E402
from grader.run.zygote import Zygote  # noqa: E402
from grader.sandbox.tiers import choose  # noqa: E402
from labs.attention import oracle  # noqa: E402
from labs.attention.cases import make_inputs  # noqa: E402
from labs.attention.mutations import apply  # noqa: E402

RIGHT = "right"
RACES = ("p3 one row of temp for all", "p3 row sum shared")


def objects(folder: Path) -> dict[str, str]:
    """Paths of the built kernels by name."""
    master = (ROOT / "module.cpp").read_text()
    sources = {mutation.name: apply(master, [mutation]) for mutation in WRONG if mutation.name in RACES}
    built = {}
    for number, (name, source) in enumerate({RIGHT: master, **sources}.items()):
        path = folder / str(number) / "module.cpp"
        path.parent.mkdir()
        path.write_text(source)
        built[name] = str(build(path).object_path)
    return built


def counted(session: Session, request: Request, expected: Expected, calls: int) -> tuple[int, int, float]:
    """Wrong calls without and with delays, made in turn, and the CPU time of one with over one without."""
    session.call(request)  # shows the judge that threads share the work
    wrong, cpu_s = [0, 0], [[], []]
    for _ in range(calls):
        for delays in (False, True):
            call = session.call(request, delays=delays)
            wrong[delays] += not comparison.compare(expected, call.output).ok
            cpu_s[delays].append(call.cpu_s)
    return *wrong, statistics.median(after / before for before, after in zip(*cpu_s, strict=True))


@contextmanager
def busy(count: int, cpus: list[int]) -> Iterator[None]:
    """Processes that keep these cores busy."""
    spin = f"import os\nos.sched_setaffinity(0, {cpus})\nwhile True: pass"
    loads = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for load in loads:
            load.kill()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=50, help="calls of each kind (default 50)")
    parser.add_argument("-N", type=int, nargs="+", default=[256, 1024])
    options = parser.parse_args()
    course = loading.load(ROOT / "configs" / "gpt149.yaml")
    part = course.part("part3")
    rows, ok = [], True
    with tempfile.TemporaryDirectory() as folder, Zygote(sandbox=choose()) as zygote:
        kernels = objects(Path(folder))
        for n, cores, neighbours in product(options.N, (1, 2), (0, 2)):
            shape = {**course.defaults, "N": n}
            inputs = make_inputs("random", shape, 149)
            expected = oracle.ORACLES[part.oracle].expected(inputs, shape)
            request = binding.request(part, shape, inputs)
            cpus = machine.usable_cpus()[:cores]
            row = [str(n), str(cores), str(neighbours)]
            with busy(neighbours, cpus):
                for name, path in kernels.items():
                    with zygote.spawn("student", path, threads=8, cpus=cpus, call_timeout_s=120) as session:
                        without, with_delays, cost = counted(session, request, expected, options.calls)
                    if name == RIGHT:
                        ok = ok and not without and not with_delays
                        row.append(f"{cost:.2f}")
                    else:
                        row.append(f"{without} -> {with_delays} of {options.calls}")
            rows.append(row)
    print(table(rows, ["N", "cores", "busy", "CPU time", *RACES]))
    if not ok:
        print("the right kernel was wrong")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
