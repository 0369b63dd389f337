"""How often an ordinary verdict sees a race in calls that last microseconds, on one core and on all.

Each of the racy kernels of the lab of operators is judged again and again without times; beside N busy processes with
`--busy N`. What is counted: verdicts that are "wrong", and those that name a race. `benchmarks/races.py` counts calls.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from races import busy
from trials import ROOT, table

sys.path.insert(0, str(ROOT))

from grader.assignment import labs
from grader.assignment.loading import load
from grader.base import machine
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from labs.operators import kernels


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verdicts", type=int, default=40, help="verdicts on each kernel (default 40)")
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside (default none)")
    options = parser.parse_args()
    folder = labs.named("operators")
    assignment = load(labs.assignment_file(folder, staff=True))
    master = labs.master(folder, assignment.source).read_text(encoding="utf-8")
    racy = [mutation for mutation in kernels.WRONG if "race" in mutation.codes]
    usable = machine.usable_cpus()
    rows, passed = [], 0
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / assignment.source
        for cores in sorted({1, len(usable)}):
            os.sched_setaffinity(0, usable[:cores])
            for mutation in racy:
                text, parts = kernels.side_by_side(assignment, master, [mutation])
                file.write_text(text, encoding="utf-8")
                found = []
                with busy(options.busy, usable[:cores]):
                    for _ in range(options.verdicts):
                        result = evaluate(assignment, file, parts, Options(timing=False, profile=False))
                        found.append(result.parts[0])
                wrong = sum(part.verdict == "wrong" for part in found)
                named = sum(part.diagnosis is not None and part.diagnosis.code == "race" for part in found)
                passed += len(found) - wrong
                rows.append([str(cores), f"{mutation.part}: {mutation.name}", str(wrong), str(named)])
    print(table(rows, ["cores", "kernel", f"wrong of {options.verdicts}", "race named"]))
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
