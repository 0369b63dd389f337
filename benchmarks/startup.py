"""How soon a student hears something: `gpt149.py` against the published flow and against `import torch`, in
turn.

Times are wall seconds from the start of the process to its end, or to the first line with the verdict. The sources
are compiled beforehand by both sides, so this is the run after an unchanged file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from trials import AGAINST_HEADER, Trial, against, checked, run_child, spread, table

VERDICT_LINE = "Correctness:"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", default="part3", choices=["part1", "part2", "part3"])
    parser.add_argument("-N", type=int, default=1024)
    parser.add_argument("--trials", type=int, default=5, help="runs of each command (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="two runs of each command")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def commands(part: str, N: int, build_dir: str) -> dict[str, list[str]]:
    python, size = sys.executable, ["-N", str(N)]
    return {
        "run": [python, "gpt149.py", part, *size],
        "published": [python, "benchmarks/published_flow.py", part, *size, "--build-dir", build_dir],
        "import": [python, "-c", "import torch"],
        "help": [python, "gpt149.py", "--help"],
    }


def measure(args: argparse.Namespace, build_dir: str) -> dict[str, list[Trial]]:
    """Each command once untimed (it fills its caches), then all in turn, the order reversed every other
    time.
    """
    todo = commands(args.part, args.N, build_dir)
    found: dict[str, list[Trial]] = {name: [] for name in todo}
    trials = 2 if args.quick else args.trials
    for k in range(trials + 1):
        for name in sorted(todo, reverse=k % 2 == 0):
            trial = checked(run_child(todo[name], until=VERDICT_LINE), todo[name])
            if k > 0:
                found[name].append(trial)
        print(f"turn {k} of {trials} done", file=sys.stderr)
    return found


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory() as build_dir:
        found = measure(args, build_dir)
    wall = {name: [trial.wall_s for trial in series] for name, series in found.items()}
    verdict_s = [trial.line_s for trial in found["run"] if trial.line_s is not None]
    if len(verdict_s) < len(found["run"]):
        sys.exit(f"a run printed no line that begins with {VERDICT_LINE!r}")
    rows = [
        against(f"{args.part} -N {args.N} / published flow", wall["run"], wall["published"], 0.4),
        against("correctness verdict / import torch", verdict_s, wall["import"], 2.0),
        against("--help / import torch", wall["help"], wall["import"], 0.2),
    ]
    print(table(rows, AGAINST_HEADER))
    print(f"\nCPU of a run: {spread([trial.cpu_s for trial in found['run']])}, its children included")
    print(f"CPU of the published flow: {spread([trial.cpu_s for trial in found['published']])}")
    print("one published run, " + found["published"][-1].output.rstrip().splitlines()[-1])
    if args.json:
        args.json.write_text(json.dumps({n: [asdict(t) for t in s] for n, s in found.items()}, indent=1))
    return 1 if any("MISSED" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
