"""Clues: keywords for kinds of lines in a student's function, and the search for these lines.

A clue such as "divide" or "until:N" stands for one kind of line, in any lab. For each diagnosis code, a list of clues
selects the lines to show. USUAL has the lists for the codes of `grader.explain.diagnose`. `Oracle.clues`
(`grader.explain.oracle`) has the lists for a lab's codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from grader.assignment.records import Part
from grader.source import dataflow
from grader.source.dataflow import Reached
from grader.source.landmarks import Body, Place

#: Limits on the number of lines shown for one clue in one function, for the part's own function, and for all functions.
MOST_PLACES, MOST_LINES, MOST_TOGETHER = 4, 5, 8
HEADING = "Lines to look at in"
"""Heading before a list of lines. It shows that the first of these lines need not be the place of the error."""

#: A declaration of an integer of at most 16 bits.
SMALL = r"\b(?:short|char|u?int(?:8|16)_t)\s+\w+\s*="
#: Clues without an argument: words for the student, and the function that finds the lines.
KNOWN: dict[str, tuple[str, Callable[[Body], list[Place]]]] = {
    "loops": ("a loop with its own bounds", Body.loops),
    "one_short": ("this ends before the last index", Body.one_short),
    "of_row": ("the end of this loop depends on another index", Body.ends_of_row),
    "whole_sums": ("a whole number", Body.whole_sums),
    "same_ends": ("another loop has the same end", Body.same_ends),
    "steps": ("a loop with a step other than 1", Body.steps),
    "exponentials": ("exp() is called", lambda body: body.find(r"\bexp[2f]?\s*\(")),
    "sums": ("a sum", lambda body: body.divisors() or body.row_sums() or body.sums()),
    "summing": ("this loop adds up a sum", Body.summing),
    "logarithms": ("a logarithm", lambda body: body.find(r"\blog(?:1p|2)?f?\s*\(")),
    "updates": ("a value is multiplied, perhaps with another one added", Body.updates),
    "divide": ("a division", Body.divisions),
    "casts": (
        "converted to an integer or to half precision",
        lambda body: body.find(
            r"\(\s*(?:int|short|char|unsigned|u?int\d+_t)\s*\)|static_cast\s*<\s*(?:int|long|short)|\b(?:int|long)\s*\(|Half|BFloat16|_Float16"
            r"|0[xX][fF]{4}0{4}|>>\s*16|_cvtps_ph"
        ),
    ),
    "small": (
        "a type of small whole numbers: larger ones wrap round",
        lambda body: body.find(SMALL),
    ),
    "static": ("kept from call to call", lambda body: body.find(r"\b(?:static|thread_local)\s+\w")),
    "bare": ("declared without a value", Body.bare),
    "never_begun": (
        "added to, and set nowhere in this function",
        lambda body: [place for place, _ in body.never_begun()],
    ),
    "maxima": ("where this maximum begins", Body.maxima_begun),
    "maximum": ("a maximum is taken", Body.maxima_taken),
    "minus_maximum": ("this maximum is subtracted", Body.maxima_subtracted),
    "quotients": (
        "whole numbers are divided",
        lambda body: body.find(r"\b(?:int|long|size_t|auto)\s+\w+\s*=(?!.*(?:-\s*1\b|\.))[^;]*[\w)]\s*[/%]"),
    ),
    "bytes": (
        "this counts bytes: is sizeof(float) missing?",
        lambda body: body.find(
            r"\bmem(?:cpy|move|set)\s*\((?!.*(?:sizeof|[bB]ytes|\b4\b)).*,(?:[^,;]*\*[^,;]*|\s*(?:[A-Z]\w?|d))\)\s*;"
        ),
    ),
    "minus_one": (
        "is this the number of elements, or the last index?",
        lambda body: body.find(r"[-+\w\])]\s*-\s*1\s*[,;]|\+\s*\w+\s*-\s*1\s*\)(?!\s*/)"),
    ),
    "leaves": ("this ends the function within a loop", Body.leaves),
    "return": ("this is returned", lambda body: body.find(r"\breturn\s+\w+\s*;")),
    "fresh": (
        "memory without initial values",
        lambda body: body.find(
            r"\b(?:malloc|aligned_alloc|realloc|alloca)\s*\(|\bnew\s+\w+\s*\[|\bat::empty\b|torch::empty\b"
        ),
    ),
    "fills": (
        "elements are set",
        lambda body: body.find(r"\bfill(?:_|_n)?\s*\(|\bmemset\s*\(|\.\s*assign\s*\("),
    ),
    "guards": ("a condition", lambda body: body.find(r"\bif\s*\(|\?")),
    "skips": ("this skips the rest of a loop", lambda body: body.find(r"\b(?:continue|break)\s*;")),
    "lanes": (
        "lanes of a vector are added up",
        lambda body: body.find(
            r"\b_mm\w*_(?:extract|hadd|movehl|shuffle|permute|cast\w*128)|\b(\w+)\s*\[0\]\s*\+\s*\1\s*\[\d\]"
        ),
    ),
    "own_turns": (
        "each thread has one for all its turns: does it keep values of the last?",
        Body.own_of_threads,
    ),
    "grown": ("this sum is divided by while the loop around still adds to it", Body.grown_divisors),
    "nowait": ("threads go on before the others have finished", lambda body: body.find(r"\bnowait\b")),
    "shares": ("work / threads is rounded down: is the remainder left out?", Body.shares),
    "added": (
        "this value is added up",
        lambda body: body.values(re.findall(r"\+=\s*(\w+)", " ".join(at.text for at in body.row_sums()))),
    ),
    "parallel": ("the parallel region", lambda body: body.find(r"#\s*pragma\s+omp|std::thread|parallel_for")),
}
#: Clues for the codes of `grader.explain.diagnose` and `grader.explain.relations`.
USUAL: dict[str, tuple[str, ...]] = {
    "remainder_tile": ("loops", "steps"),
    "partly_not_written": ("leaves", "shares", "loops", "store", "steps"),
    "not_written": ("own_copies", "casts", "store", "loops"),
    "wrong_layout": ("store",),
    "shifted": ("store", "loops"),
    "constant_factor": ("divide", "store"),
    "low_precision": ("casts", "skips"),
    "not_finite": ("bytes", "bare", "fresh", "divide", "skips"),
    "unsteady": ("nowait", "bytes", "static", "bare", "fresh"),
    "race": ("nowait", "parallel"),
    "wrong_values": ("bytes", "skips", "loops", "store", "stored", "index"),
}
#: Clues for codes that consist of the name of an axis and one of these texts, such as "row_range".
OF_PLACES: dict[str, tuple[str, ...]] = {
    "_range": ("leaves", "loops", "same_ends", "guards", "store"),
    "periodic_": ("loops", "steps"),
}
#: Clues with the name of a size after a colon, such as "until:N".
OF_SIZES = frozenset({"until", "around", "mixed", "zeroed", "restarts", "tests", "cut"})
#: Clues that are searched only in the part's own function. In other functions such lines are usual.
OWN_ONLY = frozenset({"leaves", "return", "never_begun", "text", "unlooped"})
#: An assignment of a literal number.
_SETS_NUMBER = re.compile(r"(?<![-+*/])=\s*-?[\d.]+f?\s*[;,)]")
#: An assignment to an array's element. Group 1 is the array's name.
_INDEXED = re.compile(r"\b([A-Za-z_]\w*)\s*\[[^=;]*\]\s*[-+*/]?=(?!=)")


def usual(code: str) -> tuple[str, ...]:
    """Return the clues for a diagnosis code that the lab's oracle does not mention."""
    return USUAL.get(code) or next((clues for part, clues in OF_PLACES.items() if part in code), ())


