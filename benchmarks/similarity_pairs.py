"""Compare `similar` with copydetect and Dolos on 200 copied and 200 honest pairs, and on 300 honest files.

Copies are made from the independent authors of tests/likeness by eight kinds of changes. An honest pair has two
authors, or an author and a kernel of tests/honest. Every tool gets the starter, whose text does not count as similar.

    python benchmarks/similarity_pairs.py --copydetect PYTHON --dolos FOLDER

PYTHON is an interpreter with copydetect, FOLDER holds node_modules/@dodona/dolos-lib. Both may be left out.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "likeness")]

from authors import bodies, submission  # noqa: E402
from copies import (  # noqa: E402
    padded,
    recommented,
    renamed,
    reordered,
    reshaped_loops,
    turned_products,
    with_other_loops,
)
from honest import styles  # noqa: E402

from grader.assignment.regions import strip_solution  # noqa: E402
from grader.staff.similarity import likeness  # noqa: E402
from grader.staff.similarity.tokens import Source  # noqa: E402

MASTER = (ROOT / "module.cpp").read_text()
STARTER = strip_solution(MASTER)
AUTHORS, COPIES, HONEST, FILES = 100, 25, 200, 300
Pairs = dict[tuple[str, str], str]

COPYDETECT = """
import json, sys, numpy
from copydetect import CodeFingerprint, compare_files
folder, pairs = sys.argv[1], json.load(open(sys.argv[2]))
given = CodeFingerprint(f"{folder}/starter.cpp", 25, 1)
one = lambda name: CodeFingerprint(f"{folder}/{name}.cpp", 25, 1, numpy.array([*given.hashes]))
read = {name: one(name) for name in {name for pair in pairs for name in pair}}
print(json.dumps([float(max(compare_files(read[a], read[b])[1])) for a, b in pairs]))
"""
DOLOS = """
import { Dolos } from "@dodona/dolos-lib";
import { readFileSync } from "node:fs";
const [folder, list] = process.argv.slice(-2), found = [];
for (const [a, b] of JSON.parse(readFileSync(list))) {
  const paths = [`${folder}/${a}.cpp`, `${folder}/${b}.cpp`];
  const report = await new Dolos({ language: "cpp" }).analyzePaths(paths, `${folder}/starter.cpp`);
  found.push(report.allPairs()[0]?.similarity ?? 0);
}
console.log(JSON.stringify(found));
"""


def split(body: str, rng: random.Random) -> str:
    """Move a loop out of each function into a helper above it."""
    lines = body.splitlines()
    heads = [k for k, line in enumerate(lines) if line.startswith("for") and line.endswith("{")]
    for head in heads[2:3] or heads[:1]:
        depth, end = 0, head
        for end in range(head, len(lines)):
            depth += lines[end].count("{") - lines[end].count("}")
            if depth == 0:
                break
        name = f"helper{rng.randrange(1000)}"
        moved = [f"auto {name} = [&](int b, int h, int i) {{", *lines[head : end + 1], "};"]
        lines = [*moved, *lines[:head], f"{name}(b, h, i);", *lines[end + 1 :]]
    return "\n".join(lines)


def by_hand(body: str, rng: random.Random) -> str:
    """Rewrite sums with temporary variables, minima with conditions, and products with exchanged factors."""

    def product(match: re.Match[str]) -> str:
        name = f"step{rng.randrange(10)}"
        return (
            f"float {name} = {match[2]};\n{match[1]} = {name} + {match[1]};"
            if rng.random() < 0.6
            else match[0]
        )

    body = re.sub(r"^(\w+) \+= ([^;]* \* [^;]*);$", product, body, flags=re.MULTILINE)
    body = re.sub(r"std::min(?:<int>)?\(([^,()]+), ([^,()]+)\)", r"(\2 <= \1 ? \2 : \1)", body)
    return renamed(turned_products(body, rng), rng)


KINDS = {
    "renamed": (renamed,),
    "reordered": (renamed,),
    "split functions": (split, renamed),
    "other loops": (with_other_loops, reshaped_loops, renamed),
    "comments": (recommented,),
    "dead code": (padded, renamed),
    "by hand": (reshaped_loops, by_hand),
    "one function": (recommented,),
}


def texts() -> tuple[dict[str, str], Pairs]:
    """Return the files by name, and the kind of change of each pair ("" for honest ones)."""
    rng = random.Random(149)
    authors = [bodies(3000 + k) for k in range(AUTHORS)]
    files = {f"author{k}": submission(MASTER, own) for k, own in enumerate(authors)}
    files |= {f"style{k}": styles.source(style) for k, style in enumerate(styles.STYLES)}
    pairs: Pairs = {}
    for number, kind in enumerate(kind for kind in KINDS for _ in range(COPIES)):
        of = number % AUTHORS
        changed = []
        for body in authors[of]:
            for change in KINDS[kind]:
                body = change(body, rng)
            changed.append(body)
        if kind == "one function":
            part = 2 + number % 4
            changed = [*(own := bodies(9000 + number))[:part], changed[part], *own[part + 1 :]]
        text = submission(MASTER, changed)
        files[f"copy{number}"] = reordered(text, rng) if kind == "reordered" else text
        pairs[f"author{of}", f"copy{number}"] = kind
    honest = sorted(name for name in files if name.startswith("author"))
    others = sorted(name for name in files if name.startswith("style"))
    while list(pairs.values()).count("") < HONEST:
        left, right = rng.sample(honest, 2)
        pairs[left, rng.choice(others) if rng.random() < 0.2 else right] = ""
    return files, pairs


def average_precision(scores: Sequence[float], pairs: Pairs) -> float:
    """Return the average precision: the mean of the precision at each copied pair, in the order of scores.

    Of pairs with equal scores, honest ones come first.
    """
    ranked = sorted(zip(scores, map(bool, pairs.values()), strict=True), key=lambda one: (-one[0], one[1]))
    places = [place for place, (_, is_copy) in enumerate(ranked, 1) if is_copy]
    return sum(found / place for found, place in enumerate(places, 1)) / len(places)


def ours(files: dict[str, str], pairs: Pairs) -> list[float]:
    found = likeness.compare({name: Source(text) for name, text in files.items()}, Source(STARTER))
    known = {frozenset((pair.left, pair.right)): pair.likeness for pair in found.pairs}
    return [known.get(frozenset(pair), 0.0) for pair in pairs]


def outside(
    command: Sequence[str], script: str, files: dict[str, str], pairs: Pairs, cwd: Path | None
) -> list[float]:
    """Return the scores of another tool, by a script that reads a folder and a list of pairs."""
    with tempfile.TemporaryDirectory(dir=cwd) as scratch:
        folder = Path(scratch)
        for name, text in {**files, "starter": STARTER}.items():
            (folder / f"{name}.cpp").write_text(text)
        (folder / "pairs.json").write_text(json.dumps([*pairs]))
        (folder / "script.mjs").write_text(script)
        words = [*command, str(folder / "script.mjs"), scratch, str(folder / "pairs.json")]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--copydetect", metavar="PYTHON")
    parser.add_argument("--dolos", metavar="FOLDER", type=Path)
    given = parser.parse_args()
    files, pairs = texts()
    tools = {"similar": lambda: ours(files, pairs)}
    if given.copydetect:
        tools["copydetect"] = lambda: outside([given.copydetect], COPYDETECT, files, pairs, None)
    if given.dolos:
        tools["Dolos"] = lambda: outside(["node"], DOLOS, files, pairs, given.dolos)
    print(f"{'':12} precision  seconds  pairs of each kind above every honest pair")
    for tool, run in tools.items():
        begun = time.monotonic()
        scores = run()
        honest = max(score for score, kind in zip(scores, pairs.values(), strict=True) if not kind)
        above = {
            kind: sum(s > honest and k == kind for s, k in zip(scores, pairs.values(), strict=True))
            for kind in KINDS
        }
        counts = ", ".join(f"{kind} {count}" for kind, count in above.items())
        precision, seconds = average_precision(scores, pairs), time.monotonic() - begun
        print(f"{tool:12} {precision:9.3f} {seconds:8.1f}  {counts}", flush=True)
    honest_files = {f"s{k}": Source(submission(MASTER, bodies(3000 + k))) for k in range(FILES)}
    alike = [p for p in likeness.compare(honest_files, Source(STARTER)).pairs if p.likeness >= likeness.ALIKE]
    print(f"pairs of {FILES} honest files that count as alike: {len(alike)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
