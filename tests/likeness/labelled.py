"""A class in which it is known who copied from whom, and how well a search tells copies from independent work.

As a program, from the project's folder: `PYTHONPATH=. python tests/likeness/labelled.py [authors] [copies of a kind]`.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from authors import bodies, submission
from copies import EFFORTS, copied, reordered

from grader.assignment.regions import strip_solution
from grader.staff.similarity import likeness

ROOT = Path(__file__).resolve().parents[2]
#: How much was copied: which of the six bodies; the others are the copier's own.
AMOUNTS = {"all": (0, 1, 2, 3, 4, 5), "two parts": (3, 5), "one part": (5,)}


@dataclass(frozen=True)
class LabelledClass:
    """`copies`: {(copy, its original): (effort, amount)}; all other pairs are independent work."""

    sources: dict[str, str]
    starter: str
    copies: dict[tuple[str, str], tuple[str, str]]


def make(
    authors: int, copies: int, seed: int = 0, amounts: tuple[str, ...] = tuple(AMOUNTS)
) -> LabelledClass:
    """A class of independent authors, and of copiers: so many of each effort and amount, each of another original."""
    master = (ROOT / "module.cpp").read_text()
    rng = random.Random(seed)
    sources = {f"s{k:03}": submission(master, bodies(1000 * seed + k)) for k in range(authors)}
    known: dict[tuple[str, str], tuple[str, str]] = {}
    kinds = [(effort, amount) for effort in EFFORTS for amount in amounts] * copies
    for k, (effort, amount) in enumerate(kinds):
        theirs, own = bodies(1000 * seed + k % authors), bodies(1000 * seed + 500_000 + k)
        taken = AMOUNTS[amount]
        text = submission(
            master,
            [copied(theirs[at], effort, 97 * k + at) if at in taken else own[at] for at in range(len(own))],
        )
        sources[f"c{k:03}"] = text if effort == "careless" else reordered(text, rng)
        known[f"c{k:03}", f"s{k % authors:03}"] = (effort, amount)
    return LabelledClass(sources, strip_solution(master), known)


def likenesses(labelled: LabelledClass) -> tuple[dict[tuple[str, str], float], list[float]]:
    """({copied pair: likeness}, likenesses of all independent pairs, the largest first)."""
    found = {
        (p.left, p.right): p.likeness for p in likeness.compare(labelled.sources, labelled.starter).pairs
    }
    copied_pairs = {pair: found.pop(pair, 0.0) for pair in labelled.copies}
    total = len(labelled.sources) * (len(labelled.sources) - 1) // 2 - len(copied_pairs)
    independent = sorted(found.values(), reverse=True)
    return copied_pairs, independent + [0.0] * (total - len(independent))


def main(arguments: list[str]) -> None:
    authors, copies = (int(text) for text in arguments) if arguments else (180, 10)
    labelled = make(authors, copies)
    started = time.process_time()
    pairs, independent = likenesses(labelled)
    print(f"{len(labelled.sources)} submissions compared in {time.process_time() - started:.1f} CPU seconds")
    at = {share: independent[int(len(independent) * share)] for share in (0.5, 0.01, 0.001, 0)}
    print(
        f"{len(independent)} independent pairs: half below {at[0.5]:.2f}, 99 % below {at[0.01]:.2f}, "
        f"99.9 % below {at[0.001]:.2f}, all up to {at[0]:.2f}"
    )
    for amount in AMOUNTS:
        for effort in EFFORTS:
            values = sorted(v for pair, v in pairs.items() if labelled.copies[pair] == (effort, amount))
            above = [sum(value > at[share] for value in values) / len(values) for share in (0, 0.001)]
            print(
                f"{amount:10} {effort:9} {values[0]:.2f} to {values[-1]:.2f}; above every independent pair "
                f"{above[0]:.0%}, above 99.9 % of them {above[1]:.0%}"
            )
    for threshold in (0.75, 0.80, 0.85, 0.90):
        whole = [v for pair, v in pairs.items() if labelled.copies[pair][1] == "all"]
        hits, false = sum(v >= threshold for v in whole), sum(v >= threshold for v in independent)
        print(
            f"at {threshold:.0%}: finds {hits} of {len(whole)} whole copies, with {false} independent pairs "
            f"(precision {hits / max(1, hits + false):.2f}, recall {hits / len(whole):.2f})"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
