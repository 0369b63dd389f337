"""Random faults in a cluster: whatever is killed or stopped, the same grades, and nothing graded twice.

A class is graded by acting workers (all but the evaluator is real: judge, scheduler, machines, nodes, ledger). The
first run is here and undisturbed. The second is on `local:3` while faults happen at random moments: SIGKILL of a
machine's dask worker, of its node, of the scheduler and of the judge; Ctrl-C of the judge; SIGSTOP of a machine
beyond its limit of silence. A judge that ended continues with `--resume`. Some submissions kill the worker that
judges them, once. The runs are compared in `grades.csv` (byte by byte) and in the number of results per submission in
the ledger. The ledger's records must show that no two timings held one resource at once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from trials import ROOT, table

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from classes.acting_class import Class, gone  # noqa: E402
from classes.clustered import overlaps, running  # noqa: E402

from grader.staff.classroom import ledger  # noqa: E402

SILENT_S = 4.0
KILLS = ("kill a machine", "kill a node", "kill the scheduler", "kill the judge")
FAULTS = (*KILLS, "stop a machine", "interrupt the judge")


def inflict(fault: str, acting: Class, judge: subprocess.Popen[str], moments: random.Random) -> bool:
    """Inflict a fault. Return False if none of the processes that it could hit is running."""
    if fault.endswith("judge"):
        judge.send_signal(signal.SIGKILL if fault.startswith("kill") else signal.SIGINT)
        judge.communicate()
        return True
    there = running(acting.state, fault.split()[-1])
    if not there:
        return False
    victim = moments.choice(sorted(there))
    with suppress(ProcessLookupError):
        if fault.startswith("kill"):
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(SILENT_S + 2)
            os.kill(victim, signal.SIGCONT)
    return True


def make_class(acting: Class, count: int) -> None:
    for k in range(count):
        verdict, more = ("pass", "slow", "wrong")[k % 3], ["die 1"] if k % 15 == 7 else []
        acting.add(f"student{k:03}", f"sleep {0.1 + 0.1 * (k % 5):.1f}", verdict, *more)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=20, help="in all (%(default)s)")
    parser.add_argument("--submissions", type=int, default=60, help="in the class (%(default)s)")
    parser.add_argument(
        "--every", type=float, default=6.0, help="seconds between faults, at most (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    given = parser.parse_args()
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        undisturbed = place / "undisturbed"
        undisturbed.mkdir()
        quiet = Class(undisturbed)
        make_class(quiet, given.submissions)
        code, said = quiet.run(seed=1, kit="")
        if code:
            sys.exit(said)
        expected = (quiet.out / "grades.csv").read_bytes()
        (place / "disturbed").mkdir()
        acting = Class(place / "disturbed")
        make_class(acting, given.submissions)
        calibration = place / "calibration.cpp"
        calibration.write_text("PYBIND11_MODULE\n")
        how = {
            "seed": 1,
            "kit": "",
            "cluster": "local:3",
            "calibration": str(calibration),
            "silent_s": SILENT_S,
        }
        happened: Counter[str] = Counter()
        waiting = [FAULTS[k % len(FAULTS)] for k in range(given.faults)]
        moments.shuffle(waiting)
        starts, started = 0, time.monotonic()
        finished: set[str] = set()
        lost = 0
        while True:
            judge = acting.start(**how)
            starts += 1
            fault_s = time.monotonic() + moments.uniform(1, given.every)
            while judge.poll() is None:
                time.sleep(0.05)
                if waiting and time.monotonic() > fault_s:
                    done = set(acting.recorded())
                    if inflict(waiting[0], acting, judge, moments):
                        happened[waiting.pop(0)] += 1
                        finished |= done
                    fault_s = time.monotonic() + moments.uniform(1, given.every)
            lost += len(finished - set(acting.recorded()))
            complete = len(acting.recorded()) == given.submissions
            if judge.returncode == 0 and complete:
                if not waiting:
                    break
                # Faults are left: somebody hands in anew.
                again = moments.sample(range(given.submissions), given.submissions // 3)
                for k in again:
                    path = acting.folder / f"student{k:03}" / "module.cpp"
                    path.write_text(path.read_text() + "\n")
            if judge.returncode not in (0, 130, -9):
                sys.exit(str(judge.communicate()))
            gone(acting.state)
        took_s = time.monotonic() - started
        same = (acting.out / "grades.csv").read_bytes() == expected
        timings, at_once = overlaps(acting.out)
        blamed = [name for name, record in ledger.read(acting.out).records.items() if record.fault]
        left = not gone(acting.state)
    rows = [[fault, str(count)] for fault, count in sorted(happened.items())]
    rows += [
        ["starts of the judge", str(starts)],
        ["results lost", str(lost)],
        ["without a verdict", str(len(blamed))],
        ["timings on record", str(timings)],
        ["pairs that held one thing at once", str(at_once)],
        ["processes left", "yes" if left else "none"],
        ["same grades.csv", "yes" if same else "NO"],
    ]
    print(
        table(rows, (f"{given.submissions} submissions, {sum(happened.values())} faults, {took_s:.0f} s", ""))
    )
    return 0 if same and not (at_once or lost or blamed or left) else 1


if __name__ == "__main__":
    sys.exit(main())
