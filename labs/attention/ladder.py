"""A kernel's place between the naive one, the reference, the best kernels known, and the machine's limit.

From its time against the reference and what others take against that (`labs.attention.yardsticks`). The module is a
`grader.assignment.labs.Ladder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grader.core.results import Standing, SubmissionResult

from .yardsticks import RUNGS, Yardsticks, applies, kept, measurable

if TYPE_CHECKING:
    from grader.assignment.records import Assignment, Part

#: What a rung is called in a line.
WORDS = {
    "naive": "naive",
    "reference": "reference",
    "rows": "fused, V row by row",
    "plain": "plain best C++",
    "pytorch": "PyTorch",
    "expert": "expert",
}


def stand(ratio: float, known: Yardsticks) -> Standing:
    """The place of a kernel that takes `ratio` times as long as the part's reference."""
    times = {rung: known.against_reference[rung] / ratio for rung in RUNGS}
    return Standing(**times, peak_percent=100 * known.peak_against_reference / ratio, cores=known.cores)


def standing(part: Part, shape: Mapping[str, int], ratio: float) -> Standing | None:
    """The place of a part's kernel, where `gpt149.py frontier` has measured the others on this machine."""
    known = kept(part, shape)
    return stand(ratio, known) if known else None


#: The rungs of a line; the table has them all.
TOLD = ("naive", "reference", "pytorch", "expert")


def line(place: Standing) -> str:
    """`12.3× naive · 1.9× reference · 0.41× PyTorch · ...`: how many times as fast as each."""
    parts = [f"{_times(getattr(place, rung))}× {WORDS[rung]}" for rung in TOLD]
    return " · ".join([*parts, f"{_percent(place.peak_percent)} % of {_machine(place.cores)} peak"])


def shares(place: Standing) -> dict[str, float]:
    """The other kernels' own shares of the peak, in per cent, by what they are called."""
    return {
        WORDS[rung]: place.peak_percent / getattr(place, rung) for rung in RUNGS if getattr(place, rung) > 0
    }


def table(place: Standing, name: str) -> str:
    """All rungs, the fastest above, with the kernel called `name` among them."""
    rows = [(getattr(place, rung), WORDS[rung]) for rung in RUNGS]
    rows += [
        (1.0, f"{name}  <---"),
        (place.peak_percent / 100, f"nothing but {_machine(place.cores)} multiply-adds"),
    ]
    lines = [f"{'time / yours':>12}  {'% of peak':>9}  kernel"]
    for times, word in sorted(rows):
        lines.append(f"{_times(times):>12}  {_percent(place.peak_percent / times):>9}  {word}")
    return "\n".join(lines)


def hint(assignment: Assignment, result: SubmissionResult, sizes: Sequence[str] = ()) -> str:
    """What to type to have the timed parts of a result on the ladder; nothing where they are, or cannot be. `sizes` are
    the options that asked for the result's shape: another shape's ladder would not do."""
    could = {part.id for part in assignment.parts if applies(part)}
    unplaced = [part.id for part in result.parts if part.id in could and part.time and part.frontier is None]
    if not unplaced or not measurable():
        return ""
    command = " ".join(["python gpt149.py frontier", unplaced[-1], *sizes])
    return f"\nHow far is this from the machine's limit? `{command}` measures it, for later runs as well."


def _machine(cores: int) -> str:
    return "one core's" if cores == 1 else f"these {cores} cores'"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.2g}"
