"""What compiling costs: grader.build.torchbuild against torch.utils.cpp_extension.load on the same source, in turn.

CPU seconds of the whole build, its compilers included, without the imports before it. Each trial compiles a
text that no cache has seen (the source and a comment of its own), both sides the very same. "header warm" is
the second student on a machine: our header cache is filled, theirs has nothing to fill. "all cold" starts
from an empty cache and includes our reference library; theirs is a fresh build folder. "unchanged" is the
same file again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import uuid
from pathlib import Path

from trials import AGAINST_HEADER, ROOT, against, checked, run_child, spread, table

OURS = """
import json, os, resource, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from grader.build.torchbuild import build
def cpu_s():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
started, started_cpu = time.perf_counter(), cpu_s()
if {with_reference}:
    from module_ref_stub import library_path
    library_path()
made = build(Path({source!r}))
wall, cpu = time.perf_counter() - started, cpu_s() - started_cpu
children = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
if not made.ok:
    sys.exit(made.diagnostics)
print("FIGURES", json.dumps(dict(cpu_s=cpu, wall_s=wall, children_s=children, cached=made.cached,
                                 path=made.path, torch="torch" in sys.modules)))
"""

THEIRS = """
import json, resource, sys, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import torch.utils.cpp_extension
from published_flow import load
def cpu_s():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
started, started_cpu = time.perf_counter(), cpu_s()
load(Path({source!r}), Path({build_dir!r}))
print("FIGURES", json.dumps(dict(cpu_s=cpu_s() - started_cpu, wall_s=time.perf_counter() - started)))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--module", type=Path, default=ROOT / "module.cpp", help="the source (%(default)s)")
    parser.add_argument("--trials", type=int, default=3, help="compiles of each kind (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="one trial of each kind")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def figures(program: str, environment: dict[str, str] | None = None) -> dict:
    command = [sys.executable, "-c", program]
    trial = checked(run_child(command, environment=environment), command[:2])
    return json.loads(next(line for line in trial.output.splitlines() if line.startswith("FIGURES"))[8:])


def ours(source: Path, cache: Path, *, with_reference: bool = False) -> dict:
    program = OURS.format(root=str(ROOT), source=str(source), with_reference=with_reference)
    return figures(program, {"GPT149_CACHE": str(cache)})


def theirs(source: Path, build_dir: Path) -> dict:
    program = THEIRS.format(benchmarks=str(ROOT / "benchmarks"), source=str(source), build_dir=str(build_dir))
    return figures(program)


def measure(module: Path, trials: int, scratch: Path) -> dict[str, list[dict]]:
    """All trials, the kinds in turn, so that a busy spell of the machine meets every kind."""
    found: dict[str, list[dict]] = {
        "warm": [],
        "cold": [],
        "theirs": [],
        "unchanged": [],
        "their_unchanged": [],
    }
    warm_cache = scratch / "warm"
    ours(unseen(module, scratch), warm_cache)
    for k in range(trials):
        source = unseen(module, scratch)
        found["warm"].append(ours(source, warm_cache))
        found["unchanged"].append(ours(source, warm_cache))
        found["theirs"].append(theirs(source, scratch / f"theirs{k}"))
        found["their_unchanged"].append(theirs(source, scratch / f"theirs{k}"))
        found["cold"].append(ours(source, scratch / f"cold{k}", with_reference=True))
        print(f"trial {k + 1} of {trials} done", file=sys.stderr)
    return found


def unseen(module: Path, scratch: Path) -> Path:
    """A copy of the source that differs in a comment from every other."""
    path = scratch / uuid.uuid4().hex / "module.cpp"
    path.parent.mkdir()
    path.write_text(module.read_text() + f"\n// {path.parent.name}\n")
    return path


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(args.module, 1 if args.quick else args.trials, Path(scratch))
    cpu = {name: [figure["cpu_s"] for figure in series] for name, series in found.items()}
    rows = [
        against("compile, header warm (CPU)", cpu["warm"], cpu["theirs"], 0.15),
        against("compile, all cold (CPU)", cpu["cold"], cpu["theirs"], 1.5),
        against("unchanged source (CPU)", cpu["unchanged"], cpu["their_unchanged"], None),
    ]
    print(table(rows, AGAINST_HEADER))
    child_s = [figure["children_s"] for figure in found["unchanged"]]
    again = all(figure["cached"] for figure in found["unchanged"])
    found_again = "from the cache" if again else "COMPILED AGAIN"
    print(f"\nunchanged source: {found_again}; CPU of its child processes {spread(child_s)}")
    print(f"path: {', '.join(sorted({figure['path'] for figure in found['warm']}))}")
    imported = any(figure["torch"] for figure in found["warm"] + found["cold"])
    print(f"our build imported torch: {'yes' if imported else 'no'}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return 0 if again and not any("MISSED" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
