"""A class with hostile submissions among honest ones: is everybody graded, and what do the others pay for it?

The same honest submissions (the master, and the styles of tests/honest) are graded twice by the command line, in the
strongest sandbox: alone, and with every row E1 to E7 of the threats among them. The script prints the wall clock of
both and their ratio, and everybody's verdict. It checks that the honest ones earn the same in both and that
`--resume` finds nothing left to do. It prints the size of the results folder, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trials import ROOT, table

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))

from conftest import insert_at_start
from handing_in import zipped
from honest.styles import STYLES, source

from grader.staff.classroom import ledger
from labs.attention.threats import THREATS
from labs.attention.threats.sources import PRELUDE

SUBMISSIONS = 40
LARGEST_RATIO, LARGEST_OUT_BYTES = 1.3, 60 << 20
SEED = "149"
FUNCTION = "myNaiveAttention"
#: What a row's body says of a right kernel of its own; the master has one already.
HONEST_BODY = "attention(q, k, v, o, B * H, N, d);"


def hostile(master: str) -> dict[str, dict[str, bytes]]:
    """Files of each hostile submission by its name."""
    headers = "\n".join(re.findall(r"^#include.*$", PRELUDE, re.MULTILINE))
    found: dict[str, dict[str, bytes]] = {}
    for row in THREATS:
        if not row.row.startswith("E"):
            continue
        text = row.source
        if not text:
            body = row.body.replace(HONEST_BODY, "")
            if "QT.matmul" in body:
                body = "return QTensor.matmul(KTensor.transpose(2, 3)).softmax(-1).matmul(VTensor);"
            text = insert_at_start(f"{headers}\n{row.top}\n{master}", FUNCTION, body)
        found[f"{row.row} {row.name}"[:60]] = {"module.cpp": text.encode()}
    right = f"// E7\n{master}".encode()
    found["lock"] = {"module.cpp": b"// a student by this name\n" + right}
    found["E7 metadata of its own"] = {"module.cpp": right, "submission_metadata.yml": b"[" * 100_000}
    found["E7 nested archives"] = {"module.zip": zipped({"more.zip": zipped({"module.cpp": right})})}
    found["E7 a bomb"] = {"bomb.zip": zipped({"module.cpp": b" " * (300 << 20)})}
    return found


def hand_in(folder: Path, honest: int, others: dict[str, dict[str, bytes]]) -> None:
    """Write a class; every honest text differs by a line, so that each is compiled."""
    texts = [*map(source, STYLES), (ROOT / "module.cpp").read_text()]
    for k in range(honest):
        place = folder / f"honest{k:02d}"
        place.mkdir(parents=True)
        (place / "module.cpp").write_text(f"// handed in by {k}, {folder.name}\n{texts[k % len(texts)]}")
    for number, (name, files) in enumerate(others.items()):
        # Among the honest ones in the order of names, too.
        stem = name if name == "lock" else f"honest{number:02d}_{name}"
        if number % 3 == 2 and "submission_metadata.yml" not in files:
            (folder / f"{stem}.zip").write_bytes(zipped(files))
            continue
        place = folder / stem.replace("/", "_")
        place.mkdir(parents=True)
        for path, content in files.items():
            (place / path).write_bytes(content)


def grade(folder: Path, out: Path, *more: str) -> tuple[int, float, str]:
    command = [sys.executable, "-m", "grader", "run", str(folder), "--out", str(out), "--seed", SEED, *more]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    return done.returncode, time.monotonic() - started, done.stdout + done.stderr


def verdicts(out: Path) -> dict[str, dict[str, str]]:
    """Return the verdicts of each result, by submission and part; "fault" for one that could not be read."""
    found = {}
    for entry in ledger.read(out).roster:
        result = json.loads((out / entry.submission_id / ledger.RESULT).read_text())
        found[entry.submission_id] = {part["id"]: part["verdict"] for part in result["parts"]}
    return found


def size_of(folder: Path) -> int:
    return sum((Path(place) / name).stat().st_size for place, _, names in os.walk(folder) for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submissions", type=int, default=SUBMISSIONS, help="in the class (%(default)s)")
    parser.add_argument("--config", help="of the class (the staff's)")
    given = parser.parse_args()
    config = ["--config", given.config] if given.config else []
    others = hostile((ROOT / "module.cpp").read_text())
    honest = given.submissions - len(others)
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o711)
        place = Path(scratch)
        hand_in(place / "alone", honest, {})
        hand_in(place / "mixed", honest, others)
        _, alone_s, said = grade(place / "alone", place / "out-alone", *config)
        code, mixed_s, mixed_said = grade(place / "mixed", place / "out-mixed", *config)
        before, after = verdicts(place / "out-alone"), verdicts(place / "out-mixed")
        resumed, again_s, resumed_said = grade(place / "mixed", place / "out-mixed", "--resume", *config)
        out_bytes = size_of(place / "out-mixed")
    rows = [
        [name, " ".join(f"{part}={verdict}" for part, verdict in parts.items())]
        for name, parts in after.items()
    ]
    print(table(rows, ("who", "verdicts")))
    changed = [name for name, parts in before.items() if after.get(name) != parts]
    print(
        f"\n{len(after)} of {given.submissions} graded, exit {code}; {honest} honest, {len(others)} hostile"
    )
    print(
        f"wall clock {mixed_s:.0f} s with them, {alone_s:.0f} s without: {mixed_s / alone_s:.2f} (<= {LARGEST_RATIO})"
    )
    print(f"honest verdicts that differ: {', '.join(changed) or 'none'}")
    print(
        f"--resume: exit {resumed}, {again_s:.1f} s: {resumed_said.splitlines()[-1] if resumed_said else ''}"
    )
    print(f"results folder: {out_bytes / (1 << 20):.1f} MB (< {LARGEST_OUT_BYTES >> 20})")
    fine = len(after) == given.submissions and mixed_s <= LARGEST_RATIO * alone_s and not changed
    fine = fine and out_bytes < LARGEST_OUT_BYTES and resumed == code
    print("met" if fine else f"MISSED\n{said[-2000:]}\n{mixed_said[-2000:]}\n{resumed_said[-1000:]}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
