"""Clues: keywords for kinds of lines in a student's function, and the search for these lines.

The clues of this module are the same for all labs. For each diagnosis a list of clues says which lines to show: USUAL
for the codes of the engine, `grader.explain.oracle.Oracle.clues` for those of a lab.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from grader.assignment.records import Part
from grader.source.landmarks import Body, Place

MOST_PLACES, MOST_LINES = 4, 5
HEADING = "Lines to look at in"
"""Heading before a list of lines. Readers of a message know by it that the first line is not the place of the error."""
_SUMS = r"^(?!.*\bfor\s*\().*\w[\w\]\)]*\s*\+="

#: Clues without an argument: words for the student, and the function that finds the lines.
KNOWN: dict[str, tuple[str, Callable[[Body], list[Place]]]] = {
    "loops": ("a loop with bounds of its own", Body.loops),
    "one_short": ("this ends before the last index", Body.one_short),
    "of_row": ("an end that depends on another index", Body.ends_of_row),
    "whole_sums": ("a whole number", Body.whole_sums),
    "same_ends": ("another counter ends there, too", Body.same_ends),
    "steps": (
        "a loop in steps",
        lambda body: body.steps() or body.in_helpers(r"\bfor\s*\([^;]*;[^;]*;[^)]*\+=\s*(?!1\s*\))"),
    ),
    "exponentials": ("exp() is taken", lambda body: body.in_helpers(r"\bexp[2f]?\s*\(")),
    "sums": ("a sum", lambda body: body.find(_SUMS)),
    "divisor": ("a sum", lambda body: body.divisors() or body.find(_SUMS)),
    "divide": ("a division", Body.divisions),
    "casts": (
        "made a whole number or half a float",
        lambda body: body.find(
            r"\(\s*(?:int|long|short|char|unsigned|u?int\d+_t)\s*\)|static_cast\s*<\s*(?:int|long|short)|Half|BFloat16|_Float16"
            r"|0[xX][fF]{4}0{4}|>>\s*16|_cvtps_ph"
        ),
    ),
    "static": ("kept from call to call", lambda body: body.find(r"\b(?:static|thread_local)\b")),
    "bare": ("declared without a value", Body.bare),
    "never_begun": (
        "added to, and set nowhere in this function",
        lambda body: [place for place, _ in body.never_begun()],
    ),
    "maxima": ("where this maximum begins", Body.maxima_begun),
    "minus_one": (
        "an end, or the last index?",
        lambda body: body.find(r"[-+\w\])]\s*-\s*1\s*[,;]|\+\s*\w+\s*-\s*1\s*\)(?!\s*/)"),
    ),
    "return": ("this is returned", lambda body: body.find(r"\breturn\s+\w+\s*;")),
    "fresh": (
        "memory as it comes",
        lambda body: body.find(
            r"\b(?:malloc|aligned_alloc|realloc|alloca)\s*\(|\bnew\s+\w+\s*\[|\bat::empty\b|torch::empty\b"
        ),
    ),
    "fills": ("set to zero", lambda body: body.find(r"\bfill(?:_|_n)?\s*\(|\bmemset\s*\(|\.\s*assign\s*\(")),
    "guards": ("a condition", lambda body: body.find(r"\bif\s*\(|\?")),
    "skips": ("this skips the rest of a loop", lambda body: body.find(r"\b(?:continue|break)\s*;")),
    "lanes": (
        "lanes of a vector are added up",
        lambda body: body.in_helpers(
            r"\b_mm\w*_(?:extract|hadd|movehl|shuffle|permute|cast\w*128)|\b(\w+)\s*\[0\]\s*\+\s*\1\s*\[\d\]"
        ),
    ),
    "parallel": ("the parallel region", lambda body: body.find(r"#\s*pragma\s+omp|std::thread|parallel_for")),
}
#: Clues for the diagnosis codes of the engine.
USUAL: dict[str, tuple[str, ...]] = {
    "remainder_tile": ("loops", "steps"),
    "partly_not_written": ("loops", "store", "steps"),
    "not_written": ("casts", "store", "loops"),
    "wrong_layout": ("store",),
    "shifted": ("store", "loops"),
    "constant_factor": ("divide", "store"),
    "low_precision": ("casts", "skips"),
    "not_finite": ("bare", "fresh", "divide", "skips"),
    "unsteady": ("static", "bare", "fresh"),
    "race": ("parallel",),
    "wrong_values": ("skips", "loops", "store"),
}
#: Clues for codes that hold the name of an axis and one of these texts ("row_range").
OF_PLACES: dict[str, tuple[str, ...]] = {
    "_range": ("loops", "same_ends", "guards", "store"),
    "periodic_": ("loops", "steps"),
}


def usual(code: str) -> tuple[str, ...]:
    """Return the clues for a diagnosis code that the lab's oracle does not mention."""
    return USUAL.get(code) or next((clues for part, clues in OF_PLACES.items() if part in code), ())


