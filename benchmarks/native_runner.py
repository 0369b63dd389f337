"""What the native runner costs beside the one with Python and torch: start, call, kernel, compiler.

    python benchmarks/native_runner.py [--rounds 21] [--tier B] [--only start,calls,kernels,compile]

Kernels are the master's. A round calls both runners once, the one that is first changing from round to round; ratios
are native over torch within a round, and what is printed are medians with quartiles. Both runners are stopped (SIGSTOP)
between calls. Serial parts are judged by CPU time, the OpenMP part by wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from trials import ROOT

sys.path.insert(0, str(ROOT))

from grader.assignment import loading
from grader.build import nativebuild, torchbuild
from grader.judge import binding
from grader.run.calls import Request
from grader.run.nativehost import NativeHost
from grader.run.session import Session
from grader.run.zygote import Zygote
from grader.sandbox import choose
from labs.attention.cases import make_inputs

#: Gives back its first input: what is left is the protocol and the copies of 1.5 MB in and 0.5 MB out.
ECHO = """#include <torch/extension.h>
torch::Tensor f(torch::Tensor q, torch::Tensor k, torch::Tensor v) { return q; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }
"""


def spread(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values) * scale:.{digits}f} ({low * scale:.{digits}f} to {high * scale:.{digits}f})"


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


class Measured:
    def __init__(self, tier: str, rounds: int, folder: Path) -> None:
        self.box, self.rounds, self.folder = choose(tier, trust=tier == "D"), rounds, folder
        self.stack = contextlib.ExitStack()
        self.zygote = self.stack.enter_context(Zygote(sandbox=self.box))
        self.host = self.stack.enter_context(NativeHost(self.box))

    def built(self, text: str) -> tuple[Path, Path]:
        source = self.folder / "module.cpp"
        source.write_text(text)
        with_torch, native = torchbuild.build(source), nativebuild.build(source)
        if with_torch.object_path is None or native.program is None:
            raise SystemExit(with_torch.diagnostics or native.diagnostics)
        return with_torch.object_path, native.program

    def start(self) -> None:
        shared, program = self.built(ECHO)
        up: dict[str, list[float]] = {"forked": [], "native": []}
        for _ in range(self.rounds):
            for kind, spawn in (
                ("forked", lambda: self.zygote.spawn("student", shared, threads=1)),
                ("native", lambda: self.host.spawn(program, threads=1)),
            ):
                seconds, session = timed(spawn)
                session.close()
                up[kind].append(seconds)
        print(f"runner up, ms (tier {self.box.tier}): native {spread(up['native'], 1e3)}, ", end="")
        print(f"forked from a zygote that has imported torch {spread(up['forked'], 1e3)}")

    def calls(self) -> None:
        from grader.base.arrays import np

        shared, program = self.built(ECHO)
        inputs = [np.ones((1, 4, 1024, 32), np.float32) for _ in range(3)]
        request = Request("f", [{"input": k} for k in range(3)], inputs, (1, 4, 1024, 32))
        for freeze in (True, False):
            with (
                self.zygote.spawn("student", shared, threads=1, freeze=freeze) as forked,
                self.host.spawn(program, threads=1, freeze=freeze) as native,
            ):
                rows = self.paired(forked, native, request)
            print(
                f"call of a function that does nothing, 1.5 MB in and 0.5 MB out, stopped between: {freeze}"
            )
            for name, column in (("native", 1), ("torch", 0)):
                print(f"  {name} ms: wall {spread([row[column].wall_s for row in rows], 1e3, 3)}, ", end="")
                print(f"CPU {spread([row[column].cpu_s for row in rows], 1e3, 3)}")

    def paired(self, first: Session, second: Session, request: Request) -> list[tuple[Any, Any]]:
        rows = []
        for k in range(self.rounds + 2):
            order = [(0, first), (1, second)]
            calls = dict(sorted((n, session.call(request)) for n, session in order[:: 1 if k % 2 else -1]))
            if any(call.status != "ok" for call in calls.values()):
                raise SystemExit(str(calls))
            rows.append((calls[0], calls[1]))
        return rows[2:]

    def kernels(self) -> None:
        shared, program = self.built((ROOT / "module.cpp").read_text())
        course = loading.load(ROOT / "configs" / "gpt149.yaml")
        for name, threads in (("part1", 1), ("part2", 1), ("part3", 1), ("part3", 8), ("part4", 1)):
            part, shape = course.part(name), {**course.defaults, "threads": threads}
            request = binding.request(part, shape, make_inputs("random", shape, 1))
            with (
                self.zygote.spawn("student", shared, threads=threads) as forked,
                self.host.spawn(program, threads=threads) as native,
            ):
                rows = self.paired(forked, native, request)
            print(f"{name}, {threads} threads:", end=" ")
            for what in ("wall_s", "cpu_s"):
                ratios = [getattr(b, what) / getattr(a, what) for a, b in rows]
                print(f"{what[:-2]} native/torch {spread(ratios, 1, 3)}", end="; ")
            print(f"native {median(b.wall_s for _, b in rows) * 1e3:.1f} ms")

    def compile(self) -> None:
        text = (ROOT / "module.cpp").read_text()
        nativebuild.precompile()
        torchbuild.precompile()
        figures: dict[str, list[tuple[float, float]]] = {"torch": [], "native": []}
        for k in range(max(3, self.rounds // 3)):
            source = self.folder / "module.cpp"
            source.write_text(f"{text}// {time.time_ns()} {k}\n")
            for kind, made in (
                ("torch", torchbuild.build(source, sandbox=self.box)),
                ("native", nativebuild.build(source, sandbox=self.box)),
            ):
                figures[kind].append((made.wall_s, made.cpu_s))
        for at, what in enumerate(("wall", "CPU")):
            ratios = [b[at] / a[at] for a, b in zip(figures["torch"], figures["native"], strict=True)]
            seconds = spread([b[at] for b in figures["native"]])
            print(f"compile {what}: native/light {spread(ratios)}, native {seconds} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--tier", default="B")
    parser.add_argument("--only", default="start,calls,kernels,compile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpt149-bench-") as folder:
        bench = Measured(options.tier, options.rounds, Path(folder))
        with bench.stack:
            for name in options.only.split(","):
                getattr(bench, name)()


if __name__ == "__main__":
    main()
