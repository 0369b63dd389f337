"""Results of an invented class, drawn from a seed: every verdict, hidden cases, absent values and hostile text."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any, get_args

from grader.assignment import loading, records
from grader.core import results
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, ScoreLine, SubmissionResult, Timing
from grader.report.machines import Row

ROOT = Path(__file__).resolve().parent.parent
Score = results.Score
SHAPE = {"B": 1, "H": 4, "N": 1024, "d": 32, "Br": 256, "Bc": 256}
#: Shape and name of a hidden case, which no student may read.
SECRET_SHAPE = {"B": 3, "H": 5, "N": 7919, "d": 37, "Br": 13, "Bc": 11}
SECRET_NAME = "staff primes"
SECRET_NUMBER = 0.768231
#: Texts about a hidden case that no student may read: its name, one of its sizes, a wrong value, a row, a tile size.
SECRETS = (SECRET_NAME, "7919", str(SECRET_NUMBER), "7907", "Br=13")

ABSURD_NAMES = (
    *("<script>alert(1)</script>", '=HYPERLINK("http://x","click")', "+1+1", "-2+3", "@SUM(A1:A9)"),
    *("\t=1+1", "\r=cmd|' /C calc'!A0", "＝1+1", "أحمد بن محمد", "\u202eevil\u202c name"),
    *("Z" + "\u0301" * 60 + "algo", "x" * 10_000, "张伟 \U0001f600", "a\x1b[31mred\x1b[0m\x07\x00 b"),
    *('"><img src=x onerror=alert(1)>', "lone \ud800 surrogate", "{{ 7 * 7 }} {% raw %}", ""),
    *('O\'Brien, Séan; "Quote"', "line\nbreak\u2028and more"),
)

WORDS = {
    "remainder_tile": "The last tile of rows is wrong when the tile does not divide N. Expected 0.25, got 0.",
    "heads_copied": "Every head holds the result of head 0: the index h is not used. Expected 0.5, got 0.1.",
    "linear_exp": "The weights are 1 + x in place of exp(x). Expected 0.9, got 1.4 at (b=0, h=0, i=0, j=0).",
    "not_written": "not written yet: every element is 0.",
    "lost_scale": "In the flash update, the old O counts too little. Expected 0.102473, got 0.04499.",
}
NAMES = ("published ramp", "random", "ragged", "one row", "one-hot values", "permuted keys")


@cache
def assignment() -> records.Assignment:
    return loading.load(ROOT / "configs" / "gpt149.yaml")


def timing(ratio: float, *, slow: bool = False, graded: bool = True) -> Timing:
    """Return a timing of `ratio` x 160 ms. `slow` sets the verdict. `graded`: True if it counts for the grade."""
    verdict, flags = "slow" if slow else "pass", () if graded else ("not_graded",)
    interval = (ratio * 0.97, ratio * 1.04)
    return Timing(160.0, 160.0 * ratio, ratio, interval, 0.98, 8, "cpu", 1.1, verdict, 1.0, True, flags=flags)


def cases(wrong: str = "", hidden_wrong: bool = False, hidden: bool = True) -> tuple[CaseResult, ...]:
    """Return six public cases, three of them with the diagnosis code `wrong` if set, and a hidden case if `hidden`."""
    right = [CaseResult(name, dict(SHAPE), True, 3e-6) for name in NAMES]
    unseen = CaseResult(SECRET_NAME, dict(SECRET_SHAPE), True, 1e-6, hidden=True)
    if wrong:
        diagnosis = Diagnosis(wrong, WORDS[wrong], (0, 0, 0, 0), 0.5, 0.1, 10, 20)
        right[1::2] = [replace(one, ok=False, max_error=0.4, diagnosis=diagnosis) for one in right[1::2]]
    if hidden_wrong:
        message = f"Rows 7907 to 7918 are wrong. Expected {SECRET_NUMBER}, got 0 at (b=2)."
        secret = {"diagnosis": Diagnosis("row_range", message), "output_sha256": "ab" * 32}
        unseen = replace(unseen, ok=False, max_error=SECRET_NUMBER, **secret)
    return (*right, unseen) if hidden else tuple(right)


QUOTED = "   12 |     tmp[i] = x<y>;\n      |     ^~~"

#: Messages of parts without an output, by verdict. Their diagnosis codes are in CODES if they differ from the verdict.
ENDED = {
    "crash": "myFlashAttention on the input 'ragged' crashed with SIGSEGV: a read or write outside an array.",
    "timeout": "myFusedAttention on the input 'ragged' did not end within 10 s.",
    "compile_error": f"module.cpp:12:5: error: 'tmp' was not declared in this scope\n{QUOTED}",
    "missing": 'myFlashAttention is not exported: add m.def("myFlashAttention", &myFlashAttention).',
    "rejected": "It loads the reference library.",
}
CODES = {"crash": "sigsegv", "missing": "not_bound"}


def part(name: str, title: str, points: float, verdict: Any = "pass", *, ratio: float = 1.0) -> PartResult:
    made = PartResult(name, title, verdict, points)
    if verdict in ENDED:
        opened = Flag("loads_library", "It opened a library while it ran.", "rejected")
        flags = (opened,) if verdict == "rejected" else ()
        return replace(made, diagnosis=Diagnosis(CODES.get(verdict, verdict), ENDED[verdict]), flags=flags)
    made = replace(made, memory=results.Memory(557056, 557056, 3174400, 2990080))
    if verdict == "wrong":
        wrong = cases(sorted(WORDS)[int(ratio * 100) % len(WORDS)])
        return replace(made, cases=wrong, diagnosis=wrong[1].diagnosis)
    time = timing(ratio, slow=verdict == "slow", graded=name != "part4")
    return replace(made, cases=cases(), time=time if name.startswith("part") else None)


def hidden_failure(part_id: str = "part2", points: float = 20.0) -> PartResult:
    """Return a part that is right on every public case and wrong on the hidden one."""
    found = cases(hidden_wrong=True)
    return PartResult(part_id, "Blocked", "wrong", points, cases=found, diagnosis=found[-1].diagnosis)


Parts = tuple[PartResult, ...]
PLACE: tuple[dict[str, Any], ...] = (
    {"system": "Linux x86_64", "processor": "Some CPU @ 2.50GHz", "cores": 2},
    {"compiler": "g++ 12.2.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
    {"tier": "A", "applied": ["bubblewrap", "seccomp", "rlimits"]},
)


def result(parts: Parts, submission_id: str = "s", flags: tuple[Flag, ...] = ()) -> SubmissionResult:
    flags += tuple(flag for part in parts for flag in part.flags)
    most, digest = sum(part.max_points for part in parts), "0123456789abcdef" * 4
    return SubmissionResult(submission_id, digest, "gpt149", *PLACE, parts, flags, max_points=most)


def score(found: SubmissionResult, late_days: int = 0, write_up: float | None = 5, extra: float = 0) -> Score:
    shares = ((part, {"pass": 1.0, "slow": 0.5}.get(part.verdict, 0.0)) for part in found.parts)
    lines = [ScoreLine(part.id, part.title, part.max_points * k, part.max_points) for part, k in shares]
    lines.append(ScoreLine("writeup", "Write-up", write_up or 0.0, 7.0))
    lines.append(ScoreLine("part3_extra", "Extra credit, part 3", extra, 0.0))
    earned = sum(line.points for line in lines)
    penalty = min(earned, 10.0 * late_days)
    pending, most = ("writeup",) if write_up is None else (), found.max_points + 7.0
    return results.Score(tuple(lines), earned, late_days, penalty, earned - penalty, most, pending)


PARTS = tuple((part.id, part.title, float(part.points)) for part in assignment().parts[1:])
FAILURES: tuple[results.Verdict, ...] = (*("wrong",) * 6, "crash", "crash", "timeout", "missing")
VERDICTS = [verdict for verdict in get_args(results.Verdict) if verdict != "unjudged"]
_FIRST = ("Ada", "Ben", "Chen", "Dilnoza", "Eka", "Femi", "Grace", "Hiro", "Ines", "Jamal", "Kofi", "Mei")
_LAST = ("Abara", "Bauer", "Castro", "Dang", "Eriksen", "Fofana", "Gupta", "Haddad", "Ito", "Jensen")


def student(k: int, draw: random.Random) -> Row:
    skill = min(1.0, draw.betavariate(4, 1.3))
    broken, parts = draw.random() < 0.03, []
    for number, (part_id, title, points) in enumerate(PARTS):
        lost = draw.random() > skill + 0.25 - 0.06 * number
        verdict: results.Verdict = draw.choice(FAILURES) if lost else "pass"
        ratio = math.exp(draw.gauss(0.0, 0.06)) * (draw.uniform(1.3, 4) if draw.random() < 0.06 else 1)
        if broken:
            verdict = "compile_error"
        elif verdict == "pass" and ratio > 1.2 and part_id in ("part1", "part2", "part3"):
            verdict = "slow"
        made = part(part_id, title, points, verdict, ratio=ratio)
        if verdict == "pass" and draw.random() < 0.01:
            flag = Flag("library_call", "It calls at::matmul, which does the exercise's work.", "review")
            made = replace(made, flags=(flag,))
        elif made.time and draw.random() < 0.1:
            made = replace(made, flags=(Flag("undecided"),))
        if verdict == "pass" and draw.random() < 0.03:
            made = replace(hidden_failure(part_id, points), title=title)
        if draw.random() < 0.1:
            made = replace(made, output="debug: \x1b[31mi=3\x1b[0m <b>tile</b>\n" * draw.randint(1, 30))
        parts.append(made)
    name = f"{draw.choice(_FIRST)} {draw.choice(_LAST)}"
    found = result(tuple(parts), f"{name.lower().replace(' ', '_')}_{k}")
    late = draw.choice((0,) * 9 + (1, 2))
    points = score(found, late, extra=draw.choice((0, 0, 0, 3)))
    at = datetime(2025, 11, 3, 12, tzinfo=timezone.utc) + timedelta(minutes=7 * k)
    return Row(found.submission_id, name, f"student{k}@example.edu", found, points, None, at, late)


def absurd_rows() -> list[Row]:
    """Return a row for each of ABSURD_NAMES, and three rows with absent values. The rows include every verdict."""
    rows = []
    for k, name in enumerate(ABSURD_NAMES):
        parts = tuple(part(*known, VERDICTS[k % len(VERDICTS)], ratio=0.8 + 0.2 * k) for known in PARTS)
        output = "\x1b[2J\x1b]0;title\x07<script>alert(2)</script>\r\n=1+1\n" * 400
        odd = Flag("odd", "<img src=x onerror=alert(3)> " * 20, "review")
        hostile = replace(parts[2], output=output, flags=(*parts[2].flags, odd))
        whole = Flag("whole", "=1+1", "review")
        found = result((*parts[:2], hostile, *parts[3:]), f"absurd_{k}", flags=(whole,))
        rows.append(Row(f"absurd_{k}", name, "=a@b.c", found, score(found, write_up=None), None))
    unknown = results.Memory(None, None, None, None)
    bare = PartResult("part1", "Naive Unfused Attention", "pass", 10.0, memory=unknown)
    unsure = replace(bare, id="part2", time=replace(timing(math.nan), ratio_interval=(math.nan, math.nan)))
    rows.append(Row("bare", "", "", result((bare, unsure)), None, None))
    broken = "the archive is broken: it ends in the middle of module.cpp"
    rows.append(Row("broken", "Broken Archive", "b@example.edu", None, None, broken))
    rows.append(Row("nothing", "Nothing <i>At All</i>", "", None, None, None))
    return rows


def the_class(count: int, seed: int = 149) -> Iterator[Row]:
    """Yield the rows of a plausible class of `count` students, then the absurd rows."""
    draw = random.Random(seed)
    for k in range(count):
        yield student(k, draw)
    yield from absurd_rows()