@dataclass(frozen=True)
class Shown:
    """A line of the student's file to print in a message, and words that describe the line ("a sum").

    `within` names the function that contains the line; "" for the part's own function.
    """

    place: Place
    words: str
    within: str = ""


def lines(body: Body, part: Part, clues: Sequence[str], right: Collection[str] = ()) -> list[Shown]:
    """Return the lines that the clues find in a function, then those in the functions of the file that it calls.

    Lines of the first clue come first. A clue that finds more than MOST_PLACES lines in a function is skipped there,
    because so many lines do not help. A clue that begins with "?" is used only if the clues before it found nothing.
    `right` names outputs that are right: lines that store into them are left out.
    """
    own, *called = dataflow.reached(body)
    found, below = dict[int, Shown](), dict[int, Shown]()
    for clue in clues:
        if (found or below) and clue.startswith("?"):
            continue
        for at in (own, *(called if clue.partition(":")[0] not in OWN_ONLY else ())):
            words, places = _found(at, part, clue.removeprefix("?"), right)
            within = f"{at.body.name}, which line {at.calls[0].line} calls" if at.calls else ""
            for place in places if len(places) <= MOST_PLACES else ():
                (below if within else found).setdefault(place.line, Shown(place, words, within))
    kept = list(found.values())[:MOST_LINES]
    others = [shown for line, shown in below.items() if line not in found][: MOST_TOGETHER - len(kept)]
    order = [shown.within for shown in others]
    return [*kept, *sorted(others, key=lambda shown: order.index(shown.within))]


