"""Judge the 40 hand-ins of `flash_family` by the lab `cs336`, and compare each half's verdict with the known one.

With --times, times are measured as well, on a GPU. Exit code: 0 if every half gets its known verdict, 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from flash_family import FILES  # noqa: E402

from grader.assignment.loading import load  # noqa: E402
from grader.judge.bench import Options  # noqa: E402
from grader.judge.evaluate import evaluate  # noqa: E402

ENDS = {"pass": "right", "slow": "right", "missing": "missing"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="hand-ins (all)")
    parser.add_argument("--times", action="store_true", help="time what is right, where a card is")
    given = parser.parse_args()
    assignment = load(ROOT / "labs" / "cs336" / "assignment.yaml")
    options = Options(shape={}, timing=given.times, time_ungraded=given.times, profile=False)
    agreed, judged, began_s = 0, 0, time.monotonic()
    for name in given.names or FILES:
        file, started_s = FILES[name], time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, assignment.source)
            path.write_text(file.text)
            found = evaluate(assignment, path, assignment.parts, options).parts
        took_s = time.monotonic() - started_s
        for part in found:
            known, end = file.halves[part.id], ENDS.get(part.verdict, part.verdict)
            judged, agreed = judged + 1, agreed + (known == end)
            flags = " ".join(flag.code for flag in part.flags if flag.level != "note")
            reason = f"{part.diagnosis.code}: {part.diagnosis.message[:150]}" if part.diagnosis else ""
            if known != end or known == "wrong" or flags:
                print(f"{name} {part.id}: known {known}, judged {part.verdict} {flags} {reason}")
        print(f"{name} {took_s:.1f} s", flush=True)
    print(f"{agreed} of {judged} halves judged as they are, {time.monotonic() - began_s:.0f} s")
    return int(agreed != judged)


if __name__ == "__main__":
    sys.exit(main())
