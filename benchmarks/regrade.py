"""What a changed rubric costs: a class is graded, its points are changed, and `--resume` scores it anew.

The class is graded by a worker that answers with one recorded result of the master source, judged once for real; so
the results folder is that of a real class, at a hundredth of its cost. Then points, bands and the late rule change,
and a run whose workers cannot start goes on with it. Targets: seconds for 300, and no runner started.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trials import ROOT, spread, table

TARGET_S = 5.0
RUN = """
import sys, time
from pathlib import Path
from grader.staff.classroom import running
started = time.perf_counter()
code = running.run(
    running.RunOptions(Path(sys.argv[1]), Path(sys.argv[2]), 2, Path(sys.argv[3]), resume=True, trust=True, seed=1),
    command=[sys.executable, *sys.argv[4:]],
)
assert "torch" not in sys.modules
sys.exit(code)
"""


def recording(place: Path) -> Path:
    """One real result, of the master source."""
    one = place / "one.json"
    command = [sys.executable, "-m", "grader", "one", "module.cpp", "--json", str(one), "--trust"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    path = place / "recorded.json"
    path.write_text(json.dumps({"result": json.loads(one.read_text()), "seconds": [0.0]}))
    return path


def judge(folder: Path, out: Path, config: Path, recorded: Path, *worker: str) -> tuple[float, float, str]:
    started, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(out), str(config), *worker],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RECORDED": str(recorded)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout[-1000:] + done.stderr[-3000:])
    after = os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, used_s, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submissions", type=int, default=300, help="in the class (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="changes of the rubric (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        text = (ROOT / "module.cpp").read_text()
        for k in range(given.submissions):
            (place / "class" / f"student{k:03}").mkdir(parents=True)
            (place / "class" / f"student{k:03}" / "module.cpp").write_text(f"// {k}\n{text}")
        recorded = recording(place)
        config = place / "course.yaml"
        rubric = f"extends: {ROOT / 'configs' / 'gpt149.yaml'}\n"
        config.write_text(rubric)
        where = (place / "class", place / "out", config, recorded)
        first_s, _, _ = judge(*where, str(ROOT / "benchmarks" / "recorded_worker.py"))
        taken, used = [], []
        for k in range(given.repeats):
            config.write_text(rubric + f"parts:\n  - {{id: part1, points: {11 + k}}}\n")
            wall_s, used_s, said = judge(*where, "-c", "import sys; sys.exit('a worker was started')")
            wanted = f"{given.submissions} are scored anew, and nothing is run"
            if wanted not in said:
                sys.exit(f"not scored anew:\n{said}")
            taken.append(wall_s)
            used.append(used_s)
        sizes = [
            sum(path.stat().st_size for path in (place / "out").rglob(name))
            for name in ("result.json", "ledger.jsonl")
        ]
    rows = [
        ["graded by recorded answers", f"{first_s:.2f} s"],
        ["scored anew, nothing run", spread(taken)],
        ["CPU time of that", spread(used)],
        ["result.json, each", f"{sizes[0] / given.submissions / 1024:.1f} KB"],
        ["ledger in the end", f"{sizes[1] / 2**20:.2f} MB"],
    ]
    print(table(rows, (f"{given.submissions} submissions", "")))
    met = max(taken) < TARGET_S
    print(
        f"a changed rubric takes at most {max(taken):.2f} s (target < {TARGET_S:g}): {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