def _found(at: Reached, part: Part, clue: str, right: Collection[str]) -> tuple[str, list[Place]]:
    """Return (words that describe the lines, the lines) that a clue finds in one function."""
    (kind, _, what), body = clue.partition(":"), at.body
    own = next(iter(_given(at, part, what)), "" if at.calls else what)
    if kind in OF_SIZES and not own:
        return "", []
    if clue in KNOWN:
        words, find = KNOWN[clue]
        return words, find(body)
    if kind == "input":
        return f"{what} is used", body.reads(_given(at, part, what))
    if kind == "instead":
        at_used, at_missing = map([*part.arguments].index, what.split(","))
        places = dict.fromkeys([*body.pointers(names := _given(at, part, what[0])), *body.reads(names)])
        some = [(body.enclosing(each.line)[-1:] or [each], each) for each in [*places][: 4 * MOST_PLACES]]
        # Kernels mostly read their inputs in the order of the arguments. So if the missing input (`at_missing`) comes
        # after the input used in its place, the wrong line is in a late loop. Lines of one loop keep their order.
        some.sort(key=lambda one: (one[0][0].line * (at_used - at_missing), one[1].line))
        return f"{what[0]} is used", [place for _, place in some[:MOST_PLACES]]
    if kind == "rest":
        of, by = ("|".join(body.made_of(_given(at, part, name))[0]) for name in what.split(","))
        rest = rf"^(?!.*%\s*\w+[\s)]*(?:[=!]=|[?>])).*\b(?:{of})[\s)]*%\s*\(?\s*(?:{by})\b"
        return f"0 where {what.replace(',', ' is a multiple of ')}?", body.find(rest) if of and by else []
    if kind == "times":
        return f"used together with {what}", body.times(_given(at, part, what))
    if kind == "pointer":
        return f"where this pointer into {what} begins", body.pointers(_given(at, part, what))
    if kind == "call":
        # Do not take `if constexpr (` for a call of exp().
        pattern = rf"\b(?!constexpr\b)\w*{what}\w*\s*\("
        return f"{what}() is called", body.find(pattern) or ([] if at.calls else body.calls(pattern))
    if kind == "store":
        return "the result is written", body.stores(_outputs(at, part, right))
    if kind == "overwritten":
        stores = body.stores(_outputs(at, part, right))
        return "the result is written", [place for place in stores if "+=" not in place.text]
    if kind == "stored":
        return "goes into the result", body.stored(_outputs(at, part, right))
    if kind == "index":
        stores = body.stores(_outputs(at, part, right))
        made = {place: None for store in stores for place in body.indices(store.line, stores=True)}
        return "decides which elements of the result are written", list(made)[:MOST_PLACES]
    if kind == "own_copies":
        stored = {
            word
            for store in body.stores(_outputs(at, part, right))
            for word in _INDEXED.findall(store.text)[:1]
        }
        clause = rf"#\s*pragma\s+omp\b.*private\s*\([^()]*\b(?:{'|'.join(stored)})\b"
        return "each thread stores into a copy of its own, which is lost", body.find(clause) if stored else []
    if kind == "line":
        return "", body.find(what)
    if kind == "text":
        return "", body.uses(what) or body.reads(body.copied_in(what))
    if kind == "turns":
        return f"begins its first or second turn only from {what} on", body.turns_from(int(what))
    if kind == "begun":
        found = body.begun(_given(at, part, what))
        is_set = all(_SETS_NUMBER.search(place.text) for place in found)
        return "a sum begins here" if is_set else "may include an old value", found
    if kind in ("until", "mixed"):
        return f"this loop runs to {own}", body.until(own, mixed=kind == "mixed")
    if kind == "around":
        return f"this loop runs to {own}", body.around_weights(own)[:3]
    if kind == "zeroed":
        return f"set to zero in the loop to {own}", body.zeroed_in(own)
    if kind == "restarts":
        stored = set(body.reads(_outputs(at, part, right)))
        words = f"set anew in each turn of a loop to {own}: should this sum go over all turns?"
        return words, [place for place in body.restarts(own) if place in stored]
    if kind == "tests":
        return "is this true in the last block, too?", body.find(
            rf"^(?!.*(?:\bfor\b|\?|\bmin\b)).*\b{own}\b.*(?:[<>]|==|%)|^(?!.*(?:\bfor\b|\?)).*(?:[<>]|==)[^;]*\b{own}\b"
        )
    if kind == "cut":
        return f"to {own} in steps, or rounded down: is the remainder of {own} included?", body.cut(own)
    if kind == "own_exp":
        # If the part calls a library's exp(), other functions of one number do not compute an exponential.
        library, whole = r"\bexp(?:f|l|2|2f|m1|m1f)?\s*\(|_exp_p[sd]\b", at.part.body
        used = [] if whole.find(library) or whole.calls(library) else body.arithmetic_of_one_number()
        return "does this compute the exponential?", used[:MOST_PLACES]
    if kind == "unlooped":
        used = body.reads(_given(at, part, next(iter(part.arguments))))
        loops = body.enclosing(used[-1].line) if used and not body.until(own) else []
        return f"no loop here runs to {own}", loops[:1]
    if kind == "piled":
        return "depends on old values", body.piled(_workspaces(at, part), reads=not at.calls)
    if kind == "cleared":
        return "set to zero", body.cleared(_workspaces(at, part))
    if kind == "cleared_in":
        rows = body.cleared(_workspaces(at, part))
        heads = {place: None for row in rows for place in body.enclosing(row.line)[-1:] if place not in rows}
        return "how far it is set to zero", [*heads]
    if kind == "into":
        return f"a sum over {what}", body.summed_from(_given(at, part, what))
    return "", []