@dataclass(frozen=True)
class Shown:
    """A line of the student's file that is shown, and words that describe it ("a sum")."""

    place: Place
    words: str


def lines(body: Body, part: Part, clues: Sequence[str], right: Collection[str] = ()) -> list[Shown]:
    """Return the lines that the clues find in a function, those of the first clue first.

    A clue that finds more than MOST_PLACES lines is skipped, since so many lines do not help. A clue that begins with
    "?" is used only if the clues before it found nothing. `right` names outputs that are right: lines that store into
    them are left out.
    """
    found: dict[int, Shown] = {}
    for clue in clues:
        if found and clue.startswith("?"):
            continue
        words, places = _found(body, part, clue.removeprefix("?"), right)
        if len(places) <= MOST_PLACES:
            for place in places:
                found.setdefault(place.line, Shown(place, words))
    return list(found.values())[:MOST_LINES]


def _found(body: Body, part: Part, clue: str, right: Collection[str]) -> tuple[str, list[Place]]:
    kind, _, what = clue.partition(":")
    if clue in KNOWN:
        words, find = KNOWN[clue]
        return words, find(body)
    if kind == "input":
        return f"{what} is used", body.reads(_given(body, part, what))
    if kind == "pointer":
        return f"where this pointer into {what} begins", body.pointers(_given(body, part, what))
    if kind == "call":
        pattern = rf"\b\w*{what}\w*\s*\("
        return f"{what}() is called", body.find(pattern) or body.calls(pattern)
    if kind == "store":
        return "the result is written", body.stores(_outputs(body, part, right))
    if kind == "stored":
        return "what the result is made of", body.stored(_outputs(body, part, right))
    if kind == "line":
        return "", body.find(what)
    if kind == "text":
        used = body.uses(what) or body.reads(body.copied_in(what))
        return ("", used) if used else ("made here, and not used below", body.find(what))
    if kind == "begun":
        return "where this sum begins", body.begun(_given(body, part, what))
    if kind in ("until", "mixed"):
        (own, *_) = [*_given(body, part, what), what]
        return f"this loop runs to {own}", body.until(own, mixed=kind == "mixed")
    if kind == "zeroed":
        (own, *_) = [*_given(body, part, what), what]
        return f"set to zero in the loop to {own}", body.zeroed_in(own)
    if kind == "restarts":
        (own, *_) = [*_given(body, part, what), what]
        stored = set(body.reads(_outputs(body, part, right)))
        words = f"begins anew in a loop to {own}: is it the loop whose turns are added up?"
        return words, [place for place in body.restarts(own) if place in stored]
    if kind == "tests":
        (own, *_) = [*_given(body, part, what), what]
        return "is this true in the last block, too?", body.find(
            rf"^(?!.*(?:\bfor\b|\?|\bmin\b)).*\b{own}\b.*(?:[<>]|==|%)|^(?!.*(?:\bfor\b|\?)).*(?:[<>]|==)[^;]*\b{own}\b"
        )
    if kind == "cut":
        (own, *_) = [*_given(body, part, what), what]
        return f"to {own} in steps, or rounded down: is the rest of {own} done, and no more?", body.cut(own)
    if kind == "unlooped":
        (own, *_) = [*_given(body, part, what), what]
        used = body.reads(_given(body, part, next(iter(part.arguments))))
        loops = body.enclosing(used[-1].line) if used and not body.until(own) else []
        return f"no loop here runs to {own}", loops[:1]
    if kind == "cleared":
        return "set to zero", body.cleared(_workspaces(body, part))
    if kind == "into":
        return f"what {what} is summed up in", body.summed_from(_given(body, part, what))
    return "", []


def _outputs(body: Body, part: Part, right: Collection[str]) -> Sequence[str]:
    wanted = [output for output in part.outputs if output not in right]
    return [name for output in wanted for name in _given(body, part, output)] or body.returned


def _given(body: Body, part: Part, name: str) -> list[str]:
    """Return the student's name for the part's argument `name`, found by its position, in a list; [] if unknown."""
    return [
        own
        for argument, own in zip(part.arguments, body.parameters, strict=False)
        if argument == name and own
    ]


def _workspaces(body: Body, part: Part) -> list[str]:
    """Return the student's names for the workspaces: arguments that are arrays of zeros."""
    given = zip(part.arguments, body.parameters, strict=False)
    return [own for argument, own in given if argument.startswith("zeros(") and own]


def in_words(shown: Sequence[Shown], body: Body, file_name: str) -> str:
    """Return text with the found lines, or with the function's place if none was found, to follow a diagnosis."""
    if not shown:
        return f"{body.name} is {file_name}:{body.first} to {body.last}."
    rows = [
        f"  {file_name}:{each.place.line}: {each.place.text}" + (f"   ({each.words})" if each.words else "")
        for each in shown
    ]
    return "\n".join([f"{HEADING} {body.name}:", *rows])
