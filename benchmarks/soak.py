"""The expert kernels over many seeds and shapes: errors beside float32's own, and memory under AddressSanitizer.

    python benchmarks/soak.py                 errors at every level that this machine has
    python benchmarks/soak.py --sanitize      the same kernels under g++'s AddressSanitizer

For each shape and size of the scores the root mean square of the errors over all seeds is held to twice that of
softmax(QK^T)V in float32, both against float64; the ratio of the largest errors is shown, too. With large scores
nearly all of the error is that of the few queries whose two best keys are nearly equal, so that ratios go either way
by luck, those of one row above all. Exit code 1 if a mean is larger, or if anything is not finite.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trials import ROOT, table

sys.path.insert(0, str(ROOT))

SHAPES = (
    *((1, 1, 1, 1), (2, 1, 5, 3), (1, 3, 17, 7), (2, 3, 77, 19), (1, 2, 128, 32), (2, 6, 333, 40)),
    *((1, 2, 500, 64), (1, 1, 260, 128), (1, 1, 97, 200), (1, 4, 1024, 32), (1, 1, 2048, 64)),
)
FACTORS = (0.1, 1.0, 5.0, 30.0)
LEAST_ERROR = 2.4e-7
"""What the usual error of a tiny shape may be below by luck."""


def sanitized_library(directory: Path) -> Path:
    from grader.toolchain import libomp_prefix, openmp_flags, toolchain
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


def errors_of(shape: tuple[int, ...], factor: float, seeds: int) -> dict[str, tuple[float, float]]:
    """(largest, root mean square) over all seeds, of each kernel and of softmax(QK^T)V in float32. Not a number where a
    kernel gave one."""
    import torch

    from module_ref_stub import expert

    found: dict[str, list[torch.Tensor]] = {}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        Q, K, V = (torch.randn(shape, generator=generator) for _ in range(3))
        Q *= factor
        hidden = torch.ones(shape[2], shape[2], dtype=torch.bool).triu(1)

        def formula(Q, K, V, hidden=None):
            scores = Q @ K.transpose(-2, -1)
            scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
            return torch.softmax(scores, -1) @ V

        wide = [tensor.double() for tensor in (Q, K, V)]
        whole, causal = formula(*wide), formula(*wide, hidden)
        q = Q[:, :, -1:].contiguous()
        results = {
            "usual": (formula(Q, K, V), whole),
            "expert": (expert.attention(Q, K, V, threads=2), whole),
            "plain": (expert.plain_attention(Q, K, V, threads=2), whole),
            "usual causal": (formula(Q, K, V, hidden), causal),
            "expert causal": (expert.attention(Q, K, V, causal=True, threads=2), causal),
            "usual one row": (formula(q, K, V), whole[:, :, -1:]),
            "expert one row": (expert.decode(q, K, V, threads=2), whole[:, :, -1:]),
        }
        for name, (result, expected) in results.items():
            found.setdefault(name, []).append((result.double() - expected).abs().flatten())
    joined = {name: torch.cat(errors) for name, errors in found.items()}
    return {name: (float(each.max()), float(each.square().mean().sqrt())) for name, each in joined.items()}


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
        largest = {"expert": 0.0, "plain": 0.0, "expert causal": 0.0, "expert one row": 0.0}
        typical = dict(largest)
        for shape in SHAPES:
            for factor in FACTORS:
                errors = errors_of(shape, factor, args.seeds)
                for name in largest:
                    usual = errors["usual" + name.removeprefix("expert").removeprefix("plain")]
                    ratios = [
                        mine / max(theirs, LEAST_ERROR)
                        for mine, theirs in zip(errors[name], usual, strict=True)
                    ]
                    largest[name], typical[name] = (
                        max(largest[name], ratios[0]),
                        max(typical[name], ratios[1]),
                    )
                    if not ratios[1] <= 2:
                        missed += 1
                        print(f"{level} {shape} x{factor:g} {name}: {errors[name]} against {usual}")
        for what, worst in (("mean", typical), ("largest", largest)):
            rows.append([level, what, *(f"{ratio:.2f}" for ratio in worst.values())])
    print(table(rows, ("level", "error", "expert", "plain", "causal", "one row")))
    print(
        f"worst ratio to softmax(QK^T)V in float32: {args.seeds} seeds, {len(SHAPES)} shapes, scores x{FACTORS}"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
