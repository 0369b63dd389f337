"""The expert kernels over many seeds and shapes: errors beside float32's own, and memory under AddressSanitizer.

    python benchmarks/soak.py                 errors at every level that this machine has
    python benchmarks/soak.py --sanitize      the same kernels under g++'s AddressSanitizer

For each shape and size of the scores, two errors are limited to twice those of softmax(QK^T)V in float32. Both are
measured against float64 over all seeds: the root mean square of the plain errors, and the largest error in units of
each output's rounding budget (tests/rounding.py).

The largest plain error would not do. With large scores it comes from the one query whose two best keys are nearly
equal. In a small matrix, float32 may by chance have next to no error. For a single query row both errors are taken
over all shapes together, since one shape has too few: 20 rows, of which one or two decide. The largest plain errors
are printed, too. Exit code 1 if a ratio is larger, or if any result is NaN or infinite.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from trials import ROOT, table

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from rounding import LEAST_UNITS, exact_and_budget  # noqa: E402

SHAPES = (
    *((1, 1, 1, 1), (2, 1, 5, 3), (1, 3, 17, 7), (2, 3, 77, 19), (1, 2, 128, 32), (2, 6, 333, 40)),
    *((1, 2, 500, 64), (1, 1, 260, 128), (1, 1, 97, 200), (1, 4, 1024, 32), (1, 1, 2048, 64)),
)
FACTORS = (0.1, 1.0, 5.0, 30.0)
LEAST_ERROR = 2.4e-7
"""Floor of the usual error in ratios: that of a tiny shape may be smaller by luck."""
KERNELS = {
    "expert": "usual",
    "plain": "usual",
    "expert causal": "usual causal",
    "expert one row": "usual one row",
}


def sanitized_library(directory: Path) -> Path:
    from grader.backends.native.toolchain import libomp_prefix, openmp_flags, toolchain
    from module_ref_stub import library

    tools = toolchain()
    compile_flags, link_flags = openmp_flags(tools.system, tools.family, libomp_prefix())
    checked = ["-fsanitize=address", "-g"]
    commands, objects = library.compile_commands(
        tools.machine, str(tools.compiler), compile_flags, directory, library.EXPERT
    )
    for command in commands:
        subprocess.run([*command, *checked], check=True)
    made = directory / "expert.so"
    subprocess.run(
        [str(tools.compiler), "-shared", *objects, *link_flags, *checked, "-o", str(made)], check=True
    )
    return made


def restart_sanitized(seeds: int) -> int:
    """Build the checked library and run this script with it, AddressSanitizer loaded first."""
    with tempfile.TemporaryDirectory() as directory:
        made = sanitized_library(Path(directory))
        found = subprocess.run(
            ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
        environment = {
            **os.environ,
            "LD_PRELOAD": found.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
            "SOAK_LIBRARY": str(made),
        }
        command = [sys.executable, __file__, "--seeds", str(seeds)]
        return subprocess.run(command, env=environment).returncode


@dataclass(frozen=True)
class Errors:
    """Errors of one kernel: sum of squares, number, the largest, and the largest relative to its budget."""

    squares: float
    count: int
    largest: float
    units: float

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.squares + other.squares,
            self.count + other.count,
            max(self.largest, other.largest),
            max(self.units, other.units),
        )

    def over(self, usual: Errors) -> tuple[float, float, float]:
        """Return the ratios to the usual errors: mean, largest by its budget, largest."""
        mean, usual_mean = ((each.squares / each.count) ** 0.5 for each in (self, usual))
        return (
            mean / max(usual_mean, LEAST_ERROR),
            self.units / max(usual.units, LEAST_UNITS),
            self.largest / max(usual.largest, LEAST_ERROR),
        )


NONE = Errors(0.0, 0, 0.0, 0.0)


def errors_of(shape: tuple[int, ...], factor: float, seeds: int) -> dict[str, Errors]:
    """Return the errors over all seeds, for each kernel and for softmax(QK^T)V in float32. A NaN is kept."""
    import torch

    from module_ref_stub import expert

    def usual(Q, K, V, hidden=None):
        scores = Q @ K.transpose(-2, -1)
        return torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -torch.inf), -1) @ V

    found = dict.fromkeys((*KERNELS, *KERNELS.values()), NONE)
    hidden = torch.ones(shape[2], shape[2], dtype=torch.bool).triu(1)
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        Q, K, V = (torch.randn(shape, generator=generator) for _ in range(3))
        Q *= factor
        wide = [tensor.double() for tensor in (Q, K, V)]
        whole, causal = exact_and_budget(*wide), exact_and_budget(*wide, hidden)
        last = tuple(tensor[:, :, -1:] for tensor in whole)
        q = Q[:, :, -1:].contiguous()
        results = {
            "usual": (usual(Q, K, V), whole),
            "expert": (expert.attention(Q, K, V, threads=2), whole),
            "plain": (expert.plain_attention(Q, K, V, threads=2), whole),
            "usual causal": (usual(Q, K, V, hidden), causal),
            "expert causal": (expert.attention(Q, K, V, causal=True, threads=2), causal),
            "usual one row": (usual(q, K, V), last),
            "expert one row": (expert.decode(q, K, V, threads=2), last),
        }
        for name, (result, (exact, budget)) in results.items():
            off = (result.double() - exact).abs()
            if not torch.isfinite(off).all():
                raise SystemExit(f"{expert.level()} {shape} x{factor:g} {name}: not finite, seed {seed}")
            units = float((off / budget).max())
            found[name] += Errors(float(off.square().sum()), off.numel(), float(off.max()), units)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sanitize", action="store_true", help="build with AddressSanitizer and run that")
    args = parser.parse_args()
    if args.sanitize:
        return restart_sanitized(args.seeds)
    from module_ref_stub import expert

    if path := os.environ.get("SOAK_LIBRARY"):
        checked = ctypes.CDLL(path)
        expert.library = lambda: checked
    rows, missed = [], 0
    best = expert.LEVELS.index(expert.level())
    for level in expert.LEVELS[: best + 1]:
        expert.set_level(level)
        worst = dict.fromkeys(KERNELS, (0.0, 0.0, 0.0))

        for factor in FACTORS:
            one = (NONE, NONE)
            found: list[tuple[str, str, Errors, Errors]] = []
            for shape in SHAPES:
                errors = errors_of(shape, factor, args.seeds)
                for name, usual in KERNELS.items():
                    if name == "expert one row":
                        one = (one[0] + errors[name], one[1] + errors[usual])
                    else:
                        found.append((name, str(shape), errors[name], errors[usual]))
            found.append(("expert one row", "all shapes", *one))
            for name, where, mine, usual in found:
                ratios = mine.over(usual)
                worst[name] = tuple(map(max, worst[name], ratios))
                if max(ratios[:2]) > 2:
                    missed += 1
                    print(f"{level} {where} x{factor:g} {name}: {mine} against {usual}")
        for k, what in enumerate(("mean", "largest by its budget", "largest")):
            rows.append([level, what, *(f"{ratios[k]:.2f}" for ratios in worst.values())])
    print(table(rows, ("level", "error", "expert", "plain", "causal", "one row")))
    print(
        f"worst ratio to softmax(QK^T)V in float32: {args.seeds} seeds, {len(SHAPES)} shapes, scores x{FACTORS}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
