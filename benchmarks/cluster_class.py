"""A real class by a scheduler and three machines that are processes here, against the same class on this machine.

Sixty submissions as they arrive (tests/test_class_of_sixty.py: right, wrong, crashing, hanging, forged, unreadable),
judged for real in the sandbox. Compared are verdicts and points of each; the ledger must show no two timings that held
one thing at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trials import ROOT, table

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from classes.clustered import overlaps  # noqa: E402
from conftest import keeping  # noqa: E402
from test_class_of_sixty import SMALL, hand_in  # noqa: E402

from grader.staff.classroom import ledger  # noqa: E402


def grade(folder: Path, out: Path, config: Path, *more: str) -> float:
    command = [sys.executable, "-m", "grader", "run", str(folder), "--out", str(out), "--config", str(config)]
    started = time.perf_counter()
    ended = subprocess.run(
        [*command, "--seed", "149", "--trust", *more], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        sys.exit(ended.stdout[-3000:] + ended.stderr[-2000:])
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", type=int, default=3, help="processes here (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        master = keeping((ROOT / "module.cpp").read_text(), "myNaiveAttention", "myFusedAttention")
        hand_in(place / "class", master)
        config = place / "small.yaml"
        config.write_text(SMALL.read_text().replace("call_s: 1,", "call_s: 2,"))
        calibration = place / "calibration.cpp"
        calibration.write_text(master)
        here_s = grade(place / "class", place / "here", config)
        there_s = grade(
            place / "class", place / "there", config,
            "--cluster", f"local:{given.machines}", "--calibration", str(calibration),
        )  # fmt: skip
        here, there = (ledger.read(place / name) for name in ("here", "there"))
        other = [
            name
            for name, record in here.records.items()
            if (record.verdicts, record.points) != (there.records[name].verdicts, there.records[name].points)
        ]
        timings, at_once = overlaps(place / "there")
        machines = sorted({record.machine for record in there.records.values()} - {""})
    rows = [
        ["here", f"{here_s:.0f} s"],
        ["by the cluster", f"{there_s:.0f} s"],
        ["machines that judged", str(len(machines))],
        ["other verdicts or points", ", ".join(other) or "none"],
        ["timings on record", str(timings)],
        ["pairs that held one thing at once", str(at_once)],
    ]
    print(table(rows, (f"{len(here.records)} submissions", "")))
    return 1 if other or at_once else 0


if __name__ == "__main__":
    sys.exit(main())
