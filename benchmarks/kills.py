"""Kill the judge of a class at random moments, resume it, and compare the grades with those of an undisturbed run.

The class is real: right, wrong, crashing, leaving, hanging and unreadable submissions as a folder and a zip. It is
graded by the command line with the real evaluator in the strongest sandbox. In each trial a few sources get a new
comment, so that the kill may fall into a compile as well. Three things are compared: `grades.csv` byte by byte, the
number of results per submission in the ledger (one each: nothing graded twice), and the processes left after the run.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path

from trials import ROOT, table

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from classes.acting_class import SMALL  # noqa: E402
from handing_in import zipped  # noqa: E402
from test_class_of_sixty import kinds  # noqa: E402

from grader.staff.classroom import ledger  # noqa: E402

SEED = "149"


def hand_in(folder: Path, note: str) -> None:
    """Write the class; three of its sources contain `note`, so that they are compiled anew."""
    for name, kind in kinds((ROOT / "module.cpp").read_text()).items():
        noted = name in ("right", "wrong once", "crash")
        text = (f"// {note}\n" * noted + kind.source).encode()
        if name in ("chatty", "starter", "crash"):
            (folder / f"{name}.zip").write_bytes(zipped({"module.cpp": text}))
        else:
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "module.cpp").write_bytes(text)
    (folder / "broken.zip").write_bytes(b"PK but not really")


def command(folder: Path, out: Path) -> list[str]:
    paths = ("run", folder, "--out", out, "--config", SMALL)
    return [sys.executable, "-m", "grader", *map(str, paths), "--seed", SEED, "--resume", "--trust"]


def processes_under(folder: Path) -> list[str]:
    """Command lines of living processes that name `folder`."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def finished(out: Path) -> Counter[str]:
    """Return the number of results in a run's ledger, by submission."""
    path = out / ledger.LEDGER
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    items = [json.loads(line) for line in lines]
    return Counter(item["submission_id"] for item in items if item["kind"] == "result")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="trials (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    given = parser.parse_args()
    moments = random.Random(given.seed)
    rows, faults = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        # Twice: the first finds nothing compiled, and would put most moments after the end of a later run.
        for name in ("first", "undisturbed"):
            (place / name).mkdir()
            hand_in(place / name, name)
            started = time.monotonic()
            run = command(place / name, place / f"out {name}")
            subprocess.run(run, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            whole_s = time.monotonic() - started
        out = place / "out undisturbed"
        expected, everybody = (out / "grades.csv").read_bytes(), finished(out)
        for trial in count():
            if len(rows) == given.kills:
                break
            folder, out = place / f"class{trial}", place / f"out{trial}"
            folder.mkdir()
            hand_in(folder, f"trial {trial}")
            moment = moments.random()
            judge = subprocess.Popen(command(folder, out), cwd=ROOT, stdout=subprocess.DEVNULL)
            time.sleep(moment * whole_s)
            judge.kill()
            if judge.wait() == 0:
                continue  # it had ended before
            before = finished(out)
            resumed = subprocess.run(command(folder, out), cwd=ROOT, capture_output=True, text=True)
            same = (out / "grades.csv").read_bytes() == expected
            once = finished(out) == everybody
            left = processes_under(folder)
            right = resumed.returncode == 0 and same and once and not left
            faults += not right
            done = f"{len(before)} of {len(everybody)}"
            marks = ["yes" if mark else "no" for mark in (same, once, not left)]
            rows.append([str(len(rows) + 1), f"{moment:.2f}", done, *marks])
            print(*rows[-1], "" if right else resumed.stderr[-500:], sep="  ", flush=True)
    heads = ["kill", "moment", "done before", "same grades.csv", "one result each", "nothing left"]
    print(table(rows, heads))
    print(f"{given.kills - faults} of {given.kills} resumed to the same grades")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
