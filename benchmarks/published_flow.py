"""One test run the way the published kit does it, re-enacted for comparison.

In its order: import torch, let `torch.utils.cpp_extension.load` compile the student's source if it changed, and fill
Q, K and V element by element in Python. Then run the reference and the student once each under torch.profiler. Each
is compared with PyTorch's own operators. Each test sleeps for three seconds, as in the kit. The published reference
is a binary that no longer loads, so the student's own function stands in for it here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from trials import PUBLISHED_FLAGS, ROOT

FUNCTIONS = {
    "part1": "myNaiveAttention",
    "part2": "myUnfusedAttentionBlocked",
    "part3": "myFusedAttention",
    "part4": "myFlashAttention",
}
TILE_ROWS = 256
THREADS = 8
SLEEP_S = 3.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=sorted(FUNCTIONS))
    parser.add_argument("-N", type=int, default=1024)
    parser.add_argument("--module", type=Path, default=ROOT / "module.cpp", help="the source (%(default)s)")
    parser.add_argument("--build-dir", type=Path, help="keep the build here, so that the next run finds it")
    parser.add_argument("--only-build", action="store_true", help="stop after load()")
    return parser.parse_args()


def load(source: Path, build_dir: Path):
    """The extension module; compiles when ninja says that `source` is newer than the build."""
    from torch.utils.cpp_extension import load

    build_dir.mkdir(parents=True, exist_ok=True)
    return load(
        name="custom_module",
        sources=[str(source)],
        extra_cflags=list(PUBLISHED_FLAGS),
        extra_ldflags=["-fopenmp"],
        build_directory=str(build_dir),
    )


def ramps(B: int, H: int, N: int, d: int):
    """Q, K, V of shape (B, H, N, d), set element by element and equal for all b and h, as in the kit."""
    import torch

    tensors = []
    for scale in (0.9, 0.7, 0.5):
        tensor = torch.zeros(B, H, N, d)
        for b in range(B):
            for h in range(H):
                for i in range(N):
                    for j in range(d):
                        tensor[b][h][i][j] = scale * (i + j / d) / N
        tensors.append(tensor)
    return tensors


def profiled(label: str, call, expected):
    """Run once under the profiler; print the comparison with PyTorch, the time and the table."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler,
        record_function("model_inference"),
    ):
        started = time.time()
        output = call()
        ended = time.time()
    print("manual attention == pytorch attention", torch.allclose(output, expected, atol=1e-4))
    print("Manual Execution Time: ", ended - started)
    print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=10))
    print(f"{label} statistics")


def workspace(part: str, N: int, d: int) -> list:
    """The arguments between V and B: zeros to work in, and part 4's tile sizes."""
    import torch

    if part != "part4":
        return [torch.zeros(THREADS if part == "part3" else N, N)]
    rows = TILE_ROWS
    shapes = [(rows, d)] * 3 + [(rows, rows)] * 2 + [(rows, d)] * 2 + [(N,)] + [(rows,)] * 3
    return [*(torch.zeros(shape) for shape in shapes), rows, rows]


def main() -> int:
    args = arguments()
    started = time.perf_counter()
    phases: list[tuple[str, float]] = []

    def phase(name: str) -> None:
        phases.append((name, time.perf_counter() - started - sum(seconds for _, seconds in phases)))

    import torch

    phase("import torch")
    with tempfile.TemporaryDirectory() as fresh:
        module = load(args.module, args.build_dir or Path(fresh))
        phase("load()")
        if not args.only_build:
            run(torch, module, args, phase)
    print("phases: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases))
    return 0


def run(torch, module, args: argparse.Namespace, phase) -> None:
    """Both test runs and their sleeps, with a mark at the end of each phase."""
    B, H, N, d = 1, 4, args.N, 32
    torch.set_num_threads(THREADS)
    Q, K, V = ramps(B, H, N, d)
    phase("inputs")
    expected = torch.softmax(Q @ K.transpose(-2, -1), dim=-1) @ V
    function = getattr(module, FUNCTIONS[args.part])

    def call():
        return function(Q, K, V, *workspace(args.part, N, d), B, H, N, d)

    for side in ("REFERENCE", "STUDENT"):
        print(f"-----RUNNING {side} IMPLEMENTATION-----")
        profiled(side, call, expected)
        phase(side.lower())
    time.sleep(SLEEP_S)
    phase("sleep")


if __name__ == "__main__":
    sys.exit(main())
