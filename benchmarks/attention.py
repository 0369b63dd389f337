"""Speed of attention on this machine: the expert kernel, the plain best C++, PyTorch's own, softmax(QK^T)V, FMA peak.

The kit's kernels run in one process and PyTorch's in another, each with OpenMP threads of its own. Both are pinned to
the same cores, and each is stopped (SIGSTOP) while the other works. A round calls each kind once, in an order that is
reversed every other time. A ratio is taken within a round; the script prints medians over rounds with their
quartiles. Percentages are relative to the peak rate of multiply-adds, measured on the same cores in the same round
(one block of assembly, `expert_peak.h`). A call counts as 4 B H N^2 d operations; exponentials do not count as work.
Levels: `avx2` restricts PyTorch to AVX2 by its own switches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from trials import ROOT, table

sys.path.insert(0, str(ROOT))

Shape = tuple[int, int, int, int]
SHOWN: tuple[Shape, ...] = ((1, 4, 1024, 32), (1, 4, 4096, 32), (1, 4, 1024, 64), (2, 6, 333, 40))
LENGTHS, WIDTHS, HEADS = (128, 512, 2048, 8192), (32, 40, 64, 128), (1, 4, 16, 64)
MOST_WORK = 4.0 * 4 * 8192**2 * 32
"""Operations of one call in the grid: larger shapes are left out."""
AVX2_ONLY = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
BATCH_S = 0.004
"""A timed batch holds as many calls as take about this long."""
KINDS = {"expert": "kernels", "plain": "kernels", "peak": "kernels", "sdpa": "torch", "softmax": "torch"}
PEAK_THOUSANDS = 30


# ---- one kind's process: reads a request from a line, answers with a line


def serve() -> None:
    """Answer requests {kind, shape, level, threads, decode} with seconds a call, and operations a second for "peak"."""
    import torch

    inputs: dict[str, object] = {}
    for line in sys.stdin:
        request = json.loads(line)
        torch.set_num_threads(request["threads"])
        key = json.dumps([request["shape"], request["decode"]])
        if key not in inputs:
            inputs.clear()
            B, H, N, d = request["shape"]
            rows = 1 if request["decode"] else N
            inputs[key] = [torch.randn(B, H, n, d) for n in (rows, N, N)]
        print(json.dumps(answer(request, inputs[key])), flush=True)


def answer(request: dict, tensors) -> float:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from module_ref_stub import expert

    kind, threads = request["kind"], request["threads"]
    Q, K, V = tensors
    if KINDS[kind] == "kernels" and expert.set_level(request["level"]) != request["level"]:
        raise SystemExit(f"this machine has no {request['level']}")
    if kind == "peak":
        expert.peak_flops(threads=threads, thousands=PEAK_THOUSANDS // 3)
        return expert.peak_flops(threads=threads, thousands=PEAK_THOUSANDS)
    kernel = expert.decode if request["decode"] else expert.attention
    call = {
        "expert": lambda: kernel(Q, K, V, threads=threads),
        "plain": lambda: expert.plain_attention(Q, K, V, threads=threads),
        "sdpa": lambda: scaled_dot_product_attention(Q, K, V, scale=1.0),
        "softmax": lambda: torch.softmax(Q @ K.transpose(-2, -1), -1) @ V,
    }[kind]
    started = time.perf_counter()
    call()
    calls = max(1, min(1000, round(BATCH_S / (time.perf_counter() - started))))
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


class Worker:
    """A process that serves, stopped between requests."""

    def __init__(self, cores: Sequence[int], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "OMP_NUM_THREADS": str(len(cores))},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    def ask(self, **request: object) -> float:
        os.kill(self.process.pid, signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of {request['kind']} ended with {self.process.wait()}")
        os.kill(self.process.pid, signal.SIGSTOP)
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def workers(level: str, threads: int) -> Iterator[dict[str, Worker]]:
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    if len(cores) < threads:
        sys.exit(f"--threads {threads}, but this machine has {len(cores)} cores")
    limited = AVX2_ONLY if level == "avx2" else {}
    open_ = {"kernels": Worker(cores, {}), "torch": Worker(cores, limited)}
    try:
        yield open_
    finally:
        for worker in open_.values():
            worker.close()


# ---- the parent: rounds, ratios, tables


@dataclass(frozen=True)
class Row:
    """One shape at one level and thread count; lists hold one value for each round."""

    level: str
    threads: int
    shape: Shape
    decode: bool
    seconds: dict[str, list[float]]

    @property
    def work(self) -> float:
        B, H, N, d = self.shape
        return 4.0 * B * H * (1 if self.decode else N) * N * d

    def times(self, other: str) -> list[float]:
        """Return the expert's speed as a multiple of `other`'s."""
        return [a / b for a, b in zip(self.seconds[other], self.seconds["expert"], strict=True)]

    def of_peak(self, kind: str) -> list[float]:
        """Per cent of the peak in the same round."""
        pairs = zip(self.seconds[kind], self.seconds["peak"], strict=True)
        return [100 * self.work / seconds / flops for seconds, flops in pairs]


def measure(level: str, threads: int, shapes: Sequence[Shape], rounds: int, decode: bool) -> Iterator[Row]:
    with workers(level, threads) as served:
        for shape in shapes:
            kinds = [kind for kind in KINDS if not decode or kind != "plain"]
            seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
            for k in range(rounds + 1):
                for kind in kinds if k % 2 else reversed(kinds):
                    told = served[KINDS[kind]].ask(
                        kind=kind, shape=shape, level=level, threads=threads, decode=decode
                    )
                    if k > 0:  # the first round wakes threads and fills caches
                        seconds[kind].append(told)
            yield Row(level, threads, shape, decode, seconds)


def spread(values: Sequence[float], digits: int) -> str:
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


HEADER = ("level", "threads", "B,H,N,d", "x SDPA", "x softmax(QK)V", "% of peak", "plain %", "SDPA %")


def cells(row: Row) -> list[str]:
    shape = ",".join(map(str, row.shape)) + (" one row" if row.decode else "")
    peak = {kind: spread(row.of_peak(kind), 1) for kind in ("expert", "plain", "sdpa") if kind in row.seconds}
    return [
        row.level,
        str(row.threads),
        shape,
        spread(row.times("sdpa"), 2),
        spread(row.times("softmax"), 2),
        peak["expert"],
        peak.get("plain", ""),
        peak["sdpa"],
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """A roofline in shares of the peak, a panel for each width; intensity counts each float of Q, K, V and O once, so
    that it grows with N. Kinds stand a little apart, or they would hide each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from grader.study.figure import COLOURS

    widths = sorted({row.shape[3] for row in rows})
    figure, panels = pyplot.subplots(1, len(widths), figsize=(3 * len(widths), 4), sharey=True, squeeze=False)
    for axes, d in zip(panels[0], widths, strict=True):
        for k, (kind, marker) in enumerate(zip(("expert", "plain", "sdpa", "softmax"), "o^sx", strict=True)):
            points = []
            for row in rows:
                B, H, N, width = row.shape
                if kind in row.seconds and width == d:
                    queries = 1 if row.decode else N
                    intensity = row.work / (4 * B * H * d * (2 * N + 2 * queries))
                    points.append((intensity * 2 ** ((k - 1.5) / 4), median(row.of_peak(kind))))
            if points:  # plain C++ has no single row
                axes.plot(*zip(*points, strict=True), marker, color=COLOURS[k], label=kind, alpha=0.8)
        axes.axhline(100, color="black", linewidth=1, label="multiply-adds alone")
        axes.set_title(f"d = {d}")
        axes.set_xscale("log", base=2)
        axes.grid(visible=True, axis="y", alpha=0.3)
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].set_ylabel("% of the peak of the same round")
    figure.supxlabel("operations for each byte of Q, K, V and O")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper center", ncols=5)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def grid() -> list[Shape]:
    shapes = [(1, heads, N, d) for heads in HEADS for N in LENGTHS for d in WIDTHS]
    return [(B, H, N, d) for B, H, N, d in shapes if 4.0 * B * H * N * N * d <= MOST_WORK]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--levels", default="avx512,avx2", help="baseline, avx2, avx512 (%(default)s)")
    parser.add_argument("--threads", default="1", help="thread counts, as in 1,16 (%(default)s)")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--shape", action="append", help="B,H,N,d; may be given more than once")
    parser.add_argument("--grid", action="store_true", help="N 128 to 8192, d 32 to 128, 1 to 64 heads")
    parser.add_argument("--decode", action="store_true", help="one query row against N keys")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--figure", type=Path, help="draw a roofline into this PNG")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.worker:
        serve()
        return 0
    if args.rounds < 2:
        sys.exit("--rounds takes 2 or more: quartiles are shown")
    if not set(args.levels.split(",")) <= {"baseline", "avx2", "avx512"}:
        sys.exit(f"--levels takes baseline, avx2 and avx512, not {args.levels}")
    if any(len(text.split(",")) != 4 for text in args.shape or ()):
        sys.exit("--shape takes four numbers: B,H,N,d")
    shapes = [tuple(map(int, text.split(","))) for text in args.shape or ()]
    shapes = shapes or (grid() if args.grid else [(1, 4, 2048, 32)] if args.decode else list(SHOWN))
    rows = []
    for level in args.levels.split(","):
        for threads in map(int, args.threads.split(",")):
            for row in measure(level, threads, shapes, args.rounds, args.decode):
                rows.append(row)
                print("  ".join(cells(row)), file=sys.stderr, flush=True)
                if args.json:  # after each: a grid takes long, and may be cut short
                    args.json.write_text(json.dumps([asdict(row) for row in rows]))
    print(table([cells(row) for row in rows], HEADER))
    for level in args.levels.split(","):
        scaled = {row.shape: {} for row in rows if row.level == level}
        for row in rows:
            if row.level == level:
                scaled[row.shape][row.threads] = row
        for shape, by_threads in scaled.items():
            for threads in sorted(set(by_threads) - {1}) if 1 in by_threads else ():
                gain = {
                    kind: median(by_threads[1].seconds[kind]) / median(by_threads[threads].seconds[kind])
                    for kind in ("expert", "sdpa")
                }
                print(
                    f"{level} {','.join(map(str, shape))}: {threads} threads are {gain['expert']:.1f} times "
                    f"as fast as one (SDPA {gain['sdpa']:.1f})"
                )
    if args.figure:
        draw(rows, args.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
