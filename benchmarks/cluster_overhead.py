"""What the cluster itself costs: thousands of jobs with recorded durations and no student code, by the real scheduler.

Workers answer with one recorded result after a recorded time (benchmarks/recorded_worker.py); judge, scheduler, dask's
workers, nodes and ledger are real, on `local:N`. Told are: wall-clock and CPU seconds that a job costs besides its own
duration, the ledger's size, the time in which a finished class is resumed, the judge's peak memory, and a model

    hours = students x (seconds of one submission + overhead) / (machines x submissions at once) + proof

which is checked against the measured runs of 60 and of all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

from regrade import recording
from trials import ROOT, table

RUN = """
import resource, sys, time
from pathlib import Path
from grader.staff.classroom import running
started = time.perf_counter()
code = running.run(
    running.RunOptions(
        Path(sys.argv[1]), Path(sys.argv[2]), 2, resume=True, trust=True, seed=1, tier="D",
        cluster=sys.argv[3], calibration=Path(sys.argv[4]),
    ),
    command=[sys.executable, sys.argv[5]],
)
used = resource.getrusage(resource.RUSAGE_SELF)
print("told", time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(code)
"""


def judge(place: Path, folder: Path, out: Path, machines: int) -> tuple[float, float, float, float]:
    """(wall seconds, CPU seconds of the judge, its peak in MiB, seconds until the first verdict)."""
    worker = str(ROOT / "benchmarks" / "recorded_worker.py")
    command = [
        sys.executable,
        "-c",
        RUN,
        str(folder),
        str(out),
        f"local:{machines}",
        str(ROOT / "module.cpp"),
        worker,
    ]
    environment = {**os.environ, "RECORDED": str(place / "recorded.json")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    first_s, started, lines = 0.0, time.perf_counter(), []
    for line in child.stdout:
        if line.startswith("[") and not first_s:
            first_s = time.perf_counter() - started
        lines.append(line)
    if child.wait() != 0:
        sys.exit("".join(lines[-20:]))
    wall_s, cpu_s, peak_kib = map(float, lines[-1].split()[1:])
    return wall_s, cpu_s, peak_kib / 1024, first_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2000, help="in the large class (%(default)s)")
    parser.add_argument("--machines", type=int, default=3, help="processes here (%(default)s)")
    parser.add_argument(
        "--mean", type=float, default=0.05, help="seconds of a job, in the mean (%(default)s)"
    )
    parser.add_argument(
        "--real", type=float, default=9.0, help="seconds of a real one, for the model (%(default)s)"
    )
    given = parser.parse_args()
    moments = random.Random(1)
    durations = [moments.uniform(0.5, 1.5) * given.mean for _ in range(997)]
    text = (ROOT / "module.cpp").read_text()
    rows, found = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        recorded = json.loads(recording(place).read_text())
        (place / "recorded.json").write_text(json.dumps({**recorded, "seconds": durations}))
        for count in (60, given.jobs):
            folder, out = place / f"class{count}", place / f"out{count}"
            for k in range(count):
                (folder / f"student{k:05}").mkdir(parents=True)
                (folder / f"student{k:05}" / "module.cpp").write_text(f"// {k}\n{text}")
            wall_s, cpu_s, peak, first_s = judge(place, folder, out, given.machines)
            busy_s = wall_s - first_s
            each_s = busy_s * given.machines / count
            resumed = judge(place, folder, out, given.machines)
            ledger = (out / "ledger.jsonl").stat().st_size
            found[count] = (busy_s, each_s)
            rows.append(
                [
                    str(count),
                    f"{wall_s:.1f} s",
                    f"{first_s:.1f} s",
                    f"{1e3 * (each_s - mean(durations)):.0f} ms",
                    f"{1e3 * cpu_s / count:.0f} ms",
                    f"{ledger / count / 1024:.1f} KB",
                    f"{resumed[0]:.1f} s",
                    f"{peak:.0f} MiB",
                ]
            )
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    header = (
        "jobs",
        "wall-clock",
        "first verdict",
        "overhead a job",
        "judge's CPU a job",
        "ledger a job",
        "resumed in",
        "judge's peak",
    )
    print(table(rows, header))
    overhead_s = found[60][1] - mean(durations)
    predicted_s = given.jobs * (mean(durations) + overhead_s) / given.machines
    print(f"model from the 60: {predicted_s:.0f} s for {given.jobs}; measured {found[given.jobs][0]:.0f} s")
    hours = [f"{k}: {1000 * (given.real + overhead_s) / k / 3600:.2f} h" for k in (1, 3, 10, 30)]
    print(f"1,000 students of {given.real:g} s each, by submissions judged at once: {', '.join(hours)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