def _outputs(at: Reached, part: Part, right: Collection[str]) -> Sequence[str]:
    wanted = [output for output in part.outputs if output not in right]
    return [name for output in wanted for name in _given(at, part, output)] or at.own(at.part.body.returned)


def _given(at: Reached, part: Part, name: str) -> list[str]:
    """Return [the student's name for the part's argument `name`], found by its position; [] if unknown."""
    given = zip(part.arguments, at.part.body.parameters, strict=False)
    return at.own(own for argument, own in given if argument == name and own)


def _workspaces(at: Reached, part: Part) -> list[str]:
    """Return the student's names for the workspaces: arguments that are arrays of zeros."""
    given = zip(part.arguments, at.part.body.parameters, strict=False)
    return at.own(own for argument, own in given if argument.startswith("zeros(") and own)


def in_words(shown: Sequence[Shown], body: Body, file_name: str) -> str:
    """Return the text to print after a diagnosis: the found lines, or the function's place if none was found."""
    if not shown:
        return f"{body.name} is {body.where(body.first, file_name)} to {body.last}."
    rows, within = list[str](), ""
    for each in shown:
        if each.within != within:
            within = each.within
            rows.append(f" In {within}:")
        words = f"   ({each.words})" if each.words else ""
        rows.append(f"  {body.where(each.place.line, file_name)}: {each.place.text}{words}")
    if shown[0].within:
        return "\n".join([f"{HEADING}{rows[0][3:]}", *rows[1:]])
    return "\n".join([f"{HEADING} {body.name}:", *rows])
